"""What a person sees in a terminal: no line wider than it, colours where they mean something, numbers with units."""

from __future__ import annotations

import inspect
import io
import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from effort import quick_every, quick_first
from scripts import ROOT

from iosim.base.units import capacity_text, quantity_text, scaled_text
from iosim.commands import cli
from iosim.commands.cli import COMMANDS, main
from iosim.show.tables import Column, Table
from iosim.show.terminal import columns, folded

pytestmark = pytest.mark.usefixtures("replays_once")

LINES = (
    "",
    "--help",
    *(f"{command} --help" for command in COMMANDS),
    "predict --kernel naive,fa2 --seq-len 512",
    "predict --kernel fa2 --seq-len 1k --pass fwd+bwd --method capacity",
    "compare --seq-len 512,1k --gpu a100,h100 --method capacity",
    "explain --seq-len 512 --heads 4",
    "trace --seq-len 512 --heads 4",
    "tiles --seq-len 1k --top 3 --rejected",
    "tiles --tile 128x256",
    "report --seq-len 512 --kernel fa2 --method capacity",
    "formula flash",
    "formula fa2 --pass bwd",
    "decode --context 1k,2k",
    "ring --num-gpus 4 --seq-len 1k --causal --schedule ring --steps",
    "train-memory --layers 2 --seq-len 512",
    "train-memory --frontier layers --layers 2,4 --seq-len 1k,2k",
    "reproduce --section A",
    "profiles list",
    "profiles show h200",
    "kernels list",
    "kernels show fa2",
    "measure --plan quick --dry-run",
    "cache show",
    "validate --help",
)


@pytest.mark.parametrize("width", quick_first([80, 60, 130], 1))
@pytest.mark.parametrize("line", quick_every(LINES, 3))
def test_no_line_is_wider_than_the_terminal(
    line: str,
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    with suppress(SystemExit):  # as argparse ends after a help
        assert main(line.split()) == 0
    printed = capsys.readouterr().out
    assert printed
    wide = [text for text in printed.splitlines() if len(text) > width]
    assert not wide


READ_BY_PROGRAMS = (
    "kernels new --from fa2",
    "kernels new --from naive --name mine",
    "schema",
    "schema predict",
    *(f"completion {shell}" for shell in ("bash", "zsh", "fish")),
    "__complete profiles show a",
    *(
        f"orders --seq-len 1k --heads 4 --order head --code {name}"
        for name in ("triton", "cuda", "formula")
    ),
    "tiles --triton --gpu a100 --seq-len 512 --top 2",
    "calibrate --from raw.json",
    "compare --seq-len 512 --method capacity --html page.html --csv rows.csv",
    "ncu-rule --install .",
    "train-memory --layers 2 --seq-len 512 --html page.html",
    "ring --num-gpus 2 --seq-len 1k --html page.html",
    "report --seq-len 512 --kernel fa2 --method capacity --out .",
    *(
        f"{line} --format {form}"
        for line in (
            "predict --kernel fa2 --seq-len 512 --method capacity",
            "compare --seq-len 512 --method capacity",
            "decode --context 1k",
            "profiles list",
            "kernels list",
            "models show llama-3-8b",
            "formula fa2 --gpu a100",
        )
        for form in ("json", "csv")
    ),
    "formula flash --latex --format md",
    "explain --seq-len 512 --heads 2 --format md",
)


@pytest.mark.parametrize("line", quick_first(READ_BY_PROGRAMS, 12))
def test_what_a_program_reads_is_as_wide_as_it_is(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = json.loads((ROOT / "tests" / "data" / "calibrate_h200.json").read_text(encoding="utf-8"))
    (tmp_path / "raw.json").write_text(json.dumps(raw | {"counters": None}))
    written = []
    for width in ("40", ""):
        monkeypatch.setenv("COLUMNS", width)
        assert main(line.split()) == 0
        files = {place.name: place.read_bytes() for place in tmp_path.iterdir()}
        out = capsys.readouterr().out
        written.append((files if "--html" in line or "--out" in line else out, files))
    assert written[0] == written[1]


def test_every_command_that_prints_code_is_held_to_its_width() -> None:
    """An output that programs read and no `--format` names says so where it is written, and stands in the list."""
    held = {line.split()[0].removeprefix("__") for line in READ_BY_PROGRAMS} - {"complete"}
    for path in (Path(cli.__file__).parent).glob("*.py"):
        if "code=" in path.read_text(encoding="utf-8") and path.stem not in (
            "cli",
            "common",
            "asked",
        ):
            module = f"from iosim.commands.{path.stem} import"
            assert held & {
                name
                for name, command in cli.COMMANDS.items()
                if command.run is not None and module in inspect.getsource(command.run)
            }, path.stem


def test_a_pipe_and_a_file_have_no_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert columns() is None
    assert folded("word " * 100) == "word " * 100
    monkeypatch.setenv("COLUMNS", "40")
    place = tmp_path / "list.txt"
    assert main(["kernels", "list", "--out", str(place)]) == 0
    assert max(map(len, place.read_text().splitlines())) > 100, "a file is as wide as its table"


TABLE = Table(
    (
        Column("name", "name"),
        Column("text", "text"),
        *(Column(f"n{n}", f"number {n}", "count") for n in range(6)),
    ),
    (
        ("first", "one two three four five six seven eight", *range(10**6, 10**6 + 6)),
        ("second", "short", *range(6)),
    ),
)


def test_a_table_keeps_every_word_and_number_however_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = sorted(set(TABLE.text().split()))
    for width in (40, 50, 80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        text = TABLE.text()
        assert sorted(set(text.split())) == whole
        assert max(map(len, text.splitlines())) <= width
    assert TABLE.csv().count("\n") == 3, "formats that programs read are not folded"


def in_a_terminal(*argv: str, **environment: str) -> str:
    """What `iosim ARGV` prints in a terminal of 100 columns."""
    main_end, other_end = pty.openpty()
    kept_variables = {
        k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "TERM")
    }
    subprocess.run(
        [sys.executable, "-m", "iosim", *argv],
        stdout=other_end,
        stderr=other_end,
        check=False,
        timeout=60,
        env=kept_variables | {"TERM": "xterm"} | environment,
    )
    os.close(other_end)
    text = os.read(main_end, 65536).decode()
    os.close(main_end)
    return text


def test_colour_says_what_is_taken_on_trust_and_only_in_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = in_a_terminal("predict", "--gpu", "nosuch")
    assert "\x1b[31miosim:\x1b[0m GPU 'nosuch'" in error
    assert "\x1b" not in in_a_terminal("predict", "--gpu", "nosuch", NO_COLOR="1")
    assert "\x1b" not in in_a_terminal("predict", "--gpu", "nosuch", TERM="dumb")
    assert main(["profiles", "show", "t4"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_numbers_have_units_that_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaled_text(1.935e12, "B/s") == "1.935 TB/s"
    assert capacity_text(62914560) == "60 MiB"
    assert capacity_text(80 * 10**9) == "80 GB"
    assert capacity_text(129536 * 1024) == "126.5 MiB"
    assert quantity_text("dram_bandwidth_bytes_per_s", 300e9) == "300 GB/s"
    assert quantity_text("boost_clock_hz", 1.98e9) == "1.98 GHz"
    assert quantity_text("launch_latency_s", 3.9e-6) == "3.9 us"
    assert quantity_text("l2_dirty_fraction", 0.49) == "49 %"
    assert quantity_text("shared_memory_carveouts_bytes", [0, 8192]) == "0 B, 8 KiB"
    assert main(["profiles", "show", "a100-pcie-80gb"]) == 0
    out = capsys.readouterr().out
    assert "1.935 TB/s" in out
    assert "['" not in out
    assert main(["profiles", "show", "a100-pcie-80gb", "--format", "csv"]) == 0
    assert "1935000000000.0" in capsys.readouterr().out

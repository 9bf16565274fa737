"""Files that are written keep what they had; what cannot be done is refused before work is done for it."""

from __future__ import annotations

import copy
import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import quick_first, some
from refusals import refused
from scripts import ROOT

from iosim.commands.cli import main

pytestmark = pytest.mark.usefixtures("replays_once")

QUICK = ["--method", "capacity", "--seq-len", "1k", "--kernel", "fa2"]
RAW: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "calibrate_h200.json").read_text())


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_file_that_is_written_again_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    out, csv = tmp_path / "p.json", tmp_path / "c.csv"
    for path in (out, csv):
        path.write_text("before")
        path.chmod(mode)
    assert main(["predict", *QUICK, "-o", str(out)]) == 0
    assert main(["compare", *QUICK, "--csv", str(csv)]) == 0
    for path in (out, csv):
        assert path.read_text() != "before"
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_report_says_what_it_replaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "report",
        "--seq-len",
        "1k",
        "--kernel",
        "fa2",
        "--force",
        "--out",
        str(tmp_path / "x.html"),
    ]
    (tmp_path / "x.md").write_text("notes")
    assert main(words) == 0
    page, notes = (line for line in capsys.readouterr().out.splitlines() if "x." in line)
    assert "in place of" not in page
    assert "x.md" in notes
    assert "in place of" in notes


def test_names_of_profiles_stay_text_in_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "hardware_profiles" / "l4.toml").read_text()
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith(("name =", "title =", "aliases ="))
    ]
    gpu = tmp_path / "g.toml"
    gpu.write_text(
        'name = "<img src=x onerror=alert(1)>"\ntitle = "<script>alert(1)</script>"\n'
        + "\n".join(lines)
    )
    words = [
        "report",
        "--gpu",
        str(gpu),
        "--seq-len",
        "1k",
        "--kernel",
        "fa2",
        "--out",
        str(tmp_path),
    ]
    if main(words):
        assert "name" in capsys.readouterr().err  # refused is as good
        return
    outside = "".join((tmp_path / "report.md").read_text().split("```")[::2])
    assert "<img" not in outside
    assert "<script" not in outside
    assert "SM<->L2" in outside


@pytest.mark.parametrize("option", ["--csv", "--html", "--out"])
@pytest.mark.parametrize("place", [".", ""])
def test_compare_refuses_a_place_that_is_no_file(
    option: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "iosim.studies.compare.compare", lambda *_, **__: pytest.fail("worked before it refused")
    )
    assert option in refused(capsys, ["compare", option, place])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trace", "--bins", "1000000"], "--bins"),
        (["trace", "--launch", "other"], "--launch"),
        (["trace", "--seq-len", "512k"], "--seq-len"),
        (["explain", "--seq-len", "512k"], "--seq-len"),
        (["explain", "--out", "."], "--out"),
        (["predict", "--out", "no/such/place"], "--out"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_replayed(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in ("call", "replays"):
        name = f"iosim.prediction.{module}.replay"
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("replayed before it refused"))
    assert message in refused(capsys, words)


@pytest.mark.parametrize(
    "words", [["predict", "--gpu=--"], ["compare", "--kernel=--"], ["predict", "--tile=--"]]
)
def test_dashes_as_a_value(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--" in refused(capsys, words)


@pytest.mark.parametrize(
    "words", quick_first(["predict --method capacity", "profiles list", "kernels list"], 1)
)
def test_a_closed_standard_output(words: str) -> None:
    command = f"exec {sys.executable} -m iosim {words} >&-"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("iosim: standard output")
    assert done.stderr.count("\n") == 1


# Raw numbers of a calibration.

VALUES = (
    None,
    0,
    -1,
    1,
    1.5,
    "x",
    "",
    [],
    {},
    True,
    float("inf"),
    float("nan"),
    10**30,
    [[1]],
    {"a": 1},
    1e-300,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:3])
        if isinstance(value, list)
        else ()
    )
    return [p for k, v in inner for p in [(*path, k), *_paths(v, (*path, k))]]


@pytest.mark.slow
def test_malformed_raw_numbers_are_refused_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One entry at a time is taken out, or holds what it should not."""
    short = RAW | {"counters": RAW["counters"] | {"rows": RAW["counters"]["rows"][-2:]}}
    raw_file, rng = tmp_path / "raw.json", random.Random(0)
    for path in some(_paths(short)):
        for value in (*rng.sample(VALUES, 3), "gone"):
            raw = copy.deepcopy(short)
            where: Any = raw
            for key in path[:-1]:
                where = where[key]
            if value == "gone":
                del where[path[-1]]
            else:
                where[path[-1]] = value
            raw_file.write_text(json.dumps(raw))
            code = main(["calibrate", "--from", str(raw_file), "-o", os.devnull])
            err = capsys.readouterr().err
            assert code in (0, 2), (path, value)
            assert all(line.startswith("iosim: ") for line in err.splitlines()), (path, value)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '{"schema": 2,', "NaN", '"\\ud800"'])
def test_json_that_is_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "raw.json").write_text(text)
    refused(capsys, ["calibrate", "--from", str(tmp_path / "raw.json")])

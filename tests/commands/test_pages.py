"""Pages that commands write with --html: small, a verdict and its figure first, over no file of anyone else."""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from effort import quick_every, slow
from refusals import refused
from scripts import ROOT

import iosim
from iosim.base.units import seconds_text
from iosim.commands.cli import main
from iosim.show.axes import LINE_PX
from iosim.show.html import unpacked
from iosim.studies.decode.study import Decoding, run_decoding
from iosim.studies.requests import DecodeRequest

REM_PX = 16
MOST_WORDS = 60
WORDS_PER_GPU = 40
"""For the verdict of each further GPU, where each has one."""
MOST_BYTES = 400_000
PAGES = {
    "compare": "--kernel naive,fa2,flash,fa3 --gpu a100,h100 --seq-len 512,1k --heads 4",
    "compare --model": "llama-3-8b --kernel fa2,fa3 --gpu h100 --seq-len 2k",
    "report": "--gpu a100,h100,l4,t4 --kernel naive,cutlass,fa2 --seq-len 512:32k:x2 --causal --method capacity",
    "trace": "--kernel fa2,naive,flash --seq-len 1k --heads 4 --causal",
    "decode": "--gpu l4,a100,h100,h200 --context 1k:16k:x2 --layers 2",
    "sweep": "--gpu a100,h100 --kernel fa2,cutlass --heads 2 --seq-len 512:4k:x2",
    "ring": "--gpu h100 --num-gpus 32 --seq-len 64k --causal",
    "tiles": "--gpu a100,t4 --seq-len 512 --heads 2",
    "orders": "--gpu h200 --heads 2 --seq-len 1k --causal",
    "latency": "--stack vllm,sglang --gpu h100,a100 --seq-len 1 --seq-len-k 1k,4k",
    "model": "llama-3-8b,gpt2 --gpu h100,a100 --layers 1 --seq-len 64",
    "train-memory": "--layers 24",
    "train-memory --frontier": "width",
    "validate": f"--measurements {ROOT / 'kernels' / 'measurements' / 'h200_chains.csv'}",
}
LITTLE = {
    "compare": "--kernel fa2,flash --gpu a100 --seq-len 512 --heads 1",
    "report": "--gpu a100 --kernel naive,fa2 --seq-len 512 --heads 1",
    "trace": "--kernel fa2 --seq-len 512 --heads 1",
    "decode": "--gpu a100 --context 1k --layers 1",
    "sweep": "--gpu a100 --kernel fa2 --seq-len 512,1k --heads 1",
    "ring": "--gpu h100 --num-gpus 2 --seq-len 1k",
    "tiles": "--gpu t4 --seq-len 256 --heads 1",
    "orders": "--gpu h200 --heads 1 --seq-len 512",
    "latency": "--stack vllm --gpu h100 --seq-len 1 --seq-len-k 1k",
    "model": "gpt2 --gpu a100 --layers 1 --seq-len 32",
    "train-memory": "--layers 1",
    "validate": "--measurements {measured}",
}
"""Pages of little work of every command that writes some."""


@cache
def text_of(command: str) -> str:
    """The page that a command writes."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "page.html"
        assert main([*command.split(), *PAGES[command].split(), "--html", str(place)]) == 0
        return place.read_text(encoding="utf-8")


def above_the_figure(page: str) -> list[str]:
    """Words before the first figure, without those of its legend."""
    head = page.partition("<body>")[2].partition("<figure>")[0]
    head = re.sub(r"<noscript>.*?</noscript>|<button.*?</button>", "", head, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", head).split()


@pytest.mark.parametrize("command", quick_every(PAGES, 4))
def test_a_page_is_small_and_begins_with_a_verdict_and_its_figure(command: str) -> None:
    text = text_of(command)
    assert len(text.encode()) < MOST_BYTES
    limit = MOST_WORDS
    if command in ("report", "tiles"):
        limit += WORDS_PER_GPU * PAGES[command].partition(" --kernel")[0].count(",")
    assert 10 < len(above_the_figure(text)) <= limit
    assert f'<meta name="generator" content="iosim {command.split()[0]}">' in text
    assert unpacked(text)["panels"]


@pytest.mark.parametrize("command", LITTLE)
def test_a_page_is_written_over_those_of_the_same_command_alone(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = tmp_path / "chain.csv"
    measured.write_text(
        "".join((ROOT / "kernels" / "measurements" / "h200_chains.csv").open().readlines()[:2])
    )
    line = [command, *LITTLE[command].format(measured=measured).split(), "--html"]
    page, other = tmp_path / "own.html", tmp_path / "other.html"
    page.write_text(f'<meta name="generator" content="iosim {command}">', encoding="utf-8")
    other.write_text('<meta name="generator" content="iosim explorer">', encoding="utf-8")
    refused(capsys, [*line, str(other)], f"--html '{other}' is there", "--force")
    assert "explorer" in other.read_text(encoding="utf-8")
    for words in ([str(page)], [str(other), "--force"]):
        assert main([*line, *words]) == 0
        assert "</html>" in Path(words[0]).read_text(encoding="utf-8")
    assert "--force" not in unpacked_line(other)


def unpacked_line(page: Path) -> str:
    """The command line that a page says makes it again."""
    return page.read_text(encoding="utf-8").partition("<pre>")[2].partition("</pre>")[0]


def test_out_and_a_report_in_markdown_are_guarded_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "report.md"
    mine.write_text("my notes on iosim report")
    report = [
        "report",
        "--gpu",
        "a100",
        "--kernel",
        "fa2",
        "--seq-len",
        "512",
        "--out",
        str(tmp_path),
    ]
    refused(capsys, report, "report.md' is there")
    assert [p.name for p in tmp_path.iterdir()] == ["report.md"]
    assert main([*report, "--force"]) == main(report) == 0
    capsys.readouterr()
    page = tmp_path / "report.html"
    refused(
        capsys,
        ["decode", "--context", "1k", "--format", "html", "-o", str(page)],
        "--out",
        "'iosim decode'",
    )
    refused(capsys, [*report, "--html", str(page)], "--html", "contradicts --out")
    refused(capsys, [*report[:-2], "--html", str(tmp_path / "a.pdf")], "ends in .html")


def test_the_map_of_tiles_has_each_pair_of_sides_that_fits(tmp_path: Path) -> None:
    place = tmp_path / "tiles.html"
    arguments = ["tiles", "--gpu", "t4", "--seq-len", "256", "--heads", "1"]
    assert main([*arguments, "--html", str(place)]) == 0
    (heat,) = unpacked(place.read_text())["panels"]["tiles-1"]["data"]
    ranking = iosim.pick_tiles(gpu="t4", seq_len=256, heads=1)
    drawn = {
        (int(q), int(k)): shade
        for q, row in zip(heat["y"], heat["z"], strict=True)
        for k, shade in zip(heat["x"], row, strict=True)
        if shade is not None
    }
    assert set(drawn) == {(c.tile.block_q, c.tile.block_k) for c in ranking.candidates}
    first = ranking.candidates[0].tile
    assert drawn[first.block_q, first.block_k] == 1 == min(drawn.values())


@pytest.mark.parametrize(
    "command", ["decode", "tiles", "sweep", slow("compare"), slow("report"), slow("orders")]
)
def test_plotly_draws_the_same_figures_offline(command: str, tmp_path: Path) -> None:
    """The same data in the same page, beside plotly's own script; nothing is fetched."""
    pytest.importorskip("plotly")
    texts = []
    for more in ([], ["--interactive"]):
        place = tmp_path / f"page{len(texts)}.html"
        assert main([command, *LITTLE[command].split(), "--html", str(place), *more]) == 0
        texts.append(place.read_text(encoding="utf-8"))
    plain, interactive = texts
    assert unpacked(plain)["panels"] == unpacked(interactive)["panels"]
    assert "Plotly.react(" in interactive
    assert "Plotly.react(" not in plain
    assert "default-src 'none'" in interactive
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=.?http", interactive)


def test_interactive_is_for_pages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused(
        capsys, ["decode", "--interactive"], "--interactive is for pages; accepted: with --html"
    )
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    arguments = [
        "tiles",
        *LITTLE["tiles"].split(),
        "--interactive",
        "--html",
        str(tmp_path / "x.html"),
    ]
    refused(capsys, arguments, "--interactive: plotly is not installed; accepted: with iosim[plot]")


def test_time_axes_of_a_trace_are_one() -> None:
    panels = unpacked(text_of("trace"))["panels"].values()
    axes = [
        p["layout"]["xaxis"] for p in panels if p["layout"]["xaxis"]["title"]["text"] == "time (ms)"
    ]
    assert len(axes) > 6
    assert len({tuple(axis["range"]) for axis in axes}) == 1


def test_a_ring_says_the_bytes_of_all_gpus() -> None:
    data = unpacked(text_of("ring"))
    columns, rows = (data["tables"]["summary"][key] for key in ("columns", "rows"))
    per_gpu, every = (columns.index(key) for key in ("received_bytes_per_gpu", "received_bytes"))
    assert all(row[every] == pytest.approx(32 * row[per_gpu], abs=32) for row in rows)
    drawn = data["panels"]["links-1"]["data"][0]
    assert dict(zip(drawn["y"], drawn["x"], strict=True)) == pytest.approx(
        {row[0]: row[every] for row in rows}, rel=1e-6
    )


def test_a_decode_page_has_all_lines_in_one_panel_with_their_steps() -> None:
    panels = unpacked(text_of("decode"))["panels"]
    assert [name for name in panels if name.startswith("tokens")] == ["tokens-1"]
    named = [a["text"] for a in panels["tokens-1"]["layout"]["annotations"]]
    assert len(named) == 4
    assert all("s per step" in text for text in named)


def test_of_many_gpus_the_shortest_and_the_longest_step_are_told() -> None:
    points = run_decoding(
        DecodeRequest(gpu=["l4", "a100", "h100"], kernel=["fa2", "flash"], context="1k,4k")
    ).points
    page = Decoding(points).as_page()
    times = sorted(p.step_s for p in points if p.context == 4096)
    assert re.findall(r"\*\*(.+?)\*\*", page.lead[0]) == [
        seconds_text(times[0]),
        seconds_text(times[-1]),
    ]
    (panel,) = page.sections[0].panels
    assert panel.height_rem * REM_PX > 6 * 2 * LINE_PX  # six names of two lines


@pytest.mark.parametrize("gpus", ["h100", "h100,h200"])
def test_a_decode_page_has_no_heading_without_a_figure(gpus: str) -> None:
    """One GPU at one context is a number, which stands in the table."""
    page = run_decoding(
        DecodeRequest(gpu=gpus.split(","), kernel=["fa3"], context=1024, layers=1)
    ).as_page()
    headings = [section.heading for section in page.sections]
    assert ("Tokens per second" in headings) == ("," in gpus)
    assert all(section.panels or section.table or section.items for section in page.sections)


def test_a_sweep_draws_the_columns_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [
        "sweep",
        "--gpu",
        "a100",
        "--kernel",
        "fa2,flash",
        "--seq-len",
        "512,1k",
        "--batch",
        "1,2",
        "--heads",
        "2",
        "--html",
    ]
    place = tmp_path / "sweep.html"
    assert main([*line, str(place)]) == 0
    (panel,) = unpacked(place.read_text(encoding="utf-8"))["panels"].values()
    # A line per kernel and batch, over both lengths.
    assert [trace["name"] for trace in panel["data"]] == [
        f"{kernel}, batch {batch}" for kernel in ("fa2", "flash") for batch in (1, 2)
    ]
    assert all(trace["x"] == [512, 1024] for trace in panel["data"])
    # Into a file the same figure is drawn of the rows that were written.
    rows = tmp_path / "rows.csv"
    axes = ["--plot", "batch,hbm_read_bytes", "--force", "--out", str(rows)]
    assert main([*line, str(place), *axes]) == 0
    (panel,) = unpacked(place.read_text(encoding="utf-8"))["panels"].values()
    with rows.open() as file:
        cells = {
            (row["kernel"], row["seq_q"], row["batch"]): int(row["hbm_read_bytes"])
            for row in csv.DictReader(file)
        }
    first = panel["data"][0]
    assert (first["name"], first["x"]) == ("fa2, seq_q 512", [1, 2])
    assert first["y"] == [cells["fa2", "512", batch] for batch in ("1", "2")]
    place.unlink()
    capsys.readouterr()
    for columns, message in (
        ("seq_q", "--plot seq_q is not two columns; accepted: x,y"),
        ("seq_q,gpu", "--plot 'gpu' is not known; accepted: batch"),
    ):
        refused(capsys, [*line, str(place), "--plot", columns], message)
        assert not place.exists()


def test_several_batches_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    line = "decode --gpu h100 --kernel fa3 --context 1k,4k --layers 1 --batch"
    assert main([*line.split(), "1,4", "--format", "json"]) == 0
    both = json.loads(capsys.readouterr().out)["points"]
    alone = []
    for batch in ("1", "4"):
        assert main([*line.split(), batch, "--format", "json"]) == 0
        alone += json.loads(capsys.readouterr().out)["points"]
    assert both == alone
    request = DecodeRequest(gpu=["h100"], kernel=["fa3"], context="1k,4k", layers=1, batch="1,4")
    decoding = run_decoding(request)
    names = [trace["name"] for trace in decoding.as_page().sections[0].panels[0].data]
    # One bound for both: it is the GPU's.
    assert names == ["K/V bound", "h100-sxm, fa3, batch 1", "h100-sxm, fa3, batch 4"]
    assert "longest context that fits on h100-sxm at batch 4" in decoding.to_text()
    refused(
        capsys,
        ["decode", "--gpu", "h100", "--batch", "2,4", "--batch-contexts", "1k,2k"],
        "--batch 2,4 contradicts --batch-contexts",
    )

"""Every command finds HBM bytes as `predict` does, and says in the cell where they are an estimate."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from effort import quick_first

import iosim
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.prediction.result import MARKS, Prediction, legend_of, marked, method_of
from iosim.show.html import html
from iosim.show.page import markdown
from iosim.show.tables import Column, Marked, Table
from iosim.studies.compare import as_page as compare_page
from iosim.studies.compare import as_text, compare
from iosim.studies.decode import ModelShape, decode_point
from iosim.studies.decode.face import points_table as decode_table
from iosim.studies.distributed import cluster, study
from iosim.studies.distributed.timing import ChunkTimes
from iosim.studies.report import CaseGrid, build
from iosim.studies.report import as_page as report_page
from iosim.studies.tiles.pick import REPLAYED, pick_tiles
from iosim.studies.training import Decoder, Setup
from iosim.studies.training.plan import plan as training_plan
from iosim.studies.training.step_time import step_time

pytestmark = pytest.mark.usefixtures("replays_once")

LONG = iosim.AttentionProblem(heads=8, seq_q=65536, head_dim=128, dtype="bf16", mask="causal")
CASES = [
    ("t4", "naive", iosim.AttentionProblem(heads=4, seq_q=2048, head_dim=64)),
    ("a100", "fa2", iosim.AttentionProblem(heads=8, seq_q=4096, head_dim=128, mask="causal")),
    (
        "l4",
        "cutlass",
        iosim.AttentionProblem(heads=8, seq_q=3000, head_dim=64, mask="window", window=500),
    ),
    ("h100", "fa3", iosim.AttentionProblem(heads=16, kv_heads=4, seq_q=4096, head_dim=128)),
    ("h200", "fa2", LONG),
    ("h200", "cudnn", LONG),
    ("a100", "naive", iosim.AttentionProblem(heads=4, seq_q=65536, head_dim=128)),
]


def hbm(p: Prediction) -> tuple[int, int]:
    return p.total("hbm", "read"), p.total("hbm", "write")


@pytest.mark.parametrize(
    ("gpu", "kernel", "problem"),
    quick_first(CASES, 2),
)
def test_report_and_compare_give_the_bytes_of_predict(
    gpu: str, kernel: str, problem: iosim.AttentionProblem
) -> None:
    alone = iosim.predict(problem, kernel, gpu)
    (point,) = build(CaseGrid.of((gpu,), (kernel,), (problem,))).points
    (entry,) = compare([problem], [kernel], [gpu]).entries
    assert entry.point is not None
    for other in (point.prediction, entry.point.prediction):
        assert (other.traffic, other.method, other.time.total_s) == (
            alone.traffic,
            alone.method,
            alone.time.total_s,
        )
    row = entry.to_dict()
    assert (row["hbm_read_bytes"], row["hbm_write_bytes"], row["method"]) == (
        *hbm(alone),
        alone.method,
    )


def test_64_thousand_causal_tokens_on_an_h200() -> None:
    """Measured: FlashAttention-2 reads 7,437 MB; predicted are 11 % less. The capacity rule says 403."""
    (entry,) = compare([LONG], ["fa2"], ["h200"]).entries
    assert entry.to_dict()["hbm_read_bytes"] == pytest.approx(7.437e9, rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["t4", "l4", "h200"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_tiles_give_the_bytes_of_predict(gpu: str, mask: str) -> None:
    problem = iosim.AttentionProblem(heads=8, seq_q=2048, head_dim=128, mask=mask)
    ranking = pick_tiles(problem, gpu)
    for c in ranking.library:
        alone = iosim.predict(problem, c.kernel, gpu)
        assert (c.hbm_read_bytes, c.hbm_write_bytes) == hbm(alone)
        assert (c.method, c.time_s) == (alone.method, alone.time.total_s)
    first = ranking.candidates[:REPLAYED]
    assert {c.method for c in first} <= {"replay", "sampled"}
    assert list(ranking.candidates) == sorted(ranking.candidates, key=lambda c: c.time_s)
    quick = pick_tiles(problem, gpu, replayed=0)
    assert {c.method for c in (*quick.candidates, *quick.library)} == {"capacity"}
    assert {(c.tile, c.registers) for c in quick.candidates} == {
        (c.tile, c.registers) for c in ranking.candidates
    }


def test_a_picked_tile_is_as_predict_has_it() -> None:
    """`flash` with that tile, as far as the command line can say it: its registers are the compiler's, no option's."""
    problem = iosim.AttentionProblem(heads=8, seq_q=4096, head_dim=128)
    estimated = [
        c
        for c in pick_tiles(problem, "a100").candidates[:REPLAYED]
        if c.registers_source == "estimated"
    ]
    for c in estimated:
        settings = iosim.Overrides(
            tile=(c.tile.block_q, c.tile.block_k), warps=c.tile.warps, stages=c.tile.stages
        )
        alone = iosim.predict(problem, "flash", "a100", overrides=settings)
        assert alone.total("hbm", "write") == pytest.approx(c.hbm_write_bytes, rel=0.05)


def test_where_no_tile_fits_the_librarys_kernels_are_replayed_all_the_same() -> None:
    problem = iosim.AttentionProblem(heads=1, seq_q=64, head_dim=1024, dtype="fp16")
    ranking = pick_tiles(problem, "t4")
    assert all(c.method == "replay" for c in ranking.library)


def test_decode_gives_the_bytes_of_predict() -> None:
    point = decode_point(ModelShape(layers=3), 8192, "h100")
    alone = iosim.predict(point.prediction.problem, "fa3", "h100")
    assert point.prediction.traffic == alone.traffic
    foreign = sum(int(r.bytes) for r in alone.traffic if r.level == "hbm" and r.tensor == "foreign")
    assert point.per_token("hbm") == 3 * (alone.total("hbm") - foreign)


@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_ring_gives_the_bytes_of_predict(passes: str) -> None:
    gpu = load_profile("h100")
    problem = iosim.AttentionProblem(heads=4, seq_q=8192, head_dim=64, mask="causal", passes=passes)
    times = ChunkTimes(problem, "fa2", gpu)
    (result,) = study(problem, 4, gpu, cluster(gpu, "nvlink"), kernel="fa2", names=["ring"])
    times.prepare(result.schedules[0])
    assert times.known
    for (pair, of_pass), prediction in times.known.items():
        alone = iosim.predict(pair.problem(problem, of_pass), "fa2", gpu)
        assert prediction.traffic == alone.traffic
    assert result.hbm_bytes == max(times.moved(result.schedules[0], "hbm"))
    assert (result.method, result.to_dict()["method"]) == ("replay", "replay")


@pytest.mark.parametrize(("name", "share"), [("megatron", {"heads": 1}), ("rsa", {"seq_q": 512})])
def test_rings_baselines_give_the_bytes_of_predict(name: str, share: dict[str, int]) -> None:
    gpu = load_profile("h100")
    problem = iosim.AttentionProblem(heads=4, seq_q=2048, head_dim=64)
    (result,) = study(problem, 4, gpu, cluster(gpu, "nvlink"), kernel="fa2", names=[name])
    kernel = "fa2" if name == "megatron" else "naive"
    mine = (
        replace(problem, kv_heads=1, **share)
        if name == "megatron"
        else replace(problem, offset=None, **share)
    )
    assert result.hbm_bytes == iosim.predict(mine, kernel, gpu).total("hbm")


def test_training_takes_the_attention_that_predict_gives() -> None:
    gpu = load_profile("l4")
    model = Decoder(layers=2)
    setup = Setup(seq_len=1024)
    time = step_time(training_plan(model, setup), gpu, "fa2")
    problem = iosim.AttentionProblem(
        batch=setup.batch,
        heads=model.heads,
        kv_heads=model.kv_heads,
        seq_q=1024,
        head_dim=model.head_dim,
        dtype=setup.number.dtype,
        mask="causal" if setup.causal else "none",
        layout="bshd",
    )
    alone = iosim.predict(problem, "fa2", gpu)
    attention = next(s for part, s in time.parts["forward"].items() if str(part) == "attention")
    assert attention == pytest.approx(2 * alone.time.total_s)
    assert time.method == alone.method == time.to_dict()["attention_method"]


# --- the marks --------------------------------------------------------------------------------------------------------


def test_a_marked_number_is_that_number_with_a_mark_for_people() -> None:
    column = Column("b", "bytes", "bytes")
    for value in (Marked.of(1500, "~"), Marked.of(1500.0, "~")):
        assert value == 1500
        assert column.text(value) == "1.5 kB~"
        assert json.dumps(value) in ("1500", "1500.0")
    table = Table((column,), ((Marked.of(1500, "*"),),))
    assert table.csv() == "b\n1500\n"
    assert "1.5 kB*" in table.text()
    assert "1.5 kB*" in table.markdown()
    assert table.to_pandas()["b"].sum() == 1500


def test_marks_follow_the_method() -> None:
    prediction = iosim.predict(iosim.AttentionProblem(heads=2, seq_q=512), "naive", "a100")
    rule = iosim.predict(
        iosim.AttentionProblem(heads=2, seq_q=512), "naive", "a100", method="capacity"
    )
    part = replace(prediction, method="sampled")
    assert not hasattr(marked(5, prediction), "mark")
    assert marked(None, rule) is None
    assert getattr(marked(5, rule), "mark") == "*"  # noqa: B009
    assert getattr(marked(0.5, part, rule), "mark") == "~*"  # noqa: B009
    assert legend_of(["replay", "bounds"]) is None
    assert str(legend_of(["capacity", "replay", "sampled"])).count(";") == 1
    assert [
        method_of(m) for m in (["replay"], ["sampled", "replay"], ["sampled", "capacity"], [])
    ] == ["replay", "sampled", "capacity", "replay"]


@pytest.mark.slow
def test_what_was_played_whole_is_no_estimate() -> None:
    prediction = iosim.predict(
        iosim.AttentionProblem(heads=2, seq_q=2048), "fa2", "a100", method="sampled"
    )
    assert prediction.method == "replay"
    assert iosim.predict(SCORES, "naive", "a100").method == "sampled"


SCORES = iosim.AttentionProblem(heads=32, seq_q=65536, head_dim=128)
"""Naive attention over it is played with some of its heads; FlashAttention-2 in coarse steps."""


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


@pytest.mark.slow
def test_compare_marks_estimates_everywhere() -> None:
    comparison = compare([SCORES.with_(seq_q=1024, seq_k=1024), SCORES], ["naive"], ["a100"])
    text, page = as_text(comparison), compare_page(comparison)
    short, long = lines_with(text, "naive", "128x128")
    assert "~" not in short
    assert "GB~" in long or "TB~" in long
    assert len(lines_with(text, "HBM bytes: ~ replayed in part")) == 1
    for written in (html(page), markdown(page)):
        assert "TB~" in written
        assert written.count("HBM bytes: ~ replayed in part") >= 1
    data = comparison.to_dict()
    assert [row["method"] for row in data["rows"]] == ["replay", "sampled"]
    assert data["legend"] == comparison.legend


@pytest.mark.slow
def test_report_marks_estimates_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "iosim.studies.report.study.search",
        lambda request, gpus: {g.label: "left out" for g in gpus},
    )
    report = build(
        CaseGrid.of(("a100",), ("naive", "fa2"), (SCORES.with_(seq_q=1024, seq_k=1024), SCORES))
    )
    page = report_page(report)
    for written in (html(page), markdown(page)):
        assert "TB~" in written
        assert "HBM bytes: ~ replayed in part" in written
    figure = report.figure("traffic-hbm")
    rows = list(csv.DictReader(io.StringIO(figure.table.csv())))
    assert {row["method"] for row in rows} == {"replay", "sampled"}
    assert not any("~" in row["hbm_bytes"] for row in rows)
    assert any("~" in cell for cells in report.summary.cells() for cell in cells)


def test_the_capacity_rule_is_marked_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--kernel", "fa2", "--seq-len", "512", "--method", "capacity"]) == 0
    text = capsys.readouterr().out
    assert "MB*" in text
    assert "HBM bytes: * by the capacity rule" in text


@pytest.mark.slow
def test_tiles_mark_what_was_not_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tiles", "--gpu", "a100", "--seq-len", "1k", "--heads", "4", "--top", "14"]
    assert main(words) == 0
    text = capsys.readouterr().out
    ranks = [line for line in text.splitlines() if re.match(r" *\d+ +\d+x\d+ ", line)]
    marks = ["*" in line for line in ranks]
    assert (len(ranks), marks[:10]) == (14, [False] * 10)
    assert any(marks)
    assert "HBM bytes: * by the capacity rule" in text
    assert main([*words[:-2], "--top", "10"]) == 0
    assert "capacity rule" not in capsys.readouterr().out
    assert main([*words, "--format", "json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    methods = [t["method"] for t in data["tiles"]]
    assert methods == [{False: "replay", True: "capacity"}[mark] for mark in marks]
    assert main([*words, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [r["method"] for r in rows if r["kind"] == "tile"] == methods


def test_decode_marks_estimates() -> None:
    point = decode_point(
        ModelShape(layers=3), 8192, "h100", conditions=Conditions(method="capacity")
    )
    row = dict(
        zip(
            (c.key for c in decode_table([point]).columns),
            decode_table([point]).cells()[0],
            strict=True,
        )
    )
    assert row["hbm_bytes_per_token"].endswith("*")
    assert not row["l2_bytes_per_token"].endswith("*")
    assert point.to_dict()["method"] == "capacity"


def test_every_mark_has_its_own_sign() -> None:
    assert len(set(MARKS.values())) == len(MARKS)

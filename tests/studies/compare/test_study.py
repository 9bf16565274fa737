"""Side by side: the rows are predict's own, ratios are of them, nothing is dropped, and files appear whole."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from operator import length_hint
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from iosim import predict
from iosim.base.errors import InputError
from iosim.base.units import bytes_text
from iosim.commands.cli import main
from iosim.prediction.predictor import tile_accesses
from iosim.problem.attention import AttentionProblem
from iosim.show.axes import linear_axis
from iosim.show.html import html, unpacked
from iosim.studies.compare import GROUPS, Comparison, as_page, as_text, by_group, compare
from iosim.studies.compare.face import figures
from iosim.studies.compare.study import QUANTITIES, group_of

pytestmark = pytest.mark.usefixtures("replays_once")

KERNELS = ("naive", "fa2", "fa3")
GPUS = ("a100", "h100")


def problem(seq_q: int = 1024, **changes: Any) -> AttentionProblem:
    return AttentionProblem(**({"heads": 8, "seq_q": seq_q, "head_dim": 64} | changes))


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare([problem(512), problem(1024)], KERNELS, GPUS)


def test_rows_are_what_predict_says(comparison: Comparison) -> None:
    assert len(comparison.entries) == 2 * 2 * 3
    for e in comparison.entries:
        if e.point is None:
            continue
        alone = predict(problem(e.seq_len), e.kernel, e.gpu, method=comparison.request.method)
        row = e.to_dict()
        for level in ("l2", "hbm"):
            for direction in ("read", "write"):
                assert row[f"{level}_{direction}_bytes"] == alone.total(level, direction)
        assert row["time_s"] == alone.time.total_s
        assert (row["peak_bytes"], row["workspace_bytes"]) == (
            alone.memory_bytes["peak"],
            alone.memory_bytes["workspace"],
        )


def test_ratios_are_baseline_over_row(comparison: Comparison) -> None:
    by_place = {(e.gpu, e.kernel, e.seq_len): e for e in comparison.entries}
    assert str(comparison.baseline) == "naive"
    for e in comparison.entries:
        base = by_place[e.gpu, "naive", e.seq_len]
        for q in QUANTITIES:
            if e.point is None:
                assert e.ratio(q) is None
            else:
                above = base.value(q)
                below = e.value(q)
                assert above is not None
                assert below
                assert e.ratio(q) == above / below


def test_what_does_not_fit_is_told() -> None:
    """At 32,768 tokens S and P of 32 heads are 137 GB: an A100 of 80 GB has no room for them."""
    comparison = compare(
        [problem(32768, heads=32)], ["naive", "fa2"], ["a100-sxm-80gb"], method="bounds"
    )
    assert [e.to_dict()["fits"] for e in comparison.entries] == ["no", "yes"]
    assert re.search(r"naive .* GB  no  ", as_text(comparison))
    assert re.search(r"fa2 .* B  yes  ", as_text(comparison))
    assert "time: without that of HBM" in comparison.notes[0]


def test_memory_ratio() -> None:
    comparison = compare([problem()], ["naive", "flash"], ["a100"])
    # naive keeps S and P of 8 heads beside Q, K, V, O; flash only these and an fp32 LSE a row
    tensor = 8 * 1024 * 64 * 2
    square = 8 * 1024 * 1024 * 2
    assert comparison.entries[1].ratio("memory") == (4 * tensor + 2 * square) / (
        4 * tensor + 8 * 1024 * 4
    )


def test_what_cannot_run_is_a_row_with_its_reason(comparison: Comparison) -> None:
    missing = [(e.gpu, e.kernel, e.seq_len) for e in comparison.missing]
    assert missing == [("a100-sxm-80gb", "fa3", n) for n in (512, 1024)]
    assert all("FlashAttention-3 needs cc 9.0" in str(e.reason) for e in comparison.missing)
    text = as_text(comparison)
    assert "fa3     cannot run" in text
    assert (
        text.count("fa3 on a100-sxm-80gb at N = 512: kernel fa3: FlashAttention-3 needs cc 9.0")
        == 1
    )
    rows = [
        r
        for r in comparison.to_dict()["rows"]
        if r["kernel"] == "fa3" and r["gpu"] == "a100-sxm-80gb"
    ]
    assert len(rows) == 2
    assert all(r["time_s"] is None and r["l2_ratio"] is None and r["reason"] for r in rows)


@pytest.mark.parametrize(
    ("baseline", "gpu"), [("fa2@h100", "h100-sxm"), ("fa2@h100-sxm", "h100-sxm")]
)
def test_a_baseline_on_one_gpu(baseline: str, gpu: str) -> None:
    comparison = compare([problem()], KERNELS, GPUS, baseline=baseline)
    assert str(comparison.baseline) == f"fa2@{gpu}"
    base = predict(problem(), "fa2", gpu, method=comparison.request.method)
    for e in comparison.entries:
        if e.point is not None:
            assert e.ratio("time") == base.time.total_s / e.point.time_s


def test_a_baseline_joins_the_kernels_and_may_be_missing() -> None:
    comparison = compare([problem()], ["fa2"], ["a100"], baseline="naive")
    assert [e.kernel for e in comparison.entries] == ["naive", "fa2"]
    without = compare([problem()], ["fa2"], GPUS, baseline="fa3")
    ratios = {(e.gpu, e.kernel): e.ratio("time") for e in without.entries}
    assert ratios["a100-sxm-80gb", "fa2"] is None
    assert ratios["h100-sxm", "fa3"] == 1
    assert compare([problem()], ["fa2", "math"], ["a100"]).baseline.kernel == "math"
    assert (
        compare([problem(passes="bwd")], ["math", "fa2"], ["a100"]).baseline.kernel == "fa2"
    )  # math has no backward
    assert compare([problem()], ["fa2", "flash"], ["a100"]).baseline.kernel == "fa2"


# --- the method -----------------------------------------------------------------------------------------------


def test_all_rows_are_as_predict_has_them() -> None:
    comparison = compare(
        [problem(n, heads=8, head_dim=128) for n in (1024, 32768)], ["naive", "flash"], ["a100"]
    )
    assert comparison.request.method is None
    for point in comparison.points:
        alone = predict(point.prediction.problem, point.kernel, "a100")
        assert (point.prediction.method, point.prediction.traffic) == (alone.method, alone.traffic)
    assert (
        compare([problem()], ["fa2"], ["a100"], method="bounds").to_dict()["rows"][0][
            "hbm_read_bytes"
        ]
        is None
    )


def test_what_would_be_played() -> None:
    chain = predict(problem(4096, heads=32, head_dim=128), "flash", "a100", method="bounds").chain
    assert tile_accesses(chain) == 32 * (4096 // 128) * (4096 // 64) * 2  # K and V at every pair


# --- bytes by tensor --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(30), deadline=None)
@given(
    kernel=st.sampled_from(("naive", "eager", "math", "flash", "cutlass", "fa1")),
    values=st.fixed_dictionaries(
        {"dropout": st.sampled_from((0.0, 0.1)), "mask": st.sampled_from(("none", "causal"))}
    ),
    bias=st.sampled_from(("none", "full")),
    passes=st.sampled_from(("fwd", "fwd+bwd")),
)
def test_groups_add_up_to_the_level(
    kernel: str, values: dict[str, Any], bias: str, passes: str
) -> None:
    passes = "fwd" if kernel == "math" else passes
    p = problem(256, heads=2, passes=passes, bias="none" if kernel == "fa1" else bias, **values)
    prediction = predict(p, kernel, "a100", method="replay")
    for level in ("l2", "hbm"):
        parts = by_group(prediction, level)
        assert sum(parts.values()) == prediction.total(level)
        assert list(parts) == [g for g in GROUPS if g in parts]
    parts = by_group(prediction, "l2")
    assert ("bias" in parts) == (p.bias != "none")
    assert ("dropout" in parts) == (p.dropout > 0)
    assert ("masks" in parts) == (p.mask != "none" and kernel in ("naive", "eager", "math"))
    assert ("scores" in parts) == (kernel in ("naive", "eager", "math"))


def test_group_of_every_kind() -> None:
    p = problem(
        256,
        heads=4,
        kv_heads=2,
        passes="fwd+bwd",
        bias="full",
        bias_grad=True,
        bias_shared="heads",
        dropout=0.1,
    )
    chain = predict(p, "flash", "a100", method="bounds").chain
    groups = {name: group_of(chain, name) for name in chain.tensors}
    assert groups == {
        "Q": "Q, K, V, O",
        "K": "Q, K, V, O",
        "V": "Q, K, V, O",
        "O": "Q, K, V, O",
        "dO": "Q, K, V, O",
        "dQ": "Q, K, V, O",
        "dK": "Q, K, V, O",
        "dV": "Q, K, V, O",
        "LSE": "row statistics",
        "D": "row statistics",
        "dQ_acc": "copies",
        "dK_heads": "copies",
        "dV_heads": "copies",
        "bias": "bias",
        "dBias_heads": "bias",
        "dBias": "bias",
        "rng_state": "dropout",
    }
    assert group_of(chain, "spill") == "other"


def test_terms_stand_in_their_own_columns() -> None:
    comparison = compare([problem(dropout=0.1, bias="full")], ["naive", "flash"], ["a100"])
    text = as_text(comparison)
    assert "dropout 0.1, bias full" in text.split("\n\n")[2]
    header = next(line for line in text.splitlines() if "Q, K, V, O" in line)
    assert "bias" in header
    assert "dropout" in header
    parts = {t["kernel"]: t["l2"] for t in comparison.to_dict()["tensors"]}
    square = 8 * 1024 * 1024
    assert parts["naive"]["dropout"] == square * (
        1 + 2 + 2
    )  # the mask's bytes written, dropped weights out and in
    assert parts["flash"]["dropout"] == 32
    assert parts["flash"]["bias"] == square * 2


# --- figures and the page ---------------------------------------------------------------------------------------------


def test_figures_draw_every_number_once(comparison: Comparison) -> None:
    small = compare([problem()], KERNELS, GPUS)
    for compared in (small, comparison):
        drawn = figures(compared)
        assert drawn[0].id == "overview"
        for figure in drawn:
            assert figure.table.rows
            assert all(p.alt.endswith(".") for p in figure.panels)
    drawn = {f.id: f for f in figures(small)}
    assert list(drawn) == ["overview", "time", "memory", "parts-l2", "parts-hbm"]
    marks = [t for p in drawn["overview"].panels for t in p.data if t["name"] == "SM<->L2"]
    assert sorted(v for t in marks for v in t["x"]) == sorted(p.l2 for p in small.points)
    bars = [t for p in drawn["time"].panels for t in p.data if t["type"] == "bar"]
    assert sorted(v for t in bars for v in t["x"]) == sorted(p.time_s for p in small.points)
    parts = drawn["parts-l2"]
    assert sum(int(row[4] or 0) for row in parts.table.rows) == sum(p.l2 for p in small.points)
    for panel in parts.panels:
        *stack, whole = panel.data
        sums = [sum(t["x"][n] or 0 for t in stack) for n in range(len(whole["x"]))]
        assert whole["x"] == sums


def test_a_lone_bar_is_not_drawn_and_lone_bars_share_a_panel() -> None:
    alone = figures(compare([problem()], ["fa2"], ["a100"]))
    assert not {"time", "memory"} & {f.id for f in alone}
    (time,) = (
        f for f in figures(compare([problem()], ["fa2"], ["a100", "h100"])) if f.id == "time"
    )
    assert [p.data[0]["y"] for p in time.panels] == [["a100-sxm-80gb, fa2", "h100-sxm, fa2"]]


@settings(max_examples=examples(200), deadline=None)
@given(top=st.floats(1e-9, 1e15))
def test_ticks_start_at_zero_and_cover_the_bars(top: float) -> None:
    axis = linear_axis([top / 3, top], "bytes", bytes_text)
    ticks = axis["tickvals"]
    assert ticks[0] == 0
    assert top * (1 - 1e-9) <= ticks[-1] <= axis["range"][1]
    assert 2 <= len(ticks) <= 7
    assert ticks[-2] < top * (1 + 1e-9)


def test_the_page_fetches_nothing_and_holds_the_rows(comparison: Comparison) -> None:
    page = html(as_page(comparison, "iosim compare --kernel '<b>'"))
    assert "http" not in re.sub(r"http-equiv", "", page)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page)
    assert "<b>'" not in page
    assert "FlashAttention-3 needs cc 9.0 or later" in page
    data = unpacked(page)
    assert len(data["tables"]["summary"]["rows"]) == len(
        comparison.points
    )  # what cannot run is a list with its reasons
    assert set(data["commands"]) == {p.id for p in comparison.points}


@pytest.mark.parametrize("lengths", [(1024,), (512, 1024), (256, 512, 1024, 2048, 4096)])
def test_the_chart_has_every_kernel_asked_for_by_problem(lengths: tuple[int, ...]) -> None:
    kernels = ["naive", "fa2", "flash", "fa3"]
    gpus = ["a100-sxm-80gb", "h100-sxm"]
    problems = [problem(seq_q=n, heads=2) for n in lengths]
    page = as_page(compare(problems, kernels, gpus, method="capacity"))
    panels = page.sections[0].panels
    if len(lengths) > 4:  # lines against the length
        assert [p.title for p in panels] == gpus
        named = [
            {t["name"].removesuffix(" HBM") for t in p.data if t["name"].endswith(" HBM")}
            for p in panels
        ]
        assert named == [{"naive", "fa2", "flash"}, {*kernels}]
        return
    titles = [f"N = {n:,}, {gpu}" for n in lengths for gpu in gpus] if len(lengths) > 1 else gpus
    assert [p.title for p in panels] == titles
    for p in panels:
        assert list(p.layout["yaxis"]["categoryarray"]) == kernels
        cannot = [t["y"] for t in p.data if t.get("text") == ["cannot run"]]
        assert cannot == ([["fa3"]] if "a100" in p.title else [])
    groups = page.sections[1].table
    assert groups is not None
    assert [c.key for c in groups.columns][:3] == ["seq_q", "gpu", "kernel"]


def test_every_command_line_gives_its_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import shlex

    comparison = compare(
        [problem(mask="causal", bias="full", bias_shared="heads", key_padding=True)],
        ["flash"],
        ["a100"],
    )
    for p in comparison.points:
        assert main(shlex.split(comparison.commands[p.id])[1:]) == 0
        (alone,) = json.loads(capsys.readouterr().out)["predictions"]
        assert alone["totals"]["l2"]["read"] == p.prediction.total("l2", "read")
        assert AttentionProblem.from_dict(alone["problem"]) == p.prediction.problem.with_(offset=0)


# --- the command ------------------------------------------------------------------------------------------------------

SMALL = [
    "compare",
    "--kernel",
    "naive,fa2,fa3",
    "--gpu",
    "a100,h100",
    "--seq-len",
    "512,1024",
    "--heads",
    "4",
]


def test_formats(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*SMALL, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    assert len(data["rows"]) == 12
    assert data["baseline"] == "naive"
    assert main([*SMALL, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(r["seq_q"]) for r in rows] == [r["seq_q"] for r in data["rows"]]
    assert [r["l2_read_bytes"] for r in rows] == [
        "" if r["l2_read_bytes"] is None else str(r["l2_read_bytes"]) for r in data["rows"]
    ]
    page, table = tmp_path / "c.html", tmp_path / "c.csv"
    assert main([*SMALL, "--html", str(page), "--csv", str(table)]) == 0
    captured = capsys.readouterr()
    assert "N = 1,024" in captured.out
    wrote = [f"iosim: wrote {file}: {file.stat().st_size:,} bytes" for file in (table, page)]
    assert captured.err.splitlines() == wrote
    assert list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8")))) == rows
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.csv", "c.html"]


def test_options_repeat_and_take_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "compare",
                "--kernel",
                "naive",
                "--kernel",
                "fa2,flash",
                "--gpu",
                "a100",
                "--seq-len",
                "512",
                "--baseline",
                "flash",
                "--format",
                "json",
            ]
        )
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert [r["kernel"] for r in data["rows"]] == ["naive", "fa2", "flash"]
    assert data["rows"][2]["time_ratio"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kernel", "naive,fa9"], "--kernel 'fa9' is not known"),
        (["--gpu", "a1000"], "'a1000' is not known"),
        (["--baseline", "fa9"], "--kernel 'fa9' is not known"),
        (
            ["--baseline", "naive@b200"],
            "--baseline @b200 is none of the GPUs compared; accepted: a100-sxm-80gb",
        ),
        (
            ["--method", "guess"],
            "--method 'guess' is not known; accepted: bounds, capacity, sampled, replay",
        ),
        (["--l2", "hot"], "--l2 'hot' is not known"),
        (["--kernel", "fa3", "--gpu", "a100"], "FlashAttention-3 needs cc 9.0"),
        (["--seq-len", "0"], "--seq-len 0 is out of range"),
        (["--html", "/nowhere/at/all.html", "--seq-len", "128"], "cannot be written"),
    ],
)
def test_bad_input(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["compare", *words], message)


def test_bad_input_of_the_function() -> None:
    with pytest.raises(InputError, match=r"^kernel is empty"):
        compare([problem()], [], ["a100"])
    with pytest.raises(InputError, match=r"^profile is empty"):
        compare([problem()], ["fa2"], [])
    with pytest.raises(InputError, match="may differ in their sequence length alone"):
        compare([problem(512), problem(1024, heads=4)], ["fa2"], ["a100"])


def test_progress_hands_on_every_job() -> None:
    seen: list[int] = []

    def watch(jobs: Any) -> Any:
        seen.append(length_hint(jobs))
        return jobs

    compare([problem(256)], KERNELS, GPUS, progress=watch)
    assert seen == [6]


def test_nothing_but_the_tables_in_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "iosim", *SMALL],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    assert "\r" not in done.stdout


def test_check_bits_are_named_beside_what_is_compulsory(capsys: pytest.CaptureFixture[str]) -> None:
    """An L4's check bits lie in its memory: an eighth of K, V and Q, 786,432 bytes."""
    sizes = ["--heads", "2", "--seq-len", "512", "--head-dim", "128"]
    assert main(["compare", "--gpu", "l4", "--kernel", "naive", *sizes]) == 0
    out = capsys.readouterr().out
    assert f"moves {bytes_text(786_432 * 9 / 8)} at HBM (compulsory)" in out.split("\n")[0]
    checked = f"check bits of ECC: {bytes_text(786_432 / 8)} of naive's"
    assert f"On l4 HBM's bytes hold {checked}." in out

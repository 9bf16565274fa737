"""`iosim validate`: its contract, its gates, what it refuses, and how far predictions may be from what was measured.

The limits here hold back a change that loses accuracy. Rows that no model explains yet stand by name, with the reason.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from effort import quick_first
from refusals import refused
from validated import CHAINS, FOLDER, LIBRARY, shipped, some_calls, table, write

from iosim.commands.cli import main
from iosim.evidence.validate import Gate, Residual, default_files, read
from iosim.evidence.validate.residuals import REGIMES
from iosim.evidence.validate.rows import QUANTITIES, own_file
from iosim.evidence.validate.summary import Summary, clean, halves, is_near


@pytest.fixture(scope="module")
def spilling(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A short call without spills and one with: cuDNN's and PyTorch's FlashAttention-2."""
    folder = tmp_path_factory.mktemp("spills")
    with (default_files()[0]).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    short = [r for r in rows if int(r["hbm_read"]) > 10**7 and int(r["seq_q"]) <= 4096]
    rows_kept = [
        next(r for r in short if r["implementation"] == name) for name in ("cudnn", "pytorch_flash")
    ]
    place = folder / "rows.csv"
    with place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(r for r in rows if r["call"] in {k["call"] for k in rows_kept})
    return str(place)


MB = 1_000_000


def launches(quantity: str) -> list[Residual]:
    """Rows of single launches, without spills."""
    return [r for r in clean(shipped().residuals) if r.quantity == quantity and not r.row.chain]


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A few cheap calls of every kind: fused, split, backward, one without a model."""
    some = [r for r in reversed(table(LIBRARY)) if r["seq_q"] in ("1", "2048", "4096")]
    kinds = {(r["implementation"], r["seq_q"], int(r["call"]) % 2): int(r["call"]) for r in some}
    wanted = {
        n for (name, *_), n in kinds.items() if name not in ("pytorch_flex", "cudnn_backward")
    }
    unknown = {**table(LIBRARY)[0], "call": "999", "implementation": "mystery"}
    return write(
        tmp_path_factory.mktemp("validate") / "some.csv", [*some_calls(LIBRARY, *wanted), unknown]
    )


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["validate", *argv, "--format", "json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_json_holds_the_contract(small_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "--measurements", small_file)
    assert data["schema"] == 1
    for row in data["rows"]:
        assert row["quantity"] in QUANTITIES
        assert row["regime"] in REGIMES
        assert {"implementation", "problem", "call", "launch", "chain", "difference"} <= set(row)
        assert row["difference"] == row["predicted"] - row["measured"]
        if row["quantity"] == "time":
            continue
        assert isinstance(row["predicted"], int)
        if row["measured"] < 2 * MB:
            assert row["error"] is None
        else:
            assert row["error"] == abs(row["predicted"] - row["measured"]) / row["measured"]
    for part in ("summary", "summary_spills"):
        for quantity in ("hbm_read", "hbm_write", "l2_read", "l2_write"):
            assert {"n", "median", "p95", "max"} <= set(data[part][quantity])
    counted = sum(part[q]["n"] for part in (data["summary"], data["summary_spills"]) for q in part)
    assert counted == sum(r["error"] is not None for r in data["rows"])
    assert sum(s["n"] for s in data["summary_small"].values()) == sum(
        r["error"] is None for r in data["rows"]
    )
    assert [s["reason"] for s in data["skipped"]] == ["no model for 'mystery'"]


@pytest.mark.slow
def test_every_row_is_compared_or_skipped() -> None:
    rows = [r for path in default_files() for r in read(path)]
    seen = {(r.row.source, r.row.call, r.row.launch) for r in shipped().residuals}
    left_out = {(s.row.source, s.row.call, s.row.launch) for s in shipped().skipped}
    assert not seen & left_out
    assert len(seen) + len(left_out) == len(rows)
    assert not left_out


@pytest.mark.slow
def test_predictions_are_those_of_predict(capsys: pytest.CaptureFixture[str]) -> None:
    """One launch from an empty L2 is what `iosim predict` prints."""
    row = next(
        r
        for r in launches("hbm_read")
        if r.row.implementation == "cudnn" and r.problem.mask == "none"
    )
    p = row.problem
    argv = [
        "predict",
        "--gpu",
        "h200",
        "--kernel",
        "cudnn",
        "--batch",
        str(p.batch),
        "--heads",
        str(p.heads),
        "--kv-heads",
        str(p.kv_heads),
        "--seq-len",
        str(p.seq_q),
        "--seq-len-k",
        str(p.seq_k),
        "--head-dim",
        str(p.head_dim),
        "--dtype",
        p.dtype,
        "--format",
        "json",
    ]
    assert main(argv) == 0
    totals = json.loads(capsys.readouterr().out)["predictions"][0]["totals"]
    assert totals["hbm"]["read"] == row.predicted


@pytest.mark.parametrize("form", quick_first(["csv", "html", "table", "md"], 2))
def test_other_formats(form: str, small_file: str, tmp_path: Path) -> None:
    out = tmp_path / f"out.{form}"
    assert (
        main(
            [
                "validate",
                "--measurements",
                small_file,
                "--format",
                form,
                "--split",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    text = out.read_text(encoding="utf-8")
    if form == "csv":
        rows = table(str(out))
        assert {
            "implementation",
            "quantity",
            "measured",
            "predicted",
            "error",
            "regime",
            "seq_q",
        } <= set(rows[0])
        return
    assert "no model for" in text
    assert "Odd calls, without spills (constants were fitted on these)" in text
    if form == "html":
        assert 'id="figure-hbm_read"' in text
        assert 'id="figure-residuals"' in text
        assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in text
        assert "<script src" not in text


def test_shared_memory_is_compared_where_it_is_counted_and_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small calls of an H100: two of the memory-efficient forward, cuDNN's, FlexAttention's, whose layout is not
    described, and one whose counter was not read. Wavefronts of 128 bytes stand as bytes."""
    rows = some_calls(str(FOLDER / "h100_random.csv"), 149, 159, 70, 24)
    uncounted = {**rows[0], "call": "900", "smem_wavefronts": ""}
    file = write(tmp_path / "drawn.csv", [*rows, uncounted])
    arguments = ["--measurements", file, "--gpu", "h100"]
    printed = answer(capsys, *arguments, "--fail-above", "smem:p95=10%")
    by_call = {r["call"]: r for r in printed["rows"] if r["quantity"] == "smem"}
    assert set(by_call) == {149, 159, 70}
    for row in rows:
        if int(row["call"]) in by_call:
            assert by_call[int(row["call"])]["measured"] == 128 * int(row["smem_wavefronts"])
    assert (
        printed["summary"]["smem"]["n"] + printed["summary_spills"].get("smem", {"n": 0})["n"] == 3
    )
    assert 0 < max(r["error"] for r in by_call.values()) < 0.1
    by_name = printed["by_implementation"]
    assert {name for name in by_name if "smem" in by_name[name]} == {
        "cudnn",
        "pytorch_mem_efficient",
    }
    assert printed["gates"][0]["quantity"] == "smem"
    assert printed["gates"][0]["holds"]
    assert main(["validate", *arguments]) == 0
    text = capsys.readouterr().out
    assert "Largest errors: shared memory" in text
    assert [
        line
        for line in text.splitlines()
        if line.startswith("pytorch_mem_efficient  shared memory")
    ]
    assert main(["validate", *arguments, "--format", "csv"]) == 0
    assert (
        sum(r["quantity"] == "smem" for r in csv.DictReader(capsys.readouterr().out.splitlines()))
        == 3
    )


def test_halves_are_by_call(small_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "--measurements", small_file, "--split")
    for quantity in QUANTITIES:
        for part, whole in (("", "summary"), ("_spills", "summary_spills")):
            counts = [
                data["split"][f"{half}{part}"].get(quantity, {"n": 0})["n"]
                for half in ("odd", "even")
            ]
            assert sum(counts) == data[whole].get(quantity, {"n": 0})["n"]


def test_summary_statistics() -> None:
    assert Summary.of([]) == Summary(0, None, None, None)
    assert Summary.of([0.3]) == Summary(1, 0.3, 0.3, 0.3)
    assert Summary.of([0.4, 0.1, 0.2, 0.3]) == Summary(4, 0.25, 0.4, 0.4)
    assert Summary.of(n / 100 for n in range(1, 101)).p95 == 0.95  # 95 of 100 do not exceed it
    assert Summary.of(n / 100 for n in range(1, 22)).p95 == 0.20  # 20 of 21 are 95.2 %


def test_gate_passes_and_fails(small_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["validate", "--measurements", small_file]
    assert (
        main([*argv, "--fail-above", "hbm_read=50%", "--fail-above", "l2_read:median=0.001"]) == 0
    )
    assert capsys.readouterr().err == ""
    assert main([*argv, "--fail-above", "time=0.0001%", "--fail-above", "hbm_read=50%"]) == 1
    captured = capsys.readouterr()
    assert "Kernels without spills" in captured.out
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("iosim: --fail-above: time: max error")


def test_gate_on_what_no_row_compares_fails(tmp_path: Path) -> None:
    path = write(
        tmp_path / "chain.csv", [r for r in table(CHAINS) if r["implementation"] == "flash"][:1]
    )
    assert main(["validate", "--measurements", path, "--fail-above", "time=50%"]) == 1


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("hbm_read=5%", Gate("hbm_read", "max", 0.05)),
        ("l2_write:p95=0.25", Gate("l2_write", "p95", 0.25)),
        (" time:median = 10 % ", None),
        ("time:median=10%", Gate("time", "median", 0.1)),
        ("hbm_read", None),
        ("hbm_read=", None),
        ("hbm_read=-1", None),
        ("hbm_read=nan", None),
        ("speed=5%", None),
        ("hbm_read:mean=5%", None),
        ("hbm_read:=5%", None),
        ("", None),
    ],
)
def test_gate_syntax(text: str, gate: Gate | None, capsys: pytest.CaptureFixture[str]) -> None:
    if gate is not None:
        assert Gate.parse(text) == gate
    elif "median" not in text:
        refused(capsys, ["validate", "--fail-above", text], "--fail-above")


CUDNN_BACKWARD = "the launches before and after its main one store sectors half by half; some leave as two packets"


def statistic(residuals: list[Residual], which: str) -> float:
    value = getattr(Summary.of(r.error for r in residuals if r.error is not None), which)
    assert isinstance(value, float)
    return value


@pytest.mark.slow
def test_hbm_reads_without_spills() -> None:
    rows = launches("hbm_read")
    assert len(rows) > 90
    assert statistic(rows, "median") <= 0.005
    assert statistic(rows, "p95") <= 0.05
    for r in rows:
        assert r.error is None or r.error <= 0.1, (r.row.call, r.launch)


@pytest.mark.slow
def test_both_halves_are_alike() -> None:
    """What was not fitted on is predicted as well as what was."""
    by_half = halves([r for r in shipped().residuals if not r.row.chain])
    for half in ("odd", "even"):
        median = by_half[half]["hbm_read"].median
        assert median is not None
        assert median <= 0.005


@pytest.mark.slow
def test_hbm_writes_without_spills() -> None:
    rows = [r for r in launches("hbm_write") if r.row.implementation != "cudnn_backward"]
    near = [r for r in rows if is_near(r)]
    assert len(near) >= 0.95 * len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["l2_read", "l2_write"])
def test_l2_without_spills(quantity: str) -> None:
    for r in launches(quantity):
        if quantity == "l2_write" and r.row.implementation == "cudnn_backward":
            continue  # CUDNN_BACKWARD
        if r.row.call in (3, 127):
            continue  # FlashAttention-2's build for split keys and whole tiles stores 8 bytes a thread: not recorded
        assert abs(r.difference) <= max(1000, 2e-3 * r.measured), (r.row.call, r.launch)


@pytest.mark.slow
def test_spilling_kernels() -> None:
    rows = [
        r for r in shipped().residuals if r.spills and r.quantity == "hbm_read" and not r.row.chain
    ]
    assert len(rows) > 60
    assert statistic(rows, "median") <= 0.005
    assert statistic(rows, "p95") <= 0.12
    assert (
        statistic(rows, "max") <= 0.36
    )  # one problem, which elsewhere in memory reads a fifth less: docs/replay.md


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["hbm_read", "hbm_write"])
def test_chains(quantity: str) -> None:
    rows = [r for r in shipped().residuals if r.row.chain and r.quantity == quantity]
    assert len(rows) == 17
    for r in rows:
        tolerance = (
            0.2 if r.row.call == 17 else 0.1
        )  # both passes over 1,024 heads: spills that wait in the L2
        assert abs(r.difference) <= max(tolerance * r.measured, 2 * MB), r.row.call


def test_a_gate_says_which_rows_it_leaves_out_and_can_count_them(
    capsys: pytest.CaptureFixture[str], spilling: str
) -> None:
    gate = ["validate", "--measurements", spilling, "--fail-above", "hbm_read=50%"]
    assert main(gate) == 0
    (printed_line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("--fail-above")
    ]
    assert "1 rows with spills are left out (pytorch_flash)" in printed_line
    assert "--with-spills" in printed_line
    held = {}
    for more in ([], ["--with-spills"]):
        assert main([*gate, *more, "--format", "json"]) == 0
        data = json.loads(capsys.readouterr().out)
        (held[bool(more)],) = data["gates"]
        reads = [r for r in data["rows"] if r["quantity"] == "hbm_read" and r["error"] is not None]
        counted = [r for r in reads if more or not r["spills"]]
        assert held[bool(more)]["rows"] == len(counted)
        assert held[bool(more)]["error"] == max(r["error"] for r in counted)
        assert held[bool(more)]["holds"]
    assert (held[False]["rows_left_out"], held[True]["rows_left_out"]) == (1, 0)
    assert held[True]["rows"] == held[False]["rows"] + 1
    worst = held[True]["error"]
    limit = ["--fail-above", f"hbm_read={worst / 2:.9f}"]
    assert main(["validate", "--measurements", spilling, *limit, "--with-spills"]) == 1


def test_where_nothing_matches_the_command_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with default_files()[0].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:1]
    rows[0]["implementation"] = "nobody's"
    place = tmp_path / "rows.csv"
    with place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert main(["validate", "--measurements", str(place)]) == 2
    assert "nothing was checked" in capsys.readouterr().err


def test_shipped_rows_are_not_compared_with_another_gpu_unless_asked(
    capsys: pytest.CaptureFixture[str], spilling: str
) -> None:
    refused(capsys, ["validate", "--gpu", "a100"], "--gpu a100", "h200-sxm", "--across")
    shipped = str(own_file())
    refused(
        capsys, ["validate", "--gpu", "h100", "--measurements", shipped], "--gpu h100", "--across"
    )
    assert (
        main(["validate", "--gpu", "h100", "--measurements", spilling]) == 0
    )  # a table of one's own

"""`iosim validate`: its contract, its gates, what it refuses, and how far predictions may be from what was measured.

The limits here hold back a change that loses accuracy. Rows that no model explains yet stand by name, with the reason.
"""

from __future__ import annotations

import csv
import json
import os
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from effort import KEPT_REPLAYS, quick_first
from refusals import refused

from iosim.base.data import data_dir
from iosim.commands.cli import main
from iosim.evidence.validate import Comparison, Gate, Residual, compare, default_files, read
from iosim.evidence.validate.match import NoModel, match
from iosim.evidence.validate.residuals import REGIMES, calls
from iosim.evidence.validate.rows import LAUNCH_COLUMNS, NEEDED, QUANTITIES, own_file
from iosim.evidence.validate.summary import Summary, clean, halves, is_near
from iosim.hardware.profile import load_profile
from iosim.kernel.schedule import Start

FOLDER = data_dir("kernels") / "measurements"
LIBRARY, CHAINS = (str(path) for path in default_files())
OWN = str(FOLDER / "h200_iosim_kernels.csv")
MB = 1_000_000

Table = list[dict[str, str]]


def table(path: str) -> Table:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Table) -> str:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def some_calls(path: str, *numbers: int) -> Table:
    return [r for r in table(path) if int(r["call"]) in numbers]


@cache
def shipped() -> Comparison:
    with patch.dict(
        os.environ, IOSIM_CACHE=os.environ[KEPT_REPLAYS]
    ):  # the README's command plays the same
        return compare(
            [row for path in default_files() for row in read(path)], load_profile("h200")
        )


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
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


# Contract


def test_json_holds_the_contract(small_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(capsys, "--measurements", small_file)
    assert made["schema"] == 1
    for row in made["rows"]:
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
            assert {"n", "median", "p95", "max"} <= set(made[part][quantity])
    counted = sum(part[q]["n"] for part in (made["summary"], made["summary_spills"]) for q in part)
    assert counted == sum(r["error"] is not None for r in made["rows"])
    assert sum(s["n"] for s in made["summary_small"].values()) == sum(
        r["error"] is None for r in made["rows"]
    )
    assert [s["reason"] for s in made["skipped"]] == ["no model for 'mystery'"]


@pytest.mark.slow
def test_every_row_is_compared_or_skipped() -> None:
    rows = [r for path in default_files() for r in read(path)]
    seen = {(r.row.source, r.row.call, r.row.launch) for r in shipped().residuals}
    left = {(s.row.source, s.row.call, s.row.launch) for s in shipped().skipped}
    assert not seen & left
    assert len(seen) + len(left) == len(rows)
    assert not left


@pytest.mark.slow
def test_predictions_are_those_of_predict(capsys: pytest.CaptureFixture[str]) -> None:
    """One launch from an empty L2 is what `iosim predict` prints."""
    row = next(
        r
        for r in launches("hbm_read")
        if r.row.implementation == "cudnn" and r.problem.mask == "none"
    )
    p = row.problem
    argv = ["predict", "--gpu", "h200", "--kernel", "cudnn", "--batch", str(p.batch), "--heads", str(p.heads),
            "--kv-heads", str(p.kv_heads), "--seq-len", str(p.seq_q), "--seq-len-k", str(p.seq_k), "--head-dim",
            str(p.head_dim), "--dtype", p.dtype, "--format", "json"]  # fmt: skip
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
    asked = ["--measurements", file, "--gpu", "h100"]
    told = answer(capsys, *asked, "--fail-above", "smem:p95=10%")
    found = {r["call"]: r for r in told["rows"] if r["quantity"] == "smem"}
    assert set(found) == {149, 159, 70}
    for row in rows:
        if int(row["call"]) in found:
            assert found[int(row["call"])]["measured"] == 128 * int(row["smem_wavefronts"])
    assert told["summary"]["smem"]["n"] + told["summary_spills"].get("smem", {"n": 0})["n"] == 3
    assert 0 < max(r["error"] for r in found.values()) < 0.1
    by_name = told["by_implementation"]
    assert {name for name in by_name if "smem" in by_name[name]} == {
        "cudnn",
        "pytorch_mem_efficient",
    }
    assert told["gates"][0]["quantity"] == "smem"
    assert told["gates"][0]["holds"]
    assert main(["validate", *asked]) == 0
    text = capsys.readouterr().out
    assert "Largest errors: shared memory" in text
    assert [
        line
        for line in text.splitlines()
        if line.startswith("pytorch_mem_efficient  shared memory")
    ]
    assert main(["validate", *asked, "--format", "csv"]) == 0
    assert (
        sum(r["quantity"] == "smem" for r in csv.DictReader(capsys.readouterr().out.splitlines()))
        == 3
    )


def test_halves_are_by_call(small_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(capsys, "--measurements", small_file, "--split")
    for quantity in QUANTITIES:
        for part, whole in (("", "summary"), ("_spills", "summary_spills")):
            counts = [
                made["split"][f"{half}{part}"].get(quantity, {"n": 0})["n"]
                for half in ("odd", "even")
            ]
            assert sum(counts) == made[whole].get(quantity, {"n": 0})["n"]


def test_summary_statistics() -> None:
    assert Summary.of([]) == Summary(0, None, None, None)
    assert Summary.of([0.3]) == Summary(1, 0.3, 0.3, 0.3)
    assert Summary.of([0.4, 0.1, 0.2, 0.3]) == Summary(4, 0.25, 0.4, 0.4)
    assert Summary.of(n / 100 for n in range(1, 101)).p95 == 0.95  # 95 of 100 do not exceed it
    assert Summary.of(n / 100 for n in range(1, 22)).p95 == 0.20  # 20 of 21 are 95.2 %


# Gates


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
    [("hbm_read=5%", Gate("hbm_read", "max", 0.05)), ("l2_write:p95=0.25", Gate("l2_write", "p95", 0.25)),
     (" time:median = 10 % ", None), ("time:median=10%", Gate("time", "median", 0.1)), ("hbm_read", None),
     ("hbm_read=", None), ("hbm_read=-1", None), ("hbm_read=nan", None), ("speed=5%", None), ("hbm_read:mean=5%", None),
     ("hbm_read:=5%", None), ("", None)],
)  # fmt: skip
def test_gate_syntax(text: str, gate: Gate | None, capsys: pytest.CaptureFixture[str]) -> None:
    if gate is not None:
        assert Gate.parse(text) == gate
    elif "median" not in text:
        refused(capsys, ["validate", "--fail-above", text], "--fail-above")


# Accuracy

CUDNN_BACKWARD = "the launches before and after its main one store sectors half by half; some leave as two packets"


def statistic(residuals: list[Residual], which: str) -> float:
    found = getattr(Summary.of(r.error for r in residuals if r.error is not None), which)
    assert isinstance(found, float)
    return found


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
    found = halves([r for r in shipped().residuals if not r.row.chain])
    for half in ("odd", "even"):
        median = found[half]["hbm_read"].median
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
        most = (
            0.2 if r.row.call == 17 else 0.1
        )  # both passes over 1,024 heads: spills that wait in the L2
        assert abs(r.difference) <= max(most * r.measured, 2 * MB), r.row.call


# What a prediction may know


@pytest.mark.slow
def test_measured_columns_are_no_inputs(tmp_path: Path) -> None:
    """Scrambled bytes and times leave every prediction as it was."""
    numbers = [int(r["call"]) for r in table(LIBRARY) if r["implementation"] != "pytorch_flex"][::9]
    rows = some_calls(LIBRARY, *[n for n in numbers if n < 110])
    own = some_calls(OWN, 1, 2, 3, 88, 111, 240)
    profile = load_profile("h200")
    measured = (*NEEDED, "seconds", "l2_slice_read", "l2_slice_write", "l2_slice_miss", "l2_fabric", "local_read",
                "local_write", "smem_wavefronts", "sm_clock_hz")  # fmt: skip
    for name, given in (("library.csv", rows), ("own.csv", own), ("chains.csv", table(CHAINS)[:4])):
        scrambled = [{k: "7" if k in measured else v for k, v in r.items()} for r in given]
        before, after = (
            compare(read(write(tmp_path / f"{word}-{name}", t)), profile)
            for word, t in (("true", given), ("scrambled", scrambled))
        )
        assert len(before.residuals) > 10
        assert [(r.predicted, r.regime, r.spills) for r in before.residuals] == [
            (r.predicted, r.regime, r.spills) for r in after.residuals
        ]
    assert not any(set(r.facts) & set(measured) for r in read(LIBRARY))


# The project's own kernels


def test_settings_of_own_kernels_reach_the_model() -> None:
    profile = load_profile("h200")
    found = {}
    for members in calls(read(OWN)):
        f = members[0].facts
        if members[0].implementation == "flash_fwd" and f["splits"] == "1" and len(members) == 1:
            found[(f["order"], f["heavy_first"], f["section"], f["direction"], f["persistent"])] = (
                members
            )
    assert len(found) > 30
    for (order, heavy, section, direction, persistent), members in found.items():
        case = match(members, profile)
        schedule = case.kernel.schedule
        assert (str(schedule.order), str(schedule.direction)) == (order, direction)
        assert (schedule.start is Start.HEAVY_FIRST) == (heavy == "1")
        assert schedule.section_heads == int(section)
        assert (schedule.scheduler == "persistent") == (persistent == "1")
        launch = case.chains[0].launches[0]  # type: ignore[union-attr]
        ctas = int(members[0].facts["grid"].strip("()").split(",")[0])
        assert launch.ctas == ctas
        assert launch.resources.registers == int(members[0].facts["registers"])


def test_own_kernels_between_sms_and_l2() -> None:
    """Counted bytes of a spread of the project's kernels, whose sources are known, to the counters' own precision."""
    picked = [
        c
        for c in calls(read(OWN))
        if c[0].implementation == "flash_fwd" and int(c[0].facts["seq_q"]) <= 4097
    ]
    made = compare([row for c in picked[::7] for row in c], load_profile("h200"))
    reads = [
        r for r in made.residuals if r.quantity == "l2_read" and r.launch == "main" and not r.spills
    ]
    assert len(reads) > 20
    for r in reads:
        if r.row.call in (3, 127):
            continue  # FlashAttention-2's build for split keys and whole tiles stores 8 bytes a thread: not recorded
        assert abs(r.difference) <= max(1000, 2e-3 * r.measured), (r.row.call, r.launch)


def test_own_minimal_and_row_sums_between_sms_and_l2() -> None:
    """minimal stores O a packet of 32 bytes an element; the row sums before the backward read O, dO and whole sectors
    of log-sum-exp, four rows a CTA."""
    own = [c for c in calls(read(OWN)) if not c[0].facts["note"]]
    minimal = [row for c in own for row in c if row.implementation == "minimal"]
    writes = [
        r for r in compare(minimal, load_profile("h200")).residuals if r.quantity == "l2_write"
    ]
    assert len(writes) == 6
    for r in writes:
        p = r.problem
        # a key block: 32 bytes an element of O, 4 bytes each of sum and maximum a row
        assert (
            r.predicted == r.measured == p.heads * (p.seq_q // 32) * p.seq_q * (32 * p.head_dim + 8)
        )
    backward = [
        c for c in own if c[0].implementation == "flash_bwd" and int(c[0].facts["seq_q"]) <= 2048
    ]
    found = compare([row for c in backward for row in c], load_profile("h200")).residuals
    sums = [r for r in found if r.launch == "bwd.dot" and r.quantity == "l2_read"]
    assert len(sums) >= 10
    for r in sums:
        p = r.problem
        assert r.predicted == p.heads * p.seq_q * (2 * 2 * p.head_dim + 8)
        assert abs(r.difference) <= 1000


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"note": "with sinks"}, "note 'with sinks'"), ({"implementation": "flashier"}, "no model for 'flashier'"),
     ({"dtype": "fp32"}, "not supported by kernel cudnn"), ({"kv_heads": ""}, "without kv_heads"),
     ({"grid": "(0, 1, 1)"}, "grid 0"), ({"block": "(2048, 1, 1)"}, "block 2048"), ({"grid": "264"}, "grid '264'"),
     ({"registers": "256"}, "registers 256"), ({"spill_store_bytes": "9" * 18}, "spill_store_bytes"),
     ({"block_k": ""}, "needs block_q and block_k"), ({"splits": "2"}, "the model has 2 launches"),
     ({"launch": "2"}, "not 1 to 1"), ({"seq_q": "16777216", "seq_k": "16777216"}, "pairs of tiles")],
)  # fmt: skip
def test_rows_without_a_model_are_skipped_with_a_reason(
    change: dict[str, str], reason: str, tmp_path: Path
) -> None:
    own = set(change) & {"grid", "block", "registers", "spill_store_bytes", "block_k", "splits"}
    rows = table(OWN if own else LIBRARY)
    row = next(r for r in rows if r.get("persistent") == "1" or r["implementation"] == "cudnn")
    (members,) = calls(read(write(tmp_path / "one.csv", [{**row, **change}])))
    with pytest.raises(NoModel, match=reason):
        match(members, load_profile("h200"))


def test_another_number_of_launches_is_skipped(tmp_path: Path) -> None:
    rows = [r for r in table(LIBRARY) if r["implementation"] == "pytorch_flash_backward"]
    call = [r for r in rows if r["call"] == rows[0]["call"]]
    made = compare(read(write(tmp_path / "cut.csv", call[:-1])), load_profile("h200"))
    assert not made.residuals
    assert {s.reason.split(" (")[0] for s in made.skipped} == {
        f"the model has {len(call)} launches"
    }


# Bad files


def refused_table(capsys: pytest.CaptureFixture[str], path: str) -> str:
    return refused(capsys, ["validate", "--measurements", path])


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"\n\n", "lacks the columns"), (b"call,launch\n1,1\n", "lacks the columns implementation"),
     (b"\x7fELF\x00\x01\xff\xfe", "is not UTF-8 text"), (b"a\0b\n", "null bytes"), (b'"a\n', "no CSV table")],
)  # fmt: skip
def test_files_that_are_no_table(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    assert said in refused_table(capsys, str(path))


def test_places_that_are_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read" in refused_table(capsys, str(tmp_path))
    assert "cannot be read" in refused_table(capsys, str(tmp_path / "absent.csv"))


@pytest.mark.parametrize("column", [*LAUNCH_COLUMNS, *NEEDED])
def test_a_missing_column_is_named(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{k: v for k, v in r.items() if k != column} for r in table(LIBRARY)[:1]]
    assert column in refused_table(capsys, write(tmp_path / "cut.csv", rows))


@pytest.mark.parametrize(
    ("column", "value"),
    [("call", ""), ("heads", "many"), ("heads", "-1"), ("heads", "8.0"), ("heads", "9" * 5000), ("seq_q", "0"),
     ("seq_q", "9" * 18), ("causal", "yes"), ("hbm_read", "1e6"), ("hbm_read", "9" * 19), ("l2_read", "-1"),
     ("seconds", "nan"), ("seconds", "soon"), ("dtype", "int4"), ("kv_heads", "3"), ("registers", "x")],
)  # fmt: skip
def test_a_wrong_value_is_named(
    column: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**table(LIBRARY)[0], column: value}
    assert column in refused_table(capsys, write(tmp_path / "bad.csv", [row])).replace("INPUT", "")


def test_rows_that_do_not_fit_their_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table(LIBRARY)[:1]
    assert "stands twice" in refused_table(capsys, write(tmp_path / "twice.csv", rows * 2))
    path = tmp_path / "short.csv"
    path.write_text(",".join(rows[0]) + "\n1,1,cudnn\n", encoding="utf-8")
    assert "3 fields" in refused_table(capsys, str(path))
    path.write_text(",".join(rows[0]) + "\n", encoding="utf-8")
    assert "no rows" in refused_table(capsys, str(path))
    path.write_text(",".join(rows[0]) + ",call\n", encoding="utf-8")
    assert "twice" in refused_table(capsys, str(path))


def test_an_unknown_gpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["validate", "--gpu", "h2000"], "h2000")


# What a gate looks at


@pytest.fixture(scope="module")
def spilling(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A short call without spills and one with: cuDNN's and PyTorch's FlashAttention-2."""
    folder = tmp_path_factory.mktemp("spills")
    with (default_files()[0]).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    short = [r for r in rows if int(r["hbm_read"]) > 10**7 and int(r["seq_q"]) <= 4096]
    kept = [
        next(r for r in short if r["implementation"] == name) for name in ("cudnn", "pytorch_flash")
    ]
    place = folder / "rows.csv"
    with place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(r for r in rows if r["call"] in {k["call"] for k in kept})
    return str(place)


def test_a_gate_says_which_rows_it_leaves_out_and_can_count_them(
    capsys: pytest.CaptureFixture[str], spilling: str
) -> None:
    gate = ["validate", "--measurements", spilling, "--fail-above", "hbm_read=50%"]
    assert main(gate) == 0
    (said,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("--fail-above")
    ]
    assert "1 rows with spills are left out (pytorch_flash)" in said
    assert "--with-spills" in said
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

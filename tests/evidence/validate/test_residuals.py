"""Rows beside predictions: nothing measured is an input, own kernels by their settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from validated import CHAINS, FOLDER, LIBRARY, some_calls, table, write

from iosim.base.records import replace
from iosim.evidence.validate import compare, read
from iosim.evidence.validate.match import NoModel, match
from iosim.evidence.validate.residuals import _regime, calls
from iosim.evidence.validate.rows import NEEDED
from iosim.hardware.profile import load_profile
from iosim.kernel.overrides import Overrides
from iosim.kernel.schedule import Start
from iosim.prediction.predictor import planned
from iosim.problem.attention import AttentionProblem
from iosim.studies.program.operators import View, streaming

OWN = str(FOLDER / "h200_iosim_kernels.csv")


@pytest.mark.slow
def test_measured_columns_are_no_inputs(tmp_path: Path) -> None:
    """Scrambled bytes and times leave every prediction as it was."""
    numbers = [int(r["call"]) for r in table(LIBRARY) if r["implementation"] != "pytorch_flex"][::9]
    rows = some_calls(LIBRARY, *[n for n in numbers if n < 110])
    own_calls = some_calls(OWN, 1, 2, 3, 88, 111, 240)
    profile = load_profile("h200")
    measured = (
        *NEEDED,
        "seconds",
        "l2_slice_read",
        "l2_slice_write",
        "l2_slice_miss",
        "l2_fabric",
        "local_read",
        "local_write",
        "smem_wavefronts",
        "sm_clock_hz",
    )
    for name, rows_given in (
        ("library.csv", rows),
        ("own.csv", own_calls),
        ("chains.csv", table(CHAINS)[:4]),
    ):
        scrambled = [{k: "7" if k in measured else v for k, v in r.items()} for r in rows_given]
        before, after = (
            compare(read(write(tmp_path / f"{word}-{name}", t)), profile)
            for word, t in (("true", rows_given), ("scrambled", scrambled))
        )
        assert len(before.residuals) > 10
        assert [(r.predicted, r.regime, r.spills) for r in before.residuals] == [
            (r.predicted, r.regime, r.spills) for r in after.residuals
        ]
    assert not any(set(r.facts) & set(measured) for r in read(LIBRARY))


def test_settings_of_own_kernels_reach_the_model() -> None:
    profile = load_profile("h200")
    settings = {}
    for members in calls(read(OWN)):
        f = members[0].facts
        if members[0].implementation == "flash_fwd" and f["splits"] == "1" and len(members) == 1:
            settings[
                (f["order"], f["heavy_first"], f["section"], f["direction"], f["persistent"])
            ] = members
    assert len(settings) > 30
    for (order, heavy, section, direction, persistent), members in settings.items():
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
    comparison = compare([row for c in picked[::7] for row in c], load_profile("h200"))
    reads = [
        r
        for r in comparison.residuals
        if r.quantity == "l2_read" and r.launch == "main" and not r.spills
    ]
    assert len(reads) > 20
    for r in reads:
        if r.row.call in (3, 127):
            continue  # FlashAttention-2's build for split keys and whole tiles stores 8 bytes a thread: not recorded
        assert abs(r.difference) <= max(1000, 2e-3 * r.measured), (r.row.call, r.launch)


def test_own_minimal_and_row_sums_between_sms_and_l2() -> None:
    """minimal stores O a packet of 32 bytes an element; the row sums before the backward read O, dO and whole sectors
    of log-sum-exp, four rows a CTA."""
    own_calls = [c for c in calls(read(OWN)) if not c[0].facts["note"]]
    minimal = [row for c in own_calls for row in c if row.implementation == "minimal"]
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
        c
        for c in own_calls
        if c[0].implementation == "flash_bwd" and int(c[0].facts["seq_q"]) <= 2048
    ]
    residuals = compare([row for c in backward for row in c], load_profile("h200")).residuals
    sums = [r for r in residuals if r.launch == "bwd.dot" and r.quantity == "l2_read"]
    assert len(sums) >= 10
    for r in sums:
        p = r.problem
        assert r.predicted == p.heads * p.seq_q * (2 * 2 * p.head_dim + 8)
        assert abs(r.difference) <= 1000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"note": "with sinks"}, "note 'with sinks'"),
        ({"implementation": "flashier"}, "no model for 'flashier'"),
        ({"dtype": "fp32"}, "not supported by kernel cudnn"),
        ({"kv_heads": ""}, "without kv_heads"),
        ({"grid": "(0, 1, 1)"}, "grid 0"),
        ({"block": "(2048, 1, 1)"}, "block 2048"),
        ({"grid": "264"}, "grid '264'"),
        ({"registers": "256"}, "registers 256"),
        ({"spill_store_bytes": "9" * 18}, "spill_store_bytes"),
        ({"block_k": ""}, "needs block_q and block_k"),
        ({"splits": "2"}, "the model has 2 launches"),
        ({"launch": "2"}, "not 1 to 1"),
        ({"seq_q": "16777216", "seq_k": "16777216"}, "pairs of tiles"),
    ],
)
def test_rows_without_a_model_are_skipped_with_a_reason(
    change: dict[str, str], reason: str, tmp_path: Path
) -> None:
    own_columns = set(change) & {
        "grid",
        "block",
        "registers",
        "spill_store_bytes",
        "block_k",
        "splits",
    }
    rows = table(OWN if own_columns else LIBRARY)
    row = next(r for r in rows if r.get("persistent") == "1" or r["implementation"] == "cudnn")
    (members,) = calls(read(write(tmp_path / "one.csv", [{**row, **change}])))
    with pytest.raises(NoModel, match=reason):
        match(members, load_profile("h200"))


def test_another_number_of_launches_is_skipped(tmp_path: Path) -> None:
    rows = [r for r in table(LIBRARY) if r["implementation"] == "pytorch_flash_backward"]
    call = [r for r in rows if r["call"] == rows[0]["call"]]
    comparison = compare(read(write(tmp_path / "cut.csv", call[:-1])), load_profile("h200"))
    assert not comparison.residuals
    assert {s.reason.split(" (")[0] for s in comparison.skipped} == {
        f"the model has {len(call)} launches"
    }


ONCE = 4 * 64 * 512 * 64 * 2
"""Bytes of Q, of K and of V: 4 times 64 heads of 512 rows of 64 columns of two bytes."""


@pytest.mark.parametrize(
    ("launch", "read", "spills", "regime"),
    [
        ("main", 3 * ONCE, False, "compulsory"),
        ("main", 3 * ONCE * 1.01, False, "compulsory"),  # within 1 %
        ("main", 3 * ONCE * 1.011, False, "wave-bound"),
        ("main", 3 * ONCE, True, "spill"),
        ("main", 6 * ONCE, False, "thrashing"),  # 6 of 100 that SMs read
        ("long", 6 * ONCE, False, "wave-bound"),  # 6 of 120: no more than 5 %
        ("one block", 6 * ONCE, False, "decode"),
        ("split", 6 * ONCE, False, "decode"),
        ("combine", 6 * ONCE, False, "stream"),
        ("flat", 6 * ONCE, False, "stream"),
    ],
)
def test_a_regime_is_the_first_that_holds(
    launch: str, read: float, spills: bool, regime: str
) -> None:
    problem = AttentionProblem(batch=4, heads=64, seq_q=512, head_dim=64)
    few = AttentionProblem(batch=4, heads=64, seq_q=64, seq_k=512, head_dim=64)
    a100 = load_profile("a100")
    views = [View(n, 0, (64,), (1,), 2) for n in (0, 1)]
    whole, one = planned(problem, "fa2", a100).chain, planned(few, "fa2", a100).chain
    split = planned(few, "flash", a100, Overrides(splits=3)).chain
    chain = {
        "split": replace(split, launches=split.launches[:1]),
        "combine": replace(split, launches=split.launches[-1:]),
        "one block": one,
        "flat": streaming("pass", views[:1], views[1:])[0],
    }.get(launch, whole)
    call: Any = SimpleNamespace(problem=problem, chain=chain)
    row: Any = SimpleNamespace(chain="")
    values = {"hbm_read": read, "l2_read": (120 if launch == "long" else 100) * ONCE}
    assert _regime(row, call, values, spills) == regime
    assert _regime(SimpleNamespace(chain="1"), call, values, spills) == "chain"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("beside", "regime"),
    [(0, "compulsory"), (65536, "compulsory"), (65537, "thrashing")],  # 17 % of what SMs read
)
def test_a_few_bytes_beside_the_tensors_are_compulsory(beside: int, regime: str) -> None:
    """Of a small call one percent is less than its code and arguments: 64 KiB count as nothing."""
    problem = AttentionProblem(heads=2, seq_q=512, head_dim=64)
    call: Any = SimpleNamespace(
        problem=problem, chain=planned(problem, "flash", load_profile("a100")).chain
    )
    once = 3 * 2 * 512 * 64 * 2
    values = {"hbm_read": once + beside, "l2_read": 7 * once}
    assert _regime(SimpleNamespace(chain=""), call, values, False) == regime  # type: ignore[arg-type]

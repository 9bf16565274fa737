"""How CTAs drift apart and meet again: the replay's constants against recorded times, what waits make of a launch, and
long launches against counters."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scripts import load_script, measurements

from iosim.evidence.validate import compare, read
from iosim.hardware.profile import load_profile
from iosim.prediction.predictor import Request, planned
from iosim.prediction.replays import Replays
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.replay import SMS_ALIKE, STEP_SPREAD

DRIFT = load_script("benchmarks/drift.py")
TABLE = "h100_drift.csv"


def test_steps_vary_by_as_much_as_was_recorded() -> None:
    """Evenly over an interval, whose standard deviation is its half over the root of 3."""
    for name in DRIFT.CASES:
        assert STEP_SPREAD / math.sqrt(3) == pytest.approx(DRIFT.drift(name).step, rel=0.04)


def test_places_that_are_slow_lie_side_by_side() -> None:
    """The more, the less the SMs ask for together; half of what a profile says is met where heads lie side by side."""
    together, apart, both_ways = (DRIFT.drift(name) for name in DRIFT.CASES)
    assert SMS_ALIKE == DRIFT.RUN
    assert together.place < apart.place < both_ways.place
    assert together.runs < 0.4 < apart.runs < both_ways.runs
    spread = load_profile("h200").need("sm_speed_spread_fraction")
    assert spread / math.sqrt(3) == pytest.approx(apart.place, rel=0.2)


@pytest.mark.parametrize(
    ("kernel", "gpu", "waits"),
    [
        ("cutlass", "h100", 2),
        ("fa2", "h100", 0),
        ("cudnn", "h100", 0),
        ("flash", "t4", 2),
        ("fa3", "h100", 0),
    ],
)
def test_a_cta_waits_for_what_its_kernel_does_not_load_ahead(
    kernel: str, gpu: str, waits: int
) -> None:
    problem = AttentionProblem(batch=1, heads=1, seq_q=512, seq_k=512, head_dim=64, dtype="fp16")
    assert planned(problem, kernel, gpu).paces[0].waits == waits


def errors(kept: Any) -> list[float]:
    rows = [row for row in read(measurements(TABLE)) if kept(row)]
    found = [
        r.error for r in compare(rows, load_profile("h100")).residuals if r.quantity == "hbm_read"
    ]
    assert len(found) == len(rows)
    return sorted(error for error in found if error is not None)


def test_ctas_that_wait_for_misses_gather() -> None:
    """Call 16: the memory-efficient kernel, causal, 8 heads; 50 % too many where a miss holds nobody up. Call 46: cuDNN
    without a mask, 8 heads of 114,688 tokens; 3.4 times too many where each SM has a speed of its own."""
    assert errors(lambda row: row.call in (16, 46))[-1] < 0.15


@pytest.mark.slow
def test_reads_of_long_launches() -> None:
    found = errors(lambda row: row.call != 19)  # 100 million accesses
    assert found[len(found) // 2] < 0.055
    assert found[len(found) * 9 // 10] < 0.26
    assert found[-1] < 0.7


def test_coarse_steps_keep_ctas_that_wait_together() -> None:
    """Of a kernel that loads its queries again in every step, too."""
    problem = AttentionProblem(
        batch=1, heads=8, seq_q=65536, seq_k=65536, head_dim=128, dtype="fp16", mask="causal"
    )
    whole, part = (
        Request(problem, "cutlass", "h100", method=method, accesses=6_000_000).predict(Replays())
        for method in ("replay", "sampled")
    )
    assert any("coarse steps" in note for note in part.notes)
    assert part.total("hbm", "read") == pytest.approx(whole.total("hbm", "read"), rel=0.1)

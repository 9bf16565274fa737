"""How CTAs drift apart and meet again: the replay's constants against recorded times, what waits make of a launch, and
long launches against counters."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scripts import load_script, measurements

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.evidence.validate import compare, read
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.prediction.predictor import Request, planned, predict
from iosim.prediction.replays import Replays
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import replay as replays
from iosim.readers.replay.engine import Ctas
from iosim.readers.replay.parting import SMS_ALIKE
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import STEP_SPREAD

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


@pytest.mark.parametrize("drift", ["least", "usual", "most"])
def test_clusters_keep_no_speed_but_of_kernels_that_state_it(drift: str) -> None:
    """As far as SMs were measured to differ they do where CTAs part most."""
    problem = AttentionProblem(batch=1, heads=1, seq_q=512, seq_k=512, head_dim=64, dtype="bf16")
    measured = load_profile("h200").need("sm_speed_spread_fraction")
    for kernel, typical in (("fa2", 0.0), ("cudnn", 0.007)):
        spread = {"least": 0.0, "usual": typical, "most": max(typical, measured)}[drift]
        assert played_spread(problem, kernel, drift) == spread


def played_spread(problem: AttentionProblem, kernel: str, drift: str) -> float:
    profile = load_profile("h100")
    chosen = resolve(kernel, problem, profile)
    call = Call.of(problem, chosen, profile, plan(problem, chosen))
    ctas_made: list[Ctas] = []
    ctas_of = replays.ctas_of

    def noted(*args: Any) -> Ctas:
        ctas_made.append(ctas_of(*args))
        return ctas_made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replays, "ctas_of", noted)
        call.replay(Play(drift=drift))
    return ctas_made[0].sm_spread_ppm / 1e6


@pytest.mark.parametrize(("tokens", "counted_gb"), [(131072, 4.118), (262144, 19.39)])
def test_ctas_of_equal_work_stay_near_over_keys_that_outgrow_the_l2(
    tokens: int, counted_gb: float
) -> None:
    """FlashAttention-2, no mask, on an H100 (h100_long.csv); with clusters 0.2 % apart the longer one reads 79 GB."""
    problem = AttentionProblem(heads=8, seq_q=tokens, head_dim=128, dtype="bf16")
    read_gb = predict(problem, "fa2", "h100", method="sampled").total("hbm", "read") / 1e9
    assert read_gb == pytest.approx(counted_gb, rel=0.15)


def errors(keeps: Any) -> list[float]:
    rows = [row for row in read(measurements(TABLE)) if keeps(row)]
    errors_found = [
        r.error for r in compare(rows, load_profile("h100")).residuals if r.quantity == "hbm_read"
    ]
    assert len(errors_found) == len(rows)
    return sorted(error for error in errors_found if error is not None)


def test_ctas_that_wait_for_misses_gather() -> None:
    """Call 16: the memory-efficient kernel, causal, 8 heads; 50 % too many where a miss holds nobody up. Call 46: cuDNN
    without a mask, 8 heads of 114,688 tokens; 3.4 times too many where each SM has a speed of its own."""
    assert errors(lambda row: row.call in (16, 46))[-1] < 0.15


@pytest.mark.slow
def test_reads_of_long_launches() -> None:
    errors_found = errors(lambda row: row.call != 19)  # 100 million accesses
    assert errors_found[len(errors_found) // 2] < 0.055
    assert errors_found[len(errors_found) * 9 // 10] < 0.26
    assert errors_found[-1] < 0.7


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

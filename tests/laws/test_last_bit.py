"""No answer hangs on the last bit: a change of a profile's numbers by 1e-9, far above what rounding does on another
processor or another Python, moves no byte, no time by more than 1e-6, and no place in a ranking."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from iosim.api.calls import orders, pick_tiles
from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.prediction.call import Call
from iosim.prediction.predictor import planned, predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.engine import PS, in_ps

GPUS = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "t4", "l4", "a10", "rtx-4090", "b200", "v100-sxm2")
KERNELS = ("fa2", "cutlass", "cudnn", "fa3", "fa4", "flash", "triton", "flex", "naive", "sdpa")


def numbers(profile: HardwareProfile) -> dict[str, float]:
    """The real numbers of a profile that are known and not 0."""
    values = {name: getattr(profile, name) for name in profile.__dataclass_fields__}
    return {name: value for name, value in values.items() if isinstance(value, float) and value}


def shaken(profile: HardwareProfile, by: float, draw: random.Random) -> HardwareProfile:
    """The profile with every real number changed by the share `by`, up or down."""
    changed = {
        name: value * (1 + draw.choice((-by, by))) for name, value in numbers(profile).items()
    }
    return replace(profile, **changed)


def changed_in_one(profile: HardwareProfile, by: float, draw: random.Random) -> HardwareProfile:
    """The profile with one of its real numbers changed by the share `by`."""
    name, value = draw.choice(list(numbers(profile).items()))
    return replace(profile, **{name: value * (1 + draw.choice((-by, by)))})


def drawn_calls(seed: int, tokens: int) -> Iterator[tuple[AttentionProblem, str, HardwareProfile]]:
    """Calls of all kinds, causal and not, forward and backward; endless."""
    draw = random.Random(seed)
    while True:
        fields: dict[str, Any] = {
            "batch": draw.choice((1, 1, 2, 4)),
            "heads": draw.randint(1, 32),
            "seq_q": draw.randint(64, tokens),
            "head_dim": draw.choice((32, 64, 96, 128)),
            "dtype": draw.choice(("fp16", "bf16")),
            "mask": draw.choice(("causal", "causal", "none")),
            "passes": draw.choice(("fwd", "fwd", "bwd")),
        }
        yield AttentionProblem(**fields), draw.choice(KERNELS), load_profile(draw.choice(GPUS))


def planned_calls(seed: int, count: int, tokens: int = 6000) -> Iterator[tuple[Call, str]]:
    """The first `count` of them that a kernel runs."""
    for problem, kernel, profile in drawn_calls(seed, tokens):
        try:
            call = planned(problem, kernel, profile)
        except InputError:
            continue
        yield call, kernel
        count -= 1
        if not count:
            return


def seconds(call: Call) -> float:
    """Time of a call whose bytes at HBM are those at the L2."""
    return call.time(call.counted).total_s


def test_numbers_of_a_profile_are_found() -> None:
    assert {"boost_clock_hz", "fp32_flops_per_s", "l2_effective_capacity_fraction"} <= set(
        numbers(load_profile("h100-sxm"))
    )


def test_times_of_drawn_calls_hold_still() -> None:
    draw = random.Random(5)
    for call, kernel in planned_calls(1, 500):
        again = planned(call.problem, kernel, shaken(call.profile, 1e-9, draw))
        assert seconds(again) == pytest.approx(seconds(call), rel=1e-6), (
            call.problem,
            kernel,
            call.profile.name,
        )


def test_a_small_change_moves_times_little() -> None:
    draw = random.Random(6)
    for call, kernel in planned_calls(2, 150):
        again = planned(call.problem, kernel, changed_in_one(call.profile, 1e-3, draw))
        assert seconds(again) == pytest.approx(seconds(call), rel=1e-2), (
            call.problem,
            kernel,
            call.profile.name,
        )


def test_replayed_bytes_hold_still() -> None:
    draw = random.Random(7)
    for call, kernel in planned_calls(3, 40, tokens=2000):
        before = predict(call.problem, kernel, call.profile)
        after = predict(call.problem, kernel, shaken(call.profile, 1e-9, draw))
        assert after.traffic == before.traffic, (call.problem, kernel, call.profile.name)
        assert after.time_s == pytest.approx(before.time_s, rel=1e-6)


@pytest.mark.parametrize(("gpu", "heads", "tokens"), [("h100-sxm", 16, 4096), ("t4", 8, 1900)])
def test_no_tile_changes_its_place(gpu: str, heads: int, tokens: int) -> None:
    problem = AttentionProblem(heads=heads, seq_q=tokens, head_dim=128, mask="causal")
    profile = load_profile(gpu)
    before, after = (
        pick_tiles(problem, gpu) for gpu in (profile, shaken(profile, 1e-9, random.Random(8)))
    )
    assert [c.tile for c in after.candidates] == [c.tile for c in before.candidates]


@pytest.mark.slow
def test_no_order_changes_its_place() -> None:
    problem = AttentionProblem(heads=4, seq_q=2048, head_dim=128, mask="causal")
    profile = load_profile("a100")
    before, after = (
        orders(problem, gpu=gpu) for gpu in (profile, shaken(profile, 1e-9, random.Random(9)))
    )
    assert [e.choice for e in after.orders] == [e.choice for e in before.orders]


def test_replayed_times_have_twelve_leading_bits() -> None:
    """A step's time that moves by one part in a hundred thousand is nearly always the same to the engine."""
    draw = random.Random(9)
    drawn = [10 ** draw.uniform(-9, 0) for _ in range(2000)]
    for duration_s in drawn:
        ps = in_ps(duration_s)
        assert ps // (ps & -ps) <= 1 << 12, duration_s  # without the zeros at its end
        assert ps == pytest.approx(duration_s * PS, rel=2**-12, abs=0.5)
    alike = sum(in_ps(duration_s) == in_ps(duration_s * (1 + 1e-5)) for duration_s in drawn)
    assert alike > 0.85 * len(drawn)

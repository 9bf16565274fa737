"""How CTAs of equal work drift apart: the replay's constants against recorded times."""

from __future__ import annotations

import math

import pytest
from scripts import load_script

from iosim.hardware.profile import load_profile
from iosim.kernel.libraries.loader import entry

SETTINGS = entry("flash-sm90")["kernel"]
DRIFT = load_script("benchmarks/drift.py")


def test_steps_vary_by_as_much_as_was_recorded() -> None:
    """Evenly over an interval, whose standard deviation is its half over the root of 3."""
    for name in DRIFT.CASES:
        assert SETTINGS["step_spread"] / math.sqrt(3) == pytest.approx(DRIFT.drift(name).step, rel=0.04)


def test_places_that_are_slow_lie_side_by_side() -> None:
    """The more, the less the SMs ask for together; half of what a profile says is met where heads lie side by side."""
    together, apart, both_ways = (DRIFT.drift(name) for name in DRIFT.CASES)
    assert SETTINGS["sms_alike"] == DRIFT.RUN
    assert together.place < apart.place < both_ways.place
    assert together.runs < 0.4 < apart.runs < both_ways.runs
    spread = load_profile("h200").need("sm_speed_spread_fraction")
    assert spread / math.sqrt(3) == pytest.approx(apart.place, rel=0.2)

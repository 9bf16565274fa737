"""Recorded times of CTAs through the replay's L2, against what the profiler counted of the same launches."""

from __future__ import annotations

import numpy as np
import pytest
from scripts import load_script

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.readers.replay.engine import L2
from iosim.readers.replay.l2 import model
from iosim.readers.replay.lowering import lower

TIMES = load_script("benchmarks/true_times.py")
# what is left over, and grows with it: see docs/replay.md
ERROR = {
    "heads fastest": 0.02,
    "heads fastest, alternating": 0.13,
    "queries fastest": 0.03,
    "causal, heads fastest, heavy first": 0.02,
    "causal, queries fastest, descending": 0.06,
}


@pytest.mark.parametrize("case", list(ERROR))
@pytest.mark.slow
def test_the_l2_alone(case: str) -> None:
    assert TIMES.at_recorded_times(case) == pytest.approx(TIMES.counted()[case], rel=ERROR[case])


@pytest.mark.parametrize("case", ["heads fastest", "queries fastest"])
@pytest.mark.slow
def test_the_share_by_age_is_what_was_missing(case: str) -> None:
    real = TIMES.counted()[case]
    assert TIMES.at_own_times(case, TIMES.SHARES["none"]) == pytest.approx(real, rel=0.03)
    assert TIMES.at_own_times(case, 0.0) < 0.8 * real


def test_times_of_other_ctas_are_refused() -> None:
    low = lower(plan(*TIMES.launch("queries fastest")), spill_slots=1)
    l2 = L2(model(TIMES.GPU), low.size, low.owner)
    with pytest.raises(
        InputError, match="recorded times of 3 CTAs; the launch has 2048 work tiles"
    ):
        l2.replay_recorded(low.launches[0], np.zeros((3, 2)), np.zeros(3), 64, np.zeros(3))

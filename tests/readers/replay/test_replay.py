"""What a replay says of itself, and what it takes of a launch without a pace."""

from __future__ import annotations

from typing import Any

import pytest

from iosim.kernel.pace import Pace
from iosim.readers.replay.replay import _coarse
from iosim.readers.replay.sampling import CoarseSteps


@pytest.mark.parametrize(
    ("heads", "held", "waited", "says", "notes"),
    [
        (8, 30.0, 0.0, "coarse steps of 16; error about 9%;", 1),
        (2, 30.0, 0.0, "coarse steps of 16 and 2 of 8 heads; error about 9%;", 1),
        (8, 30.0, 0.9, "coarse steps of 16; error about 9%;", 1),
        (8, 20.0, 0.9, "coarse steps of 16; reads may be far off;", 2),
    ],
)
def test_what_is_said_of_coarse_steps(
    heads: int, held: float, waited: float, says: str, notes: int
) -> None:
    """CTAs may part where they wait and the L2 holds fewer than 24 steps of one."""
    of_launch = _coarse("main", CoarseSteps("main", 16, heads, 8, held, 1000), waited)
    assert len(of_launch) == notes
    assert says in of_launch[0]


def test_what_only_streams_waits_for_memory_alone() -> None:
    nothing: Any = (0, 0, (), 0, 0)
    pace = Pace()
    assert (pace.launch_s, pace.tile_s, pace.step_s, pace.waits, pace.turns) == nothing

"""Long launches that coarse steps do not fit: windows of steps, and what lies between by the rates that they give.

A window's bytes per step stand for the steps settled before it and for half of those skipped before and after it. The
error is estimated from the windows themselves: how far each lies from the line between its neighbours.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iosim.base.records import dataclass
from iosim.readers.replay.lowering import LoweredLaunch

Int64 = npt.NDArray[np.int64]

SETTLE_STEPS = 192
"""Steps of a CTA that are played after a jump before rates are taken: the refilled L2 knows no order within a step."""
WINDOW_STEPS = 64
PLAYED_ACCESSES = 24_000_000
"""Accesses that a launch plays in all: about a second."""
MIN_WINDOWS = 24
SECOND_DIFFERENCE = 1.5
"""Variance of r1 - (r0 + r2) / 2 in units of that of one of three independent values: 1 + 1/4 + 1/4."""


@dataclass(frozen=True)
class SamplingPlan:
    """Steps of a CTA that settle, that make a window, and that are skipped between windows."""

    settle: int
    window: int
    jump: int
    windows: int
    """About how many windows there will be; room is kept for more."""


def sampling_plan(
    launch: LoweredLaunch,
    slots: int,
    budget: int = PLAYED_ACCESSES,
    settle: int = SETTLE_STEPS,
    window: int = WINDOW_STEPS,
) -> SamplingPlan | None:
    """How a launch of `slots` CTAs at once is played in part, or None where all of it is to be played. `budget`: object
    accesses to play in all."""
    running = min(slots, launch.tiles)
    steps = int(launch.count.sum(dtype=np.int64)) // max(1, running)
    if launch.group != 1 or not launch.loop:
        return None
    each = settle + window
    windows = max(MIN_WINDOWS, steps * budget // max(1, launch.accesses) // each)
    jump = steps // windows - each
    return SamplingPlan(settle, window, jump, windows) if jump >= 2 * each else None


@dataclass(frozen=True)
class Windows:
    """What was found: HBM bytes [windows, tensors] in `played` loads of a step; `stands_for` loads in all."""

    played: Int64
    stands_for: Int64
    read: Int64
    write: Int64
    waited: float
    """How much longer steps took than had no load been waited for."""

    def totals(self) -> tuple[Int64, Int64]:
        """HBM bytes (read, written) by tensor over the whole launch."""
        share = self.stands_for / self.played
        read, write = (
            np.rint((each * share[:, None]).sum(axis=0)).astype(np.int64) for each in (self.read, self.write)
        )
        return read, write

    def standard_error(self) -> float:
        """Standard error of the bytes read and written together, as a fraction of them."""
        rate = (self.read + self.write).sum(axis=1) / self.played
        total = float((rate * self.stands_for).sum())
        if rate.size < 3 or total == 0:
            return 0.0
        apart = rate[1:-1] - (rate[:-2] + rate[2:]) / 2
        skipped = (self.stands_for - self.played)[1:-1]
        return float(np.sqrt((apart**2 * skipped.astype(np.float64) ** 2).sum() / SECOND_DIFFERENCE)) / total

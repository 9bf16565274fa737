"""Sectors that the L2 holds written in part: which of them are read from memory to be made whole.

A set of the L2 keeps a few lines with sectors that are written in part. Before another comes, the oldest is read, made
whole and written back; it stays, so that what is stored to it later is whole, and is written back once more. How many
such lines meet in a set is by chance: those of all resident CTAs that are open, spread over all sets (Poisson's).
"""

from __future__ import annotations

import math

from iosim.base.words import Way
from iosim.kernel.launch import Launch
from iosim.kernel.traffic import HALF_WRITTEN, TrafficRow
from iosim.readers.replay.l2 import L2Model

OPEN_WAYS = 3
"""Lines of a set that may have sectors written in part. Fitted by hand, of 2, 3 and 4, on the H200's launches of
h200_frames.csv that complete the sectors of 8 and 17 MB in eight turns."""


def filled_share(lines: float, l2: L2Model) -> float:
    """The part of the sectors stored in parts that are read, where so many lines are open at once."""
    mean = lines / (l2.partitions * l2.sets)
    return 1 - math.exp(-mean) * sum(mean**k / math.factorial(k) for k in range(OPEN_WAYS))


def half_written(launch: Launch, slots: int, l2: L2Model) -> tuple[TrafficRow, ...]:
    """What a launch with `slots` resident CTAs reads and writes beside its tensors' bytes; nothing where no tensor is
    stored in parts."""
    if launch.touched is None:
        return ()
    read = again = 0.0
    touched, ctas = launch.touched, min(slots, int(launch.touched.first.size))
    for tensor, parts in touched.in_parts.items():
        stored = max(1.0, float(touched.objects[tensor].sum()) * touched.used.get(tensor, 1.0))
        filled = filled_share(parts.open_lines * ctas, l2) * stored
        read += filled
        again += filled * min(
            1.0, parts.bytes / stored
        )  # where nothing follows, it was written once
    moved: tuple[tuple[Way, float], ...] = (("read", read), ("write", again))
    return tuple(
        TrafficRow(launch.name, "hbm", HALF_WRITTEN, way, round(amount))
        for way, amount in moved
        if amount >= 1
    )

"""How CTAs of equal work drift apart: `python benchmarks/drift.py`. Prints a Markdown table.

Of the launches without a mask that experiments/timeline.py --steps recorded. Two CTAs share an SM, the older with more
of it; both kinds are looked at apart. What is the same in every wave belongs to the place, the rest is chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from recorders import measurements

SLOTS, EVERY, MARKS, WAVES = 264, 64, 16, 7
"""CTAs at once; steps from mark to mark, marks of a CTA; whole waves."""
RUN = 16
"""SMs of a cluster, which get CTAs one after the other."""
STEADY = 0.06
"""Intervals within this share of the median: in others the CTA's share of its SM changed."""
CASES = ("queries fastest", "heads fastest", "heads fastest, alternating")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """Standard deviations: `step` of a step, as a share of it; `place` of what a slot's CTAs take longer than others in
    every wave, as a share of a work tile. `runs`: how much of the latter's variance is between runs of RUN slots."""

    step: float
    place: float
    runs: float


def drift(name: str) -> Drift:
    """Of one recorded launch."""
    recorded = np.load(measurements("h200_iosim_steps.npz"))
    at = recorded[f"{name}: at"][:, :MARKS].astype(float)
    end = recorded[f"{name}: end"].astype(float)
    between = np.diff(np.column_stack([at, end]), axis=1)
    inner = between[SLOTS : WAVES * SLOTS, 1:-1]
    typical = float(np.median(inner))  # of the older CTA of an SM, which most of them are
    steady = inner[np.abs(inner / typical - 1) < STEADY]
    place = _by_slot(at[:, 0], end) / float(np.mean(end - at[:, 0]))
    groups = place[: SLOTS // 2 // RUN * RUN].reshape(-1, RUN)
    return Drift(
        step=float(steady.std()) / typical * EVERY**0.5,
        place=float(place.std()),
        runs=float(groups.mean(axis=1).var() / groups.var()),
    )


def _by_slot(start: Floats, end: Floats) -> Floats:
    """What the CTAs of each slot take longer than those of the same wave and age, on average."""
    ended = np.argsort(end, kind="stable")
    slot = np.arange(len(end))
    for tile in range(SLOTS, len(end)):  # the one that ends first makes room for the next
        slot[tile] = slot[ended[tile - SLOTS]]
    longer = np.zeros((WAVES, SLOTS))
    for wave in range(WAVES):
        tiles = np.arange(wave * SLOTS, (wave + 1) * SLOTS)
        took = (end - start)[tiles]
        younger = took > np.median(took)
        for kind in (younger, ~younger):
            took[kind] -= took[kind].mean()
        longer[wave, slot[tiles]] = took
    mean: Floats = longer.mean(axis=0)
    return mean


def main() -> None:
    print(
        "| flash_fwd 128x64, 65,536 tokens | a step, by chance | a tile, by place | of that, between runs of 16 SMs |"
    )
    print("| --- | ---: | ---: | ---: |")
    for name in CASES:
        d = drift(name)
        print(f"| {name} | {100 * d.step:.1f} % | {100 * d.place:.2f} % | {100 * d.runs:.0f} % |")


if __name__ == "__main__":
    main()

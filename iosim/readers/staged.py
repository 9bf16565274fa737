"""Bytes at shared memory: what the layouts of launches say of a step and of a work tile, over all of them."""

from __future__ import annotations

from collections.abc import Iterable

from iosim.base.records import replace
from iosim.base.words import Way
from iosim.kernel.launch import Chain, Launch
from iosim.kernel.shared_memory import WAVEFRONT_BYTES, Staged, Through, staged
from iosim.kernel.traffic import Traffic, TrafficRow


def _own_steps(launch: Launch, rows: int) -> float:
    """Visited pairs of blocks of a launch whose warps have `rows` rows each and leave out what the mask takes from all
    of these: the mean over the warps of a CTA. Warps past the end of the queries go with their tile."""
    d = launch.domain
    # Each warp as a tile of its own rows; warps without rows do what their tile does.
    steps = int(replace(d, block_q=rows).visited.count.sum())
    idle = int((d.visited.count * ((d.block_q - d.query_rows) // rows)).sum())
    return (steps + idle) * d.grid_heads / (d.block_q // rows)


def staged_bytes(launch: Launch, items: Iterable[Staged]) -> dict[tuple[str, Way, Through], int]:
    sums: dict[tuple[str, Way, Through], float] = {}
    for item in items:
        times: float = launch.tiles_with_rows
        if item.step:
            times = _own_steps(launch, item.own_rows) if item.own_rows else launch.visited_pairs
        key = (item.tensor, item.way, item.through)
        sums[key] = sums.get(key, 0) + item.bytes * times
    return {key: round(total) for key, total in sums.items()}


def wavefront_bytes(chain: Chain) -> int | None:
    """Bytes of whole wavefronts that loads, stores and products of all launches move at shared memory, as its counter
    has them; None where those of a launch are not known."""
    total = 0
    for launch in chain.launches:
        items = staged(launch, chain)
        if items is None:
            return None
        counted = (item for item in items if item.through is not Through.COPIES)
        # The counter counts wavefronts: whole ones of a launch.
        total += sum(staged_bytes(launch, counted).values()) // WAVEFRONT_BYTES * WAVEFRONT_BYTES
    return total


def count_shared(launch: Launch, chain: Chain) -> Traffic | None:
    """Bytes between shared memory and what computes, a row per tensor and direction; None where they are not known."""
    items = staged(launch, chain)
    if items is None:
        return None
    sums: dict[tuple[str, Way], int] = {}
    for (tensor, way, _), total in staged_bytes(launch, items).items():
        sums[tensor, way] = sums.get((tensor, way), 0) + total
    return Traffic(
        tuple(TrafficRow(launch.name, "smem", t, way, n) for (t, way), n in sums.items())
    )

"""Which head and block a work tile is of, against lists of all tiles that are put in order."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from iosim.kernel.remap import place, turns
from iosim.kernel.schedule import Order, Schedule, Start

BLOCKS, HEADS, BATCH = 5, 6, 2


def starts(
    schedule: Schedule, blocks: int = BLOCKS, heads: int = HEADS, batch: int = BATCH
) -> list[tuple[int, int]]:
    """(head, block) in the order in which tiles start."""
    tiles = -(-blocks // schedule.cluster) * schedule.cluster * heads
    found = place(schedule, np.arange(tiles), blocks=blocks, heads=heads, batch=batch)
    return [*zip(*(x.tolist() for x in found), strict=True)]


def ordered(key: Any, blocks: int = BLOCKS, heads: int = HEADS) -> list[tuple[int, int]]:
    return sorted(product(range(heads), range(blocks)), key=key)


@pytest.mark.parametrize(
    ("schedule", "key"),
    [
        (Schedule(), lambda t: (t[0], t[1])),
        (Schedule(order=Order.HEAD), lambda t: (t[1], t[0])),
        # three heads of each of two sequences: blocks, then sequences, then heads
        (Schedule(order=Order.BATCH), lambda t: (t[0] % 3, t[0] // 3, t[1])),
        # sections of four heads, inside which heads run fastest; the last has two
        (Schedule(section_heads=4), lambda t: (t[0] // 4, t[1], t[0])),
        (Schedule(section_heads=4, order=Order.HEAD), lambda t: (t[0] // 4, t[1], t[0])),
        (Schedule(section_heads=1, order=Order.HEAD), lambda t: (t[0], t[1])),
        (Schedule(start=Start.HEAVY_FIRST), lambda t: (t[0], -t[1])),
        (Schedule(order=Order.HEAD, start=Start.HEAVY_FIRST), lambda t: (-t[1], t[0])),
    ],
)
def test_orders(schedule: Schedule, key: Any) -> None:
    assert starts(schedule) == ordered(key)


@pytest.mark.parametrize(("blocks", "order"), [(5, [4, 0, 3, 1, 2]), (4, [3, 0, 2, 1]), (1, [0])])
def test_fold_takes_the_last_the_first_the_last_but_one(blocks: int, order: list[int]) -> None:
    assert turns(Start.FOLD, blocks).tolist() == order
    assert turns(Start.HEAVY_FIRST, blocks).tolist() == [*reversed(range(blocks))]
    assert turns(Start.LIGHT_FIRST, blocks).tolist() == [*range(blocks)]


def test_a_clusters_tiles_are_neighbours() -> None:
    """Three clusters of two for five blocks: the last one's second block is not there."""
    two = starts(Schedule(cluster=2), heads=2)
    assert two == [(h, b) for h in range(2) for b in range(6)]
    heavy = starts(Schedule(cluster=2, start=Start.HEAVY_FIRST), heads=1, batch=1)
    assert [b for _, b in heavy] == [4, 5, 2, 3, 0, 1]
    by_head = starts(Schedule(cluster=2, order=Order.HEAD), heads=2, batch=1)
    assert by_head[:6] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]


def test_chiplets_work_through_heads_of_their_own() -> None:
    """Two chiplets take turns: the first has heads 0 to 2, the second 3 to 5."""
    made = starts(Schedule(chiplets=2), batch=1)
    assert made[::2] == [(h, b) for h in range(3) for b in range(BLOCKS)]
    assert made[1::2] == [(h, b) for h in range(3, 6) for b in range(BLOCKS)]
    by_head = starts(Schedule(chiplets=2, order=Order.HEAD), batch=1)
    assert by_head[::2] == [(h, b) for b in range(BLOCKS) for h in range(3)]
    # sections of four heads: of each the first chiplet has the first two
    sections = starts(Schedule(chiplets=2, section_heads=4), heads=8, batch=1)
    assert sections[::2] == [(s + h, b) for s in (0, 4) for b in range(BLOCKS) for h in range(2)]
    assert sections[1::2] == [(s + h, b) for s in (2, 6) for b in range(BLOCKS) for h in range(2)]


@pytest.mark.parametrize("schedule", [Schedule(chiplets=4), Schedule(chiplets=2, section_heads=3)])
def test_heads_that_chiplets_cannot_share_go_as_without(schedule: Schedule) -> None:
    plain = Schedule(section_heads=schedule.section_heads)
    assert starts(schedule, batch=1) == starts(plain, batch=1)

"""From the number of a work tile to its head and block: the one place that says what an order is.

`place` is written once for numbers, arrays and symbols: the replay plays the arrays, and the code that a user puts into
a kernel of their own is made of the symbols (`iosim.studies.orders.code`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.records import replace
from iosim.kernel.schedule import Order, Schedule, Start

Number = Any
"""A whole number, an array of them, or a symbol with the same operators."""


def place(
    schedule: Schedule,
    number: Number,
    *,
    blocks: Number,
    heads: Number,
    batch: Number = 1,
    let: Callable[[str, Number], Number] = lambda name, value: value,
    least: Callable[[Number, Number], Number] = np.minimum,
) -> tuple[Number, Number]:
    """(head, block) of the work tile that starts as `number`.

    A cluster's tiles start together and are neighbouring blocks of a head. Where `blocks` is no multiple of the
    cluster, numbers run over whole clusters, and the last ones of each head come to blocks from `blocks` on, which do
    not exist.

    Args:
        number: from 0 up to heads x blocks, whole clusters counted.
        blocks: of a head.
        heads: of the whole grid, batch x heads.
        batch: sequences of the batch.
        let: called with the name and the value of every step of the arithmetic, gives what the next ones use.
        least: the smaller of two numbers.
    """
    cluster, groups = schedule.cluster, blocks
    rank = 0
    if cluster > 1:
        groups = let("groups", (blocks + (cluster - 1)) // cluster)
        rank = let("rank", number % cluster)
        number = let("group", number // cluster)
    # Without chiplets a number goes straight to its head and turn. With them, heads are shared out
    # evenly or not at all.
    parts, section = schedule.chiplets, schedule.section_heads
    if parts == 1 or section % parts or (isinstance(heads, int) and heads % (section or parts)):
        head, turn = _head_and_turn(schedule, number, groups, heads, batch, let, least)
    else:  # each part has as many heads, of the grid or of every section, and its own numbers
        part, number, heads = (
            let("part", number % parts),
            let("own", number // parts),
            let("own_heads", heads // parts),
        )
        order = Order.HEAD if schedule.order is Order.HEAD else Order.QUERY
        per_chiplet = replace(schedule, order=order, section_heads=section // parts)
        head, turn = _head_and_turn(per_chiplet, number, groups, heads, 1, let, least)
        # Back from the part's own head to the grid's: part p has the p-th run of every section's heads
        # (or of all heads).
        heads_of_section = section // parts or heads
        head = let("own_head", head)
        head = (
            head // heads_of_section * (heads_of_section * parts)
            + part * heads_of_section
            + head % heads_of_section
            if section
            else part * heads + head
        )
    head, turn = let("head", head), let("turn", turn)
    if schedule.start is Start.LIGHT_FIRST:
        block = turn
    elif schedule.start is Start.HEAVY_FIRST:
        block = groups - 1 - turn
    else:
        # fold: even turns count from the last block down, odd ones from the first up.
        block = turn % 2 * (turn // 2) + (1 - turn % 2) * (groups - 1 - turn // 2)
    return head, let("block", block if cluster == 1 else block * cluster + rank)


def turns(start: Start, blocks: int) -> npt.NDArray[np.int64]:
    """A head's blocks in the order in which they start."""
    block: npt.NDArray[np.int64] = place(
        Schedule(start=start), np.arange(blocks), blocks=blocks, heads=1
    )[1]
    return block


def _head_and_turn(
    schedule: Schedule,
    number: Number,
    blocks: Number,
    heads: Number,
    batch: Number,
    let: Callable[[str, Number], Number],
    least: Callable[[Number, Number], Number],
) -> tuple[Number, Number]:
    """The head of a number, and the how-manieth block of that head it is."""
    section = schedule.section_heads
    # Inside a section heads run fastest: number = first x blocks + turn x width + head.
    if section > 1:
        first = let("first", number // (blocks * section) * section)
        width = let("width", least(section, heads - first))  # the last section may hold fewer heads
        rest = let("rest", number - first * blocks)
        return first + rest % width, rest // width
    if section == 0 and schedule.order is Order.HEAD:
        return number % heads, number // heads
    if section == 0 and schedule.order is Order.BATCH:
        return number // blocks % batch * (heads // batch) + number // (
            blocks * batch
        ), number % blocks
    return number // blocks, number % blocks

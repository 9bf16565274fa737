"""The tile, the order of the grid and the splits of an attention kernel from its addresses alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import attention_in_ptx as ptx
import numpy as np
import pytest
from attention_in_ptx import AXES, KEYS, ROWS, WIDTH

from iosim.base.errors import InputError
from iosim.code.attention_tiles import AttentionTiles, _rows_of, attention_tiles, order_of
from iosim.kernel.schedule import Order

TOKENS = 96
SIDES = {"blocks": TOKENS // ROWS, "heads": 4, "batch": 2, "tokens": TOKENS}
PLAIN = AttentionTiles(ROWS, KEYS, False, "query", 0, False, False, 1, False)
"""A program a tile, query blocks fastest, keys from the first on."""
OUTER = {
    # Outer axes of the tensors, as attention's libraries have them: the head before the row, or behind it.
    ("batch", "heads", "tokens"): "each axis by itself",
    ("batch", "tokens", "heads"): "each axis by itself",
}


def tiles(
    axes: tuple[str, ...] = AXES,
    outer: tuple[str, ...] = ("batch", "heads", "tokens"),
    folded: int = 0,
    **how: Any,
) -> AttentionTiles:
    """What is read of the kernel; `folded`: so many of the tensors' outer axes are said as one."""
    sides = [SIDES[axis] for axis in outer]
    shape = sides if not folded else _folded(sides, folded)
    parameters = ptx.arguments(shape, ptx.strides(outer, SIDES), TOKENS)
    splits = how.get("splits", 1)
    grid = [SIDES[axis] * (splits if axis == "batch" else 1) for axis in axes]
    read = ptx.evaluated(ptx.text(axes, **how), grid, parameters)
    return attention_tiles(read, SIDES["heads"], SIDES["batch"])


def _folded(sides: list[int], count: int) -> list[int]:
    whole = 1
    for side in sides[:count]:
        whole *= side
    return [whole, *sides[count:]]


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("axes", [*permutations(AXES)])
def test_axes_of_a_grid_in_any_order(axes: tuple[str, ...], outer: tuple[str, ...]) -> None:
    """Query blocks that run fastest are the order of queries; that run last, of heads; those of one sequence's heads
    before the next block are a section."""
    order, section = {
        ("blocks", "heads", "batch"): ("query", 0),
        ("blocks", "batch", "heads"): ("batch", 0),
        ("heads", "batch", "blocks"): ("head", 0),
        ("batch", "heads", "blocks"): ("head", 0),
        ("heads", "blocks", "batch"): ("head", SIDES["heads"]),
        ("batch", "blocks", "heads"): ("head", SIDES["batch"]),
    }[axes]
    read = tiles(axes, outer)
    assert read == AttentionTiles(ROWS, KEYS, False, order, section, False, False, 1, False)


@pytest.mark.parametrize(
    ("outer", "folded"),
    [
        (("batch", "heads", "tokens"), 2),  # [heads of all sequences, tokens, columns]
        (("batch", "heads", "tokens"), 3),  # [rows of all heads, columns]
        (("batch", "tokens", "heads"), 2),  # [tokens of all sequences, heads, columns]
    ],
)
@pytest.mark.parametrize("axes", [("blocks", "batch", "heads"), ("heads", "blocks", "batch")])
def test_axes_that_a_tensor_says_as_one(
    axes: tuple[str, ...], outer: tuple[str, ...], folded: int
) -> None:
    """Sequences, heads and rows are told apart where the tensor's shape names fewer axes than it has."""
    assert tiles(axes, outer, folded) == tiles(axes, outer)


def test_packed_sequences() -> None:
    """[rows of all sequences, heads, columns]: the first rows of two sequences of 96 and 32 rows stand in a tensor, and
    of the second one's three query blocks two lie behind its end."""
    steps = {"row": SIDES["heads"] * WIDTH, "head": WIDTH, "sequence": 0}
    parameters = ptx.arguments((128, SIDES["heads"]), steps, TOKENS, starts=(0, 96, 128))
    axes = ("blocks", "batch", "heads")
    read = ptx.evaluated(ptx.text(axes, is_packed=True), (3, 2, SIDES["heads"]), parameters)
    assert attention_tiles(read, SIDES["heads"], 2) == AttentionTiles(
        ROWS, KEYS, False, "batch", 0, False, False, 1, False
    )


def test_what_is_otherwise_than_plain() -> None:
    assert tiles() == PLAIN
    assert tiles(splits=3) == replace(PLAIN, splits=3)
    assert tiles(is_descending=True) == replace(PLAIN, descending=True)
    assert tiles(is_heavy_first=True) == replace(PLAIN, heavy_first=True)
    assert tiles(loads_q="each step") == replace(PLAIN, reads_q_again=True)
    # One row of Q in every step, beside all of them once: the tile is the larger of the two.
    assert tiles(loads_q="a row again") == replace(PLAIN, reads_q_again=True)
    # Where Q comes by tensor maps, which are not seen, its rows are those of the output.
    assert tiles(loads_q="never") == PLAIN


def tiles_of(shape: tuple[int, int, int], **how: Any) -> AttentionTiles:
    """Of [sequences, heads, tokens], query blocks fastest."""
    batch, heads, tokens = shape
    outer = ("batch", "heads", "tokens")
    parameters = ptx.arguments(
        shape, ptx.strides(outer, dict(zip(outer, shape, strict=True))), tokens
    )
    grid = (-(-tokens // ROWS), heads, batch * how.get("splits", 1))
    return attention_tiles(ptx.evaluated(ptx.text(**how), grid, parameters), heads, batch)


def test_a_last_block_of_fewer_rows_is_no_smaller_tile() -> None:
    assert tiles_of((2, 4, 3 * ROWS - 16)) == PLAIN
    assert tiles_of((1, 1, ROWS - 16)).block_q == ROWS - 16  # there is no whole one


def test_one_block_a_head_comes_neither_first_nor_last() -> None:
    assert tiles_of((2, 4, ROWS), splits=2) == replace(PLAIN, splits=2)


def test_as_many_heads_as_tokens() -> None:
    """Sizes do not tell the axes apart: the head is taken to come first."""
    read = tiles_of((2, 2 * ROWS, 2 * ROWS), is_heavy_first=True)
    assert read == replace(PLAIN, heavy_first=True)


def test_rows_shorter_than_a_sector_share_it() -> None:
    """Sectors have 32 bytes: four of them hold 8 rows of 16, 4 of 32, 2 of 64."""
    sectors = np.arange(4)
    assert [_rows_of(sectors, row) for row in (16, 32, 64)] == [8, 4, 2]


@pytest.mark.parametrize("starts", [(1, 96, 128), (0, 96, 127)])
def test_numbers_that_are_no_first_rows(starts: tuple[int, ...]) -> None:
    """First rows of packed sequences begin with 0 and end with the number of all rows; others say nothing of them, so
    that of two sequences each has half of the rows."""
    steps = {"row": SIDES["heads"] * WIDTH, "head": WIDTH, "sequence": 64 * SIDES["heads"] * WIDTH}
    parameters = ptx.arguments((128, SIDES["heads"]), steps, 64, starts=starts)
    read = ptx.evaluated(ptx.text(), (2, SIDES["heads"], 2), parameters)
    assert attention_tiles(read, SIDES["heads"], 2) == PLAIN


@pytest.mark.parametrize(
    ("walk", "order"),
    [
        ((), (Order.QUERY, 0)),
        (("blocks",), (Order.QUERY, 0)),
        (("heads",), (Order.QUERY, 0)),
        (("heads", "batch"), (Order.QUERY, 0)),
        (("blocks", "heads"), (Order.QUERY, 0)),
        (("blocks", "batch"), (Order.QUERY, 0)),
        (("heads", "blocks"), (Order.HEAD, 0)),
        (("blocks", "batch", "heads"), (Order.BATCH, 0)),
        (("heads", "blocks", "batch"), (Order.HEAD, 5)),
    ],
)
def test_axes_of_one_place_are_left_out(walk: tuple[str, ...], order: tuple[Order, int]) -> None:
    assert order_of(walk, {"heads": 5, "batch": 3}) == order


def test_tensors_without_their_names() -> None:
    names = {**ptx.NAMES, "k": "left", "out": "result"}
    parameters = ptx.arguments(
        (1, 1, 32), {"row": WIDTH, "head": 0, "sequence": 0}, 32, names=names
    )
    read = ptx.evaluated(ptx.text(names=names), (1, 1, 1), parameters)
    with pytest.raises(InputError, match="no tensor K and O of attention; given: q, left, result"):
        attention_tiles(read, 1)

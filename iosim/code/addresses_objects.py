"""Memory cut into objects, so that every move of a launch takes whole ones, and each CTA's moves as a list of them.

Sectors that the same moves touch are one object: tiles where tiles do not overlap, pieces of them where they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from iosim.base.errors import TooLargeError
from iosim.base.records import dataclass
from iosim.code.addresses_moves import MODES, Expanded, Move, Shapes, expanded
from iosim.code.ptx_values import Array
from iosim.kernel.launch import SECTOR_BYTES

MOST_MOVES = 40_000_000
"""Moves of a launch that are listed one by one: some 2 GB while they are sorted."""


@dataclass(frozen=True)
class Objects:
    """Objects of one tensor: their bytes in the order of their first sectors, and which of them each distinct move (an
    anchor's sector with a shape) takes: `pieces` from `first` on, `count` of them."""

    sizes: Array
    keys: Array
    first: Array
    count: Array
    pieces: Array

    def of(self, key: Array) -> tuple[Array, Array]:
        """(first piece, pieces) of moves by their keys."""
        at = np.searchsorted(self.keys, key)
        return self.first[at], self.count[at]


def key_of(anchor: Array, shape: Array) -> Array:
    """Anchor's sector and shape as one number."""
    return ((anchor & ((1 << 40) - 1)) >> 5) << 20 | shape


def cut(keys: Array, shapes: Shapes) -> Objects:
    """Objects for the distinct moves of a tensor, by their keys in order."""
    anchor, shape = keys >> 20, keys & ((1 << 20) - 1)
    used = np.unique(shape)
    low = int(min(anchor[shape == s].min() + shapes.sectors[s].min() for s in used))
    high = int(max(anchor[shape == s].max() + shapes.sectors[s].max() for s in used)) + 1
    owner, total = np.full(high - low, -1, dtype=np.int32), 0
    for s, part, at in _places(anchor, shape, shapes, low):
        owner[at] = np.repeat(part, shapes.sectors[s].size).astype(np.int32)
        total += at.size
    if int((owner >= 0).sum()) == total:  # no two overlap: each is an object
        sizes = np.array([shapes.sectors[s].size for s in shape], dtype=np.int64) * SECTOR_BYTES
        every = np.arange(keys.size)
        return Objects(sizes, keys, every, np.ones(keys.size, dtype=np.int64), every)
    return _cut_overlapping(keys, anchor, shape, shapes, low, high)


def _places(
    anchor: Array, shape: Array, shapes: Shapes, low: int
) -> Iterator[tuple[int, Array, Array]]:
    """(shape, moves of it, sectors that these touch) some millions of sectors at a time."""
    for s in np.unique(shape):
        mine, sectors = np.flatnonzero(shape == s), shapes.sectors[s]
        for part in np.array_split(mine, max(1, mine.size * sectors.size >> 22)):
            yield int(s), part, (anchor[part, None] + sectors[None, :] - low).reshape(-1)


def _cut_overlapping(
    keys: Array, anchor: Array, shape: Array, shapes: Shapes, low: int, high: int
) -> Objects:
    """Objects where moves overlap: sectors that the same moves touch, told by the sum of their moves' random names."""
    label = np.zeros(high - low, dtype=np.uint64)
    names = np.random.default_rng(11).integers(1, 1 << 63, keys.size, dtype=np.uint64)
    for s, part, at in _places(anchor, shape, shapes, low):
        np.add.at(label, at, np.repeat(names[part], shapes.sectors[s].size))
    touched = np.flatnonzero(label)
    _, index, which, sizes = np.unique(
        label[touched], return_index=True, return_inverse=True, return_counts=True
    )
    rank = np.empty(index.size, dtype=np.int64)
    rank[np.argsort(index, kind="stable")] = np.arange(index.size)
    of_sector = np.full(high - low, -1, dtype=np.int64)
    of_sector[touched] = rank[which.reshape(-1)]
    in_order = np.empty(index.size, dtype=np.int64)
    in_order[rank] = sizes
    first, count = np.zeros(keys.size, dtype=np.int64), np.zeros(keys.size, dtype=np.int64)
    pieces: list[Array] = []
    end = 0
    for s, part, at in _places(anchor, shape, shapes, low):
        found = np.sort(of_sector[at].reshape(part.size, shapes.sectors[s].size), axis=1)
        new = np.ones(found.shape, dtype=bool)
        new[:, 1:] = found[:, 1:] != found[:, :-1]
        count[part] = new.sum(axis=1)
        first[part] = end + np.cumsum(count[part]) - count[part]
        pieces.append(found[new])
        end += int(count[part].sum())
    return Objects(in_order * SECTOR_BYTES, keys, first, count, np.concatenate(pieces))


@dataclass(frozen=True)
class Listed:
    """What CTAs move, CTA by CTA in the order in which they start: entry e of a CTA is entries[first + e], a mode's
    number times all objects plus the object's. `sizes` are the objects' bytes by tensor."""

    sizes: dict[int, Array]
    first: Array
    count: Array
    entries: Array


@dataclass(frozen=True)
class _Ways:
    """The different ways in which CTAs make a move, written out once: entries of way w from `first` on, `times` of
    them; `of_cta` is each CTA's."""

    move: Move
    written: Expanded
    first: Array
    times: Array
    of_cta: Array


def _ways(move: Move) -> _Ways:
    columns = [
        move.anchor,
        move.shape,
        move.order,
        *move.counts,
        *move.strides,
        *move.order_strides,
    ]
    table = np.stack(columns, axis=1)
    _, index, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
    few = move.of(index)
    return _Ways(
        move, expanded(few), np.cumsum(few.times) - few.times, few.times, which.reshape(-1)
    )


def listed(moves: list[Move], shapes: Shapes, ctas: int) -> Listed:
    """All moves as lists of objects. Raises TooLargeError: more than fit in memory."""
    total = sum(int(move.times.sum()) for move in moves)
    if total > MOST_MOVES:
        raise TooLargeError(
            f"`method` replay: {total:,} moves of CTAs; accepted: at most {MOST_MOVES:,}"
        )
    ways = [_ways(move) for move in moves]
    objects: dict[int, Objects] = {}
    for tensor in sorted({move.tensor for move in moves}):
        keys = [key_of(w.written.anchor, w.written.shape) for w in ways if w.move.tensor == tensor]
        if sum(each.size for each in keys):
            objects[tensor] = cut(np.unique(np.concatenate(keys)), shapes)
    begin, end = {}, 0
    for tensor, each in objects.items():
        begin[tensor] = end
        end += each.sizes.size
    parts = [
        _entries(w, objects[w.move.tensor], begin[w.move.tensor], end)
        for w in ways
        if w.written.anchor.size
    ]
    return _sorted(parts, {tensor: each.sizes for tensor, each in objects.items()}, ctas)


def _entries(ways: _Ways, objects: Objects, begin: int, total: int) -> tuple[Array, Array, Array]:
    """(CTA, order, entry) of a move's objects."""
    first, count = objects.of(key_of(ways.written.anchor, ways.written.shape))
    pieces, order = objects.pieces[first], ways.written.order
    starts, times = ways.first, ways.times
    if bool((count > 1).any()):
        inner = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        pieces, order = objects.pieces[np.repeat(first, count) + inner], np.repeat(order, count)
        upto = np.concatenate([[0], np.cumsum(count)])
        starts, times = upto[ways.first], upto[ways.first + ways.times] - upto[ways.first]
    entry = (MODES.index(ways.move.mode) * total + begin + pieces).astype(np.int32)
    each = times[ways.of_cta]
    at = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each - starts[ways.of_cta], each)
    return np.repeat(ways.move.ctas, each).astype(np.int32), order[at].astype(np.int64), entry[at]


def _sorted(parts: list[tuple[Array, Array, Array]], sizes: dict[int, Array], ctas: int) -> Listed:
    if not parts:
        none = np.zeros(ctas, dtype=np.int32)
        return Listed(sizes, none, none, np.zeros(0, dtype=np.int32))
    columns: list[Any] = [np.concatenate([part[n] for part in parts]) for n in range(3)]
    cta, order, entry = columns
    longest = int(order.max()) + 1
    place = np.argsort(cta.astype(np.int64) * longest + order, kind="stable")
    count = np.bincount(cta, minlength=ctas)
    first = np.cumsum(count) - count
    return Listed(
        sizes, first.astype(np.int32), count.astype(np.int32), np.ascontiguousarray(entry[place])
    )

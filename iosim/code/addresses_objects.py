"""Memory cut into objects, so that every move of a launch takes whole ones, and each CTA's moves as a list of them.

Sectors that the same moves touch are one object: tiles where tiles do not overlap, pieces of them where they do.
"""

from __future__ import annotations

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
    low = int(min(anchor[shape == s].min() + shapes.sectors[s].min() for s in np.unique(shape)))
    high = int(max(anchor[shape == s].max() + shapes.sectors[s].max() for s in np.unique(shape))) + 1
    label = np.zeros(high - low, dtype=np.uint64)
    rng = np.random.default_rng(11)
    names = rng.integers(1, 1 << 63, keys.size, dtype=np.uint64)
    for s in np.unique(shape):
        mine = np.flatnonzero(shape == s)
        sectors = shapes.sectors[s]
        for part in np.array_split(mine, max(1, mine.size * sectors.size >> 23)):
            at = (anchor[part, None] + sectors[None, :] - low).reshape(-1)
            np.add.at(label, at, np.repeat(names[part], sectors.size))
    touched = np.flatnonzero(label)
    _, index, which, sizes = np.unique(label[touched], return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(index.size, dtype=np.int64)
    rank[np.argsort(index, kind="stable")] = np.arange(index.size)
    of_sector = np.full(high - low, -1, dtype=np.int64)
    of_sector[touched] = rank[which.reshape(-1)]
    in_order = np.empty(index.size, dtype=np.int64)
    in_order[rank] = sizes
    return _listed(keys, anchor, shape, shapes, of_sector, low, in_order)


def _listed(
    keys: Array, anchor: Array, shape: Array, shapes: Shapes, of_sector: Array, low: int, sizes: Array
) -> Objects:
    """The objects of each distinct move."""
    first, count = np.zeros(keys.size, dtype=np.int64), np.zeros(keys.size, dtype=np.int64)
    pieces: list[Array] = []
    end = 0
    for s in np.unique(shape):
        mine = np.flatnonzero(shape == s)
        sectors = shapes.sectors[s]
        for part in np.array_split(mine, max(1, mine.size * sectors.size >> 22)):
            found = np.sort(of_sector[anchor[part, None] + sectors[None, :] - low], axis=1)
            new = np.ones(found.shape, dtype=bool)
            new[:, 1:] = found[:, 1:] != found[:, :-1]
            count[part] = new.sum(axis=1)
            first[part] = end + np.cumsum(count[part]) - count[part]
            pieces.append(found[new])
            end += int(count[part].sum())
    return Objects(sizes * SECTOR_BYTES, keys, first, count, np.concatenate(pieces))


@dataclass(frozen=True)
class Listed:
    """What CTAs move, CTA by CTA in the order in which they start: entry e of a CTA is entries[first + e], a mode's
    number times all objects plus the object's. `sizes` are the objects' bytes by tensor."""

    sizes: dict[int, Array]
    first: Array
    count: Array
    entries: Array


def listed(moves: list[Move], shapes: Shapes, ctas: int) -> Listed:
    """All moves as lists of objects. Raises TooLargeError: more than fit in memory."""
    total = sum(int(move.times.sum()) for move in moves)
    if total > MOST_MOVES:
        raise TooLargeError(f"`method` replay: {total:,} moves of CTAs; accepted: at most {MOST_MOVES:,}")
    spread = [(move, expanded(move)) for move in moves]
    sizes: dict[int, Array] = {}
    objects: dict[int, Objects] = {}
    for tensor in sorted({move.tensor for move in moves}):
        keys = [np.unique(key_of(e.anchor, e.shape)) for move, e in spread if move.tensor == tensor and e.cta.size]
        if keys:
            objects[tensor] = cut(np.unique(np.concatenate(keys)), shapes)
            sizes[tensor] = objects[tensor].sizes
    begin, end = {}, 0
    for tensor, each in sizes.items():
        begin[tensor] = end
        end += each.size
    parts = [_entries(move, e, objects[move.tensor], begin[move.tensor], end) for move, e in spread if e.cta.size]
    return _sorted(parts, sizes, ctas)


def _entries(move: Move, e: Expanded, objects: Objects, begin: int, total: int) -> tuple[Array, Array, Array]:
    """(CTA, order, entry) of a move's objects."""
    first, count = objects.of(key_of(e.anchor, e.shape))
    if bool((count == 1).all()):
        pieces, cta, order = objects.pieces[first], e.cta, e.order
    else:
        inner = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        pieces = objects.pieces[np.repeat(first, count) + inner]
        cta, order = np.repeat(e.cta, count), np.repeat(e.order, count)
    return cta.astype(np.int32), order, (MODES.index(move.mode) * total + begin + pieces).astype(np.int32)


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
    return Listed(sizes, first.astype(np.int32), count.astype(np.int32), np.ascontiguousarray(entry[place]))

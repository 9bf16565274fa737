"""Memory cut into objects, so that every move of a launch takes whole ones, and each CTA's moves as a list of them.

Lines that the same moves touch are one object: tiles where tiles do not overlap, pieces of them where they do. The L2
keeps lines of 128 bytes and fetches their sectors of 32, so that an object is as large as its lines, and `Listed.used`
says which part of a tensor's lines is sectors that are touched at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from iosim.base.arrays import repeated, tallied
from iosim.base.errors import TooLargeError
from iosim.base.records import dataclass
from iosim.code.addresses import LINE_BYTES
from iosim.code.addresses_moves import MODES, Expanded, Move, Shapes, expanded
from iosim.code.ptx_values import Array
from iosim.kernel.launch import SECTOR_BYTES

LINE_SECTORS = LINE_BYTES // SECTOR_BYTES
MOST_MOVES = 40_000_000
"""Moves of a launch that are listed one by one: some 2 GB while they are sorted."""


@dataclass(frozen=True)
class Objects:
    """Objects of one tensor: their bytes in the order of their first lines, and which of them each distinct move (an
    anchor's sector with a shape) takes: `pieces` from `first` on, `count` of them; `used` is the part of their lines
    that is sectors which are touched."""

    sizes: Array
    keys: Array
    first: Array
    count: Array
    pieces: Array
    used: float

    def of(self, key: Array) -> tuple[Array, Array]:
        """(first piece, pieces) of moves by their keys."""
        at = np.searchsorted(self.keys, key)
        return self.first[at], self.count[at]


def key_of(anchor: Array, shape: Array) -> Array:
    """Anchor's sector and shape as one number."""
    return ((anchor & ((1 << 40) - 1)) >> 5) << 20 | shape


def cut(keys: Array, shapes: Shapes) -> Objects:
    """Objects for the distinct moves of a tensor, by their keys in order."""
    # Each line gets the last move that touches it. Where as many lines have one as all moves together
    # touch, no line was touched twice.
    placed = _Placed(keys, shapes)
    owner, total = np.full(placed.lines, -1, dtype=np.int32), 0
    for part, at in placed.moves():
        owner[at] = part[:, None].astype(np.int32)
        total += at.size
    used = placed.used()
    if int((owner >= 0).sum()) == total:  # no two overlap: each is an object
        every = np.arange(keys.size)
        ones = np.ones(keys.size, dtype=np.int64)
        return Objects(placed.sizes() * LINE_BYTES, keys, every, ones, every, used)
    return _cut_overlapping(keys, placed, used)


class _Placed:
    """Where moves lie: each in the lines that its sectors are in, counted from the first line of all."""

    def __init__(self, keys: Array, shapes: Shapes) -> None:
        self._anchor, self._shape = keys >> 20, keys & ((1 << 20) - 1)
        self._shapes = shapes
        # A shape takes other lines at each place of its anchor inside a line.
        self._phase = self._anchor % LINE_SECTORS
        self._kinds = np.unique(self._shape * LINE_SECTORS + self._phase)
        ends = [(self._lines_of(k), self._anchors_of(k)) for k in self._kinds]
        self.low = min(int(at.min() + lines.min()) for lines, at in ends)
        self.lines = max(int(at.max() + lines.max()) for lines, at in ends) + 1 - self.low

    def _which(self, kind: int) -> Array:
        shape, phase = divmod(int(kind), LINE_SECTORS)
        return np.flatnonzero((self._shape == shape) & (self._phase == phase))

    def _anchors_of(self, kind: int) -> Array:
        return self._anchor[self._which(kind)] // LINE_SECTORS

    def _lines_of(self, kind: int) -> Array:
        """Lines of a shape, counted from its anchor's."""
        shape, phase = divmod(int(kind), LINE_SECTORS)
        return np.unique((self._shapes.sectors[shape] + phase) // LINE_SECTORS)

    def moves(self) -> Iterator[tuple[Array, Array]]:
        """(moves, the lines of each) some millions of lines at a time."""
        for kind in self._kinds:
            which, lines = self._which(kind), self._lines_of(kind)
            for part in np.array_split(which, max(1, which.size * lines.size >> 22)):
                first = self._anchor[part, None] // LINE_SECTORS
                yield part, first + lines[None, :] - self.low

    def sizes(self) -> Array:
        """Lines of each move."""
        sizes = np.zeros(self._anchor.size, dtype=np.int64)
        for kind in self._kinds:
            sizes[self._which(kind)] = self._lines_of(kind).size
        return sizes

    def used(self) -> float:
        """The part of all lines that is sectors which some move touches."""
        sectors = np.zeros(self.lines * LINE_SECTORS, dtype=bool)
        for shape in np.unique(self._shape):
            anchors = self._anchor[self._shape == shape] - self.low * LINE_SECTORS
            mine = self._shapes.sectors[shape]
            for part in np.array_split(anchors, max(1, anchors.size * mine.size >> 22)):
                sectors[(part[:, None] + mine[None, :]).reshape(-1)] = True
        lines = sectors.reshape(-1, LINE_SECTORS).any(axis=1)
        return float(sectors.sum()) / (LINE_SECTORS * max(1, int(lines.sum())))


def _cut_overlapping(keys: Array, placed: _Placed, used: float) -> Objects:
    """Objects where moves overlap: lines that the same moves touch, told by the sum of their moves' random names."""
    # A line's label is the sum of random numbers of the moves that touch it: lines with one label are
    # touched by the same moves, but for a chance of 2^-64.
    label = np.zeros(placed.lines, dtype=np.uint64)
    names = np.random.default_rng(11).integers(1, 1 << 63, keys.size, dtype=np.uint64)
    for part, at in placed.moves():
        np.add.at(label, at.reshape(-1), repeated(names[part], at.shape[1]))
    touched = np.flatnonzero(label)
    _, index, which, sizes = np.unique(
        label[touched], return_index=True, return_inverse=True, return_counts=True
    )
    # Objects are numbered by their first line, as they lie in memory.
    rank = np.empty(index.size, dtype=np.int64)
    rank[np.argsort(index, kind="stable")] = np.arange(index.size)
    of_line = np.full(placed.lines, -1, dtype=np.int64)
    of_line[touched] = rank[which.reshape(-1)]
    in_order = np.empty(index.size, dtype=np.int64)
    in_order[rank] = sizes
    first, count = np.zeros(keys.size, dtype=np.int64), np.zeros(keys.size, dtype=np.int64)
    pieces: list[Array] = []
    end = 0
    for part, at in placed.moves():
        numbers = np.sort(of_line[at], axis=1)
        new = np.ones(numbers.shape, dtype=bool)
        new[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
        count[part] = new.sum(axis=1)
        first[part] = end + np.cumsum(count[part]) - count[part]
        pieces.append(numbers[new])
        end += int(count[part].sum())
    return Objects(in_order * LINE_BYTES, keys, first, count, np.concatenate(pieces), used)


@dataclass(frozen=True)
class Listed:
    """What CTAs move, CTA by CTA in the order in which they start: entry e of a CTA is entries[first + e], a mode's
    number times all objects plus the object's. `sizes` are the objects' bytes by tensor, `used` the part of them that
    is touched."""

    sizes: dict[int, Array]
    first: Array
    count: Array
    entries: Array
    used: dict[int, float]


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
        if sum(part.size for part in keys):
            objects[tensor] = cut(np.unique(np.concatenate(keys)), shapes)
    begin, end = {}, 0
    for tensor, part in objects.items():
        begin[tensor] = end
        end += part.sizes.size
    parts = [
        _entries(w, objects[w.move.tensor], begin[w.move.tensor], end)
        for w in ways
        if w.written.anchor.size
    ]
    return _sorted(parts, objects, ctas)


def _entries(ways: _Ways, objects: Objects, begin: int, total: int) -> tuple[Array, Array, Array]:
    """(CTA, order, entry) of a move's objects."""
    first, count = objects.of(key_of(ways.written.anchor, ways.written.shape))
    pieces, order = objects.pieces[first], ways.written.order
    starts, times = ways.first, ways.times
    if bool((count > 1).any()):
        # A move of several pieces is so many entries, one after the other, all at its place in the order.
        inner = np.arange(int(count.sum())) - repeated(np.cumsum(count) - count, count)
        pieces, order = objects.pieces[repeated(first, count) + inner], repeated(order, count)
        upto = np.concatenate([[0], np.cumsum(count)])
        starts, times = upto[ways.first], upto[ways.first + ways.times] - upto[ways.first]
    entry = (MODES.index(ways.move.mode) * total + begin + pieces).astype(np.int32)
    of_cta = times[ways.of_cta]
    at = np.arange(int(of_cta.sum())) - repeated(
        np.cumsum(of_cta) - of_cta - starts[ways.of_cta], of_cta
    )
    return repeated(ways.move.ctas, of_cta).astype(np.int32), order[at].astype(np.int64), entry[at]


def _sorted(
    parts: list[tuple[Array, Array, Array]], objects: dict[int, Objects], ctas: int
) -> Listed:
    sizes = {tensor: of_tensor.sizes for tensor, of_tensor in objects.items()}
    used = {tensor: of_tensor.used for tensor, of_tensor in objects.items()}
    if not parts:
        none = np.zeros(ctas, dtype=np.int32)
        return Listed(sizes, none, none, np.zeros(0, dtype=np.int32), used)
    columns: list[Any] = [np.concatenate([part[n] for part in parts]) for n in range(3)]
    cta, order, entry = columns
    longest = int(order.max()) + 1
    # By CTA, then by order, in one sort of one number.
    place = np.argsort(cta.astype(np.int64) * longest + order, kind="stable")
    count = tallied(cta, minlength=ctas)
    first = np.cumsum(count) - count
    in_order = np.ascontiguousarray(entry[place])
    return Listed(sizes, first.astype(np.int32), count.astype(np.int32), in_order, used)

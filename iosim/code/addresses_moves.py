"""What a CTA moves at once: accesses to one tensor that follow one another, taken together as tiles.

A `tl.load` of a tile is dozens of instructions. Those of one tensor and one way that stand between the same two loop
edges are one move; what it touches is a set of sectors around its anchor, its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from iosim.base.arrays import repeated
from iosim.base.records import dataclass, field
from iosim.code.addresses import (
    GLOBAL,
    Evaluated,
    instruction_of,
    mode_of,
    space_of,
    through_l1,
    touched_sectors,
)
from iosim.code.ptx_trace import Access, Fold, Node, Trace
from iosim.code.ptx_values import Array
from iosim.kernel.launch import SECTOR_BYTES, Mode

MIX = tuple(np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
MODES = (Mode.LOAD, Mode.STORE, Mode.REDUCE)


@dataclass(frozen=True)
class Move:
    """One move of many CTAs. `anchor` is the address that its shape lies around, `shape` the shape's number, `order`
    its place among what the CTA moves; `strides` and `order_strides` are those of each trip of the `folds` around
    it."""

    tensor: int
    mode: Mode
    sites: tuple[int, ...]
    ctas: Array
    anchor: Array
    shape: Array
    folds: tuple[Fold, ...]
    strides: tuple[Array, ...]
    order: Array
    order_strides: tuple[Array, ...]
    through_l1: bool

    @property
    def counts(self) -> tuple[Array, ...]:
        """Trips of each fold, by CTA of the move."""
        return tuple(fold.count[self.ctas] for fold in self.folds)

    def of(self, which: Array) -> Move:
        """The move as some of its CTAs make it, by their places in `ctas`."""
        return Move(
            self.tensor,
            self.mode,
            self.sites,
            self.ctas[which],
            self.anchor[which],
            self.shape[which],
            self.folds,
            tuple(s[which] for s in self.strides),
            self.order[which],
            tuple(o[which] for o in self.order_strides),
            self.through_l1,
        )

    @property
    def times(self) -> Array:
        """How often each CTA makes it."""
        times = np.ones(self.ctas.size, dtype=np.int64)
        for count in self.counts:
            times = times * count
        return times


@dataclass
class Shapes:
    """Sets of sectors around an anchor, each kept once; `sectors` of shape n are counted from its anchor's sector."""

    sectors: list[Array] = field(default_factory=list)
    _number: dict[bytes, int] = field(default_factory=dict)

    def number(self, sectors: Array) -> int:
        key = sectors.tobytes()
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.sectors)
            self.sectors.append(sectors)
        return number


@dataclass
class _Group:
    """Accesses that are becoming a move. Arrays have an entry a CTA of the batch."""

    key: tuple[int, Mode, bool]
    anchor: Array
    mixed: Array
    present: Array
    strides: list[Array]
    accesses: list[Access] = field(default_factory=list)
    sites: set[int] = field(default_factory=set)


class Mover:
    """Makes the moves of one trace."""

    def __init__(self, evaluated: Evaluated, trace: Trace, shapes: Shapes) -> None:
        self._evaluated, self._trace, self._shapes = evaluated, trace, shapes
        self._known: dict[tuple[int, int], int] = {}

    def moves(self) -> list[Move]:
        order = np.zeros(self._trace.ctas, dtype=np.int64)
        return self._of(self._trace.nodes, (), order)

    def _of(self, nodes: Sequence[Node], folds: tuple[Fold, ...], order: Array) -> list[Move]:
        """Moves of some nodes; `order` is counted up by CTA."""
        done: list[Move] = []
        groups: dict[tuple[int, Mode, bool], _Group] = {}

        def flush() -> None:
            for group in groups.values():
                done.append(self._move(group, folds, order))
                order[group.present] += 1
            groups.clear()

        for node in nodes:
            if isinstance(node, Fold):
                flush()
                inside = np.zeros_like(order)
                for move in self._of(node.body, (*folds, node), inside):
                    done.append(_placed(move, order, inside, len(folds)))
                order += inside * node.count
            elif isinstance(node, Access):
                self._take(node, groups, flush)
        flush()
        return done

    def _take(
        self, access: Access, groups: dict[tuple[int, Mode, bool], _Group], flush: Any
    ) -> None:
        entry = self._evaluated.entry
        if access.pattern is None or not access.ctas.size or space_of(entry, access) != GLOBAL:
            return
        instruction = instruction_of(entry, access.site)
        key = (
            int(access.base[0]) >> 40,
            mode_of(instruction, access.site % 2),
            through_l1(instruction),
        )
        group = groups.get(key)
        if group is not None and (self._repeats(group, access) or not _alike(group, access)):
            flush()
            group = None
        if group is None:
            empty = np.zeros(self._trace.ctas, dtype=np.int64)
            group = groups[key] = _Group(
                key,
                empty.copy(),
                np.zeros(self._trace.ctas, dtype=np.uint64),
                empty.astype(bool),
                [empty.copy() for _ in access.strides],
            )
        self._join(group, access)

    def _repeats(self, group: _Group, access: Access) -> bool:
        """True where a CTA comes to an instruction again that is in the group already: another trip of a loop."""
        if access.site not in group.sites:
            return False
        same = [a for a in group.accesses if a.site == access.site]
        return any(np.intersect1d(a.ctas, access.ctas, assume_unique=True).size > 0 for a in same)

    def _join(self, group: _Group, access: Access) -> None:
        ctas = access.ctas
        # The first access of a CTA in the group is its anchor; a hash of all distances to it and of all
        # patterns, in their order, is the same for CTAs whose shapes are.
        new = ~group.present[ctas]
        group.anchor[ctas[new]] = access.base[new]
        for mine, stride in zip(group.strides, access.strides, strict=True):
            mine[ctas[new]] = stride[new]
        group.present[ctas] = True
        assert access.pattern is not None
        part = (access.base - group.anchor[ctas]).astype(np.uint64) * MIX[1]
        part = part + np.array([access.pattern + 1], dtype=np.uint64) * MIX[2]
        group.mixed[ctas] = (group.mixed[ctas] ^ part) * MIX[0]
        group.accesses.append(access)
        group.sites.add(access.site)

    def _move(self, group: _Group, folds: tuple[Fold, ...], order: Array) -> Move:
        ctas = np.flatnonzero(group.present)
        anchor = group.anchor[ctas]
        phase = anchor % SECTOR_BYTES
        # Shapes are worked out once for each hash and place of the anchor inside a sector.
        keys = group.mixed[ctas] ^ (phase.astype(np.uint64) * MIX[2])
        _, index, which = np.unique(keys, return_index=True, return_inverse=True)
        numbers = np.array(
            [self._shape(group, int(keys[i]), int(ctas[i]), int(anchor[i])) for i in index]
        )
        zero = np.zeros(ctas.size, dtype=np.int64)
        strides = tuple(stride[ctas] for stride in group.strides)
        tensor, mode, cached = group.key
        return Move(
            tensor - 1,
            mode,
            tuple(sorted(group.sites)),
            ctas,
            anchor,
            numbers[which.reshape(-1)],
            folds,
            strides,
            order[ctas].copy(),
            tuple(zero for _ in folds),
            cached,
        )

    def _shape(self, group: _Group, key: int, cta: int, anchor: int) -> int:
        """The number of the shape that a CTA's accesses make."""
        known = self._known.get((key, len(group.accesses)))
        if known is not None:
            return known
        parts = []
        for access in group.accesses:
            at = int(np.searchsorted(access.ctas, cta))
            if at < access.ctas.size and access.ctas[at] == cta:
                assert access.pattern is not None
                pattern = self._trace.patterns[access.pattern]
                start = pattern.offset[pattern.active] + int(access.base[at])
                parts.append(touched_sectors(start, pattern.width))
        sectors = np.unique(np.concatenate(parts)) - (anchor >> 5)
        number = self._known[key, len(group.accesses)] = self._shapes.number(sectors)
        return number


def _alike(group: _Group, access: Access) -> bool:
    """True where an access moves from trip to trip as those of the group do."""
    present = group.present[access.ctas]
    return all(
        np.array_equal(mine[access.ctas[present]], stride[present])
        for mine, stride in zip(group.strides, access.strides, strict=True)
    )


def _placed(move: Move, before: Array, inside: Array, depth: int) -> Move:
    """A move of a fold's body where the CTA's earlier moves and the fold's trips put it."""
    order_strides = list(move.order_strides)
    order_strides[depth] = inside[move.ctas]
    return Move(
        move.tensor,
        move.mode,
        move.sites,
        move.ctas,
        move.anchor,
        move.shape,
        move.folds,
        move.strides,
        move.order + before[move.ctas],
        tuple(order_strides),
        move.through_l1,
    )


@dataclass(frozen=True)
class Expanded:
    """Every time that a move is made: by which CTA, at which address, in which shape, and when among its moves."""

    cta: Array
    anchor: Array
    shape: Array
    order: Array


def expanded(move: Move) -> Expanded:
    """A move with its folds' trips written out."""
    which = np.arange(move.ctas.size)
    anchor, order = move.anchor, move.order
    # Fold by fold, from the outside: every entry so far is repeated as often as the fold turns, and
    # each trip moves its address and its place in the order by their strides.
    for count, stride, later in zip(move.counts, move.strides, move.order_strides, strict=True):
        times = count[which]
        first = np.cumsum(times) - times
        which, trip = repeated(which, times), np.arange(int(times.sum())) - repeated(first, times)
        anchor = repeated(anchor, times) + trip * stride[which]
        order = repeated(order, times) + trip * later[which]
    return Expanded(move.ctas[which], anchor, move.shape[which], order)


def all_moves(evaluated: Evaluated) -> tuple[list[Move], Shapes]:
    """The moves of all batches, CTAs numbered through the launch."""
    shapes, done, first = Shapes(), [], 0
    for trace in evaluated.traces:
        for move in Mover(evaluated, trace, shapes).moves():
            done.append(_numbered(move, first, trace.ctas, evaluated.ctas))
        first += trace.ctas
    return done, shapes


def _numbered(move: Move, first: int, here: int, total: int) -> Move:
    """A move of a batch, whose CTAs begin at number `first` of the launch."""
    if here == total:
        return move
    folds = tuple(
        Fold(f.head, f.body, np.concatenate([np.zeros(first, dtype=np.int64), f.count]))
        for f in move.folds
    )
    return Move(
        move.tensor,
        move.mode,
        move.sites,
        move.ctas + first,
        move.anchor,
        move.shape,
        folds,
        move.strides,
        move.order,
        move.order_strides,
        move.through_l1,
    )

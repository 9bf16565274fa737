"""What an evaluated kernel touches, as a tree: accesses in their order, and trips of loops that repeat, folded.

An `Access` is one instruction by many CTAs: where each begins, and in which pattern its lanes lie around that. A `Fold`
stands for trips that do what is in its body, each further on by the strides of its accesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from iosim.base.records import dataclass, field
from iosim.code.ptx_values import Array


@dataclass(frozen=True)
class Pattern:
    """Where the lanes of a CTA access: bytes from the first lane that does, and which lanes do. `width` bytes each."""

    offset: Array
    active: Array
    width: int

    @property
    def lanes(self) -> int:
        return int(self.active.sum())


@dataclass(frozen=True)
class Access:
    """One execution of an instruction. `ctas` are numbers of CTAs in the batch, `base` the address of the first lane of
    each; `strides` has bytes from trip to trip of each `Fold` around it, the outermost first. `pattern` is None where
    the address is not known."""

    site: int
    ctas: Array
    base: Array
    pattern: int | None
    strides: tuple[Array, ...] = ()


@dataclass(frozen=True)
class Visit:
    """A block of instructions that is run: by `warps` warps of each CTA, [CTAs or 1]."""

    start: int
    warps: Array


@dataclass(frozen=True)
class Fold:
    """Trips that repeat: `count` of them by each CTA of the batch."""

    head: int
    body: tuple[Node, ...]
    count: Array


Node = Access | Fold | Visit


class Patterns:
    """Patterns by number, each kept once."""

    def __init__(self) -> None:
        self.known: list[Pattern] = []
        self._number: dict[tuple[bytes, bytes, int], int] = {}

    def number(self, offset: Array, active: Array, width: int) -> int:
        offset = np.where(active, offset, 0)
        key = (offset.tobytes(), np.packbits(active).tobytes(), width)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.known)
            self.known.append(Pattern(offset, active, width))
        return number

    def __getitem__(self, number: int) -> Pattern:
        return self.known[number]


def shifts(before: Sequence[Node], after: Sequence[Node], going: Array) -> tuple[Node, ...] | None:
    """The body of a fold that goes on as `after` went on from `before`: the first trip that is not played, of the CTAs
    that are `going` on; None where they do not do the same things in both."""
    return _shifts(_only(before, going), _only(after, going))


def _only(nodes: Sequence[Node], going: Array) -> list[Node]:
    """Nodes as far as they are of some CTAs."""
    nodes_of: list[Node] = []
    for node in nodes:
        if isinstance(node, Access):
            # A fold holds only what the CTAs do that go through it; others have left the loop.
            mine = going[node.ctas]
            if mine.all():
                nodes_of.append(node)
            elif mine.any():
                strides = tuple(stride[mine] for stride in node.strides)
                nodes_of.append(
                    Access(node.site, node.ctas[mine], node.base[mine], node.pattern, strides)
                )
        elif isinstance(node, Fold):
            count = np.where(going, node.count, 0)
            if count.any():
                nodes_of.append(Fold(node.head, tuple(_only(node.body, going)), count))
        else:
            warps = np.where(going, node.warps, 0)
            if warps.any():
                nodes_of.append(Visit(node.start, warps))
    return nodes_of


def _shifts(before: Sequence[Node], after: Sequence[Node]) -> tuple[Node, ...] | None:
    if len(before) != len(after):
        return None
    body: list[Node] = []
    for a, b in zip(before, after, strict=True):
        shift = _shifted(a, b)
        if shift is None:
            return None
        body.append(shift)
    return tuple(body)


def _shifted(a: Node, b: Node) -> Node | None:
    if isinstance(a, Fold) or isinstance(b, Fold):
        # Folds inside must turn as often in both, visits have the same warps, and an access the same
        # pattern of lanes in the same CTAs: then it differs by a stride a CTA, and by nothing else.
        if not (isinstance(a, Fold) and isinstance(b, Fold)) or a.head != b.head:
            return None
        inner = _shifts(a.body, b.body) if np.array_equal(a.count, b.count) else None
        return None if inner is None else Fold(b.head, inner, b.count)
    if isinstance(a, Visit) or isinstance(b, Visit):
        alike = (
            isinstance(a, Visit)
            and isinstance(b, Visit)
            and a.start == b.start
            and np.array_equal(a.warps, b.warps)
        )
        return b if alike else None
    same = a.site == b.site and a.pattern == b.pattern and len(a.strides) == len(b.strides)
    if not same or not np.array_equal(a.ctas, b.ctas):
        return None
    if not all(np.array_equal(x, y) for x, y in zip(a.strides, b.strides, strict=True)):
        return None
    distance = b.base - a.base
    return Access(b.site, b.ctas, b.base + distance, b.pattern, (distance, *b.strides))


@dataclass
class Trace:
    """What a batch of CTAs does. `coordinates` are their places in the grid, [CTAs, 3]; `notes` what was assumed, with
    how often."""

    coordinates: Array
    nodes: list[Node] = field(default_factory=list)
    patterns: Patterns = field(default_factory=Patterns)
    notes: dict[str, int] = field(default_factory=dict)
    executed: int = 0

    @property
    def ctas(self) -> int:
        return int(self.coordinates.shape[0])

    def walk(self) -> Iterator[tuple[Access, tuple[Fold, ...]]]:
        """Every access with the folds around it, the outermost first."""
        for node, folds in _walk(self.nodes, ()):
            if isinstance(node, Access):
                yield node, folds

    def visits(self) -> dict[int, Array]:
        """How many warps of each CTA run each block, by the instruction that it begins with."""
        by_block: dict[int, Array] = {}
        for node, folds in _walk(self.nodes, ()):
            if isinstance(node, Visit):
                # A visit inside folds is made as often as all of them turn together.
                times = np.broadcast_to(node.warps, (self.ctas,))
                for fold in folds:
                    times = times * fold.count
                by_block[node.start] = by_block.get(node.start, 0) + times
        return by_block

    def trips(self, access: Access, folds: tuple[Fold, ...]) -> Array:
        """How often each of an access's CTAs makes it."""
        times = np.ones(access.ctas.size, dtype=np.int64)
        for fold in folds:
            times = times * fold.count[access.ctas]
        return times


def _walk(nodes: Any, folds: tuple[Fold, ...]) -> Iterator[tuple[Access | Visit, tuple[Fold, ...]]]:
    for node in nodes:
        if isinstance(node, Fold):
            yield from _walk(node.body, (*folds, node))
        else:
            yield node, folds

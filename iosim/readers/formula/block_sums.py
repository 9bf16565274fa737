"""What the closed form needs of a list of blocks: sums over visited tiles, as numbers or under symbols of their own.

Of a list no formula gives the number of visited tiles; it is counted, and stands in the formula as Z. The sums are
those of `iosim.readers.formula.sums.BlockSums`, so that the bytes follow by the same formulas:

    keys read a visit   Z B_k - Z_k (n_k B_k - N_k)     Z_k of the visits are to the last of n_k key tiles
    queries read a visit   (Z - Z_q) B_q + Z_q (N_q - (n_q - 1) B_q)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from iosim.base.records import replace
from iosim.kernel.launch import Domain, Edge
from iosim.readers.formula.sums import BlockSums, Sums

NAMES = {
    "visits": ("Z", "visited pairs of tiles, of one head"),
    "visits_last_q": ("Z_q", "of them, with the last query tile"),
    "visits_last_k": ("Z_k", "of them, with the last key tile"),
    "visiting": ("T", "query tiles that visit a key tile"),
    "visited_keys": ("U", "key tiles that are visited"),
    "unneeded": ("R", "key rows of visited tiles past the last that is needed"),
    "splits_visited": ("Z_s", "pairs of a query tile and a split that hold a visited tile"),
}
"""Sum -> (symbol, meaning); those of a backward tile of its own have `backward_` before the name and Y for Z."""


def _value(x: int) -> int:
    return int.__index__(x)


class ListSums(BlockSums):
    """`BlockSums` of a mask that is a list of blocks."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(domain)
        sizes: dict[str, Any] = {n: _value(getattr(domain, n)) for n in ("rows", "seq_k", "block_q", "block_k", "pack",
                                                                         "splits")}  # fmt: skip
        self._plain = replace(domain, batch=1, heads=1, **sizes)
        self._visited = self._plain.visited

    def _bounds(self, domain: Domain) -> tuple[int | None, int | None]:
        return 0, 0

    def _lift(self, name: str, value: int) -> int:
        """The sum as a dual, where the mask was lifted (`iosim.readers.formula.lifting`)."""
        lift: Callable[[Domain, str, int], int] | None = getattr(self.domain.mask, "lift", None)
        return value if lift is None else lift(self.domain, name, value)

    @cached_property
    def visits(self) -> Sums:
        count = self._visited.count
        last = self._lift("visits_last_q", int(count[-1]))
        return Sums(self._lift("visits", int(count.sum())) - last, last)

    @cached_property
    def visiting(self) -> Sums:
        some = self._visited.count > 0
        if some.all():
            return self.same(1)
        last = int(some[-1])
        return Sums(self._lift("visiting", int(some.sum())) - last, last)

    @cached_property
    def reaching_last(self) -> Sums:
        end = self._visited.end == self._plain.key_blocks_total
        last = int(end[-1])
        return Sums(self._lift("visits_last_k", int(end.sum())) - last, last)

    def key_rows(self, edge: Edge) -> Sums:
        d, v = self.domain, self._visited
        whole = self.visits * d.block_k
        if edge is Edge.WHOLE:
            return whole
        if edge is Edge.NEEDED:
            past = (v.end * self._plain.block_k - v.end_row) * (v.count > 0)
            of_last = int(past[-1])
            return whole - Sums(self._lift("unneeded", int(past.sum())) - of_last, of_last)
        return whole - self.reaching_last * (self.key_blocks * d.block_k - d.seq_k)

    @cached_property
    def visited_splits(self) -> Sums:
        splits = self._visited.splits(self._plain.key_blocks_per_split)
        last = int(splits[-1])
        return Sums(self._lift("splits_visited", int(splits.sum())) - last, last)

    def key_range(self) -> tuple[int, int]:
        some = self._plain.visitors.count > 0
        number = self.key_blocks if some.all() else self._lift("visited_keys", int(some.sum()))
        return number, int(some[-1])

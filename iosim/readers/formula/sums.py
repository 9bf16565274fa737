"""Sums over the tiles of an interval mask in closed form: how often blocks are visited, and how many rows are moved.

What a mask does to a tiling is linear in the query block i. With p query heads packed in the rows of a tile (row r is
query r // p), block i's first row is i block_q and its last (i + 1) block_q - 1, so it keeps the keys from
floor(i block_q / p) + offset - left up to but not including floor(((i + 1) block_q - 1) / p) + offset + right + 1,
both cut to [0, N_k]. Nested floors merge, floor((floor(x / p) + w) / block_k) = floor((x + w p) / (p block_k)), so
every sum over blocks is a `clipped_floor_sum`. The last query block stands apart: its last row is the last true row.

Of a list of blocks no formula gives the number of visited tiles; it is counted, and stands in the formula as Z. The
bytes follow by the same formulas:

    keys read a visit   Z B_k - Z_k (n_k B_k - N_k)     Z_k of the visits are to the last of n_k key tiles
    queries read a visit   (Z - Z_q) B_q + Z_q (N_q - (n_q - 1) B_q)

A sector of a block table holds the entries of `keys` keys (8 pages). A work tile looks up the rows of the key blocks it
visits, [F block_k, min(E block_k, seq_k)), so it touches ceil(end / keys) - floor(start / keys) sectors, and one more
for every split boundary inside that is no multiple of `keys`. Where block_k does not divide `keys`, with
L = keys / gcd(block_k, keys): ceil(E block_k / keys) = sum over 1 <= r <= L of (ceil(r block_k / keys) -
ceil((r - 1) block_k / keys)) floor((E + L - r) / L), each term a clipped floor sum; the same for floors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from iosim.base.records import cached_property, dataclass, replace
from iosim.kernel.launch import Domain, Edge
from iosim.problem.masks.mask import IntervalMask
from iosim.problem.masks.picked import PickedMask
from iosim.readers.formula.dual import ceil_div, clip, clipped_floor_sum, maximum, minimum


@dataclass(frozen=True)
class Sums:
    """A quantity of query blocks: summed over all but the last block, and the last block's own. `per_block` is the
    value of each of the `blocks` where all, the last included, have the same."""

    full: int
    last: int
    per_block: int | None = None
    blocks: int = 0

    @property
    def total(self) -> int:
        return self.full + self.last if self.per_block is None else self.per_block * self.blocks

    def __mul__(self, number: int) -> Sums:
        per_block = None if self.per_block is None else self.per_block * number
        return Sums(self.full * number, self.last * number, per_block, self.blocks)

    def __sub__(self, other: Sums) -> Sums:
        per_block = (
            None
            if self.per_block is None or other.per_block is None
            else self.per_block - other.per_block
        )
        return Sums(self.full - other.full, self.last - other.last, per_block, self.blocks)


class BlockSums:
    """What the readers need of a domain's query blocks and the key blocks they visit, each in closed form. NB: `left` +
    `right` of the mask is at least 0: a query row keeps a key, unless the sequence's ends cut it off."""

    def __init__(self, domain: Domain, key_blocks_per_split: int | None = None) -> None:
        self.domain = domain
        self._per_split = key_blocks_per_split
        self.left, self.right = self._bounds(domain)
        """First and last key kept by query i are i + left and i + right (None: the first key, the last key)."""
        self.ratio = getattr(domain.mask, "ratio", 1)
        """Tokens that a key stands for: query i keeps the first (i + right + 1) // ratio keys."""
        self.query_blocks = ceil_div(domain.rows, domain.block_q)
        self.key_blocks = ceil_div(domain.seq_k, domain.block_k)
        self.full_blocks = self.query_blocks - 1
        self.last_rows = domain.rows - self.full_blocks * domain.block_q

    def _bounds(self, domain: Domain) -> tuple[int | None, int | None]:
        mask = domain.mask
        if not isinstance(mask, IntervalMask):
            raise TypeError(f"no closed form of a {type(mask).__name__}'s own")
        first_key = None if mask.left is None else mask.offset - mask.left
        return first_key, None if mask.right is None else mask.offset + mask.right

    def same(self, per_block: int) -> Sums:
        return Sums(per_block * self.full_blocks, per_block, per_block, self.query_blocks)

    def _reaches(self, key: int, limit: int) -> int:
        """The first full query block that keeps a key beyond or at `key`, cut to [0, limit]."""
        assert self.right is not None
        # Query i keeps `key` from (key + 1) ratio - 1 - right on; its block is that over block_q.
        last = (key + 1) * self.ratio - 1
        return clip((last - self.right) * self.domain.pack // self.domain.block_q, 0, limit)

    def _starts_at(self, key: int, limit: int) -> int:
        """The first query block whose first key is at or beyond `key`, cut to [0, limit]."""
        assert self.left is not None
        return clip(ceil_div((key - self.left) * self.domain.pack, self.domain.block_q), 0, limit)

    @cached_property
    def _used(self) -> int:
        """Full query blocks that start before the keys end; those after it visit nothing."""
        return (
            self.full_blocks
            if self.left is None
            else self._starts_at(self.domain.seq_k, self.full_blocks)
        )

    @cached_property
    def _last_first_key(self) -> int:
        d = self.domain
        return (
            0
            if self.left is None
            else maximum(self.full_blocks * d.block_q // d.pack + self.left, 0)
        )

    @cached_property
    def _last_end_key(self) -> int:
        d = self.domain
        if self.right is None:
            return d.seq_k
        return clip(((d.rows - 1) // d.pack + self.right + 1) // self.ratio, 0, d.seq_k)

    @cached_property
    def _last_visits(self) -> int:
        """1 where the last query block visits a key block, else 0."""
        if self.left is None and self.right is None:
            return 1
        return clip(self._last_end_key - self._last_first_key, 0, 1)

    def _line_to_end(self, step: int, shift: int, limit: int) -> int:
        """Sum over used full blocks of floor((keys that the last row keeps + shift) / step), cut to [0, most]."""
        assert self.right is not None
        d = self.domain
        # The last row of block i is i block_q + block_q - 1; merged floors make it one line in i, of
        # slope block_q over step x ratio x pack (the head of the module).
        at_zero = d.block_q - 1 + (self.right + 1 + shift * self.ratio) * d.pack
        return clipped_floor_sum(self._used, step * self.ratio * d.pack, d.block_q, at_zero, limit)

    def _line_to_first(self, step: int) -> int:
        """Sum over used full blocks of floor(first key / step)."""
        if self.left is None:
            return 0
        d = self.domain
        return clipped_floor_sum(
            self._used, step * d.pack, d.block_q, self.left * d.pack, ceil_div(d.seq_k, step)
        )

    @cached_property
    def visiting(self) -> Sums:
        """1 for every query block that visits a key block."""
        if self.left is None and self.right is None:
            return self.same(1)
        # Blocks before the first that reaches key 0 visit nothing: all of their keys lie above the
        # diagonal (an offset below 0).
        before = 0 if self.right is None else self._reaches(0, self._used)
        return Sums(self._used - before, self._last_visits)

    @cached_property
    def _first(self) -> Sums:
        last = self._last_first_key // self.domain.block_k
        return Sums(self._line_to_first(self.domain.block_k), self._last_visits * last)

    @cached_property
    def _end(self) -> Sums:
        bk = self.domain.block_k
        if self.right is None:
            return Sums(self._used * self.key_blocks, self._last_visits * self.key_blocks)
        full = self._line_to_end(bk, bk - 1, self.key_blocks)
        return Sums(full, self._last_visits * ceil_div(self._last_end_key, bk))

    @cached_property
    def visits(self) -> Sums:
        if self.left is None and self.right is None:
            return self.same(self.key_blocks)
        return self._end - self._first

    @cached_property
    def reaching_last(self) -> Sums:
        """1 for every query block that visits the last key block."""
        if self.left is None and self.right is None:
            return self.same(1)
        if self.right is None:
            return Sums(self._used, self._last_visits)
        d = self.domain
        before = self._reaches((self.key_blocks - 1) * d.block_k, self._used)
        # 1 where the last query block ends before the last key block; as a number, not a branch, so that
        # a formula in symbols holds for both.
        missing = minimum(1, self.key_blocks - ceil_div(self._last_end_key, d.block_k))
        return Sums(self._used - before, self._last_visits * (1 - missing))

    def key_rows(self, edge: Edge) -> Sums:
        d = self.domain
        if edge is Edge.WHOLE:
            return self.visits * d.block_k
        if self.left is None and self.right is None:
            return self.same(d.seq_k)
        if edge is Edge.NEEDED and self.right is not None:
            to_end = Sums(self._line_to_end(1, 0, d.seq_k), self._last_visits * self._last_end_key)
        else:
            # Whole blocks, less what the last key block has past the end of the keys.
            to_end = self._end * d.block_k - self.reaching_last * (
                self.key_blocks * d.block_k - d.seq_k
            )
        return to_end - self._first * d.block_k

    @cached_property
    def _key_blocks_per_split(self) -> int:
        if self._per_split is not None:
            return self._per_split
        splits = 1 if self.domain.undivided else self.domain.splits
        return ceil_div(self.key_blocks, splits)

    @cached_property
    def visited_splits(self) -> Sums:
        per = self._key_blocks_per_split
        return self._spans(per * self.domain.block_k, (self.key_blocks - 1) // per)

    def _spans(self, step: int, limit: int) -> Sums:
        """Parts of `step` keys that query blocks reach into, `step` a multiple of block_k; `limit` is the last part."""
        if self.left is None and self.right is None:
            return self.same(limit + 1)
        if self.right is None:
            to_end = self.visiting.full * limit
            end = limit
        else:
            to_end = self._line_to_end(step, -1, limit)
            end = maximum(self._last_end_key - 1, 0) // step
        first = self._last_first_key // step
        return Sums(
            to_end - self._line_to_first(step) + self.visiting.full,
            self._last_visits * (end - first + 1),
        )

    def key_range(self) -> tuple[int, int]:
        """(key blocks that any query block visits: one contiguous range; 1 where it ends with the last key block). Both
        are 0 where nothing is visited."""
        d = self.domain
        if self.left is None and self.right is None:
            return self.key_blocks, 1
        # Visited key blocks are one range: from the first key of the first query block that visits any
        # to the last key of the last that begins before the keys end.
        some = minimum(1, self.visiting.total)
        first, end = 0, self.key_blocks
        if self.left is not None:
            lowest = 0 if self.right is None else self._reaches(0, self.full_blocks)
            first = maximum(lowest * d.block_q // d.pack + self.left, 0) // d.block_k
        if self.right is not None:
            stop = (
                self.query_blocks
                if self.left is None
                else self._starts_at(d.seq_k, self.query_blocks)
            )
            last_query = (minimum(stop * d.block_q, d.rows) - 1) // d.pack
            end = ceil_div(clip((last_query + self.right + 1) // self.ratio, 0, d.seq_k), d.block_k)
        return some * (end - first), some * (1 - minimum(1, self.key_blocks - end))

    # Of a table of pages.

    def sectors(self, keys: int) -> int:
        """Sectors of a block table, each of the entries of `keys` keys, that all work tiles of one (batch, head) touch.
        NB: `block_k`, and with splits their length, enter by their values: a formula in symbols holds for these
        alone."""
        touched = self._ends(keys) - self._starts(keys)
        d = self.domain
        if d.splits == 1:
            return touched
        split = int(self._key_blocks_per_split) * int(d.block_k)
        # A split boundary cuts a sector in two where it is no boundary of sectors: boundaries of splits
        # that tiles span, less those that are boundaries of sectors, too.
        meeting = math.lcm(split, keys)
        inside = self._spans(split, (d.seq_k - 1) // split) - self._spans(
            meeting, (d.seq_k - 1) // meeting
        )
        return touched + inside.total

    def _ends(self, keys: int) -> int:
        """Sum of ceil(end / keys)."""
        d, limit = self.domain, ceil_div(self.domain.seq_k, keys)
        if self.right is None:
            blocks = self.query_blocks if self.left is None else self._used + self._last_visits
            return blocks * limit
        bk = int(d.block_k)
        end = minimum(ceil_div(self._last_end_key, bk) * bk, d.seq_k)
        last = self._last_visits * ceil_div(end, keys)
        if keys % bk == 0:
            return self._line_to_end(keys, keys - 1, limit) + last
        # The sum over r of the head of the module. The last key block may end in an earlier sector than
        # a whole block would: its visits are one sector (or more) less.
        past = ceil_div(self.key_blocks * bk, keys) - limit
        full = -past * self.reaching_last.full
        for before, weight, length in self._weights(keys, lambda r: ceil_div(r * bk, keys)):
            top = (self.key_blocks + before) // length
            full += weight * self._line_to_end(length * bk, bk - 1 + before * bk, top)
        return full + last

    def _starts(self, keys: int) -> int:
        """Sum of floor(start / keys)."""
        if self.left is None:
            return 0
        bk = int(self.domain.block_k)
        last = self._last_visits * (self._last_first_key // bk * bk // keys)
        if keys % bk == 0:
            return self._line_to_first(keys) + last
        full = 0
        for before, weight, length in self._weights(keys, lambda r: r * bk // keys):
            full += weight * self._shifted_first(length * bk, before * bk)
        return full + last

    def _weights(self, keys: int, sectors: Callable[[int], int]) -> Iterator[tuple[int, int, int]]:
        """(length - r, sectors that key block r adds, length) of each key block r that adds to the `sectors` of the
        blocks before it; block and sector boundaries meet again after `length` blocks."""
        length = keys // math.gcd(int(self.domain.block_k), keys)
        for r in range(1, min(length, int(self.key_blocks)) + 1):
            if weight := sectors(r) - sectors(r - 1):
                yield length - r, weight, length

    def _shifted_first(self, step: int, shift: int) -> int:
        """Sum over used full blocks of floor((first key + shift) / step), for 0 <= shift < step."""
        assert self.left is not None
        d = self.domain
        limit = ceil_div(d.seq_k, step) + 1
        return clipped_floor_sum(
            self._used, step * d.pack, d.block_q, (self.left + shift) * d.pack, limit
        )


class PickedSums(BlockSums):
    """`BlockSums` of lists of picked keys: all of a list is walked, and the rows of the keys that are there move."""

    def _bounds(self, domain: Domain) -> tuple[int | None, int | None]:
        return None, None

    def key_rows(self, edge: Edge) -> Sums:
        d, mask = self.domain, self.domain.mask
        assert isinstance(mask, PickedMask)
        if edge is not Edge.NEEDED:
            return super().key_rows(edge)
        return BlockSums(replace(d, seq_k=minimum(d.seq_k, mask.seen), mask=mask.plain)).key_rows(
            edge
        )


# Of a list of blocks

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


class ListSums(BlockSums):
    """`BlockSums` of a mask that is a list of blocks."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(domain)
        names = ("rows", "seq_k", "block_q", "block_k", "pack", "splits")
        sizes: dict[str, Any] = {name: int.__index__(getattr(domain, name)) for name in names}
        # Counting needs true ints: a list of blocks has no formula, only a number and a symbol for it.
        self._plain = replace(domain, batch=1, heads=1, **sizes)
        self._visited = self._plain.visited

    def _bounds(self, domain: Domain) -> tuple[int | None, int | None]:
        return 0, 0

    def _lift(self, name: str, value: int) -> int:
        """The sum as a dual, where the mask was lifted (`iosim.readers.formula.lifting`)."""
        lift: Callable[[Domain, str, int], int] | None = getattr(self.domain.mask, "lift", None)
        return value if lift is None else lift(self.domain, name, value)

    def _added(self, name: str, per_block: Any, last: int | None = None) -> Sums:
        """A quantity of every query block, whose sum has a name."""
        last = int(per_block[-1]) if last is None else last
        return Sums(self._lift(name, int(per_block.sum())) - last, last)

    @cached_property
    def visits(self) -> Sums:
        count = self._visited.count
        return self._added("visits", count, self._lift("visits_last_q", int(count[-1])))

    @cached_property
    def visiting(self) -> Sums:
        some = self._visited.count > 0
        return self.same(1) if some.all() else self._added("visiting", some)

    @cached_property
    def reaching_last(self) -> Sums:
        return self._added("visits_last_k", self._visited.end == self._plain.key_blocks_total)

    def key_rows(self, edge: Edge) -> Sums:
        d, v = self.domain, self._visited
        whole = self.visits * d.block_k
        if edge is Edge.WHOLE:
            return whole
        if edge is Edge.NEEDED:
            unneeded = np.where(v.count > 0, v.end * self._plain.block_k - v.end_row, 0)
            return whole - self._added("unneeded", unneeded)
        return whole - self.reaching_last * (self.key_blocks * d.block_k - d.seq_k)

    @cached_property
    def visited_splits(self) -> Sums:
        return self._added(
            "splits_visited",
            self._visited.splits(self._plain.key_blocks_per_split, self._plain.splits),
        )

    def key_range(self) -> tuple[int, int]:
        some = self._plain.visitors.count > 0
        number = self.key_blocks if some.all() else self._lift("visited_keys", int(some.sum()))
        return number, int(some[-1])

    def sectors(self, keys: int) -> int:
        raise TypeError("a block table's sectors have no closed form under a list of blocks")

"""Sums over the tiles of an interval mask in closed form: how often blocks are visited, and how many rows are moved.

What a mask does to a tiling is linear in the query block i. With p query heads packed in the rows of a tile (row r is
query r // p), block i's first row is i block_q and its last (i + 1) block_q - 1, so it keeps the keys from
floor(i block_q / p) + offset - left up to but not including floor(((i + 1) block_q - 1) / p) + offset + right + 1,
both cut to [0, N_k]. Nested floors merge, floor((floor(x / p) + w) / block_k) = floor((x + w p) / (p block_k)), so
every sum over blocks is a `clipped_floor_sum`. The last query block stands apart: its last row is the last true row.
"""

from __future__ import annotations

from functools import cached_property

from iosim.base.records import dataclass
from iosim.kernel.launch import Domain, Edge
from iosim.problem.masks.mask import IntervalMask
from iosim.readers.formula.dual import ceil_div, clip, clipped_floor_sum, maximum, minimum


@dataclass(frozen=True)
class Sums:
    """A quantity of query blocks: summed over all but the last block, and the last block's own.

    `each` is the value of every one of the `blocks` where all, the last included, have the same.
    """

    full: int
    last: int
    each: int | None = None
    blocks: int = 0

    @property
    def total(self) -> int:
        return self.full + self.last if self.each is None else self.each * self.blocks

    def __mul__(self, number: int) -> Sums:
        each = None if self.each is None else self.each * number
        return Sums(self.full * number, self.last * number, each, self.blocks)

    def __sub__(self, other: Sums) -> Sums:
        each = None if self.each is None or other.each is None else self.each - other.each
        return Sums(self.full - other.full, self.last - other.last, each, self.blocks)


class BlockSums:
    """What the readers need of a domain's query blocks and the key blocks they visit, each in closed form.

    NB: `left` + `right` of the mask is at least 0: a query row keeps a key, unless the sequence's ends cut it off.
    """

    def __init__(self, domain: Domain, key_blocks_per_split: int | None = None) -> None:
        self.domain = domain
        self._per_split = key_blocks_per_split
        self.left, self.right = self._bounds(domain)
        """First and last key kept by query i are i + left and i + right (None: the first key, the last key)."""
        self.query_blocks = ceil_div(domain.rows, domain.block_q)
        self.key_blocks = ceil_div(domain.seq_k, domain.block_k)
        self.full_blocks = self.query_blocks - 1
        self.last_rows = domain.rows - self.full_blocks * domain.block_q

    def _bounds(self, domain: Domain) -> tuple[int | None, int | None]:
        mask = domain.mask
        if not isinstance(mask, IntervalMask):
            raise TypeError(f"no closed form of a {type(mask).__name__}'s own")
        left = None if mask.left is None else mask.offset - mask.left
        return left, None if mask.right is None else mask.offset + mask.right

    def same(self, each: int) -> Sums:
        return Sums(each * self.full_blocks, each, each, self.query_blocks)

    def _reaches(self, key: int, limit: int) -> int:
        """The first full query block that keeps a key beyond or at `key`, cut to [0, limit]."""
        assert self.right is not None
        return clip((key - self.right) * self.domain.pack // self.domain.block_q, 0, limit)

    def _starts_at(self, key: int, limit: int) -> int:
        """The first query block whose first key is at or beyond `key`, cut to [0, limit]."""
        assert self.left is not None
        return clip(ceil_div((key - self.left) * self.domain.pack, self.domain.block_q), 0, limit)

    @cached_property
    def _used(self) -> int:
        """Full query blocks that start before the keys end; those after it visit nothing."""
        return self.full_blocks if self.left is None else self._starts_at(self.domain.seq_k, self.full_blocks)

    @cached_property
    def _last_first_key(self) -> int:
        d = self.domain
        return 0 if self.left is None else maximum(self.full_blocks * d.block_q // d.pack + self.left, 0)

    @cached_property
    def _last_end_key(self) -> int:
        d = self.domain
        return d.seq_k if self.right is None else clip((d.rows - 1) // d.pack + self.right + 1, 0, d.seq_k)

    @cached_property
    def _last_visits(self) -> int:
        """1 where the last query block visits a key block, else 0."""
        if self.left is None and self.right is None:
            return 1
        return clip(self._last_end_key - self._last_first_key, 0, 1)

    def _line_to_end(self, step: int, shift: int, most: int) -> int:
        """Sum over used full blocks of floor((last row's query + 1 + right + shift) / step), cut to [0, most]."""
        assert self.right is not None
        d = self.domain
        at_zero = d.block_q - 1 + (self.right + 1 + shift) * d.pack
        return clipped_floor_sum(self._used, step * d.pack, d.block_q, at_zero, most)

    def _line_to_first(self, step: int) -> int:
        """Sum over used full blocks of floor(first key / step)."""
        if self.left is None:
            return 0
        d = self.domain
        return clipped_floor_sum(self._used, step * d.pack, d.block_q, self.left * d.pack, ceil_div(d.seq_k, step))

    @cached_property
    def visiting(self) -> Sums:
        """1 for every query block that visits a key block."""
        if self.left is None and self.right is None:
            return self.same(1)
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
        """Key blocks visited."""
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
        missing = minimum(1, self.key_blocks - ceil_div(self._last_end_key, d.block_k))
        return Sums(self._used - before, self._last_visits * (1 - missing))

    def key_rows(self, edge: Edge) -> Sums:
        """Key rows moved by the loop over key blocks."""
        d = self.domain
        if edge is Edge.WHOLE:
            return self.visits * d.block_k
        if self.left is None and self.right is None:
            return self.same(d.seq_k)
        if edge is Edge.NEEDED and self.right is not None:
            to_end = Sums(self._line_to_end(1, 0, d.seq_k), self._last_visits * self._last_end_key)
        else:
            to_end = self._end * d.block_k - self.reaching_last * (self.key_blocks * d.block_k - d.seq_k)
        return to_end - self._first * d.block_k

    @cached_property
    def visited_splits(self) -> Sums:
        """Splits of the keys that hold a visited key block."""
        d = self.domain
        per = ceil_div(self.key_blocks, d.splits) if self._per_split is None else self._per_split
        most = (self.key_blocks - 1) // per
        if self.left is None and self.right is None:
            return self.same(most + 1)
        step = per * d.block_k
        if self.right is None:
            to_end = self.visiting.full * most
            end = most
        else:
            to_end = self._line_to_end(step, -1, most)
            end = maximum(self._last_end_key - 1, 0) // step
        first = self._last_first_key // step
        return Sums(to_end - self._line_to_first(step) + self.visiting.full, self._last_visits * (end - first + 1))

    def key_range(self) -> tuple[int, int]:
        """(key blocks that any query block visits: one contiguous range; 1 where it ends with the last key block).

        Both are 0 where nothing is visited.
        """
        d = self.domain
        if self.left is None and self.right is None:
            return self.key_blocks, 1
        some = minimum(1, self.visiting.total)
        first, end = 0, self.key_blocks
        if self.left is not None:
            lowest = 0 if self.right is None else self._reaches(0, self.full_blocks)
            first = maximum(lowest * d.block_q // d.pack + self.left, 0) // d.block_k
        if self.right is not None:
            stop = self.query_blocks if self.left is None else self._starts_at(d.seq_k, self.query_blocks)
            last_query = (minimum(stop * d.block_q, d.rows) - 1) // d.pack
            end = ceil_div(clip(last_query + self.right + 1, 0, d.seq_k), d.block_k)
        return some * (end - first), some * (1 - minimum(1, self.key_blocks - end))

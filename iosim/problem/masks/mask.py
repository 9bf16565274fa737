"""Masks as one interval of keys per query row, what a tiling makes of them, and what every mask answers.

A query row i keeps the keys j with  i + offset - left <= j <= i + offset + right,  cut to [0, seq_k).
`None` for `left` or `right` means unbounded. Masks that are lists of blocks live in `iosim.problem.masks.blocks`,
sequences of different lengths in `iosim.problem.masks.packed`; readers know them all as `Mask` and `Visited`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from iosim.base.records import dataclass

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Axis:
    """Rows along one axis of a domain, as the lengths of the sequences that lie there one after the other. Tiles
    restart at each sequence. The grid has as many blocks for each as the longest needs; those past a sequence's end
    hold no rows."""

    lengths: tuple[int, ...]

    def blocks_each(self, block: int) -> int:
        """Blocks that the grid has for a sequence."""
        longest = self.lengths[0] if len(self.lengths) == 1 else max(self.lengths)
        return -(-longest // block)

    def blocks(self, block: int) -> int:
        per_sequence = self.blocks_each(block)
        return per_sequence if len(self.lengths) == 1 else len(self.lengths) * per_sequence

    def filled(self, block: int) -> int:
        """Blocks of the grid that hold rows."""
        return sum(-(-length // block) for length in self.lengths)

    def block_rows(self, block: int) -> IntArray:
        """True rows of every block of the grid; 0 past the end of its sequence."""
        starts = np.arange(self.blocks_each(block), dtype=np.int64) * block
        ends = np.array(self.lengths, dtype=np.int64)[:, None]
        return np.asarray(np.clip(ends - starts, 0, block).reshape(-1), dtype=np.int64)


@dataclass(frozen=True)
class Steps:
    """Loops of work tiles: tile t takes `count[t]` steps; step n has index indices[first[t] + n], or first[t] + n."""

    first: IntArray
    count: IntArray
    indices: IntArray | None = None


@dataclass(frozen=True)
class Visited:
    """The key blocks that each query block visits. The arrays have one entry a query block: the first, one past the
    last, and one past the last key row that its mask keeps, in rows counted block_k a key block. An empty query block
    has count 0 and first == end."""

    first: IntArray
    end: IntArray
    end_row: IntArray

    def by_query(self) -> Steps:
        """The key blocks of each query block, in the order of the walk."""
        raise NotImplementedError

    def by_key(self, key_blocks: int) -> Steps:
        """The query blocks that visit each key block."""
        raise NotImplementedError

    def by_split(self, per: int, splits: int) -> Steps:
        """The key blocks of each (query block, split of `per` key blocks), splits fastest."""
        raise NotImplementedError

    @property
    def count(self) -> IntArray:
        """Key blocks of each query block."""
        return self.by_query().count

    def total(self, values: IntArray) -> IntArray:
        """The sum, per query block, of `values`, one a key block, over the key blocks that it visits."""
        # Sums over intervals by differences of a running sum.
        steps = self.by_query()
        upto = np.concatenate(
            [[0], np.cumsum(values if steps.indices is None else values[steps.indices])]
        )
        return np.asarray(upto[steps.first + steps.count] - upto[steps.first], dtype=np.int64)

    def splits(self, per: int, splits: int) -> IntArray:
        """How many of `splits` of `per` key blocks each query block visits a block of."""
        per_split = self.by_split(per, splits).count.reshape(-1, splits)
        return np.asarray((per_split > 0).sum(axis=1), dtype=np.int64)


class Mask(Protocol):
    """What readers ask of a mask. `rows` are query tokens x `pack`; row r belongs to query r // pack."""

    def keeps(self, queries: IntArray, keys: IntArray) -> BoolArray:
        """True where each pair is kept; the two broadcast against each other."""

    def kept_pairs(self, seq_q: int, seq_k: int) -> int:
        """Number of (query, key) pairs kept, of one head."""

    def kept_keys(self, seq_q: int, seq_k: int) -> int:
        """Keys that some query keeps."""

    def kept_queries(self, seq_q: int, seq_k: int) -> int:
        """Queries that keep some key."""

    def leaves_rows_empty(self, seq_q: int, seq_k: int) -> bool:
        """True where some query keeps no key."""
        return self.kept_queries(seq_q, seq_k) < seq_q

    def query_axis(self, rows: int, pack: int) -> Axis:
        return Axis((rows,))

    def key_axis(self, seq_k: int) -> Axis:
        return Axis((seq_k,))

    def key_blocks(self, rows: int, seq_k: int, block_q: int, block_k: int, pack: int) -> Visited:
        """The visited key blocks: those with a kept pair of a true query row."""


@dataclass(frozen=True)
class IntervalMask(Mask):
    """Keys kept around a shifted diagonal. `left` and `right` count keys beyond the diagonal, or None. Where a key
    stands for `ratio` tokens, a query keeps those whose last token it may see; `left` is None then, and `right` counts
    tokens."""

    left: int | None = None
    right: int | None = None
    offset: int = 0
    ratio: int = 1

    @property
    def is_full(self) -> bool:
        return self.left is None and self.right is None

    def first_key(self, row: IntArray) -> IntArray:
        """First key kept by each row, before cutting at seq_k; shape and unit of `row`."""
        if self.left is None:
            return np.zeros_like(row)
        return np.maximum(row + (self.offset - self.left), 0)

    def end_key(self, row: IntArray, seq_k: int) -> IntArray:
        """One past the last key kept by each row."""
        if self.right is None:
            return np.full_like(row, seq_k)
        return np.clip((row + (self.offset + self.right + 1)) // self.ratio, 0, seq_k)

    def keeps(self, queries: IntArray, keys: IntArray) -> BoolArray:
        # Tokens from the diagonal to a key's last token; a key of one token is its own last.
        distance = (keys + 1) * self.ratio - 1 - (queries + self.offset)
        inside = np.ones(distance.shape, dtype=np.bool_)
        if self.left is not None:
            inside &= distance >= -self.left
        if self.right is not None:
            inside &= distance <= self.right
        return inside

    def kept_pairs(self, seq_q: int, seq_k: int) -> int:
        rows = np.arange(seq_q, dtype=np.int64)
        return int(np.maximum(self.end_key(rows, seq_k) - self.first_key(rows), 0).sum())

    def kept_keys(self, seq_q: int, seq_k: int) -> int:
        """Keys that some query keeps: a window that starts late needs no earlier keys."""
        if self.is_full:
            return seq_k
        # The first row that keeps any key decides where the kept keys begin, the last where they end.
        first_row = 0 if self.right is None else max(0, self.ratio - 1 - (self.offset + self.right))
        last_row = seq_q - 1
        if first_row > last_row:
            return 0
        first = 0 if self.left is None else max(0, first_row + self.offset - self.left)
        end = (
            seq_k
            if self.right is None
            else min(seq_k, (last_row + self.offset + self.right + 1) // self.ratio)
        )
        return max(0, end - first)

    def kept_queries(self, seq_q: int, seq_k: int) -> int:
        """Queries that keep some key: not those that lie before the first key or too far past the last."""
        first = 0 if self.right is None else max(0, self.ratio - 1 - (self.offset + self.right))
        end = seq_q if self.left is None else min(seq_q, seq_k + self.left - self.offset)
        return max(0, end - first)

    def key_blocks(
        self, rows: int, seq_k: int, block_q: int, block_k: int, pack: int = 1
    ) -> KeyBlocks:
        """The visited key blocks of every query block. O(rows / block_q) time and memory."""
        # A block's first row reaches furthest back, its last furthest ahead; `pack` rows are one query.
        starts = np.arange(0, rows, block_q, dtype=np.int64)
        last = np.minimum(starts + block_q, rows) - 1
        first_key = self.first_key(starts // pack)
        end_key = self.end_key(last // pack, seq_k)
        end = -(-end_key // block_k)
        first = np.minimum(first_key // block_k, end)
        empty = first_key >= end_key
        first = np.where(empty, end, first)
        return KeyBlocks(first=first, end=end, end_row=np.where(empty, first * block_k, end_key))


@dataclass(frozen=True)
class KeyBlocks(Visited):
    """Each query block visits an interval of key blocks, [first, end). Neither end falls from one query block to the
    next. `base` is the first key block of the query block's sequence, where there are several."""

    base: IntArray | None = None

    def by_query(self) -> Steps:
        return Steps(self.first, self.end - self.first)

    def by_key(self, key_blocks: int) -> Steps:
        # +1 where a query block's interval begins and -1 past it: the running sum counts visitors. Ends
        # never fall, so the visitors of a key block are neighbours, the first found by search.
        change = np.zeros(key_blocks + 1, dtype=np.int64)
        some = self.count > 0
        np.add.at(change, self.first[some], 1)
        np.add.at(change, self.end[some], -1)
        count = np.cumsum(change)[:-1]
        first = np.searchsorted(self.end, np.arange(key_blocks), side="right")
        return Steps(np.where(count > 0, first, 0), count)

    def by_split(self, per: int, splits: int) -> Steps:
        # Each split's range of key blocks, cut with each query block's own interval.
        start = np.arange(splits, dtype=np.int64) * per
        start = start[None, :] + (0 if self.base is None else self.base[:, None])
        first = np.maximum(self.first[:, None], start)
        end = np.minimum(self.end[:, None], start + per)
        return Steps(first.reshape(-1), np.maximum(end - first, 0).reshape(-1))

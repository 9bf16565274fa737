"""BlockMask: a mask that keeps or drops whole blocks of block_q queries x block_k keys, and the tiles that visit them.

Kept blocks are held row by row (CSR). A tile of any size is visited when a kept block overlaps it; inside a
visited tile the pairs outside kept blocks are dropped. Time and memory follow the number of kept blocks, or of visited
tiles.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.arrays import repeated, tallied
from iosim.base.errors import InputError
from iosim.base.records import cached_property, dataclass, field, replace
from iosim.problem.masks.mask import (
    BoolArray,
    IntArray,
    IntervalMask,
    KeyBlocks,
    Mask,
    Steps,
    Visited,
)

MAX_BLOCKS = 1 << 25
"""Kept blocks, or visited tiles, of one head: some seconds and a few GB."""


def _refuse_too_many(number: int, subject: str) -> None:
    if number > MAX_BLOCKS:
        raise InputError(
            f"`mask`: {number:,} {subject}; accepted: up to {MAX_BLOCKS:,} (larger blocks or fewer tokens)"
        )


def ranges(first: IntArray, count: IntArray) -> tuple[IntArray, IntArray]:
    """The numbers first[i], first[i] + 1, ... of every i, `count[i]` of them, and the i of each."""
    owner = repeated(np.arange(count.size, dtype=np.int64), count)
    begin = np.cumsum(count) - count
    return np.arange(owner.size, dtype=np.int64) - begin[owner] + first[owner], owner


def _by_row(
    height: int, width: int, rows: IntArray, cols: IntArray, marks: BoolArray | None
) -> tuple[IntArray, IntArray, BoolArray | None]:
    """(indptr, columns, marks) of entries row by row, columns ascending. A repeated entry is marked if all are."""
    key = rows * width + cols
    if (np.diff(key) <= 0).any():
        key, back = np.unique(key, return_inverse=True)
        if marks is not None:
            every = np.ones(key.size, dtype=np.bool_)
            np.logical_and.at(every, back.reshape(-1), marks)
            marks = every
    return _starts(tallied(key // width, minlength=height)), key % width, marks


def _starts(count: IntArray) -> IntArray:
    """Where each of several lists of `count` entries begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(count)]).astype(np.int64)


def _grouped(owner: IntArray, size: int, values: IntArray) -> Steps:
    """`values` listed by the owner of each, of which there are `size`; those of an owner keep their order."""
    starts = _starts(tallied(owner, minlength=size))
    return Steps(starts[:-1], np.diff(starts), values[np.argsort(owner, kind="stable")])


@dataclass(frozen=True, eq=False)
class BlockMask(Mask):
    """Kept blocks of a mask over `seq_q` queries and `seq_k` keys.

    Args:
        seq_q, seq_k: tokens that the mask is for; the last blocks may reach past them.
        block_q, block_k: sides of a block.
        indptr: [block rows + 1]; row r keeps the blocks indices[indptr[r]:indptr[r + 1]].
        indices: block columns, ascending in each row, no column twice.
        full: for each entry, whether a kernel with two loops (FlexAttention) takes it in the second, after all others.
    """

    seq_q: int
    seq_k: int
    block_q: int
    block_k: int
    indptr: IntArray
    indices: IntArray
    full: BoolArray | None = None
    _digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Masks of millions of blocks are compared and hashed by a digest that is made once.
        text = hashlib.sha256(repr((self.seq_q, self.seq_k, self.block_q, self.block_k)).encode())
        for array in (self.indptr, self.indices):
            text.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
        if self.full is not None:
            text.update(np.packbits(self.full).tobytes())
        object.__setattr__(self, "_digest", text.digest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockMask) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    @classmethod
    def of_pairs(
        cls,
        seq_q: int,
        seq_k: int,
        block_q: int,
        block_k: int,
        rows: IntArray,
        cols: IntArray,
        full: BoolArray | None = None,
    ) -> BlockMask:
        """From the coordinates of kept blocks in any order, repeats allowed; a repeated block is full if all its
        entries are."""
        _refuse_too_many(rows.size, "kept blocks")
        lists = _by_row(-(-seq_q // block_q), -(-seq_k // block_k), rows, cols, full)
        return cls(seq_q, seq_k, block_q, block_k, *lists)

    @classmethod
    def of_dense(
        cls, dense: npt.NDArray[Any], seq_q: int, seq_k: int, block_q: int, block_k: int
    ) -> BlockMask:
        """From a boolean [block rows, block columns]."""
        _refuse_too_many(int(np.count_nonzero(dense)), "kept blocks")
        rows, cols = np.nonzero(dense)
        return cls.of_pairs(
            seq_q, seq_k, block_q, block_k, rows.astype(np.int64), cols.astype(np.int64)
        )

    @classmethod
    def covering(
        cls, mask: IntervalMask, seq_q: int, seq_k: int, block_q: int, block_k: int
    ) -> BlockMask:
        """The blocks of which an interval mask keeps a pair; those of which it keeps every pair are full. NB: a ragged
        last block counts as full where all its true pairs are kept."""
        # A block is kept where its row's interval meets it. It is full where the last row's first key is
        # at or before its left side and the first row's last key at or past its right side.
        v = mask.key_blocks(seq_q, seq_k, block_q, block_k, 1)
        _refuse_too_many(int(v.count.sum()), "kept blocks")
        cols, rows = ranges(v.first, v.count)
        top = rows * block_q
        bottom = np.minimum(top + block_q, seq_q) - 1
        first_key = cols * block_k
        right = np.minimum(first_key + block_k, seq_k)
        full = (mask.first_key(bottom) <= first_key) & (mask.end_key(top, seq_k) >= right)
        return cls.of_pairs(seq_q, seq_k, block_q, block_k, rows, cols, full)

    @property
    def nnz(self) -> int:
        """Kept blocks."""
        return int(self.indices.size)

    @property
    def shape(self) -> tuple[int, int]:
        """(block rows, block columns)."""
        return -(-self.seq_q // self.block_q), -(-self.seq_k // self.block_k)

    @property
    def kept_fraction(self) -> float:
        """The papers' s: kept blocks over all blocks."""
        return self.nnz / (self.shape[0] * self.shape[1])

    @cached_property
    def rows(self) -> IntArray:
        """Block row of every entry."""
        return repeated(np.arange(self.shape[0], dtype=np.int64), np.diff(self.indptr))

    # What readers ask of a mask (iosim.problem.masks.mask.Mask).

    def keeps(self, queries: IntArray, keys: IntArray) -> BoolArray:
        """True where each pair lies in a kept block, found by searching the row's list."""
        # Row and column make one ascending number, so that one binary search finds every pair.
        width = self.shape[1]
        wanted = (queries // self.block_q) * width + keys // self.block_k
        kept_blocks = self.rows * width + self.indices
        if not kept_blocks.size:
            return np.zeros(wanted.shape, dtype=np.bool_)
        at = np.minimum(np.searchsorted(kept_blocks, wanted), kept_blocks.size - 1)
        return np.asarray(kept_blocks[at] == wanted, dtype=np.bool_)

    def kept_pairs(self, seq_q: int, seq_k: int) -> int:
        height = np.minimum(self.block_q, self.seq_q - self.rows * self.block_q)
        width = np.minimum(self.block_k, self.seq_k - self.indices * self.block_k)
        return int((height * width).sum())

    def kept_keys(self, seq_q: int, seq_k: int) -> int:
        some = np.unique(self.indices)
        return int(np.minimum(self.block_k, self.seq_k - some * self.block_k).sum())

    def kept_queries(self, seq_q: int, seq_k: int) -> int:
        some = np.flatnonzero(np.diff(self.indptr) > 0)
        return int(np.minimum(self.block_q, self.seq_q - some * self.block_q).sum())

    def key_blocks(
        self, rows: int, seq_k: int, block_q: int, block_k: int, pack: int
    ) -> BlockLists:
        """The tiles that overlap a kept block; `block_q` x `block_k` are the tile's sides."""
        # Block rows of the mask under each tile row: tiles may be taller or shorter than mask blocks.
        n = -(-rows // block_q)
        top = np.arange(n, dtype=np.int64) * block_q
        first = top // pack // self.block_q
        last = (np.minimum(top + block_q, rows) - 1) // pack // self.block_q
        block_rows, tile = ranges(first, last - first + 1)
        # Key tiles that each kept block spreads over, and their running sum: how many visits there are
        # is known, and refused where it is too many, before any list is made.
        length = np.diff(self.indptr)[block_rows]
        first_key, right = (
            self.indices * self.block_k,
            np.minimum((self.indices + 1) * self.block_k, self.seq_k),
        )
        spread = (right - 1) // block_k - first_key // block_k + 1
        upto = np.concatenate([[0], np.cumsum(spread)])[self.indptr]
        _refuse_too_many(int((upto[block_rows + 1] - upto[block_rows]).sum()), "visited tiles")
        # A (tile row, key tile) pair for every entry; repeats go when the lists are made.
        entry, owner = ranges(self.indptr[block_rows], length)
        owner = tile[owner]
        column, back = ranges((first_key // block_k)[entry], spread[entry])
        # The last kept key of a tile row is the largest of its block rows; entries ascend in a row.
        last_key = np.where(np.diff(self.indptr) > 0, np.append(right, 0)[self.indptr[1:] - 1], 0)
        end_row = np.zeros(n, dtype=np.int64)
        np.maximum.at(end_row, tile, last_key[block_rows])
        later = None if self.full is None else self.full[entry[back]]
        return BlockLists.of_pairs(n, -(-seq_k // block_k), owner[back], column, later, end_row)


@dataclass(frozen=True)
class CoveredMask(Mask):
    """The square blocks of which an interval mask keeps a pair, as `BlockMask.covering` lists them, but without lists:
    each block row keeps an interval of them. Time and memory follow the number of block rows.

    NB: key blocks are walked in order. FlexAttention takes blocks of which it keeps every pair last.

    Args:
        interval: what is covered.
        seq_q, seq_k: tokens that the mask is for; the last blocks may reach past them.
        block: side of a block.
    """

    interval: IntervalMask
    seq_q: int
    seq_k: int
    block: int

    @cached_property
    def ends(self) -> tuple[IntArray, IntArray]:
        """First block of every block row, and one past its last; both alike in a row that keeps none."""
        # The first row of a block row reaches furthest back, its last row furthest ahead.
        top = np.arange(0, self.seq_q, self.block, dtype=np.int64)
        bottom = np.minimum(top + self.block, self.seq_q) - 1
        first_key = self.interval.first_key(top)
        end_key = self.interval.end_key(bottom, self.seq_k)
        end = -(-end_key // self.block)
        return np.where(first_key < end_key, first_key // self.block, end), end

    @property
    def nnz(self) -> int:
        """Kept blocks."""
        first, end = self.ends
        return int((end - first).sum())

    @property
    def _rows(self) -> IntArray:
        """True queries of every block row."""
        top = np.arange(0, self.seq_q, self.block, dtype=np.int64)
        return np.minimum(self.block, self.seq_q - top)

    def keeps(self, queries: IntArray, keys: IntArray) -> BoolArray:
        first, end = (ends[queries // self.block] for ends in self.ends)
        column = keys // self.block
        return np.asarray((first <= column) & (column < end), dtype=np.bool_)

    def kept_pairs(self, seq_q: int, seq_k: int) -> int:
        first, end = self.ends
        keys = np.minimum(end * self.block, self.seq_k) - np.minimum(first * self.block, self.seq_k)
        return int((self._rows * keys).sum())

    def kept_keys(self, seq_q: int, seq_k: int) -> int:
        first, end = self.ends
        # +1 where an interval begins and -1 past its end: the running sum is how many rows keep a block.
        change = np.zeros(-(-self.seq_k // self.block) + 1, dtype=np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, end, -1)
        some = np.flatnonzero(np.cumsum(change)[:-1])
        return int(np.minimum(self.block, self.seq_k - some * self.block).sum())

    def kept_queries(self, seq_q: int, seq_k: int) -> int:
        first, end = self.ends
        return int(self._rows[end > first].sum())

    def key_blocks(self, rows: int, seq_k: int, block_q: int, block_k: int, pack: int) -> KeyBlocks:
        """The tiles that overlap a kept block; `block_q` x `block_k` are the tile's sides."""
        # Mask blocks of a tile's first and last query, then key tiles from the first to the last of them.
        top = np.arange(0, rows, block_q, dtype=np.int64)
        bottom = np.minimum(top + block_q, rows) - 1
        first = self.ends[0][top // pack // self.block]
        end = self.ends[1][bottom // pack // self.block]
        end_key = np.minimum(end * self.block, self.seq_k)
        last_tile = -(-end_key // block_k)
        first_tile = np.where(first < end, first * self.block // block_k, last_tile)
        return KeyBlocks(first_tile, last_tile, np.where(first < end, end_key, 0))


@dataclass(frozen=True)
class BlockLists(Visited):
    """Each query block has a list: block i visits indices[indptr[i]:indptr[i + 1]], in the order of the walk."""

    indptr: IntArray
    indices: IntArray

    @classmethod
    def of_pairs(
        cls,
        query_blocks: int,
        key_blocks: int,
        rows: IntArray,
        cols: IntArray,
        later: BoolArray | None,
        end_row: IntArray,
    ) -> BlockLists:
        """From (query block, key block) pairs, repeats allowed. Each list ascends, twice where some are walked
        `later` than the others."""
        indptr, cols, later = _by_row(query_blocks, key_blocks, rows, cols, later)
        # First and last key block of each list; an empty list keeps 0 and 0.
        some = np.diff(indptr) > 0
        first, end = np.zeros((2, query_blocks), dtype=np.int64)
        first[some] = cols[indptr[:-1][some]]
        end[some] = cols[indptr[1:][some] - 1] + 1
        lists = cls(first, end, end_row, indptr, cols)
        return (
            lists
            if later is None
            else replace(lists, indices=cols[np.lexsort((cols, later, lists.rows))])
        )

    @cached_property
    def rows(self) -> IntArray:
        """Query block of every entry."""
        return repeated(np.arange(self.first.size, dtype=np.int64), self.count)

    def by_query(self) -> Steps:
        return Steps(self.indptr[:-1], np.diff(self.indptr), self.indices)

    def by_key(self, key_blocks: int) -> Steps:
        """The transposed lists: ascending query blocks of each key block."""
        return _grouped(self.indices, key_blocks, self.rows)

    def by_split(self, per: int, splits: int) -> Steps:
        """Each list cut at multiples of `per` key blocks; a split keeps the order of the walk."""
        return _grouped(
            self.rows * splits + self.indices // per, self.first.size * splits, self.indices
        )

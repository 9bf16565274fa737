"""Masks as one interval of keys per query row, and what a tiling makes of them.

A query row i keeps the keys j with  i + offset - left <= j <= i + offset + right,  cut to [0, seq_k).
`None` for `left` or `right` means unbounded. Block-sparse masks are not intervals and do not live here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IntervalMask:
    """Keys kept around a shifted diagonal. `left` and `right` count keys beyond the diagonal, or None."""

    left: int | None = None
    right: int | None = None
    offset: int = 0

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
        return np.clip(row + (self.offset + self.right + 1), 0, seq_k)

    def dense(self, seq_q: int, seq_k: int) -> npt.NDArray[np.bool_]:
        """Boolean [seq_q, seq_k], True where kept. For tests and the executing reader: O(seq_q x seq_k)."""
        rows = np.arange(seq_q, dtype=np.int64)
        keys = np.arange(seq_k, dtype=np.int64)[None, :]
        kept = (keys >= self.first_key(rows)[:, None]) & (keys < self.end_key(rows, seq_k)[:, None])
        return np.asarray(kept, dtype=np.bool_)

    def kept_pairs(self, seq_q: int, seq_k: int) -> int:
        """Number of (query, key) pairs kept, of one head."""
        rows = np.arange(seq_q, dtype=np.int64)
        return int(np.maximum(self.end_key(rows, seq_k) - self.first_key(rows), 0).sum())


@dataclass(frozen=True, slots=True)
class KeyBlocks:
    """The key blocks that each query block visits: [first, end) per query block, and the last key row needed.

    Arrays have one entry per query block. A block is visited when at least one pair of a true query row in it is
    kept; an empty query block has first == end.
    """

    first: IntArray
    end: IntArray
    end_row: IntArray
    """One past the last key kept by any true row of the query block."""

    @property
    def count(self) -> IntArray:
        return self.end - self.first


def key_blocks(
    mask: IntervalMask, rows: int, seq_k: int, block_q: int, block_k: int, pack: int = 1
) -> KeyBlocks:
    """The visited key blocks of every query block. O(rows / block_q) time and memory.

    With `pack` query heads in the rows of a tile, row r belongs to query r // pack.
    """
    starts = np.arange(0, rows, block_q, dtype=np.int64)
    last = np.minimum(starts + block_q, rows) - 1
    first_key = mask.first_key(starts // pack)
    end_key = mask.end_key(last // pack, seq_k)
    end = -(-end_key // block_k)
    first = np.minimum(first_key // block_k, end)
    empty = first_key >= end_key
    first = np.where(empty, end, first)
    return KeyBlocks(first=first, end=end, end_row=np.where(empty, first * block_k, end_key))

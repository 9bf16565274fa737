"""Masks of rows that lie one after the other: those of sequences of different lengths, and those of several heads."""

from __future__ import annotations

import numpy as np

from iosim.base.arrays import repeated
from iosim.base.records import cached_property, dataclass
from iosim.problem.masks.blocks import BlockMask, ranges
from iosim.problem.masks.mask import (
    Axis,
    BoolArray,
    IntArray,
    IntervalMask,
    KeyBlocks,
    Mask,
    Visited,
)


@dataclass(frozen=True)
class PackedMask(Mask):
    """A mask for each of several sequences, one after the other in one batch (FlashAttention's cu_seqlens). Queries
    keep keys of their own sequence only. `seq_q`, `seq_k`: tokens of each sequence. `masks`: the mask of each, over its
    own tokens from 0."""

    seq_q: tuple[int, ...]
    seq_k: tuple[int, ...]
    masks: tuple[IntervalMask, ...]

    @cached_property
    def _starts(self) -> tuple[IntArray, IntArray]:
        """First query and first key of each sequence (cu_seqlens), and the totals."""
        starts = [
            np.concatenate([[0], np.cumsum(x)]).astype(np.int64) for x in (self.seq_q, self.seq_k)
        ]
        return starts[0], starts[1]

    def keeps(self, queries: IntArray, keys: IntArray) -> BoolArray:
        queries, keys = np.broadcast_arrays(queries, keys)
        starts_q, starts_k = self._starts
        # A pair is kept within one sequence alone, by that sequence's mask at the tokens' own places.
        of_q = np.searchsorted(starts_q, queries, side="right") - 1
        of_k = np.searchsorted(starts_k, keys, side="right") - 1
        inside = np.zeros(queries.shape, dtype=np.bool_)
        for n, mask in enumerate(self.masks):
            here = (of_q == n) & (of_k == n)
            inside[here] = mask.keeps(queries[here] - starts_q[n], keys[here] - starts_k[n])
        return inside

    def _each(self) -> list[tuple[IntervalMask, int, int]]:
        return list(zip(self.masks, self.seq_q, self.seq_k, strict=True))

    def kept_pairs(self, seq_q: int, seq_k: int) -> int:
        return sum(mask.kept_pairs(q, k) for mask, q, k in self._each())

    def kept_keys(self, seq_q: int, seq_k: int) -> int:
        return sum(mask.kept_keys(q, k) for mask, q, k in self._each())

    def kept_queries(self, seq_q: int, seq_k: int) -> int:
        return sum(mask.kept_queries(q, k) for mask, q, k in self._each())

    def query_axis(self, rows: int, pack: int) -> Axis:
        return Axis(tuple(q * pack for q in self.seq_q))

    def key_axis(self, seq_k: int) -> Axis:
        return Axis(self.seq_k)

    def key_blocks(self, rows: int, seq_k: int, block_q: int, block_k: int, pack: int) -> KeyBlocks:
        """The key blocks of every sequence's query blocks, both numbered through as the grid's are. A grid block past
        its sequence's end visits nothing."""
        # A grid has as many blocks for each sequence as the longest needs. Sequences of equal lengths are laid out
        # once; the shorter ones' last block is repeated with no keys (first = end), up to the grid's size.
        each_q = self.query_axis(rows, pack).blocks_each(block_q)
        each_k = self.key_axis(seq_k).blocks_each(block_k)
        parts: dict[tuple[IntervalMask, int, int], IntArray] = {}
        for part in self._each():
            if part not in parts:
                mask, q, k = part
                v = mask.key_blocks(q * pack, k, block_q, block_k, pack)
                past = (0, each_q - v.count.size)
                first, end, end_row = parts[part] = np.pad(
                    (v.first, v.end, v.end_row), ((0, 0), past), mode="edge"
                )
                first[v.count.size :] = end[v.count.size :]
                end_row[v.count.size :] = end[v.count.size :] * block_k
        first, end, end_row = np.concatenate([parts[part] for part in self._each()], axis=1)
        # Key blocks are numbered through: a sequence's begin where the one before it ends in the grid.
        base = repeated(np.arange(len(self.seq_q), dtype=np.int64) * each_k, each_q)
        return KeyBlocks(first + base, end + base, end_row + base * block_k, base)


@dataclass(frozen=True)
class HeadsInTurn(Mask):
    """The mask of rows in which several heads of `seq_q` queries lie one after the other; `of_head` is each one's."""

    of_head: Mask
    seq_q: int

    def keeps(self, queries: IntArray, keys: IntArray) -> BoolArray:
        return self.of_head.keeps(queries % self.seq_q, keys)

    def kept_pairs(self, seq_q: int, seq_k: int) -> int:
        return seq_q // self.seq_q * self.of_head.kept_pairs(self.seq_q, seq_k)

    def kept_keys(self, seq_q: int, seq_k: int) -> int:
        return self.of_head.kept_keys(self.seq_q, seq_k)

    def kept_queries(self, seq_q: int, seq_k: int) -> int:
        return seq_q // self.seq_q * self.of_head.kept_queries(self.seq_q, seq_k)

    def key_axis(self, seq_k: int) -> Axis:
        return self.of_head.key_axis(seq_k)

    def key_blocks(self, rows: int, seq_k: int, block_q: int, block_k: int, pack: int) -> Visited:
        """Those of one head, for each of `pack` heads; its queries are whole blocks of `block_q`."""
        # One head's blocks as pairs of rows and columns, moved down by a head's query blocks for each further head.
        steps = self.of_head.key_blocks(self.seq_q, seq_k, block_q, block_k, 1).by_query()
        at, block = ranges(steps.first, steps.count)
        key = at if steps.indices is None else steps.indices[at]
        heads = np.arange(pack, dtype=np.int64)[:, None] * (self.seq_q // block_q)
        pairs = ((heads + block).reshape(-1), np.tile(key, pack))
        return BlockMask.of_pairs(rows, seq_k, block_q, block_k, *pairs).key_blocks(
            rows, seq_k, block_q, block_k, 1
        )

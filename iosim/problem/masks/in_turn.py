"""The mask of rows in which heads lie one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iosim.problem.masks.blocks import BlockMask, ranges
from iosim.problem.masks.mask import Axis, BoolArray, IntArray, Mask, Visited


@dataclass(frozen=True)
class HeadsInTurn:
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

    def leaves_rows_empty(self, seq_q: int, seq_k: int) -> bool:
        return self.of_head.leaves_rows_empty(self.seq_q, seq_k)

    def query_axis(self, rows: int, pack: int) -> Axis:
        return Axis((rows,))

    def key_axis(self, seq_k: int) -> Axis:
        return self.of_head.key_axis(seq_k)

    def key_blocks(self, rows: int, seq_k: int, block_q: int, block_k: int, pack: int) -> Visited:
        """Those of one head, for each of `pack` heads; its queries are whole blocks of `block_q`."""
        steps = self.of_head.key_blocks(self.seq_q, seq_k, block_q, block_k, 1).by_query()
        at, block = ranges(steps.first, steps.count)
        key = at if steps.indices is None else steps.indices[at]
        heads = np.arange(pack, dtype=np.int64)[:, None] * (self.seq_q // block_q)
        pairs = ((heads + block).reshape(-1), np.tile(key, pack))
        return BlockMask.of_pairs(rows, seq_k, block_q, block_k, *pairs).key_blocks(rows, seq_k, block_q, block_k, 1)

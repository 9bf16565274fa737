"""A mask: a causal window that also keeps the first tokens, the attention sinks (StreamingLLM, arXiv 2309.17453)."""

from __future__ import annotations

import numpy as np

from iosim.problem.masks import BlockMask


def window_with_sinks(seq: int, window: int, sinks: int, block: int) -> BlockMask:
    """Blocks of `block` x `block` tokens in which a query i keeps a key j with i - window <= j <= i, or j < sinks and
    j <= i. A block is kept whole."""
    block_rows = np.arange(-(-seq // block))
    row, column = np.meshgrid(block_rows, block_rows, indexing="ij")
    reaches = row * block - (column * block + block - 1) <= window
    kept_blocks = (column <= row) & (reaches | (column * block < sinks))
    rows, columns = np.nonzero(kept_blocks)
    return BlockMask.of_pairs(seq, seq, block, block, rows, columns)

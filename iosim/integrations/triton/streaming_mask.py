"""The mask of streaming attention: queries in chunks, each of which keeps its own chunk of keys and some before it.

    mask = streaming_mask(seq=16384, context=128, contexts_back=3)
    predict(AttentionProblem(heads=16, seq_q=16384, head_dim=64, mask="blocks", mask_blocks=mask), "triton-streaming")

alexdremov/kernels, src/streaming_attention/kernel.py (CONTEXT_SIZE, CONTEXTS_BACK).
"""

from __future__ import annotations

import numpy as np

from iosim.base.fields import whole
from iosim.problem.fields import MAX_TOKENS
from iosim.problem.masks import BlockMask


def streaming_mask(seq: int, context: int, contexts_back: int) -> BlockMask:
    """Query i keeps key j where 0 <= i // context - j // context <= contexts_back.

    Args:
        seq: queries, and as many keys.
        context: tokens of a chunk.
        contexts_back: chunks before its own that a query keeps.

    Raises:
        InputError: a value out of range.
    """
    for name, value, low in (
        ("seq", seq, 1),
        ("context", context, 1),
        ("contexts_back", contexts_back, 0),
    ):
        whole(name, value, low, MAX_TOKENS)
    chunks = -(-seq // context)
    back = min(contexts_back, chunks - 1)
    rows = np.repeat(np.arange(chunks, dtype=np.int64), back + 1)
    cols = rows - np.tile(np.arange(back + 1, dtype=np.int64), chunks)
    in_window = cols >= 0
    return BlockMask.of_pairs(seq, seq, context, context, rows[in_window], cols[in_window])

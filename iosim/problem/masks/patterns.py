"""Patterns of kept blocks that papers use, as lists. All are square: as many queries as keys.

A block is kept whole when the pattern keeps any pair in it.
"""

from __future__ import annotations

import math

import numpy as np

from iosim.base.errors import InputError
from iosim.problem.masks.blocks import BlockMask, _refuse_too_many, ranges
from iosim.problem.masks.mask import IntArray


def _band(first: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """(rows, columns) of the blocks [first, end) of each row."""
    _refuse_too_many(int((end - first).sum()), "kept blocks")
    cols, rows = ranges(first, end - first)
    return rows, cols


def _joined(seq: int, block: int, *parts: tuple[IntArray, IntArray]) -> BlockMask:
    rows, cols = (np.concatenate(x) for x in zip(*parts, strict=True))
    return BlockMask.of_pairs(seq, seq, block, block, rows, cols)


def butterfly(seq: int, block: int, largest: int | None = None) -> BlockMask:
    """The fixed ("flat block") butterfly: block i keeps itself and the blocks i XOR 2^t.

    The blocks of the butterfly factors of all strides up to `largest` together (Pixelated Butterfly, arXiv 2112.00029;
    the pattern of block-sparse FlashAttention, arXiv 2205.14135, section 3.3): log2(n) + 1 blocks a row of n. Where n
    is no power of two, the pattern of the next one, cut.

    Args:
        largest: the largest stride, in blocks; by default all.
    """
    n = -(-seq // block)
    i = np.arange(n, dtype=np.int64)
    parts = [(i, i)]
    stride = 1
    while stride < n and (largest is None or stride <= largest):
        j = i ^ stride
        parts.append((i[j < n], j[j < n]))
        stride *= 2
    return _joined(seq, block, *parts)


def strided(seq: int, block: int, stride: int | None = None) -> BlockMask:
    """Sparse Transformer's strided attention (arXiv 1904.10509), its two heads merged into one: of the blocks up to its
    own, a block keeps the last `stride` and every `stride`-th.

    Args:
        stride: in blocks; by default the square root of their number, rounded up.
    """
    n = -(-seq // block)
    step = math.isqrt(n - 1) + 1 if stride is None else stride
    i = np.arange(n, dtype=np.int64)
    hops = i // step + 1
    _refuse_too_many(int(hops.sum()), "kept blocks")
    hop, rows = ranges(np.zeros(n, dtype=np.int64), hops)
    return _joined(seq, block, _band(np.maximum(i - step + 1, 0), i + 1), (rows, rows - hop * step))


def window_global(seq: int, block: int, window: int, global_tokens: int) -> BlockMask:
    """A window of `window` keys to either side, and `global_tokens` first tokens that see and are seen by all
    (Longformer, arXiv 2004.05150, section 3.1; BigBird without its random blocks, arXiv 2007.14062, section 2)."""
    n = -(-seq // block)
    i = np.arange(n, dtype=np.int64)
    reach = -(-window // block)  # blocks to either side that hold a key within the window
    parts = [_band(np.maximum(i - reach, 0), np.minimum(i + reach + 1, n))]
    g = min(-(-global_tokens // block), n)
    if g:
        every = np.zeros(n, dtype=np.int64)
        parts.append(_band(every, every + g))
        rows, cols = _band(every[:g], every[:g] + n)
        parts.append((rows, cols))
    return _joined(seq, block, *parts)


def window_first(seq: int, block: int, window: int, first_tokens: int) -> BlockMask:
    """A causal window of `window` keys back, and the first tokens kept for all after them (StreamingLLM's attention
    sinks, arXiv 2309.17453, section 3.2)."""
    i = np.arange(-(-seq // block), dtype=np.int64)
    reach, first = -(-window // block), -(-first_tokens // block)
    return _joined(
        seq, block, _band(np.maximum(i - reach, 0), i + 1), _band(np.zeros_like(i), np.minimum(i + 1, first))
    )


def refuse_rectangle(word: str, seq_q: int, seq_k: int) -> None:
    """A pattern is made for as many queries as keys. Raises InputError: there are not."""
    if seq_q != seq_k:
        raise InputError(f"`mask` '{word}' with `seq_q` {seq_q} and `seq_k` {seq_k}: the pattern is square; accepted: "
                         "as many queries as keys, or mask 'blocks' from a file")  # fmt: skip

"""Irregular domains: masks that are lists of blocks, and sequences of different lengths in one batch."""

from iosim.sparse.blocks import BlockMask
from iosim.sparse.files import load_block_mask, save_block_mask
from iosim.sparse.packed import PackedMask
from iosim.sparse.patterns import butterfly, strided, window_global

__all__ = [
    "BlockMask",
    "PackedMask",
    "butterfly",
    "load_block_mask",
    "save_block_mask",
    "strided",
    "window_global",
]

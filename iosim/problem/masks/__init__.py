"""Irregular domains: masks that are lists of blocks, and sequences of different lengths in one batch."""

from iosim.problem.masks.blocks import BlockMask
from iosim.problem.masks.packed import PackedMask
from iosim.problem.masks.words import butterfly, strided, window_first, window_global

__all__ = ["BlockMask", "PackedMask", "butterfly", "strided", "window_first", "window_global"]

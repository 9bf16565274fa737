"""What PyTorch's caching allocator (`iosim.readers.replay.caching_allocator`) hands out and holds for a timeline.

NB: cuBLAS' workspace, the context of the CUDA driver and what is left of the first step are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iosim.readers.replay.caching_allocator import MIB, Block, CachingAllocator

__all__ = ["MIB", "AllocatorPeaks", "CachingAllocator", "peaks"]


@dataclass(frozen=True)
class AllocatorPeaks:
    """`blocks_bytes`: of blocks in use, at most (`memory_allocated`); `reserved_bytes`: of all segments at the end."""

    blocks_bytes: int
    reserved_bytes: int


def peaks(requests: Iterable[tuple[str, int]]) -> AllocatorPeaks:
    """What the allocator hands out and holds for a timeline's requests (`Timeline.requests`)."""
    allocator = CachingAllocator()
    live: dict[str, Block] = {}
    for name, size in requests:
        if size > 0:
            live[name] = allocator.allocate(size)
        elif size < 0:
            allocator.release(live.pop(name))
    return AllocatorPeaks(allocator.most, allocator.reserved)

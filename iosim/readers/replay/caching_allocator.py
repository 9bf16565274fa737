"""The CUDA caching allocator of PyTorch: blocks, segments, fragmentation.

Rules and constants of c10/cuda/CUDACachingAllocator.cpp at their defaults: sizes are rounded up to 512 bytes; requests
up to 1 MiB come from segments of 2 MiB, those under 10 MiB from segments of 20 MiB, larger ones from a segment of their
own, rounded up to 2 MiB. The smallest free block that fits is taken, at the lowest address; what is left of it stays a
free block when it is at least 512 bytes (small) or more than 1 MiB (large). Freed neighbours of one segment become one.
NB: segments are never given back, which PyTorch does before it reports out of memory.
"""

from __future__ import annotations

from iosim.base.records import dataclass, field

MIB = 1 << 20
ROUND_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MIDDLE_BYTES = 10 * MIB
MIDDLE_SEGMENT_BYTES = 20 * MIB
SEGMENT_ROUND_BYTES = 2 * MIB


@dataclass(eq=False)
class Block:
    """A piece of a segment, in use or free."""

    address: int
    size: int
    small: bool
    free: bool = True
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)


class CachingAllocator:
    def __init__(self) -> None:
        self.in_use = 0
        self.most = 0
        self.reserved = 0
        self.free_blocks: list[Block] = []
        self._address = 0

    def allocate(self, size: int) -> Block:
        size = max(ROUND_BYTES, _up(size, ROUND_BYTES))
        small = size <= SMALL_BYTES
        fitting = [b for b in self.free_blocks if b.small is small and b.size >= size]
        block = min(fitting, key=lambda b: (b.size, b.address)) if fitting else self._segment(size, small)
        self.free_blocks.remove(block)
        left = block.size - size
        if left >= ROUND_BYTES if small else left > SMALL_BYTES:
            rest = Block(block.address + size, left, small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self.free_blocks.append(rest)
        block.free = False
        self.in_use += block.size
        self.most = max(self.most, self.in_use)
        return block

    def release(self, block: Block) -> None:
        self.in_use -= block.size
        block.free = True
        after, before = block.after, block.before
        if after is not None and after.free:
            self.free_blocks.remove(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        if before is not None and before.free:
            before.size += block.size
            before.after = block.after
            if block.after is not None:
                block.after.before = before
            return
        self.free_blocks.append(block)

    def _segment(self, size: int, small: bool) -> Block:
        if small:
            whole = SMALL_SEGMENT_BYTES
        else:
            whole = MIDDLE_SEGMENT_BYTES if size < MIDDLE_BYTES else _up(size, SEGMENT_ROUND_BYTES)
        block = Block(self._address, whole, small)
        self._address += whole
        self.reserved += whole
        self.free_blocks.append(block)
        return block


def _up(size: int, step: int) -> int:
    return -(-size // step) * step

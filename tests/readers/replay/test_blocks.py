"""The caching allocator's blocks, by hand."""

from __future__ import annotations

from iosim.readers.replay.blocks import MIB, CachingAllocator


def test_caching_allocator_by_hand() -> None:
    a = CachingAllocator()
    small = a.allocate(1)
    assert (a.in_use, a.reserved) == (512, 2 * MIB)
    big = a.allocate(3 * MIB)  # a segment of 20 MiB, of which 17 stay free
    assert (a.in_use, a.reserved) == (512 + 3 * MIB, 22 * MIB)
    second = a.allocate(16 * MIB + 512)  # fits; what is left is under 1 MiB and goes with it
    assert (a.in_use, a.reserved) == (512 + 20 * MIB, 22 * MIB)
    a.release(big)
    segment = a.allocate(
        11 * MIB
    )  # more than the 3 MiB free: a segment of its own, rounded to 2 MiB
    assert a.reserved == 34 * MIB
    for block in (second, segment, small):
        a.release(block)
    assert a.in_use == 0
    assert sorted(b.size for b in a.free_blocks) == [
        2 * MIB,
        12 * MIB,
        20 * MIB,
    ]  # neighbours have joined

"""What a kernel that spills registers does at each step of its key loop, from the size of a thread's stack frame.

Each word of the frame is stored and loaded once a step. Counted so for 28 tiles of iosim's own kernel on an H200 that
spill 8 to 316 bytes (`local_read`, `local_write` in kernels/measurements/h200_iosim_kernels.csv): the median of loads
is 0.98 of that and of stores 0.97, and every stored byte reaches the L2. Nothing is fitted.
"""

from __future__ import annotations

from iosim.kernel.kernel import Spill

WORD_BYTES = 4
SOURCE = "the compiler's report: each word of a thread's stack frame is stored and loaded once a step"
SMALL_SPILL_BYTES = 16
FRAME_OF_STORES = 0.5
"""Frame over the bytes that ptxas says are spilled by stores, of which those before the loop are part: 0.40 to 0.67 in
the builds of flash_fwd for cc 9.0 that spill more than `SMALL_SPILL_BYTES`; a smaller spill is stored once."""


def spill_of_frame(frame_bytes: float) -> Spill | None:
    """The spill of a kernel whose threads have such a frame; None where they have none."""
    if not frame_bytes:
        return None
    accesses = 2 * frame_bytes / WORD_BYTES
    return Spill(write_per_pair=frame_bytes, accesses_per_pair=accesses, source=SOURCE, frame=frame_bytes)


def frame_of_stores(spill_store_bytes: int) -> int:
    """Bytes of a thread's stack frame, where only the bytes of its spilling stores are known."""
    if spill_store_bytes <= SMALL_SPILL_BYTES:
        return spill_store_bytes
    return round(spill_store_bytes * FRAME_OF_STORES / WORD_BYTES) * WORD_BYTES

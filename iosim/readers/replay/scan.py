"""The scans that a microbenchmark runs to find an L2's capacity, played through the replay.

Every CTA (one an SM) reads its part of a footprint a few times over. "shared_scan": all CTAs read all of it, in step;
"private_scan": each CTA re-reads its own slice. experiments/measurements/l2_capacity_curve.csv holds both, measured.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.readers.replay.engine import L2, Ctas
from iosim.readers.replay.l2 import L2Model, model
from iosim.readers.replay.lowering import LoweredLaunch, Template

PATTERNS = ("shared_scan", "private_scan")
OBJECT_BYTES = {"shared_scan": 16384, "private_scan": 8192}
"""What a CTA of 1,024 threads reads at a time, 16 bytes a thread, and half of it so that short slices divide evenly."""


def scan(
    gpu: HardwareProfile | L2Model, footprint_bytes: int, pattern: str, passes: int = 4, ctas: int = 132
) -> tuple[int, int]:
    """(bytes read from HBM, bytes that crossed between partitions) of one scan from an empty L2.

    Args:
        gpu: a profile, or the L2 model to try.
        ctas: one runs on each SM.

    Raises:
        InputError: a pattern that is not in PATTERNS, or a footprint that does not give every CTA a tile.
    """
    if pattern not in PATTERNS:
        raise InputError(f"pattern '{pattern}' is not known; accepted: {', '.join(PATTERNS)}")
    each = OBJECT_BYTES[pattern]
    objects = footprint_bytes // each
    shared = pattern == "shared_scan"
    if min(passes, ctas) < 1 or objects < (1 if shared else ctas):
        raise InputError(f"a scan of {footprint_bytes} bytes by {ctas} CTAs, {passes} times; accepted: at least one "
                         f"CTA, one pass and {each} bytes a CTA")  # fmt: skip
    l2_of_gpu = gpu if isinstance(gpu, L2Model) else model(gpu)
    begin = np.zeros(ctas + 1, dtype=np.int64) if shared else np.arange(ctas + 1, dtype=np.int64) * objects // ctas
    size = np.full(ctas, objects, dtype=np.int64) if shared else np.diff(begin)
    order = [np.tile(np.arange(begin[c], begin[c] + size[c]), passes) for c in range(1 if shared else ctas)]
    zero = np.zeros(ctas, dtype=np.int32)
    launch = LoweredLaunch(
        name=pattern,
        first=(passes * begin[:-1]).astype(np.int32),
        count=(passes * size).astype(np.int32),
        prologue=(),
        loop=(Template("data", 0, zero, coef=1),),
        epilogue=(),
        down=zero.astype(np.uint8),
        head=zero,
        block=zero,
        indices=np.concatenate(order).astype(np.int32),
    )
    l2 = L2(l2_of_gpu, np.full(objects, each, dtype=np.int32), np.zeros(objects, dtype=np.uint8))
    l2.replay(launch, Ctas(slots=ctas, sms=ctas))
    return int(l2.state.hbm_read[0]), int(l2.state.fabric)


def with_capacity(l2: L2Model, l2_bytes: int, fraction: float) -> L2Model:
    """The model with another effective capacity."""
    sets = int(l2_bytes * fraction) // l2.partitions // (l2.ways * l2.line_bytes)
    return replace(l2, sets=max(1, sets))

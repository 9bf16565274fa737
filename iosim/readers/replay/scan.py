"""The scans that a microbenchmark runs to find an L2's capacity, played through the replay.

Every CTA (one an SM) reads its part of a footprint a few times over. "shared_scan": all CTAs read all of it, in step;
"private_scan": each CTA re-reads its own slice. experiments/measurements/l2_capacity_curve.csv holds both, measured.
Others published scans whose CTAs take the blocks of a footprint in turn, again and again (`block_scan`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.hardware.profile import HardwareProfile
from iosim.readers.replay.engine import L2, Ctas
from iosim.readers.replay.l2 import L2Model, model
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.templates import Template

PATTERNS = ("shared_scan", "private_scan")
OBJECT_BYTES = {"shared_scan": 16384, "private_scan": 8192}
"""What a CTA of 1,024 threads reads at a time, 16 bytes per thread, and half of it so that short slices divide
evenly."""


def scan(
    gpu: HardwareProfile | L2Model,
    footprint_bytes: int,
    pattern: str,
    passes: int = 4,
    ctas: int = 132,
) -> tuple[int, int]:
    """(bytes read from HBM, bytes that crossed between partitions) of one scan from an empty L2. `gpu`: a profile, or
    the L2 model to try. `ctas`: one runs on each SM. Raises InputError: a pattern that is not in PATTERNS, or a
    footprint that does not give every CTA a tile."""
    if pattern not in PATTERNS:
        raise InputError(f"pattern '{pattern}' is not known; accepted: {', '.join(PATTERNS)}")
    object_bytes = OBJECT_BYTES[pattern]
    objects = footprint_bytes // object_bytes
    shared = pattern == "shared_scan"
    if min(passes, ctas) < 1 or objects < (1 if shared else ctas):
        accepted = f"at least one CTA, one pass and {object_bytes} bytes per CTA"
        raise InputError(
            f"a scan of {footprint_bytes} bytes by {ctas} CTAs, {passes} times; accepted: {accepted}"
        )
    l2_of_gpu = gpu if isinstance(gpu, L2Model) else model(gpu)
    # A shared scan has one list of objects for all CTAs; a private one a slice for each. Lists of
    # indices go over their part `passes` times.
    begin = (
        np.zeros(ctas + 1, dtype=np.int64)
        if shared
        else np.arange(ctas + 1, dtype=np.int64) * objects // ctas
    )
    size = np.full(ctas, objects, dtype=np.int64) if shared else np.diff(begin)
    order = [
        np.tile(np.arange(begin[c], begin[c] + size[c]), passes)
        for c in range(1 if shared else ctas)
    ]
    launch = replace(
        _reading(pattern, passes * begin[:-1], passes * size),
        indices=np.concatenate(order).astype(np.int32),
    )
    l2 = empty_l2(l2_of_gpu, objects, object_bytes)
    l2.replay(launch, Ctas(slots=ctas, sms=ctas))
    return int(l2.state.hbm_read[0]), int(l2.state.fabric)


def block_scan(
    l2_of_gpu: L2Model, footprint_bytes: int, block_bytes: int, sms: int, ctas: int, passes: int = 6
) -> int:
    """Bytes read from HBM, from an empty L2, where `ctas` CTAs run at once, each reads one block of a footprint, and
    the next to start takes the next block, round and round, `passes` times in all. Raises InputError: a footprint of
    less than one block."""
    object_bytes = OBJECT_BYTES["private_scan"]
    blocks, steps = footprint_bytes // block_bytes, block_bytes // object_bytes
    if min(blocks, steps) < 1:
        raise InputError(
            f"blocks of {block_bytes} bytes in {footprint_bytes}; accepted: at least one of {object_bytes} bytes"
        )
    count = blocks * passes
    launch = _reading("block_scan", np.arange(count) % blocks * steps, np.full(count, steps))
    l2 = empty_l2(l2_of_gpu, blocks * steps, object_bytes)
    l2.replay(
        launch,
        Ctas(slots=min(ctas, count), sms=sms, sm_spread_ppm=round(1e6 * l2_of_gpu.sm_spread)),
    )
    return int(l2.state.hbm_read[0])


def _reading(
    name: str, first: npt.NDArray[np.int64], count: npt.NDArray[np.int64]
) -> LoweredLaunch:
    zero = np.zeros(first.size, dtype=np.int32)
    return LoweredLaunch(
        name,
        first.astype(np.int32),
        count.astype(np.int32),
        (),
        (Template("data", 0, zero, coef=1),),
        (),
        zero.astype(np.uint8),
        zero,
        zero,
    )


def empty_l2(l2_of_gpu: L2Model, objects: int, object_bytes: int) -> L2:
    return L2(
        l2_of_gpu, np.full(objects, object_bytes, dtype=np.int32), np.zeros(objects, dtype=np.uint8)
    )


def with_capacity(l2: L2Model, l2_bytes: int, fraction: float) -> L2Model:
    sets = int(l2_bytes * fraction) // l2.partitions // (l2.ways * l2.line_bytes)
    return replace(l2, sets=max(1, sets))

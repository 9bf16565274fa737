"""The L2 as the replay models it: sets, ways and partitions from a hardware profile, and the lines that are sampled.

A cache of tens of megabytes has tens of thousands of sets that behave alike, so the replay follows a regular sample of
them line by line; the engine replaces the least recently used, and every sampled line stands for its neighbours. Which
set a line falls into is a hash: pages take turns between groups of sets, the lines of a group's pages follow each other
in its sets, and runs of pages are shifted against each other. A share of blocks falls elsewhere (`displaced`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from iosim.hardware import HardwareProfile

DEFAULT_WAYS = 20
DEFAULT_CAPACITY_FRACTION = 1.025
DEFAULT_DISPLACED_FRACTION = 0.0
DEFAULT_DIRTY_FRACTION = 0.478
DEFAULT_SM_SPREAD = 0.002
DEFAULT_SIDE_ENDS = (16, 64, 114, 132)
DEFAULT_NEAR_CYCLES = 287.0
DEFAULT_DRAM_CYCLES = 682.0
LEAST_SETS = 16
"""Sets of a partition that are followed at least."""
BLOCK_LINES = 128
"""Lines of neighbouring addresses that the hash keeps together."""
KERNELS_SHARE, KERNELS_DISPLACED = 0.94, 0.03
"""What launches find of the capacity that scans show, and their share of blocks whose place in the sets is their own:
tensors lie less evenly in the sets than one long buffer. Fitted on the odd-numbered calls of the recorded tables."""
PAGE_BYTES = 2 << 20
"""Of device memory: what a GPU maps at a time."""
RUN_PAGES = 16
"""Pages that follow each other in the sets; from one run of pages to the next they are shifted by a hash."""


@dataclass(frozen=True)
class L2Model:
    """Attributes:
    partitions: 1 or 2; `sets` and `ways` are those of one partition.
    displaced: share of blocks of lines whose place in the sets is their own.
    dirty_ways: most dirty lines of a set, on average over the sets.
    page_groups: groups of sets among which pages of PAGE_BYTES take turns; 1: a page fills all sets.
    foreign_dirty_bytes: dirty lines of others in the L2 at a cold start.
    launch_fetch_bytes: what a launch reads beside its tensors, its code and parameters.
    sm_spread: SMs differ in speed by up to this fraction either way.
    side_ends: in the order in which SMs get CTAs, how many there are up to each change of side.
    """

    partitions: int
    sets: int
    ways: int
    line_bytes: int
    displaced: float
    dirty_ways: float
    page_groups: int
    foreign_dirty_bytes: int
    launch_fetch_bytes: int
    sm_spread: float
    side_ends: tuple[int, ...]
    dram_bytes_per_s: float
    l2_bytes_per_s: float
    l2_latency_s: float
    far_latency_s: float
    dram_latency_s: float


def model(profile: HardwareProfile) -> L2Model:
    """The model for a GPU. What a profile does not state is taken from the H200's, the one GPU measured so far.

    Raises:
        InputError: the profile does not know the size of its L2 or its memory bandwidth.
    """
    partitions = int(profile.l2_partitions or 1)
    ways = profile.l2_ways or DEFAULT_WAYS
    line = profile.line_bytes
    fraction = _or(profile.l2_effective_capacity_fraction, DEFAULT_CAPACITY_FRACTION)
    size = int(profile.need("l2_bytes") * fraction) // partitions
    clock = float(profile.sustained_clock_hz or profile.boost_clock_hz or 1.5e9)
    near = _or(profile.l2_latency_near_cycles, DEFAULT_NEAR_CYCLES) / clock
    far = _or(profile.l2_latency_far_cycles, near * clock) / clock
    dram = _or(profile.dram_latency_cycles, DEFAULT_DRAM_CYCLES) / clock
    bandwidth = profile.dram_bandwidth_measured_bytes_per_s or profile.need("dram_bandwidth_bytes_per_s")
    return L2Model(
        partitions=partitions,
        sets=max(1, size // (ways * line)),
        ways=ways,
        line_bytes=line,
        displaced=_or(profile.l2_displaced_fraction, DEFAULT_DISPLACED_FRACTION),
        dirty_ways=max(1.0, ways * _or(profile.l2_dirty_fraction, DEFAULT_DIRTY_FRACTION) / fraction),
        page_groups=int(profile.l2_page_groups or partitions),
        foreign_dirty_bytes=int(_or(profile.l2_foreign_dirty_bytes, 0)),
        launch_fetch_bytes=int(_or(profile.launch_fetch_bytes, 0)),
        sm_spread=_or(profile.sm_speed_spread_fraction, DEFAULT_SM_SPREAD),
        side_ends=profile.l2_side_ends or DEFAULT_SIDE_ENDS,
        dram_bytes_per_s=float(bandwidth),
        l2_bytes_per_s=_l2_bandwidth(profile),
        l2_latency_s=near,
        far_latency_s=max(0.0, far - near),
        dram_latency_s=max(0.0, dram - near),
    )


def for_kernels(scanned: L2Model) -> L2Model:
    """The L2 as a chain's launches find it: less room than scans do, and less evenly filled."""
    sets = max(1, int(scanned.sets * KERNELS_SHARE))
    dirty = min(float(scanned.ways), scanned.dirty_ways / KERNELS_SHARE)
    return replace(scanned, sets=sets, dirty_ways=dirty, displaced=max(scanned.displaced, KERNELS_DISPLACED))


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _l2_bandwidth(profile: HardwareProfile) -> float:
    known = profile.l2_read_bandwidth_measured_bytes_per_s or profile.l2_read_bandwidth_bytes_per_s
    return float(known or 4 * profile.need("dram_bandwidth_bytes_per_s"))


def sm_partitions(sms: int, partitions: int, ends: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Partition of each SM, in the order in which CTAs are dealt out.

    A GPU deals CTAs cluster of SMs by cluster, and a whole cluster lies on one side: SMs up to ends[0] lie on side 0,
    those up to ends[1] on side 1, and so on in turn. `ends` is scaled to the number of SMs.
    """
    if partitions < 2:
        return np.zeros(sms, dtype=np.uint8)
    scaled = np.rint(np.asarray(ends) * (sms / ends[-1])).astype(np.int64)
    return (np.searchsorted(scaled, np.arange(sms), side="right") % partitions).astype(np.uint8)


@dataclass(frozen=True)
class Samples:
    """The sampled lines, in address order: those of object o are [first[o], first[o + 1])."""

    stride: int
    sets: int
    first: npt.NDArray[np.int32]
    object: npt.NDArray[np.int32]
    set: npt.NDArray[np.int32]
    home: npt.NDArray[np.uint8]


def _mix(x: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.uint64]:
    """A fixed integer hash (splitmix64's finaliser), the same on every machine."""
    with np.errstate(over="ignore"):
        x = x + np.uint64((salt * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def sample_lines(
    model: L2Model, size: npt.NDArray[np.int32], per_object: float = 1.0, least_sets: float = LEAST_SETS
) -> Samples:
    """Sampled lines of objects that lie one after the other, each from a line's start.

    The stride between sampled sets is chosen so that an object of middling size holds about `per_object` samples, and
    more where fewer than `least_sets` sets of a partition would be followed.
    """
    lines = -(-size.astype(np.int64) // model.line_bytes)
    start = np.zeros(size.size + 1, dtype=np.int64)
    np.cumsum(lines, out=start[1:])
    total = int(start[-1])
    weight = np.sort(lines)
    middling = int(weight[np.searchsorted(np.cumsum(weight), total // 2)]) if total else 1
    stride = max(1, min(middling / per_object, model.sets / least_sets))
    groups = max(1, min(model.page_groups, model.sets))
    sets = max(1, int(model.sets / groups / stride))
    stride = model.sets // groups // sets
    whole = sets * stride
    blocks = np.arange(-(-total // BLOCK_LINES), dtype=np.int64)
    begin = blocks * BLOCK_LINES
    page = PAGE_BYTES // model.line_bytes
    region = begin // page
    run = (region // RUN_PAGES).astype(np.uint64)
    group = (region + (_mix(run, 5) >> np.uint64(40)).astype(np.int64)) % groups
    along = (region // groups - region) * page  # from a line's address to its place among the lines of its group
    shift = along + (_mix(run, 1) % np.uint64(whole)).astype(np.int64)
    own = _mix(blocks.astype(np.uint64), 2)
    moved = (own >> np.uint64(11)).astype(np.float64) / 2.0**53 < model.displaced
    shift = np.where(moved, (_mix(blocks.astype(np.uint64), 3) % np.uint64(whole)).astype(np.int64), shift)
    first = begin + (-(begin + shift)) % stride
    count = -(-BLOCK_LINES // stride)
    line = first[:, None] + np.arange(count, dtype=np.int64)[None, :] * stride
    inside = (line < begin[:, None] + BLOCK_LINES) & (line < total)
    in_set = ((line + shift[:, None]) // stride % sets + group[:, None] * sets)[inside]
    line = line[inside]
    owner = np.searchsorted(start, line, side="right") - 1
    firsts = np.searchsorted(line, start)
    home = (_mix(line.astype(np.uint64), 4) & np.uint64(1)).astype(np.uint8)
    return Samples(
        stride, groups * sets, firsts.astype(np.int32), owner.astype(np.int32), in_set.astype(np.int32), home
    )

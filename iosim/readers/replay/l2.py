"""The L2 as the replay models it: sets, ways and partitions from a hardware profile, and the lines that are sampled.

A cache of tens of megabytes has tens of thousands of sets that behave alike, so the replay follows a regular sample of
them line by line; the engine replaces the least recently used, and every sampled line stands for its neighbours. Which
set a line falls into is a hash. Of a page of device memory, half of the sets get two lines and the others none; pages
in a row fill the sets nearly evenly, pages from here and there do not. Where a tensor's pages lie decides, and nobody
can know it: the followed sets are shared out over several placements, so that a replay gives the mean of them.
"""

from __future__ import annotations

import ctypes as ct
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.readers.replay.library import LAYOUT, library
from iosim.readers.replay.objects import refuse_bytes

LEAST_SETS = 16
"""Sets of a partition that are followed at least."""
PAGE_BYTES = 2 << 20
"""Bytes of a page of device memory: what a GPU maps at a time."""
TWINS, TWIN_LINES = 2, 128
"""Lines of a page that fall into the same set, and how far apart they are (30 to 415 where it was measured); one
of them has its home on one side of the L2, one on the other."""
SHUFFLED_PAGES = 2.0
"""By how many places a page may come before its turn around the sets: fitted to how many sets 12 to 17 pages in a row
overfill (experiments/measurements/h200_l2_sets.npz, `python benchmarks/sets.py`)."""
RUN_PAGES = 64
"""Pages after which the turn begins anew somewhere else, fitted likewise."""
PLACEMENTS = 8
"""Layouts of memory in the sets, each followed in sets of its own."""


@dataclass(frozen=True)
class SideCache:
    """A cache at the memory's side, of sets of lines as the L2's; what is written goes through it to memory.
    `latency_s` is from the L2."""

    sets: int
    ways: int
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class L2Model:
    """Attributes:
    partitions: 1 or 2 of one L2, or `apart` several L2s; `sets` and `ways` are those of one partition.
    dirty_ways: most dirty lines of a set, on average over the sets.
    foreign_dirty_bytes: dirty lines of others in the L2 at a cold start.
    launch_fetch_bytes: what a launch reads beside its tensors, its code and parameters.
    sm_spread: SMs differ in speed by up to this fraction either way.
    side_ends: in the order in which SMs get CTAs, how many there are up to each change of side.
    dram_write_bytes_per_s: of writes among reads; None where they go at the rate of reads.
    apart: whether partitions are L2s of their own, which ask memory alone; SM s then belongs to partition s modulo
        their number, and CTAs are dealt out to them in turn.
    side: the cache at the memory's side, behind the L2s; None where there is none.
    """

    partitions: int
    sets: int
    ways: int
    line_bytes: int
    dirty_ways: float
    foreign_dirty_bytes: int
    launch_fetch_bytes: int
    sm_spread: float
    side_ends: tuple[int, ...]
    dram_bytes_per_s: float
    l2_bytes_per_s: float
    l2_latency_s: float
    far_latency_s: float
    dram_latency_s: float
    dram_write_bytes_per_s: float | None = None
    apart: bool = False
    side: SideCache | None = None

    def others_bytes(self, l2_start: str) -> int:
        """Dirty lines of others at the start: as many as the profile says where the L2 is cold, and as many as its sets
        may hold where a memset has flushed it."""
        if l2_start == "flushed":
            return int(self.partitions * self.sets * self.dirty_ways * self.line_bytes)
        return 0 if l2_start == "warm" else self.foreign_dirty_bytes


def model(profile: HardwareProfile) -> L2Model:
    """The model for a GPU: all numbers are the profile's, where each says whether it was measured on this GPU, taken
    from another or assumed. Loads from the far partition take as long as near ones where the profile does not know
    better. Raises InputError: the profile does not know its clock, the size of its L2 or its memory bandwidth."""
    partitions, ways, line = (
        profile.need_int("l2_partitions"),
        profile.need_int("l2_ways"),
        profile.line_bytes,
    )
    fraction = profile.need("l2_effective_capacity_fraction")
    # Fewer sets than there are stand for what others keep in the L2 (effective capacity); dirty
    # lines are a part of the whole L2, so that their number of ways grows as sets get fewer.
    whole_sets = int(profile.need("l2_bytes")) // partitions // (ways * line)
    clock = profile.sustained_clock_hz or profile.need("boost_clock_hz")
    near_cycles = profile.need("l2_latency_near_cycles")
    near, dram = near_cycles / clock, profile.need("dram_latency_cycles") / clock
    # Latencies are differences: home over near partition, memory over the L2.
    far = (
        near * clock if profile.l2_latency_far_cycles is None else profile.l2_latency_far_cycles
    ) / clock
    per_byte = profile.hbm_seconds_per_byte()
    bandwidth = 1 / per_byte[0] if per_byte else profile.need("dram_bandwidth_bytes_per_s")
    side = _side_cache(clock, line, near, profile)
    return L2Model(
        partitions=partitions,
        sets=max(1, round(whole_sets * fraction)),
        ways=ways,
        line_bytes=line,
        dirty_ways=max(1.0, ways * profile.need("l2_dirty_fraction") / fraction),
        foreign_dirty_bytes=profile.need_int("l2_foreign_dirty_bytes"),
        launch_fetch_bytes=profile.need_int("launch_fetch_bytes"),
        sm_spread=profile.need("sm_speed_spread_fraction"),
        side_ends=profile.l2_side_ends or (profile.sm_count,),
        dram_bytes_per_s=bandwidth,
        l2_bytes_per_s=_l2_bandwidth(profile),
        l2_latency_s=near,
        far_latency_s=max(0.0, far - near),
        dram_latency_s=max(0.0, dram - near),
        dram_write_bytes_per_s=1 / sum(per_byte[1:]) if per_byte else None,
        apart=bool(profile.l2_apart),
        side=side,
    )


def _side_cache(clock: float, line: int, near: float, profile: HardwareProfile) -> SideCache | None:
    """The cache at the memory's side; None on a GPU without one."""
    side = None
    if profile.memory_side_bytes:
        side_ways, latency = (
            profile.need_int("memory_side_ways"),
            profile.need("memory_side_latency_cycles") / clock,
        )
        rate = profile.need("memory_side_bandwidth_bytes_per_s")
        side = SideCache(
            profile.memory_side_bytes // (side_ways * line),
            side_ways,
            rate,
            max(0.0, latency - near),
        )
    return side


def _l2_bandwidth(profile: HardwareProfile) -> float:
    known = profile.l2_read_bandwidth_measured_bytes_per_s or profile.l2_read_bandwidth_bytes_per_s
    return known or profile.need("l2_over_dram_bandwidth") * profile.need(
        "dram_bandwidth_bytes_per_s"
    )


def sm_partitions(
    sms: int, partitions: int, ends: tuple[int, ...], apart: bool = False
) -> npt.NDArray[np.uint8]:
    """Partition of each SM, in the order in which CTAs are dealt out. A GPU deals CTAs cluster of SMs by cluster, and a
    whole cluster lies on one side: SMs up to ends[0] lie on side 0, those up to ends[1] on side 1, and so on in turn.
    `ends` is scaled to the number of SMs. To L2s `apart` CTAs go in turn."""
    if partitions < 2 or apart:
        return (np.arange(sms) % partitions).astype(np.uint8)
    # `ends` is of the GPU that was measured; one with other SMs has the same changes of side, scaled.
    scaled = np.rint(np.asarray(ends) * (sms / ends[-1])).astype(np.int64)
    return (np.searchsorted(scaled, np.arange(sms), side="right") % partitions).astype(np.uint8)


@dataclass(frozen=True)
class Samples:
    """The sampled lines, in address order: those of object o are [first[o], first[o + 1]). One line of `stride` is
    sampled, and one set of as many; the sets of placement n are those of [n, n + 1) x sets / placements. `place` is
    twice the set of each line, plus its home partition."""

    stride: float
    sets: int
    placements: int
    first: npt.NDArray[np.int32]
    object: npt.NDArray[np.int32]
    place: npt.NDArray[np.uint32]

    @property
    def set(self) -> npt.NDArray[np.int32]:
        return (self.place >> 1).astype(np.int32)

    def dealt_out(self, ways: int) -> npt.NDArray[np.int32]:
        """A number for each line: its set's lines, in address order, go to so many sets of another cache in turn."""
        # A line's rank among the lines of its set, in address order: rank modulo `ways` deals them out.
        order = np.argsort(self.set, kind="stable")
        begin = np.searchsorted(self.set[order], np.arange(self.sets))
        turn = np.empty(order.size, dtype=np.int64)
        turn[order] = np.arange(order.size) - begin[self.set[order]]
        return (self.set * ways + turn % ways).astype(np.int32)

    def scatter(self, lines: npt.NDArray[np.bool_]) -> None:
        """Gives lines a set of their placement and a home by chance, whatever lies around them: local memory of SMs
        fills the L2's sets as evenly as that (h100_cache_edges.csv, h200_cache_edges.csv, frame-128-shared to
        frame-384-shared)."""
        number = np.flatnonzero(lines).astype(np.uint64)
        # A fixed integer hash (splitmix64's finaliser).
        drawn = (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            drawn = (drawn ^ (drawn >> np.uint64(shift))) * np.uint64(factor)
        each = np.uint64(max(1, self.sets // self.placements))
        placement = (self.place[lines] >> 1).astype(np.uint64) // each
        chosen = placement * each + (drawn >> np.uint64(32)) % each
        self.place[lines] = (2 * chosen + (drawn >> np.uint64(31) & np.uint64(1))).astype(np.uint32)

    @property
    def home(self) -> npt.NDArray[np.uint8]:
        return (self.place & 1).astype(np.uint8)


def sampler(model: L2Model, sets: int = 1, stride: int = 1, placements: int = 1) -> Any:
    """What the engine needs to know to sample lines; `sets`, `stride` and `placements` as of `followed_sets`."""
    return LAYOUT.structures["Sampler"](
        line_bytes=model.line_bytes,
        page=PAGE_BYTES // model.line_bytes,
        twins=TWINS,
        twin_lines=TWIN_LINES,
        shuffle_256ths=round(256 * SHUFFLED_PAGES),
        run_pages=RUN_PAGES,
        sets=sets,
        stride=stride,
        placements=placements,
    )


def sample_lines(
    model: L2Model,
    size: npt.NDArray[np.int32],
    per_object: float = 1.0,
    least_sets: float = LEAST_SETS,
    beside: int = 0,
) -> Samples:
    """Sampled lines of objects that lie one after the other, each from a line's start. Each placement has its own share
    of the sampled sets. The stride is chosen so that an object of middling size holds about `per_object` samples, and
    more where fewer than `least_sets` sets of a partition would be followed. `beside`: bytes of memory that the replay
    needs beside the L2. Raises TooLargeError: more memory than a replay may take. Raises InputError: lines that are no
    power of two; there is no engine to sample them."""
    sets, stride, placements = followed_sets(model, size, per_object, least_sets, beside)
    request = sampler(model, sets, stride, placements)
    # Room for the most lines that can be followed: every page whole, in each placement.
    pages = -(-int((-(-size // model.line_bytes)).sum(dtype=np.int64)) // request.page)
    max_lines = pages * placements * TWINS * -(-(request.page // TWINS) // stride)
    size = np.ascontiguousarray(size, dtype=np.int32)
    first = np.zeros(size.size + 1, dtype=np.int32)
    owner, place = np.empty(max_lines, dtype=np.int32), np.empty(max_lines, dtype=np.uint32)
    arrays = (array.ctypes.data for array in (first, owner, place))
    taken = library().iosim_sample(
        ct.addressof(request), size.ctypes.data, size.size, max_lines, *arrays
    )
    if taken == LAYOUT.constants["NO_MEMORY"]:
        raise MemoryError("the replay ran out of memory")
    if taken < 0:
        raise InputError(
            f"lines of {model.line_bytes} bytes; accepted: 1, 2, 4, ... up to {PAGE_BYTES // 256}"
        )
    return Samples(
        stride / placements, placements * sets, placements, first, owner[:taken], place[:taken]
    )


def followed_sets(
    model: L2Model,
    size: npt.NDArray[np.int32],
    per_object: float = 1.0,
    least_sets: float = LEAST_SETS,
    beside: int = 0,
) -> tuple[int, int, int]:
    """(sets that a placement follows, of how many each is one, placements) for objects of these sizes; the arguments
    are those of `sample_lines`. Raises TooLargeError: more memory than a replay may take."""
    # An object of middling size: half of all lines are in objects up to this size.
    lines = -(-size // model.line_bytes)
    lines.sort()
    so_far = np.cumsum(lines, dtype=np.int64)
    total = int(so_far[-1]) if so_far.size else 0
    middling = int(lines[np.searchsorted(so_far, total // 2)]) if total else 1
    stride = max(1, min(middling / per_object, model.sets / least_sets))
    placements = min(PLACEMENTS, int(model.sets / stride)) if stride >= PLACEMENTS else 1
    sets = max(1, int(model.sets / stride / placements))
    refuse_bytes(size.size, beside, total * placements // (model.sets // sets))
    return sets, model.sets // sets, placements

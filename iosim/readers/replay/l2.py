"""The L2 as the replay models it: sets, ways and partitions from a hardware profile, and the lines that are sampled.

A cache of tens of megabytes has tens of thousands of sets that behave alike, so the replay follows a regular sample of
them line by line; the engine replaces the least recently used, and every sampled line stands for its neighbours. Which
set a line falls into is a hash. Of a page of device memory, half of the sets get two lines and the others none; pages
in a row fill the sets nearly evenly, pages from here and there do not. Where a tensor's pages lie decides, and nobody
can know it: the followed sets are shared out over several placements, so that a replay gives the mean of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iosim.base.progress import progress
from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.readers.replay.objects import refuse_bytes

LEAST_SETS = 16
"""Sets of a partition that are followed at least."""
PAGE_BYTES = 2 << 20
"""Of device memory: what a GPU maps at a time."""
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
LINES_AT_ONCE = 1 << 20
"""Sampled lines that are sorted together, about."""

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class L2Model:
    """Attributes:
    partitions: 1 or 2; `sets` and `ways` are those of one partition.
    dirty_ways: most dirty lines of a set, on average over the sets.
    foreign_dirty_bytes: dirty lines of others in the L2 at a cold start.
    launch_fetch_bytes: what a launch reads beside its tensors, its code and parameters.
    sm_spread: SMs differ in speed by up to this fraction either way.
    side_ends: in the order in which SMs get CTAs, how many there are up to each change of side.
    dram_write_bytes_per_s: of writes among reads; None where they go at the rate of reads.
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


def model(profile: HardwareProfile) -> L2Model:
    """The model for a GPU: all numbers are the profile's, where each says whether it was measured on this GPU, taken
    from another or assumed. Loads from the far partition take as long as near ones where the profile does not know
    better. Raises InputError: the profile does not know its clock, the size of its L2 or its memory bandwidth."""
    partitions, ways, line = profile.need_int("l2_partitions"), profile.need_int("l2_ways"), profile.line_bytes
    fraction = profile.need("l2_effective_capacity_fraction")
    size = int(profile.need("l2_bytes") * fraction) // partitions
    clock = profile.sustained_clock_hz or profile.need("boost_clock_hz")
    near_cycles = profile.need("l2_latency_near_cycles")
    near, dram = near_cycles / clock, profile.need("dram_latency_cycles") / clock
    far = (near * clock if profile.l2_latency_far_cycles is None else profile.l2_latency_far_cycles) / clock
    per_byte = profile.hbm_seconds_per_byte()
    bandwidth = 1 / per_byte[0] if per_byte else profile.need("dram_bandwidth_bytes_per_s")
    return L2Model(
        partitions=partitions,
        sets=max(1, size // (ways * line)),
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
    )


def _l2_bandwidth(profile: HardwareProfile) -> float:
    known = profile.l2_read_bandwidth_measured_bytes_per_s or profile.l2_read_bandwidth_bytes_per_s
    return known or profile.need("l2_over_dram_bandwidth") * profile.need("dram_bandwidth_bytes_per_s")


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
    """The sampled lines, in address order: those of object o are [first[o], first[o + 1]). One line of `stride` is
    sampled, and one set of as many; the sets of placement n are those of [n, n + 1) x sets / placements."""

    stride: float
    sets: int
    placements: int
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
    model: L2Model,
    size: npt.NDArray[np.int32],
    per_object: float = 1.0,
    least_sets: float = LEAST_SETS,
    beside: int = 0,
) -> Samples:
    """Sampled lines of objects that lie one after the other, each from a line's start.

    Each placement has its own share of the sampled sets. The stride is chosen so that an object of middling size holds
    about `per_object` samples, and more where fewer than `least_sets` sets of a partition would be followed.

    Args:
        beside: bytes of memory that the replay needs beside the L2.

    Raises:
        TooLargeError: more memory than a replay may take.
    """
    sets, stride, placements = followed_sets(model, size, per_object, least_sets, beside)
    start = np.zeros(size.size + 1, dtype=np.int64)
    np.cumsum(-(-size // model.line_bytes), out=start[1:])
    total = int(start[-1])
    page = PAGE_BYTES // model.line_bytes
    pages = -(-total // page)
    places = [_page_places(pages, page // TWINS, sets * stride, n) for n in range(placements)]
    first = np.zeros(size.size + 1, dtype=np.int32)
    most = pages * placements * TWINS * -(-(page // TWINS) // stride)
    owner, in_set = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
    home = np.empty(most, dtype=np.uint8)
    taken, at_once = 0, max(1, LINES_AT_ONCE * stride // (page * placements))
    for begin in progress("lines of the L2")(range(0, pages, at_once)):  # sorting all at once takes far more memory
        end = min(begin + at_once, pages)
        followed = [_followed(place[begin:end], begin, page, sets, stride, n) for n, place in enumerate(places)]
        line = np.concatenate([one[0] for one in followed])
        order = np.argsort(line, kind="stable")[: np.count_nonzero(line < total)]
        line = line[order]
        here, objects = slice(taken, taken + line.size), slice(*np.searchsorted(start, (begin * page, end * page)))
        first[objects] = taken + np.searchsorted(line, start[objects])
        owner[here] = np.searchsorted(start, line, side="right") - 1
        in_set[here] = np.concatenate([one[1] + n * sets for n, one in enumerate(followed)])[order]
        home[here] = _home(line)
        taken += line.size
    first[np.searchsorted(start, pages * page) :] = taken
    return Samples(stride / placements, placements * sets, placements, first, owner[:taken], in_set[:taken],
                   home[:taken])  # fmt: skip


def followed_sets(
    model: L2Model,
    size: npt.NDArray[np.int32],
    per_object: float = 1.0,
    least_sets: float = LEAST_SETS,
    beside: int = 0,
) -> tuple[int, int, int]:
    """(sets that a placement follows, of how many each is one, placements) for objects of these sizes; the arguments
    are those of `sample_lines`. Raises TooLargeError: more memory than a replay may take."""
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


def _home(line: Int64) -> npt.NDArray[np.uint8]:
    """Home partition of each line; twins have different homes."""
    twin = line // TWIN_LINES % TWINS
    drawn = _mix((line - twin * TWIN_LINES).astype(np.uint64), 4) & np.uint64(1)
    return ((drawn.astype(np.int64) + twin) % 2).astype(np.uint8)


def _followed(place: Int64, page_0: int, page: int, sets: int, stride: int, placement: int) -> tuple[Int64, Int64]:
    """(lines, the set of each): those of pages of `page` lines, from `page_0` on and with their first sets in `place`,
    that lie in the followed sets, every `stride`-th. Where a page goes around all sets less than twice, it is drawn
    which half of it comes first: tensors or heads that lie nearly a round apart do not meet in every set."""
    each = page // TWINS
    at = (-place)[:, None] % stride + np.arange(-(-each // stride), dtype=np.int64)[None, :] * stride
    inside = at < each
    in_set = ((place[:, None] + at) // stride % sets)[inside]
    number = page_0 + np.arange(place.size, dtype=np.int64)
    if each < 2 * sets * stride:
        drawn = (_mix(number.astype(np.uint64), 2 * placement + 7) & np.uint64(1)).astype(np.int64)
        at = (at + (drawn * (each // 2))[:, None]) % each
    at = (number[:, None] * each + at)[inside]
    first = at // TWIN_LINES * (TWIN_LINES * TWINS) + at % TWIN_LINES
    return np.concatenate([first + n * TWIN_LINES for n in range(TWINS)]), np.tile(in_set, TWINS)


def _page_places(pages: int, each: int, sets: int, placement: int) -> Int64:
    """The first set of each page, which takes `each` of them: page follows page around the sets, but for a shuffle
    among neighbours and a new beginning every RUN_PAGES."""
    number = np.arange(pages, dtype=np.uint64)
    drawn = (_mix(number, 2 * placement + 6) >> np.uint64(11)).astype(np.float64) / 2.0**53
    slot = np.empty(pages, dtype=np.int64)
    slot[np.argsort(np.arange(pages) + SHUFFLED_PAGES * drawn, kind="stable")] = np.arange(pages)
    begin = _mix(number // np.uint64(RUN_PAGES), 2 * placement + 5) % np.uint64(max(1, sets))
    return (slot * each + begin.astype(np.int64)) % max(1, sets)

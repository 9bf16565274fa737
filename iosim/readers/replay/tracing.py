"""Traces a replay: hits and misses over time, reuse distances, which CTA ran where and when, and how far the CTAs of a
head stood apart. The replay itself is unchanged; nothing here draws or prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import Launch, Mode, Outer, Per, Rows
from iosim.readers.replay.engine import L2, MAX_DEPTH, MAX_TENSORS, PS, TraceRecord
from iosim.readers.replay.l2 import model
from iosim.readers.replay.lowering import Lowered, LoweredLaunch
from iosim.readers.replay.objects import streams
from iosim.readers.replay.replay import Replay, ReplayedLaunch, Trace

Int64 = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]

SHARED_AXIS = {Outer.QUERY: Rows.KEY, Outer.SPLIT: Rows.KEY, Outer.KEY: Rows.QUERY}
"""The axis that a launch loops over, by what its work tile is: the tensors with these rows are what CTAs share."""


@dataclass(frozen=True)
class CtaTable:
    """One entry a work tile, in start order. Times are on the chain's clock. `slot` is the place on its SM; `owner`
    numbers the K and V (or Q and dO) that a work tile walks through; its steps go over [first, first + count)."""

    head: npt.NDArray[np.int32]
    block: npt.NDArray[np.int32]
    sm: npt.NDArray[np.int32]
    slot: npt.NDArray[np.int32]
    start_ps: Int64
    end_ps: Int64
    owner: Int64
    first: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]
    down: npt.NDArray[np.uint8]
    indices: npt.NDArray[np.int32] | None = None
    """Where a work tile's steps go through a list: its indices, and `first` counts in it."""

    @property
    def tiles(self) -> int:
        return int(self.head.size)

    def position(self, tiles: Int64, t_ps: float) -> Int64:
        """The loop index at which each of `tiles` stands at a time, were its steps equally long."""
        took = np.maximum(self.end_ps[tiles] - self.start_ps[tiles], 1)
        count = np.maximum(self.count[tiles].astype(np.int64), 1)
        # Steps of one length: the share of its time that has passed, of its steps.
        step = np.minimum((t_ps - self.start_ps[tiles]) / took * count, count - 1).astype(np.int64)
        at: Int64 = self.first[tiles] + np.where(self.down[tiles] == 1, count - 1 - step, step)
        return at if self.indices is None else self.indices[at].astype(np.int64)


@dataclass(frozen=True)
class ReuseHistogram:
    """Bytes loaded by SMs, by the distinct bytes that their partition had loaded since it last loaded the same line.
    `loads[i]` are those at a distance of [i, i + 1) x `width_bytes`; `deeper` those beyond the last; `first` the first
    loads of a line in a partition. All are sums over sampled lines."""

    width_bytes: int
    loads: Int64
    deeper: int
    first: int

    @property
    def total(self) -> int:
        return int(self.loads.sum()) + self.deeper + self.first

    def beyond(self, distance_bytes: int) -> int:
        """Bytes re-loaded at a distance of `distance_bytes` or more."""
        return int(self.loads[-(-distance_bytes // self.width_bytes) :].sum()) + self.deeper


@dataclass(frozen=True)
class LaunchTrace:
    """One launch. `in_use_bytes` is, for each time bin in which it ran (NaN elsewhere), the range between the foremost
    and the hindmost CTA of every head, summed over heads: what must stay in L2 for all of them to find it there.
    Empty where CTAs share no loop."""

    name: str
    begin_ps: int
    end_ps: int
    slots: int
    ctas: CtaTable
    reuse: ReuseHistogram
    shared_tensors: tuple[str, ...]
    shared_axis: Rows | None
    """Whose blocks CTAs walk; None where each has its own."""
    bytes_per_index: int
    in_use_bytes: Float
    heads_in_use: Float

    @property
    def peak_in_use_bytes(self) -> int | None:
        """Bytes in use in the busiest bin; None where CTAs share no loop."""
        return int(np.nanmax(self.in_use_bytes)) if np.isfinite(self.in_use_bytes).any() else None

    @property
    def median_in_use_bytes(self) -> int | None:
        return (
            int(np.nanmedian(self.in_use_bytes)) if np.isfinite(self.in_use_bytes).any() else None
        )

    def share_above(self, capacity_bytes: int) -> float:
        """Share of the launch's time bins in which more than `capacity_bytes` are in use at once."""
        seen = self.in_use_bytes[np.isfinite(self.in_use_bytes)]
        return float((seen > capacity_bytes).mean()) if seen.size else 0.0


@dataclass(frozen=True)
class Recording:
    """What a replay wrote down. `hit` and `miss` are bytes by time bin and tensor, over loads and atomic adds; the
    misses are read from HBM."""

    replay: Replay
    bin_ps: int
    tensors: tuple[str, ...]
    hit: Int64
    miss: Int64
    launches: tuple[LaunchTrace, ...]
    partition_bytes: int

    @property
    def bins(self) -> int:
        return int(self.hit.shape[0])

    def misses(self) -> dict[str, int]:
        return {name: int(n) for name, n in zip(self.tensors, self.miss.sum(axis=0), strict=True)}

    def loaded(self) -> dict[str, int]:
        both = (self.hit + self.miss).sum(axis=0)
        return {name: int(n) for name, n in zip(self.tensors, both, strict=True)}

    def hit_rate(self) -> Float:
        """Share of the bytes that hit, [time bins, tensors]; NaN where nothing was asked for."""
        both = self.hit + self.miss
        rate: Float = np.divide(self.hit, both, out=np.full(both.shape, np.nan), where=both > 0)
        return rate

    def launch(self, name: str) -> LaunchTrace:
        """The launch called `name`. Raises KeyError: it was not traced."""
        for launch_trace in self.launches:
            if launch_trace.name == name:
                return launch_trace
        raise KeyError(name)


@dataclass(frozen=True)
class Span:
    """When a launch begins and how long it takes, in seconds, by the timing model and as the replay plays it."""

    begin_s: float
    seconds: float
    played_s: float

    @property
    def stretch(self) -> float:
        return self.seconds / self.played_s if self.played_s > 0 else 1.0


class _Tracer:
    """Hands the engine a record for every launch that is asked for, and keeps what it must outlive."""

    def __init__(self, only: str | None, bins: int, bin_ps: int, spans: Mapping[str, Span]) -> None:
        self.only, self.bins, self.bin_ps, self.spans = only, bins, bin_ps, spans
        self.hit = np.zeros((bins, MAX_TENSORS), dtype=np.int64)
        self.miss = np.zeros((bins, MAX_TENSORS), dtype=np.int64)
        self.kept: list[_Kept] = []
        self.tensors: tuple[str, ...] = ()
        self._order: npt.NDArray[np.int32] | None = None
        self._seen: npt.NDArray[np.uint8] | None = None

    def __call__(
        self, launch: Launch, low: LoweredLaunch, lowered: Lowered, l2: L2, begin_ps: int
    ) -> Any:
        self.tensors = lowered.tensors
        partitions, samples = l2.model.partitions, int(l2.samples.object.size)
        if self._order is None:
            self._order = np.full(partitions * l2.samples.sets * MAX_DEPTH, -1, dtype=np.int32)
            self._seen = np.zeros(partitions * samples, dtype=np.uint8)
        assert self._seen is not None
        noted = _Kept(
            launch,
            low,
            lowered,
            int(l2.config.sample_bytes),
            TraceRecord(ctas=low.tiles, samples=samples),
            np.zeros(low.tiles, dtype=np.int32),
            *np.zeros((2, low.tiles), dtype=np.int64),
        )
        record = noted.record
        record.order, record.seen = self._order.ctypes.data, self._seen.ctypes.data
        if self.only in (None, launch.name):
            span = self.spans[launch.name]
            record.bin_ps, record.bins = max(1, round(self.bin_ps / span.stretch)), self.bins
            record.from_ps = begin_ps - round(span.begin_s * PS / span.stretch)
            record.bin_hit, record.bin_miss = self.hit.ctypes.data, self.miss.ctypes.data
            record.cta_sm, record.cta_start, record.cta_end = (
                x.ctypes.data for x in (noted.sm, noted.start, noted.end)
            )
            self.kept.append(noted)
        return record


@dataclass(frozen=True)
class _Kept:
    launch: Launch
    low: LoweredLaunch
    lowered: Lowered
    sample_bytes: int
    record: Any
    sm: npt.NDArray[np.int32]
    start: Int64
    end: Int64

    def tell(self, played: ReplayedLaunch, span: Span) -> None:
        """Turn the times of the replay into those of the timing model."""
        took = played.end_s - played.begin_s
        stretch = span.seconds / took if took > 0 else 1.0
        for times in (self.start, self.end):
            times[:] = np.rint(span.begin_s * PS + (times - played.begin_s * PS) * stretch).astype(
                np.int64
            )


def record(
    play: Callable[[Trace], Replay],
    profile: HardwareProfile,
    *,
    launch: str | None,
    bins: int,
    bin_ps: int,
    spans: Mapping[str, Span],
) -> Recording:
    """Play a chain once, and write down what happens.

    Times are those of the timing model: each launch's of the replay are stretched to what the model gives the launch.

    Args:
        play: plays the chain through the L2 of `profile`, with the trace that it is given.
        launch: record this launch alone; the whole chain is played all the same.
        bins: time bins, each `bin_ps` picoseconds long.
        spans: of each launch, by its name.
    """
    tracer = _Tracer(launch, bins, bin_ps, spans)
    played = play(tracer)
    l2 = model(profile)
    width = l2.sets * l2.line_bytes
    times = {played_launch.name: played_launch for played_launch in played.launches}
    for noted in tracer.kept:
        noted.tell(times[noted.launch.name], spans[noted.launch.name])
    launches = tuple(
        _launch(
            noted, spans[noted.launch.name], times[noted.launch.name].slots, bins, bin_ps, width
        )
        for noted in tracer.kept
    )
    used = len(tracer.tensors)
    hit = _settled(tracer.hit[:, :used])
    return Recording(
        played, bin_ps, tracer.tensors, hit, tracer.miss[:, :used], launches, width * l2.ways
    )


def _settled(hit: Int64) -> Int64:
    """Hits by time bin, none of them negative. An object's followed lines may weigh more than it does, and then misses
    of a bin exceed what was asked for; later bins make up for that."""
    # Cumulative sums that may dip are lowered to what comes later (a running minimum from the end),
    # so that they never fall; their differences are the hits.
    total = np.maximum(np.minimum.accumulate(np.cumsum(hit, axis=0)[::-1], axis=0)[::-1], 0)
    return np.diff(total, axis=0, prepend=np.zeros((1, hit.shape[1]), dtype=np.int64))


def _launch(
    noted: _Kept, span: Span, slots: int, bins: int, bin_ps: int, width: int
) -> LaunchTrace:
    low = noted.low
    begin, end = round(span.begin_s * PS), round((span.begin_s + span.seconds) * PS)
    names, owner, per_index = shared_loop(noted.launch, low, noted.lowered)
    slot = _slots(noted.sm, noted.start, noted.end)
    ctas = CtaTable(
        low.head,
        low.block,
        noted.sm,
        slot,
        noted.start,
        noted.end,
        owner,
        low.first,
        low.count,
        low.down,
        low.indices,
    )
    depth = np.array(noted.record.depth, dtype=np.int64) * noted.sample_bytes
    reuse = ReuseHistogram(
        width,
        depth[:MAX_DEPTH],
        int(depth[MAX_DEPTH]),
        int(noted.record.first) * noted.sample_bytes,
    )
    in_use, heads = (
        _in_use(ctas, per_index, bins, bin_ps, begin, end)
        if names
        else (np.array([]), np.array([]))
    )
    return LaunchTrace(
        low.name,
        begin,
        end,
        slots,
        ctas,
        reuse,
        names,
        SHARED_AXIS.get(noted.launch.outer),
        per_index,
        in_use,
        heads,
    )


def shared_loop(
    launch: Launch, low: LoweredLaunch, lowered: Lowered
) -> tuple[tuple[str, ...], Int64, int]:
    """(tensors that the launch's loop walks through, which part of them each work tile has, bytes of one index)."""
    none = np.zeros(low.tiles, dtype=np.int64)
    axis = None if streams(launch) else SHARED_AXIS.get(launch.outer)
    names = {
        a.tensor
        for a in launch.accesses
        if a.rows == axis and a.per is Per.PAIR and a.mode is Mode.LOAD
    }
    shared = [t for t in low.loop if t.tensor in names and t.coef]
    if not shared:
        return (), none, 0
    size = lowered.size
    per_index = sum(int(size[t.base[0] : t.base[0] + t.span].sum(dtype=np.int64)) for t in shared)
    return tuple(t.tensor for t in shared), shared[0].base.astype(np.int64), per_index


def _in_use(
    ctas: CtaTable, per_index: int, bins: int, bin_ps: int, begin: int, end: int
) -> tuple[Float, Float]:
    """Range between foremost and hindmost CTA of every owner at the middle of each bin: (bytes, owners)."""
    total, heads = np.full(bins, np.nan), np.full(bins, np.nan)
    for b in range(max(0, begin // bin_ps), min(bins, -(-end // bin_ps))):
        # A head's CTAs stand between a foremost and a hindmost index: what lies between has been read by
        # one and will be read by another, so that the L2 must hold it for all to hit.
        t = (b + 0.5) * bin_ps
        running = np.flatnonzero((ctas.start_ps <= t) & (t < ctas.end_ps) & (ctas.count > 0))
        if not running.size:
            continue
        at = ctas.position(running, t)
        # reduceat over runs of equal owners: least and greatest index of each.
        order = np.argsort(ctas.owner[running], kind="stable")
        begins = np.flatnonzero(np.diff(ctas.owner[running][order], prepend=-1))
        low, high = np.minimum.reduceat(at[order], begins), np.maximum.reduceat(at[order], begins)
        total[b] = float((high - low + 1).sum()) * per_index
        heads[b] = begins.size
    return total, heads


def _slots(sm: npt.NDArray[np.int32], start: Int64, end: Int64) -> npt.NDArray[np.int32]:
    """A place on its SM for every work tile, so that no two on one place overlap."""
    slot = np.zeros(sm.size, dtype=np.int32)
    free: dict[int, list[int]] = {}
    # First fit in order of start: the lowest place on the SM that is free again.
    for tile in np.lexsort((np.arange(sm.size), start)):
        ends = free.setdefault(int(sm[tile]), [])
        place = next((n for n, t in enumerate(ends) if t <= start[tile]), len(ends))
        if place == len(ends):
            ends.append(0)
        ends[place] = int(end[tile])
        slot[tile] = place
    return slot

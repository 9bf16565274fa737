"""The replay's engine alone: random launches through small L2s, in windows and coarse steps, at recorded times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.readers.replay.engine import L2, MAX_DEPTH, MAX_TENSORS, Ctas, TraceRecord
from iosim.readers.replay.l2 import L2Model, model, sample_lines, sm_partitions
from iosim.readers.replay.lowering import Lowered, LoweredLaunch
from iosim.readers.replay.sampling import (
    Coarse,
    CoarseSteps,
    SamplingPlan,
)
from iosim.readers.replay.scan import scan, with_capacity
from iosim.readers.replay.templates import Template

H200 = load_profile("h200")
LINE = 128


def l2_of(partitions: int, sets: int, ways: int, dirty: float, **more: Any) -> L2Model:
    """A small L2 with latencies and bandwidths such that loads are waited for now and then."""
    values: dict[str, Any] = {
        "partitions": partitions,
        "sets": sets,
        "ways": ways,
        "line_bytes": LINE,
        "dirty_ways": dirty,
        "foreign_dirty_bytes": 0,
        "launch_fetch_bytes": 0,
        "sm_spread": 0.0,
        "side_ends": (1, 3, 4),
        "dram_bytes_per_s": 2e11,
        "dram_write_bytes_per_s": None,
        "l2_bytes_per_s": 1e12,
        "l2_latency_s": 2e-7,
        "far_latency_s": 5e-8,
        "dram_latency_s": 4e-7,
    }
    return replace(model(H200), **(values | more))


def launch_at_random(
    rng: np.random.Generator, objects: int, group: int, listed: bool
) -> LoweredLaunch:
    """Work tiles that load, store and add, walking up or down over objects of their own and shared ones."""
    tiles = group * int(rng.integers(3, 30))
    count = rng.integers(0, 12, tiles).astype(np.int32)
    first = rng.integers(0, 8, tiles).astype(np.int32)

    def base(high: int) -> Any:
        drawn = rng.integers(0, high, tiles)
        return np.where(rng.random(tiles) < 0.1, -1, drawn).astype(np.int32)

    return LoweredLaunch(
        "random",
        first,
        count,
        (Template("a", 0, base(objects - 4), span=2), Template("b", 0, base(objects))),
        (
            Template("c", 0, base(objects // 2), coef=2, span=2),
            Template("d", int(rng.integers(0, 3)), base(objects // 3), coef=1),
            Template("e", 0, base(objects // 4), span=2, rows=2, row_stride=5),
            Template("f", 1, base(objects)),
        ),
        (Template("g", 1, base(objects)), Template("h", 2, base(objects))),
        rng.integers(0, 2, tiles).astype(np.uint8),
        np.zeros(tiles, dtype=np.int32),
        np.zeros(tiles, dtype=np.int32),
        group=group,
        indices=rng.integers(0, 20, 40).astype(np.int32) if listed else None,
    )


def contents(l2: L2) -> list[Any]:
    """What an L2 counted, and what is in it."""
    read, written = l2.counts()
    tags = np.frombuffer(l2._tags.tobytes(), dtype=np.int32).astype(np.int64)
    return [
        read[:3],
        written[:3],
        l2.dirty_bytes(),
        l2.dirty_by_tensor()[:3],
        int(l2.state.fabric),
        int(l2.state.again),
        l2.placement_bytes(),
        int((tags * np.arange(1, tags.size + 1)).sum() % (1 << 40)),
    ]


def engine() -> Iterator[tuple[str, Any]]:
    """Launches without a kernel behind them."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        partitions = 1 + seed % 2
        group = (1, 1, 3)[seed % 3]
        ways = (1, 2, 3, 5, 8, 16)[seed % 6]
        l2_model = l2_of(
            partitions,
            (4, 16, 64)[seed // 3 % 3],
            ways,
            max(1.0, ways * (0.5, 1.0, 0.3, 1.5)[seed // 5 % 4]),
        )
        objects = 80
        size = rng.integers(1, 40, objects) * 64
        l2 = L2(
            l2_model,
            size,
            (np.arange(objects) % 3).astype(np.uint8),
            (1e9, 1.0, 4.0)[seed % 3],
            least_sets=1 + seed % 4,
        )
        if seed % 4 == 1:
            l2.place(range(5, 30), dirty=seed % 8 == 1)
        results: list[Any] = []
        begin = 0
        for n in range(2):
            low = launch_at_random(rng, objects, group, listed=seed % 5 == 2)
            record, record_on = traced(l2, low, on=seed % 7 == 3)
            ctas = Ctas(
                slots=int(rng.integers(1, 14)),
                sms=int(rng.integers(1, 6)),
                static_stride=(0, 0, 5)[seed % 3],
                step_s=(0.0, 1e-6, 3e-7)[seed % 3],
                start_s=1e-7 * (seed % 4),
                sm_spread_ppm=(0, 5000, 90_000)[seed // 2 % 3],
                rates=((1.0,), (1.2, 0.8), (1.3, 1.1, 0.6))[seed // 4 % 3],
                relaunched=seed % 2 == 0,
            )
            end, _ = l2.replay(low, ctas, begin_ps=begin, trace=record)
            results.append([end, *contents(l2), *record_on()])
            begin = end
            if n == 0 and seed % 2:
                l2.own(range(10, 20), 2)
        yield f"launch {seed}", results
    yield from accesses()
    yield from coarse_steps()
    yield from windows()
    yield from recorded_times()
    yield from lines_and_sides()


def traced(l2: L2, low: LoweredLaunch, on: bool) -> Any:
    """(a record for the engine to fill, what it holds then)."""
    if not on:
        return None, lambda: []
    samples = int(l2.samples.object.size)
    order = np.full(l2.model.partitions * l2.samples.sets * MAX_DEPTH, -1, dtype=np.int32)
    seen = np.zeros(l2.model.partitions * samples, dtype=np.uint8)
    hit, miss = np.zeros((2, 9, MAX_TENSORS), dtype=np.int64)
    sm, (start, end) = np.zeros(low.tiles, dtype=np.int32), np.zeros((2, low.tiles), dtype=np.int64)
    record = TraceRecord(bin_ps=2_000_000, bins=9, ctas=low.tiles, samples=samples)
    record.order, record.seen = order.ctypes.data, seen.ctypes.data
    record.bin_hit, record.bin_miss = hit.ctypes.data, miss.ctypes.data
    record.cta_sm, record.cta_start, record.cta_end = (x.ctypes.data for x in (sm, start, end))
    return record, lambda: [
        hit[:, :3],
        miss[:, :3],
        int(record.first),
        list(record.depth)[:12],
        sum(record.depth),
        order.max(),
        seen.sum(),
        (sm * np.arange(1, low.tiles + 1)).sum(),
        start.sum(),
        end.sum(),
    ]


def accesses() -> Iterator[tuple[str, Any]]:
    """One after the other, without times."""
    for seed in range(6):
        rng = np.random.default_rng(400 + seed)
        l2_model = l2_of(1 + seed % 2, 16, 4, 2.0)
        l2 = L2(l2_model, rng.integers(1, 20, 30) * 64, (np.arange(30) % 3).astype(np.uint8), 1e9)
        l2.access(
            rng.integers(0, 3, 400),
            rng.integers(0, 30, 400),
            rng.integers(0, l2_model.partitions, 400),
        )
        yield f"accesses {seed}", contents(l2)
        for field, at in (("mode", 0), ("object", 1), ("side", 2)):
            for value in (-1, (3, 30, l2_model.partitions)[at]):
                arrays = [np.zeros(2, dtype=np.int64) for _ in range(3)]
                arrays[at][1] = value
                try:
                    l2.access(*arrays)
                    yield f"accesses {seed} {field} {value}", "taken"
                except InputError:
                    yield f"accesses {seed} {field} {value}", "refused"


def walking(rng: np.random.Generator, tiles: int, steps: int, stays: int) -> LoweredLaunch:
    """Work tiles that walk over two tensors, and store to a place of their own at each step."""
    first = rng.integers(0, 4, tiles).astype(np.int32)
    count = rng.integers(steps // 2, steps, tiles).astype(np.int32)
    at = np.arange(tiles, dtype=np.int32)
    heads = (at // 4 % 3 * 400).astype(np.int32)
    walked = Template("s", 1, (1200 + at % stays).astype(np.int32))
    return LoweredLaunch(
        "walking",
        first,
        count,
        (Template("q", 0, (1300 + at % 40).astype(np.int32)),),
        (
            Template("k", 0, heads, coef=1),
            walked,
            Template("v", 0, (heads + 200).astype(np.int32), coef=1),
        ),
        (Template("o", 1, (1340 + at % 60).astype(np.int32)),),
        (at % 2).astype(np.uint8),
        at,
        at,
    )


def l2_to_walk_in(seed: int, rng: np.random.Generator) -> L2:
    l2 = l2_of(
        1 + seed % 2,
        (64, 256, 1024)[seed % 3],
        8,
        4.0,
        dram_bytes_per_s=(2e10, 2e11, 2e12)[seed // 2 % 3],
    )
    size = np.concatenate(
        [rng.integers(3, 9, 1200) * 512, rng.integers(1, 30, 100) * 64, np.full(100, 2048)]
    )
    return L2(
        l2,
        size,
        np.repeat([0, 1, 2], [1200, 100, 100]).astype(np.uint8),
        (1.0, 0.2)[seed % 2],
        least_sets=2,
    )


def coarse_steps() -> Iterator[tuple[str, Any]]:
    for seed in range(10):
        rng = np.random.default_rng(200 + seed)
        low = walking(rng, 24, 30, 30)
        l2 = l2_to_walk_in(seed, rng)
        steps = (4, 8)[seed % 2]
        lead, trail = (rng.integers(1, steps + 1, low.tiles).astype(np.int32) for _ in range(2))
        lowered = Lowered(("k", "s", "q"), lead, lead, (), (1.0, 1.0, 1.0))
        grain = Coarse(CoarseSteps("walking", steps, 1, 1, 1.0, 0), lead, trail, lowered, 2.0)
        ctas = Ctas(
            slots=12,
            sms=4,
            static_stride=0,
            step_s=3e-7,
            start_s=1e-7,
            sm_spread_ppm=2000,
            rates=(1.2, 1.0, 0.8),
            relaunched=seed % 3 == 0,
        )
        end, _ = l2.replay(low, ctas, begin_ps=5, coarse=grain)
        yield (
            f"coarse steps {seed}",
            [end, *contents(l2), int(l2.state.took_ps), int(l2.state.alone_ps)],
        )


def windows() -> Iterator[tuple[str, Any]]:
    for seed in range(14):
        rng = np.random.default_rng(300 + seed)
        low = walking(rng, 90, 190, 30)
        l2 = l2_to_walk_in(seed, rng)
        ctas = Ctas(
            slots=12,
            sms=(4, 5, 12)[seed % 3],
            static_stride=(0, 12)[seed % 2],
            step_s=4e-7,
            start_s=(1e-7, 2e-6)[seed % 2],
            sm_spread_ppm=30_000,
            rates=(1.3, 1.0, 0.7),
            relaunched=seed % 4 < 2,
        )
        end, windows_played = l2.replay(
            low, ctas, begin_ps=5, sampling=SamplingPlan(3 + seed, 20, 60 + seed, 40)
        )
        assert windows_played is not None
        yield (
            f"windows {seed}",
            [
                end,
                *contents(l2),
                windows_played.played,
                windows_played.stands_for,
                windows_played.read[:, :3].sum(axis=1),
                windows_played.write[:, :3].sum(axis=1),
                windows_played.waited,
            ],
        )


def recorded_times() -> Iterator[tuple[str, Any]]:
    """Launches at times that were recorded of them."""
    for seed in range(6):
        rng = np.random.default_rng(100 + seed)
        low = launch_at_random(rng, 80, 1, listed=seed == 3)
        low = replace(low, count=np.maximum(low.count, 1))
        every = (1, 3, 4)[seed % 3]
        l2 = L2(l2_of(2, 8, 4, 2.0), np.full(80, 700), np.zeros(80, dtype=np.uint8), 1e9)
        start = rng.integers(0, 10**7, low.tiles)
        at = (
            start[:, None]
            + np.arange(12 // every + 1) * rng.integers(10**5, 10**6, low.tiles)[:, None] * every
        )
        end = start + low.count * 600_000
        l2.replay_recorded(low, at, end, every, rng.integers(0, 2, low.tiles))
        yield f"at recorded times {seed}", contents(l2)


def lines_and_sides() -> Iterator[tuple[str, Any]]:
    """Which lines are followed, their sets and homes; the sides of SMs; scans."""
    for (partitions, sets, ways), per_object, least in product(
        ((1, 16, 4), (2, 512, 16), (1, 10_000, 3)), (0.5, 1.0, 5.0), (1, 16)
    ):
        l2 = l2_of(partitions, sets, ways, 1.0)
        for number, size in ((40, 9000), (500, 20_000), (3, 3 << 20)):
            samples = sample_lines(l2, np.full(number, size, dtype=np.int32), per_object, least)
            n = np.arange(1, samples.object.size + 1)
            yield (
                f"lines {partitions} {sets} {ways} {per_object} {least} {number}x{size}",
                [
                    samples.stride,
                    samples.sets,
                    samples.placements,
                    samples.object.size,
                    (samples.first[:-1] * np.arange(number)).sum(),
                    (n * samples.object).sum(),
                    (n * samples.set).sum(),
                    (n * samples.home).sum(),
                ],
            )
    for sms, ends in product((1, 7, 66, 132), ((16, 64, 114, 132), (1, 2))):
        yield (
            f"sides {sms} {ends}",
            ["".join(map(str, sm_partitions(sms, n, ends))) for n in (1, 2)],
        )
    for gpu in ("v100", "a100", "h100", "h200", "l4", "b200"):
        l2 = model(load_profile(gpu))
        yield f"model {gpu}", [getattr(l2, name) for name in l2.__dataclass_fields__]
    for field in (
        "l2_ways",
        "l2_partitions",
        "l2_effective_capacity_fraction",
        "l2_dirty_fraction",
        "sustained_clock_hz",
        "l2_latency_near_cycles",
        "l2_latency_far_cycles",
        "dram_latency_cycles",
        "l2_read_bandwidth_measured_bytes_per_s",
        "dram_bandwidth_measured_bytes_per_s",
    ):
        l2 = model(
            HardwareProfile.from_dict({k: v for k, v in H200.to_dict().items() if k != field})
        )
        yield f"model without {field}", [getattr(l2, name) for name in l2.__dataclass_fields__]
    for pattern, ctas, passes in product(("shared_scan", "private_scan"), (1, 12), (1, 3)):
        small = l2_of(2, 128, 16, 8.0)
        samples = [
            scan(small, size, pattern, passes, ctas) for size in (16384 * 12, 700_000, 1_300_000)
        ]
        yield f"{pattern} {ctas} {passes}", [*samples, with_capacity(small, 1 << 20, 0.7).sets]

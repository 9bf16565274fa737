"""The replay: random launches through small L2s, small problems through GPUs, long ones in part, traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.prediction.call import Call
from iosim.prediction.predictor import planned, predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import replay as replays_module
from iosim.readers.replay.engine import L2, MAX_DEPTH, MAX_TENSORS, PS, Ctas, TraceRecord
from iosim.readers.replay.l2 import L2Model, model, sample_lines, sm_partitions
from iosim.readers.replay.lowering import Lowered, LoweredLaunch, lower, start_order
from iosim.readers.replay.objects import refuse_bytes, tile_bytes
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Replay
from iosim.readers.replay.sampling import (
    Coarse,
    CoarseSteps,
    SamplingPlan,
    Windows,
    coarse_plan,
    sampling_plan,
)
from iosim.readers.replay.scan import scan, with_capacity
from iosim.readers.replay.sharing import keys_of, rates_of, sloped
from iosim.readers.replay.templates import Template
from iosim.studies.trace.trace import check_bins, check_traceable, trace

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


SMALL_GPU = {"sm_count": 6, "l2_bytes": 768 << 10}
KERNEL_PROBLEMS: dict[str, dict[str, Any]] = {
    "none": {"heads": 3, "seq_q": 700, "head_dim": 64},
    "causal": {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "seq_q": 900,
        "head_dim": 64,
        "mask": "causal",
    },
    "window": {
        "heads": 2,
        "seq_q": 800,
        "seq_k": 1000,
        "head_dim": 32,
        "mask": "window",
        "window": 100,
    },
    "decode": {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 1, "seq_k": 4000, "head_dim": 64},
    "bwd": {"heads": 2, "seq_q": 600, "head_dim": 64, "mask": "causal", "passes": "bwd"},
    "both": {"heads": 2, "kv_heads": 1, "seq_q": 400, "head_dim": 32, "passes": "fwd+bwd"},
    "packed": {
        "heads": 2,
        "seq_q": 900,
        "head_dim": 64,
        "mask": "causal",
        "seq_lens": (100, 500, 300),
    },
    "packed both": {
        "heads": 2,
        "seq_q": 900,
        "head_dim": 64,
        "seq_lens": (150, 430, 320),
        "passes": "fwd+bwd",
    },
    "pages": {"batch": 2, "heads": 4, "seq_q": 1, "seq_k": 3000, "head_dim": 64, "page_size": 256},
    "latent": {
        "heads": 16,
        "kv_heads": 1,
        "seq_q": 2,
        "seq_k": 2000,
        "head_dim": 576,
        "head_dim_v": 512,
        "latent_kv": True,
    },
    "blocks": {"heads": 2, "seq_q": 2048, "head_dim": 64, "mask": "strided", "mask_stride": 3},
    "dropout": {
        "heads": 2,
        "seq_q": 300,
        "head_dim": 64,
        "dropout": 0.1,
        "mask": "causal",
        "passes": "fwd+bwd",
    },
    "few keys": {
        "heads": 2,
        "seq_q": 900,
        "seq_k": 500,
        "head_dim": 64,
        "mask": "causal",
        "passes": "fwd+bwd",
    },
    "bias": {
        "batch": 2,
        "heads": 2,
        "seq_q": 500,
        "head_dim": 64,
        "bias": "full",
        "bias_shared": "batch",
    },
}


def played(replay: Replay) -> list[Any]:
    rows: dict[str, int] = {}
    for row in replay.traffic:
        rows[f"{row.launch} {row.tensor} {row.direction}"] = rows.get(
            f"{row.launch} {row.tensor} {row.direction}", 0
        ) + int(row.bytes)
    launches = [
        [x.name, x.begin_s, x.end_s, x.slots, x.accesses, x.waited] for x in replay.launches
    ]
    return [
        rows,
        launches,
        replay.foreign_write_bytes,
        replay.dirty_bytes,
        replay.fabric_bytes,
        replay.placement_bytes,
        len(replay.notes()),
    ]


def gpu_of(name: str, **more: Any) -> HardwareProfile:
    return replace(load_profile(name), **(SMALL_GPU | more))


def replays() -> Iterator[tuple[str, Any]]:
    yield from schedules()
    yield from in_part()
    yield from traces()
    yield from limits()
    yield from lowered()
    yield from shares()


GPUS_IN_TURN = ("a100", "h200", "b200")
DTYPES = ("bf16", "fp32", "fp8")


def taken(
    kernel: str, values: dict[str, Any], gpus: tuple[str, ...]
) -> tuple[AttentionProblem, str] | None:
    """The problem with the first type, and the first GPU, that a kernel takes; None where it takes none."""
    for gpu, dtype in product(gpus, DTYPES):
        try:
            p = AttentionProblem(**values, dtype=dtype)
            resolve(kernel, p, load_profile(gpu))
            return p, gpu
        except InputError:
            continue
    return None


def of_kernel(kernel: str) -> Iterator[tuple[str, Any]]:
    """A kernel of the catalog on GPUs of few SMs and a small L2, and its chain as arrays. Which GPU is tried first
    turns with its name, so that no other kernel shifts it."""
    turn = crc32(kernel.encode())
    for n, (name, values) in enumerate(KERNEL_PROBLEMS.items()):
        first = (turn + n) % 2
        chosen = taken(kernel, values, (*GPUS_IN_TURN[first:], *GPUS_IN_TURN[:first]))
        if chosen is None:
            continue
        p, gpu = chosen
        start = "warm" if (turn + n) % 3 == 1 else "cold"
        try:
            prediction = predict(p, kernel, gpu_of(gpu), method="replay", l2_start=start)
        except InputError:
            continue
        assert prediction.replay is not None
        yield f"{kernel} {gpu} {name} {start}", played(prediction.replay)
        yield (
            f"lowered {kernel} {name}",
            checksum(lower(plan(p, resolve(kernel, p, load_profile(gpu))), 7)),
        )


def schedules() -> Iterator[tuple[str, Any]]:
    """One kernel in the orders and directions that there are."""
    p = AttentionProblem(batch=2, heads=3, seq_q=1000, head_dim=64, dtype="bf16", mask="causal")
    for n, (order, direction, scheduler, section) in enumerate(
        product(
            ("query", "head", "batch"),
            ("ascending", "descending", "alternating"),
            ("static", "persistent", "dynamic"),
            (0, 2),
        )
    ):
        over = Overrides(
            order=order,
            direction=direction,
            scheduler=scheduler,
            section_heads=section,
            heavy_first=n % 2 == 0,
        )
        gpu = gpu_of("h200", l2_bytes=256 << 10)
        chosen = resolve("flash", p, gpu, over)
        replay = Call.of(p, chosen, gpu).replay()
        yield (
            f"flash {order} {direction} {scheduler} {section}",
            [replay.traffic.total("hbm", "read"), replay.seconds, replay.fabric_bytes],
        )


LONG: list[tuple[str, str, str, int, Overrides]] = [
    ("fa2", "h200", "none", 2, Overrides()),
    ("fa2", "a100", "causal", 4, Overrides()),
    ("triton", "a100", "none", 2, Overrides()),
    ("fa2", "l4", "none", 3, Overrides()),
    ("flash", "l4", "none", 4, Overrides(tile=(64, 64), direction="alternating")),
    ("flash", "h200", "causal", 4, Overrides(tile=(64, 64), scheduler="persistent", order="head")),
    ("flash", "h200", "none", 2, Overrides(tile=(64, 64), scheduler="dynamic")),
]
"""Kernel, GPU, mask, heads: HBM of six SMs is fast enough for them, or so slow that CTAs wait and gather."""


def in_part() -> Iterator[tuple[str, Any]]:
    """Long launches in windows and in coarse steps, with budgets that make middling ones long."""
    original = replays_functions()
    try:
        for kernel, gpu, mask, heads, over in LONG:
            for l2_kib, slow in ((384, 1.0), (1024, 0.05)):
                profile = gpu_of(gpu, l2_bytes=l2_kib << 10)
                known = (
                    profile.dram_bandwidth_measured_bytes_per_s
                    or profile.dram_bandwidth_bytes_per_s
                )
                assert known is not None
                profile = replace(profile, dram_bandwidth_measured_bytes_per_s=known * slow)
                p = AttentionProblem(
                    heads=heads, seq_q=16384, head_dim=128, dtype="bf16", mask=mask
                )
                chosen = resolve(kernel, p, profile, over)
                chain = plan(p, chosen)
                replays_set(
                    coarse=lambda *_, **__: None,
                    sampling=lambda low, slots: sampling_plan(
                        low, slots, 30_000, settle=8, window=20
                    ),
                )
                replay = Call.of(p, chosen, profile, chain).replay(Play(part=True))
                windows = replay.launches[0].windows
                yield (
                    f"windows {kernel} {gpu} {mask} {over.scheduler} {l2_kib} {slow}",
                    [
                        played(replay),
                        None
                        if windows is None
                        else [
                            windows.played.sum(),
                            windows.stands_for,
                            windows.waited,
                            windows.standard_error(),
                        ],
                    ],
                )
                planned: list[Coarse | None] = []
                replays_set(
                    coarse=lambda *a, **k: (
                        planned.append(coarse_plan(*a, **k, budget=30_000))  # noqa: B023
                        or planned[-1]  # noqa: B023
                    ),
                    sampling=lambda low, slots: None,
                )
                replay = Call.of(p, chosen, profile, chain).replay(Play(part=True))
                grain = planned[-1]
                yield (
                    f"coarse {kernel} {gpu} {mask} {over.scheduler} {l2_kib} {slow}",
                    [
                        played(replay),
                        None
                        if grain is None
                        else [
                            grain.how.steps,
                            grain.how.heads,
                            grain.how.of,
                            grain.how.held,
                            grain.how.small_steps,
                            grain.lead.sum(),
                            grain.trail.sum(),
                            grain.least_sets,
                        ],
                    ],
                )
    finally:
        replays_set(*original)
    yield from plans()


def replays_functions() -> tuple[Any, Any]:
    return replays_module.coarse_plan, replays_module.sampling_plan


def replays_set(coarse: Any, sampling: Any) -> None:
    replays_module.coarse_plan, replays_module.sampling_plan = coarse, sampling


def plans() -> Iterator[tuple[str, Any]]:
    """How long launches are cut, without playing them."""
    ones = np.ones(400, dtype=np.int32)
    for steps, slots, budget, group in product(
        (100, 1000), (10, 100, 500), (10_000, 100_000), (1, 2)
    ):
        low = LoweredLaunch(
            "x",
            ones,
            ones * steps,
            (),
            (Template("K", 0, ones, coef=1), Template("V", 0, ones, coef=1)),
            (),
            ones.astype(np.uint8),
            ones,
            ones,
            group=group,
        )
        sampled = sampling_plan(low, slots, budget, 5, 5)
        yield (
            f"windows {steps} {slots} {budget} {group}",
            sampled and [sampled.settle, sampled.window, sampled.jump, sampled.windows],
        )
        full = sampling_plan(replace(low, count=low.count * 1000), slots)
        yield (
            f"windows {steps} {slots} {budget} {group} long",
            full and [full.settle, full.window, full.jump, full.windows],
        )
    for kernel, gpu, values in (
        ("fa2", "l4", {"mask": "causal"}),
        ("fa2", "h200", {"heads": 8, "mask": "causal"}),
        ("fa2", "l4", {"mask": "window", "window": 3000}),
        ("triton", "a100", {}),
        ("fa2", "a100", {"passes": "bwd"}),
        ("fa2", "a100", {"passes": "fwd+bwd"}),
        ("fa1", "a100", {}),
        ("flash", "l4", {"kv_heads": 1, "heads": 4}),
        ("fa2", "l4", {"seq_q": 1, "seq_k": 65536}),
        ("eager", "l4", {"seq_q": 2048}),
    ):
        values = {"heads": 2, "seq_q": 32768, "head_dim": 128, "dtype": "bf16"} | values
        p, profile = AttentionProblem(**values), load_profile(gpu)
        chain = plan(p, resolve(kernel, p, profile))
        low = lower(chain, 1)
        for budget in (2_000, 20_000, 200_000, 1_000_000):
            coarse = coarse_plan(chain, low, model(profile), budget)
            sampled = coarse and [
                coarse.how.name,
                coarse.how.steps,
                coarse.how.heads,
                coarse.how.of,
                coarse.how.held,
                coarse.how.small_steps,
                coarse.least_sets,
                coarse.lead.size,
                coarse.lead.sum(),
                coarse.trail.sum(),
                coarse.lowered.launches[0].accesses,
            ]
            yield f"coarse {kernel} {gpu} {' '.join(map(str, values.values()))} {budget}", sampled
    for n in (2, 3, 5):
        sizes = np.arange(1, n + 1, dtype=np.int64)
        windows = Windows(
            10 * sizes,
            30 * sizes**2,
            np.outer(sizes**3, [3, 5]),
            np.outer(sizes[::-1] ** 2, [2, 0]),
            0.0,
        )
        yield f"windows' totals {n}", [*windows.totals(), windows.standard_error()]


def traces() -> Iterator[tuple[str, Any]]:
    for kernel, gpu, values, only in (
        ("fa2", "h200", {"mask": "causal"}, None),
        ("cudnn", "h200", {}, None),
        ("eager", "a100", {"seq_q": 300}, None),
        ("fa2", "a100", {"passes": "bwd"}, "bwd.main"),
        ("fa2", "a100", {"seq_q": 1, "seq_k": 5000}, None),
        ("fa2", "a100", {"mask": "causal", "seq_lens": (300, 700)}, None),
        ("flex", "h200", {"mask": "strided", "mask_stride": 2, "seq_q": 2048}, None),
    ):
        p = AttentionProblem(
            **({"heads": 3, "seq_q": 1000, "head_dim": 64, "dtype": "bf16"} | values)
        )
        prediction = predict(p, kernel, gpu_of(gpu, l2_bytes=512 << 10), method="replay")
        traced = trace(prediction, launch=only, bins=7)
        launches = []
        for x in traced.launches:
            n = np.arange(1, x.ctas.tiles + 1)
            c = x.ctas
            launches.append(
                [
                    x.name,
                    x.begin_ps,
                    x.end_ps,
                    x.slots,
                    [
                        (n * f).sum()
                        for f in (
                            c.head,
                            c.block,
                            c.sm,
                            c.slot,
                            c.start_ps,
                            c.end_ps,
                            c.owner,
                            c.first,
                            c.count,
                            c.down,
                        )
                    ],
                    [
                        x.reuse.width_bytes,
                        x.reuse.loads[:8],
                        x.reuse.deeper,
                        x.reuse.first,
                        x.reuse.beyond(200_000),
                        x.reuse.total,
                    ],
                    x.shared_tensors,
                    x.bytes_per_index,
                    np.nan_to_num(x.in_use_bytes),
                    np.nan_to_num(x.heads_in_use),
                    x.peak_in_use_bytes,
                    x.median_in_use_bytes,
                    x.share_above(50_000),
                ]
            )
        yield (
            f"trace {kernel} {gpu} {' '.join(map(str, values.values()))}",
            [
                traced.bin_ps,
                traced.hit,
                traced.miss,
                np.nan_to_num(traced.hit_rate()),
                traced.misses(),
                traced.loaded(),
                traced.partition_bytes,
                traced.bins,
                np.arange(traced.bins) * (traced.bin_ps / PS),
                traced.launch(traced.launches[-1].name).slots,
                launches,
            ],
        )


def checksum(low: Lowered) -> list[Any]:
    """Of arrays, in their order."""

    def of(a: Any) -> int:
        flat = np.asarray(a, dtype=np.int64).ravel()
        return int((flat * np.arange(1, flat.size + 1) % 1_000_003).sum())

    parts: list[Any] = [low.tensors, of(low.size), of(low.owner)]
    for x in low.launches:
        templates = [
            [t.tensor, t.mode, of(t.base), t.coef, t.span, t.rows, t.row_stride]
            for t in (*x.prologue, *x.loop, *x.epilogue)
        ]
        parts.append(
            [
                x.name,
                x.tiles,
                x.accesses,
                of(x.first),
                of(x.count),
                of(x.down),
                of(x.head),
                of(x.block),
                x.group,
                None if x.indices is None else of(x.indices),
                [[str(o), n] for o, n in x.owned],
                templates,
            ]
        )
    return parts


def limits() -> Iterator[tuple[str, Any]]:
    """How much memory a replay may take, and how many bins and accesses a trace."""
    for case in (
        (48_611_111, 0, 0),
        (48_611_112, 0, 0),
        (0, 1_750_000_000, 0),
        (0, 1_750_000_001, 0),
        (0, 0, 125_000_000),
        (0, 0, 125_000_001),
        (10_000_000, 690_000_000, 50_000_000),
        (10_000_000, 690_000_001, 50_000_000),
    ):
        try:
            refuse_bytes(*case)
            yield f"memory {case}", "taken"
        except InputError:
            yield f"memory {case}", "refused"
    for bins in (0, 1, 100_000, 100_001):
        try:
            check_bins(bins)
            yield f"bins {bins}", "taken"
        except InputError:
            yield f"bins {bins}", "refused"
    for kernel, tokens in (("fa2", 2048), ("eager", 512), ("flash1", 512)):
        p = AttentionProblem(heads=2, seq_q=tokens, head_dim=64, dtype="fp16")
        call = planned(p, kernel, "a100")
        yield f"accesses of {kernel}", [check_traceable(call), tile_bytes(call.chain)]


def lowered() -> Iterator[tuple[str, Any]]:
    """Start orders as arrays."""
    p = AttentionProblem(batch=2, heads=3, seq_q=500, head_dim=64, dtype="bf16", mask="causal")
    for order, section, heavy in product(("query", "head", "batch"), (0, 2, 4, 100), (False, True)):
        over = Overrides(
            order=order,
            section_heads=section,
            heavy_first=heavy,
            tile=(128, 64),
            direction="alternating",
        )
        launch = plan(p, resolve("flash", p, load_profile("a100"), over)).launches[0]
        head, block = start_order(launch)
        yield (
            f"order {order} {section} {heavy}",
            ["".join(map(str, head)), "".join(map(str, block))],
        )


def shares() -> Iterator[tuple[str, Any]]:
    for kernel, gpu, head_dim, mask in product(
        ("flash", "fa2", "cutlass", "triton"), ("a100", "h200"), (64, 128), ("none", "causal")
    ):
        for dtype in ("bf16", "fp16"):
            p = AttentionProblem(heads=2, seq_q=512, head_dim=head_dim, mask=mask, dtype=dtype)
            chosen = resolve(kernel, p, load_profile(gpu))
            shares_found = [
                rates_of(chosen, p, n, compiled=c) for n in (1, 2, 3, 4, 8) for c in (True, False)
            ]
            yield (
                f"shares {kernel} {gpu} {head_dim} {mask} {dtype}",
                [shares_found, [str(k) for k in keys_of(chosen, p, 2)]],
            )
            yield (
                f"stated share {kernel} {gpu} {head_dim} {mask} {dtype}",
                rates_of(replace(chosen, age_share=0.3), p, 3),
            )
    yield "slopes", [sloped(0.5, 2), sloped(0.3, 4)]

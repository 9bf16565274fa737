"""Short traces of accesses, played by the engine and by a slow cache that can be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from reference_cache import LOAD, REDUCE, STORE, SlowL2

from iosim.hardware.profile import load_profile
from iosim.readers.replay.engine import L2, Ctas
from iosim.readers.replay.l2 import L2Model, model, sm_partitions
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.templates import Template

LINE = 128
Access = tuple[int, int, int]
"""(mode, object, partition of the SM)."""


def small(
    partitions: int = 1, sets: int = 1, ways: int = 4, dirty_ways: float | None = None
) -> L2Model:
    """An L2 without latencies or limits of bandwidth, so that accesses happen in the order of the work tiles."""
    return replace(
        model(load_profile("h200-sxm")),
        partitions=partitions,
        sets=sets,
        ways=ways,
        line_bytes=LINE,
        dirty_ways=ways if dirty_ways is None else dirty_ways,
        foreign_dirty_bytes=0,
        launch_fetch_bytes=0,
        sm_spread=0.0,
        dram_bytes_per_s=1e30,
        dram_write_bytes_per_s=1e30,
        side_ends=(1, 2),
        l2_bytes_per_s=1e30,
        l2_latency_s=0.0,
        far_latency_s=0.0,
        dram_latency_s=0.0,
    )


def fixed(trace: list[Access]) -> LoweredLaunch:
    """One work tile an access. Two CTAs on two SMs, one a partition, take turns; a turn without an access is idle."""
    sides = [int(x) for x in sm_partitions(2, 2, (1, 2))]
    turns: list[tuple[int, int]] = []
    for mode, item, partition in trace:
        while sides[len(turns) % 2] != partition:
            turns.append((LOAD, -1))
        turns.append((mode, item))
    base = {
        m: np.array([o if m == n else -1 for n, o in turns], dtype=np.int32)
        for m in (LOAD, STORE, REDUCE)
    }
    zero = np.zeros(len(turns), dtype=np.int32)
    templates = tuple(Template(str(m), m, b) for m, b in base.items())
    return LoweredLaunch("trace", zero, zero, templates, (), (), zero.astype(np.uint8), zero, zero)


def play(
    model: L2Model, trace: list[Access], objects: int, lines: int = 1, samples: float = 1e9
) -> L2:
    """The trace through the engine, every line followed unless `samples` an object are asked for."""
    l2 = L2(
        model,
        np.full(objects, lines * LINE, dtype=np.int32),
        np.zeros(objects, dtype=np.uint8),
        samples,
    )
    l2.replay(fixed(trace), Ctas(slots=2, sms=2, static_stride=2, start_s=1e-9))
    return l2


def slow(model: L2Model, l2: L2, trace: list[Access]) -> SlowL2:
    """The same trace through the slow cache; the hash that places lines is taken from the engine's L2."""
    placed = l2.samples
    cache = SlowL2(
        model.partitions,
        placed.sets,
        model.ways,
        placed.set.tolist(),
        placed.home.tolist(),
        int(model.dirty_ways),
    )
    for mode, item, partition in trace:
        for line in range(placed.first[item], placed.first[item + 1]):
            cache.access(mode, line, partition if model.partitions == 2 else 0)
    return cache


def assert_same(model: L2Model, trace: list[Access], objects: int, lines: int = 1) -> None:
    l2 = play(model, trace, objects, lines)
    cache = slow(model, l2, trace)
    bytes_each = int(l2.config.sample_bytes)
    assert bytes_each == LINE  # every line is followed
    assert l2.counts()[0][0] == cache.read * LINE
    assert l2.counts()[1][0] == cache.written * LINE
    assert l2.dirty_bytes() == cache.dirty() * LINE
    assert int(l2.state.fabric) == cache.crossed * LINE
    assert cache.hits + cache.misses == lines * len(trace)


def in_turn(objects: int, passes: int, mode: int = LOAD) -> list[Access]:
    return [(mode, o, 0) for _ in range(passes) for o in range(objects)]


def random_trace(seed: int, objects: int, length: int) -> list[Access]:
    rng = np.random.default_rng(seed)
    mode, item, side = (
        rng.integers(0, 3, length),
        rng.integers(0, objects, length),
        rng.integers(0, 2, length),
    )
    return [(int(m), int(o), int(p)) for m, o, p in zip(mode, item, side, strict=True)]

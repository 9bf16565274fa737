"""The compiled engine against the slow cache, plain LRU and exact reuse distances, on traces in a fixed order."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from effort import examples, quick_first
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_cache import LOAD, REDUCE, STORE, lru_hits, reuse_distances
from traces import LINE, Access, assert_same, fixed, in_turn, play, random_trace, small

from iosim.base.errors import InputError
from iosim.readers.replay import engine
from iosim.readers.replay import scan as scans
from iosim.readers.replay.engine import L2, MAX_TEMPLATES, Ctas, TraceRecord
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.templates import Template

FIXED: dict[str, list[Access]] = {
    "one object": [(LOAD, 0, 0)] * 3,
    "a scan that fits": in_turn(4, 3),
    "a scan that does not": in_turn(5, 3),
    "both sides read": [(LOAD, o % 7, o % 2) for o in range(40)],
    "written, read from the other side": [(STORE, o, 0) for o in range(6)]
    + [(LOAD, o, 1) for o in range(6)],
    "written until dirty lines leave": in_turn(9, 2, STORE),
    "sums": [(REDUCE, o % 5, o % 2) for o in range(30)],
}


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("dirty_ways", [1, 2, 4])
@pytest.mark.parametrize("name", list(FIXED))
def test_engine_is_the_slow_cache_on_fixed_traces(
    name: str, partitions: int, dirty_ways: int
) -> None:
    assert_same(small(partitions, 1, 4, dirty_ways), FIXED[name], 10)


@pytest.mark.parametrize("seed", quick_first(range(4), 1))
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize(
    ("sets", "ways", "lines"), [(1, 1, 1), (1, 16, 1), (16, 2, 3), (32, 4, 8), (64, 16, 32)]
)
def test_engine_is_the_slow_cache_on_random_traces(
    partitions: int, sets: int, ways: int, lines: int, seed: int
) -> None:
    objects = max(3, 2 * sets * ways // lines)
    assert_same(
        small(partitions, sets, ways, max(1, (ways * 7 // 16, ways, 1, ways // 2)[seed])),
        random_trace(seed, objects, 1500),
        objects,
        lines,
    )


@settings(max_examples=examples(150), deadline=None)
@given(
    trace=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 11), st.integers(0, 1)), min_size=1, max_size=80
    ),
    ways=st.integers(1, 32),
    partitions=st.integers(1, 2),
    sets=st.sampled_from((1, 2, 16)),
    dirty_ways=st.integers(1, 32),
)
def test_engine_is_the_slow_cache(
    trace: list[Access], ways: int, partitions: int, sets: int, dirty_ways: int
) -> None:
    assert_same(small(partitions, sets, ways, min(ways, dirty_ways)), trace, 12)


def test_the_launch_worked_by_hand() -> None:
    """The events that the engine's first page lists: three CTAs on two SMs, a miss of half a microsecond."""
    l2_of_gpu = replace(small(ways=16), dram_latency_s=0.5e-6)

    def each(*values: int) -> Any:
        return np.array(values, dtype=np.int32)

    launch = LoweredLaunch(
        name="by hand",
        first=each(0, 0, 0),
        count=each(2, 2, 2),
        prologue=(Template("Q", 0, each(2, 3, 4)),),
        loop=(Template("K", 0, each(0, 0, 0), coef=1),),
        epilogue=(Template("O", 1, each(5, 6, 7)),),
        down=np.zeros(3, dtype=np.uint8),
        head=each(0, 0, 0),
        block=each(0, 1, 2),
    )
    l2 = L2(
        l2_of_gpu,
        np.full(8, LINE, dtype=np.int32),
        np.array([1, 1, 0, 0, 0, 2, 2, 2], dtype=np.uint8),
    )
    record = TraceRecord(ctas=3, samples=int(l2.samples.object.size))
    sm, (start, end) = np.zeros(3, dtype=np.int32), np.zeros((2, 3), dtype=np.int64)
    record.cta_sm, record.cta_start, record.cta_end = (
        array.ctypes.data for array in (sm, start, end)
    )
    took, _ = l2.replay(launch, Ctas(slots=3, sms=2, step_s=1e-6, slow=(1.0, 2.0)), trace=record)
    assert sm.tolist() == [0, 1, 0]
    assert start.tolist() == [0, 0, 0]
    assert end / 1e6 == pytest.approx([4.5, 2.5, 4.5], rel=1e-3)  # times have twelve bits
    assert took == end.max()
    assert l2.counts()[0][:3] == [3 * LINE, 2 * LINE, 0]  # Q thrice, K0 and K1 once each
    assert l2.dirty_bytes() == 3 * LINE  # O waits in the L2


@pytest.mark.parametrize("ways", [1, 2, 5, 16])
@pytest.mark.parametrize("seed", range(5))
def test_a_set_drives_out_its_least_recently_used_line(ways: int, seed: int) -> None:
    items = [o for _, o, _ in random_trace(seed, 5, 400)]
    l2 = play(small(ways=ways), [(LOAD, o, 0) for o in items], 5)
    assert len(items) - l2.counts()[0][0] // LINE == lru_hits(items, ways)


def test_a_store_leaves_a_copy_on_its_side_and_takes_the_other_sides() -> None:
    """Object 0 is at home on one side. A store from the far side is then read there without crossing; a store from the
    home side takes that copy away, so that the far side crosses again."""
    l2_model = small(2, 1, 4)
    home = int(play(l2_model, [(LOAD, 0, 0)], 1).samples.home[0])
    far = 1 - home
    after_store = play(l2_model, [(STORE, 0, far), (LOAD, 0, far)], 1)
    assert int(after_store.state.fabric) == LINE  # the store alone
    lost = play(l2_model, [(STORE, 0, far), (STORE, 0, home), (LOAD, 0, far)], 1)
    assert int(lost.state.fabric) == 2 * LINE  # the first store and the load
    summed = play(l2_model, [(REDUCE, 0, far), (LOAD, 0, far)], 1)
    assert int(summed.state.fabric) == 2 * LINE  # a sum leaves no copy


@pytest.mark.parametrize(("stored", "loads", "asked_line", "stays"), [
    (1, 16, 0, True), (1, 17, 0, False),  # 15 clean ones go; it is written back and a clean one goes; then it goes
    # the first load finds 8 dirty ones and writes the oldest back; 8 clean ones go, then that one
    (8, 8, 0, True), (8, 9, 0, False),
    (8, 22, 7, True), (8, 23, 7, False),  # then two loads for each of the other 7
    (16, 1, 0, False), (16, 22, 15, True), (16, 23, 15, False),  # the first 8 were written back as others came
])  # fmt: skip
def test_a_dirty_line_gets_a_second_chance(
    stored: int, loads: int, asked_line: int, stays: bool
) -> None:
    """What an H200's sets did (experiments/sets.py --orders): stores, loads of others, then one is asked for."""
    old = range(100, 116)
    new = range(200, 200 + loads)
    trace = (
        [(LOAD, o, 0) for o in old]
        + [(STORE, o, 0) for o in range(stored)]
        + [(LOAD, o, 0) for o in new]
    )
    before = play(small(1, 1, 16, dirty_ways=8), trace, 300)
    after = play(small(1, 1, 16, dirty_ways=8), [*trace, (LOAD, asked_line, 0)], 300)
    assert (sum(after.counts()[0]) == sum(before.counts()[0])) == stays


@pytest.mark.parametrize("loads", [8, 16, 64])
def test_an_l2_that_keeps_what_is_dirty(loads: int) -> None:
    """Eight lines of a set of 16 ways written, then others loaded. The first eight fill the set. Each later one writes a
    dirty line back as often as one of 16 ways taken by chance is dirty, so that 15/16 of the dirty ones stay."""
    lines = 64
    accesses = [(STORE, n) for n in range(8)] + [(LOAD, 8 + n) for n in range(loads)]
    mode, number = np.array(accesses).T
    size, owner = np.full(72, lines * LINE, dtype=np.int32), np.zeros(72, dtype=np.uint8)
    l2 = L2(small(1, lines, 16), size, owner, 1e9)
    l2.config.keeps_dirty = 1
    l2.access(mode.astype(np.uint8), number.astype(np.int32), np.zeros(mode.size, np.uint8))
    written = sum(l2.counts()[1]) / (lines * LINE)
    assert written == pytest.approx(8 * (1 - (15 / 16) ** (loads - 8)), abs=0.3)
    assert l2.dirty_bytes() / (lines * LINE) == 8 - written


def test_a_fraction_of_a_dirty_line_is_one_more_in_so_many_sets() -> None:
    """64 sets of four ways, 1.5 of them dirty: two stores into every set write back half of the sets' first lines."""
    l2 = play(small(sets=64, ways=4, dirty_ways=1.5), [(STORE, o, 0) for o in range(128)], 128)
    assert 20 <= l2.counts()[1][0] // LINE <= 44  # 32 but for the hash's chance
    assert l2.dirty_bytes() == 128 * LINE - l2.counts()[1][0]


def test_a_set_holds_no_more_dirty_lines_than_it_may() -> None:
    """Three stores into four ways, at most two of them dirty: the first is written back and stays; reading it hits."""
    l2 = play(
        small(ways=4, dirty_ways=2), [(STORE, 0, 0), (STORE, 1, 0), (STORE, 2, 0), (LOAD, 0, 0)], 3
    )
    assert l2.counts() == ([0] * 64, [LINE] + [0] * 63)
    assert l2.dirty_bytes() == 2 * LINE


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 16])
def test_lru_hits_are_the_short_reuse_distances(capacity: int) -> None:
    items = [o for _, o, _ in random_trace(1, 20, 500)]
    assert lru_hits(items, capacity) == sum(
        d is not None and d < capacity for d in reuse_distances(items)
    )


@pytest.mark.parametrize(("objects", "limit"), [(100, 0.0), (240, 0.1), (600, 0.06)])
def test_following_a_line_an_object_costs_little(objects: int, limit: float) -> None:
    """Random re-reads of 8 KiB tiles in a 2 MiB L2 (fits; just above; far above): a line followed in each tile against
    every line followed. What sampling loses is bounded by `limit` of the exact reads."""
    l2_model = small(sets=1024, ways=16)
    trace = [(LOAD, o, 0) for _, o, _ in random_trace(0, objects, 4000)]
    exact = play(l2_model, trace, objects, lines=64).counts()[0][0]
    sampled = play(l2_model, trace, objects, lines=64, samples=1.0).counts()[0][0]
    assert abs(sampled - exact) <= limit * exact


def monotone_reads(pattern: list[int], objects: int) -> list[int]:
    return [
        play(small(sets=s, ways=16), [(LOAD, o, 0) for o in pattern], objects, lines=16).counts()[
            0
        ][0]
        for s in (16, 32, 64, 128, 256)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_misses_fall_as_capacity_grows(seed: int) -> None:
    """Other numbers of sets hash otherwise, so that a larger cache may miss more, here by at most 2 %.
    Once everything fits, only the first touches miss."""
    objects = 128
    reads = monotone_reads([o for _, o, _ in random_trace(seed, objects, 2500)], objects)
    assert all(after <= 1.02 * before for before, after in pairwise(reads))
    assert (
        reads[-1] == objects * 16 * LINE
    )  # 256 sets x 16 ways x 128 bytes hold twice the 256 KiB touched


@pytest.mark.parametrize(("ways", "slots"), [(0, 1), (33, 1), (-1, 1), (16, 0)])
def test_nonsense_is_refused(ways: int, slots: int) -> None:
    with pytest.raises(InputError, match=r"l2_ways|at least one CTA"):
        L2(small(ways=ways), np.full(1, LINE), np.zeros(1)).replay(
            fixed([(LOAD, 0, 0)]), Ctas(slots, sms=1)
        )


@pytest.mark.parametrize(
    ("bytes_", "pattern", "passes", "ctas"),
    [
        (1 << 20, "zigzag", 4, 4),
        (1000, "shared_scan", 4, 4),
        (1 << 20, "private_scan", 4, 1000),
        (1 << 20, "shared_scan", 0, 1),
    ],
)
def test_nonsense_scans_are_refused(bytes_: int, pattern: str, passes: int, ctas: int) -> None:
    with pytest.raises(InputError, match="accepted"):
        scans.scan(small(), bytes_, pattern, passes, ctas)


# --- what the engine is given ---------------------------------------------------------------------------------------


def four_objects() -> L2:
    return L2(small(2, 4, 4), np.full(4, LINE, dtype=np.int32), np.zeros(4, dtype=np.uint8), 1e9)


def launch_of(
    base: int = 0, first: int = 0, count: int = 1, indices: list[int] | None = None, **more: Any
) -> LoweredLaunch:
    """One work tile that loads `count` objects from `base` on."""
    zero = np.zeros(1, dtype=np.int32)
    return replace(
        LoweredLaunch(
            "x",
            zero + first,
            zero + count,
            (),
            (Template("x", LOAD, zero + base, 1),),
            (),
            zero.astype(np.uint8),
            zero,
            zero,
            indices=None if indices is None else np.array(indices, dtype=np.int32),
        ),
        **more,
    )


def numbers(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values)


WRONG: dict[str, Callable[[L2], Any]] = {
    "place below": lambda l2: l2.place(range(-1, 1), dirty=False),
    "place above": lambda l2: l2.place(range(3, 5), dirty=True),
    "place in steps": lambda l2: l2.place(range(0, 4, 2), dirty=True),
    "own below": lambda l2: l2.own(range(-2, 1), 0),
    "own above": lambda l2: l2.own(range(2, 5), 0),
    "own by no tensor": lambda l2: l2.own(range(2), 64),
    "own by a negative tensor": lambda l2: l2.own(range(2), -1),
    "access below": lambda l2: l2.access(numbers(0), numbers(-1), numbers(0)),
    "access above": lambda l2: l2.access(numbers(0), numbers(4), numbers(0)),
    "access in no mode": lambda l2: l2.access(numbers(4), numbers(0), numbers(0)),
    "access from no side": lambda l2: l2.access(numbers(0), numbers(0), numbers(2)),
    "tiles below": lambda l2: l2.replay(launch_of(base=-2), Ctas(1, 1)),
    "tiles above": lambda l2: l2.replay(launch_of(count=5), Ctas(1, 1)),
    "tiles far above": lambda l2: l2.replay(launch_of(first=2**31 - 2, count=1), Ctas(1, 1)),
    "a list that goes above": lambda l2: l2.replay(
        launch_of(count=3, indices=[0, 4, 1]), Ctas(1, 1)
    ),
    "a list that goes below": lambda l2: l2.replay(
        launch_of(count=3, indices=[0, -1, 1]), Ctas(1, 1)
    ),
    "a list too short": lambda l2: l2.replay(launch_of(count=3, indices=[0, 1]), Ctas(1, 1)),
    "fewer than no steps": lambda l2: l2.replay(launch_of(count=-1), Ctas(1, 1)),
    "stores above": lambda l2: l2.replay(
        launch_of(epilogue=(Template("x", STORE, np.full(1, 4, np.int32)),)), Ctas(1, 1)
    ),
    "rows above": lambda l2: l2.replay(
        launch_of(prologue=(Template("x", LOAD, np.zeros(1, np.int32), rows=3, row_stride=2),)),
        Ctas(1, 1),
    ),
    "heads in turn above": lambda l2: l2.replay(
        launch_of(
            count=4, loop=(Template("x", LOAD, np.zeros(1, np.int32), 1, turn=2, turn_coef=3),)
        ),
        Ctas(1, 1),
    ),
    "heads in turn backwards": lambda l2: l2.replay(
        launch_of(
            count=4, loop=(Template("x", LOAD, np.zeros(1, np.int32), 1, turn=2, turn_coef=-1),)
        ),
        Ctas(1, 1),
    ),
    "a list of skips too short": lambda l2: l2.replay(
        launch_of(
            count=2,
            loop=(
                Template(
                    "x",
                    LOAD,
                    np.zeros(1, np.int32),
                    1,
                    skips=np.zeros(1, np.int32),
                    block=np.ones(1, np.int32),
                ),
            ),
        ),
        Ctas(1, 1),
    ),
    "no such mode": lambda l2: l2.replay(
        launch_of(prologue=(Template("x", 4, np.zeros(1, np.int32)),)), Ctas(1, 1)
    ),
    "too few tiles": lambda l2: l2.replay(launch_of(down=np.zeros(0, np.uint8)), Ctas(1, 1)),
    "tiles of another type": lambda l2: l2.replay(
        launch_of(loop=(Template("x", LOAD, np.zeros(1, np.int64)),)), Ctas(1, 1)
    ),
    "tiles that lie apart": lambda l2: l2.replay(
        launch_of(first=np.zeros(4, np.int32)[::2], count=np.ones(2, np.int32)), Ctas(1, 1)
    ),
    "groups of more than there are": lambda l2: l2.replay(launch_of(group=2), Ctas(1, 1)),
    "no group": lambda l2: l2.replay(launch_of(group=0), Ctas(1, 1)),
    "an SM that does nothing": lambda l2: l2.replay(launch_of(), Ctas(1, 1, rates=(1.0, 0.0))),
    "no rates": lambda l2: l2.replay(launch_of(), Ctas(1, 1, rates=())),
    "a stride backwards": lambda l2: l2.replay(launch_of(), Ctas(1, 1, static_stride=-1)),
    "a stride past whole numbers": lambda l2: l2.replay(
        launch_of(), Ctas(1, 1, static_stride=2**31 - 1)
    ),
    "two CTAs that take no time": lambda l2: l2.replay(launch_of(), Ctas(1, 1, slow=(1.0, 0.0))),
    "two CTAs 2,001 times as slow": lambda l2: l2.replay(
        launch_of(), Ctas(1, 1, slow=(1.0, 2001.0))
    ),
    "fewer than no waits": lambda l2: l2.replay(launch_of(), Ctas(1, 1, waits=-1)),
    "waits of 1,001 latencies": lambda l2: l2.replay(launch_of(), Ctas(1, 1, waits=1001)),
    "no SMs alike": lambda l2: l2.replay(launch_of(), Ctas(1, 1, sms_alike=0)),
    "steps that vary by all of it": lambda l2: l2.replay(
        launch_of(), Ctas(1, 1, step_spread_ppm=1_000_000)
    ),
    "steps that vary by less than nothing": lambda l2: l2.replay(
        launch_of(), Ctas(1, 1, step_spread_ppm=-1)
    ),
    "fewer than no objects at once": lambda l2: l2.replay(
        launch_of(loop=(Template("x", LOAD, np.zeros(1, np.int32), 1, span=-1),)), Ctas(1, 1)
    ),
    "fewer than no rows": lambda l2: l2.replay(
        launch_of(loop=(Template("x", LOAD, np.zeros(1, np.int32), 1, rows=-1),)), Ctas(1, 1)
    ),
    "before time": lambda l2: l2.replay(launch_of(), Ctas(1, 1), begin_ps=-1),
    "a trace of other work tiles": lambda l2: l2.replay(
        launch_of(), Ctas(1, 1), trace=TraceRecord(ctas=2, cta_start=1, cta_sm=1)
    ),
    "a trace without bins": lambda l2: l2.replay(
        launch_of(), Ctas(1, 1), trace=TraceRecord(bin_ps=1)
    ),
    "recorded from no side": lambda l2: l2.replay_recorded(
        launch_of(), numbers(0)[None], numbers(1), 1, numbers(2)
    ),
    "recorded at too few marks": lambda l2: l2.replay_recorded(
        launch_of(count=3), numbers(0)[None], numbers(1), 2, numbers(0)
    ),
    "recorded every 0 steps": lambda l2: l2.replay_recorded(
        launch_of(), numbers(0)[None], numbers(1), 0, numbers(0)
    ),
    "recorded tiles above": lambda l2: l2.replay_recorded(
        launch_of(base=9), numbers(0)[None], numbers(1), 1, numbers(0)
    ),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_what_does_not_fit_is_refused_and_changes_nothing(case: str) -> None:
    l2 = four_objects()
    l2.access(numbers(STORE, LOAD), numbers(1, 2), numbers(0, 1))
    before = l2.counts(), l2.dirty_bytes()
    with pytest.raises(InputError):
        WRONG[case](l2)
    assert (l2.counts(), l2.dirty_bytes()) == before
    l2.replay(launch_of(count=4), Ctas(1, 1))


@pytest.mark.parametrize(
    "sizes",
    [
        {"static_stride": 2**31 - 2},
        {"slow": (1.0, 2000.0)},
        {"slow": (1e-3, 1.0)},
        {"waits": 1000},
        {"waits": 0},
        {"step_spread_ppm": 999_999},
        {"step_spread_ppm": 0},
        {"rates": (1e-6,)},
        {"sms_alike": 1},
    ],
    ids=str,
)
def test_the_last_that_fits_is_played(sizes: dict[str, Any]) -> None:
    l2 = four_objects()
    l2.replay(launch_of(count=4), Ctas(1, 1, **sizes))
    assert l2.counts()[0][0] == 4 * LINE


BASE = np.ones(1, dtype=np.int32)


@pytest.mark.parametrize(
    ("loop", "how", "read"),
    [
        # A work tile of four steps from object 1 on: which of nine objects it reads.
        (Template("x", LOAD, BASE, 0), {}, {1}),
        (Template("x", LOAD, BASE, 1), {}, {1, 2, 3, 4}),
        (Template("x", LOAD, BASE, 2), {}, {1, 3, 5, 7}),
        (Template("x", LOAD, BASE, 1), {"first": BASE}, {2, 3, 4, 5}),
        (
            Template("x", LOAD, BASE, 1),
            {"indices": np.array([0, 2, 5, 6], dtype=np.int32)},
            {1, 3, 6, 7},
        ),
        # Two rows of two objects, three further on, at each step
        (Template("x", LOAD, BASE, 1, span=2, rows=2, row_stride=3), {}, {1, 2, 3, 4, 5, 6, 7, 8}),
        (Template("x", LOAD, BASE, 0, span=2, rows=2, row_stride=3), {}, {1, 2, 4, 5}),
        # Two blocks of a head, then two of the next head, whose first is five objects further on
        (Template("x", LOAD, BASE, 1, turn=2, turn_coef=5), {}, {1, 2, 6, 7}),
        (Template("x", LOAD, BASE, 1, turn=3, turn_coef=5), {}, {1, 2, 3, 6}),
        # Nothing where the list of skips names the work tile's block, here 7
        (
            Template(
                "x", LOAD, BASE, 1, skips=np.array([7, 0, 7, 1], dtype=np.int32), block=7 * BASE
            ),
            {},
            {2, 4},
        ),
        (Template("x", LOAD, -BASE, 1), {}, set()),  # no access at all
    ],
)
def test_objects_that_a_template_reads(loop: Template, how: dict[str, Any], read: set[int]) -> None:
    sizes = LINE << np.arange(9, dtype=np.int32)  # of 1, 2, 4, ... lines: their sum says which
    l2 = L2(small(1, 64, 16, 16), sizes, np.zeros(9, dtype=np.uint8), 1e9)
    zero = np.zeros(1, dtype=np.int32)
    parts = {"first": zero, "count": zero + 4, "down": zero.astype(np.uint8)} | how
    launch = LoweredLaunch(
        "x",
        parts["first"],
        parts["count"],
        (),
        (loop,),
        (),
        parts["down"],
        zero,
        zero,
        indices=parts.get("indices"),
    )
    l2.replay(launch, Ctas(1, 1, step_s=1e-9))
    assert l2.counts()[0][0] == LINE * sum(1 << o for o in read)


@pytest.mark.parametrize(
    ("steps", "tiles", "ctas", "done"),
    [
        # The engine says at its 65,536th event how many work tiles are done. A tile of 998 steps is 1,000 events: it begins,
        # steps, ends. So 65 tiles are done, and 534 steps of the next.
        (998, 200, Ctas(1, 1, step_s=1e-9), 65),
        (
            998,
            200,
            Ctas(1, 1, step_s=1e-9, ahead=True),
            65,
        ),  # the tile that is claimed ahead is not begun
        # Four CTAs in step: 16 rounds are 64 tiles and 64,000 events, 382 steps of four more are 1.5 tiles.
        (998, 200, Ctas(4, 4, step_s=1e-9), 65),
        # 255 tiles of 257 events are 65,535: the next event begins a tile.
        (255, 300, Ctas(1, 1, step_s=1e-9), 255),
        (70_000, 1, Ctas(1, 1, step_s=1e-9), 0),
    ],
    ids=["one CTA", "claimed ahead", "four CTAs", "a tile begins", "the first tile"],
)
def test_tiles_that_are_done_are_told_meanwhile(
    steps: int, tiles: int, ctas: Ctas, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[int] = []

    def stopped(play: Callable[[ct.c_int32, ct.c_int32], int], launch: LoweredLaunch) -> int:
        """Plays until the engine looks whether to stop, which it does after it said how far it is."""
        count = ct.c_int32(0)
        play(count, ct.c_int32(1))
        progress.append(count.value)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_interruptible", stopped)
    zero = np.zeros(tiles, dtype=np.int32)
    launch = LoweredLaunch("x", zero, zero + steps, (), (), (), zero.astype(np.uint8), zero, zero)
    with pytest.raises(KeyboardInterrupt):
        four_objects().replay(launch, ctas)
    assert progress == [done]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"partitions": 0}, "l2_partitions"),
        ({"partitions": 3}, "1 or 2"),
        ({"partitions": 64}, "l2_partitions"),
        ({"dirty_ways": 0.5}, "dirty ways"),
        ({"ways": 33}, "l2_ways"),
    ],
)
def test_an_l2_that_the_model_does_not_cover_is_refused(
    wrong: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        L2(replace(small(), **wrong), np.full(1, LINE), np.zeros(1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partitions", 3),
        ("partitions", 0),
        ("ways", 0),
        ("ways", 64),
        ("sets", 0),
        ("dirty_share", 0),
    ],
)
def test_the_engine_itself_refuses_such_an_l2(field: str, value: int) -> None:
    """Whoever hands it one: Python's own checks are not in the way here."""
    l2 = four_objects()
    setattr(l2.config, field, value)
    for act in (
        lambda: l2.replay(launch_of(), Ctas(1, 1)),
        lambda: l2.place(range(1), dirty=False),
        lambda: l2.access(numbers(0), numbers(0), numbers(0)),
        lambda: l2.replay_recorded(launch_of(), numbers(0)[None], numbers(1), 1, numbers(0)),
    ):
        with pytest.raises(InputError, match="nothing was played"):
            act()


COARSE = {"coarse": 2, "walks": 1}
"""A plan of coarse steps, with the arrays that `damaged` gives it."""


@pytest.mark.parametrize(
    "damage",
    [
        {"tiles": -1},
        *({f"n_{part}": n} for part in ("pro", "loop", "epi") for n in (-1, MAX_TEMPLATES + 1)),
        {"listed": -1},
        *({pointer: None} for pointer in ("first", "count", "down", "side", "share_ppm")),
        *({name: 0} for name in ("slots", "sms", "sms_alike", "group", "ranks", "queues")),
        {"queues": 2, "sms": 1},
        {"crowds": -1},
        {"crowds": 1, "slow_ppm": None},
        {"coarse": -1},
        COARSE | {"walks": -1},
        COARSE | {"walks": 2},  # of the one access that the loop has
        COARSE | {"lead": None},
        COARSE | {"trail": None},
        COARSE | {"lead": 0},
        COARSE | {"trail": 0},
    ],
    ids=str,
)
def test_the_engine_itself_refuses_such_a_launch(
    damage: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every bound of check.h that Python's own plans never reach: nothing is read where nothing is."""
    steps = {value: np.full(1, value, dtype=np.int32) for value in (0, 1)}
    real = engine.launch_plan

    def damaged(*arguments: Any) -> Any:
        plan, kept = real(*arguments)
        plan.lead = plan.trail = steps[1].ctypes.data
        for name, value in damage.items():
            is_array = name in ("lead", "trail") and value is not None
            setattr(plan, name, steps[value].ctypes.data if is_array else value)
        return plan, kept

    monkeypatch.setattr(engine, "launch_plan", damaged)
    l2 = four_objects()
    with pytest.raises(InputError, match="nothing was played"):
        l2.replay(launch_of(count=2), Ctas(1, 1))
    assert l2.counts()[0][0] == 0


def test_where_no_ctas_crowd_nothing_is_asked_of_their_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = engine.launch_plan

    def without_crowds(*arguments: Any) -> Any:
        plan, arrays = real(*arguments)
        plan.crowds, plan.slow_ppm = 0, None
        return plan, arrays

    monkeypatch.setattr(engine, "launch_plan", without_crowds)
    l2 = four_objects()
    l2.replay(launch_of(count=2), Ctas(1, 1))
    assert l2.counts()[0][0] == 2 * LINE


def test_what_several_l2s_wrote_back_after_a_launch_is_clean() -> None:
    """Each of four lines is stored once: written to memory at the launch's end, and not again by the next."""
    l2 = L2(
        replace(small(2, 4, 4), apart=True),
        np.full(4, LINE, dtype=np.int32),
        np.zeros(4, dtype=np.uint8),
        1e9,
    )
    stored = (Template("x", STORE, np.zeros(1, dtype=np.int32), 1),)
    l2.replay(replace(launch_of(count=4), loop=stored), Ctas(2, 2))
    for _ in range(2):
        assert l2.counts()[1][0] == 4 * LINE
        assert l2.dirty_bytes() == 0
        l2.replay(launch_of(count=4), Ctas(2, 2))


def test_objects_of_tensors_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(InputError, match="tensor"):
        L2(small(), np.full(2, LINE), np.array([0, 64]))
    with pytest.raises(InputError, match="size"):
        L2(small(), np.array([LINE, -1]), np.zeros(2))
    with pytest.raises(InputError, match="owners"):
        L2(small(), np.full(2, LINE), np.zeros(1))


def takers(steps: list[int], slots: int, *, ahead: bool = False, step_s: float = 1e-6) -> list[int]:
    """The SM of each work tile, one CTA an SM; tiles of so many steps, from a queue."""
    n = len(steps)
    zero = np.zeros(n, dtype=np.int32)
    none = np.full(n, -1, dtype=np.int32)
    launch = LoweredLaunch(
        "uneven",
        zero,
        np.array(steps, dtype=np.int32),
        (),
        (Template("none", LOAD, none),),
        (),
        zero.astype(np.uint8),
        zero,
        zero,
    )
    l2 = L2(small(), np.full(1, LINE, dtype=np.int32), np.zeros(1, dtype=np.uint8))
    sm, start, end = (
        np.zeros(n, dtype=np.int32),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
    )
    record = TraceRecord(ctas=n, samples=1)
    record.cta_sm, record.cta_start, record.cta_end = (
        sm.ctypes.data,
        start.ctypes.data,
        end.ctypes.data,
    )
    l2.replay(
        launch, Ctas(slots=slots, sms=slots, step_s=step_s, start_s=1e-9, ahead=ahead), trace=record
    )
    return [int(x) for x in sm]


def test_who_claims_ahead_keeps_a_tile_that_others_could_take() -> None:
    """The first CTA has a long tile; what it claimed as it began waits for it."""
    steps = [9, 1, 1, 1, 1, 1]
    assert takers(steps, 2, ahead=False) == [0, 1, 1, 1, 1, 1]
    ahead = takers(steps, 2, ahead=True)
    assert ahead[:2] == [0, 1]
    assert sorted(ahead[2:]) == [0, 1, 1, 1]


def test_first_claims_come_by_chance() -> None:
    """CTAs that begin together are not dealt their second tiles in their own order, and each has one."""
    ahead = takers([1] * 128, 64, ahead=True)
    assert ahead[:64] == list(range(64))
    assert sorted(ahead[64:]) == list(range(64))
    assert sum(a == b for a, b in zip(ahead[64:], range(64), strict=True)) < 8
    assert takers([1] * 128, 64, ahead=False)[64:] == list(range(64))


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 64, 129])
def test_who_ends_first_takes_the_next_tile(slots: int) -> None:
    steps = [int(x) for x in np.random.default_rng(slots).integers(1, 9, 20 * slots)]
    assert takers(steps, slots) == first_to_end(steps, slots, step_ps=10**6)


def test_who_ends_first_takes_the_next_tile_in_launches_of_half_an_hour() -> None:
    """With 4,097 CTAs the engine's queue tells times 1,126 s apart: it has to count them anew on the way."""
    steps = [int(x) for x in np.random.default_rng(1).integers(150, 200, 5000)]
    assert takers(steps, 4097, step_s=8) == first_to_end(steps, 4097, step_ps=8 * 10**12)


def first_to_end(steps: list[int], slots: int, step_ps: int) -> list[int]:
    """The CTA of each work tile, 1 ns after its last one; of those that end together the lowest comes first."""
    running = [(steps[cta] * step_ps, cta) for cta in range(slots)]
    heapify(running)
    order = list(range(slots))
    for n in steps[slots:]:
        end, cta = running[0]
        heapreplace(running, (end + 1000 + n * step_ps, cta))
        order.append(cta)
    return order


def test_times_that_a_node_does_not_hold_are_counted_anew() -> None:
    """1,024 CTAs take ten of a node's 63 bits and leave 2^53 picoseconds. Tiles that open for a quarter of that end one
    after the other, the sixth of each CTA after six quarters."""
    slots, turns, quarter = 1024, 6, 1 << 51
    tiles = slots * turns
    sm, zero = np.zeros(tiles, dtype=np.int32), np.zeros(tiles, dtype=np.int32)
    start, end = np.zeros(tiles, dtype=np.int64), np.zeros(tiles, dtype=np.int64)
    launch = LoweredLaunch("main", zero, zero, (), (), (), zero.astype(np.uint8), zero, zero)
    l2 = L2(small(), np.full(1, LINE, dtype=np.int32), np.zeros(1, dtype=np.uint8), 1e9)
    trace = TraceRecord(
        ctas=tiles, cta_sm=sm.ctypes.data, cta_start=start.ctypes.data, cta_end=end.ctypes.data
    )
    ctas = Ctas(slots=slots, sms=slots, open_s=quarter / 1e12)
    assert l2.replay(launch, ctas, trace=trace)[0] == turns * quarter
    ends, tiles_of = np.unique(end, return_counts=True)
    assert ends.tolist() == [turn * quarter for turn in range(1, turns + 1)]
    assert tiles_of.tolist() == [slots] * turns

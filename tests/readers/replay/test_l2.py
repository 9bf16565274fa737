"""The list of caches between SMs and memory: one L2, several for themselves, and a cache at the memory's side."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_cache import LOAD, REDUCE, STORE
from traces import LINE, small

from iosim.base.errors import InputError
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import CacheLevel, load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.engine import L2, Ctas, TraceRecord
from iosim.readers.replay.l2 import L2Model, SideCache, sm_partitions
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.templates import Template

OBJECTS, LINES = 12, 3
ACCESSES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, OBJECTS - 1), st.integers(0, 7)),
    min_size=1,
    max_size=120,
)
LAW = settings(max_examples=examples(100), deadline=None)


def several(l2s: int, sets: int = 2, ways: int = 4, side: SideCache | None = None) -> L2Model:
    return replace(small(1, sets, ways), partitions=l2s, apart=True, side=side)


def behind(sets: int, ways: int = 4) -> SideCache:
    return SideCache(sets, ways, bytes_per_s=1e30, latency_s=0.0)


def accessed(l2_of_gpu: L2Model, accesses: list[tuple[int, int, int]]) -> L2:
    """An L2 after accesses (mode, object, L2 of the SM), all lines followed."""
    l2 = L2(
        l2_of_gpu,
        np.full(OBJECTS, LINES * LINE, dtype=np.int32),
        np.zeros(OBJECTS, dtype=np.uint8),
        1e9,
    )
    assert int(l2.config.sample_bytes) == LINE
    mode, number, side = np.array(accesses).reshape(-1, 3).T
    l2.access(mode.astype(np.uint8), number.astype(np.int32), side.astype(np.uint8))
    return l2


def total(l2: L2) -> tuple[int, int]:
    read, written = l2.counts()
    return sum(read), sum(written)


@LAW
@given(accesses=ACCESSES)
def test_one_l2_for_itself_is_one_l2(accesses: list[tuple[int, int, int]]) -> None:
    one_side = [(mode, item, 0) for mode, item, _ in accesses]
    alone = accessed(several(1), one_side)
    plain = accessed(small(1, 2, 4), one_side)
    assert alone.counts() == plain.counts()
    assert alone.dirty_bytes() == plain.dirty_bytes()


@LAW
@given(accesses=ACCESSES)
def test_eight_l2s_read_what_eight_replays_do(accesses: list[tuple[int, int, int]]) -> None:
    """Loads: no L2 knows of the others."""
    loads = [(LOAD, item, side) for _, item, side in accesses]
    apart = [
        total(accessed(several(1), [(m, o, 0) for m, o, s in loads if s == n]))[0] for n in range(8)
    ]
    assert total(accessed(several(8), loads))[0] == sum(apart)


@LAW
@given(accesses=ACCESSES, sets=st.sampled_from((2, 4, 8)))
def test_a_cache_at_the_memorys_side_never_raises_hbm_bytes(
    accesses: list[tuple[int, int, int]], sets: int
) -> None:
    """What is read beyond it is no more than without it, what is written the same; and the L2s ask it for exactly what
    they asked memory for."""
    without = accessed(several(8), accesses)
    with_it = accessed(several(8, side=behind(sets)), accesses)
    assert total(with_it)[0] <= total(without)[0]
    assert total(with_it)[1] == total(without)[1]
    filled, drained = map(sum, with_it.behind())
    assert (filled, drained) == total(without)
    assert without.behind() == ([0] * 64, [0] * 64)


@LAW
@given(accesses=ACCESSES)
def test_the_side_keeps_the_latest_lines_of_each_set(accesses: list[tuple[int, int, int]]) -> None:
    """Against a plain LRU of what leaves the L2s, which hold one line each and so nearly nothing."""
    l2_model = several(8, sets=1, ways=1, side=behind(4, 2))
    l2 = accessed(l2_model, [(LOAD, item, side) for _, item, side in accesses])
    held: dict[int, int] = {}
    sets: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(4)]
    turn = l2.samples.dealt_out(4)
    read = 0
    for _, item, side in accesses:
        for line in range(int(l2.samples.first[item]), int(l2.samples.first[item + 1])):
            if held.get(side) == line:
                continue
            held[side] = line
            mine = sets[turn[line]]
            read += line not in mine
            mine[line] = None
            mine.move_to_end(line)
            if len(mine) > 2:
                mine.popitem(last=False)
    assert total(l2)[0] == read * LINE


def test_a_line_that_is_written_is_in_one_l2_alone() -> None:
    """Others hold it no longer; what they had written of it reaches memory first."""
    reads = [(LOAD, 0, 0), (LOAD, 0, 1), (STORE, 0, 1)]
    whole = LINES * LINE
    assert total(accessed(several(2), reads)) == (2 * whole, 0)
    assert total(accessed(several(2), [*reads, (LOAD, 0, 1)])) == (2 * whole, 0)
    assert total(accessed(several(2), [*reads, (LOAD, 0, 0)])) == (3 * whole, 0)
    assert total(accessed(several(2), [*reads, (REDUCE, 0, 0)])) == (3 * whole, whole)


def launched(
    tiles: int, mode: int, item: npt.NDArray[np.int32], steps: npt.NDArray[np.int32]
) -> LoweredLaunch:
    zero = np.zeros(tiles, dtype=np.int32)
    access = (Template("data", mode, item),)
    return LoweredLaunch("main", zero, steps, access, (), (), zero.astype(np.uint8), zero, zero)


def test_workgroups_go_to_l2s_in_turn_whatever_is_free() -> None:
    """Workgroup w runs on L2 w mod 8, and within it on the SM that is free first."""
    tiles, sms = 160, 16
    steps = np.where(np.arange(tiles) % 3 == 0, 40, 1).astype(np.int32)
    l2 = L2(several(8), np.full(1, LINE, dtype=np.int32), np.zeros(1, dtype=np.uint8), 1e9)
    sm, start, end = (
        np.zeros(tiles, dtype=np.int32),
        np.zeros(tiles, dtype=np.int64),
        np.zeros(tiles, dtype=np.int64),
    )
    trace = TraceRecord(
        ctas=tiles, cta_sm=sm.ctypes.data, cta_start=start.ctypes.data, cta_end=end.ctypes.data
    )
    zero = np.zeros(tiles, dtype=np.int32)
    l2.replay(
        launched(tiles, LOAD, zero, steps), Ctas(slots=sms, sms=sms, step_s=1e-6), trace=trace
    )
    assert (sm % 8 == np.arange(tiles) % 8).all()
    third = start[np.arange(tiles) % 8 == 3]
    assert (np.diff(third) >= 0).all()
    assert sm_partitions(sms, 8, (1, 2), apart=True).tolist() == [*range(8), *range(8)]


def test_what_is_dirty_at_the_end_of_a_launch_is_written_back_and_stays() -> None:
    l2 = L2(
        several(8, side=behind(8)),
        np.full(8, LINE, dtype=np.int32),
        np.zeros(8, dtype=np.uint8),
        1e9,
    )
    lines_once = np.arange(8, dtype=np.int32)
    none = np.zeros(8, dtype=np.int32)
    l2.replay(launched(8, STORE, lines_once, none), Ctas(slots=8, sms=8))
    assert (total(l2), l2.dirty_bytes(), sum(l2.behind()[1])) == ((0, 8 * LINE), 0, 8 * LINE)
    l2.replay(launched(8, LOAD, lines_once, none), Ctas(slots=8, sms=8))
    assert total(l2) == (0, 8 * LINE)


def test_l2s_of_their_own_are_refused_where_they_are_too_many() -> None:
    with pytest.raises(InputError, match="the replay follows 1 to 64 L2s"):
        accessed(several(65), [(LOAD, 0, 0)])
    with pytest.raises(InputError, match="an L2 of 1 or 2 partitions"):
        accessed(replace(several(8), apart=False), [(LOAD, 0, 0)])


MIB = 1 << 20


def test_levels_of_profiles() -> None:
    amd, h200, v100 = (load_profile(name).levels for name in ("mi355x", "h200", "v100"))
    assert amd == (
        CacheLevel("L2", 4 * MIB, 8, 8),
        CacheLevel("memory-side cache", 256 * MIB, 1, 1),
    )
    assert (amd[0].bytes, amd[0].shared_bytes) == (32 * MIB, 4 * MIB)
    assert (h200, h200[0].shared_bytes) == ((CacheLevel("L2", 60 * MIB, 1, 2),), 30 * MIB)
    assert v100 == (CacheLevel("L2", 6 * MIB, 1, 1),)


def test_a_prediction_has_bytes_of_every_level() -> None:
    """Heads fastest, each L2 meets every head's keys anew; heads shared out, a head's tiles meet in one."""
    problem = AttentionProblem(heads=16, seq_q=4096, head_dim=128, dtype="bf16")
    gpu = load_profile("mi355x")
    reads_behind = {}
    for kernel in ("aiter", "hipkittens"):
        p = predict(problem, resolve(kernel, problem, gpu), gpu)
        assert p.side is not None
        assert p.hbm.read <= p.side.read <= p.l2.read
        assert p.hbm.write == p.side.write == p.l2.write
        assert p.to_dict()["totals"]["side"] == {"read": p.side.read, "write": p.side.write}
        assert p.l2_hit_rate == pytest.approx(1 - p.side.read / p.l2.read)
        assert f"{p.l2_hit_rate:.1%} of the bytes that are read from an L2 lie in it" in str(p)
        reads_behind[kernel] = p.side.read
    assert 3 * reads_behind["hipkittens"] < reads_behind["aiter"]


def test_one_l2_has_a_hit_rate_and_no_level_behind_it() -> None:
    p = predict(AttentionProblem(heads=8, seq_q=8192, head_dim=128, mask="causal"), "fa3", "h200")
    assert p.side is None
    assert p.l2_hit_rate == pytest.approx(1 - p.hbm.read / p.l2.read, abs=1e-3)
    data = p.to_dict()
    assert (data["totals"]["side"], data["fabric_bytes"] > 0) == (None, True)
    assert "lie in it" not in str(p)


@pytest.mark.parametrize(("ways", "row"), [(1, 4), (4, 4), (5, 8), (6, 8), (9, 12), (16, 16)])
def test_sets_at_the_memorys_side_have_room_for_whole_fours(ways: int, row: int) -> None:
    """The engine compares four tags at a time."""
    l2 = accessed(several(2, sets=2, side=behind(2, ways)), [(LOAD, 0, 0)])
    assert l2._side_tags.size == 2 * row

"""Lowered launches: every work tile once, loops over what the mask visits, and the bytes that `count` counts."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import loop_steps, wrong_bytes
from strategies import ALGORITHMS, FORWARD_ONLY, cases

from iosim import predict
from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_for, plan
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, PassSettings, Spill, Tile
from iosim.kernel.launch import Outer
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.lowering import lower, start_order
from iosim.readers.replay.objects import Grid, streams

SLOW = settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
PAIRS = [(a, p) for a in ALGORITHMS for p in ("fwd", "bwd") if p == "fwd" or a not in FORWARD_ONLY]


def flash(schedule: Schedule = Schedule(), **changes: object) -> Kernel:  # noqa: B008
    return replace(Kernel("flash", "flash", Tile(16, 16)), schedule=schedule, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("algorithm", "passes"), PAIRS)
@SLOW
@given(data=st.data())
def test_lowered_bytes_are_the_counted_bytes(
    algorithm: str, passes: str, data: st.DataObject
) -> None:
    problem, kernel = data.draw(cases(algorithm, passes))
    chain = plan(problem, kernel)
    assert wrong_bytes(chain, lower(chain, spill_slots=8)) == []


@pytest.mark.parametrize(
    ("keys", "splits"),
    [(80, 2), (80, 3), (112, 4), (50, 3)],  # 5, 5, 7 and 4 blocks of 16: some CTAs have one less
)
@pytest.mark.parametrize("keeps_keys", [True, False])
def test_a_cta_without_a_last_key_block_touches_none(
    keys: int, splits: int, keeps_keys: bool
) -> None:
    problem = AttentionProblem(heads=2, seq_q=40, seq_k=keys, head_dim=16, passes="bwd")
    options = options_for("efficient", {"key_splits": splits, "keeps_keys": keeps_keys})
    chain = plan(problem, Kernel("efficient", "efficient", Tile(16, 16), options=options))
    (main,) = [launch for launch in chain.launches if launch.outer is Outer.HEAD]
    assert main.domain.key_blocks_total % main.domain.splits > 0
    assert wrong_bytes(chain, lower(chain, spill_slots=8)) == []


@SLOW
@given(case=cases("flash", "fwd+bwd"))
def test_loops_run_over_the_visited_blocks(case: tuple[AttentionProblem, Kernel]) -> None:
    chain = plan(*case)
    for launch, low in zip(chain.launches, lower(chain, 8).launches, strict=True):
        d = launch.domain
        tile, index = loop_steps(low)
        block = low.block[tile].astype(np.int64)
        head = low.head[tile].astype(np.int64)
        if streams(launch):
            continue
        if launch.outer is Outer.KEY:
            pairs = {(int(h), int(i), int(j)) for h, i, j in zip(head, index, block, strict=True)}
        else:
            pairs = {
                (int(h), int(b) % d.query_blocks, int(j))
                for h, b, j in zip(head, block, index, strict=True)
            }
        v = d.visited
        right = {
            (h, i, j)
            for h in range(d.grid_heads)
            for i in range(d.query_blocks)
            for j in range(int(v.first[i]), int(v.end[i]))
        }
        assert pairs == right
        assert tile.size == len(right)  # no pair twice


SECTIONS = (0, 1, 2, 3, 4, 5, 6, 100)


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_every_work_tile_starts_once(
    order: Order, start: Start, section: int, cluster: int
) -> None:
    """2 x 5 heads in sections of 3 or 4 leave a smaller last section; 5 blocks a smaller last cluster."""
    problem = AttentionProblem(batch=2, heads=5, seq_q=70, head_dim=8, mask="causal")
    schedule = Schedule(order=order, start=start, section_heads=section, cluster=cluster)
    launch = plan(problem, flash(schedule)).launches[0]
    head, block = start_order(launch)
    assert sorted(zip(head.tolist(), block.tolist(), strict=True)) == [
        (h, i) for h in range(10) for i in range(5)
    ]


def first_tiles(n: int, **schedule: object) -> list[tuple[int, int]]:
    """(head, block) of the first work tiles of 2 x 2 heads with 3 blocks."""
    problem = AttentionProblem(batch=2, heads=2, seq_q=48, head_dim=8)
    head, block = start_order(plan(problem, flash(Schedule(**schedule))).launches[0])  # type: ignore[arg-type]
    return list(zip(head.tolist(), block.tolist(), strict=True))[:n]


def test_orders_by_hand() -> None:
    assert first_tiles(5) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert first_tiles(5, start=Start.HEAVY_FIRST) == [(0, 2), (0, 1), (0, 0), (1, 2), (1, 1)]
    assert first_tiles(6, order=Order.HEAD) == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]
    # batch next to blocks: head 0 of sequence 0, head 0 of sequence 1 (grid head 2), then head 1
    assert first_tiles(7, order=Order.BATCH) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (2, 0),
        (2, 1),
        (2, 2),
        (1, 0),
    ]
    assert first_tiles(4, start=Start.FOLD) == [(0, 2), (0, 0), (0, 1), (1, 2)]
    # clusters of two blocks: the last of the three has one alone
    assert first_tiles(5, order=Order.HEAD, cluster=2) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert first_tiles(6, order=Order.HEAD, cluster=2, start=Start.HEAVY_FIRST) == [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 2),
        (0, 0),
        (0, 1),
    ]
    # sections of three heads: heads fastest in (0, 1, 2), all its blocks, then the last section of one head
    assert first_tiles(12, section_heads=3)[8:] == [(2, 2), (3, 0), (3, 1), (3, 2)]


def test_a_cluster_alternates_as_one() -> None:
    problem = AttentionProblem(heads=1, seq_q=128, head_dim=8)
    schedule = Schedule(direction=Direction.ALTERNATING, cluster=2)
    launch = lower(plan(problem, flash(schedule)), 1).launches[0]
    assert launch.block[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert launch.down[:6].tolist() == [0, 0, 1, 1, 0, 0]


def test_grouped_heads_share_their_keys() -> None:
    """6 query heads on 2 key heads: heads 0 to 2 read the first, 3 to 5 the second, in each of 2 sequences."""
    problem = AttentionProblem(batch=2, heads=6, kv_heads=2, seq_q=32, head_dim=8)
    chain = plan(problem, flash())
    lowered = lower(chain, 1)
    low = lowered.launches[0]
    key = next(t for t in low.loop if t.tensor == "K")
    owner = (key.base - key.base.min()) // 2  # two key blocks a head
    assert dict(zip(low.head.tolist(), owner.tolist(), strict=True)) == {
        0: 0,
        1: 0,
        2: 0,
        3: 1,
        4: 1,
        5: 1,
        6: 2,
        7: 2,
        8: 2,
        9: 3,
        10: 3,
        11: 3,
    }


@pytest.mark.slow
def test_the_cases_reach_every_kind_of_launch() -> None:
    """Splits, packs, key-outer loops, whole heads, pairs, streams and temporary blocks that are used again."""
    seen: set[str] = set()

    @settings(max_examples=400, deadline=None, database=None, derandomize=True)
    @given(data=st.data())
    def look(data: st.DataObject) -> None:
        algorithm, passes = data.draw(
            st.sampled_from((*PAIRS, *4 * (("flash", "fwd"),)))
        )  # it alone splits keys
        chain = plan(*data.draw(cases(algorithm, passes)))
        for launch in chain.launches:
            seen.add(launch.outer)
            seen.update(
                n
                for n, yes in (("pack", launch.domain.pack > 1), ("stream", streams(launch)))
                if yes
            )

    look()
    assert seen >= {"q", "k", "qk", "q,split", "head", "flat", "pack", "stream"}


@pytest.mark.parametrize("scheduler", list(Scheduler))
def test_schedulers_leave_the_start_order(scheduler: Scheduler) -> None:
    problem = AttentionProblem(batch=1, heads=3, seq_q=64, head_dim=8)
    head, block = start_order(plan(problem, flash(Schedule(scheduler=scheduler))).launches[0])
    assert (head * 4 + block).tolist() == list(range(12))


def test_blocks_of_different_launches_that_divide_unevenly() -> None:
    """Forward in blocks of 64, backward in blocks of 96, on 70 rows: two blocks of 64 reach further than one of 96."""
    problem = AttentionProblem(batch=1, heads=2, seq_q=70, head_dim=8, passes="fwd+bwd")
    chain = plan(
        problem, Kernel("flash", "flash", Tile(64, 64), backward=PassSettings(Tile(96, 96)))
    )
    assert wrong_bytes(chain, lower(chain, 1)) == []


TOO_LARGE = [
    (AttentionProblem(batch=64, heads=128, seq_q=1 << 20, head_dim=64), flash()),
    (
        AttentionProblem(batch=4, heads=64, seq_q=1 << 18, head_dim=64),
        Kernel("naive", "naive", Tile(64, 64)),
    ),
    (
        AttentionProblem(batch=64, heads=64, seq_q=1 << 18, head_dim=64),
        Kernel("flash1", "flash1", Tile(16, 16)),
    ),
]


@pytest.mark.parametrize(("problem", "kernel"), TOO_LARGE)
def test_a_problem_too_large_is_refused_with_its_size(
    problem: AttentionProblem, kernel: Kernel
) -> None:
    chain = plan(problem, kernel)
    tracemalloc.start()
    with pytest.raises(
        InputError, match=r"[\d,]+ (objects of memory|work tiles in \w+), .*B to replay; accepted"
    ):
        lower(chain, 132)
    assert (
        tracemalloc.get_traced_memory()[1] < 10e6
    )  # bytes: nothing was laid out before the refusal
    tracemalloc.stop()


def test_predict_refuses_it_too() -> None:
    with pytest.raises(InputError, match="to replay; accepted"):
        predict(*TOO_LARGE[1], load_profile("h200-sxm"), method="replay")


@pytest.mark.parametrize(
    ("head_dim", "heads", "lengths", "room"),
    [
        (
            152,
            2,
            (64, 64),
            416,
        ),  # 304 bytes begin at any multiple of 16: 19 of 8 places, 3 or 4 lines, 3.25 in the mean
        (208, 2, (64, 64), 512),  # 416 bytes from a multiple of 32
        (128, 2, (64, 64), 256),  # two whole lines
        (152, 1, (64, 64), 304),  # one head's rows lie in one piece
        (152, 2, None, 304),  # and so do those of heads that come one after the other
        (40, 2, (64, 64), 80),  # rows shorter than a line share theirs
    ],
)
def test_rows_beside_other_heads_rows_take_the_lines_that_they_touch(
    head_dim: int, heads: int, lengths: tuple[int, ...] | None, room: int
) -> None:
    sizes = {"seq_lens": lengths} if lengths else {"seq_q": 128}
    problem = AttentionProblem(heads=heads, head_dim=head_dim, dtype="bf16", **sizes)  # type: ignore[arg-type]
    chain = plan(problem, flash())
    low = lower(chain, 1)
    of = {name: int(low.size[low.owner == n].sum()) for n, name in enumerate(low.tensors)}
    assert of["K"] == heads * 128 * room
    assert of["O"] == heads * 128 * 2 * head_dim
    assert low.own_share[low.tensors.index("K")] == 2 * head_dim / room
    touched = [
        len({(start + n) // 128 for n in range(2 * head_dim)})
        for start in range(0, 128, 2 * head_dim & -2 * head_dim)
    ]
    assert room in (2 * head_dim, 128 * sum(touched) // len(touched))
    assert (
        predict(problem, "fa2", "h100").traffic.total("hbm", "read", tensor="K")
        == heads * 128 * 2 * head_dim
    )


def test_work_tiles_without_rows_spill_nothing() -> None:
    """Two sequences of 16 and 64 rows in tiles of 16: of the first one work tile has rows, and three end at once. Those
    with rows have the frames of two resident CTAs in turn."""
    spill = Spill(write_per_tile=8, write_per_pair=4, frame=16)
    chain = plan(AttentionProblem(seq_lens=(16, 64), head_dim=64), flash(spill=spill))
    low = lower(chain, spill_slots=2)
    (frame,) = (t for t in low.launches[0].loop if t.tensor == "spill")
    runs = low.launches[0].count > 0
    assert runs.sum() == 5
    assert (frame.base[~runs] == -1).all()
    first = frame.base[runs].min()
    assert (frame.base[runs] - first).tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("sequences", "rows"),
    [
        (1, [0, 2, 4, 6, 8, 10]),  # tiles of two rows, one after the other
        (2, [0, 2, 4, 8, 10, 12]),  # three tiles a sequence of 16 / 2 rows
        (3, [0, 2, 5, 7, 10, 12]),  # two a sequence of 15 / 3
    ],
)
def test_tiles_of_packed_sequences_begin_in_their_own_rows(sequences: int, rows: list[int]) -> None:
    grid = Grid("K", 0, 1, 15 if sequences == 3 else 16, 1, 16, 16, sequences)
    tiles = np.arange(6)
    assert grid.row_of(tiles, 6, 2).tolist() == rows
    shifts = [grid.row_shift(np.array([tile]), 6, 6, 2) for tile in tiles]
    assert [int(np.ravel(shift)[0]) for shift in shifts] == [
        row - 2 * tile for row, tile in zip(rows, tiles, strict=True)
    ]


@pytest.mark.parametrize("empty_splits", [False, True])
def test_tiles_that_see_no_key_still_store_their_rows(empty_splits: bool) -> None:
    """96 queries of 32 keys, the last of both together: the first 64 rows, four tiles of 16, see none. They store zeros
    all the same: O's 96 rows of 16 values of two bytes."""
    problem = AttentionProblem(heads=1, seq_q=96, seq_k=32, head_dim=16, mask="causal", offset=-64)
    options = options_for("flash", {"empty_splits": empty_splits})
    chain = plan(problem, replace(flash(), options=options))
    low = lower(chain, spill_slots=8)
    assert [int(count) for count in low.launches[0].count] == [0, 0, 0, 0, 1, 2]
    assert wrong_bytes(chain, low) == []

"""Masks that are lists of blocks: the readers agree on random ones, and on intervals written as lists."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counter import access_bytes, count
from effort import examples, quick_every, quick_first
from executor.reference import dense_blocks, dense_mask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import loop_steps, wrong_bytes
from scripts import measurements
from strategies import disagreements, flash1_cases, flash_cases, naive_cases, table, tiles

from iosim import InputError, load_profile, predict
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.flash1 import Flash1Options
from iosim.catalog.libraries import Overrides, resolve
from iosim.commands import common
from iosim.commands.cli import main
from iosim.commands.options import CommandParser
from iosim.evidence.validate.match import problem_of
from iosim.evidence.validate.rows import Row, read
from iosim.kernel.kernel import Kernel, PassSettings, Tile
from iosim.kernel.launch import Access, Domain, Edge, Mode, Outer, Per, Role, Rows, Tensor
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import length_options, problem_options
from iosim.problem.masks import BlockMask, butterfly, strided, window_first, window_global
from iosim.problem.masks.mask import IntervalMask
from iosim.readers.formula.closed_form import closed_form
from iosim.readers.replay.lowering import lower
from iosim.readers.replay.objects import streams
from iosim.studies.compare.points import CaseGrid
from iosim.studies.report import build, render
from iosim.studies.trace.trace import trace

RARE = [HealthCheck.too_slow, HealthCheck.data_too_large]
SLOW = settings(max_examples=examples(50), deadline=None, suppress_health_check=RARE)
CASES = {"flash": flash_cases, "flash1": flash1_cases, "naive": naive_cases}


@st.composite
def block_masks(draw: st.DrawFn, seq_q: int, seq_k: int) -> BlockMask:
    """Any blocks of any size, ragged at the ends, some in a second walk; rows and columns may be empty."""
    block_q = draw(st.integers(1, 24))
    block_k = draw(st.integers(1, 24))
    shape = -(-seq_q // block_q), -(-seq_k // block_k)
    density = draw(st.sampled_from((0.0, 0.1, 0.3, 0.7, 1.0)))
    generator = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    mask = BlockMask.of_dense(generator.random(shape) < density, seq_q, seq_k, block_q, block_k)
    return replace(mask, full=generator.random(mask.nnz) < 0.5) if draw(st.booleans()) else mask


@st.composite
def sparse_cases(draw: st.DrawFn, algorithm: str, passes: str) -> tuple[AttentionProblem, Kernel]:
    """A case of the other strategies under a random list of blocks or a pattern; flash1 needs every row to keep a key
    where it does not fill its outputs beforehand."""
    problem, kernel = draw(CASES[algorithm](passes))
    kind = draw(
        st.sampled_from(
            ("blocks", "blocks", "butterfly", "strided", "window+global", "window+first")
        )
    )
    nothing = dict.fromkeys(("window", "window_right", "offset"))
    values: dict[str, Any] = {"mask": kind, "mask_storage": "implicit", **nothing}
    if kind == "blocks":
        values["mask_blocks"] = draw(block_masks(problem.seq_q, problem.seq_k))
    else:
        values |= {"seq_k": problem.seq_q, "mask_block": draw(st.integers(1, 20))}
        if kind.startswith("window"):
            values |= {
                "window": draw(st.integers(0, 40)),
                "global_tokens": draw(st.integers(0, 30)),
            }
        else:
            values["mask_stride"] = draw(st.none() | st.integers(1, 6))
    drawn = problem.with_(**values)
    limit = -(-drawn.seq_k // kernel.tile.block_k)
    options = kernel.options
    if isinstance(options, Flash1Options):
        options = replace(options, to_the_letter=True)
    return drawn, kernel.with_(splits=min(kernel.splits, limit), options=options)


@pytest.mark.parametrize("passes", quick_first(["fwd+bwd", "fwd", "bwd"], 1))
@pytest.mark.parametrize("algorithm", ["flash", "flash1", "naive"])
@SLOW
@given(data=st.data())
def test_readers_agree_on_lists_of_blocks(algorithm: str, passes: str, data: st.DataObject) -> None:
    problem, kernel = data.draw(sparse_cases(algorithm, passes))
    assert disagreements(problem, kernel, seed=data.draw(st.integers(0, 3))) == []


@pytest.mark.parametrize("algorithm", ["flash", "flash1"])
@SLOW
@given(data=st.data())
def test_lowered_bytes_and_loops(algorithm: str, data: st.DataObject) -> None:
    """The replay moves what is counted, and its loops run over the listed blocks, forwards and turned."""
    chain = plan(*data.draw(sparse_cases(algorithm, "fwd+bwd")))
    lowered = lower(chain, 8)
    assert wrong_bytes(chain, lowered) == []
    for launch, low in zip(chain.launches, lowered.launches, strict=True):
        if streams(launch):
            continue
        d = launch.domain
        assert low.indices is not None
        tile, other = loop_steps(low)
        block = low.block[tile].astype(int)
        head = low.head[tile].astype(int)
        if launch.outer in (Outer.KEY, Outer.HEAD):
            pairs = list(zip(head.tolist(), other.tolist(), block.tolist(), strict=True))
        else:
            pairs = list(
                zip(head.tolist(), (block % d.query_blocks).tolist(), other.tolist(), strict=True)
            )
        steps = d.visited.by_query()
        assert steps.indices is not None
        pairs_kept = [
            (i, int(j))
            for i in range(d.query_blocks)
            for j in steps.indices[steps.first[i] :][: steps.count[i]]
        ]
        assert sorted(pairs) == sorted(
            (h, i, j) for h in range(d.grid_heads) for i, j in pairs_kept
        )


@SLOW
@given(data=st.data())
def test_a_tile_is_visited_when_it_overlaps_a_kept_block(data: st.DataObject) -> None:
    """Finer, coarser and unaligned tiles, rows packed by several heads: by looking at every pair."""
    seq_q = data.draw(st.integers(1, 60))
    seq_k = data.draw(st.integers(1, 60))
    mask = data.draw(block_masks(seq_q, seq_k))
    pack = data.draw(st.integers(1, 3))
    tile = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    d = Domain(1, 1, seq_q * pack, seq_k, *tile, mask=mask, pack=pack)
    pairs = np.repeat(np.repeat(dense_blocks(mask), mask.block_q, 0), mask.block_k, 1)[
        :seq_q, :seq_k
    ]
    pairs = np.repeat(pairs, pack, 0)
    right = [
        [
            j
            for j in range(d.key_blocks_total)
            if pairs[i * tile[0] :][: tile[0], j * tile[1] :][:, : tile[1]].any()
        ]
        for i in range(d.query_blocks)
    ]
    v = d.visited
    steps = v.by_query()
    assert steps.indices is not None
    got = [
        sorted(steps.indices[a : a + n].tolist())
        for a, n in zip(steps.first, steps.count, strict=True)
    ]
    assert got == right
    last = [
        np.flatnonzero(pairs[i * tile[0] :][: tile[0]].any(axis=0)) for i in range(d.query_blocks)
    ]
    assert [int(r) for r, n in zip(v.end_row, v.count, strict=True) if n] == [
        int(x[-1]) + 1 for x in last if x.size
    ]


INTERVALS = [
    IntervalMask(),
    IntervalMask(None, 0, 0),
    IntervalMask(5, 0, 3),
    IntervalMask(None, 0, -7),
]


@pytest.mark.parametrize("mask", INTERVALS)
@SLOW
@given(data=st.data())
def test_a_list_equal_to_an_interval_gives_the_same_bytes(
    mask: IntervalMask, data: st.DataObject
) -> None:
    """Blocks of one row and one key are the interval itself: every access of every tile moves the same bytes."""
    seq_q = data.draw(st.integers(1, 50))
    seq_k = data.draw(st.integers(1, 50))
    block_mask = BlockMask.covering(mask, seq_q, seq_k, 1, 1)
    tile = data.draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
    splits = data.draw(st.integers(1, 4))
    interval = Domain(1, 1, seq_q, seq_k, *tile, mask=mask, splits=splits)
    listed = replace(interval, mask=block_mask)
    assert block_mask.kept_pairs(seq_q, seq_k) == mask.kept_pairs(seq_q, seq_k)
    assert block_mask.kept_keys(seq_q, seq_k) == mask.kept_keys(seq_q, seq_k)
    assert block_mask.leaves_rows_empty(seq_q, seq_k) == mask.leaves_rows_empty(seq_q, seq_k)
    matrices = {
        Rows.QUERY: Tensor("X", 1, 1, seq_q, 8, 2, Role.INPUT),
        Rows.KEY: Tensor("X", 1, 1, seq_k, 8, 2, Role.INPUT),
    }
    vectors = {
        Rows.QUERY: Tensor("X", 1, 1, seq_q, 1, 4, Role.INPUT),
        Rows.KEY: Tensor("X", 1, 1, seq_k, 1, 4, Role.INPUT),
    }
    for rows, pers in (
        (Rows.QUERY, (Per.QUERY, Per.PAIR, Per.SPLIT)),
        (Rows.KEY, (Per.KEY, Per.PAIR)),
    ):
        for per in pers:
            for edge in Edge:
                for held in (matrices, vectors):
                    access = Access("X", Mode.LOAD, rows, per, edge=edge, visited_only=True)
                    assert access_bytes(listed, held[rows], access) == access_bytes(
                        interval, held[rows], access
                    )


@pytest.mark.parametrize(
    ("mask", "passes"), quick_every(product(["causal", "window"], ["fwd", "bwd"]), 3)
)
def test_the_replay_of_an_interval_as_a_list_is_the_same(mask: str, passes: str) -> None:
    """Same bytes from HBM, launch by launch and tensor by tensor, and the same time."""
    profile = load_profile("h200-sxm")
    window = 300 if mask == "window" else None
    problem = AttentionProblem(heads=4, seq_q=2000, mask=mask, window=window, passes=passes)
    block_mask = BlockMask.covering(problem.interval_mask, 2000, 2000, 1, 1)
    kernel = Kernel("flash", "flash", Tile(128, 64))
    listed = problem.with_(mask="blocks", window=None, mask_blocks=block_mask)
    a, b = (predict(p, kernel, profile, method="replay") for p in (problem, listed))
    assert a.replay is not None
    assert b.replay is not None
    assert table(a.replay.traffic) == table(b.replay.traffic)
    assert a.replay.seconds == b.replay.seconds


@pytest.mark.parametrize("word", ["butterfly", "strided", "window+global", "window+first"])
def test_conservation_in_the_replay(word: str) -> None:
    """What HBM gives lies between every needed byte once and every access; each input is read at least once."""
    more = {"window": 700, "global_tokens": 256} if word.startswith("window") else {}
    problem = AttentionProblem(heads=8, seq_q=8192, mask=word, passes="fwd+bwd", **more)
    prediction = predict(problem, "flash", "h200-sxm", method="replay")
    read = prediction.traffic.total("hbm", "read")
    l2_bytes = prediction.traffic.total("l2", "read")
    inputs = sum(t.bytes for t in prediction.chain.role(Role.INPUT))
    assert inputs <= read <= l2_bytes
    for tensor in ("Q", "K", "V"):
        assert (
            prediction.traffic.total("hbm", "read", tensor=tensor)
            >= prediction.chain.tensors[tensor].bytes
        )


def test_a_trace_follows_the_lists() -> None:
    """What heads have in use at once is at most the K and V of them all, though the first and last block are apart."""
    problem = AttentionProblem(heads=4, seq_q=4096, mask="butterfly")
    prediction = predict(
        problem, "flash", "h200-sxm", method="replay", overrides=Overrides(tile=(128, 128))
    )
    launch = trace(prediction).launch("main")
    assert launch.peak_in_use_bytes is not None
    assert 0 < launch.peak_in_use_bytes <= 4 * 4096 * 64 * 2 * 2
    tiles = np.arange(launch.ctas.tiles)
    at = launch.ctas.position(
        tiles, float(launch.end_ps)
    )  # the last step of each: its highest key tile
    blocks = launch.ctas.block.astype(int)
    visited = Domain(1, 1, 4096, 4096, 128, 128, mask=problem.pair_mask).visited
    assert np.array_equal(at, visited.end[blocks] - 1)


PATTERNS = [
    (butterfly(8, 1), 8 * 4),  # itself and 3 neighbours of 1, 2 and 4 blocks: log2(8) + 1
    (butterfly(8, 1, 2), 8 * 3),
    (butterfly(6, 1), 6 * 4 - 4),  # as of 8 blocks, but for 2, 3 XOR 4 and 4, 5 XOR 2
    (strided(9, 1), 1 + 2 + 3 + 4 + 4 + 4 + 5 + 5 + 5),  # the last 3, then 0, 3, 6 back
    (strided(9, 1, 1), 9 * 10 // 2),  # every first: all of the triangle
    (window_global(10, 1, 1, 0), 10 + 2 * 9),
    (window_global(10, 1, 0, 1), 10 + 2 * 9),  # the diagonal, the first row and the first column
    (window_global(64, 8, 1, 0), 8 + 2 * 7),  # one key further lies in the next block
    (window_first(10, 1, 1, 0), 10 + 9),
    (
        window_first(10, 1, 1, 2),
        10 + 9 + 8 + 7,
    ),  # what the window lacks of the first column, then of the second
]


@pytest.mark.parametrize(("mask", "blocks"), PATTERNS)
def test_patterns_have_as_many_blocks_as_their_papers_say(mask: BlockMask, blocks: int) -> None:
    assert mask.nnz == blocks


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_patterns_are_their_definitions(data: st.DataObject) -> None:
    """The lists against the elementwise definitions of the reference."""
    word = data.draw(st.sampled_from(("butterfly", "strided", "window+global", "window+first")))
    values = {
        "window": data.draw(st.integers(0, 90)),
        "global_tokens": data.draw(st.integers(0, 90)),
    }
    other = {"mask_stride": data.draw(st.none() | st.integers(1, 9))}
    problem = AttentionProblem(
        seq_q=data.draw(st.integers(1, 90)),
        mask=word,
        mask_block=data.draw(st.integers(1, 30)),
        **(values if word.startswith("window") else other),
    )
    kept_pairs = dense_mask(problem)
    n = np.arange(problem.seq_q)
    assert np.array_equal(problem.pair_mask.keeps(n[:, None], n[None, :]), kept_pairs)
    assert problem.pair_mask.kept_pairs(problem.seq_q, problem.seq_k) == int(kept_pairs.sum())
    assert problem.matmul_flops() == 4 * 64 * int(kept_pairs.sum())
    assert problem.exp_count() == int(kept_pairs.sum())


def test_the_count_follows_the_kept_blocks() -> None:
    """A million tokens, butterfly of 128: 8192 x 14 blocks of the 67 million there are, each two tiles of 64 keys."""
    problem = AttentionProblem(heads=1, seq_q=1 << 20, mask="butterfly")
    chain = plan(problem, Kernel("flash", "flash", Tile(128, 64)))
    assert chain.launches[0].visited_pairs == 8192 * 14 * 2
    read = count(chain).total("l2", "read", tensor="K")
    assert read == 8192 * 14 * 128 * 64 * 2  # blocks x keys x columns x bytes


def test_walks_partial_blocks_before_full_ones() -> None:
    """FlexAttention's two loops: the list of partial blocks, then that of full ones."""
    mask = BlockMask.covering(IntervalMask(2, 0, 0), 12, 12, 2, 2)
    assert mask.full is not None
    steps = Domain(1, 1, 12, 12, 2, 2, mask=mask).visited.by_query()
    assert steps.indices is not None
    row = [
        steps.indices[a : a + n].tolist() for a, n in zip(steps.first, steps.count, strict=True)
    ][3]
    assert row == [2, 3]  # both partial: keys 4 to 7 of rows 6 and 7, of which row 7 drops key 4
    whole = BlockMask.covering(
        IntervalMask(5, 0, 0), 12, 12, 2, 2
    )  # rows 8 and 9 keep keys 3, 4 to 8, 9
    steps = Domain(1, 1, 12, 12, 2, 2, mask=whole).visited.by_query()
    assert steps.indices is not None
    row = [
        steps.indices[a : a + n].tolist() for a, n in zip(steps.first, steps.count, strict=True)
    ][4]
    assert row == [1, 4, 2, 3]  # keys 3 and 8, 9 in partial blocks, 4 to 7 in full ones


# The flex kernel against the recorded row of it.


def test_flex_matches_its_recorded_row() -> None:
    """kernels/measurements/h200_library_kernels.csv, call 155: a window of 1024 keys back at 16,384 tokens."""
    problem = AttentionProblem(
        heads=16, seq_q=16384, head_dim=128, dtype="bf16", mask="window", window=1024
    )
    prediction = predict(problem, "flex", "h200-sxm", method="replay")
    # a head visits 1 + 2 + .. + 8 + 120 x 9 = 1,116 blocks of 128 keys, K and V: 512 bytes a key; Q once; 128 B a CTA
    assert (
        prediction.traffic.total("l2", "read")
        == 16 * (1116 * 128 * 512 + 16384 * 256) + 16 * 128 * 128
    )
    for level, way, measured, within in (
        ("l2", "read", 1_237_624_000, 1e-3),
        ("l2", "write", 68_157_000, 1e-3),
        ("hbm", "read", 201_400_000, 0.01),
        ("hbm", "write", 60_521_984, 0.05),
    ):
        assert abs(prediction.traffic.total(level, way) / measured - 1) < within
    assert prediction.kernel.tile == Tile(128, 64, 8, 3)


def recorded() -> list[Row]:
    """experiments/flex.py on an H200: butterfly, strided and window+global at 16,384 and 65,536 tokens, grouped
    heads."""
    return read(measurements("h200_flex.csv"))


@pytest.mark.parametrize(
    "row", recorded(), ids=lambda row: f"{row.call} {row.facts['note'].split(',')[0]}"
)
def test_flex_matches_counters_on_irregular_masks(row: Row) -> None:
    """The kernel was described before these rows were measured. SM<->L2 bytes follow from the lists, HBM bytes from
    the order in which CTAs walk them."""
    problem = problem_of(row)
    prediction = predict(problem, "flex", "h200-sxm", method="replay")
    near = {"l2_read": 2e-4, "l2_write": 1e-4, "hbm_read": 0.10, "hbm_write": 0.05}
    for quantity, within in near.items():
        level, way = quantity.split("_")
        measured = row.measured[quantity]
        allowed = max(within * measured, 2e6 if quantity == "hbm_write" else 0)
        assert abs(prediction.traffic.total(level, way) - measured) <= allowed, quantity


def test_notes_name_masks() -> None:
    words = [(p.mask, p.window, p.global_tokens) for p in map(problem_of, recorded())]
    assert words[2] == ("window+global", 1024, 256)
    assert {w[0] for w in words} == {"butterfly", "strided", "window+global"}


def test_flex_visits_whole_mask_blocks() -> None:
    """A window of 100 leaves tiles of 64 keys unneeded that a block of 128 holds: flex reads them, flash does not."""
    problem = AttentionProblem(heads=1, seq_q=1024, head_dim=128, mask="window", window=100)
    flex = resolve("flex", problem, load_profile("h200-sxm"))
    flash = flex.with_(options=None)
    # every block of 128 rows but the first sees two blocks of 128 keys, four tiles of 64; rows from 128 i keep keys
    # from 128 i - 100, so the tile of 64 before the last two is needed and the one before that is needed, too
    pairs = [plan(problem, k).launches[0].visited_pairs for k in (flex, flash)]
    assert pairs == [2 + 7 * 4, 2 + 7 * 4]
    near = problem.with_(window=60)
    assert [plan(near, k).launches[0].visited_pairs for k in (flex, flash)] == [
        2 + 7 * 4,
        2 + 7 * 3,
    ]


def test_flex_refuses_tiles_that_do_not_divide_its_blocks() -> None:
    problem = AttentionProblem(seq_q=512, mask="butterfly", mask_block=96)
    with pytest.raises(
        InputError, match=r"^tile 128x128 does not divide the mask's blocks of 96x96; accepted"
    ):
        predict(problem, "flex", "h200-sxm")


# The command line, and the paper's term.


def test_predict_reads_a_mask_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.eye(8, dtype=bool))
    words = ["--kernel", "flash", "--seq-len", "512", "--heads", "2", "--format", "json"]
    assert main(["predict", "--mask-file", str(path), "--mask-block", "64", *words]) == 0
    prediction = json.loads(capsys.readouterr().out)["predictions"][0]
    assert prediction["problem"]["mask"] == "blocks"
    keys = [r["bytes"] for r in prediction["traffic"] if r["level"] == "l2" and r["tensor"] == "K"]
    # tiles of 128 rows overlap two blocks of 64: 4 x 128 keys of 128 columns in 2 bytes, 2 heads
    assert keys == [2 * 4 * 128 * 128 * 2]
    assert main(["predict", "--mask-file", str(path), *words]) == 2
    assert "--mask-block" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--mask", "butterfly", "--causal"],
        ["--mask-block", "8x"],
        ["--mask-block", "x"],
        ["--mask", "strided", "--mask-block", "8x9"],
    ],
)
def test_bad_options_end_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["predict", "--kernel", "flash", "--seq-len", "64", *words])
    except SystemExit as end:  # argparse's own
        code = int(end.code or 0)
    if words == ["--mask-block", "8x"]:  # one side, as 8
        assert code == 2  # which no mask is there for
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_formula_stands_beside_proposition_4(capsys: pytest.CaptureFixture[str]) -> None:
    """4096 tokens in 32 blocks of 128: 32 x (5 + 1) = 192 of 1024, so s = 3/16. With M = 4 d B_q = 32,768 the term is
    N d + N^2 d^2 s / M = 262,144 + 393,216 elements; the kernel reads Q, writes O and reads K and V 8 N^2 d^2 s / M."""
    words = [
        "--seq-len",
        "4096",
        "--heads",
        "1",
        "--batch",
        "1",
        "--head-dim",
        "64",
        "--dtype",
        "fp16",
    ]
    assert (
        main(
            [
                "formula",
                "flash",
                "--mask",
                "butterfly",
                "--tile",
                "128x64",
                *words,
                "--format",
                "json",
            ]
        )
        == 0
    )
    formula = json.loads(capsys.readouterr().out)["formula"]
    assert formula["theta"]["source"] == "arXiv 2205.14135, Proposition 4"
    assert formula["theta"]["ratio"]["text"] == "8"
    beside = formula["sparse"]
    assert (beside["kept_blocks"], beside["blocks"], beside["fast_elements"]) == (192, 1024, 32768)
    assert beside["theta_elements"] == 4096 * 64 + 4096**2 * 64**2 * 3 / 16 / 32768
    bytes_by_hand = 2 * 2 * 4096 * 64 + 2 * 192 * 128 * 64 * 2 + 4 * 4096  # Q and O; K and V; LSE
    assert sum(formula["totals"][way]["bytes"] for way in ("read", "write")) == bytes_by_hand
    assert beside["times_above"] == pytest.approx(bytes_by_hand / 2 / beside["theta_elements"])


@pytest.mark.slow
def test_a_report_draws_density_against_bytes_and_time() -> None:
    """Each row names its lines, dense under D; shares are quotients; reports without lists have no such figure."""
    problems = tuple(
        AttentionProblem(heads=2, seq_q=n, mask="butterfly", head_dim=64) for n in (1024, 4096)
    )
    chain = build(CaseGrid.of(("h200",), ("flash", "fa2"), problems))
    figure = chain.figure("density")
    frame = figure.table.to_pandas()
    assert set(frame["kernel"]) == {"flash"}  # fa2 takes no lists: an omission
    assert frame["kept_fraction"].tolist() == [8 * 4 / 64, 32 * 6 / 1024]
    for row in frame.itertuples():
        assert row.l2_share == row.l2_bytes / row.dense_l2_bytes
        assert all(line in chain.commands for line in row.commands.split())
        assert 0 < row.time_share <= 1
    assert {p.title for p in figure.panels} == {
        f"h200-sxm, {n}" for n in ("SM<->L2 bytes", "HBM bytes", "time")
    }
    assert "Block-sparse over dense" in render(chain, "md")
    dense = build(CaseGrid.of(("h200",), ("flash",), (AttentionProblem(heads=2, seq_q=1024),)))
    with pytest.raises(KeyError):
        dense.figure("density")


@pytest.mark.parametrize(
    "values",
    [
        {"mask": "butterfly", "mask_block": 64, "mask_stride": 4},
        {"mask": "window+global", "window": 100},
        {"seq_lens": (64, 20), "mask": "causal"},
        {"seq_lens": (64, 20), "seq_lens_k": (5, 6)},
    ],
)
def test_a_reports_line_gives_the_problem_back(values: dict[str, Any]) -> None:
    sizes = {} if "seq_lens" in values else {"seq_q": 512}
    problem = AttentionProblem(heads=2, **sizes, **values)
    parser = CommandParser()
    parser.add_problem()
    line = [*length_options(problem), *problem_options(problem)]
    assert common.problems(parser.parse_args(line)) == [problem]


@SLOW
@given(data=st.data())
def test_the_symbols_give_the_numbers(data: st.DataObject) -> None:
    from iosim.readers.formula.symbolic import derive

    problem, kernel = data.draw(sparse_cases("flash", data.draw(st.sampled_from(("fwd", "bwd")))))
    kernel = kernel.with_(backward=PassSettings(data.draw(st.none() | tiles(problem))))
    assert table(derive(problem, kernel).numbers()) == table(closed_form(plan(problem, kernel)))

"""Paged key/value caches, appended tokens and cached prefixes: bytes, the walk through the block table, bad input."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from counter import access_bytes, count
from effort import examples
from executor import execute
from executor.arrays import shuffled_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused
from scripts import measurements
from strategies import altered, disagreements, problems, tiles

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.cache import TABLE
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.libraries import Overrides
from iosim.commands.cli import main
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Access, Domain, Mode, Per, Role, Rows, Tensor
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntervalMask
from iosim.readers.bounds import bounds, memory
from iosim.readers.formula.sums import BlockSums
from iosim.readers.formula.symbolic import derive

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def kernel(tile: tuple[int, int] = (8, 6), *, append: bool = False, **changes: Any) -> Kernel:
    return Kernel("flash", "flash", Tile(*tile), options=FlashOptions(append_kv=append), **changes)


@st.composite
def paged_cases(draw: st.DrawFn) -> tuple[AttentionProblem, Kernel]:
    """Any page size beside any tile, splits, packed groups, an append where the queries are keys."""
    problem = draw(problems("flash", "fwd")).with_(
        page_size=draw(st.sampled_from((1, 2, 3, 4, 6, 8, 16, 24, 64)))
    )
    tile = draw(tiles(problem))
    blocks = -(-problem.seq_k // tile.block_k)
    append = problem.seq_q <= problem.seq_k and draw(st.booleans())
    return problem, kernel(
        (tile.block_q, tile.block_k),
        append=append,
        splits=draw(st.integers(1, min(blocks, 4))),
        packs_group=draw(st.booleans()),
    )


@settings(max_examples=examples(150), deadline=None, suppress_health_check=QUIET)
@given(case=paged_cases(), seed=st.integers(0, 3))
def test_readers_agree_on_pages_in_any_order(
    case: tuple[AttentionProblem, Kernel], seed: int
) -> None:
    assert disagreements(*case, seed=seed) == []


@settings(max_examples=examples(60), deadline=None, suppress_health_check=QUIET)
@given(case=paged_cases())
def test_pages_change_no_byte_but_the_table(case: tuple[AttentionProblem, Kernel]) -> None:
    """With rows of whole sectors, or pages of whole sectors, K and V move what they move in one piece."""
    problem, chosen = case
    problem = problem.with_(head_dim=16, head_dim_v=32, dtype="fp16", output=None)
    apart, together = (
        count(plan(p, chosen)).tensors("l2") for p in (problem, problem.with_(page_size=None))
    )
    slots = ("slot_mapping", "read")
    assert {k: v for k, v in apart.items() if k != (TABLE, "read") and k != slots} == together


CASE = AttentionProblem(
    batch=2, heads=4, kv_heads=2, seq_q=3, seq_k=50, head_dim=16, mask="causal", page_size=16
)


def table_bytes(problem: AttentionProblem, chosen: Kernel) -> int:
    return int(count(plan(problem, chosen)).total("l2", "read", tensor=TABLE))


def test_a_work_tile_reads_each_sector_of_its_entries_once() -> None:
    tiles = 2 * 4  # sequences x query heads, a query block each
    # 50 keys in pages of 16 are 4 entries of 4 bytes: one sector of 32
    assert table_bytes(CASE, kernel((4, 8))) == tiles * 32
    # in pages of one token they are 200 bytes: 7 sectors, whatever the key block
    attention = CASE.with_(page_size=1)
    assert (
        table_bytes(attention, kernel((4, 16)))
        == table_bytes(attention, kernel((4, 5)))
        == tiles * 7 * 32
    )
    # splits of 3 blocks of 6 keys end at keys 18 and 36: both lie within a sector of 8 entries, read on both sides
    assert table_bytes(attention, kernel((4, 6), splits=3)) == tiles * 9 * 32
    # splits of 2 blocks of 16 keys end at key 32, where a sector ends
    assert table_bytes(attention, kernel((4, 16), splits=2)) == tiles * 7 * 32


def test_rows_before_the_diagonal_are_looked_up_by_the_block() -> None:
    """Causal, 8 queries against 16 keys, tiles of 4 x 4: queries 0 to 3 visit keys 0 to 11, queries 4 to 7 all 16."""
    problem = AttentionProblem(seq_q=8, seq_k=16, head_dim=16, mask="causal", page_size=1)
    assert (
        table_bytes(problem, kernel((4, 4))) == (2 + 2) * 32
    )  # 12 entries are 48 bytes, 16 are 64
    assert (
        table_bytes(problem, kernel((4, 16))) == (2 + 2) * 32
    )  # one key block: all 16 rows are looked up
    assert table_bytes(problem.with_(seq_k=8, offset=0), kernel((4, 4))) == (1 + 1) * 32


@settings(max_examples=examples(300), deadline=None)
@given(
    rows=st.integers(1, 3000),
    keys=st.integers(1, 5000),
    block_q=st.integers(1, 200),
    block_k=st.integers(1, 200),
    page=st.integers(1, 40),
    splits=st.integers(1, 9),
    pack=st.sampled_from((1, 3, 4)),
    data=st.data(),
)
def test_sums_of_sectors_in_closed_form(
    rows: int,
    keys: int,
    block_q: int,
    block_k: int,
    page: int,
    splits: int,
    pack: int,
    data: st.DataObject,
) -> None:
    before, right = (data.draw(st.none() | st.integers(0, 2000)) for _ in range(2))
    mask = IntervalMask(before, right, data.draw(st.integers(-3000, 3000)))
    blocks = -(-keys // block_k)
    domain = Domain(
        1, 1, rows * pack, keys, block_q, block_k, mask, pack=pack, splits=min(splits, blocks)
    )
    table = Tensor(TABLE, 1, 1, -(-keys // page), 1, 4, Role.INPUT, keys_per_row=page)
    access = Access(TABLE, Mode.LOAD, Rows.KEY, Per.PAIR)
    assert access_bytes(domain, table, access) == 32 * BlockSums(domain).sectors(8 * page)


# Counters of a Triton kernel that decodes through a shuffled table (experiments/paged.py), on an H200.


@cache
def recorded() -> list[dict[str, str]]:
    with open(measurements("h200_paged.csv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def predicted(row: dict[str, str]) -> Prediction:
    problem = AttentionProblem(
        batch=int(row["batch"]),
        heads=int(row["heads"]),
        kv_heads=int(row["kv_heads"]),
        seq_q=1,
        seq_k=int(row["seq_k"]),
        head_dim=int(row["head_dim"]),
        dtype=row["dtype"],
        page_size=int(row["page_size"]),
    )
    by_hand = Overrides(
        tile=(16, int(row["block_k"])),
        warps=4,
        stages=2,
        splits=int(row["splits"]),
        pack_group=True,
    )
    return predict(problem, "flash", "h200-sxm", overrides=by_hand)


def test_recorded_pages() -> None:
    """What the counters add from one page size to another is the table, to the byte; and no byte of K and V."""
    differences = []
    for row in recorded():
        traffic = predicted(row).traffic
        read = traffic.total("l2", "read", launch="main")
        assert abs(read - int(row["l2_read"])) <= 1e-4 * int(row["l2_read"])
        differences.append(int(row["l2_read"]) - traffic.total("l2", "read", tensor=TABLE))
        assert traffic.total("l2", "write", launch="main") == int(row["l2_write"])
        assert abs(traffic.total("hbm", "read", launch="main") / int(row["hbm_read"]) - 1) < 1e-3
    assert len(recorded()) == 5
    assert len(set(differences)) == 1


def test_compulsory_bytes_and_capacity() -> None:
    chain = plan(CASE, kernel())
    limits = bounds(CASE, chain, count(chain), 0)
    rows = 2 * 2 * 50  # sequences x key/value heads x keys
    table = 2 * 4 * 4  # sequences x pages x bytes
    assert limits.compulsory_read == rows * (16 + 16) * 2 + 2 * 4 * 3 * 16 * 2 + table
    # 4 pages of 16 tokens hold 64 rows where 50 are used
    unused = 2 * 2 * 14 * (16 + 16) * 2
    assert (
        memory(chain)["peak"]
        == memory(plan(CASE.with_(page_size=None), kernel()))["peak"] + table + unused
    )
    assert chain.notes == (
        f"cache: 8 pages of 16 tokens, {unused:,} bytes of the last pages unused",
    )


def test_rows_that_are_no_whole_sectors_cost_whole_sectors_where_pages_are_none_either() -> None:
    problem = AttentionProblem(
        seq_q=1, seq_k=64, head_dim=10, page_size=8
    )  # a page is 8 x 20 = 160 bytes: 5 sectors
    assert count(plan(problem, kernel((1, 8)))).total("l2", "read", tensor="K") == 64 * 20
    ragged = problem.with_(page_size=4)  # 80 bytes are no whole sectors: 32 bytes a row
    assert count(plan(ragged, kernel((1, 8)))).total("l2", "read", tensor="K") == 64 * 32


def test_the_table_of_an_execution_is_a_shuffle_of_all_pages() -> None:
    table = shuffled_table(CASE, seed=1)[TABLE]
    assert table.shape == (2, 4)
    assert sorted(table.reshape(-1)) == list(range(8))
    assert shuffled_table(CASE.with_(page_size=None), seed=1) == {}


def test_keys_cannot_be_found_without_the_table() -> None:
    chain = plan(CASE, kernel())
    accesses = tuple(a for a in chain.launches[0].accesses if a.tensor != TABLE)
    faults = disagreements(CASE, kernel(), chain=altered(chain, "main", accesses=accesses))
    assert faults == [f"launch main uses a tile of {TABLE} that it has not loaded here"]


def test_a_wrong_table_is_not_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that ignores the table reads another sequence's pages."""
    monkeypatch.setattr(
        "executor.memory.place_of_rows", lambda tensor, row, entries: (row * 0, row)
    )
    assert any("off by" in text for text in disagreements(CASE, kernel()))


def test_appended_tokens() -> None:
    executed = execute(CASE, kernel(append=True))
    for name in ("K", "V"):
        rows = np.moveaxis(executed.inputs[name][:, :, -3:], 1, 2).reshape(2, 1, 3, -1)
        np.testing.assert_array_equal(executed.outputs[f"{name}_cache"], rows)
    counts = count(plan(CASE, kernel(append=True)))
    new = 2 * 3 * 2 * 16 * 2  # sequences x tokens x key/value heads x columns x bytes
    assert counts.total("l2", "write", launch="append") == 2 * new
    assert (
        counts.total("l2", "read", launch="append") == 2 * new + 2 * 3 * 32
    )  # a slot is read as one sector a token
    without_pages = count(plan(CASE.with_(page_size=None), kernel(append=True)))
    assert without_pages.total("l2", "read", launch="append") == 2 * new


def test_a_formula_with_pages() -> None:
    formula = derive(CASE, kernel((4, 8)))
    assert formula.numbers().tensors("l2") == count(plan(CASE, kernel((4, 8)))).tensors("l2")


@pytest.mark.parametrize(
    ("name", "gpu", "page"), [("fa2", "a100", 256), ("fa3", "h200", 16), ("flash", "l4", 16)]
)
def test_a_replay_reads_each_page_and_the_table_once(name: str, gpu: str, page: int) -> None:
    heads = (
        8 if name == "flash" else 32
    )  # flash does not pack a group's heads: they would read the table again
    problem = AttentionProblem(
        batch=4, heads=heads, kv_heads=8, seq_q=1, seq_k=8200, head_dim=128, page_size=page
    )
    prediction = predict(problem, name, gpu, method="replay")
    table = 4 * -(-8200 // page) * 4
    assert prediction.traffic.total("hbm", "read", tensor=TABLE) == table
    keys = 4 * 8 * 8200 * 128 * 2
    assert abs(prediction.traffic.total("hbm", "read", tensor="K") - keys) <= 0.05 * keys


def test_prefix_is_a_longer_cache(capsys: pytest.CaptureFixture[str]) -> None:
    common = [
        "predict",
        "--kernel",
        "flash",
        "--causal",
        "--seq-len",
        "256",
        "--method",
        "bounds",
        "--format",
        "csv",
    ]
    assert main([*common, "--prefix", "1k"]) == 0
    by_prefix = capsys.readouterr().out
    assert main([*common, "--seq-len-k", "1280"]) == 0
    assert by_prefix == capsys.readouterr().out
    # bottom-right: the first query of the chunk keeps the prefix and itself
    problem = AttentionProblem(seq_q=256, seq_k=1280, mask="causal")
    assert problem.interval_mask.end_key(np.array([0]), 1280)[0] == 1025


BAD = [
    ("--kernel fa2 --page-size 16", "multiples of 256"),
    (
        "--kernel flashmla --gpu h100 --latent-kv --head-dim 576 --head-dim-v 512 --page-size 16",
        "accepted: 64",
    ),
    ("--kernel cudnn --gpu h200 --page-size 16", "--page-size 16: kernel cudnn does not take it"),
    ("--kernel naive --page-size 16", "--page-size 16: kernel naive does not take it"),
    ("--kernel flash --page-size 0", "--page-size 0 is out of range"),
    ("--kernel flash --page-size 16 --pass bwd", "contradicts --pass 'bwd'"),
    ("--kernel flash --prefix 4 --seq-len-k 9", "--prefix 4 contradicts --seq-len-k 9"),
    (
        "--kernel flash --append-kv --seq-len 9 --seq-len-k 4",
        "--append-kv with 9 new tokens and 4 keys",
    ),
    ("--kernel naive --append-kv", "--append-kv: kernel naive has no cache"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input_is_told_in_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["predict", *options.split()], message)


def test_an_algorithm_without_pages_refuses_them() -> None:
    with pytest.raises(InputError, match=r"^page_size=16"):
        plan(CASE, Kernel("naive", "naive", Tile(8, 8)))
    with pytest.raises(InputError, match="contradicts passes"):
        replace(CASE, passes="bwd")
    with pytest.raises(InputError, match="contradicts mask 'butterfly'"):
        plan(AttentionProblem(seq_q=64, mask="butterfly", page_size=16), kernel())

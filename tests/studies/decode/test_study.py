"""Decoding: packed groups with one and several query tokens, split rules, recorded rows, tokens a second."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reproduced
from counter import count
from effort import examples
from executor import execute, random_arrays, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused
from scripts import measurements
from strategies import disagreements, problems, tiles

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.catalog.libraries.fa2 import fa2_splits
from iosim.catalog.libraries.fa3 import fa3_splits
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Scheduler
from iosim.prediction.call import Call
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.show.html import unpacked
from iosim.studies.decode import ModelShape, decode_point, sweep

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


# Packing: the rows of a tile are query tokens x heads of a group.


@st.composite
def packed_cases(draw: st.DrawFn) -> tuple[AttentionProblem, Kernel]:
    problem = draw(problems("flash", "fwd"))
    problem = problem.with_(
        heads=problem.kv_heads * draw(st.integers(2, 6)), seq_q=draw(st.integers(2, 30))
    )
    tile = draw(tiles(problem))
    splits = draw(st.integers(1, min(-(-problem.seq_k // tile.block_k), 4)))
    return problem, Kernel("flash", "flash", tile, packs_group=True, splits=splits)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=QUIET)
@given(case=packed_cases(), seed=st.integers(0, 3))
def test_readers_agree_on_packed_groups(case: tuple[AttentionProblem, Kernel], seed: int) -> None:
    assert disagreements(*case, seed=seed) == []


def test_one_head_of_keys_is_packed_by_token_not_by_head() -> None:
    """With one grid head rows could be counted through either way; the mask tells them apart."""
    problem = AttentionProblem(heads=3, kv_heads=1, seq_q=5, seq_k=9, head_dim=4, mask="causal")
    arrays = random_arrays(problem)
    executed = execute(
        problem, Kernel("flash", "flash", Tile(4, 2), packs_group=True, splits=2), arrays
    )
    right = reference(problem, arrays)
    np.testing.assert_allclose(executed.outputs["O"], right["O"], atol=2e-3)
    np.testing.assert_allclose(executed.outputs["LSE"], right["LSE"], atol=2e-3)


def test_packing_reads_keys_once_a_group() -> None:
    problem = AttentionProblem(batch=2, heads=8, kv_heads=2, seq_q=3, seq_k=64, head_dim=16)
    apart, packed = (
        count(plan(problem, Kernel("flash", "flash", Tile(16, 16), packs_group=p)))
        for p in (False, True)
    )
    keys = 2 * 64 * 16 * 2  # sequences x keys x columns x bytes, for one head
    assert apart.total("l2", "read", tensor="K") == 8 * keys  # a tile a query head
    assert (
        packed.total("l2", "read", tensor="K") == 2 * keys
    )  # 12 rows of a group: one tile of 16 a key/value head
    for name in ("Q", "O"):
        ways = "write" if name == "O" else "read"
        assert apart.total("l2", ways, tensor=name) == packed.total("l2", ways, tensor=name)


@pytest.mark.parametrize(("tokens", "splits"), [(1, 1), (2, 1), (5, 3), (16, 4)])
def test_replay_of_packed_groups_moves_the_compulsory_bytes(tokens: int, splits: int) -> None:
    problem = AttentionProblem(
        batch=2, heads=32, kv_heads=4, seq_q=tokens, seq_k=4096, head_dim=64, mask="causal"
    )
    kernel = Kernel("flash", "flash", Tile(64, 64), packs_group=True, splits=splits)
    h200 = load_profile("h200")
    replay = Call.of(problem, kernel, h200).replay()
    keys = 2 * 4 * 4096 * 64 * 2
    for name in ("K", "V"):
        read = replay.traffic.total("hbm", "read", tensor=name)
        assert keys <= read <= 1.01 * keys


# The libraries' rules.


def chosen(name: str, gpu: str, **changes: Any) -> Kernel:
    shape: dict[str, Any] = {
        "batch": 1,
        "heads": 32,
        "kv_heads": 8,
        "seq_q": 1,
        "seq_k": 8192,
        "head_dim": 128,
        "dtype": "bf16",
    }
    return resolve(name, AttentionProblem(**(shape | changes)), load_profile(gpu))


FA2_PACKS = [
    ({}, True),
    ({"seq_q": 2}, False),
    ({"mask": "causal"}, True),
    ({"mask": "window", "window": 64}, False),
    ({"dropout": 0.1}, False),
    ({"head_dim": 20}, False),
    ({"passes": "fwd+bwd"}, False),
]


@pytest.mark.parametrize(("changes", "packs"), FA2_PACKS)
def test_fa2_packs_one_query_token(changes: dict[str, Any], packs: bool) -> None:
    assert chosen("fa2", "a100", **changes).packs_group is packs


def test_fa2_splits_of_the_recorded_rows() -> None:
    # tiles, key blocks, 2 x 132 SMs -> splits, as the grids of the recorded launches say
    assert fa2_splits(8, 1024, 264) == 28
    assert fa2_splits(8 * 8, 2, 264) == 2
    assert fa2_splits(8 * 8, 4, 264) == 4


FA3 = [
    # 8 tiles on 132 SMs: 33 splits are two whole waves; 14 fill 112 SMs, 84.8 % of one, 15 fill 120, 90.9 %
    ({}, 15, (64, 176), True),
    ({"mask": "causal"}, 15, (64, 176), True),  # one token: the mask is dropped
    ({"mask": "causal", "seq_q": 2}, 15, (64, 128), True),
    ({"batch": 16}, 1, (64, 176), True),  # 128 tiles are 97 % of the SMs; rows 4 of 64 packed, 1 of 64 not
    ({"seq_k": 700}, 1, (64, 176), True),  # 4 key blocks
    ({"seq_q": 64, "batch": 16}, 1, (128, 176), True),  # 256 rows in 2 tiles packed, 64 in half a tile not
    ({"seq_q": 128, "batch": 16}, 1, (128, 176), False),
    ({"kv_heads": 32, "batch": 8}, 1, (64, 176), False),
    ({"page_size": 16, "batch": 16}, 1, (64, 128), True),
    ({"head_dim": 64, "page_size": 16, "batch": 16, "seq_q": 192}, 1, (192, 160), True),
    ({"head_dim": 256, "batch": 16}, 1, (128, 80), True),
    ({"dtype": "fp8", "batch": 16}, 1, (64, 96), True),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "splits", "tile", "packs"), FA3)
def test_fa3_rules(
    changes: dict[str, Any], splits: int, tile: tuple[int, int], packs: bool
) -> None:
    kernel = chosen("fa3", "h100-sxm", **changes)
    assert (kernel.splits, (kernel.tile.block_q, kernel.tile.block_k), kernel.packs_group) == (
        splits,
        tile,
        packs,
    )
    if splits > 1:
        assert kernel.schedule.scheduler is Scheduler.STATIC


@pytest.mark.parametrize(
    ("kernel", "values", "splits"),
    [
        # as many keys as queries and no pages: flash_attn_func and flash_attn_varlen_func, num_splits = 1
        ("fa3", {}, False),
        ("fa3", {"batch": 2, "mask": "causal"}, False),
        ("sglang-fa3", {}, False),
        (
            "sglang-fa3",
            {"seq_q": 8292, "seq_k": 8292, "seq_lens": (8192, 100), "seq_lens_k": (8192, 100)},
            False,
        ),
        # a cache: flash_attn_with_kvcache
        ("fa3", {"page_size": 16}, True),
        ("fa3", {"seq_q": 64}, True),
        ("sglang-fa3", {"page_size": 1}, True),
        ("sglang-fa3", {"seq_q": 1, "batch": 4}, True),
        # vLLM's one call leaves it to the library always
        ("vllm-fa3", {}, True),
        ("vllm-fa3", {"page_size": 64}, True),
    ],
)
def test_fa3_splits_where_its_caller_leaves_the_number_to_it(
    kernel: str, values: dict[str, Any], splits: bool
) -> None:
    """One head of 8,192 tokens on 132 SMs: the heuristic would split it."""
    problem = AttentionProblem(
        **{"heads": 1, "seq_q": 8192, "seq_k": 8192, "head_dim": 72, "dtype": "bf16", **values}
    )
    profile = load_profile("h200")
    assert (resolve(kernel, problem, profile).splits > 1) == splits
    assert resolve(kernel, problem, profile, Overrides(splits=3)).splits == 3


def test_fa3_of_one_head_takes_what_was_published() -> None:
    """AIConfigurator's table of encoders, SGLang 0.5.14 on an H200: 120 us in a CUDA graph; split in three it would
    take 43."""
    prediction = predict(
        AttentionProblem(heads=1, seq_q=8192, head_dim=72, dtype="bf16"),
        "fa3",
        "h200",
        l2_start="warm",
        launched="graph",
    )
    assert prediction.time_s == pytest.approx(120.1e-6, rel=0.2)


def test_fa3_splits_what_outgrows_50_mib() -> None:
    """Two rounds of query blocks over a head of 256 MiB: as many splits as parts of 50 MiB."""
    long = AttentionProblem(heads=8, seq_q=1 << 16, seq_k=1 << 19, head_dim=128)
    assert fa3_splits(long, 132, 128, 176) == -(-(1 << 19) * 256 * 2 // (50 << 20)) == 6
    assert fa3_splits(long.with_(mask="causal"), 132, 128, 128) == 1


def test_fa3_window_counts_the_keys_it_loads() -> None:
    assert (
        chosen("fa3", "h100-sxm", mask="window", window=200).splits == 1
    )  # 201 + 64 keys are 3 blocks of 128


def test_splits_follow_a_tile_by_hand() -> None:
    problem = AttentionProblem(heads=8, kv_heads=8, seq_q=1, seq_k=2048, head_dim=128)
    kernel = resolve("fa2", problem, load_profile("a100"), Overrides(tile=(64, 1024)))
    assert kernel.splits == 2  # no more than key blocks
    with pytest.raises(InputError, match="splits 9 is out of range"):
        predict(problem, "fa2", "a100", overrides=Overrides(tile=(64, 1024), splits=9))


def test_packing_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    common = [
        "predict",
        "--kernel",
        "flash",
        "--heads",
        "32",
        "--kv-heads",
        "8",
        "--seq-len",
        "2",
        "--seq-len-k",
        "4k",
    ]
    for option, reads in ((["--pack-group"], 8), (["--no-pack-group"], 32)):
        assert main([*common, *option, "--method", "bounds", "--format", "json"]) == 0
        prediction = json.loads(capsys.readouterr().out)["predictions"][0]
        row = next(r for r in prediction["traffic"] if r["tensor"] == "K")
        assert row["bytes"] == reads * 4096 * 128 * 2
    assert main(["predict", "--kernel", "naive", "--pack-group"]) == 2
    assert "--pack-group: kernel naive" in capsys.readouterr().err


# Recorded rows: an H200's counters on packed rows of iosim's own split kernel.


@cache
def recorded() -> list[list[dict[str, str]]]:
    """Calls whose rows are a group's heads packed by hand: as many `heads` as key/value heads, four query rows."""
    calls: dict[str, list[dict[str, str]]] = {}
    with open(measurements("h200_iosim_kernels.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["note"] == "packed, 32 query heads":
                calls.setdefault(row["call"], []).append(row)
    return list(calls.values())


def test_packed_groups_against_counters() -> None:
    """The problem as a model has it, one token of 32 heads, packed by the kernel: SM<->L2 bytes of the split launch to
    the byte, and its HBM reads."""
    checked = 0
    for row, _ in recorded():
        splits = int(row["splits"])
        if (
            splits == 1
        ):  # its kernel passes one split through memory as well; the model stores O at once
            continue
        problem = AttentionProblem(
            batch=int(row["batch"]),
            heads=32,
            kv_heads=8,
            seq_q=1,
            seq_k=int(row["seq_k"]),
            head_dim=int(row["head_dim"]),
            dtype=row["dtype"],
        )
        settings_of_row = Overrides(
            tile=(64, 64), warps=4, stages=2, splits=splits, pack_group=True
        )
        prediction = predict(problem, "flash", "h200-sxm", overrides=settings_of_row)
        assert prediction.traffic.total("l2", "read", launch="main") == int(row["l2_read"])
        assert prediction.traffic.total("l2", "write", launch="main") == int(row["l2_write"])
        error = prediction.traffic.total("hbm", "read", launch="main") / int(row["hbm_read"]) - 1
        assert abs(error) < 0.01, f"call {row['call']}"
        checked += 1
    assert checked == 18


# Recorded rows: PyTorch's flash and cuDNN backends as they decode, on an H200.


@cache
def library_calls() -> dict[str, list[dict[str, str]]]:
    calls: dict[str, list[dict[str, str]]] = {}
    with open(measurements("h200_decode.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            calls.setdefault(row["call"], []).append(row)
    return calls


CODE_BYTES = 70_000
"""What a launch reads besides its tensors: code, parameters."""
UNPACKED_GROUP = "8"
"""The call in which four CTAs read a group's keys, each for itself: they drift, and HBM reads are off by 3 to 4 %."""


@pytest.mark.parametrize("call", library_calls())
def test_library_decode_against_counters(call: str) -> None:
    """Launches, grid, bytes into the SMs and HBM reads. Nothing of the row but its shape is used."""
    rows = library_calls()[call]
    row = rows[0]
    sizes = {n: int(row[n]) for n in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")}
    prediction = predict(
        AttentionProblem(**sizes, dtype=row["dtype"]),
        row["implementation"],
        "h200-sxm",
        method="replay",
    )
    assert len(prediction.chain.launches) == len(rows)
    grid = np.prod([int(n) for n in row["grid"].strip("()").split(",")])
    assert prediction.chain.launches[0].ctas == grid
    for launch, counted in zip(prediction.chain.launches, rows, strict=True):
        read = prediction.traffic.total("l2", "read", launch=launch.name)
        assert abs(read - int(counted["l2_read"])) <= max(1000, 1e-3 * int(counted["l2_read"]))
    # the combine was recorded after a flush of its own, which parts it from the launch before
    hbm = prediction.traffic.total("hbm", "read", launch="main")
    measured = int(row["hbm_read"])
    assert abs(hbm - measured) <= max(
        CODE_BYTES, (0.05 if call == UNPACKED_GROUP else 0.01) * measured
    )


def test_library_decode_rows_are_all_there() -> None:
    names = [rows[0]["implementation"] for rows in library_calls().values()]
    assert names.count("cudnn") == names.count("pytorch_flash") == 11


# Bytes and time of a generated token.


def test_a_decode_step_reads_the_cache_once() -> None:
    shape = ModelShape(heads=32, kv_heads=8, head_dim=128, layers=3)
    point = decode_point(shape, 32768, "h200-sxm", batch=2)
    cache = (
        3 * 2 * 8 * 32768 * (128 + 128) * 2
    )  # layers x sequences x heads x keys x columns x bytes
    assert point.cache_bytes == cache
    assert point.fits is True
    read = point.per_token("hbm", "read")
    assert read is not None
    assert cache / 2 <= read <= 1.02 * cache / 2  # a token of each of the two sequences
    bandwidth = load_profile("h200-sxm").dram_read_bandwidth_bytes_per_s or 0
    assert point.bound_tokens_per_s == pytest.approx(2 * bandwidth / cache)
    assert point.tokens_per_s < point.bound_tokens_per_s
    assert point.step_s == 3 * point.prediction.time.total_s


def test_tokens_that_share_a_step_share_its_reads() -> None:
    shape = ModelShape(layers=1)
    single, four = (decode_point(shape, 65536, "h100-sxm", new_tokens=n) for n in (1, 4))
    assert four.per_token("hbm", "read") == pytest.approx(
        single.per_token("hbm", "read") / 4, rel=0.01
    )


def test_time_grows_with_the_context_and_a_window_stops_it() -> None:
    points = list(sweep(ModelShape(layers=1), [4096, 16384, 65536], "a100"))
    times = [p.step_s for p in points]
    assert times == sorted(times)
    step_times = [
        p.per_token("l2")
        for p in sweep(ModelShape(layers=1, window=1023), [4096, 16384, 65536], "a100")
    ]
    assert max(step_times) <= 1.2 * min(step_times)


def test_a_latent_cache_is_smaller() -> None:
    """DeepSeek-V3: 576 columns a token and layer; 128 heads of 192 and 128 without a latent."""
    latent = ModelShape(
        heads=128, kv_heads=1, head_dim=576, head_dim_v=512, layers=61, latent_kv=True
    )
    point = decode_point(latent, 4096, "h100-sxm")
    assert point.cache_bytes == 61 * 4096 * 576 * 2
    assert point.prediction.kernel.name == "flashmla"


@pytest.mark.parametrize(
    ("gpu", "changes", "name"),
    [
        ("h200", {}, "fa3"),
        ("a100", {}, "fa2"),
        ("l4", {}, "fa2"),
        ("t4", {"dtype": "fp16"}, "cutlass"),
        ("b200", {}, "fa2"),
        ("a100", {"page_size": 16}, "flash"),
        ("a100", {"page_size": 256}, "fa2"),
        ("h200", {"dtype": "fp8"}, "fa3"),
        ("a100", {"head_dim": 512}, "cutlass"),
        ("a100", {"latent_kv": True}, "mla"),
    ],
)
def test_default_kernel(gpu: str, changes: dict[str, Any], name: str) -> None:
    assert decode_point(ModelShape(**changes), 2048, gpu).prediction.kernel.name == name


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "decode",
        "--gpu",
        "h200",
        "--gpu",
        "a100",
        "--context",
        "1k:4k:x2",
        "--page-size",
        "256",
        "--append-kv",
    ]
    assert main([*options, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    assert [(p["profile"], p["context"]) for p in data["points"]] == [
        (g, n) for g in ("h200-sxm", "a100-sxm-80gb") for n in (1024, 2048, 4096)
    ]
    assert data["points"][0]["packed"] == 4
    assert main([*options, "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert main(options) == 0
    assert "K/V bound" in capsys.readouterr().out


def test_the_page_and_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["decode", "--gpu", "h200", "--gpu", "l4", "--context", "1k,4k"]
    for form in ("html", "md"):
        assert main([*options, "--format", form, "--out", str(tmp_path / f"decode.{form}")]) == 0
    page, text = (
        (tmp_path / f"decode.{form}").read_text(encoding="utf-8") for form in ("html", "md")
    )
    for name in ("tokens-1", "figure-bytes", "figure-splits"):
        assert f'id="{name}"' in page
    data = unpacked(page)
    drawn = {line["name"]: line["y"] for line in data["panels"]["figure-splits"]["data"]}
    assert main([*options, "--format", "json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert drawn == {
        f"{gpu}, {kernel}": [p["splits"] for p in points if p["profile"] == gpu]
        for gpu, kernel in (("h200-sxm", "fa3"), ("l4", "fa2"))
    }
    assert text.count("| h200-sxm |") == text.count("| l4 |") == 2
    assert "http" not in page.split("<script>")[0].replace("http-equiv", "")


BAD = [
    ("--context 0", "--context 0 is out of range"),
    ("--context 4 --new-tokens 9", "--new-tokens 9 is out of range; accepted: 1 to 4"),
    ("--layers 0", "layers 0 is out of range"),
    ("--batch 0", "--batch 0 is out of range"),
    ("--heads 6 --kv-heads 4", "heads 6 is not a multiple"),
    ("--kv-heads 0", "--kv-heads 0 is out of range"),
    ("--kernel fa2 --page-size 16", "multiples of 256"),
    ("--kernel nosuch", "--kernel 'nosuch'"),
    ("--context 1k:", "--context '1k:' is not a range"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input_is_told_in_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["decode", *options.split()], message)


# The published decode table.


@pytest.mark.slow
def test_published_rows_are_all_there_and_none_is_fitted() -> None:
    rows = [r for r in reproduced.rows("D") if r.claim.startswith("decode")]
    times = [r for r in rows if r.unit == "us"]
    assert [r.claimed for r in times] == [
        3058.6,
        390.5,
        63.4,
        3157.0,
        401.7,
        57.0,
        2664.0,
        4592.0,
        106.6,
    ]
    assert all(r.computed for r in rows)
    split = [r.ratio for r in times if "split-KV" in r.claim]
    assert all(ratio is not None and 0.7 < ratio < 1.2 for ratio in split)
    assert all(r.note for r in times if r.ratio is not None and not 0.9 < r.ratio < 1.1)


@pytest.mark.parametrize(
    ("problem", "ctas"),
    [
        (
            {"batch": 16, "heads": 7, "seq_k": 512, "head_dim": 120},
            28,
        ),  # 112 rows, 4 a CTA of the build for 128
        (
            {"batch": 2, "heads": 20, "kv_heads": 5, "seq_k": 333, "head_dim": 136},
            5,
        ),  # 40 rows, 8: for 192
        (
            {"batch": 5, "heads": 12, "kv_heads": 3, "seq_k": 321, "head_dim": 80},
            4,
        ),  # 60 rows, 16: for 96
    ],
)
def test_a_combine_has_the_rows_of_its_build(problem: dict[str, int], ctas: int) -> None:
    """The grids of `h100_random.csv`."""
    attention = AttentionProblem(**problem, seq_q=1, dtype="fp16")
    chain = plan(attention, resolve("fa2", attention, load_profile("h100")))
    combine = next(n for n in chain.launches if n.name == "combine")
    assert combine.domain.query_blocks == ctas

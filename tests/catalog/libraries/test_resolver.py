"""The catalog of library kernels: tiles by architecture, head dimension, mask and dropout; splits; sections; choice."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest
from chosen import chosen
from scripts import measurements

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.catalog.libraries.fa2 import fa2_splits
from iosim.catalog.libraries.fa3 import fa3_section_heads
from iosim.catalog.libraries.resolver import _asked_splits, _machine
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Direction, Order, Scheduler, Start
from iosim.prediction.call import Call
from iosim.prediction.predictor import check_fits, predict
from iosim.problem.attention import AttentionProblem

PAIRS = ("a100", "h100", "l4", "rtx-3090")  # cc 8.0, 9.0, 8.9, 8.6


BOTH = (False, True)


BIG, SMALL = ("a100", "h100"), ("l4", "rtx-3090")


FA2: tuple[tuple[int, tuple[str, ...], tuple[bool, ...], bool, str, int, int], ...] = (
    (32, PAIRS, BOTH, False, "128x128", 4, 24),
    (64, PAIRS, BOTH, False, "128x128", 4, 48),
    (64, PAIRS, BOTH, True, "128x64", 4, 32),
    (96, BIG, BOTH, False, "128x64", 4, 48),
    (96, SMALL, (False,), False, "128x64", 4, 48),
    (96, SMALL, (True,), False, "64x64", 4, 36),
    (128, BIG, BOTH, False, "128x64", 4, 64),
    (128, SMALL, (False,), False, "128x32", 4, 48),
    (128, SMALL, (True,), False, "64x64", 4, 48),
    (192, BIG, BOTH, False, "128x64", 8, 96),
    (192, BIG, BOTH, True, "64x64", 4, 72),
    (256, ("a100",), BOTH, False, "128x64", 8, 128),
    (256, ("h100",), BOTH, False, "64x64", 4, 96),
    (256, SMALL, BOTH, False, "64x64", 4, 96),
)


FA2_ROWS = [
    (d, gpu, causal, dropout, tile, warps, kb)
    for d, gpus, masks, dropout, tile, warps, kb in FA2
    for gpu in gpus
    for causal in masks
]


@pytest.mark.parametrize(("d", "gpu", "causal", "dropout", "tile", "warps", "kb"), FA2_ROWS)
def test_fa2_forward(
    d: int, gpu: str, causal: bool, dropout: bool, tile: str, warps: int, kb: int
) -> None:
    shape = {
        "head_dim": d,
        "mask": "causal" if causal else "none",
        "dropout": 0.1 if dropout else 0.0,
    }
    kernel = chosen("fa2", gpu, **shape)
    assert str(kernel.tile) == tile
    assert kernel.tile.warps == warps
    assert kernel.splits == 1
    problem = AttentionProblem(batch=4, heads=32, seq_q=4096, dtype="bf16", **shape)  # type: ignore[arg-type]
    call = Call.of(problem, kernel, load_profile(gpu))
    q, k = kernel.tile.block_q, kernel.tile.block_k
    assert call.chain.launches[0].resources.shared_memory_bytes == kb * 1024 == (q + 2 * k) * d * 2
    check_fits(call)


def test_fa2_grid() -> None:
    kernel = chosen("fa2", "a100", mask="causal")
    assert kernel.schedule.order is Order.BATCH  # query blocks fastest, then batch, heads slowest
    assert kernel.schedule.start is Start.LIGHT_FIRST  # light blocks start first, also when causal
    assert kernel.schedule.direction is Direction.DESCENDING
    assert kernel.schedule.scheduler is Scheduler.STATIC
    assert kernel.writes_lse


@pytest.mark.parametrize(
    ("asked", "compiled"), [(40, 64), (72, 96), (80, 96), (112, 128), (160, 192), (200, 256)]
)
def test_fa2_rounds_head_dim_up_and_reads_true_columns(asked: int, compiled: int) -> None:
    p = AttentionProblem(batch=4, heads=32, seq_q=4096, head_dim=asked, dtype="bf16")
    kernel = resolve("fa2", p, load_profile("a100"))
    assert kernel.compiled_head_dim == compiled
    assert kernel.tile == chosen("fa2", "a100", head_dim=compiled).tile
    assert any(f"compiled for {compiled}" in n for n in kernel.notes)
    assert plan(p, kernel).tensors["K"].bytes == 4 * 32 * 4096 * asked * 2


FA2_BACKWARD = (
    (64, "a100", "128x128"), (64, "h100", "128x128"), (64, "l4", "64x128"), (96, "a100", "64x128"),
    (96, "l4", "64x128"), (128, "a100", "64x128"), (128, "h100", "64x128"), (128, "l4", "64x64"),
    (192, "a100", "64x64"), (256, "h100", "64x64"),
)  # fmt: skip


@pytest.mark.parametrize(("d", "gpu", "tile"), FA2_BACKWARD)
def test_fa2_backward(d: int, gpu: str, tile: str) -> None:
    kernel = chosen("fa2", gpu, head_dim=d, passes="bwd")
    assert str(kernel.backward.tile) == tile
    assert kernel.backward.tile is not None
    assert kernel.backward.tile.warps == 8


FA3 = (
    (64, "192x192", "192x128", "192x160"),
    (96, "192x144", "192x144", "192x128"),
    (128, "128x176", "128x128", "128x224"),
    (192, "128x112", "128x112", "128x160"),
    (256, "128x80", "128x80", "128x128"),
)


@pytest.mark.parametrize(("d", "full", "causal", "fp8"), FA3)
def test_fa3_forward(d: int, full: str, causal: str, fp8: str) -> None:
    assert str(chosen("fa3", "h100", head_dim=d).tile) == full
    assert str(chosen("fa3", "h100", head_dim=d, mask="causal").tile) == causal
    assert str(chosen("fa3", "h100", head_dim=d, dtype="fp8").tile) == fp8


def test_fa3_is_persistent_and_static_without_a_mask() -> None:
    kernel = chosen("fa3", "h100")
    assert kernel.schedule.scheduler is Scheduler.PERSISTENT
    assert kernel.schedule.order is Order.QUERY
    assert kernel.persistent_ctas == 132


@pytest.mark.parametrize("mask", [{"mask": "causal"}, {"mask": "window", "window": 512}])
def test_fa3_is_dynamic_and_sectioned_under_a_mask(mask: dict[str, object]) -> None:
    schedule = chosen("fa3", "h100", head_dim=128, **mask).schedule
    assert schedule.scheduler is Scheduler.DYNAMIC
    assert schedule.order is Order.HEAD
    assert schedule.start is Start.HEAVY_FIRST
    assert (
        schedule.section_heads == 16
    )  # 4,096 x (128 + 128) x 2 bytes = 2 MiB a head: 16 in 32 MiB


@pytest.mark.parametrize(
    ("seq_k", "d", "dtype", "group", "heads"),
    [
        (4096, 128, "bf16", 1, 16),
        (4096, 128, "bf16", 4, 64),  # times the group
        (4096, 128, "fp8", 1, 32),
        (6000, 128, "bf16", 1, 8),  # 10.9 fit: the power of two below
        (65536, 128, "bf16", 1, 1),  # 32 MiB exactly
        (1 << 20, 128, "bf16", 1, 1),  # none fits: one at least
        (1 << 20, 128, "bf16", 8, 8),
    ],
)
def test_fa3_section_rule(seq_k: int, d: int, dtype: str, group: int, heads: int) -> None:
    p = AttentionProblem(
        heads=8 * group, kv_heads=8, seq_q=128, seq_k=seq_k, head_dim=d, dtype=dtype
    )
    assert fa3_section_heads(p) == heads


OTHERS = (
    ("fa1", "a100", {"head_dim": 64}, "16x256"),
    ("fa1", "a100", {"head_dim": 128}, "16x128"),
    ("cutlass", "h100", {"head_dim": 64}, "64x64"),
    ("cutlass", "h100", {"head_dim": 128}, "64x128"),
    ("cutlass", "t4", {"head_dim": 128, "dtype": "fp16"}, "32x128"),
    ("cutlass", "h100", {"head_dim": 256}, "32x128"),
    ("cudnn", "h100", {"head_dim": 128}, "128x128"),
    ("triton", "a100", {"head_dim": 64}, "128x64"),
    ("minimal", "t4", {"head_dim": 64, "dtype": "fp32"}, "32x32"),
)


@pytest.mark.parametrize(("name", "gpu", "shape", "tile"), OTHERS)
def test_tiles_of_other_kernels(name: str, gpu: str, shape: dict[str, object], tile: str) -> None:
    assert str(chosen(name, gpu, **shape).tile) == tile


def test_cutlass_reads_q_again_and_cudnn_writes_no_lse() -> None:
    assert chosen("cutlass", "h100").rereads_q
    assert not chosen("cudnn", "h100").writes_lse
    assert chosen("cudnn", "h100").cta_threads == 384


def test_flash1_takes_the_papers_own_tile() -> None:
    elements = 166912 // 2  # what a CTA may have of an A100's shared memory, in fp16
    kernel = chosen("flash1", "a100", head_dim=64)
    assert kernel.tile.block_k == -(-elements // (4 * 64))
    assert kernel.tile.block_q == min(kernel.tile.block_k, 64)


def test_recorded_splits() -> None:
    """The grids that an H200 was given: (query blocks, splits, heads)."""
    found = []
    with open(measurements("h200_library_kernels.csv"), encoding="utf-8", newline="") as file:
        for r in csv.DictReader(file):
            if "splitkv" not in r["kernel"] or r["launch"] != "1":
                continue
            p = AttentionProblem(
                batch=int(r["batch"]), heads=int(r["heads"]), kv_heads=int(r["kv_heads"]), seq_q=int(r["seq_q"]),
                seq_k=int(r["seq_k"]), head_dim=int(r["head_dim"]), dtype=r["dtype"],
                mask="causal" if r["causal"] == "1" else "none",
            )  # fmt: skip
            blocks, splits, heads = map(int, re.findall(r"\d+", r["grid"]))
            kernel = resolve("fa2", p, load_profile("h200"))
            assert kernel.splits == splits
            domain = plan(p, kernel).launches[0].domain
            assert (domain.query_blocks, domain.grid_heads) == (blocks, heads)
            found.append(splits)
    assert sorted(set(found)) == [2, 4, 28]


@pytest.mark.parametrize(
    ("tiles", "key_blocks", "width", "splits"),
    [
        (64, 2, 264, 2),  # 8 heads x 8 blocks, 512 tokens, d 64
        (64, 4, 264, 4),  # the same at d 128, where blocks have 128 keys
        (128, 8, 264, 2),  # 1,024 tokens
        (8, 1024, 264, 28),  # one token against 131,072
        (212, 64, 264, 1),  # 80 % of the machine: not split
        (211, 64, 264, 5),  # 1 to 4 splits fill 0.8 of their waves, 5 fill 3.996 of 4
        (264, 64, 264, 1),
        (1, 1, 264, 1),  # one key block cannot be split
    ],
)
def test_split_rule(tiles: int, key_blocks: int, width: int, splits: int) -> None:
    assert fa2_splits(tiles, key_blocks, width) == splits


def test_split_tiles_by_head_dim() -> None:
    for d, tile in ((64, "64x256"), (128, "64x128"), (256, "64x64")):
        assert (
            str(chosen("fa2", "a100", batch=1, heads=1, seq_q=1, seq_k=65536, head_dim=d).tile)
            == tile
        )


def test_one_query_token_packs_a_group_into_a_tile() -> None:
    p = AttentionProblem(heads=32, kv_heads=8, seq_q=1, seq_k=131072, head_dim=128, dtype="bf16")
    domain = plan(p, resolve("fa2", p, load_profile("h200"))).launches[0].domain
    assert (domain.heads, domain.rows, domain.pack) == (8, 4, 4)


@pytest.mark.parametrize(
    ("name", "gpu", "words"),
    [
        ("fa2", "t4", "FlashAttention-2 needs cc 8.0 or later; t4 has cc 7.5"),
        ("fa2", "v100", "cc 8.0"),
        ("fa3", "a100", "cc 9.0"),
        ("fa3", "b200", "cc 9.0"),
        ("cudnn", "b200", "which kernels cuDNN has for cc 10.0 is not known"),
    ],
)
def test_a_gpu_too_old_or_too_new_is_named(name: str, gpu: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        chosen(name, gpu, dtype="fp16")


def test_settings_by_hand_replace_the_librarys() -> None:
    p = AttentionProblem(heads=32, seq_q=4096, head_dim=128)
    kernel = resolve("fa2", p, load_profile("a100"), Overrides(
        tile=(128, 32), warps=8, stages=2, order="head", heavy_first=True, section_heads=4, direction="alternating",
        scheduler="persistent", registers=200, shared_memory_bytes=40000,
    ))  # fmt: skip
    assert (str(kernel.tile), kernel.tile.warps, kernel.tile.stages) == ("128x32", 8, 2)
    s = kernel.schedule
    assert (s.order, s.direction, s.scheduler) == (
        Order.HEAD,
        Direction.ALTERNATING,
        Scheduler.PERSISTENT,
    )
    assert (s.start, s.section_heads, kernel.registers, kernel.shared_memory_bytes) == (
        Start.HEAVY_FIRST,
        4,
        200,
        40000,
    )
    assert kernel.persistent_ctas == 108
    assert (
        resolve("fa2", p, load_profile("a100"), Overrides(warps=8)).tile.block_q == 128
    )  # the rest stays


@pytest.mark.parametrize(
    ("gpu", "dtype", "head_dim", "tile"),
    [
        ("a100", "fp16", 128, (128, 64)),  # (128 + 2 x 64) x 128 x 2 = 65,536 of 166,912 bytes
        ("t4", "fp16", 64, (128, 128)),  # (128 + 2 x 128) x 64 x 2 = 49,152 of 65,536
        ("t4", "fp32", 128, (64, 32)),  # 128x64: 131,072; 64x64: 98,304; 64x32: 65,536 fit
        (
            "l4",
            "fp32",
            256,
            (32, 32),
        ),  # 64x64: 196,608; 64x32: 131,072; 32x32: 98,304 of 101,376 fit
    ],
)
def test_the_free_kernel_takes_a_tile_that_fits(
    gpu: str, dtype: str, head_dim: int, tile: tuple[int, int]
) -> None:
    problem = AttentionProblem(heads=8, seq_q=512, head_dim=head_dim, dtype=dtype)
    kernel = resolve("flash", problem, load_profile(gpu))
    assert (kernel.tile.block_q, kernel.tile.block_k) == tile


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_fa3_fits_on_hopper(gpu: str, dtype: str, head_dim: int, mask: str) -> None:
    problem = AttentionProblem(heads=8, seq_q=512, head_dim=head_dim, dtype=dtype, mask=mask)
    assert predict(problem, "fa3", gpu, method="capacity").total("l2", "read") > 0


def test_fold_and_clusters_by_hand() -> None:
    p, h100 = AttentionProblem(seq_q=1024, mask="causal", dtype="bf16"), load_profile("h100")
    schedule = resolve("fa3", p, h100, Overrides(fold=True, cluster=2)).schedule
    assert (schedule.start, schedule.cluster) == (Start.FOLD, 2)
    with pytest.raises(InputError, match="fold=True contradicts heavy_first=True"):
        resolve("fa3", p, h100, Overrides(fold=True, heavy_first=True))
    with pytest.raises(InputError, match="cluster 2: a100-sxm-80gb has no clusters"):
        resolve("fa2", p, load_profile("a100"), Overrides(cluster=2))


def test_passes_around_a_backward_are_rows_of_the_file() -> None:
    problem = AttentionProblem(heads=4, kv_heads=2, seq_q=256, head_dim=64, passes="bwd")
    kernel = resolve("fa2", problem, load_profile("a100"))

    def launched(made: Kernel) -> list[str]:
        return [launch.name.removeprefix("bwd.") for launch in plan(problem, made).launches]

    assert launched(kernel) == ["copy0", "copy1", "dot", "main", "convert", "sum_dK", "sum_dV"]
    assert launched(kernel.copying("dO")) == ["copy0", "dot", "main", "convert", "sum_dK", "sum_dV"]
    assert launched(Kernel("mine", "flash", Tile(64, 64))) == [
        "dot",
        "main",
        "convert",
        "sum_groups",
    ]
    for alike in (
        {"heads": 1, "kv_heads": 1, "seq_q": 256},
        {"heads": 4, "seq_q": 1},
    ):  # O and dO lie in order
        problem = AttentionProblem(**alike, seq_k=256, head_dim=64, passes="bwd")
        assert launched(kernel) == ["dot", "main", "convert"]
    no_queue = resolve("flash-sm90", problem, load_profile("h100"))
    assert not [
        o
        for launch in plan(problem, no_queue).launches
        for o in launch.overheads
        if o.name == "tile_counter"
    ]


def test_minimal_is_what_its_source_compiles_to() -> None:
    """16 x 12 x 512 x 64 on an H200 (h200_user_kernels of the counters): 3,233,808,000 bytes written into the L2, 46.7
    ms; two CTAs on some SMs, each of whose 32 lanes ask one bank for 32 words."""
    problem = AttentionProblem(batch=16, heads=12, seq_q=512, head_dim=64, dtype="fp32")
    found = predict(problem, "minimal", "h200")
    main = found.traffic.total("l2", "write", launch="main")
    assert main == pytest.approx(3_233_808_000, rel=0.002)
    assert found.time_s == pytest.approx(46.7e-3, rel=0.1)
    assert found.time.bound_by == "smem"


def test_code_is_played_of_its_own_tile_alone() -> None:
    """A kernel that was read from code plays it on every GPU, and no other kernel plays anything."""
    read: dict[str, Any] = {"machine": lambda profile: f"code for {profile.name}"}
    gpu = load_profile("t4")
    assert _machine(read, Overrides(), gpu) == "code for t4"
    assert _machine(read, Overrides(splits=3, order="head"), gpu) == "code for t4"
    for over in (Overrides(tile=(64, 64)), Overrides(warps=4), Overrides(stages=2)):
        assert _machine(read, over, gpu) is None
    assert _machine({}, Overrides(), gpu) is None


@pytest.mark.parametrize(
    ("read", "asked", "splits"),
    [(None, None, None), (3, None, 3), (3, 5, 5), (None, 5, 5)],
)
def test_splits_by_hand_go_before_those_of_code(
    read: int | None, asked: int | None, splits: int | None
) -> None:
    data = {} if read is None else {"splits": read}
    assert _asked_splits(data, Overrides(splits=asked)) == splits

"""The catalog of library kernels: tiles by architecture, head dimension, mask and dropout; splits; sections; choice."""

from __future__ import annotations

import csv
import re

import pytest
from scripts import load_script, measurements

from iosim.base.errors import InputError
from iosim.catalog.algorithms import options_for, plan
from iosim.catalog.libraries import Overrides, entry, entry_name, entry_names, resolve, sdpa
from iosim.catalog.libraries.fa2 import fa2_splits
from iosim.catalog.libraries.fa3 import fa3_section_heads
from iosim.catalog.libraries.loader import CHECKED, _aliases, checked, counted_on, fold
from iosim.catalog.libraries.rules import Rules, rule_book, rule_books, rules_of
from iosim.commands.cli import main
from iosim.evidence.validate.match import _catalog_name
from iosim.evidence.validate.rows import read
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Direction, Order, Scheduler, Start
from iosim.prediction.call import Call
from iosim.prediction.confidence import basis
from iosim.prediction.predictor import check_fits, predict
from iosim.problem.attention import AttentionProblem

PAIRS = ("a100", "h100", "l4", "rtx-3090")  # cc 8.0, 9.0, 8.9, 8.6


def chosen(name: str, gpu: str, **problem: object) -> Kernel:
    shape: dict[str, object] = {"batch": 4, "heads": 32, "seq_q": 4096, "dtype": "bf16"}
    return resolve(name, AttentionProblem(**(shape | problem)), load_profile(gpu))  # type: ignore[arg-type]


# --- FlashAttention-2 forward: head_dim, GPUs, causal, dropout -> tile, warps, shared memory in KB --------------------

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


# --- FlashAttention-3 forward: head_dim -> not causal, causal, fp8 ----------------------------------------------------

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


# --- The other kernels ------------------------------------------------------------------------------------------------

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


# --- Splits -----------------------------------------------------------------------------------------------------------


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


# --- What runs where --------------------------------------------------------------------------------------------------


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


SDPA = (
    ("t4", "fp16", "cutlass", "cc 7.5 has no flash"),
    ("t4", "fp32", "cutlass", "fp32"),
    ("t4", "bf16", "math", "no bf16"),
    ("v100", "fp16", "cutlass", "cc 7.0 has no flash"),
    ("a100", "fp16", "fa2", "cc 8.0"),
    ("a100", "bf16", "fa2", "flash"),
    ("a100", "fp32", "cutlass", "fp32"),
    ("l4", "fp16", "fa2", "flash"),
    ("rtx-3090", "bf16", "fa2", "flash"),
    ("a30", "bf16", "fa2", "flash"),
    ("a40", "fp32", "cutlass", "fp32"),
    ("l40", "bf16", "fa2", "flash"),
    ("rtx-5090", "bf16", "fa2", "flash"),
    ("h100", "fp16", "fa2", "cuDNN comes first with cuDNN later than 9.15.0"),
    ("h200", "tf32", "cutlass", "fp32"),
    ("b200", "bf16", "fa2", "flash"),
)


@pytest.mark.parametrize(("gpu", "dtype", "name", "why"), SDPA)
def test_sdpa_says_what_pytorch_would_take_and_why(
    gpu: str, dtype: str, name: str, why: str
) -> None:
    kernel = chosen("sdpa", gpu, dtype=dtype)
    assert kernel.name == name
    assert why in kernel.notes[0]


def test_sdpa_leaves_flash_for_wide_or_unequal_heads() -> None:
    assert chosen("sdpa", "a100", head_dim=264).name == "cutlass"
    assert chosen("sdpa", "a100", head_dim=64, head_dim_v=128).name == "cutlass"


@pytest.mark.parametrize(
    ("gpu", "head_dim", "passes", "dropout", "name"),
    [
        # sdp_utils.cpp, check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120
        ("l4", 192, "fwd+bwd", 0.0, "fa2"),
        ("l4", 200, "fwd+bwd", 0.0, "cutlass"),
        ("rtx-3090", 224, "fwd+bwd", 0.0, "cutlass"),
        ("rtx-5090", 208, "fwd+bwd", 0.0, "cutlass"),
        ("l4", 256, "fwd+bwd", 0.1, "cutlass"),
        ("l4", 200, "fwd", 0.0, "fa2"),
        ("a100", 200, "fwd+bwd", 0.0, "fa2"),
        ("h100", 256, "fwd+bwd", 0.1, "fa2"),
        # check_head_dim_size_mem_efficient: 128 bits a row's step for half types, 4 elements for fp32 from cc 8.0 on
        ("t4", 60, "fwd", 0.0, "math"),
        ("t4", 64, "fwd", 0.0, "cutlass"),
    ],
)
def test_sdpa_by_width_of_heads(
    gpu: str, head_dim: int, passes: str, dropout: float, name: str
) -> None:
    asked = AttentionProblem(head_dim=head_dim, dtype="fp16", passes=passes, dropout=dropout)
    kernel, why = sdpa.sdpa(asked, load_profile(gpu))
    assert kernel == name, why
    assert "PyTorch @" in why


# --- The files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", entry_names())
def test_every_entry_is_complete(name: str) -> None:
    data = entry(name)
    assert data["schema"] == 1
    assert data["source"].strip()
    assert data["title"].strip()
    assert data["requires"]["dtypes"]
    assert data["tile"]
    for spill in data.get("spill", ()):
        assert spill["source"].strip(), "a fitted number says what it is fitted to"


@pytest.mark.parametrize("name", ["cudnn", "cutlass"])
def test_what_is_inferred_is_labelled(name: str) -> None:
    assert any("inferred" in n for n in chosen(name, "h100").notes)


@pytest.mark.parametrize(
    ("alias", "name"),
    [("pytorch_flash", "fa2"), ("FlashAttention2", "fa2"), ("flash_attention_2", "fa2"), ("flash3", "fa3"),
     ("pytorch_mem_efficient", "cutlass"), ("xformers", "cutlass"), ("triton_plain", "triton"),
     ("pytorch_flash_backward", "fa2"), ("standard", "naive"), ("pytorch_eager", "eager"), ("FA2", "fa2")],
)  # fmt: skip
def test_aliases(alias: str, name: str) -> None:
    assert entry_name(alias) == name


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


# Options.


@pytest.mark.parametrize(
    ("algorithm", "values", "message"),
    [
        (
            "flash1",
            {"to_the_leter": False},
            "flash1: option 'to_the_leter' is not known; did you mean to_the_letter",
        ),
        ("flash1", {"to_the_letter": 1}, "to_the_letter: must be true or false, not 1"),
        ("flash", {"combine_rows": 0}, "combine_rows: 0 is out of range; accepted: 1 or more"),
        (
            "flash",
            {"statistics_per_row": 3},
            "statistics_per_row: 3 is out of range; accepted: 1 to 2",
        ),
        ("flash", {"combine_threads": 128.0}, "combine_threads: 128.0 is not a whole number"),
        (
            "naive",
            {"passes": ["scale", "mask", "twist"]},
            "'twist' is not known; accepted: scale_q, scale",
        ),
        ("naive", {"gemm_tile": [64]}, r"gemm_tile: must be a list of 2, not of 1"),
        (
            "minimal",
            {"splits": 1},
            "algorithm minimal: option 'splits' is not known; accepted: none",
        ),
    ],
)
def test_options_are_checked(algorithm: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        options_for(algorithm, values)


def test_options_of_another_algorithm_are_refused() -> None:
    kernel = Kernel("k", "flash", Tile(64, 64), options=options_for("naive", {}))
    with pytest.raises(
        InputError, match="kernel 'k' has NaiveOptions; accepted by algorithm flash: FlashOptions"
    ):
        plan(AttentionProblem(seq_q=64), kernel)


# Rule books.


def test_a_rule_book_is_registered_once_and_its_name_is_checked() -> None:
    with pytest.raises(ValueError, match="rules 'fa3' is registered already"):
        rule_book("fa3")(Rules)
    with pytest.raises(InputError, match="rules 'fa9' is not known; did you mean fa"):
        rules_of("fa9")
    assert {entry(name)["rules"] for name in entry_names() if "rules" in entry(name)} <= set(
        rule_books()
    )


def test_a_library_of_ones_own_decides_at_launch() -> None:
    class Halves(Rules):
        def splits_of_tile(
            self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
        ) -> int | None:
            return 2

    problem, without = AttentionProblem(seq_q=256, head_dim=64), Rules()
    assert Halves().splits_of_tile(problem, 108, 64, 64) == 2
    assert without.splits_of_tile(problem, 108, 64, 64) is None
    assert without.as_launched(problem) is problem
    assert [without.packs_group(problem.with_(seq_q=q), True, 1, 64, 64) for q in (1, 2)] == [
        True,
        False,
    ]


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


# --- What each was checked against -----------------------------------------------------------------------------------


def test_what_kernels_were_checked_against_is_what_recorded_tables_hold() -> None:
    script = load_script("benchmarks/checked.py")
    assert CHECKED.read_text(encoding="utf-8") == script.text(), (
        "python benchmarks/checked.py --write"
    )


def test_counted_bytes_are_rows_of_that_kernel_and_rows_are_counted_bytes() -> None:
    """By validate's own reading of every table that it can read, but for what no catalog entry is."""
    script = load_script("benchmarks/checked.py")
    seen = {"gdn", "kda", "vllm-triton"}  # whose tables have columns of their own
    for path in script.TABLES:
        try:
            rows = [] if any(word in path.name for word in script.PREDICTED) else read(path)
        except InputError:
            continue
        names = {_catalog_name(row) for row in rows if {"hbm_read", "l2_read"} & {*row.measured}}
        known = {entry_name(name) for name in names if fold(name) in (*entry_names(), *_aliases())}
        assert all(
            any(kind.startswith("bytes counted") for kind in checked(name)) for name in known
        ), path
        seen |= known | {script.STAND_FOR.get(name, name) for name in known}
    assert {name for name in entry_names() if "bytes counted" in checked(name)[0]} == seen


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("--kernel fa2", True),
        ("--kernel fa2 --tile 64x64", False),
        ("--kernel fa2 --pass bwd", True),
    ],
)
def test_counters_are_of_the_tile_that_a_kernel_takes(
    line: str, counted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tile given by hand was counted nowhere."""
    assert main(f"predict --gpu h200 --seq-len 256 --heads 4 {line}".split()) == 0
    said = capsys.readouterr().out
    assert ("checked against counters" in said.split("\n\n")[0]) == counted


@pytest.mark.parametrize(
    ("name", "counted", "said"),
    [
        ("vllm-triton", True, "bytes counted on h100-sxm"),
        ("gdn", True, "bytes counted on h100-sxm"),
        ("fa2", True, "bytes counted on h100-sxm, h200-sxm; backward's on h100-sxm, h200-sxm"),
        ("flex", True, "bytes counted on h100-sxm, h200-sxm; backward's on h100-sxm"),
        ("fa3", False, "published times on h100-sxm, h20, h800-sxm"),
        (
            "trtllm-gdn",
            False,
            "published times on b200, b300, gb200, gb300, h100-sxm, h200-sxm, l40s",
        ),
        ("fa4", False, "execution only"),
        ("examples/kernels/jax-pallas-triton.toml", False, None),
    ],
)
def test_a_prediction_and_the_list_say_whether_a_kernel_was_counted(
    name: str, counted: bool, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bool(counted_on(name)) == counted
    gpu = "b200" if name == "fa4" else "h100"
    problem = AttentionProblem(heads=16, seq_q=256, head_dim=128, dtype="bf16", mask="causal")
    told = ". ".join(basis([predict(problem, name, gpu)]))
    assert ("no counters of this kernel" in told) == (not counted)
    assert ("checked against that GPU's counters" in told) == counted
    if said is None:
        return
    assert main(["kernels", "list", "--format", "csv"]) == 0
    rows = {row["name"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    assert rows[name]["checked"] == said
    assert main(["kernels", "show", name]) == 0
    assert f"\nchecked against: {said}" in capsys.readouterr().out


def test_minimal_is_what_its_source_compiles_to() -> None:
    """16 x 12 x 512 x 64 on an H200 (h200_user_kernels of the counters): 3,233,808,000 bytes written into the L2, 46.7
    ms; two CTAs on some SMs, each of whose 32 lanes ask one bank for 32 words."""
    problem = AttentionProblem(batch=16, heads=12, seq_q=512, head_dim=64, dtype="fp32")
    found = predict(problem, "minimal", "h200")
    main = found.traffic.total("l2", "write", launch="main")
    assert main == pytest.approx(3_233_808_000, rel=0.002)
    assert found.time_s == pytest.approx(46.7e-3, rel=0.1)
    assert found.time.bound_by == "smem"

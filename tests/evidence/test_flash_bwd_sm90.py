"""The Hopper kernel's backward: which instantiations exist, what the compiler makes of them, and what was measured."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import pytest
from nvcc import assembler_report, nvcc_or_skip
from scripts import load_script
from sm90 import CC, Ragged
from sm90_bwd import (
    ACCEPTED,
    Sm90Backward,
    Sm90BwdParams,
    Sm90BwdSpec,
    Workspace,
    fastest_backward,
)

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.evidence.cuda import compiler
from iosim.evidence.cuda.launch import Shape

TABLE = load_script("experiments/sm90_table.py")
VARIANTS = load_script("experiments/sm90_variants.py")
HEAD_DIMS = (64, 128)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_neither_spill_nor_wait_for_each_product(head_dim: int, tmp_path: Path) -> None:
    """Both overlaps, each kind of sums and each mask once."""
    first = fastest_backward(head_dim)
    others = [
        Sm90BwdSpec(head_dim, first.block_q, 2, 1, mask, "bf16", sums, overlap)
        for mask, sums, overlap in (
            ("causal", "copied", "former_queries"),
            ("window", "ordered", "same_queries"),
            ("causal", "added", "same_queries"),
        )
    ]
    for spec in [first, *others]:
        report = assembler_report(spec, tmp_path)
        assert "serialized" not in report, (
            spec
        )  # wgmma one at a time: the accumulators were touched while it ran
        for name, resources in compiler.parse_report(report).items():
            assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0), (spec, name)


@pytest.mark.parametrize("name", [x for x in ACCEPTED if x not in ("head_dim", "mask", "dtype")])
def test_variants_hold_every_value_of_every_knob(name: str) -> None:
    assert {
        getattr(spec, name) for d in HEAD_DIMS for spec in VARIANTS.backward_variants(d)
    } == set(ACCEPTED[name])


def test_fastest_exist_for_every_mask_and_type() -> None:
    for d, mask, dtype, ordered in itertools.product(
        HEAD_DIMS, ACCEPTED["mask"], ACCEPTED["dtype"], (False, True)
    ):
        spec = fastest_backward(d, str(mask), str(dtype), ordered)
        spec.check(CC)
        assert (spec.sums == "ordered") == ordered


def test_shared_memory_is_the_tiles_and_the_barriers() -> None:
    tiles = (
        2 * 128 * 128 * 2 + 2 * 2 * 64 * 128 * 2 + 128 * 64 * 2
    )  # K and V; two stages of Q and dO; dS
    dq, rows = 64 * 128 * 4, 2 * 64 * 8  # a share of dQ; the LSE and rowsum(dO * O) of each stage
    barriers = 8 * (
        2 + 4 * 2 + 2 * 1 + 2 * 2
    )  # K, V; full and empty of Q and dO, of dS, and of each warpgroup's dQ
    spec = Sm90BwdSpec(128, 64, sums="copied")
    assert spec.dynamic_shared_bytes == tiles + dq + rows + barriers
    assert Sm90BwdSpec(128, 64, sums="added").dynamic_shared_bytes == spec.dynamic_shared_bytes - dq
    assert (
        f"-DSHARED_BYTES={spec.dynamic_shared_bytes} "
        in (data_dir("kernels") / spec.source).read_text()
    )


def test_parameters_are_as_large_as_the_source_says() -> None:
    text = (data_dir("kernels") / "flash_bwd_sm90.cuh").read_text()
    assert f"sizeof(BwdParams) == {ctypes.sizeof(Sm90BwdParams)}" in text
    assert Sm90BwdParams.o.offset == 6 * 128  # behind six tensor maps


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Sm90BwdSpec(256, 64), "head_dim 256 is not built; accepted: 64, 128"),
        (Sm90BwdSpec(128, 96), "block_q 96 is not built; accepted: 64, 128"),
        (Sm90BwdSpec(64, 64), "tile 64x128, 2 stages, head_dim 64 leaves .* block_q must be 128"),
        (
            Sm90BwdSpec(128, 64, sums="twice"),
            "sums twice is not built; accepted: copied, ordered, added",
        ),
        (Sm90BwdSpec(64, 128, 1), "tile 128x128, 1 stages.* former_queries needs 2 stages"),
        (
            Sm90BwdSpec(64, 128, 3, 2),
            "tile 128x128, 3 stages, head_dim 64 needs .* a CTA has 232448",
        ),
        (
            Sm90BwdSpec(128, 128, 1, overlap="same_queries", sums="added"),
            "keeps 256 registers .* it has 212 for them",
        ),
    ],
)
def test_what_cannot_exist_is_refused(spec: Sm90BwdSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec.check(CC)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"flash_bwd_sm90 is built for compute capability 9\.0a, not 9\.0"
    ):
        Sm90BwdSpec(128, 64).check("9.0")


class Unloaded(Sm90Backward):
    """One that is not built, which needs no GPU."""

    def __init__(self, spec: Sm90BwdSpec) -> None:
        self.spec = spec


def test_workspaces_hold_whole_query_blocks() -> None:
    kernel = Unloaded(Sm90BwdSpec(128, 64))
    blocks = 2 * 8 * 6  # batch, heads, blocks of 64 queries that hold 333
    assert kernel.workspace(Shape(2, 8, 2, 333, 400, 128)) == Workspace(
        blocks * 64 * 8, blocks * 64 * 512, blocks * 8
    )


def test_sequences_of_every_length_have_places_of_their_own() -> None:
    """A sequence that starts at row i has its blocks from i / BlockQ + its number on (flash_bwd_sm90.cuh)."""
    kernel = Unloaded(Sm90BwdSpec(128, 64))
    lengths = (5, 64, 300, 129, 1, 63, 64, 128)
    bounds = [0, *itertools.accumulate(lengths)]
    places = [
        start // 64 + number + block
        for number, (start, length) in enumerate(zip(bounds, lengths, strict=False))
        for block in range(-(-length // 64))
    ]
    assert len(set(places)) == len(places)
    ragged = Ragged(bounds[-1], bounds[-1], 0, 0)
    assert max(places) < kernel.head_blocks(Shape(len(lengths), 1, 1, 300, 300, 128), ragged)


def test_recorded_times_reach_their_targets() -> None:
    several = TABLE.calls(TABLE.rows_of("h200_bwd_sm90_times.csv"), "burst")
    assert len(several) == 2 * 8 * 2  # head_dims, shapes, masks
    for problem, by in several.items():
        own_tflops, cudnn, flash = (
            float(by[x]["tflops"]) for x in (TABLE.BACKWARD, "cudnn", "pytorch_flash")
        )
        assert own_tflops > 0.93 * cudnn, problem
        assert own_tflops > 1.75 * flash, problem


def test_recorded_times_are_of_the_fastest() -> None:
    for row in TABLE.rows_of("h200_bwd_sm90_times.csv"):
        if row["implementation"] in (TABLE.BACKWARD, TABLE.ORDERED):
            causal = row["causal"] == "1"
            ordered = row["implementation"] == TABLE.ORDERED
            spec = fastest_backward(
                int(row["head_dim"]), "causal" if causal else "none", row["dtype"], ordered
            )
            knobs = TABLE.BACKWARD_KNOBS
            assert [row[knob] for knob in knobs] == [str(getattr(spec, knob)) for knob in knobs]
            pairs = (
                int(row["seq_q"]) * (int(row["seq_q"]) + 1) // 2
                if causal
                else int(row["seq_q"]) ** 2
            )
            flops = 10 * int(row["heads"]) * pairs * int(row["head_dim"])
            assert float(row["tflops"]) == pytest.approx(flops / float(row["ms"]) / 1e9, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("mask", ACCEPTED["mask"])
@pytest.mark.parametrize("ordered", [False, True])
def test_agrees_with_float64(head_dim: int, mask: str, ordered: bool) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    nvcc_or_skip()
    bench = load_script("experiments/bench_bwd_sm90.py")
    kernel = bench.Sm90Backward(fastest_backward(head_dim, mask, ordered=ordered))
    for n, problem in enumerate(bench.small(kernel.spec)):
        good, errors = bench.check(kernel, problem, seed=n)
        assert good, (problem, errors)

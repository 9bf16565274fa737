"""The Hopper kernel: which instantiations exist, what the compiler makes of them, and what was measured with them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from effort import some
from nvcc import assembler_report, nvcc_or_skip
from scripts import ROOT, load_script
from sm90 import (
    ACCEPTED,
    CC,
    Ragged,
    Sm90Forward,
    Sm90Order,
    Sm90Params,
    Sm90Spec,
    fastest,
)

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.evidence.cuda import compiler
from iosim.evidence.cuda.launch import Shape
from iosim.evidence.cuda.spec import DTYPES, MASKS

TABLE = load_script("experiments/sm90_table.py")
VARIANTS = load_script("experiments/sm90_variants.py")
HEAD_DIMS = (64, 128, 256)
TARGETS = {"64": 1.0, "128": 0.95, "256": 0.9}
"""Least rate over cuDNN's, by head_dim."""


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_fastest_neither_spill_nor_wait_for_each_product(
    head_dim: int, mask: str, tmp_path: Path
) -> None:
    report = assembler_report(fastest(head_dim, mask), tmp_path)
    assert (
        "serialized" not in report
    )  # wgmma one at a time: the accumulators were touched while it ran
    resources = compiler.parse_report(report)["flash_fwd_sm90"]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)


def knobs(spec: Sm90Spec) -> set[tuple[str, object]]:
    """(knob, value) of all knobs of an instantiation."""
    return {(name, getattr(spec, name)) for name in ACCEPTED}


def few_with_every_value(specs: list[Sm90Spec]) -> list[Sm90Spec]:
    """Some of `specs` that have among them every value of every knob which all of them have: the one with most values
    that are still missing, again and again."""
    missing = set().union(*map(knobs, specs))
    taken = []
    while missing:
        taken.append(max(specs, key=lambda spec: len(knobs(spec) & missing)))
        missing -= knobs(taken[-1])
    return taken


@pytest.mark.slow
def test_every_value_of_every_knob_compiles(tmp_path: Path) -> None:
    """None with serialised products. `python experiments/bench_sm90.py check` compiles and runs all of them."""
    specs = [spec for d in HEAD_DIMS for spec in VARIANTS.variants(d, "causal")]
    specs += [fastest(d, mask, dtype) for d in HEAD_DIMS for mask in MASKS for dtype in DTYPES]
    few = few_with_every_value(list(dict.fromkeys(specs)))
    assert len(few) <= 20
    nvcc_or_skip()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tried = some(few)
        reports = pool.map(lambda spec: assembler_report(spec, tmp_path), tried)
        assert [
            spec for spec, report in zip(tried, reports, strict=True) if "serialized" in report
        ] == []


@pytest.mark.parametrize(
    ("name", "values"), [x for x in ACCEPTED.items() if x[0] not in ("head_dim", "mask", "dtype")]
)
def test_variants_hold_every_value_of_every_knob(name: str, values: tuple[object, ...]) -> None:
    seen = {getattr(spec, name) for d in HEAD_DIMS for spec in VARIANTS.variants(d)}
    few = {1, 2, 4, 8, 0} if name == "poly" else set(values)
    assert seen == few


def test_shared_memory_is_the_tiles_and_the_barriers() -> None:
    tiles = 2 * 128 * 128 * 2 + 2 * 2 * 128 * 128 * 2  # two of Q; two each of K and V
    barriers = 8 * (
        2 * 2 + 4 * 2 + 2
    )  # full and empty of each stage of Q, K and V; two for the next tile's number
    assert (
        Sm90Spec(128).dynamic_shared_bytes == tiles + barriers + 4 * 3
    )  # a number by stage of Q, and the next one


def test_parameters_are_as_large_as_the_source_says() -> None:
    text = (data_dir("kernels") / "flash_fwd_sm90.cuh").read_text()
    assert f"sizeof(Params) == {ctypes.sizeof(Sm90Params)}" in text
    assert Sm90Params.lse.offset == 4 * 128  # behind four tensor maps


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Sm90Spec(96), "head_dim 96 is not built; accepted: 64, 128, 256"),
        (Sm90Spec(128, block_k=112), "block_k 112 is not built"),
        (
            Sm90Spec(128, pipeline="both"),
            "pipeline both is not built; accepted: sequential, interleaved",
        ),
        (Sm90Spec(128, block_k=80, cluster=2), "block_k 80 is no multiple of 32"),
        (Sm90Spec(128, pack=3), "pack 3 is not built; accepted: 1, 2, 4, 8, 16"),
        (
            Sm90Spec(256, block_k=128),
            "tile 128x128, 2 stages, head_dim 256 needs .* shared memory; a CTA has 232448",
        ),
        (
            Sm90Spec(128, consumers=3, q_stages=1),
            "tile 192x128, .* keeps 160 registers .* it has 132 for them",
        ),
    ],
)
def test_what_cannot_exist_is_refused(spec: Sm90Spec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec.check(CC)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(InputError, match=r"built for compute capability 9\.0a, not 9\.0"):
        Sm90Spec(128).check("9.0")


def test_orders_are_checked_and_sections_bounded() -> None:
    assert Sm90Order("query").section(16) == 1
    assert Sm90Order("head").section(16) == 16
    assert Sm90Order("head", section_heads=4).section(16) == 4
    assert Sm90Order("head", section_heads=40).section(16) == 16
    for wrong in (
        {"order": "diagonal"},
        {"blocks": "random"},
        {"direction": "up"},
        {"section_heads": -1},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Sm90Order(**wrong)


class Unloaded(Sm90Forward):
    """One that is not built, which needs no GPU."""

    def __init__(self, spec: Sm90Spec) -> None:
        self.spec = spec


def test_a_group_in_a_tile_makes_fewer_tiles() -> None:
    """Rows of a tile are tokens times heads of the group."""
    shape = Shape(2, 32, 8, 100, 4096, 128)
    assert Unloaded(Sm90Spec(128)).tiles(shape) == 2 * 32
    assert Unloaded(Sm90Spec(128, pack=4)).tiles(shape) == 2 * 8 * 4  # 400 rows a group, 128 a tile
    assert Unloaded(Sm90Spec(128, pack=4)).tiles(replace(shape, seq_q=1)) == 2 * 8


@pytest.mark.parametrize(("heads", "ragged"), [(16, None), (32, Ragged(100, 100, 0, 0))])
def test_pack_wants_its_group_and_one_length(heads: int, ragged: Ragged | None) -> None:
    with pytest.raises(
        InputError, match=r"pack 4 does not fit .*; accepted: as many query heads a key/value head"
    ):
        Unloaded(Sm90Spec(128, pack=4)).launch(Shape(1, heads, 8, 100, 100, 128), {}, ragged=ragged)


def test_recorded_packing_gains_where_queries_are_few() -> None:
    rows = [
        x for x in TABLE.rows_of("h200_sm90_packed.csv") if x["implementation"] == "flash_fwd_sm90"
    ]
    ms = {(row["heads"], row["seq_q"], row["pack"] != "1"): float(row["ms"]) for row in rows}
    assert len(ms) == len(rows)
    for heads, seq_q in (("32", "1"), ("64", "1"), ("32", "4"), ("64", "16")):
        assert ms[heads, seq_q, True] < 0.6 * ms[heads, seq_q, False]


def ratios(other: str) -> Iterator[tuple[tuple[str, ...], float]]:
    for problem, by in TABLE.calls(TABLE.rows_of("h200_sm90_times.csv"), "burst").items():
        yield problem, float(by["flash_fwd_sm90"]["tflops"]) / float(by[other]["tflops"])


def test_recorded_times_reach_their_targets() -> None:
    assert len(list(ratios("cudnn"))) == 3 * 8 * 2  # head_dims, shapes, masks
    assert [
        (problem, ratio) for problem, ratio in ratios("cudnn") if ratio < TARGETS[problem[0]]
    ] == []
    assert [(problem, ratio) for problem, ratio in ratios("pytorch_flash") if ratio < 1.5] == []


def test_recorded_times_are_of_the_fastest() -> None:
    for row in TABLE.rows_of("h200_sm90_times.csv"):
        if row["implementation"] == "flash_fwd_sm90":
            spec = fastest(
                int(row["head_dim"]), "causal" if row["causal"] == "1" else "none", row["dtype"]
            )
            assert [row[knob] for knob in TABLE.KNOBS] == [
                str(getattr(spec, knob)) for knob in TABLE.KNOBS
            ]
            pairs = (
                int(row["seq_q"]) * (int(row["seq_q"]) + 1) // 2
                if row["causal"] == "1"
                else int(row["seq_q"]) ** 2
            )
            flops = 4 * int(row["heads"]) * pairs * int(row["head_dim"])
            assert float(row["tflops"]) == pytest.approx(flops / float(row["ms"]) / 1e9, rel=1e-3)


def test_sweep_holds_every_variant() -> None:
    swept = {
        (row["head_dim"], *(row[knob] for knob in TABLE.KNOBS))
        for row in TABLE.rows_of("h200_sm90_sweep.csv")
    }
    specs = {
        replace(x, mask="none")
        for d in HEAD_DIMS
        for x in VARIANTS.variants(d) + VARIANTS.variants(d, "causal")
    }
    assert swept == {
        (str(x.head_dim), *(str(getattr(x, knob)) for knob in TABLE.KNOBS)) for x in specs
    }


def counted_rows(cluster: str) -> list[dict[str, str]]:
    rows = [row for row in TABLE.rows_of("h200_sm90_orders_bytes.csv") if row["cluster"] == cluster]
    assert rows
    return rows


def arithmetic(row: dict[str, str]) -> tuple[int, int]:
    """Bytes of Q, and of the K and V rows that the CTAs of a launch take in, each its own."""
    heads, seq, d, block_k, cluster = (
        int(row[x]) for x in ("heads", "seq_q", "head_dim", "block_k", "cluster")
    )
    keys, rows = (
        0,
        64 * int(row["consumers"]) * cluster,
    )  # both CTAs of a cluster walk the blocks that either needs
    for first in range(0, seq, rows):
        blocks = -(-(min(first + rows, seq) if row["causal"] == "1" else seq) // block_k)
        keys += cluster * min(blocks * block_k, seq)
    return heads * seq * d * 2, heads * keys * 2 * d * 2


@pytest.mark.parametrize("cluster", ["1", "2"])
def test_bytes_into_sms_are_the_arithmetic(cluster: str) -> None:
    for row in counted_rows(cluster):
        assert int(row["l2_read"]) == pytest.approx(sum(arithmetic(row)), rel=2e-4)
        assert int(row["l2_write"]) == pytest.approx(arithmetic(row)[0], rel=1.4e-3)


def test_slices_read_multicast_keys_once() -> None:
    for row in counted_rows("2"):
        q, keys = arithmetic(row)
        assert 0.99 * (q + keys / 2) < int(row["l2_slice_read"]) < 0.65 * (q + keys)


def test_readme_shows_the_tables_as_measured() -> None:
    text = (ROOT / "kernels" / "README.md").read_text()
    flush = "\n".join(line.strip() for line in text.splitlines())
    assert [name for name, lines in TABLE.tables().items() if "\n".join(lines) not in flush] == []


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("mask", MASKS)
def test_agrees_with_float64(head_dim: int, mask: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    nvcc_or_skip()
    bench = load_script("experiments/bench_sm90.py")
    kernel = bench.Sm90Forward(fastest(head_dim, mask))
    for n, problem in enumerate(bench.small(kernel.spec)):
        good, error, lse_error = bench.check(kernel, problem, seed=n)
        assert good, (problem, error, lse_error)

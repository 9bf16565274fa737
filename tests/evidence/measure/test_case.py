"""Calls of the project's kernels as rows of a table, and back."""

from __future__ import annotations

import pytest

from iosim.evidence.cuda.launch import Order, Shape
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec
from iosim.evidence.measure.case import Case, flops

SHAPE = Shape(batch=2, heads=4, kv_heads=4, seq_q=100, seq_k=200, head_dim=64)


def test_a_forwards_row() -> None:
    order = Order(
        order="head", heavy_first=True, section_heads=3, direction="alternating", splits=1
    )
    case = Case(FwdSpec(64, 64, 64, 4), SHAPE, order, causal=True, note="by hand")
    row = case.columns()
    assert {
        n: row[n] for n in ("implementation", "causal", "dtype", "batch", "seq_q", "seq_k", "note")
    } == {
        "implementation": "flash_fwd",
        "causal": "1",
        "dtype": "bfloat16",
        "batch": "2",
        "seq_q": "100",
        "seq_k": "200",
        "note": "by hand",
    }
    assert (row["order"], row["heavy_first"], row["section"], row["direction"]) == (
        "head",
        "1",
        "3",
        "alternating",
    )
    assert (row["persistent"], row["splits"]) == ("0", "1")
    assert row["window"] == ""


def test_other_kernels_have_no_order() -> None:
    row = Case(NaiveSpec(64), SHAPE).columns()
    assert (row["implementation"], row["causal"], row["order"], row["splits"]) == (
        "naive",
        "0",
        "",
        "",
    )
    assert Case(NaiveSpec(64, "fp16"), SHAPE).columns()["dtype"] == "float16"
    assert Case(NaiveSpec(64, bypass_l1=True), SHAPE, note="x").columns()["note"] == "bypass L1, x"
    assert Case(MinimalSpec(64), SHAPE).columns()["dtype"] == "float32"


@pytest.mark.parametrize(
    "spec", [FwdSpec(64, 64, 64, 4), BwdSpec(64, 64, 64, 4), NaiveSpec(64), MinimalSpec(64)]
)
def test_a_case_is_read_back(spec: FwdSpec | BwdSpec | NaiveSpec | MinimalSpec) -> None:
    case = Case(spec, SHAPE, Order(heavy_first=True), causal=True, note="x")
    assert Case.from_dict(case.to_dict()) == case


def test_the_kernel_that_combines_runs_where_there_are_splits() -> None:
    assert Case(FwdSpec(64, 64, 64, 4), SHAPE).launches == 1
    assert (
        Case(FwdSpec(64, 64, 64, 4, split=True), SHAPE).launches
        == len(FwdSpec(64, 64, 64, 4, split=True).functions)
        > 1
    )
    assert Case(BwdSpec(64, 64, 64, 4), SHAPE).launches == len(BwdSpec(64, 64, 64, 4).functions)


def test_operations_of_the_pairs_that_are_kept() -> None:
    """Two products of 2 x 64 operations a pair; a backward has five. Query i sees keys up to i + 100."""
    kept_pairs = sum(i + 101 for i in range(100))
    assert flops(Case(FwdSpec(64, 64, 64, 4), SHAPE)) == 2 * 4 * 100 * 200 * 4 * 64
    assert flops(Case(FwdSpec(64, 64, 64, 4), SHAPE, causal=True)) == 2 * 4 * kept_pairs * 4 * 64
    assert flops(Case(BwdSpec(64, 64, 64, 4), SHAPE)) == 2 * 4 * 100 * 200 * 10 * 64

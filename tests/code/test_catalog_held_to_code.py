"""The catalog is held to the code: what descriptions say of a step, beside loops that were counted in machine code."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import pytest
from scripts import load_script

import iosim

PUBLISHED_MINIMAL_STORES = 3_233_808_384
"""Bytes that the published kernel's loop stores for 16 x 12 heads of 512 x 64: its machine code by the addresses of its
PTX (tspeterkim/flash-attention-minimal @00f8f467, `iosim predict --code`, nvcc 13.0), for cc 7.5 and 9.0."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/held_to_code.py")


def test_descriptions_differ_from_code_where_the_list_says_and_nowhere_else(
    script: ModuleType,
) -> None:
    known = script.DIFFERENCES.read_text(encoding="utf-8")
    differences = script.text(script.differences())
    assert set(differences.splitlines()) - set(known.splitlines()) == set(), "differs anew"
    assert set(known.splitlines()) - set(differences.splitlines()) == set(), "differs no longer"
    assert differences == known, "python benchmarks/held_to_code.py --write"


def test_what_differs_has_its_reason_and_every_reason_a_row(script: ModuleType) -> None:
    rows = script.differences()
    assert [row for row in rows if not row[-1]] == [], "a description that the code contradicts"
    assert {row[-1] for row in rows} == {why for _, _, why in script.REASONS}


def test_every_kernel_that_can_be_read_is_compared(script: ModuleType) -> None:
    forward = {"fa2", "cutlass", "triton", "flash-cu", "flash-sm90", "minimal", "minimal-cu"}
    backward = {"fa2", "flash-cu", "flash-sm90"}
    passes = {(name, "fwd") for name in forward} | {(name, "bwd") for name in backward}
    assert script.compared() == passes


@pytest.mark.parametrize(("column", "quantity"), [("ex2", "exps"), ("local_store_bytes", "stored")])
def test_a_fault_in_a_loop_is_a_new_difference(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, column: str, quantity: str
) -> None:
    rows = list(script.recorded())
    number = next(n for n, (call, _) in enumerate(rows) if call.kernel == "flash-cu")
    call, row = rows[number]
    faulty: Mapping[str, str] = {**row, column: str(float(row[column]) + 4)}
    before = script.differences()
    monkeypatch.setattr(script, "recorded", lambda: [*rows[:number], (call, faulty)])
    fresh = set(script.differences()) - set(before)
    assert {quantity} <= {row[7] for row in fresh}


def test_minimal_stores_what_its_published_source_does() -> None:
    p = iosim.predict(
        kernel="minimal", gpu="h200", batch=16, heads=12, seq_len=512, head_dim=64, dtype="fp32"
    )
    zeroes = 16 * 12 * 512 * (64 + 1 + 1) * 4  # O, and a sum and a maximum of each row
    assert p.l2.write - zeroes == PUBLISHED_MINIMAL_STORES

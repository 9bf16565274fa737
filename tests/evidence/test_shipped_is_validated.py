"""The kernels that recorded rows are held against are those that the catalog gives: `resolve()` makes them all.

What a row states that no override names (what the compiler spilled, a persistent grid, the backward's own order) is
listed here, by field; a kernel that differs in any other field is not the shipped one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from effort import every
from scripts import measurements

from iosim.base.errors import InputError
from iosim.catalog.libraries import Overrides, resolve
from iosim.evidence.times import tables
from iosim.evidence.times.tables import Case
from iosim.evidence.validate import match, read
from iosim.evidence.validate.residuals import calls
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel
from iosim.kernel.unit import MatrixUnit
from iosim.problem.attention import AttentionProblem

EVIDENCE = Path(tables.__file__).parents[1]
H200 = load_profile("h200-sxm")
STATED_BY_TIMED_ROWS = {"persistent_ctas", "spill"}
STATED_BY_COUNTED_ROWS = {"persistent_ctas", "spill", "overheads", "backward", "options"}


def unlike(first: Kernel, other: Kernel) -> set[str]:
    return {
        field.name
        for field in fields(Kernel)
        if getattr(first, field.name) != getattr(other, field.name)
    }


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """What `resolve` gives to the tables of times, the latest last."""
    kernels: list[Kernel] = []

    def recording(*arguments: Any) -> Kernel:
        kernels.append(resolve(*arguments))
        return kernels[-1]

    monkeypatch.setattr(tables, "resolve", recording)
    return kernels


def timed(stride: int) -> Iterator[Case]:
    """One in so many rows of every table of times; of those whose cases are replayed as they are read, fewer."""
    for reads in (
        tables.own_cases,
        tables.call_cases,
        tables.triton_cases,
        tables.library_cases,
        tables.clock_cases,
        tables.nvidia_cases,
    ):
        yield from some_of(reads(stride), reads)
    for reads in (
        tables.graph_cases,
        tables.serving_cases,
        partial(tables.published_cases, file=tables.VARLEN),
        partial(tables.published_cases, file=tables.WHEEL_A30),
    ):
        yield from some_of(reads(40 * stride), reads)


def some_of(cases: Iterator[Case], reads: object) -> Iterator[Case]:
    """The cases of a table, which must have some: what skips all of its rows would agree with anything."""
    number = 0
    for number, case in enumerate(cases, 1):  # noqa: B007
        yield case
    assert number, reads


@pytest.mark.parametrize("stride", every(8))
def test_timed_rows_are_held_against_what_the_catalog_resolves(
    resolved: list[Kernel], stride: int
) -> None:
    number = 0
    for number, case in enumerate(timed(stride), 1):  # noqa: B007
        assert resolved, case.name
        assert unlike(case.call.kernel, resolved[-1]) <= STATED_BY_TIMED_ROWS, (
            case.name,
            case.number,
        )
    assert number > 1000 / stride


@pytest.mark.parametrize("stride", every(4))
@pytest.mark.parametrize("file", ["h200_library_kernels.csv", "h200_iosim_kernels.csv"])
def test_counted_rows_are_held_against_what_the_catalog_resolves(file: str, stride: int) -> None:
    number = 0
    for members in calls(read(measurements(file)))[::stride]:
        row = members[0]
        try:
            case = match.match(members, H200)
        except (match.NoModel, InputError):
            continue
        name = match.OWN.get(row.implementation, row.implementation)
        shipped = resolve(name, case.problem, H200, match.overrides_of(row))
        assert unlike(case.kernel, shipped) <= STATED_BY_COUNTED_ROWS, (
            row.call,
            row.implementation,
        )
        number += 1
    assert number > 100 / stride


def test_nothing_of_the_evidence_builds_a_kernel_by_hand() -> None:
    def built(tree: ast.AST) -> list[int]:
        return [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Kernel"
        ]

    assert built(ast.parse("kernel = Kernel('flash', 'flash', tile)")) == [1]
    for path in EVIDENCE.rglob("*.py"):
        assert built(ast.parse(path.read_text(encoding="utf-8"))) == [], path


@pytest.mark.parametrize(
    ("tile", "unit"), [((32, 32), MatrixUnit.MMA_SYNC), ((64, 64), MatrixUnit.WGMMA)]
)
def test_the_shipped_triton_has_the_unit_that_its_tile_runs_on(
    tile: tuple[int, int], unit: MatrixUnit
) -> None:
    """Tiles of 32 rows run at mma.sync's speed (experiments/measurements/triton_tiles_d64_time.csv)."""
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=64)
    assert resolve("triton", problem, H200, Overrides(tile=tile)).matrix_unit is unit


@pytest.mark.parametrize("warps", [4, 8, 12])
def test_our_own_kernel_computes_by_mma_sync_whatever_its_warps(warps: int) -> None:
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=64)
    over = Overrides(tile=(16 * warps, 64), warps=warps, scheduler="persistent")
    assert resolve("flash-cu", problem, H200, over).matrix_unit is MatrixUnit.MMA_SYNC

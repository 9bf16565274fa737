"""Passes over tensors: what experiments/passes.py runs, what it recorded, and the model of the L2 beside it."""

from __future__ import annotations

import subprocess
import sys

import pandas as pd
import pytest
from scripts import ROOT, load_script

from iosim.hardware.profile import load_profile

MOST_ERROR = 1.5
"""Mean absolute error of reads and writes, MB."""


BENCHMARK = load_script("benchmarks/passes.py")
KERNEL = BENCHMARK.KERNEL


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    table: pd.DataFrame = BENCHMARK.played(BENCHMARK.recorded())
    return table


@pytest.mark.slow
def test_a_dry_run_needs_no_gpu() -> None:
    command = [sys.executable, str(ROOT / "experiments" / "passes.py"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "285 ranges of 9 chains\n"  # 8 chains of 2 passes and one of 3, 15 sizes


def test_passes_do_what_they_are_called() -> None:
    torch = pytest.importorskip("torch")
    tensors = {"a": torch.zeros(2, 1024), "b": torch.zeros(2, 1024)}
    KERNEL.run("fill a", tensors)
    assert (tensors["a"] == 1).all()
    assert (tensors["b"] == 0).all()
    KERNEL.run("softmax a to b", tensors)
    assert (tensors["b"] == 1 / 1024).all()
    KERNEL.run("copy a to b", tensors)
    assert (tensors["b"] == 1).all()
    tensors["a"][:] = 3
    KERNEL.run("scale a to b", tensors)
    KERNEL.run("scale a", tensors)
    KERNEL.run("sum b", tensors)
    assert (tensors["a"] == 3).all()
    assert (tensors["b"] == 3).all()


def test_what_is_recorded_is_the_plan() -> None:
    table = BENCHMARK.recorded()
    assert (
        list(table[["chain", "mib", "launches"]].itertuples(index=False, name=None))
        == KERNEL.plan()
    )


def test_reads_and_writes_stay_within_what_was_touched() -> None:
    for row in BENCHMARK.recorded().itertuples():
        passes = row.chain.split(", ")[: row.launches]
        size = row.mib << 20
        reads = sum(not pass_.startswith("fill") for pass_ in passes)
        writes = sum(not pass_.startswith("sum") for pass_ in passes)
        assert row.hbm_read < 1.01 * reads * size + 300_000  # code, and what a sum keeps
        assert row.hbm_write < writes * size + 300_000


def test_fills_leave_28_mib_behind() -> None:
    table = BENCHMARK.recorded()
    filled = table[(table.chain == "fill a, fill a") & (table.launches == 1) & (table.mib >= 32)]
    placed_rows = filled.mib - filled.hbm_write / (1 << 20)
    assert placed_rows.min() > 27.5
    assert placed_rows.max() < 28.5


def test_loads_run_ahead_of_stores() -> None:
    profile = load_profile("h200-sxm")
    # 2,048 threads with 8 values, and 65,536 // (32 + 16) with 32; 4 bytes each on 132 SMs
    assert BENCHMARK.ahead_bytes("scale", profile) == 2048 * 8 * 4 * 132 == 8_650_752
    assert BENCHMARK.ahead_bytes("softmax", profile) == 1365 * 32 * 4 * 132 == 23_063_040


def test_accesses_by_hand() -> None:
    mode, number = BENCHMARK.accesses("copy a to b", 3, 1)
    assert mode.tolist() == [0, 0, 1, 0, 1, 1]
    assert number.tolist() == [0, 1, 3, 2, 4, 5]
    mode, number = BENCHMARK.accesses("sum b", 2, 1)
    assert (mode.tolist(), number.tolist()) == ([0, 0], [2, 3])
    mode, number = BENCHMARK.accesses("fill a", 2, 1)
    assert (mode.tolist(), number.tolist()) == ([1, 1], [0, 1])


@pytest.mark.slow
def test_the_model_reads_and_writes_as_much(rows: pd.DataFrame) -> None:
    assert BENCHMARK.error(rows, "model") < MOST_ERROR


@pytest.mark.slow
def test_loads_and_stores_in_step_would_be_seen(rows: pd.DataFrame) -> None:
    assert BENCHMARK.error(rows, "step") > 1.15 * MOST_ERROR


@pytest.mark.slow
def test_the_tables(rows: pd.DataFrame) -> None:
    assert len(BENCHMARK.sizes(rows).splitlines()) == 2 + len(KERNEL.CHAINS) * len(BENCHMARK.SHOWN)
    assert len(BENCHMARK.errors(rows).splitlines()) == 2 + len(KERNEL.CHAINS) + 1

"""Kernels with their tensors at other places: what experiments/placement.py runs, what it recorded, what is
predicted."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from scripts import ROOT, load_script

import iosim
from iosim.readers.replay.replay import PLACEMENT_TOLD

pytestmark = [pytest.mark.slow, pytest.mark.recorded]

BENCHMARK, KERNEL = load_script("benchmarks/placement.py"), load_script("experiments/placement.py")


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    made: list[Any] = BENCHMARK.rows()
    return made


def test_a_dry_run_needs_no_gpu() -> None:
    command = [sys.executable, str(ROOT / "experiments" / "placement.py"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "152 calls of 8 problems\n"  # 3 allocations and 16 places each


def test_tensors_do_not_overlap() -> None:
    for case in KERNEL.CASES:
        for place in KERNEL.PLACES:
            q, k, v = place.offsets(case.tensor_bytes)
            assert (k - q, v - k) == (case.tensor_bytes, case.tensor_bytes + (place.gap_mib << 20))
            assert v + case.tensor_bytes <= KERNEL.POOL


def test_offsets_by_hand() -> None:
    assert KERNEL.Place("", base_mib=0.5, gap_mib=2).offsets(4 << 20) == (
        1 << 19,
        9 << 19,
        21 << 19,
    )  # 0.5, 4.5, 10.5 MiB


def test_what_is_recorded_is_the_plan() -> None:
    table = BENCHMARK.measured()
    names = [f"allocation {n + 1}" for n in range(KERNEL.ALLOCATIONS)] + [
        place.name for place in KERNEL.PLACES
    ]
    assert table.place.tolist() == names * len(KERNEL.CASES)
    cases = [KERNEL.Case(**row) for row in table[BENCHMARK.PROBLEM].to_dict("records")]
    assert cases == [case for case in KERNEL.CASES for _ in names]


def test_tensors_lay_where_they_should() -> None:
    table = BENCHMARK.measured()
    start = table[table.place == "base 0 MiB"].q_page.iloc[0]  # the pool's, for all problems
    places = {place.name: place for place in KERNEL.PLACES}
    for row in table[table.place.isin(places)].itertuples():
        case = KERNEL.Case(
            row.implementation, row.batch, row.heads, row.seq, row.head_dim, row.causal
        )
        expected = [start + at / KERNEL.PAGE for at in places[row.place].offsets(case.tensor_bytes)]
        assert [row.q_page, row.k_page, row.v_page] == expected


def test_reads_are_never_below_the_compulsory(rows: list[Any]) -> None:
    for row in rows:
        p = row.problem
        assert row.least > 3 * p.batch * p.heads * p.seq_q * p.head_dim * 2  # Q, K and V once


def test_places_decide(rows: list[Any]) -> None:
    """Least and largest lie much further apart than two launches at one place."""
    for row in rows[:2]:
        assert row.largest / row.least - 1 > 10 * row.apart


@pytest.mark.parametrize("number", range(len(KERNEL.CASES)))
def test_predictions_lie_among_the_places(number: int, rows: list[Any]) -> None:
    row = rows[number]
    within = row.least <= row.predicted <= row.largest
    assert within or row.predicted == pytest.approx(row.median, rel=0.1), row


def test_the_table_has_a_line_a_problem(rows: list[Any]) -> None:
    lines = BENCHMARK.table(rows).splitlines()
    assert len(lines) == 2 + len(KERNEL.CASES)
    assert lines[2].startswith(
        "| pytorch_mem_efficient 1 x 8 x 65,536, 128, causal | 667 | 742 | 1,088 | 1.0% | 774 |"
    )


def test_another_gpu_is_predicted_nearly_as_well() -> None:
    """An H100, on which no kernel was looked at before: within 9 % of the median five times, and else within 18 %
    or inside what places gave."""
    rows = BENCHMARK.rows("h100")
    assert sum(abs(row.predicted / row.median - 1) < 0.095 for row in rows) >= 5
    for row in rows:
        inside = row.least <= row.predicted <= row.largest
        assert inside or row.predicted == pytest.approx(row.median, rel=0.18), row.name


def test_a_prediction_says_how_far_places_move_it(rows: list[Any]) -> None:
    """Nothing where everything fits; elsewhere of the size of what was measured."""
    measured = BENCHMARK.measured()
    for row in rows:
        p = row.problem
        prediction = iosim.predict(p, row.implementation, "h200")
        assert prediction.replay is not None
        share = prediction.replay.placement_bytes / prediction.total("hbm", "read")
        placement_notes = [note for note in prediction.notes if "where the tensors lie" in note]
        assert bool(placement_notes) == (share > PLACEMENT_TOLD)
        assert not placement_notes or f"by {share:.0%} (standard deviation" in placement_notes[0]
        of = measured[(measured.implementation == row.implementation) & (measured.heads == p.heads)]
        read = of[(of.seq == p.seq_q) & (of.causal == (p.mask == "causal"))].hbm_read
        assert share == pytest.approx(read.std() / read.mean(), rel=1.0, abs=0.02), row.name
    fits = iosim.predict(
        iosim.AttentionProblem(heads=8, seq_q=4096, dtype="bf16"), "cutlass", "h200"
    )
    assert not [note for note in fits.notes if "where the tensors lie" in note]

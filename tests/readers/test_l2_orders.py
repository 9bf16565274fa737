"""Which lines of a set stay: how experiments/sets.py asks, what it recorded, and the model of the L2 beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scripts import ROOT, load_script, measurements, read_provenance

BENCHMARK = load_script("benchmarks/orders.py")
KERNEL = BENCHMARK.KERNEL
RECORDED = measurements("h200_l2_orders.csv")


# How it is asked, on sets that are known.


class KnownSides:
    """Instead of a GPU: 16 lines a side, least recently used first out; far lines are kept near too.

    First loads from memory take up to 600 cycles more at random, one in four.
    """

    def __init__(self, far: npt.NDArray[np.int64]) -> None:
        self.far, self.random = frozenset(far.tolist()), np.random.default_rng(0)
        self.flush()

    def flush(self) -> None:
        self.sides: list[list[int]] = [[], []]

    def touch(self, side: int, line: int) -> bool:
        held = self.sides[side]
        hit = line in held
        self.sides[side] = [line, *(n for n in held if n != line)][:16]
        return hit

    def timed(self, lines: Sequence[int], steps: Sequence[int]) -> npt.NDArray[np.int32]:
        times = []
        for line, step in zip(np.asarray(lines).tolist(), np.asarray(steps).tolist(), strict=True):
            far = line in self.far
            hit = self.touch(0, line)
            cycles = 340 if hit else 510 if far and self.touch(1, line) else 780 if far else 600
            slow = cycles >= 600 and self.random.random() < 0.25
            if step == KERNEL.STEPS["timed"]:
                times.append(cycles + slow * self.random.integers(0, 600))
        return np.array(times, dtype=np.int32)


def known() -> tuple[Any, npt.NDArray[np.int64]]:
    """A found set: two lines each of 500 pages, of different homes but in the first 10 pages."""
    pages = np.arange(500)
    lines = np.stack([pages * KERNEL.LINES, pages * KERNEL.LINES + 128], axis=1)
    far = lines[np.arange(500), pages % 2]
    sets_found = KERNEL.Found(10, [], np.sort(lines.ravel()).tolist(), 340.0, 600.0)
    return sets_found, np.concatenate([far, lines[:10].ravel()])


def test_homes_are_told_by_the_quickest_first_load() -> None:
    sets_found, far = known()
    sides, pairs = KERNEL.sides(KnownSides(far), sets_found, np.random.default_rng(1))
    wrong = set(sides.far.tolist()) ^ set(far.tolist())
    assert len(wrong) <= 3  # of 1,000: 1 in 1,024 is slow five times
    assert abs(int(pairs[0]) - 10) <= len(wrong)
    assert pairs.sum() == 500


def test_lines_are_found_where_they_are() -> None:
    """Without regard to stores, a line goes after 16 others; a far one stays at home among near ones."""
    sets_found, far = known()
    probe = KnownSides(far)
    random = np.random.default_rng(2)
    sides, _ = KERNEL.sides(probe, sets_found, random)
    answers = dict(zip(KERNEL.questions(), KERNEL.asked_of(probe, sides, random), strict=True))
    for then in range(KERNEL.MOST_THEN + 1):
        assert answers["1 near load, then near loads", then, "near 1"] == (
            "near" if then < 16 else "memory"
        )
        assert answers["1 near load, then far loads", then, "near 1"] == (
            "near" if then < 16 else "memory"
        )
        assert answers["1 far load, then near loads", then, "far 1"] == (
            "near" if then < 16 else "far"
        )
        assert answers["1 far load, then far loads", then, "far 1"] == (
            "near" if then < 16 else "memory"
        )


def test_sides_that_cannot_be_told_apart_fail() -> None:
    sets_found, _ = known()
    sides, _ = KERNEL.sides(
        KnownSides(np.array([], dtype=np.int64)), sets_found, np.random.default_rng(3)
    )
    assert KERNEL.asked_of(KnownSides(np.array([])), sides, np.random.default_rng(3)) is None


def test_steps_by_hand() -> None:
    assert KERNEL.order_steps("2 near loads, 1 far store, then near loads", 2) == [
        ("load", "near", 1),
        ("load", "near", 2),
        ("store", "far", 1),
        ("load", "near", 3),
        ("load", "near", 4),
    ]


def test_every_line_that_is_asked_for_was_used() -> None:
    for order, then, line in KERNEL.questions():
        assert line in {f"{side} {number}" for _, side, number in KERNEL.order_steps(order, then)}


@pytest.mark.slow
def test_a_dry_run_needs_no_gpu() -> None:
    command = [sys.executable, str(ROOT / "experiments" / "sets.py"), "--orders", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (
        done.stdout.splitlines()[1] == "899 questions to the set of each"
    )  # 31 lines that are asked for, 0 to 28 loads


# What was recorded.


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    table: pd.DataFrame = BENCHMARK.recorded()
    return table


def last_near(rows: pd.DataFrame, order: str, line: str) -> int:
    """After how many loads the line is last found near; up to there it always is."""
    asked_for = rows[(rows.order == order) & (rows.asked == line)]
    near = asked_for[asked_for.found == "near"].then
    assert sorted(near) == list(range(len(near)))
    return len(near) - 1


def test_what_is_recorded_is_the_plan(rows: pd.DataFrame) -> None:
    assert list(zip(rows.order, rows.then, rows.asked, strict=True)) == KERNEL.questions()
    assert rows.sets.nunique() == 1
    assert rows.sets.min() >= 30


def test_sets_agree(rows: pd.DataFrame) -> None:
    assert np.mean(rows[list(BENCHMARK.PLACES)].max(axis=1) == rows.sets) > 0.99


@pytest.mark.parametrize(
    ("order", "line", "last"),
    [
        ("1 near load, then near loads", "near 1", 15),  # 16 ways
        ("1 near load, then far loads", "near 1", 15),  # far lines take places of near ones
        (
            "1 near store, then near loads",
            "near 1",
            16,
        ),  # written back and stays; goes at the next miss
        (
            "16 near loads, 1 far store, then near loads",
            "near 2",
            0,
        ),  # the copy has driven out near 1
        ("16 near stores, then near loads", "near 1", 0),
        ("16 near stores, then near loads", "near 9", 8),  # clean by now: 15 others
        (
            "16 near stores, then near loads",
            "near 16",
            22,
        ),  # 9 clean ones go first, then 7 at every other miss
        ("32 near stores, then near loads", "near 32", 22),
    ],
)
def test_which_lines_stay(rows: pd.DataFrame, order: str, line: str, last: int) -> None:
    assert last_near(rows, order, line) == last


def test_a_far_line_stays_at_its_home(rows: pd.DataFrame) -> None:
    for first in ("load", "store"):
        far = rows[rows.order == f"1 far {first}, then near loads"]
        assert set(far[far.then > 15].found) == {"far"}
        far = rows[rows.order == f"1 far {first}, then far loads"]
        assert set(far[far.then > 16].found) == {"memory"}


def test_two_lines_of_a_page_have_two_homes() -> None:
    provenance = read_provenance(RECORDED)
    of_one_home, two = (
        int(provenance[f"pages_with_two_lines_of_{n}"]) for n in ("one_home", "two_homes")
    )
    assert two > 10_000
    assert of_one_home < 0.01 * two


# The model beside it.


def wrong(rows: pd.DataFrame, dirty_ways: float) -> int:
    """Questions that the model answers otherwise, where all sets answer alike."""
    alike = rows[rows[list(BENCHMARK.PLACES)].max(axis=1) == rows.sets]
    played = BENCHMARK.played(alike, BENCHMARK.one_set(dirty_ways))
    return int((played.found != played.model).sum())


@pytest.mark.slow
def test_the_model_answers_alike(rows: pd.DataFrame) -> None:
    assert wrong(rows, BENCHMARK.DIRTY_WAYS) == 0


@pytest.mark.slow
def test_the_model_answers_as_another_gpu_does() -> None:
    assert wrong(BENCHMARK.recorded("h100"), BENCHMARK.DIRTY_WAYS) == 0


@pytest.mark.slow
def test_another_number_of_dirty_lines_would_be_seen(rows: pd.DataFrame) -> None:
    assert wrong(rows, BENCHMARK.DIRTY_WAYS - 1) > 5
    assert wrong(rows, BENCHMARK.DIRTY_WAYS + 1) > 5


def test_a_copy_that_took_no_place_would_be_seen(rows: pd.DataFrame) -> None:
    """A store that only its home keeps would leave near 1 where it is."""
    order = "16 near loads, 1 far store, then near loads"
    assert KERNEL.order_steps(order, 0)[-1] == ("store", "far", 1)
    assert BENCHMARK.place(BENCHMARK.one_set(), order, 0, "near 1") == "memory"
    assert (
        BENCHMARK.place(
            BENCHMARK.one_set(), order.replace("1 far store", "0 far stores"), 0, "near 1"
        )
        == "near"
    )


def test_the_table_has_a_line_a_question(rows: pd.DataFrame) -> None:
    lines = BENCHMARK.table(BENCHMARK.played(rows, BENCHMARK.one_set())).splitlines()
    assert len(lines) == 2 + sum(map(len, KERNEL.ORDERS.values()))
    assert lines[4] == "| 1 far load, then near loads | far 1 | 15 | 15 | far | far |"

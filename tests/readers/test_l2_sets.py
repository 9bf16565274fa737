"""Which lines share a set: the search of experiments/sets.py, what it recorded, and the model of the L2 beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scripts import ROOT, load_script

from iosim.base.records import replace
from iosim.hardware.profile import load_profile
from iosim.readers.replay import l2

BENCHMARK, KERNEL = load_script("benchmarks/sets.py"), load_script("experiments/sets.py")


# The search, on a set that is known.


class KnownSet:
    """A set of `ways` lines, least recently used first out, instead of a GPU; every `wrong`-th test is disturbed.

    The lines that a test reads are counted as they come: nothing that the search asks for reads one twice.
    """

    def __init__(self, lines: npt.NDArray[np.int64], ways: int, wrong: int = 0) -> None:
        self.lines, self.ways, self.wrong, self.made = np.sort(lines), ways, wrong, 0

    def cycles(
        self, target: int, tests: Sequence[Sequence[tuple[int, int]]], keep: Sequence[int] = ()
    ) -> npt.NDArray[np.int32]:
        segments = np.array([s for test in tests for s in test] or [(0, 0)])
        inside = np.diff(
            np.searchsorted(self.lines, np.stack([segments[:, 0], segments.sum(axis=1)])), axis=0
        )[0]
        read = np.concatenate([[0], np.cumsum(inside)])[
            np.cumsum([0, *(len(test) for test in tests)])
        ]
        gone = np.isin(keep, self.lines).sum() + np.diff(read) >= self.ways
        number = self.made + 1 + np.arange(len(tests))
        self.made += len(tests)
        return np.where(
            gone | ((number % self.wrong == 0) if self.wrong else False), 650, 330
        ).astype(np.int32)


def known(seed: int) -> npt.NDArray[np.int64]:
    """Two lines each of about half of the pages."""
    rng = np.random.default_rng(seed)
    pages = np.flatnonzero(rng.random(KERNEL.PAGES) < 0.55) * KERNEL.LINES
    first = pages + rng.integers(0, KERNEL.LINES - 512, pages.size)
    places: npt.NDArray[np.int64] = np.concatenate(
        [first, first + rng.integers(2, 400, pages.size)]
    )
    return places


@pytest.mark.parametrize(("seed", "ways"), [(0, 16), (1, 16), (2, 12), (3, 20)])
def test_the_search_finds_the_ways_and_every_line(seed: int, ways: int) -> None:
    lines = known(seed)
    target = KERNEL.targets(4)[seed]
    lines = lines[lines // 2 != target // 2]
    result = KERNEL.study(KnownSet(lines, ways), target, KERNEL.bases(target)[0])
    assert len(result.fills) == ways
    assert result.lines == sorted(lines.tolist())


def test_a_target_that_nothing_drives_out_fails() -> None:
    target = KERNEL.targets(1)[0]
    assert KERNEL.study(KnownSet(np.array([5, 6]), 16), target, KERNEL.bases(target)[0]) is None


@pytest.mark.parametrize("wrong", [7, 30, 60, 1200, 20000])  # of some 26,000 tests
def test_a_disturbed_search_fails_or_is_right(wrong: int) -> None:
    target = KERNEL.targets(1)[0]
    lines = known(4)
    lines = lines[lines // 2 != target // 2]
    disturbed = KnownSet(lines, 16, wrong)
    result = KERNEL.study(disturbed, target, KERNEL.bases(target)[0])
    assert disturbed.made < 60_000
    assert (result is None) == (wrong < 1000)
    if result is not None:
        assert len(result.fills) == 16
        assert len(set(result.lines) ^ set(lines.tolist())) <= 0.01 * lines.size


def test_bases_never_hold_the_target() -> None:
    for target in KERNEL.targets(400):
        assert target % 2 == 0
        for base in KERNEL.bases(target):
            assert not base <= target // KERNEL.LINES < base + KERNEL.WIDTH
        assert len(KERNEL.bases(target)) >= 2


@pytest.mark.slow
def test_a_dry_run_needs_no_gpu() -> None:
    command = [sys.executable, str(ROOT / "experiments" / "sets.py"), "--dry-run", "--lines", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "10 lines of 10 pages, among 16,777,216 lines of 1,024 pages\n"


# What was recorded.


@pytest.fixture(scope="module")
def recorded() -> Any:
    return BENCHMARK.recorded()


def test_sets_have_16_ways(recorded: Any) -> None:
    assert np.mean(recorded.ways == 16) > 0.99
    assert recorded.failed < 0.03 * recorded.ways.size


def test_how_many_sets_there_are(recorded: Any) -> None:
    # 1,024 pages of 16,384 lines; a set gets 1,116 of them, its target among them
    assert recorded.sets == pytest.approx(16384 * 1024 / 1116, rel=0.002)
    assert recorded.sets == pytest.approx(15047, rel=0.01)
    assert recorded.sets == pytest.approx(
        l2.model(BENCHMARK.load_profile("h200-sxm")).sets, rel=0.01
    )


def test_a_page_gives_a_set_two_lines_or_none(recorded: Any) -> None:
    assert np.mean(recorded.counts == 0) == pytest.approx(0.476, abs=0.005)
    assert np.mean(recorded.counts == 2) == pytest.approx(0.502, abs=0.005)
    assert np.mean(recorded.counts == 4) == pytest.approx(0.021, abs=0.005)


def test_a_hit_is_told_from_a_miss(recorded: Any) -> None:
    assert recorded.miss_cycles > recorded.hit_cycles + 2 * KERNEL.MARGIN


# The model beside it.

MANY = 128
"""Pages in a row."""
FAR = 0.05
"""Of all sets: what the share that is overfull may be off, wherever it is looked at."""


def furthest(recorded: Any, models: list[npt.NDArray[np.int64]]) -> float:
    return max(
        abs(BENCHMARK.averaged(models, "overfull", *at) - BENCHMARK.overfull(recorded.counts, *at))
        for at in BENCHMARK.about_full(recorded)
    )


@pytest.mark.slow
def test_pages_of_the_model_fill_sets_as_evenly(recorded: Any) -> None:
    models = BENCHMARK.modelled()
    assert furthest(recorded, models) < FAR
    for pages in BENCHMARK.IN_A_ROW:
        assert 0.2 < BENCHMARK.variance(recorded.counts, pages) < 0.6
        if pages < MANY:
            assert 0.2 < BENCHMARK.averaged(models, "variance", pages) < 0.75


@pytest.mark.slow
def test_many_pages_of_the_model_fill_sets_nearly_as_evenly() -> None:
    """Of so many pages one placement's variance is 0.5 to 1.3 by chance, and the mean of eight moves by 0.15 where the
    sets are one more or one fewer: thirty-two placements are held, whose mean moves by 0.03."""
    models = BENCHMARK.modelled(placements=32)
    assert 0.7 < np.mean([BENCHMARK.variance(counts, MANY) for counts in models]) < 0.95


@pytest.mark.slow
def test_pages_in_strict_turn_would_be_seen(
    recorded: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(l2, "SHUFFLED_PAGES", 0.0)
    assert furthest(recorded, BENCHMARK.modelled()) > FAR


def test_pages_anywhere_would_be_seen(recorded: Any) -> None:
    sets = 15047
    places = np.random.default_rng(0).integers(0, sets, (4, BENCHMARK.PAGES))
    models = [BENCHMARK.filled(place, BENCHMARK.LINES // 2, sets) for place in places]
    assert furthest(recorded, models) > 4 * FAR
    assert BENCHMARK.averaged(models, "variance", 128) > 10


def test_filled_by_hand() -> None:
    # 60 sets, of which those numbered 0, 15, 30, 45 are looked at; a page fills 20 sets
    assert BENCHMARK.filled(np.array([0, 50]), 20, 60).tolist() == [[2, 2], [2, 0], [0, 0], [0, 0]]
    counts = np.array([[2, 0, 2], [0, 2, 4]])
    assert BENCHMARK.windows(counts, 2).tolist() == [[2, 2], [2, 6]]
    assert BENCHMARK.variance(counts, 3) == 0.25  # 2 and 3 pairs
    assert BENCHMARK.overfull(8 * counts, 1) == pytest.approx(1 / 6)  # 32 lines of the last page


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_rows_a_power_of_two_apart_spread_over_the_sets(gpu: str) -> None:
    """Measured, such rows fill sets as evenly as by chance. Were lines of a page in order in its sets, 12,800 sets being a
    multiple of 128, an H100's rows of 4 in 128 lines would fill a 32nd of them: a variance of 76 times the mean."""
    recorded = BENCHMARK.recorded(gpu)
    for apart, row in BENCHMARK.STRIDES:
        assert 0.4 < BENCHMARK.rows_measured(recorded, apart, row) < 1.1
        assert 0.4 < BENCHMARK.rows_modelled(gpu, apart, row) < 1.1


@pytest.mark.slow
def test_another_gpu_has_such_sets() -> None:
    """An H100, on which nothing was fitted: 50 MiB in two partitions of 16 ways are 12,800 sets each."""
    recorded = BENCHMARK.recorded("h100")
    assert np.mean(recorded.ways == 16) > 0.99
    assert recorded.sets == pytest.approx(50 * 2**20 / 2 / 16 / 128, rel=0.002)
    assert recorded.sets == pytest.approx(l2.model(BENCHMARK.load_profile("h100")).sets, rel=0.002)
    assert furthest(recorded, BENCHMARK.modelled("h100")) < 0.08


@pytest.mark.parametrize(
    ("lines", "followed"),
    [
        # one of as many sets as an object has lines is followed, of 1,024
        (7, (146, 7, 1)),
        (8, (16, 64, 8)),  # from 8 on in 8 placements, each of a 64th
        (16, (8, 128, 8)),
        (1000, (2, 512, 8)),  # of 16 sets at least, in all placements
    ],
)
def test_large_objects_are_followed_in_several_placements(
    lines: int, followed: tuple[int, int, int]
) -> None:
    model = replace(l2.model(load_profile("h200")), sets=1024, line_bytes=128)
    size = np.full(5, lines * 128, dtype=np.int32)
    assert l2.followed_sets(model, size) == followed

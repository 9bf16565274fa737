"""The replay engine reproduces the measured capacity curves of the H200's L2: both scans, on the cliff and off it."""

from __future__ import annotations

import csv
from functools import cache
from itertools import pairwise

import pytest
from effort import quick_every
from scripts import measurements

from iosim.hardware.profile import load_profile
from iosim.readers.replay.scan import PATTERNS, scan

MIB = 1 << 20
PASSES = 4
CLIFF_MIB = {"shared_scan": (28, 34), "private_scan": (36, 52)}
"""Between these, exclusive, the measured curve climbs from everything hits to everything misses."""


@cache
def measured() -> dict[tuple[str, int], tuple[int, int]]:
    """(pattern, MiB) -> (bytes read from HBM, bytes that crossed)."""
    with open(measurements("l2_capacity_curve.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {int(r["passes"]) for r in rows} == {PASSES}
    return {
        (r["pattern"], int(r["footprint_MiB"])): (int(r["dram_read"]), int(r["fabric"]))
        for r in rows
    }


@cache
def replayed(pattern: str, footprint_mib: int) -> tuple[int, int]:
    return scan(load_profile("h200-sxm"), footprint_mib * MIB, pattern, PASSES)


def footprint_at(pattern: str, reads: dict[int, int], share: float) -> float:
    """Footprint in MiB at which that share of the re-reads misses, between the points of the curve."""
    points = [(f, (n / (f * MIB) - 1) / (PASSES - 1)) for f, n in sorted(reads.items())]
    for (f0, m0), (f1, m1) in pairwise(points):
        if m0 < share <= m1:
            return f0 + (f1 - f0) * (share - m0) / (m1 - m0)
    raise AssertionError(f"{pattern} never misses {share:.0%} of its re-reads")


def curves(pattern: str) -> tuple[dict[int, int], dict[int, int]]:
    sizes = [f for p, f in measured() if p == pattern]
    return {f: measured()[pattern, f][0] for f in sizes}, {
        f: replayed(pattern, f)[0] for f in sizes
    }


OFF_THE_CLIFF = quick_every(
    [(p, f) for p, f in measured() if not CLIFF_MIB[p][0] < f < CLIFF_MIB[p][1]], 4
)


@pytest.mark.parametrize(("pattern", "mib"), OFF_THE_CLIFF)
def test_hbm_reads_off_the_cliff(pattern: str, mib: int) -> None:
    assert replayed(pattern, mib)[0] == pytest.approx(measured()[pattern, mib][0], rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_cliff_stands_where_it_was_measured(pattern: str, share: float) -> None:
    """Its foot, where a tenth of the re-reads misses, and its middle, within 2 MiB."""
    real, model = curves(pattern)
    assert footprint_at(pattern, model, share) == pytest.approx(
        footprint_at(pattern, real, share), abs=2.0
    )


@pytest.mark.parametrize(("pattern", "mib"), OFF_THE_CLIFF)
def test_bytes_between_partitions_off_the_cliff(pattern: str, mib: int) -> None:
    """Data that all SMs read cross about once, data that one SM reads every second time; within 10 %
    or 0.6 MB."""
    assert replayed(pattern, mib)[1] == pytest.approx(
        measured()[pattern, mib][1], rel=0.1, abs=0.6e6
    )

"""What miss counters of scans say of an L2, from curves made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.evidence.measure import fit as module
from iosim.evidence.measure.fit import (
    BLOCK_SCAN,
    CAPACITY,
    USUAL_WAYS,
    WAYS,
    Point,
    cliff,
    error_of,
    half_missing_bytes,
    misses_by_time,
    partitions_of,
    points_of,
)
from iosim.hardware.profile import load_profile

MIB = 1 << 20
H100 = load_profile("h100")


def point(
    mib: float, misses: float, pattern: str = "shared_scan", ctas: int = 132, passes: int = 5
) -> Point:
    """A scan of which a share of its re-reads missed: the first pass always does."""
    footprint = int(mib * MIB)
    return Point(pattern, footprint, passes, ctas, round(footprint * (1 + (passes - 1) * misses)))


def curve(*shares: float, pattern: str = "shared_scan", ctas: int = 132) -> list[Point]:
    """Footprints of 10, 20, ... MiB."""
    return [point(10 * (n + 1), share, pattern, ctas) for n, share in enumerate(shares)]


def test_misses_are_shares_of_the_re_reads() -> None:
    assert Point("shared_scan", 100, 5, 132, 100).misses == 0.0
    assert Point("shared_scan", 100, 5, 132, 500).misses == 1.0
    assert Point("shared_scan", 100, 5, 132, 200).misses == 0.25  # a pass of four


def test_half_of_the_re_reads_miss_between_two_footprints() -> None:
    # 0.1 at 20 MiB, 0.9 at 30: a half lies in the middle
    assert half_missing_bytes(curve(0, 0.1, 0.9, 1), "shared_scan") == pytest.approx(25 * MIB)
    assert half_missing_bytes(curve(0, 0.25, 0.5, 1), "shared_scan") == pytest.approx(30 * MIB)
    assert half_missing_bytes(curve(0.5, 0.75, 1), "shared_scan") is None
    assert half_missing_bytes(curve(0, 0.1, 0.2), "shared_scan") is None
    assert half_missing_bytes(curve(0, 0.1, 0.9), "private_scan") is None
    assert half_missing_bytes([*reversed(curve(0, 0.1, 0.9))], "shared_scan") == pytest.approx(
        25 * MIB
    )


@pytest.mark.parametrize(
    ("points", "partitions"),
    [
        (curve(0, 0, 1, 1, 1), 2),  # 25 MiB of 50
        (curve(0, 0, 0, 0.4, 0.9), 1),  # 42 MiB
        (
            curve(0, 0, 0.2, 0.71),
            2,
        ),  # 30 + 10 x 0.3 / 0.51 = 35.9 MiB; the border is 0.72 x 50 = 36
        (curve(0, 0, 0.2, 0.69), 1),  # 36.1
        ([], None),
        (curve(0, 0, 0.1), None),
        # none that all SMs read: a quarter of one SM's re-reads
        (curve(0, 0, 0.5, pattern="private_scan", ctas=1), 2),  # 25 MiB
        (curve(0, 0, 0, 0.5, pattern="private_scan", ctas=1), 2),  # 35 MiB
        (curve(0, 0, 0, 0, 0.5, pattern="private_scan", ctas=1), 1),
        (curve(0, 0, 0.5, pattern="private_scan", ctas=2), None),
    ],
)
def test_partitions_by_what_stops_fitting(points: list[Point], partitions: int | None) -> None:
    assert partitions_of(points, 50 * MIB) == partitions


def test_a_cliff_is_what_lies_between_with_its_neighbours() -> None:
    shared = curve(0, 0, 0.3, 0.9, 1, 1)
    flat = curve(0, 0.002, 0.998, 1, pattern="private_scan")
    assert cliff([*reversed(shared), *flat]) == shared[1:5]
    steep = curve(0.5, 1, pattern=BLOCK_SCAN)
    assert cliff([*flat, *steep]) == steep


def test_rows_that_are_scans_and_were_counted() -> None:
    row = {
        "pattern": "shared_scan",
        "footprint_bytes": "100",
        "passes": "4",
        "ctas": 132.0,
        "hbm_read": 250.0,
    }
    others = [row | {"pattern": "fill"}, row | {"hbm_read": None}]
    assert points_of([row, *others]) == [Point("shared_scan", 100, 4, 132, 250)]


def test_misses_by_time() -> None:
    """10 GB/s where it hits, 2 GB/s of memory: 0.1 and 0.5 ns a byte. 5 GB/s are 0.2 ns, a quarter of the way."""
    raw = {
        "private": [(1, 10e9), (2, 5e9), (3, 2e9), (4, 1e9)],
        "hbm_read_bandwidth_bytes_per_s": 2e9,
    }
    assert misses_by_time(raw) == [
        (1, 0.0),
        (2, pytest.approx(0.25)),
        (3, pytest.approx(1.0)),
        (4, 1.0),
    ]
    assert misses_by_time(raw | {"private": []}) == []
    assert misses_by_time(raw | {"hbm_read_bandwidth_bytes_per_s": None}) == []
    slow = {"private": [(1, 1e9), (2, 5e8)], "hbm_read_bandwidth_bytes_per_s": 1e9}
    assert misses_by_time(slow) == [(1, 0.0), (2, 0.0)]


def test_errors_are_shares_of_the_re_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "scan", lambda *of: (1500, of))
    monkeypatch.setattr(module, "block_scan", lambda *of: 1100)
    assert error_of(None, Point("shared_scan", 100, 5, 132, 1300)) == pytest.approx(200 / 400)  # type: ignore[arg-type]
    assert error_of(None, Point(BLOCK_SCAN, 100, 5, 132, 1300)) == pytest.approx(200 / 400)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ways", "times", "taken"),
    [(12, 0.69, 12), (12, 0.71, USUAL_WAYS), (24, 0.1, 24), (16, 0.1, 16)],
)
def test_other_ways_are_taken_where_they_are_clearly_better(
    ways: int, times: float, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An L2 that holds 0.93 of its size; `ways` makes the error so many times that of the usual ones."""

    def error(candidate: Any, point: Point) -> float:
        return (0.1 + abs(candidate.fraction - 0.93)) * (times if candidate.ways == ways else 1.0)

    def candidate(of: Any, size: int, fraction: float) -> Any:
        return SimpleNamespace(ways=of.ways, fraction=fraction)

    monkeypatch.setattr(module, "error_of", error)
    monkeypatch.setattr(module, "with_capacity", candidate)
    tries: list[None] = []
    l2_fit = module.fit(H100, curve(0, 0, 0.5, 1, 1), lambda: tries.append(None))
    assert l2_fit is not None
    assert (l2_fit.ways, l2_fit.partitions, l2_fit.points) == (taken, 2, 3)
    assert l2_fit.capacity_fraction == pytest.approx(0.93)
    assert l2_fit.error == pytest.approx(0.1 * (times if taken == ways else 1.0))
    assert len(tries) == module.TRIALS == len(CAPACITY) + 3 + len(WAYS)


def test_no_cliff_no_constants() -> None:
    assert module.fit(H100, curve(0, 0, 1, 1)) is None
    assert CAPACITY[0] == 0.8
    assert CAPACITY[-1] == 1.0
    assert {*WAYS} == {8, 12, 16, 20, 24}

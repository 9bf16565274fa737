"""The L2 model's constants from miss counters of scans: partitions, ways, effective capacity.

The model (docs/replay.md) plays the same scans through its L2; the constants are those of a small grid with which its
HBM reads come nearest to the counted ones on the cliffs. The grid is searched step by step: capacity, then ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from iosim.base.records import dataclass, replace
from iosim.hardware.profile import HardwareProfile
from iosim.readers.replay.l2 import L2Model, model
from iosim.readers.replay.scan import PATTERNS, block_scan, scan, with_capacity

USUAL_WAYS = 16
"""Ways of the L2s that were measured set by set (H100 and H200)."""
WAYS = tuple(sorted({8, 12, 16, 20, 24, USUAL_WAYS}))
CAPACITY = tuple(round(0.8 + 0.02 * n, 2) for n in range(11))
"""An L2 holds no more than its size, though a curve may fit better so."""
FINER = (-0.01, 0.0, 0.01)
CLEARLY_BETTER = 0.7
"""Ways other than the usual are taken where the error falls to less than this share: with 12 it falls to 0.73 on curves
of an H100 PCIe, whose chip has 16."""
TRIALS = len(CAPACITY) + len(FINER) + len(WAYS)
ON_CLIFF = (0.002, 0.998)
"""Share of re-reads that miss, between which a footprint is on the cliff."""


BLOCK_SCAN = "block_scan"
CURVES = (*PATTERNS, BLOCK_SCAN)
FOOT = 0.25
"""Share of the re-reads of one SM: so many miss first where its own side of the L2 no longer holds them, or all of the
L2."""


@dataclass(frozen=True)
class Point:
    """A counted scan. `misses` is the share of re-reads that HBM served: (reads / footprint - 1) / (passes - 1). Of a
    `block_scan`, `ctas` run at once on `sms` SMs, and each takes the next `block_bytes`."""

    pattern: str
    footprint_bytes: int
    passes: int
    ctas: int
    hbm_read: int
    block_bytes: int = 0
    sms: int = 0

    @property
    def misses(self) -> float:
        return (self.hbm_read / self.footprint_bytes - 1) / (self.passes - 1)


@dataclass(frozen=True)
class L2Fit:
    """`error` is the mean |replayed - counted| HBM reads, in shares of the re-reads, of `points` footprints."""

    partitions: int
    ways: int
    capacity_fraction: float
    error: float
    points: int


def points_of(rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    names = ("footprint_bytes", "passes", "ctas", "hbm_read")
    counted = (r for r in rows if r["pattern"] in PATTERNS and r["hbm_read"] is not None)
    return [Point(r["pattern"], *(int(r[name]) for name in names)) for r in counted]


def misses_by_time(raw: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(footprint in bytes, share of re-reads that miss) of private scans, from their times alone. `raw`: the sound
    numbers of a raw file. A scan's time is that of the L2, the best of the curve, where it hits, and that of memory
    where it misses. NB: on an H200 half of the re-reads miss at 0.97 of the L2 by time and at 0.77 by counters
    (test_bundle.py): misses hide behind hits as long as memory keeps up. So no constant of the L2's model is taken from
    times."""
    curve = raw["private"]
    if not curve or not raw.get("hbm_read_bandwidth_bytes_per_s"):
        return []
    fast, slow = 1 / max(rate for _, rate in curve), 1 / raw["hbm_read_bandwidth_bytes_per_s"]
    # an L2 no faster than memory by time: nothing tells misses from hits
    if slow <= fast:
        return [(int(size), 0.0) for size, _ in curve]
    return [
        (int(size), min(1.0, max(0.0, (1 / rate - fast) / (slow - fast)))) for size, rate in curve
    ]


def half_missing_bytes(points: Sequence[Point], pattern: str) -> float | None:
    """The footprint at which half of the re-reads miss, between two counted ones; None where the curve has no cliff."""
    return _missing_bytes([p for p in points if p.pattern == pattern], 0.5)


def _missing_bytes(points: Sequence[Point], share: float) -> float | None:
    curve = sorted((p.footprint_bytes, p.misses) for p in points)
    for (size, low), (larger, high) in pairwise(curve):
        if low < share <= high:
            return size + (larger - size) * (share - low) / (high - low)
    return None


def partitions_of(points: Sequence[Point], l2_bytes: int) -> int | None:
    """2 where data that all SMs read stop fitting nearer to half of the L2 than to all of it, else 1; where none such
    were counted, data that one SM reads."""
    # with two partitions each holds a copy of data that all SMs read: they fit up to half of the size
    half = half_missing_bytes(points, "shared_scan")
    if half is None:
        half = _missing_bytes([p for p in points if p.ctas == 1], FOOT)
    return (
        None if half is None else 2 if half < 0.72 * l2_bytes else 1
    )  # the middle of 1/2 and 1, in ratios


def cliff(points: Sequence[Point]) -> list[Point]:
    """Points where some re-reads miss and some do not, and the nearest on either side of them."""
    near: list[Point] = []
    for pattern in CURVES:
        curve = sorted((p for p in points if p.pattern == pattern), key=lambda p: p.footprint_bytes)
        inside = [n for n, p in enumerate(curve) if ON_CLIFF[0] < p.misses < ON_CLIFF[1]]
        if inside:
            # flat parts of a curve agree with any constants: they would only dilute the error
            near += curve[max(0, inside[0] - 1) : inside[-1] + 2]
    return near


def fit(
    profile: HardwareProfile, points: Sequence[Point], tried: Callable[[], object] = lambda: None
) -> L2Fit | None:
    """The constants for the GPU of `profile`, whose partitions it keeps where no curve tells; None where curves show no
    cliff. Raises InputError where the profile lacks its L2's size or its memory bandwidth. `tried`: called after each
    of TRIALS sets of constants."""
    size = profile.need_int("l2_bytes")
    partitions, picked = partitions_of(points, size) or profile.l2_partitions, cliff(points)
    if partitions is None or not picked:
        return None
    base = replace(model(profile), partitions=partitions)

    def error(fraction: float, ways: int = USUAL_WAYS) -> float:
        candidate = with_capacity(replace(base, ways=ways), size, fraction)
        mean = sum(error_of(candidate, p) for p in picked) / len(picked)
        tried()
        return mean

    # the capacity first, coarse then fine, at the usual ways; then the ways at that capacity
    coarse = min(CAPACITY, key=error)
    fraction = min((min(round(coarse + step, 2), 1.0) for step in FINER), key=error)
    by_ways = {ways: error(fraction, ways) for ways in WAYS}
    best = min(WAYS, key=lambda w: by_ways[w])
    ways = best if by_ways[best] < CLEARLY_BETTER * by_ways[USUAL_WAYS] else USUAL_WAYS
    return L2Fit(partitions, ways, fraction, by_ways[ways], len(picked))


def error_of(l2: L2Model, p: Point) -> float:
    """|replayed - counted| HBM reads of a scan, in shares of its re-reads."""
    if p.pattern == BLOCK_SCAN:
        read = block_scan(l2, p.footprint_bytes, p.block_bytes, p.sms, p.ctas, p.passes)
    else:
        read = scan(l2, p.footprint_bytes, p.pattern, p.passes, p.ctas)[0]
    return abs(read - p.hbm_read) / ((p.passes - 1) * p.footprint_bytes)

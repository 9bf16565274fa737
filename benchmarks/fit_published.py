"""L2 constants of other GPUs, fitted to curves that others published: `python benchmarks/fit_published.py`.

The fit is that of `iosim calibrate`. Curves (experiments/measurements/published_l2_curves.csv): misses counted while
all SMs read one buffer, or while CTAs take its blocks in turn; the latency of one thread's chain of loads; rates of
fills. What stays dirty after long passes was counted on an A100 (published_a100_relu.csv), an H100 and an H200.
Prints a table, docs/generated/l2_constants.md; `--write` writes it. Most of a minute.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from recorders import measurements

from iosim import HardwareProfile, load_profile
from iosim.evidence.measure.calibrate import FILLED
from iosim.evidence.measure.fit import (
    BLOCK_SCAN,
    L2Fit,
    Point,
    cliff,
    error_of,
    fit,
    partitions_of,
)
from iosim.readers.replay.l2 import L2Model, model, sm_partitions
from iosim.readers.replay.scan import OBJECT_BYTES, empty_l2, with_capacity

T = TypeVar("T")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "generated" / "l2_constants.md"
MIB = 1 << 20
PASSES = 4
PROFILES = {
    "A100-80GB": "a100-sxm-80gb",
    "A100-SXM-40GB": "a100-sxm-40gb",
    "A100-PCIe": "a100-pcie-80gb",
    "A40": "a40",
    "GH200-96GB": "h200-sxm",
    "H100-PCIe-80GB": "h100-pcie",
    "H800-PCIe": "h800-sxm",
    "GB200": "gb200",
    "L40": "l40",
    "RTX-4090": "rtx-4090",
    "V100-PCIe-16GB": "v100-sxm2",
}
"""The profile that is nearest to each measured GPU; its L2's size and its SMs are the curve's own."""
CTAS_PER_SM = {"L40": 1}
"""CTAs of 1,024 threads that an SM holds: two but where it has 1,536 threads."""
FLAT = (0.125, 0.35)
TOP = (1.6, 2.6)
MIDDLE = (0.62, 0.9)
"""Footprints over the L2's size where all loads of a chain hit nearby, none hits, and (two partitions) half do."""
LEAST_RISE = 0.04
"""Of the way from a hit's latency to a miss': what lies below counts as a hit (TLB misses lengthen hits a little)."""
MOST_POINTS = 8
"""Of a curve that are fitted, spread over its cliff."""
MOST_IN_FLIGHT = 1.5
"""Curves whose blocks in flight are more L2s than this are left out: they begin in step, and how fast CTAs drift apart
decides."""
LIMITED = 0.75
"""Rates below this share of the L2's are limited by HBM, so that they tell how much misses."""
OTHERS = {
    "a30": ("a100-sxm-80gb", "the A100's chip; its own counters bear it out (docs/replay.md)"),
    "h100-sxm": (None, "measured line by line"),
    "h200-sxm": (None, "measured line by line"),
    "a10": ("a40", "the A40's chip"),
    "rtx-3090": ("a40", "the A40's chip"),
    "rtx-a6000": ("a40", "the A40's chip"),
    "l40s": ("l40", "the L40's chip"),
    "l4": ("l40", "the same architecture; with the RTX 4090"),
    "t4": (
        "v100-sxm2",
        "nearest: mt4g finds one segment as large as the L2 in an RTX 2080 Ti (5.5 MiB) and a T1000 (1 MiB)",
    ),
    "b200": ("gb200", "the GB200's chip"),
    "b300": ("gb200", "the same L2"),
    "gb300": ("gb200", "the same L2"),
}
"""GPUs with no curve of their own here: where their constants come from, and why."""


MOST_DIRTY_ERROR = 1.2
"""Numbers of dirty ways whose error is up to this many times the least are told as a range."""


@dataclass(frozen=True)
class Filled:
    """A footprint that all SMs store to over and over, and at what rate."""

    footprint_bytes: int
    sms: int
    bytes_per_s: float


@dataclass(frozen=True)
class DirtyFit:
    """`ways` of a set hold dirty lines at most; `error` is the mean error of the time of a store, over that of one that
    HBM limits; `low` and `high` are the least and most ways that do about as well."""

    ways: int
    error: float
    low: int
    high: int
    points: int


@dataclass(frozen=True)
class Row:
    gpu: str
    l2_bytes: int
    sms: int
    curve: str
    footprint_bytes: int
    block_bytes: int
    quantity: str
    value: float
    source: str


def rows() -> list[Row]:
    """Every point of the published curves."""
    with open(measurements("published_l2_curves.csv"), encoding="utf-8", newline="") as file:
        return [
            Row(
                r["gpu"],
                int(r["l2_bytes"]),
                int(r["sms"]),
                r["curve"],
                int(r["footprint_bytes"]),
                int(r["block_bytes"] or 0),
                r["quantity"],
                float(r["value"]),
                r["source"],
            )
            for r in csv.DictReader(file)
        ]


def points(curve: Sequence[Row]) -> list[Point]:
    """The points of one curve as counted scans; none of fills."""
    first = curve[0]
    if first.curve == "chase":
        return _chase(curve)
    if first.curve == "shared_scan":
        return [_point(r, "shared_scan", r.sms, r.value) for r in curve]
    if first.curve == BLOCK_SCAN:
        return _blocks(curve)
    return []


def _point(r: Row, pattern: str, ctas: int, misses: float) -> Point:
    misses = min(1.0, max(0.0, misses))
    read = round(r.footprint_bytes * (1 + (PASSES - 1) * misses))
    return Point(pattern, r.footprint_bytes, PASSES, ctas, read, r.block_bytes, r.sms)


def _median(curve: Sequence[Row], span: tuple[float, float]) -> float:
    return statistics.median(
        r.value for r in curve if span[0] <= r.footprint_bytes / r.l2_bytes <= span[1]
    )


def _chase(curve: Sequence[Row]) -> list[Point]:
    """Misses of one thread's chain of loads from its latency: straight from that of hits to that of misses, or, where
    misses begin at half of the L2, over a middle where half miss (lines of the near side) and half hit on the far side.
    """
    low = _median(curve, FLAT)
    high = _median(curve, TOP)

    def straight(latency: float) -> float:
        return (latency - low) / (high - low)

    points = [_point(r, "private_scan", 1, straight(r.value)) for r in curve]
    if partitions_of(points, curve[0].l2_bytes) == 2:
        middle = _median(curve, MIDDLE)
        points = []
        for r in curve:
            below = 0.5 * (r.value - low) / (middle - low)
            above = 0.5 + 0.5 * (r.value - middle) / (high - middle)
            points.append(_point(r, "private_scan", 1, below if r.value < middle else above))
    return [replace(p, hbm_read=p.footprint_bytes) if p.misses < LEAST_RISE else p for p in points]


def _blocks(curve: Sequence[Row]) -> list[Point]:
    first = curve[0]
    ctas = first.sms * CTAS_PER_SM.get(first.gpu, 2)
    if ctas * first.block_bytes > MOST_IN_FLIGHT * first.l2_bytes:
        return []
    if first.quantity == "misses":
        return [_point(r, BLOCK_SCAN, ctas, r.value) for r in curve]
    best = max(r.value for r in curve)
    hbm = _median(curve, TOP)
    return [_point(r, BLOCK_SCAN, ctas, hbm / r.value) for r in curve if r.value < LIMITED * best]


def profile_for(gpu: str, curve: Row) -> HardwareProfile:
    """The nearest profile, with the L2 and the SMs of the GPU that was measured."""
    return replace(load_profile(PROFILES[gpu]), l2_bytes=curve.l2_bytes, sm_count=curve.sms)


@dataclass(frozen=True)
class Result:
    """Of one GPU: the fit to all its curves, how far off each curve is with that fit and with the profile's constants,
    and the fit of its fills."""

    gpu: str
    fit: L2Fit
    curves: dict[str, tuple[int, float, float]]
    dirty: DirtyFit | None


def fitted(gpu: str, all_rows: Sequence[Row]) -> Result:
    """Fits one GPU."""
    mine = [r for r in all_rows if r.gpu == gpu]
    profile = profile_for(gpu, mine[0])
    curves = {
        source: [r for r in mine if r.source == source]
        for source in dict.fromkeys(r.source for r in mine)
    }
    scans = {source: thinned(cliff(points(curve))) for source, curve in curves.items()}
    cliff_fit = fit(profile, [p for curve in scans.values() for p in curve])
    assert cliff_fit is not None, f"no cliff in the curves of {gpu}"
    held = model(profile)
    best = with_capacity(
        replace(held, partitions=cliff_fit.partitions, ways=cliff_fit.ways),
        mine[0].l2_bytes,
        cliff_fit.capacity_fraction,
    )
    errors = {s: (len(c), off(best, c), off(held, c)) for s, c in scans.items() if c}
    return Result(gpu, cliff_fit, errors, dirty_of(best, [r for r in mine if r.curve == "fill"]))


def thinned(curve: Sequence[T]) -> list[T]:
    """At most MOST_POINTS of a curve, the first and the last among them."""
    if len(curve) <= MOST_POINTS:
        return list(curve)
    return [curve[round(n * (len(curve) - 1) / (MOST_POINTS - 1))] for n in range(MOST_POINTS)]


def off(l2: L2Model, curve: Sequence[Point]) -> float:
    """Mean |replayed - measured| reads on the cliff, in shares of the re-reads."""
    return sum(error_of(l2, p) for p in curve) / len(curve)


def fit_dirty(
    l2: L2Model, fills: Sequence[Filled], l2_bytes_per_s: float, hbm_bytes_per_s: float
) -> DirtyFit:
    """The most dirty ways of a set, from rates of fills that fit in the L2, partly fit and do not fit.

    Args:
        l2_bytes_per_s: rate of fills that fit.
        hbm_bytes_per_s: rate of fills far larger than the L2.
    """

    def error(ways: int) -> float:
        model = replace(l2, dirty_ways=float(ways))
        return sum(
            abs(
                _fill_time(model, f, l2_bytes_per_s, hbm_bytes_per_s)
                - hbm_bytes_per_s / f.bytes_per_s
            )
            for f in fills
        ) / len(fills)

    by_ways = {ways: error(ways) for ways in range(1, l2.ways + 1)}
    best = min(by_ways, key=lambda w: by_ways[w])
    near = [ways for ways, off in by_ways.items() if off <= MOST_DIRTY_ERROR * by_ways[best]]
    return DirtyFit(best, by_ways[best], min(near), max(near), len(fills))


FILL_PASSES = 4


def fill(l2_of_gpu: L2Model, footprint_bytes: int, sms: int, passes: int = 6) -> int:
    """Bytes written to HBM where all SMs store to a footprint, each to what comes next, `passes` times over."""
    object_bytes = OBJECT_BYTES["private_scan"]
    objects = footprint_bytes // object_bytes
    number = np.tile(np.arange(objects, dtype=np.int32), passes)
    sides = sm_partitions(sms, l2_of_gpu.partitions, l2_of_gpu.side_ends, l2_of_gpu.apart)
    side = np.resize(sides[np.random.default_rng(0).permutation(sms)], number.size)
    l2 = empty_l2(l2_of_gpu, objects, object_bytes)
    l2.access(np.ones(number.size, dtype=np.uint8), number, side)
    return int(l2.state.hbm_write[0])


def _fill_time(l2: L2Model, f: Filled, l2_bytes_per_s: float, hbm_bytes_per_s: float) -> float:
    """Time of a pass over that of one whose lines all go to HBM: what lasts longer, the L2 or HBM."""
    some, more = (
        fill(l2, f.footprint_bytes, f.sms, passes) for passes in (FILL_PASSES, 2 * FILL_PASSES)
    )
    return max(hbm_bytes_per_s / l2_bytes_per_s, (more - some) / (FILL_PASSES * f.footprint_bytes))


def dirty_of(l2: L2Model, curve: Sequence[Row]) -> DirtyFit | None:
    """From fills, where HBM is slow enough beside the L2 to tell."""
    if not curve:
        return None
    best = max(r.value for r in curve)
    hbm = _median(curve, TOP) if _reaches(curve) else 0.0
    if not hbm:
        return None
    near = [
        Filled(r.footprint_bytes, r.sms, r.value)
        for r in curve
        if 0.3 < r.footprint_bytes / r.l2_bytes < 1.3
    ]
    picked = thinned(near)
    return fit_dirty(l2, picked, best, hbm)


def _reaches(curve: Sequence[Row]) -> bool:
    return max(r.footprint_bytes for r in curve) > TOP[0] * curve[0].l2_bytes


@dataclass(frozen=True)
class Kept:
    """How many bytes long passes leave dirty, the median of `passes`, and in how many lines of a set of `ways`."""

    profile: str
    left_bytes: float
    passes: int

    @property
    def lines(self) -> float:
        p = load_profile(self.profile)
        return (
            p.need("l2_ways")
            * self.left_bytes
            / (p.need("l2_bytes") * p.need("l2_effective_capacity_fraction"))
        )

    @property
    def ways(self) -> int:
        """The most dirty lines of a set: a long pass leaves FILLED of them where lines have copies on both sides."""
        return round(self.lines / FILLED)


def kept() -> list[Kept]:
    """What counters say of passes that write more than twice the L2's size; dirty lines of others that they drive out
    are no part of what they wrote."""

    def rows_of(name: str) -> list[dict[str, str]]:
        with open(measurements(name), encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    relu = [
        (int(r["bytes_in"]), float(r["dram_bytes"])) for r in rows_of("published_a100_relu.csv")
    ]
    h100 = [
        (int(r["footprint_bytes"]), int(r["hbm_write"]))
        for r in rows_of("h100_partial_sectors.csv")
        if r["slice_begins"] == "line"
    ]
    fills = [r for r in rows_of("stream_and_repeat.csv") if r["case"].startswith(("sum", "zero"))]
    sums, zeros = (
        statistics.median(int(r["dram_write"]) for r in fills if r["case"].startswith(pattern))
        for pattern in ("sum", "zero")
    )
    left_by_gpu = {
        "a100-sxm-80gb": [
            2 * size - moved_bytes
            for size, moved_bytes in relu
            if size > 2 * load_profile("a100").need("l2_bytes")
        ],
        "h100-sxm": [
            size - written for size, written in h100[1:]
        ],  # the first drives out what was left by others
        "h200-sxm": [2**30 - (zeros - sums)],
    }
    return [
        Kept(gpu, statistics.median(fractions), len(fractions))
        for gpu, fractions in left_by_gpu.items()
    ]


def table(results: Sequence[Result]) -> str:
    """The page."""
    lines = [
        "# L2 constants from published curves",
        "",
        "Made by `python benchmarks/fit_published.py --write` from `experiments/measurements/published_l2_curves.csv`;",
        "a test compares. Errors are mean |replayed - measured| HBM reads on the cliffs, in percent of the re-reads:",
        "with the constants fitted to all curves of the GPU, and with those that its profile holds.",
        "",
        "| GPU | partitions | ways | capacity | curve | points | error, fitted | error, profile |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for r in results:
        for n, (source, (count, best, held)) in enumerate(r.curves.items()):
            head = (
                f"{r.gpu} | {r.fit.partitions} | {r.fit.ways} | {r.fit.capacity_fraction}"
                if n == 0
                else " | | |"
            )
            lines.append(
                f"| {head} | {source.split(':', 1)[-1]} | {count} | {100 * best:.1f} % | {100 * held:.1f} % |"
            )
    lines += [
        "",
        "Most dirty lines of a set, from rates of fills:",
        "",
        "| GPU | dirty ways | as good | points | error of a store's time |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    for r in results:
        if r.dirty:
            d = r.dirty
            lines.append(
                f"| {r.gpu} | {d.ways} | {d.low} to {d.high} | {d.points} | {100 * d.error:.1f} % |"
            )
    lines += [
        "",
        "Most dirty lines of a set, from what long passes leave dirty (23/24 of them), counted:",
        "",
        "| GPU | passes | left dirty, MB | of the L2 | lines of a set | dirty ways |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for k in kept():
        left_mb = k.left_bytes / 1e6
        share = k.left_bytes / load_profile(k.profile).need("l2_bytes")
        lines.append(
            f"| {k.profile} | {k.passes} | {left_mb:.1f} | {share:.3f} | {k.lines:.2f} | {k.ways} |"
        )
    lines += [
        "",
        "No curve of their own:",
        "",
        "| GPU | constants of | why |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {gpu} | {other or 'itself'} | {why} |" for gpu, (other, why) in OTHERS.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("gpus", nargs="*", help="GPUs of the curves (default all)")
    args = parser.parse_args()
    all_rows = rows()
    text = table([fitted(gpu, all_rows) for gpu in args.gpus or PROFILES])
    if args.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()

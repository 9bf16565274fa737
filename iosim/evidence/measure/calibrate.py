"""From what the microbenchmarks found to quantities of a hardware profile: pure functions of raw numbers, no GPU.

`derive` gives the measured entries, each with the sentence that says how it came about. The raw format is that of
`microbench.measure`, with `counters` (iosim.evidence.measure.counters) where a profiler was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import asdict, dataclass
from iosim.base.schema import one_line, shown
from iosim.evidence.cuda.microbench import MIB, SCHEMA
from iosim.evidence.measure.fit import L2Fit, fit, points_of
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.quantities import QUANTITIES
from iosim.readers.replay.scan import PATTERNS

NEEDED = ("sms", "l2_bytes", "memory_bytes", "clock_hz", "hbm_read_bandwidth_bytes_per_s")
TEXTS = {
    "gpu": "a GPU without a name",
    "date": "an unknown date",
    "compute_capability": "",
    "driver_cuda": "?",
    "compiler": "?",
    "no_counters": "no profiler",
}
"""Words of a raw file, and what stands for those that are not there."""
TABLES = ("l2_curves", "counters")
COUNTED = ("hbm_read", "hbm_write")
LARGEST = 1e20
MOST = {"footprint_bytes": 1 << 40, "passes": 64, "ctas": 1 << 16}
"""Sizes of a counted scan beyond which nobody would have waited for it."""
MOST_READ = 1.2
"""What a scan reads from HBM at most, over the bytes that it asks for; and OTHERS besides, of other programs."""
OTHERS = 64 * MIB
WGMMA_CC = 90
"""From here on other instructions than mma.sync reach the tensor cores' full rate."""
FILLED = 23 / 24
"""Share of the most dirty lines that sets may hold which a long fill leaves: of three lines that come two are dirty,
one is a copy, and each makes room before it comes, so that 8, 8 and 7 of 8 are."""


@dataclass(frozen=True)
class Entry:
    """One quantity of a profile, in its unit there."""

    value: Any
    source: str
    kind: str = "measured"


def check_schema(raw: Mapping[str, Any], origin: str) -> None:
    if (schema := raw.get("schema")) != SCHEMA:
        raise InputError(
            f"{origin} has schema {shown(schema)}; accepted: {SCHEMA}, as iosim calibrate --raw writes"
        )


def sound(raw: Mapping[str, Any], left_out: list[str]) -> dict[str, Any]:
    """What of a raw file can be used: numbers above 0, points of curves, rows of counters. `left_out`: takes a line
    for each that cannot, with its reason."""
    readable = {name: raw[name] for name in raw if name not in (*TEXTS, *TABLES)}
    for name, default in TEXTS.items():
        value = raw.get(name, default)
        if not isinstance(value, str) or (
            name == "compute_capability" and not re.fullmatch(r"\d{1,2}\.\d", value)
        ):
            left_out.append(f"{name}: {shown(value) or 'missing'}, which says nothing")
            value = default
        readable[name] = one_line(value, 80)
    for name, value in list(readable.items()):
        if name not in (*TEXTS, "schema") and value is not None and not _positive(value):
            left_out.append(f"{name}: {shown(value)} is no number above 0")
            del readable[name]
    left_out += [f"{name}: missing" for name in NEEDED if raw.get(name) is None]
    curves = raw.get("l2_curves")
    private = curves.get("private") if isinstance(curves, Mapping) else None
    messages = private if isinstance(private, list) else []
    pairs = [p for p in messages if isinstance(p, list | tuple) and len(p) == 2]
    # a point that is no pair of numbers is dropped, not the curve
    points = [
        (int(size), rate)
        for size, rate in pairs
        if _positive(size) and _positive(rate) and size >= 1
    ]
    if not points:
        left_out.append("l2_curves: no curve of private scans")
    elif len(points) < len(messages):
        left_out.append(
            f"l2_curves: {len(messages) - len(points)} points are no two numbers above 0"
        )
    return readable | {
        "private": list(dict(sorted(points)).items()),
        "rows": _rows(raw.get("counters"), left_out),
    }


def _rows(counters: Any, left_out: list[str]) -> list[Mapping[str, Any]]:
    rows = counters.get("rows") if isinstance(counters, Mapping) else None
    if counters is not None and not isinstance(rows, list):
        left_out.append("counters: they hold no rows")
    judged = [(row, _why_not(row)) for row in rows or ()] if isinstance(rows, list) else []
    left_out += [
        f"counters, row {number}: {why}" for number, (_, why) in enumerate(judged, 1) if why
    ]
    return [row for row, why in judged if not why]


def _number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -LARGEST < value < LARGEST
    )


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _why_not(row: Any) -> str:
    if not isinstance(row, Mapping) or not isinstance(row.get("pattern"), str):
        return "it does not say what was scanned"
    for name, limit in MOST.items():
        if not isinstance(row.get(name), int) or not _positive(row[name]) or row[name] > limit:
            return f"{name} {shown(row.get(name))} is no whole number of 1 to {limit:,}"
    for name in COUNTED:
        if row.get(name) is not None and not _number(row[name]):
            return f"{name} {shown(row[name])} is no number"
    # only scans that read a footprint again tell of the L2
    if row["pattern"] in PATTERNS:
        read_bytes = row["passes"] * row["footprint_bytes"]
        if row["passes"] < 2:
            return "a scan of one pass reads nothing again"
        if row.get("hbm_read") is None:
            return "hbm_read: missing"
        if not 0 <= row["hbm_read"] <= MOST_READ * read_bytes + OTHERS:
            return (
                f"hbm_read {shown(row['hbm_read'])}, though the scan asks for {read_bytes:,} bytes"
            )
    return ""


def derive(
    raw: Mapping[str, Any],
    tried: Callable[[], object] = lambda: None,
    left_out: list[str] | None = None,
) -> dict[str, Entry]:
    """What was measured, as entries of a profile; tables by dtype as `table.dtype`. Raises InputError where it has
    another schema. `raw`: a run of the microbenchmarks, schema 2; `counters` is absent or None where no profiler was
    at hand. `tried`: as `fit` calls it. `left_out`: takes a line for each number that is not used, with its reason."""
    check_schema(raw, "the raw file")
    remarks_left_out: list[str] = [] if left_out is None else left_out
    readable = sound(raw, remarks_left_out)
    quantities = (
        figures(readable) | tensor(readable) | _from_counters(readable, tried, remarks_left_out)
    )
    return in_range(quantities, remarks_left_out)


def in_range(entries: Mapping[str, Entry], left_out: list[str]) -> dict[str, Entry]:
    """The entries that a profile may hold; `left_out` takes the others with their reasons."""
    fitting = {}
    for name, entry in entries.items():
        wrong = next(
            iter(QUANTITIES[name.partition(".")[0]].value.problems(entry.value, name)), None
        )
        if wrong is None:
            fitting[name] = entry
        else:
            left_out.append(
                f"{str(wrong).partition('; check')[0]} ({entry.source.rpartition(': ')[2]})"
            )
    return fitting


def _said(raw: Mapping[str, Any], method: str) -> str:
    return f"measured by iosim calibrate on {raw['gpu']}, {raw['date']}: {method}"


def digits(value: float, count: int = 4) -> float:
    return float(f"{value:.{count}g}")


DRIVER = "the driver"
FIGURES: tuple[tuple[str, tuple[str, ...], Callable[[Mapping[str, Any]], Any], str], ...] = (
    ("sm_count", ("sms",), lambda r: int(r["sms"]), DRIVER),
    ("l2_bytes", ("l2_bytes",), lambda r: int(r["l2_bytes"]), DRIVER),
    ("boost_clock_hz", ("clock_hz",), lambda r: float(r["clock_hz"]), DRIVER),
    (
        "dram_bandwidth_measured_bytes_per_s",
        ("hbm_read_bandwidth_bytes_per_s",),
        lambda r: digits(r["hbm_read_bandwidth_bytes_per_s"]),
        "best of 3 reads of far more than the L2",
    ),
    (
        "l2_read_bandwidth_measured_bytes_per_s",
        ("private",),
        lambda r: digits(max(rate for _, rate in r["private"])),
        "private scans, the best footprint of the curve",
    ),
    (
        "l2_read_bandwidth_by_footprint_bytes_per_s",
        ("private",),
        lambda r: [[size, digits(rate)] for size, rate in r["private"]],
        "private scans, each SM its own part",
    ),
    (
        "exp_per_clock_per_sm",
        ("exp_clock_hz", "exp_per_s", "sms"),
        lambda r: digits(r["exp_per_s"] / (r["exp_clock_hz"] * r["sms"]), 3),
        "ex2 instructions on all SMs",
    ),
    (
        "l2_latency_near_cycles",
        ("l2_latency_clock_hz", "l2_latency_s"),
        lambda r: digits(r["l2_latency_s"] * r["l2_latency_clock_hz"], 3),
        "one thread's chain of loads over an eighth of the L2, read before",
    ),
    (
        "dram_latency_cycles",
        ("hbm_latency_clock_hz", "hbm_latency_s"),
        lambda r: digits(r["hbm_latency_s"] * r["hbm_latency_clock_hz"], 3),
        "one thread's chain of loads over far more than the L2, TLB misses included",
    ),
)
"""Quantities, the raw numbers that each needs, what it is of them, and how they were measured."""


def figures(raw: Mapping[str, Any]) -> dict[str, Entry]:
    source = f"the driver, asked by iosim calibrate on {raw['gpu']}, {raw['date']}"
    return {
        name: Entry(value(raw), source if how == DRIVER else _said(raw, how))
        for name, needed, value, how in FIGURES
        if all(raw.get(key) for key in needed)
    }


def tensor(raw: Mapping[str, Any]) -> dict[str, Entry]:
    if not 0 < _capability(raw) < WGMMA_CC or not raw.get("tensor_fp16_mma_flop_per_s"):
        return {}
    rate, source = (
        digits(raw["tensor_fp16_mma_flop_per_s"]),
        _said(raw, "mma.sync m16n8k16 on all SMs, fp32 sums"),
    )
    entries = {"tensor_flops_achieved_per_s.fp16": Entry(rate, source)}
    if _capability(raw) >= 80:
        same = "the fp16 figure: both have the same rate"
        entries["tensor_flops_achieved_per_s.bf16"] = Entry(rate, same, "inferred")
    return entries


def _capability(raw: Mapping[str, Any]) -> int:
    """Ten times the compute capability; 0 where it is not known."""
    major, _, minor = str(raw["compute_capability"]).partition(".")
    return 10 * int(major) + int(minor) if major else 0


def _from_counters(
    raw: Mapping[str, Any], tried: Callable[[], object], left_out: list[str]
) -> dict[str, Entry]:
    rows, fitted = raw["rows"], None
    if points := points_of(rows):
        try:
            fitted = fit(_enough(raw), points, tried)
        except InputError as error:
            left_out.append(f"partitions, ways and capacity of the L2: {error}")
    entries = _fitted(raw, fitted) if fitted is not None else {}
    by_pattern = {row["pattern"]: row for row in rows}
    if "fill" in by_pattern and raw.get("l2_bytes"):
        copies = fitted is not None and fitted.partitions == 2
        entries |= _fill(
            raw, by_pattern["fill"], by_pattern.get("sum", {}), FILLED if copies else 1.0
        )
    return entries


def _fill(
    raw: Mapping[str, Any], fill: Mapping[str, Any], once: Mapping[str, Any], filled: float
) -> dict[str, Entry]:
    """What a long fill, which reads nothing, reads, and what it leaves dirty in the L2. `once`: a sum, which stores
    nothing, over as much: what it writes are dirty lines of other programs, which lay in the L2 at its start, as at
    that of the fill. `filled`: what a long fill leaves dirty, over what the sets may hold."""
    size, entries = f"{fill['footprint_bytes'] >> 20} MiB", {}
    if fill.get("hbm_read") is not None:
        fetched = int(digits(fill["hbm_read"], 2))
        entries["launch_fetch_bytes"] = Entry(fetched, _said(raw, f"read during a fill of {size}"))
    if fill.get("hbm_write") is not None:
        foreign = once.get("hbm_write") or 0
        stays = fill["footprint_bytes"] - (fill["hbm_write"] - foreign)
        share = min(1.0, max(0.0, stays / raw["l2_bytes"] / filled))
        remark = f"{stays / MIB:.2f} MiB of a fill of {size} stay behind, {foreign / 1e6:.1f} MB of others are driven out"
        entries["l2_dirty_fraction"] = Entry(digits(share, 3), _said(raw, remark))
    return entries


def _fitted(raw: Mapping[str, Any], f: L2Fit) -> dict[str, Entry]:
    off = f"{100 * f.error:.1f} % of re-reads off"
    source = _said(raw, f"fitted to miss counters of {f.points} scans on the cliffs, {off}")
    where = _said(raw, "where scans by all SMs of the same data stop hitting")
    return {
        "l2_partitions": Entry(f.partitions, where),
        "l2_ways": Entry(f.ways, source, "fitted"),
        "l2_effective_capacity_fraction": Entry(f.capacity_fraction, source, "fitted"),
    }


def _enough(raw: Mapping[str, Any]) -> HardwareProfile:
    """A profile that holds what a replay of scans asks for. Raises InputError where a number of them is missing or
    out of range."""
    entries = figures(raw)
    if measured := entries.get("dram_bandwidth_measured_bytes_per_s"):
        entries["dram_bandwidth_bytes_per_s"] = measured
    header = {"schema": 1, "name": "raw", "compute_capability": raw["compute_capability"] or "9.0"}
    fitting = {name: asdict(entry) for name, entry in in_range(entries, []).items()}
    return HardwareProfile.from_dict(header | fitting, "the raw file")

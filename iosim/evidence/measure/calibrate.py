"""From what the microbenchmarks found to quantities of a hardware profile: pure functions of raw numbers, no GPU.

`derive` gives the measured entries, each with the sentence that says how it came about. The raw format is that of
`microbench.measure`, with `counters` (iosim.evidence.measure.counters) where a profiler was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iosim.base.errors import InputError
from iosim.evidence.cuda.microbench import MIB, SCHEMA
from iosim.evidence.measure.fit import L2Fit, fit, points_of
from iosim.hardware.profile import HardwareProfile
from iosim.readers.replay.scan import PATTERNS

NEEDED = ("gpu", "compute_capability", "date", "sms", "l2_bytes", "memory_bytes", "clock_hz",
          "hbm_read_bandwidth_bytes_per_s", "l2_curves")  # fmt: skip
TEXTS = ("gpu", "compute_capability", "date", "driver_cuda", "compiler", "no_counters")
TABLES = ("l2_curves", "counters")
COUNTED = ("hbm_read", "hbm_write")
LARGEST = 1e20
WGMMA_CC = 90
"""From here on other instructions than mma.sync reach the tensor cores' full rate."""
FILLED = 23 / 24
"""Of the most dirty lines that sets may hold, what a long fill leaves: of three lines that come two are dirty, one is a
copy, and each makes room before it comes, so that 8, 8 and 7 of 8 are."""


@dataclass(frozen=True)
class Entry:
    """One quantity of a profile, in its unit there."""

    value: Any
    source: str
    kind: str = "measured"


def check_raw(raw: Mapping[str, Any], origin: str) -> None:
    """Refuses what is no raw file of this version.

    Raises:
        InputError: another schema, or a number is missing.
    """
    if raw.get("schema") != SCHEMA:
        raise InputError(
            f"{origin} has schema {raw.get('schema')}; accepted: {SCHEMA}, as iosim calibrate --raw writes"
        )
    missing = [name for name in NEEDED if name not in raw]
    if missing:
        raise InputError(f"{origin} lacks {', '.join(missing)}; accepted: what iosim calibrate --raw writes")
    wrong = next(_wrong(raw), None)
    if wrong is not None:
        raise InputError(f"{origin}: {wrong} is not what iosim calibrate --raw writes there")


def _wrong(raw: Mapping[str, Any]) -> Iterator[str]:
    """Names of entries that do not hold what they should."""
    yield from (name for name in TEXTS if not isinstance(raw.get(name, ""), str))
    if not re.fullmatch(r"\d{1,2}\.\d", str(raw["compute_capability"])):
        yield "compute_capability"
    for name, value in raw.items():
        optional = name not in NEEDED and value is None
        if name not in (*TEXTS, *TABLES, "schema") and not optional and not _positive(value):
            yield name
    private = raw["l2_curves"].get("private") if isinstance(raw["l2_curves"], Mapping) else None
    if not isinstance(private, list) or not private or not all(_point(point) for point in private):
        yield "l2_curves"
    counters = raw.get("counters")
    if counters and not (isinstance(counters, Mapping) and isinstance(counters.get("rows"), list)):
        yield "counters"
    elif counters and not all(_counted(row) for row in counters["rows"]):
        yield "a row of counters"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(_positive(number) for number in point)


def _counted(row: Any) -> bool:
    """Whether a row of the counters says what was scanned, and how much was read and written."""
    if not isinstance(row, Mapping) or not isinstance(row.get("pattern"), str):
        return False
    sizes = [row.get(name) for name in ("footprint_bytes", "passes", "ctas")]
    if not all(isinstance(size, int) and _positive(size) for size in sizes):
        return False
    if row["pattern"] in PATTERNS and row["passes"] < 2:
        return False
    return all(name in row and (row[name] is None or _number(row[name])) for name in COUNTED)


def derive(raw: Mapping[str, Any], tried: Callable[[], None] = lambda: None) -> dict[str, Entry]:
    """What was measured, as entries of a profile; tables by dtype as `table.dtype`.

    Args:
        raw: a run of the microbenchmarks, schema 2; `counters` is absent or None where no profiler was at hand.
        tried: as `fit` calls it.

    Raises:
        InputError: the raw numbers lack something.
    """
    check_raw(raw, "the raw file")
    return _driver(raw) | _rates(raw) | _latencies(raw) | tensor(raw) | _from_counters(raw, tried)


def _said(raw: Mapping[str, Any], what: str) -> str:
    return f"measured by iosim calibrate on {raw['gpu']}, {raw['date']}: {what}"


def _driver(raw: Mapping[str, Any]) -> dict[str, Entry]:
    told = f"the driver, asked by iosim calibrate on {raw['gpu']}, {raw['date']}"
    return {
        "sm_count": Entry(int(raw["sms"]), told),
        "l2_bytes": Entry(int(raw["l2_bytes"]), told),
        "boost_clock_hz": Entry(float(raw["clock_hz"]), told),
    }


def digits(value: float, count: int = 4) -> float:
    """Rounded to so many significant digits."""
    return float(f"{value:.{count}g}")


def _rates(raw: Mapping[str, Any]) -> dict[str, Entry]:
    private = sorted(raw["l2_curves"]["private"])
    best = max(rate for _, rate in private)
    entries = {
        "dram_bandwidth_measured_bytes_per_s": Entry(
            digits(raw["hbm_read_bandwidth_bytes_per_s"]),
            _said(raw, "best of 3 reads of far more than the L2"),
        ),
        "l2_read_bandwidth_measured_bytes_per_s": Entry(
            digits(best), _said(raw, "private scans, the best footprint of the curve")
        ),
        "l2_read_bandwidth_by_footprint_bytes_per_s": Entry(
            [[int(size), digits(rate)] for size, rate in private], _said(raw, "private scans, each SM its own part")
        ),
    }
    if raw.get("exp_clock_hz") and raw.get("exp_per_s"):
        per_clock = raw["exp_per_s"] / (raw["exp_clock_hz"] * raw["sms"])
        entries["exp_per_clock_per_sm"] = Entry(digits(per_clock, 3), _said(raw, "ex2 instructions on all SMs"))
    return entries


def _latencies(raw: Mapping[str, Any]) -> dict[str, Entry]:
    entries = {}
    for key, name, what in (
        ("l2", "l2_latency_near_cycles", "one thread's chain of loads over an eighth of the L2, read before"),
        (
            "hbm",
            "dram_latency_cycles",
            "one thread's chain of loads over far more than the L2, TLB misses included",
        ),
    ):
        if raw.get(f"{key}_latency_clock_hz") and raw.get(f"{key}_latency_s"):
            cycles = raw[f"{key}_latency_s"] * raw[f"{key}_latency_clock_hz"]
            entries[name] = Entry(digits(cycles, 3), _said(raw, what))
    return entries


def tensor(raw: Mapping[str, Any]) -> dict[str, Entry]:
    """The rate that products reach, where mma.sync is what reaches it."""
    if _capability(raw) >= WGMMA_CC or "tensor_fp16_mma_flop_per_s" not in raw:
        return {}
    rate, source = digits(raw["tensor_fp16_mma_flop_per_s"]), _said(raw, "mma.sync m16n8k16 on all SMs, fp32 sums")
    entries = {"tensor_flops_achieved_per_s.fp16": Entry(rate, source)}
    if _capability(raw) >= 80:
        entries["tensor_flops_achieved_per_s.bf16"] = Entry(
            rate, "the fp16 figure: both have the same rate", "inferred"
        )
    if raw.get("sustained_clock_hz"):
        clock = digits(min(raw["sustained_clock_hz"], raw["clock_hz"]))
        entries["sustained_clock_hz"] = Entry(clock, _said(raw, "after a second of mma.sync on all SMs"))
    return entries


def _capability(raw: Mapping[str, Any]) -> int:
    major, _, minor = str(raw["compute_capability"]).partition(".")
    return 10 * int(major) + int(minor)


def _from_counters(raw: Mapping[str, Any], tried: Callable[[], None]) -> dict[str, Entry]:
    """Constants of the L2's model; none where no profiler counted."""
    counters = raw.get("counters")
    if not counters:
        return {}
    rows = counters["rows"]
    fitted = fit(_enough(raw), points_of(rows), tried)
    entries = _fitted(raw, fitted) if fitted is not None else {}
    by_pattern = {row["pattern"]: row for row in rows}
    if "fill" in by_pattern:
        copies = fitted is not None and fitted.partitions == 2
        entries |= _fill(raw, by_pattern["fill"], by_pattern.get("sum", {}), FILLED if copies else 1.0)
    return entries


def _fill(raw: Mapping[str, Any], fill: Mapping[str, Any], once: Mapping[str, Any], filled: float) -> dict[str, Entry]:
    """What a long fill, which reads nothing, reads, and what it leaves dirty in the L2.

    Args:
        once: a sum, which stores nothing, over as much: what it writes are dirty lines of other programs, which lay in
            the L2 at its start, as at that of the fill.
        filled: what a long fill leaves dirty, over what the sets may hold.
    """
    size, entries = f"{fill['footprint_bytes'] >> 20} MiB", {}
    if fill["hbm_read"] is not None:
        fetched = int(digits(fill["hbm_read"], 2))
        entries["launch_fetch_bytes"] = Entry(fetched, _said(raw, f"read during a fill of {size}"))
    if fill["hbm_write"] is not None:
        foreign = once.get("hbm_write") or 0
        stays = fill["footprint_bytes"] - (fill["hbm_write"] - foreign)
        share = min(1.0, max(0.0, stays / raw["l2_bytes"] / filled))
        told = f"{stays / MIB:.2f} MiB of a fill of {size} stay behind, {foreign / 1e6:.1f} MB of others are driven out"
        entries["l2_dirty_fraction"] = Entry(digits(share, 3), _said(raw, told))
    return entries


def _fitted(raw: Mapping[str, Any], f: L2Fit) -> dict[str, Entry]:
    told = _said(
        raw, f"fitted to miss counters of {f.points} scans on the cliffs, {100 * f.error:.1f} % of re-reads off"
    )
    where = _said(raw, "where scans by all SMs of the same data stop hitting")
    return {
        "l2_partitions": Entry(f.partitions, where),
        "l2_ways": Entry(f.ways, told, "fitted"),
        "l2_effective_capacity_fraction": Entry(f.capacity_fraction, told, "fitted"),
    }


def _enough(raw: Mapping[str, Any]) -> HardwareProfile:
    """A profile that holds what a replay of scans asks for."""
    entries = _driver(raw) | _rates(raw) | _latencies(raw)
    entries["dram_bandwidth_bytes_per_s"] = entries["dram_bandwidth_measured_bytes_per_s"]
    header = {"schema": 1, "name": "raw", "compute_capability": str(raw["compute_capability"])}
    return HardwareProfile.from_dict(header | {name: plain(entry) for name, entry in entries.items()}, "the raw file")


def plain(entry: Entry) -> dict[str, Any]:
    """An entry as a profile file has it."""
    return {"value": entry.value, "kind": entry.kind, "source": entry.source}

"""Miss counters of the microbenchmarks' scans and fill under the profiler: what times cannot show of an L2.

Scans of a footprint by all SMs (`shared_scan`: each reads all of it; `private_scan`: each its own part) for the
capacity curve; one long scan and one long fill for what a launch moves beside its tensors and what stays dirty.
"""

from __future__ import annotations

from typing import Any

from iosim.base.errors import InputError
from iosim.evidence.cuda.microbench import MIB, far_bytes
from iosim.evidence.cuda.ncu import Profiled, parse_raw
from iosim.evidence.measure.collect import profiler_options, run_profiled
from iosim.evidence.measure.machine import profiler_version

PASSES = 4
PARTS = (
    4,
    8,
    11,
    12,
    13,
    14,
    14.5,
    15,
    15.5,
    16,
    16.5,
    17,
    18,
    19,
    20,
    21,
    22,
    23,
    24,
    25,
    26,
    27,
    28,
    29,
    30,
    31,
    32,
    33,
    34,
    36,
    40,
    48,
)
"""Footprints of the scans, in 32nds of the L2: dense where the cliff is with two partitions, and with one."""
COUNTED = ("hbm_read", "hbm_write", "l2_read", "l2_fabric", "seconds")


def scan_plan(l2_bytes: int) -> list[dict[str, Any]]:
    sizes = sorted({size for part in PARTS if (size := int(l2_bytes * part / 32) // MIB * MIB)})
    far = far_bytes(l2_bytes)
    scans = [("shared_scan", "micro_scan", size, PASSES) for size in sizes]
    scans += [("private_scan", "micro_scan", size, PASSES) for size in sizes]
    scans += [("sum", "micro_scan", far, 1), ("fill", "micro_fill", far, 1)]
    names = ("pattern", "kernel", "bytes", "passes")
    return [
        {**dict(zip(names, values, strict=True)), "shared": values[0] == "shared_scan"}
        for values in scans
    ]


def count(l2_bytes: int) -> dict[str, Any]:
    """Runs the plan under the profiler, from a flushed L2; gives `{"profiler", "rows"}`. Raises InputError where
    there is no profiler, it refuses, or its report lacks launches."""
    plan = scan_plan(l2_bytes)
    options = [*profiler_options(False, COUNTED), "--kernel-name", "regex:micro_(scan|fill)"]
    profiled, _ = parse_raw(run_profiled("scans", plan, options).report())
    return {"profiler": profiler_version(), "passes": PASSES, "rows": rows_of(plan, profiled)}


def rows_of(plan: list[dict[str, Any]], profiled: list[Profiled]) -> list[dict[str, Any]]:
    """The plan's launches with what was counted; counters that the GPU lacks are None. Raises InputError where the
    report holds other launches."""
    if [p["kernel"] for p in plan] != [launch.kernel for launch in profiled]:
        raise InputError(
            f"the profiler's report has {len(profiled)} launches of the {len(plan)} that were made"
        )
    rows = []
    for p, launch in zip(plan, profiled, strict=True):
        counted = {name: launch.column(name) for name in COUNTED}
        ctas = launch.grid[0] if launch.grid else None
        whole = {n: v if v is None or n == "seconds" else round(v) for n, v in counted.items()}
        row = {
            "pattern": p["pattern"],
            "footprint_bytes": p["bytes"],
            "passes": p["passes"],
            "ctas": ctas,
        }
        rows.append(row | whole)
    return rows

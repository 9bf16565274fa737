"""The scans that a profiler is asked to count, and the rows made of its report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.evidence.measure.counters import COUNTED, PARTS, PASSES, rows_of, scan_plan

MIB = 1 << 20


def test_footprints_are_parts_of_the_l2_in_whole_mib() -> None:
    plan = scan_plan(64 * MIB)  # a 32nd is 2 MiB
    by_pattern: dict[str, list[int]] = {}
    for row in plan:
        by_pattern.setdefault(row["pattern"], []).append(row["bytes"])
    assert list(by_pattern) == ["shared_scan", "private_scan", "sum", "fill"]
    sizes = by_pattern["shared_scan"]
    assert sizes == by_pattern["private_scan"] == [int(2 * part) * MIB for part in PARTS]
    assert {8 * MIB, 29 * MIB, 64 * MIB, 96 * MIB} <= {*sizes}
    assert by_pattern["sum"] == by_pattern["fill"]
    assert by_pattern["sum"][0] > 96 * MIB
    # of a small L2 several parts are the same whole number of MiB
    assert [r["bytes"] // MIB for r in scan_plan(4 * MIB) if r["pattern"] == "shared_scan"] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_scans_go_over_their_footprint_several_times_and_the_rest_once() -> None:
    for row in scan_plan(64 * MIB):
        scan = row["pattern"].endswith("scan")
        assert row["passes"] == (PASSES if scan else 1)
        assert row["shared"] == (row["pattern"] == "shared_scan")
        assert row["kernel"] == ("micro_fill" if row["pattern"] == "fill" else "micro_scan")


def launch(kernel: str, grid: Any = (132, 1, 1), **columns: float | None) -> Any:
    return SimpleNamespace(kernel=kernel, grid=grid, column=columns.get)


PLAN = [
    {"pattern": "shared_scan", "kernel": "micro_scan", "bytes": 100, "passes": 4},
    {"pattern": "fill", "kernel": "micro_fill", "bytes": 900, "passes": 1},
]


def test_rows_of_a_report() -> None:
    scan = launch("micro_scan", hbm_read=100.6, hbm_write=0.4, l2_read=400.0, seconds=1.5e-6)
    scan, fill = rows_of(PLAN, [scan, launch("micro_fill", None, hbm_write=7.0)])
    assert scan == {
        "pattern": "shared_scan",
        "footprint_bytes": 100,
        "passes": 4,
        "ctas": 132,
        "hbm_read": 101,
        "hbm_write": 0,
        "l2_read": 400,
        "l2_fabric": None,
        "seconds": 1.5e-6,
    }
    assert (fill["ctas"], fill["hbm_write"], fill["hbm_read"]) == (None, 7, None)
    assert {*COUNTED} < scan.keys()


def test_a_report_of_other_launches_is_refused() -> None:
    for launches in ([launch("micro_scan")], [launch("micro_fill"), launch("micro_scan")]):
        with pytest.raises(InputError, match=f"{len(launches)} .* 2 "):
            rows_of(PLAN, launches)

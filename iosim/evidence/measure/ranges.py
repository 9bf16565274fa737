"""Reads the profiler's report of a range: one row for all launches between cudaProfilerStart and cudaProfilerStop.

A range is no kernel: its row has no grid, and its name is what the profiler calls it. So only the counters are looked
at, by name and unit; what else a row holds does not matter.
"""

from __future__ import annotations

import csv
import io

from iosim.base.errors import InputError
from iosim.evidence.cuda.ncu import METRICS, unit_scale

SHOWN = 240
"""Characters of a report that a complaint quotes."""


def parse_range(text: str, wanted: tuple[str, ...]) -> dict[str, float]:
    """The columns `wanted` of the one range in a raw page in CSV, in bytes and seconds.

    Raises:
        InputError: no table, not one range, or a counter that is not there or no number; the message quotes the report.
    """
    names, units, rows = _table(text)
    lacking = [name for name in wanted if METRICS[name][0] not in names]
    if lacking:
        raise _complaint(f"it lacks {', '.join(METRICS[name][0] for name in lacking)}; it has {', '.join(names)}", "")
    first = names.index(METRICS[wanted[0]][0])
    ranges = [row for row in rows if len(row) == len(names) and _number(row[first]) is not None]
    if len(ranges) != 1:
        raise _complaint(f"it has {len(ranges)} rows with {METRICS[wanted[0]][0]}, not the one of a range", text)
    values = {}
    for name in wanted:
        metric, factor = METRICS[name]
        at = names.index(metric)
        value = _number(ranges[0][at])
        if value is None:
            raise _complaint(f"{metric} is '{ranges[0][at][:40]}', no number", text)
        values[name] = value * unit_scale(units[at]) * factor
    return values


def _table(text: str) -> tuple[list[str], list[str], list[list[str]]]:
    """The header, the row of units and the others."""
    lines = text.splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if line.startswith(('"ID"', "ID,"))), None)
    if start is None:
        raise _complaint('it holds no table that begins with "ID"', text)
    rows = [row for row in csv.reader(io.StringIO("".join(lines[start:]))) if row]
    if len(rows) < 2 or len(rows[1]) != len(rows[0]) or rows[1][0].strip():
        raise _complaint("its table has no row of units", text)
    return rows[0], rows[1], rows[2:]


def _number(cell: str) -> float | None:
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    return value if 0 <= value < 1e30 else None


def _complaint(what: str, text: str) -> InputError:
    shown = f"; it begins: {' '.join(text.split())[:SHOWN]}" if text else ""
    return InputError(f"the profiler's report of the range is not understood: {what}{shown}")

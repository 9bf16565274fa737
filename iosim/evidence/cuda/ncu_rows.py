"""Reads Nsight Compute's CSV of a row a metric: what `ncu --csv` prints without `--page raw`, and most scripts keep.

A row names its launch (an ID, the kernel, in later versions its grid and block) and holds one metric with its unit.
Versions differ in columns and in what metrics are called, so that columns go by name, and what is missing stays
unknown: a launch without a grid is matched by what is said of it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, field
from iosim.evidence.cuda.ncu import (
    KNOWN,
    RANGE_COLUMN,
    Profiled,
    Sizes,
    is_there,
    named_metrics,
    parse_raw,
    sizes_of,
    unit_scale,
    value_of,
)

METRIC, UNIT, VALUE, KERNEL = "Metric Name", "Metric Unit", "Metric Value", "Kernel Name"
OF_LAUNCH = ("ID", "Process ID", KERNEL, "Context", "Stream", "Block Size", "Grid Size")
"""Columns that tell launches apart, those of them that a table has."""
DIMENSIONS = {"Grid Size": "launch__grid_dim_{}", "Block Size": "launch__block_dim_{}"}
"""A column of sizes, and the metrics that hold them where there is none."""
TOTALS = {"Block Size": ("launch__block_size", "Block Size")}
"""Metrics that hold the product of the sizes alone. A grid's says nothing of its axes."""
SHARED_PARTS = ("Driver", "Dynamic", "Static")
"""Shared memory of a block, by who asks for it, as the page of details has it."""


@dataclass
class _Launch:
    """Rows of one launch: the cells that they share, and the metrics so far by section and name."""

    cells: Mapping[str, str]
    metrics: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)


def parse(text: str) -> tuple[list[Profiled], list[str]]:
    """Launches of a CSV of Nsight Compute, a row a launch or a row a metric, and notes on what was left out. Raises
    InputError where it is neither, or a unit or a number is not understood."""
    lines = text.splitlines(keepends=True)
    return (
        parse_rows(lines)
        if any(METRIC in line and VALUE in line for line in lines)
        else parse_raw(text)
    )


def parse_rows(lines: Sequence[str]) -> tuple[list[Profiled], list[str]]:
    """Launches in the order in which they begin.

    Rows of one launch need not follow one another. A new launch begins with another ID, process, kernel or size; with
    a metric that the launch has already in the same section, as in tables without an ID; and with a repeated header,
    as where several runs were written into one file.
    """
    launches: list[_Launch] = []
    current: dict[tuple[str, ...], _Launch] = {}
    notes: list[str] = []
    for number, cells in enumerate(_cells(lines), start=1):
        # a header again: another run's launches begin, and may have the same numbers
        if cells is None:
            current = {}
            continue
        if len(cells) == 1:
            notes.append(f"row {number} breaks off and is left out")
            continue
        if not cells[METRIC]:  # what a rule of the profiler says
            continue
        key = tuple(cells.get(name, "") for name in OF_LAUNCH)
        metric = cells.get("Section Name", ""), cells[METRIC]
        # the same metric of the same section twice: another launch of the kernel, in a table without an ID
        if key not in current or metric in current[key].metrics:
            current[key] = _Launch(cells)
            launches.append(current[key])
        current[key].metrics[metric] = cells.get(UNIT, ""), cells[VALUE]
    return [_profiled(launch) for launch in launches], notes


def _cells(lines: Sequence[str]) -> Iterator[dict[str, str] | None]:
    """Cells of each row by column; None at a header, one cell alone of a row that breaks off. Lines that the profiler
    prints around its table are skipped."""
    names: list[str] = []
    # what a program prints between the rows has mostly neither quotes nor commas
    table = (line for line in lines if '"' in line or "," in line)
    try:
        for row in csv.reader(table, skipinitialspace=True):
            if METRIC in row and VALUE in row:
                names = row
                if KERNEL not in names:
                    raise InputError(
                        f"the profiler's table has no column '{KERNEL}'; accepted: as ncu --csv writes it"
                    )
                yield None
            elif not names or row[0].startswith("=="):
                continue
            elif len(row) < len(names):
                yield {names[0]: row[0]}
            else:
                yield {name: cell.strip() for name, cell in zip(names, row, strict=False)}
    except csv.Error as error:
        raise InputError(
            f"the profiler's table is no CSV: {error}; accepted: as ncu --csv writes it"
        ) from None


def _profiled(launch: _Launch) -> Profiled:
    values: dict[str, float] = {}
    for (_, name), (unit, cell) in launch.metrics.items():
        if name in KNOWN and is_there(cell):
            values[name] = value_of(name, cell) * unit_scale(unit)
    ranges = tuple(
        cell for name, cell in launch.cells.items() if RANGE_COLUMN.search(name) and cell
    )
    metrics = named_metrics(values) | _shared(launch)
    return Profiled(
        launch.cells[KERNEL],
        _sizes(launch, "Grid Size"),
        _sizes(launch, "Block Size"),
        metrics,
        ranges,
    )


def _sizes(launch: _Launch, column: str) -> Sizes:
    """The three sizes of a grid or block: of its column, or of metrics; None where neither tells."""
    if launch.cells.get(column):
        return sizes_of(launch.cells[column])
    by_name = {name: cell for (_, name), (_, cell) in launch.metrics.items()}
    # older versions have no columns of sizes: they stand among the metrics of a launch
    axes = [by_name.get(DIMENSIONS[column].format(axis)) for axis in "xyz"]
    if all(axes):
        return sizes_of(",".join(map(_whole, axes)))
    total = next((by_name[name] for name in TOTALS.get(column, ()) if name in by_name), None)
    return None if total is None else (int(_whole(total)), 1, 1)


def _whole(cell: Any) -> str:
    return str(round(value_of("size", str(cell))))


def _shared(launch: _Launch) -> dict[str, float]:
    """Shared memory of a block as the sum of its parts, where the page of details has all of them."""
    names = [f"{who} Shared Memory Per Block" for who in SHARED_PARTS]
    parts = [cell for (_, name), cell in launch.metrics.items() if name in names]
    # a part that is missing would make the sum too small
    if len(parts) < len(names):
        return {}
    return {
        "launch__shared_mem_per_block": sum(
            value_of("size", cell) * unit_scale(unit) for unit, cell in parts
        )
    }

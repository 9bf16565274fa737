"""Reads Nsight Compute: the raw page as CSV, by metric name and unit row, into bytes, seconds and hertz.

Column positions mean nothing here: a report has the metrics that were asked for, in an order of its own, each scaled to
a unit that the second row names (`Mbyte` in one report, `Gbyte` in the next). Values carry thousands separators.
"""

from __future__ import annotations

import csv
import functools
import io
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.evidence.columns import METRICS, OTHER_NAMES

SHOWN = 240
"""Characters of a report that a complaint quotes."""

_PREFIX = {"": 1, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNIT = re.compile(r"^([numkKMGT]?)(byte|s|second|sec|[hH]z)$")
_TIMES = ("s", "second", "sec")
KNOWN = frozenset({*OTHER_NAMES, *(metric for metric, _ in METRICS.values())})
"""Metrics that are read, by all their names."""
RANGE_COLUMN = re.compile(r"(Push/Pop|Start/Stop)_Range:")
THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_COUNTS = {
    "",
    "%",
    "sector",
    "inst",
    "register",
    "cycle",
    "warp",
    "block",
    "thread",
    "SM",
    "pass",
    "cluster",
}


Sizes = tuple[int, int, int] | None


@dataclass(frozen=True)
class Profiled:
    """One profiled kernel launch. `metrics` holds those that the report has a value for, in base units; `ranges`, the
    texts of the NVTX ranges around it, the innermost last. The sizes of a grid or block that the report does not tell
    are None."""

    kernel: str
    grid: Sizes
    block: Sizes
    metrics: dict[str, float]
    ranges: tuple[str, ...] = ()

    def column(self, name: str) -> float | None:
        """The value of a column of the tidy table; None where the report lacks its metric."""
        metric, factor = METRICS[name]
        value = self.metrics.get(metric)
        return None if value is None else value * factor


def unit_scale(unit: str) -> float:
    """What one of `unit` is in base units: `Kbyte` 1000, `ms` 0.001, `Kbyte/block` 1000, `cycle/nsecond` 1e9. Raises
    InputError where the unit is not known: guessing one would shift a number by powers of ten."""
    # "Kbyte/block" counts a launch, "cycle/nsecond" a rate: only a time below the stroke changes the scale
    name, _, per = (part.strip() for part in unit.partition("/"))
    time = _UNIT.match(per)
    if time is not None and time.group(2) in _TIMES:
        return unit_scale(name) / _PREFIX[time.group(1)]
    if name in _COUNTS:
        return 1.0
    match = _UNIT.match(name)
    if match is None:
        # some versions write GByte and Mbyte: the prefix keeps its case, since m is milli and M is mega
        match = _UNIT.match(name[:1] + name[1:].lower())
    if match is None:
        accepted = "bytes, seconds and hertz with a prefix, and counts"
        raise InputError(f"the profiler's unit '{unit}' is not known; accepted: {accepted}")
    prefix = match.group(1)
    return _PREFIX["k" if prefix == "K" else prefix]


def _count(cell: str) -> float | None:
    """A number with or without commas between thousands. NB: a comma elsewhere is a decimal one of another language,
    and no number here: without it, the value would be a hundred times as large."""
    if "," in cell and not THOUSANDS.fullmatch(cell):
        return None
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    return value if 0 <= value < 1e30 else None


def is_there(cell: str) -> bool:
    """True where a cell holds a value at all."""
    return cell.lower() not in ("", "n/a", "(!) n/a")


def named_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Metrics by the names that this package gives them, of values by any of their names; a metric's own goes first."""
    others = {n: (values[m] * factor) for m, (n, factor) in OTHER_NAMES.items() if m in values}
    return {**others, **{name: value for name, value in values.items() if name not in OTHER_NAMES}}


def value_of(name: str, cell: str) -> float:
    value = _count(cell)
    if value is None:
        raise InputError(
            f"the profiler's {name} '{cell[:40]}' is no count; accepted: numbers from 0 on"
        )
    return value


def sizes_of(text: str) -> tuple[int, int, int]:
    numbers = [int(number) for number in re.findall(r"\d{1,10}", text.replace(" ", "")[:60])]
    if len(numbers) != 3:
        raise InputError(f"the profiler's size '{text[:60]}' is not three numbers")
    return numbers[0], numbers[1], numbers[2]


def raw_page(text: str, needed: Sequence[str] = ()) -> tuple[list[str], list[str], list[list[str]]]:
    """The header of a raw page in CSV, its row of units, and the others. Lines that the profiler prints before the
    table are skipped. Raises InputError where there is no table, no column that is needed, or no row of units."""
    lines = text.splitlines(keepends=True)
    # ==PROF== lines and the profiled program's own output come before the table
    start = next((i for i, line in enumerate(lines) if line.startswith(('"ID"', "ID,"))), None)
    if start is None:
        raise InputError(
            "the profiler's output holds no table of launches; make it with --csv --page raw"
        )
    try:
        names, *rows = [row for row in csv.reader(io.StringIO("".join(lines[start:]))) if row]
    except csv.Error as error:
        raise InputError(
            f"the profiler's table is no CSV: {error}; make it with --csv --page raw"
        ) from None
    for name in needed:
        if name not in names:
            raise InputError(
                f"the profiler's table has no column '{name}'; it breaks off or is not a raw page"
            )
    # the row of units has an empty ID
    if not rows or len(rows[0]) != len(names) or rows[0][0].strip():
        raise InputError(
            "the profiler's table has no row of units; it breaks off or is no raw page (--csv --page raw)"
        )
    return names, rows[0], rows[1:]


def parse_raw(text: str) -> tuple[list[Profiled], list[str]]:
    """Launches of a raw page in CSV (`ncu --import FILE --csv --page raw`), and notes on what was left out: a last row
    that breaks off. Raises InputError where there is no table, or no unit row, or a unit is not known."""
    names, units, rows = raw_page(text, ("Kernel Name", "Grid Size", "Block Size"))
    scales = {
        # units of metrics that are not read may be unknown ones
        name: unit_scale(unit)
        for name, unit in zip(names, units, strict=True)
        if name in KNOWN
    }
    launches: list[Profiled] = []
    notes: list[str] = []
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            notes.append(f"row {number} has {len(row)} of {len(names)} columns and is left out")
            continue
        # an interrupted write may cut the last cell in the middle of its number
        if number == len(rows) and not text.rstrip().endswith('"'):
            notes.append(f"row {number} breaks off in its last column and is left out")
            continue
        cells = dict(zip(names, row, strict=True))
        filled = {name: scale for name, scale in scales.items() if is_there(cells[name])}
        metrics = named_metrics(
            {name: value_of(name, cells[name]) * scale for name, scale in filled.items()}
        )
        grid, block = sizes_of(cells["Grid Size"]), sizes_of(cells["Block Size"])
        ranges = tuple(cells[name] for name in names if RANGE_COLUMN.search(name) and cells[name])
        launches.append(Profiled(cells["Kernel Name"], grid, block, metrics, ranges))
    return launches, notes


def parse_range(text: str, wanted: tuple[str, ...]) -> dict[str, float]:
    """The columns `wanted` of the one range in a raw page in CSV, in bytes and seconds. A range is no kernel: its row
    has no grid, and its name is what the profiler calls it. So only the counters are looked at; what else a row holds
    does not matter. Raises InputError where there is no table, not one range, or a counter is not there or no number
    (the message quotes the report)."""

    def refused(reason: str) -> InputError:
        excerpt = f"; it begins: {' '.join(text.split())[:SHOWN]}" if text else ""
        return InputError(
            f"the profiler's report of the range is not understood: {reason}{excerpt}"
        )

    try:
        names, units, rows = raw_page(text)
    except InputError as error:
        raise refused(str(error)) from None
    metrics = [METRICS[name][0] for name in wanted]
    if lacking := [metric for metric in metrics if metric not in names]:
        raise refused(f"it lacks {', '.join(lacking)}; it has {', '.join(names)}")
    places = list(map(names.index, metrics))
    # the range's own row is the one whose first counter is a number
    ranges = [row for row in rows if len(row) == len(names) and _count(row[places[0]]) is not None]
    if len(ranges) != 1:
        raise refused(f"it has {len(ranges)} rows with {metrics[0]}, not the one of a range")
    values = {}
    for name, at in zip(wanted, places, strict=True):
        if (value := _count(ranges[0][at])) is None:
            raise refused(f"{names[at]} is '{ranges[0][at][:40]}', no number")
        values[name] = value * unit_scale(units[at]) * METRICS[name][1]
    return values


def profiled_of(facts: Mapping[str, Any]) -> Profiled:
    """A launch as the profiler's Python interface gives it, and as the rule hands it on: `kernel`, `grid`, `block`,
    `ranges`, and `metrics`, name -> (value, unit). Raises InputError where something is missing or of another type,
    or a unit is not known."""
    try:
        grid, block = (
            sizes_of(",".join(str(int(n)) for n in facts[name])) for name in ("grid", "block")
        )
        metrics = {
            name: value_of(name, str(value)) * unit_scale(unit)
            for name, (value, unit) in facts.get("metrics", {}).items()
            if name in KNOWN
        }
        return Profiled(
            str(facts["kernel"]),
            grid,
            block,
            named_metrics(metrics),
            tuple(map(str, facts.get("ranges", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        why = f"{error!r}; accepted: kernel, grid, block, ranges and metrics with their units"
        raise InputError(
            f"a launch of the profiler lacks what is needed or has another form: {why}"
        ) from None


def find_ncu() -> Path:
    path = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not Path(path).exists():
        raise InputError("no profiler: ncu is neither in the PATH nor in /usr/local/cuda/bin")
    return Path(path)


def import_report(path: Path) -> str:
    """The raw page of a `.ncu-rep` file in CSV, in base units (which keeps every digit). Raises InputError where
    there is no ncu, or it cannot read the file."""
    command = [
        str(find_ncu()),
        "--import",
        str(path),
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        messages = (run.stdout + run.stderr).strip().splitlines()
        raise InputError(
            f"ncu cannot import '{path}': {messages[-1] if messages else f'exit code {run.returncode}'}"
        )
    return run.stdout


def refusal(output: str) -> str | None:
    """Why the profiler did not measure, in one line, from what it printed; None where it found no fault."""
    # by far the most frequent refusal, and the one that a user can lift
    if "ERR_NVGPUCTRPERM" in output:
        accepted = "as root, or with the driver's option NVreg_RestrictProfilingToAdminUsers=0"
        return (
            f"the profiler may not read the GPU's counters (ERR_NVGPUCTRPERM); accepted: {accepted}"
        )
    if "ERR_NVGPUCTR" in output or "LibraryNotLoaded" in output:
        messages = (line for line in output.splitlines() if "ERR" in line or "Library" in line)
        return next(messages).removeprefix("==ERROR== ")
    return None


@functools.cache
def available_metrics() -> frozenset[str] | None:
    """Counters that the profiler has for this machine's GPU, without their `.sum`; None where it does not say."""
    run = subprocess.run(
        [str(find_ncu()), "--query-metrics"], capture_output=True, text=True, check=False
    )
    return parse_query(run.stdout) if run.returncode == 0 else None


def parse_query(text: str) -> frozenset[str] | None:
    names = re.findall(r"^([a-z]\w*__\w+)\s", text, flags=re.MULTILINE)
    # every GPU has this counter: without it the output is no list of counters
    if "gpu__time_duration" not in names:
        return None
    return frozenset(names) | {
        metric for metric, _ in METRICS.values() if metric.startswith("launch__")
    }

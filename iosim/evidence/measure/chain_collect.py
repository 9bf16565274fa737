"""Chains under the profiler: every call checked and its launches listed, then the whole call as one range.

A range runs through one L2, flushed before its first launch: a process a call, which the profiler starts again for
every pass (`--replay-mode app-range`). The list of launches comes of a kernel replay, which flushes the L2 before each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.base.progress import Progress, silent
from iosim.evidence.cuda.ncu import METRICS, Profiled, import_report, parse_raw, refusal
from iosim.evidence.measure.chain_case import (
    COLUMNS,
    COUNTED,
    OWN,
    PROBLEM,
    ChainCase,
    describe,
    describe_launches,
    missing,
    unlisted,
)
from iosim.evidence.measure.collect import counted_text, profiler_options, run_group, run_profiler
from iosim.evidence.measure.machine import facts, prebuild, profiler_version, write_provenance
from iosim.evidence.measure.ranges import parse_range
from iosim.evidence.measure.table import COLUMNS as LAUNCH_COLUMNS
from iosim.evidence.measure.table import Row, next_call, read_table, write_table

PORTION = 8
"""Calls that one checking process takes on."""
MARK = "spin_kernel"
"""In the name of the launch that stands before each call."""
RUNNER = "iosim.evidence.measure.chain_run"
KERNEL_NAME_LENGTH = 200
COUNTERS = (*COUNTED, "seconds")
RANGE_OPTIONS = ("--replay-mode", "app-range", "--cache-control", "all", "--clock-control", "none", "--metrics",
                 ",".join(METRICS[name][0] for name in COUNTERS))  # fmt: skip


@dataclass
class Tables:
    """The table of chains and, where asked for, the one of launches: `left_out` says what is not in them and why."""

    out: Path
    launches_out: Path | None
    command: str
    rows: list[Row] = field(default_factory=list)
    launches: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    measured: int = 0

    def __post_init__(self) -> None:
        self.rows = read_table(self.out, COLUMNS)
        if self.launches_out is not None:
            self.launches = read_table(self.launches_out, LAUNCH_COLUMNS)

    def save(self) -> None:
        """Writes both tables whole, each with its provenance."""
        if self.rows:
            write_table(self.out, self.rows, COLUMNS)
            self._provenance(self.out, list(RANGE_OPTIONS), "cold: flushed before the first launch of a call")
        if self.launches_out is not None and self.launches:
            write_table(self.launches_out, self.launches, LAUNCH_COLUMNS)
            self._provenance(self.launches_out, profiler_options(False), "cold: flushed before every launch")

    def _provenance(self, table: Path, options: list[str], l2_start: str) -> None:
        write_provenance(table, {
            **facts(),
            "profiler": profiler_version(),
            "inputs": "random normal; fresh for the check, of one seed under the profiler",
            "l2_start": l2_start,
            "command": self.command,
            "profiler_command": " ".join(["ncu", *options, "-f", "-o", "REPORT", "COMMAND"]),
            "check": "every call against float64 before it was profiled",
        })  # fmt: skip


def collect_chains(
    out: Path, cases: Sequence[ChainCase], cc: str, *, launches_out: Path | None = None, command: str = "",
    progress: Progress = silent,
) -> Tables:  # fmt: skip
    """Measures the chains that `out` lacks, and lists the launches of those that `launches_out` lacks.

    Args:
        cases: the plan.
        cc: compute capability of the GPU.
        launches_out: where a row for each launch of the chains goes, or None.

    Raises:
        InputError: the profiler refuses, or the first range's report is not understood; tables keep what they had.
    """
    tables = Tables(out, launches_out, command)
    todo = missing(cases, tables.rows)
    listed = set(unlisted(cases, tables.launches)) if launches_out is not None else set()
    prebuild([case.problem.spec for case in todo if case.chain == OWN], cc)
    work = list(dict.fromkeys([*todo, *(case for case in cases if case in listed)]))
    good: set[ChainCase] = set()
    for n in range(0, len(work), PORTION):
        good |= _check(work[n : n + PORTION], listed, tables)
        tables.save()
    for case in progress([case for case in todo if case in good]):
        _measure(case, tables)
    return tables


def _check(cases: list[ChainCase], listed: set[ChainCase], tables: Tables) -> set[ChainCase]:
    """Checks calls against float64, and lists the launches of those in `listed`; gives the calls that are right."""
    profiled = [case for case in cases if case in listed]
    with tempfile.TemporaryDirectory(prefix="iosim-") as folder:
        plan, done, report = Path(folder) / "plan.json", Path(folder) / "done.jsonl", Path(folder) / "report"
        calls = [{"case": case.to_dict(), "profile": case in listed} for case in cases]
        plan.write_text(json.dumps(calls), encoding="utf-8")
        own = [sys.executable, "-m", RUNNER, "check", str(plan), str(done)]
        options = [*profiler_options(False), "-f", "-o", str(report)]
        output = run_profiler(options, own) if profiled else run_group(own)
        lines = [json.loads(line) for line in done.read_text().splitlines()] if done.is_file() else []
        if len(lines) < len(cases):
            tables.left_out += [
                f"{_named(case)}: the checking process ended; {_end(output)}" for case in cases[len(lines) :]
            ]
        right = [case for case, line in zip(cases, lines, strict=False) if "left_out" not in line]
        tables.left_out += [
            f"{_named(case)}: {line['left_out']}"
            for case, line in zip(cases, lines, strict=False)
            if "left_out" in line
        ]
        report_file = report.with_suffix(".ncu-rep")
        if profiled and report_file.is_file():
            kernels, notes = parse_raw(import_report(report_file))
            tables.left_out += notes
            _list(kernels, [case for case in right if case in listed], tables)
        elif any(case in listed for case in right):
            tables.left_out.append(f"launches: the profiler left no report; {refusal(output) or _end(output)}")
    return set(right)


def _list(kernels: Sequence[Profiled], cases: Sequence[ChainCase], tables: Tables) -> None:
    """Rows of the launches of `cases`, out of a report in which a mark stands before each call."""
    calls = split_calls(kernels)
    if len(calls) != len(cases):
        tables.left_out.append(f"launches: the report has {len(calls)} calls of {len(cases)}; none is listed")
        return
    for case, members in zip(cases, calls, strict=True):
        call = str(next_call(tables.launches))
        tables.launches += [
            describe_launches(case) | launch_row(one) | {"call": call, "launch": str(n)}
            for n, one in enumerate(members, start=1)
        ]


def split_calls(kernels: Sequence[Profiled]) -> list[list[Profiled]]:
    """The launches of each call: those between two marks. What stands before the first mark belongs to none."""
    calls: list[list[Profiled]] = []
    for one in kernels:
        if MARK in one.kernel:
            calls.append([])
        elif calls:
            calls[-1].append(one)
    return calls


def launch_row(one: Profiled) -> Row:
    """Columns of a launch: its kernel with grid and block, and all that was counted."""
    counted = {name: counted_text(name, one.column(name)) for name in METRICS}
    return {"kernel": one.kernel[:KERNEL_NAME_LENGTH], "grid": str(one.grid), "block": str(one.block), **counted}


def _measure(case: ChainCase, tables: Tables) -> None:
    """One range: a row in the table of chains, or a line that says why there is none."""
    try:
        values = _range(case, tables.out)
    except InputError as reason:
        if not tables.measured:
            raise
        tables.left_out.append(f"{_named(case)}: {reason}")
        return
    counted = {name: counted_text(name, values[name]) for name in COUNTED}
    tables.rows.append(describe(case) | counted | {
        "range_seconds": counted_text("seconds", values["seconds"]), "launches": _launches(case, tables.launches),
    })  # fmt: skip
    tables.measured += 1
    tables.save()


def _range(case: ChainCase, out: Path) -> dict[str, float]:
    """Counters of a whole call. What the profiler said of one that fails goes into TABLE.failed.txt, beside it."""
    with tempfile.TemporaryDirectory(prefix="iosim-") as folder:
        plan, report = Path(folder) / "case.json", Path(folder) / "report"
        plan.write_text(json.dumps(case.to_dict()), encoding="utf-8")
        own = [sys.executable, "-m", RUNNER, "range", str(plan)]
        output, page = run_profiler([*RANGE_OPTIONS, "-f", "-o", str(report)], own), ""
        report_file = report.with_suffix(".ncu-rep")
        try:
            if not report_file.is_file():
                raise InputError(f"the profiler left no report of the range: {refusal(output) or _end(output)}")
            page = import_report(report_file)
            return parse_range(page, COUNTERS)
        except InputError:
            write_whole(out.with_suffix(".failed.txt"), f"{_named(case)}\n{output}\n{page}\n")
            raise


def _launches(case: ChainCase, rows: Sequence[Row]) -> str:
    """How many launches of a chain the table of launches holds; empty where it holds none."""
    want = describe_launches(case)
    matching = [row for row in rows if all(row[name] == value for name, value in want.items())]
    return str(sum(row["call"] == matching[-1]["call"] for row in matching)) if matching else ""


def _named(case: ChainCase) -> str:
    return " ".join(describe(case)[name] for name in PROBLEM)


def _end(output: str) -> str:
    return " ".join(output.split())[-300:]

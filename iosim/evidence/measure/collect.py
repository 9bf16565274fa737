"""A plan under Nsight Compute, in portions: each is checked, profiled, read and added to the table before the next.

The profiled process (`profiled`) writes what it launched; the profiler's report holds the same launches in the same
order, and a launch whose kernel or grid differs stops the run. Counters are found by name and unit (`ncu`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from iosim.base.data import import_path
from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.evidence.cuda.ncu import METRICS, Profiled, available_metrics, find_ncu, import_report, parse_raw, refusal
from iosim.evidence.measure.case import TOLERANCE, Case
from iosim.evidence.measure.machine import facts, prebuild, profiler_version, write_provenance
from iosim.evidence.measure.table import COLUMNS, Row, missing, next_call, read_table, write_table

PORTION = 25
"""Calls that one start of the profiler takes on: what an interruption loses at most."""
WARM_NOTE = "warm L2"


@dataclass
class Collected:
    """What a run did: rows in the table by now, calls measured in this run, and why others were not."""

    rows: int = 0
    measured: int = 0
    left_out: list[str] = field(default_factory=list)


def collect(
    out: Path, cases: Sequence[Case], cc: str, *, warm: bool = False, command: str = "",
    progress: Progress = silent,
) -> Collected:  # fmt: skip
    """Profiles the calls that `out` lacks and adds them to it, a portion at a time.

    Args:
        cases: the plan; calls that the table holds already are not run again.
        cc: compute capability of the GPU.
        warm: leave the L2 as a launch of the same kernel just before left it, instead of flushing it.
        command: what to write into the provenance.

    Raises:
        InputError: the profiler refuses, or its report does not hold the launches that were made.
    """
    planned = [replace(case, note=_note(case)) for case in cases] if warm else list(cases)
    rows = read_table(out, COLUMNS)
    todo = missing(planned, rows)
    done = Collected(rows=len(rows))
    prebuild((case.spec for case in todo), cc)
    options = profiler_options(warm)
    for portion in progress([todo[n : n + PORTION] for n in range(0, len(todo), PORTION)]):
        fresh, left = _portion(portion, next_call(rows), options, warm)
        rows += fresh
        done.left_out += left
        done.measured += len({row["call"] for row in fresh})
        done.rows = len(rows)
        write_table(out, rows, COLUMNS)
        _provenance(out, options, warm, command)
    return done


def _note(case: Case) -> str:
    return f"{case.note}, {WARM_NOTE}" if case.note else WARM_NOTE


def profiler_options(warm: bool, columns: Iterable[str] = tuple(METRICS)) -> list[str]:
    """The profiler's options; of the columns' metrics those that this GPU has."""
    have = available_metrics()
    metrics = [METRICS[name][0] for name in columns if have is None or METRICS[name][0].split(".")[0] in have]
    flush = "none" if warm else "all"
    return ["--clock-control", "none", "--cache-control", flush, "--profile-from-start", "off", "--metrics",
            ",".join(metrics)]  # fmt: skip


def _portion(cases: Sequence[Case], first: int, options: list[str], warm: bool) -> tuple[list[Row], list[str]]:
    calls = [{"call": n, "case": case.to_dict()} for n, case in enumerate(cases, start=first)]
    with tempfile.TemporaryDirectory(prefix="iosim-") as folder:
        plan, launched, report = Path(folder) / "plan.json", Path(folder) / "launched.jsonl", Path(folder) / "report"
        plan.write_text(json.dumps({"calls": calls, "warm": warm}), encoding="utf-8")
        own = [sys.executable, "-m", "iosim.evidence.measure.profiled", str(plan), str(launched)]
        output = run_profiler([*options, "-f", "-o", str(report)], own)
        rows = [json.loads(line) for line in launched.read_text().splitlines()] if launched.is_file() else []
        left = [f"{r['implementation']} call {r['call']}: {r['left_out']}" for r in rows if "left_out" in r]
        planned = [row for row in rows if "left_out" not in row]
        report_file = report.with_suffix(".ncu-rep")
        if not report_file.is_file():
            if planned or not rows:
                raise InputError(f"the profiler left no report: {refusal(output) or output.strip()[-300:]}")
            return [], left
        profiled, notes = parse_raw(import_report(report_file))
    joined, lost = join(planned, profiled)
    return joined, left + notes + lost


def run_profiler(options: Sequence[str], own: Sequence[str]) -> str:
    """Runs a Python command under ncu; gives what it printed.

    Raises:
        InputError: the profiler refuses, most often because counters are for administrators only.
    """
    output = run_group([str(find_ncu()), *options, *own])
    if refused := refusal(output):
        raise InputError(refused)
    return output


def run_group(command: Sequence[str]) -> str:
    """Runs a command in a session of its own, which ends with this process: the profiler leaves none of its own. It
    finds this package, and what it prints is given."""
    path = os.pathsep.join(p for p in (import_path(), os.environ.get("PYTHONPATH", "")) if p)
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True
    ) as process:
        try:
            return process.communicate()[0]
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def join(planned: Sequence[Row], profiled: Sequence[Profiled]) -> tuple[list[Row], list[str]]:
    """Rows of the table: what was launched, in order, with what the profiler counted for it.

    A call that the report breaks off in is left out whole, with a line that says so.

    Raises:
        InputError: the report holds another launch than was made.
    """
    rows: list[Row] = []
    for row, launch in zip(planned, profiled, strict=False):
        if row["kernel"] != launch.kernel or row["grid"] != str(launch.grid):
            raise InputError(f"launch {row['kernel']} {row['grid']} meets {launch.kernel} {launch.grid} in the report")
        counted = {name: counted_text(name, launch.column(name)) for name in METRICS}
        rows.append({**row, "block": str(launch.block), **counted})
    if len(profiled) >= len(planned):
        return rows, []
    broken = {row["call"] for row in planned[len(profiled) :]}
    told = f"the report has {len(profiled)} of {len(planned)} launches; calls {', '.join(sorted(broken, key=int))}"
    return [row for row in rows if row["call"] not in broken], [f"{told} are left out"]


def counted_text(name: str, value: float | None) -> str:
    """A counter as a cell: seconds to nine digits, anything else a whole number, nothing where it was not counted."""
    if value is None:
        return ""
    return f"{value:.9g}" if name == "seconds" else str(round(value))


def _provenance(out: Path, options: list[str], warm: bool, command: str) -> None:
    start = "warm: as a launch of the same kernel just before, and the profiler between its passes, left it"
    write_provenance(out, {
        **facts(),
        "profiler": profiler_version(),
        "inputs": "random normal; fresh for the check, seeded by the call's number for profiling",
        "l2_start": start if warm else "cold: flushed before every launch and every replay pass",
        "command": command,
        "profiler_command": " ".join(["ncu", *options, "-f", "-o", "REPORT", "COMMAND"]),
        "check": "every call against float64 before it was profiled",
        "largest_relative_error": TOLERANCE,
    })  # fmt: skip

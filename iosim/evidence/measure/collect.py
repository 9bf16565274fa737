"""Calls under Nsight Compute: how any plan of them is run, and the table of the project's own kernels.

A runner (`run`) makes the calls in a process of its own and says a line of each; the profiler's report holds the same
launches in the same order, and a launch whose kernel or grid differs stops the run. A plan goes in portions, each
checked, profiled, read and added to the table before the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iosim.base.data import import_path
from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.evidence.cuda.ncu import METRICS, Profiled, available_metrics, find_ncu, import_report, parse_raw, refusal
from iosim.evidence.measure.case import TOLERANCE, Case
from iosim.evidence.measure.machine import prebuild, profiler_version
from iosim.evidence.measure.table import COLUMNS, Row, Table, missing, next_call

PORTION = 25
"""Calls that one start of the profiler takes on: what an interruption loses at most."""
WARM_NOTE = "warm L2"
COLD = "cold: flushed before every launch and every replay pass"
WARM = "warm: as a launch of the same kernel just before, and the profiler between its passes, left it"


@dataclass(frozen=True)
class Run:
    """What a runner and the profiler around it left: a line of each call, what was printed, and the report's page."""

    lines: list[dict[str, Any]]
    output: str
    page: str
    why: str = ""
    """Why there is no page."""

    @property
    def end(self) -> str:
        """What was printed last."""
        return " ".join(self.output.split())[-300:]

    def report(self, of: str = "") -> str:
        """The page; `of` says in a refusal what it would be of. Raises InputError where the profiler left none, or
        it cannot be read."""
        if not self.page:
            raise InputError(self.why or f"the profiler left no report{of}: {refusal(self.output) or self.end}")
        return self.page


def run(kind: str, plan: object, options: Sequence[str] | None) -> Run:
    """A plan of one of the runner's kinds, under the profiler with these options, or without it (None). Raises
    InputError where the profiler refuses."""
    with tempfile.TemporaryDirectory(prefix="iosim-") as folder:
        file, done, report = Path(folder) / "plan.json", Path(folder) / "done.jsonl", Path(folder) / "report"
        file.write_text(json.dumps(plan), encoding="utf-8")
        own = [sys.executable, "-m", "iosim.evidence.measure.run", kind, str(file), str(done)]
        under = None if options is None else [*options, "-f", "-o", str(report)]
        output = run_group(own, session=False) if under is None else run_profiler(under, own)
        lines = [json.loads(line) for line in done.read_text().splitlines()] if done.is_file() else []
        try:
            written = report.with_suffix(".ncu-rep")
            return Run(lines, output, import_report(written) if written.is_file() else "")
        except InputError as error:
            return Run(lines, output, "", str(error))


def run_profiler(options: Sequence[str], own: Sequence[str]) -> str:
    """Runs a Python command under ncu; gives what it printed. Raises InputError where the profiler refuses, most
    often because counters are for administrators only."""
    output = run_group([str(find_ncu()), *options, *own])
    if refused := refusal(output):
        raise InputError(refused)
    return output


def run_group(command: Sequence[str], session: bool = True) -> str:
    """Runs a command, by default in a session of its own, which ends with this process: the profiler leaves none of its
    own. It finds this package, and what it prints is given."""
    path = os.pathsep.join(p for p in (import_path(), os.environ.get("PYTHONPATH", "")) if p)
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=session
    ) as process:
        try:
            return process.communicate()[0]
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if session else process.kill()
            raise


def profiler_options(warm: bool, columns: Iterable[str] = tuple(METRICS)) -> list[str]:
    """The profiler's options; of the columns' metrics those that this GPU has."""
    have = available_metrics()
    metrics = [METRICS[name][0] for name in columns if have is None or METRICS[name][0].split(".")[0] in have]
    flush = "none" if warm else "all"
    return ["--clock-control", "none", "--cache-control", flush, "--profile-from-start", "off", "--metrics",
            ",".join(metrics)]  # fmt: skip


def provenance(command: str, options: Sequence[str], **more: object) -> Mapping[str, object]:
    """What a table says of the profiler that counted it."""
    profiler_command = " ".join(["ncu", *options, "-f", "-o", "REPORT", "COMMAND"])
    return {"profiler": profiler_version(), "command": command, "profiler_command": profiler_command, **more}


def counted_text(name: str, value: float | None) -> str:
    """A counter as a cell: seconds to nine digits, anything else a whole number, nothing where it was not counted."""
    if value is None:
        return ""
    return f"{value:.9g}" if name == "seconds" else str(round(value))


def launch_row(one: Profiled, kernel: str) -> Row:
    """Columns of a launch: its kernel with grid and block, and all that was counted."""
    counted = {name: counted_text(name, one.column(name)) for name in METRICS}
    return {"kernel": kernel, "grid": str(one.grid), "block": str(one.block), **counted}


# The project's own kernels


@dataclass
class Collected:
    """What a run did: rows in the table by now, calls measured in this run, and why others were not."""

    rows: int = 0
    measured: int = 0
    left_out: list[str] = field(default_factory=list)


def collect(
    out: Path, cases: Sequence[Case], cc: str, *, warm: bool = False, command: str = "", progress: Progress = silent
) -> Collected:
    """Profiles the calls that `out` lacks and adds them to it, a portion at a time. Raises InputError where the
    profiler refuses, or its report does not hold the launches that were made.

    Args:
        cases: the plan; calls that the table holds already are not run again.
        cc: compute capability of the GPU.
        warm: leave the L2 as a launch of the same kernel just before left it, instead of flushing it.
        command: what to write into the provenance.
    """
    if warm:
        cases = [replace(case, note=", ".join([case.note, WARM_NOTE] if case.note else [WARM_NOTE])) for case in cases]
    options = profiler_options(warm)
    table = Table(out, COLUMNS, provenance(
        command, options, inputs="random normal; fresh for the check, seeded by the call's number for profiling",
        l2_start=WARM if warm else COLD, check="every call against float64 before it was profiled",
        largest_relative_error=TOLERANCE,
    ))  # fmt: skip
    todo = missing(cases, table.rows)
    prebuild((case.spec for case in todo), cc)
    for portion in progress([todo[n : n + PORTION] for n in range(0, len(todo), PORTION)]):
        calls = [{"call": n, "case": case.to_dict()} for n, case in enumerate(portion, start=next_call(table.rows))]
        done = run("launches", {"calls": calls, "warm": warm}, options)
        left = [r for r in done.lines if "left_out" in r]
        table.left_out += [f"{r['implementation']} call {r['call']}: {r['left_out']}" for r in left]
        if done.page or done.why or len(left) < len(done.lines) or not done.lines:
            profiled, notes = parse_raw(done.report())
            fresh, lost = join([row for row in done.lines if "left_out" not in row], profiled)
            table.rows += fresh
            table.left_out += notes + lost
            table.measured += len({row["call"] for row in fresh})
        table.save()
    return Collected(len(table.rows), table.measured, table.left_out)


def join(planned: Sequence[Row], profiled: Sequence[Profiled]) -> tuple[list[Row], list[str]]:
    """Rows of the table: what was launched, in order, with what the profiler counted for it.

    A call that the report breaks off in is left out whole, with a line that says so. Raises InputError where the
    report holds another launch than was made."""
    rows: list[Row] = []
    for row, launch in zip(planned, profiled, strict=False):
        if row["kernel"] != launch.kernel or row["grid"] != str(launch.grid):
            raise InputError(f"launch {row['kernel']} {row['grid']} meets {launch.kernel} {launch.grid} in the report")
        rows.append(row | launch_row(launch, launch.kernel))
    if len(profiled) >= len(planned):
        return rows, []
    broken = {row["call"] for row in planned[len(profiled) :]}
    told = f"the report has {len(profiled)} of {len(planned)} launches; calls {', '.join(sorted(broken, key=int))}"
    return [row for row in rows if row["call"] not in broken], [f"{told} are left out"]

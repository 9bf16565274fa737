"""PyTorch's calls under the profiler, a portion at a time, into a tidy table: a row a launch, from a flushed L2.

The calls of a plan have numbers from 1 on. Those that the table holds are not made again, so that an interrupted run
goes on where it stopped. What PyTorch refuses is a row, too: it has no counters, and `left_out` says why.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.evidence.cuda.ncu import METRICS, Profiled, import_report, parse_raw, refusal
from iosim.evidence.measure.collect import counted_text, profiler_options, run_profiler
from iosim.evidence.measure.library_case import PROBLEM, LibraryCase, describe
from iosim.evidence.measure.machine import facts, profiler_version, write_provenance
from iosim.evidence.measure.table import Row, read_table, write_table

RUNNER = "iosim.evidence.measure.library_run"
PORTION = 165
"""Calls of one process: it takes some ten seconds to start."""
COMPILERS = 16
"""Processes that compile FlexAttention's kernels side by side before any is counted."""
COLUMNS = ("call", "launch", *PROBLEM, "kernel", "grid", "block", *METRICS, "left_out")
COUNTED = ("hbm_read", "hbm_write", "l2_read", "l2_write", "seconds", "sm_clock_hz", "registers", "smem_bytes")
"""Of METRICS: each more takes the profiler more passes over every launch."""
SPILLED = ("local_read", "local_write")
CALL_RANGE = re.compile(r"iosim call (\d+)")
NAME_LENGTH = 240


@dataclass
class Collected:
    """What a run did: rows in the table by now, calls measured in this run, and why others were not."""

    rows: list[Row] = field(default_factory=list)
    measured: int = 0
    left_out: list[str] = field(default_factory=list)


def collect_library(
    out: Path, cases: Sequence[LibraryCase], *, kernels: str = "", spills: bool = False, minutes: float | None = None,
    command: str = "", progress: Progress = silent,
) -> Collected:  # fmt: skip
    """Counts the calls that `out` lacks and adds them to it.

    Args:
        cases: the plan; call n is its n-th.
        kernels: a regular expression of kernels' names; empty: all are counted.
        spills: whether the bytes of spilled registers are counted, too.
        minutes: after which no more calls are begun.
        command: what to write into the provenance.

    Raises:
        InputError: the profiler refuses, or leaves no report.
    """
    end = time.time() + 60 * minutes if minutes else math.inf
    done = Collected(read_table(out, COLUMNS))
    held = {int(row["call"]) for row in done.rows}
    todo = [(n, case) for n, case in enumerate(cases, start=1) if n not in held]
    compiled = [(n, case) for n, case in todo if case.backend == "flex"]
    ready = [(n, case) for n, case in todo if case.backend != "flex"]
    metrics = (*COUNTED, *SPILLED) if spills else COUNTED
    options = [*profiler_options(False, metrics), "--nvtx", "--target-processes", "application-only"]
    options += ["--kernel-name", f"regex:{kernels}"] if kernels else []
    portions = [calls[at : at + PORTION] for calls in (ready, compiled) for at in range(0, len(calls), PORTION)]
    for portion in progress(portions):
        if time.time() > end:
            break
        if portion[0] in compiled:
            _compile(portion)
        fresh = _portion(portion, options, end)
        done.rows += fresh
        done.measured += len({row["call"] for row in fresh if not row.get("left_out")})
        done.left_out += [f"call {row['call']}: {row['left_out']}" for row in fresh if row.get("left_out")]
        write_table(out, done.rows, COLUMNS)
        write_provenance(out, {
            **facts(),
            "profiler": profiler_version(),
            "inputs": "random normal, seeded by the call's number",
            "l2_start": "cold: flushed before every launch and every replay pass",
            "command": command,
            "profiler_command": " ".join(["ncu", *options, "-f", "-o", "REPORT", "COMMAND"]),
        })  # fmt: skip
    return done


def _plan(folder: Path, calls: Sequence[tuple[int, LibraryCase]], **more: Any) -> tuple[Path, Path]:
    """(file of the calls and what else the runner is told, file where each is said to be done)."""
    plan, done = folder / "plan.json", folder / "done.jsonl"
    listed = [{"call": n, "case": case.to_dict()} for n, case in calls]
    plan.write_text(json.dumps({"calls": listed, **more}), encoding="utf-8")
    return plan, done


def _compile(calls: Sequence[tuple[int, LibraryCase]]) -> None:
    """Fills the caches of compiled kernels: a process under the profiler would compile them one by one."""
    with tempfile.TemporaryDirectory(prefix="iosim-") as folder:
        running = []
        for part in range(min(COMPILERS, len(calls))):
            place = Path(folder) / str(part)
            place.mkdir()
            files = _plan(place, calls[part::COMPILERS], profile=False)
            command = [sys.executable, "-m", RUNNER, *map(str, files)]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for process in running:
            process.wait()


def _portion(calls: Sequence[tuple[int, LibraryCase]], options: Sequence[str], end: float) -> list[Row]:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its workers would be profiled, too
    with tempfile.TemporaryDirectory(prefix="iosim-") as folder:
        plan, done = _plan(Path(folder), calls, profile=True, end=None if end == math.inf else end)
        report = Path(folder) / "report"
        output = run_profiler([*options, "-f", "-o", str(report)], [sys.executable, "-m", RUNNER, str(plan), str(done)])
        lines = [json.loads(line) for line in done.read_text().splitlines()] if done.is_file() else []
        left_out = {line["call"]: line["left_out"] for line in lines if "left_out" in line}
        report_file = report.with_suffix(".ncu-rep")
        if not report_file.is_file():
            raise InputError(f"the profiler left no report: {refusal(output) or output.strip()[-300:]}")
        launches, _ = parse_raw(import_report(report_file))
    return rows_of({n: case for n, case in calls if n in {line["call"] for line in lines}}, launches, left_out)


def rows_of(calls: dict[int, LibraryCase], launches: Sequence[Profiled], left_out: dict[int, str]) -> list[Row]:
    """The table's rows of calls that were made: their launches by the number that the NVTX range around each has.

    Raises:
        InputError: a launch lies in no call's range.
    """
    members: dict[int, list[Profiled]] = {n: [] for n in calls}
    for launch in launches:
        found = next((int(m[1]) for text in launch.ranges if (m := CALL_RANGE.search(text))), None)
        if found is None:
            raise InputError(f"launch {launch.kernel[:60]} lies in no range of the profiled program: {launch.ranges}")
        members.setdefault(found, []).append(launch)
    rows: list[Row] = []
    for n, case in calls.items():
        common = {"call": str(n)} | describe(case)
        if n in left_out or not members[n]:
            rows.append(common | {"launch": "1", "left_out": left_out.get(n, "no kernel was launched")})
            continue
        for at, launch in enumerate(members[n], start=1):
            counted = {name: counted_text(name, launch.column(name)) for name in METRICS}
            rows.append(common | counted | {
                "launch": str(at), "kernel": short_name(launch.kernel), "grid": str(launch.grid),
                "block": str(launch.block),
            })  # fmt: skip
    return rows


def short_name(kernel: str) -> str:
    """A kernel's name with its template's arguments, without those of the call and without namespaces."""
    head = re.sub(r"^void ", "", kernel)
    depth = 0
    for at, letter in enumerate(head):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and at:
            head = head[:at]
            break
    return re.sub(r"\b(?:cutlass|pytorch_flash|at|native|c10|std)::", "", head)[:NAME_LENGTH]

"""PyTorch's calls under the profiler, a portion at a time, into a tidy table: a row a launch, from a flushed L2.

The calls of a plan have numbers from 1 on. Those that the table holds are not made again, so that an interrupted run
goes on where it stopped. What PyTorch refuses is a row, too: it has no counters, and `left_out` says why.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.evidence.cuda.ncu import METRICS, Profiled, parse_raw
from iosim.evidence.measure import collect
from iosim.evidence.measure.library_case import PROBLEM, LibraryCase
from iosim.evidence.measure.table import Row, Table

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

Calls = list[tuple[int, LibraryCase]]


def collect_library(
    out: Path, cases: Sequence[LibraryCase], *, kernels: str = "", spills: bool = False, minutes: float | None = None,
    command: str = "", progress: Progress = silent,
) -> Table:  # fmt: skip
    """Counts the calls that `out` lacks and adds them to it. Raises InputError where the profiler refuses, or leaves no
    report.

    Args:
        cases: the plan; call n is its n-th.
        kernels: a regular expression of kernels' names; empty: all are counted.
        spills: whether the bytes of spilled registers are counted, too.
        minutes: after which no more calls are begun.
        command: what to write into the provenance.
    """
    end = time.time() + 60 * minutes if minutes else math.inf
    options = [*collect.profiler_options(False, (*COUNTED, *SPILLED) if spills else COUNTED), "--nvtx"]
    options += ["--target-processes", "application-only", *(["--kernel-name", f"regex:{kernels}"] if kernels else [])]
    inputs = "random normal, seeded by the call's number"
    table = Table(out, COLUMNS, collect.provenance(command, options, inputs=inputs, l2_start=collect.COLD))
    held = {int(row["call"]) for row in table.rows}
    todo = [(n, case) for n, case in enumerate(cases, start=1) if n not in held]
    by_kind = ([one for one in todo if (one[1].backend == "flex") == compiled] for compiled in (False, True))
    for portion in progress([calls[at : at + PORTION] for calls in by_kind for at in range(0, len(calls), PORTION)]):
        if time.time() > end:
            break
        if portion[0][1].backend == "flex":
            # fills the caches of compiled kernels: a process under the profiler would compile them one by one
            parts = [portion[n::COMPILERS] for n in range(min(COMPILERS, len(portion)))]
            with ThreadPoolExecutor(COMPILERS) as pool:
                list(pool.map(lambda part: _run(part, None), parts))
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its workers would be profiled, too
        done = _run(portion, options, None if end == math.inf else end)
        left_out = {line["call"]: line["left_out"] for line in done.lines if "left_out" in line}
        made = {line["call"] for line in done.lines}
        fresh = rows_of({n: case for n, case in portion if n in made}, parse_raw(done.report())[0], left_out)
        table.rows += fresh
        table.measured += len({row["call"] for row in fresh if not row.get("left_out")})
        table.left_out += [f"call {row['call']}: {row['left_out']}" for row in fresh if row.get("left_out")]
        table.save()
    return table


def _run(calls: Calls, options: Sequence[str] | None, end: float | None = None) -> collect.Run:
    listed: list[dict[str, Any]] = [{"call": n, "case": case.to_dict()} for n, case in calls]
    return collect.run("library", {"calls": listed, "profile": options is not None, "end": end}, options)


def rows_of(calls: dict[int, LibraryCase], launches: Sequence[Profiled], left_out: dict[int, str]) -> list[Row]:
    """The table's rows of calls that were made: their launches by the number that the NVTX range around each has.
    Raises InputError where a launch lies in no call's range."""
    members: dict[int, list[Profiled]] = {n: [] for n in calls}
    for launch in launches:
        found = next((int(m[1]) for text in launch.ranges if (m := CALL_RANGE.search(text))), None)
        if found is None:
            raise InputError(f"launch {launch.kernel[:60]} lies in no range of the profiled program: {launch.ranges}")
        members.setdefault(found, []).append(launch)
    rows: list[Row] = []
    for n, case in calls.items():
        common = {"call": str(n)} | case.columns()
        if n in left_out or not members[n]:
            rows.append(common | {"launch": "1", "left_out": left_out.get(n, "no kernel was launched")})
            continue
        for at, launch in enumerate(members[n], start=1):
            rows.append(common | collect.launch_row(launch, short_name(launch.kernel)) | {"launch": str(at)})
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

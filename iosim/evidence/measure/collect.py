"""Calls under Nsight Compute, a portion at a time, into tidy tables: the project's kernels, chains, PyTorch's kernels.

A runner (`run`) makes the calls in a process of its own, each in an NVTX range that has its number, and says a line of
each; the profiler's report holds their launches in those ranges. What a table holds is not made again, so that an
interrupted run goes on where it stopped.

A chain's whole call is a range of the profiler besides: it runs through one L2, flushed before its first launch, in a
process that the profiler starts again for every pass (`--replay-mode app-range`). A list of launches comes of a kernel
replay, which flushes the L2 before each.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from iosim.base.data import import_path
from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, replace
from iosim.evidence.columns import COUNTED, METRICS
from iosim.evidence.cuda.ncu import (
    Profiled,
    available_metrics,
    find_ncu,
    import_report,
    parse_range,
    parse_raw,
    refusal,
)
from iosim.evidence.measure import chain_case, library_case
from iosim.evidence.measure.case import TOLERANCE, Case
from iosim.evidence.measure.chain_case import OWN, ChainCase, describe_launches, unlisted
from iosim.evidence.measure.library_case import LibraryCase
from iosim.evidence.measure.machine import prebuild, profiler_version
from iosim.evidence.measure.table import COLUMNS, Described, Row, Table, missing, next_call

PORTION, CHAIN_PORTION, LIBRARY_PORTION = 25, 8, 165
"""Calls that one start of the profiler takes on: what an interruption loses at most. PyTorch takes some ten seconds."""
COMPILERS = 16
"""Processes that compile FlexAttention's kernels side by side before any is counted."""
WARM_NOTE = "warm L2"
COLD = "cold: flushed before every launch and every replay pass"
WARM = (
    "warm: as a launch of the same kernel just before, and the profiler between its passes, left it"
)
CHECKED = "every call against float64 before it was profiled"
CALL_RANGE = re.compile(r"iosim call (\d+)")
NAME_LENGTH, CHAIN_NAME_LENGTH = 240, 200
LIBRARY_COLUMNS = (
    "call",
    "launch",
    *library_case.COLUMNS,
    "kernel",
    "grid",
    "block",
    *METRICS,
    "left_out",
)
LIBRARY_COUNTED = (*COUNTED, "seconds", "sm_clock_hz", "registers", "smem_bytes")
"""METRICS that are counted: each more takes the profiler more passes over every launch."""
SPILLED = ("local_read", "local_write")
RANGE_COUNTED = (*COUNTED, "seconds")
RANGE_OPTIONS = (
    "--replay-mode",
    "app-range",
    "--cache-control",
    "all",
    "--clock-control",
    "none",
    "--metrics",
    ",".join(METRICS[name][0] for name in RANGE_COUNTED),
)

T = TypeVar("T")


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
        return " ".join(self.output.split())[-300:]

    def report(self, of: str = "") -> str:
        """The page; `of` says in a refusal what it would be of. Raises InputError where the profiler left none, or it
        cannot be read."""
        if not self.page:
            raise InputError(
                self.why or f"the profiler left no report{of}: {refusal(self.output) or self.end}"
            )
        return self.page

    def launches(self) -> tuple[dict[int, list[Profiled]], list[str]]:
        """Launches by the number of the call in whose range they lie, and the report's notes. Raises InputError where
        there is no report, or a launch lies in no call's range."""
        profiled, notes = parse_raw(self.report())
        members: dict[int, list[Profiled]] = {}
        for profile in profiled:
            call = next(
                (int(m[1]) for text in profile.ranges if (m := CALL_RANGE.search(text))), None
            )
            if call is None:
                raise InputError(
                    f"launch {profile.kernel[:60]} lies in no range of the profiled program: {profile.ranges}"
                )
            members.setdefault(call, []).append(profile)
        return members, notes


def run_profiled(kind: str, plan: object, options: Sequence[str] | None) -> Run:
    """A plan of one of the runner's kinds, under the profiler with these options, or without it (None). Raises
    InputError where the profiler refuses."""
    with tempfile.TemporaryDirectory(prefix="iosim-") as folder:
        file, done, report = (
            Path(folder) / "plan.json",
            Path(folder) / "done.jsonl",
            Path(folder) / "report",
        )
        file.write_text(json.dumps(plan), encoding="utf-8")
        command = [sys.executable, "-m", "iosim.evidence.measure.run", kind, str(file), str(done)]
        under = None if options is None else [*options, "-f", "-o", str(report)]
        output = (
            run_group(command, session=False) if under is None else run_profiler(under, command)
        )
        lines = (
            [json.loads(line) for line in done.read_text().splitlines()] if done.is_file() else []
        )
        try:
            written = report.with_suffix(".ncu-rep")
            return Run(lines, output, import_report(written) if written.is_file() else "")
        except InputError as error:
            return Run(lines, output, "", str(error))


def run_calls(
    kind: str, calls: Mapping[int, Described], options: Sequence[str] | None, **how: object
) -> Run:
    listed = [{"call": n, "case": case.to_dict()} for n, case in calls.items()]
    return run_profiled(kind, {"calls": listed, **how}, options)


def run_profiler(options: Sequence[str], command: Sequence[str]) -> str:
    """Runs a Python command under ncu; gives what it printed. Raises InputError where the profiler refuses, most often
    because counters are for administrators only."""
    output = run_group([str(find_ncu()), *options, *command])
    if refused := refusal(output):
        raise InputError(refused)
    return output


def run_group(command: Sequence[str], session: bool = True) -> str:
    """Runs a command, by default in a session of its own, which ends with this process: the profiler leaves none of its
    own. It finds this package, and what it prints is given."""
    path = os.pathsep.join(p for p in (import_path(), os.environ.get("PYTHONPATH", "")) if p)
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=session,
    ) as process:
        try:
            return process.communicate()[0]
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if session else process.kill()
            raise


def profiler_options(warm: bool, columns: Iterable[str] = tuple(METRICS)) -> list[str]:
    # a counter that this GPU lacks would end the profiler's run
    have = available_metrics()
    metrics = [
        METRICS[name][0]
        for name in columns
        if have is None or METRICS[name][0].split(".")[0] in have
    ]
    flush = "none" if warm else "all"
    return [
        "--clock-control",
        "none",
        "--cache-control",
        flush,
        "--profile-from-start",
        "off",
        "--nvtx",
        "--metrics",
        ",".join(metrics),
    ]


def provenance(command: str, options: Sequence[str], **more: object) -> Mapping[str, object]:
    profiler_command = " ".join(["ncu", *options, "-f", "-o", "REPORT", "COMMAND"])
    return {
        "profiler": profiler_version(),
        "command": command,
        "profiler_command": profiler_command,
        **more,
    }


def counted_text(name: str, value: float | None) -> str:
    """A counter as a cell: seconds to nine digits, anything else a whole number, nothing where it was not counted."""
    if value is None:
        return ""
    return f"{value:.9g}" if name == "seconds" else str(round(value))


def launch_rows(common: Row, launches: Iterable[Profiled], length: int = NAME_LENGTH) -> list[Row]:
    rows = []
    for n, launch in enumerate(launches, start=1):
        counted = {name: counted_text(name, launch.column(name)) for name in METRICS}
        columns = {
            "launch": str(n),
            "kernel": launch.kernel[:length],
            "grid": str(launch.grid),
            "block": str(launch.block),
        }
        rows.append(common | counted | columns)
    return rows


def _portions(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[n : n + size] for n in range(0, len(items), size)]


# The project's own kernels


def collect(
    out: Path,
    cases: Sequence[Case],
    cc: str,
    *,
    warm: bool = False,
    command: str = "",
    progress: Progress = silent,
) -> Table:
    """Profiles the calls that `out` lacks and adds them to it, a portion at a time. Raises InputError where the
    profiler refuses, or its report does not hold the launches that were made. `cases`: the plan; calls that the
    table holds already are not run again. `warm`: leave the L2 as a launch of the same kernel just before left it,
    instead of flushing it."""
    if warm:
        cases = _warm(cases)
    options = profiler_options(warm)
    table = Table(
        out,
        COLUMNS,
        provenance(
            command,
            options,
            inputs="random normal; fresh for the check, seeded by the call's number for profiling",
            l2_start=WARM if warm else COLD,
            check=CHECKED,
            largest_relative_error=TOLERANCE,
        ),
    )
    todo = missing(cases, table.rows)
    prebuild((case.spec for case in todo), cc)
    for portion in progress(_portions(todo, PORTION)):
        calls = dict(enumerate(portion, start=next_call(table.rows)))
        done = run_calls("own", calls, options, warm=warm)
        launches_of = {
            line["call"]: line["launches"] for line in done.lines if "left_out" not in line
        }
        refused = {line["call"]: line["left_out"] for line in done.lines if "left_out" in line}
        table.left_out += [
            f"{calls[n].implementation} call {n}: {why}" for n, why in refused.items()
        ]
        # a portion of which every call was refused leaves no report, and needs none
        if done.page or done.why or launches_of or not done.lines:
            counted, notes = done.launches()
            fresh, lost = join(calls, launches_of, counted)
            table.left_out += notes + lost
            table.add(fresh)
        table.save()
    return table


def _warm(cases: Sequence[Case]) -> Sequence[Case]:
    """The cases with the note of a warm L2."""
    return [
        replace(case, note=", ".join([case.note, WARM_NOTE] if case.note else [WARM_NOTE]))
        for case in cases
    ]


def join(
    calls: Mapping[int, Case],
    launches_of: Mapping[int, Sequence[Row]],
    counted: Mapping[int, Sequence[Profiled]],
) -> tuple[list[Row], list[str]]:
    """Rows of the launches that calls made, with what the profiler counted of each. A call that the report breaks off
    in is left out whole, with a line that says so. Raises InputError where it holds another launch than was made."""
    rows: list[Row] = []
    broken = []
    for n, launches in launches_of.items():
        profiles = counted.get(n, ())
        for profile, columns in zip(profiles, launches, strict=False):
            # launches pair by their order within the call: names and grids prove that none was missed
            if (columns["kernel"], columns["grid"]) != (profile.kernel, str(profile.grid)):
                raise InputError(
                    f"launch {columns['kernel']} {columns['grid']} meets {profile.kernel} {profile.grid} in the report"
                )
        # part of a call is worse than none: its L2 state and sums would be of other launches
        if len(profiles) < len(launches):
            broken.append(str(n))
            continue
        own_columns = calls[n].columns() | {"call": str(n)}
        rows += [
            row | columns
            for row, columns in zip(launch_rows(own_columns, profiles), launches, strict=True)
        ]
    if not broken:
        return rows, []
    have, all_made = (sum(map(len, several.values())) for several in (counted, launches_of))
    return rows, [
        f"the report has {have} of {all_made} launches; calls {', '.join(broken)} are left out"
    ]


# PyTorch's kernels


def collect_library(
    out: Path,
    cases: Sequence[LibraryCase],
    *,
    kernels: str = "",
    spills: bool = False,
    minutes: float | None = None,
    command: str = "",
    progress: Progress = silent,
) -> Table:
    """Counts the calls that `out` lacks and adds them to it. What PyTorch refuses is a row, too: it has no counters,
    and `left_out` says why. Raises InputError where the profiler refuses, or leaves no report.

    Args:
        cases: the plan; call n is its n-th.
        kernels: a regular expression of kernels' names; empty: all are counted.
        spills: whether the bytes of spilled registers are counted, too.
        minutes: after which no more calls are begun.
        command: what to write into the provenance.
    """
    end = time.time() + 60 * minutes if minutes else math.inf
    options = profiler_options(False, (*LIBRARY_COUNTED, *SPILLED) if spills else LIBRARY_COUNTED)
    options += [
        "--target-processes",
        "application-only",
        *(["--kernel-name", f"regex:{kernels}"] if kernels else []),
    ]
    inputs = "random normal, seeded by the call's number"
    table = Table(out, LIBRARY_COLUMNS, provenance(command, options, inputs=inputs, l2_start=COLD))
    held = {int(row["call"]) for row in table.rows}
    todo = [(n, case) for n, case in enumerate(cases, start=1) if n not in held]
    # calls of compiled kernels last, in portions of their own: those wait for a compiler
    by_kind = (
        [entry for entry in todo if (entry[1].backend == "flex") == compiled]
        for compiled in (False, True)
    )
    for portion in progress(
        [part for calls in by_kind for part in _portions(calls, LIBRARY_PORTION)]
    ):
        if time.time() > end:
            break
        calls = dict(portion)
        if portion[0][1].backend == "flex":
            _fill_caches(portion)
        os.environ.setdefault(
            "TORCHINDUCTOR_COMPILE_THREADS", "1"
        )  # its workers would be profiled, too
        done = run_calls(
            "library", calls, options, profile=True, end=None if end == math.inf else end
        )
        if not done.lines and time.time() > end:  # compiling took what time was left
            break
        counted, _ = done.launches()
        for line in done.lines:
            _add_library_call(calls, counted, line, table)
        table.save()
    return table


def _fill_caches(portion: Sequence[tuple[int, LibraryCase]]) -> None:
    """Fill the caches of compiled kernels: a process under the profiler would compile them one by one."""
    # fills the caches of compiled kernels: a process under the profiler would compile them one by one
    parts = [dict(portion[n::COMPILERS]) for n in range(min(COMPILERS, len(portion)))]
    with ThreadPoolExecutor(COMPILERS) as pool:
        list(pool.map(lambda part: run_calls("library", part, None, profile=False), parts))


def _add_library_call(
    calls: dict[int, LibraryCase],
    counted: dict[int, list[Profiled]],
    line: dict[str, Any],
    table: Table,
) -> None:
    """A row per launch of one call, or one that says why there is none."""
    n = line["call"]
    launches = [replace(entry, kernel=short_name(entry.kernel)) for entry in counted.get(n, ())]
    reason = line.get("left_out") or ("" if launches else "no kernel was launched")
    columns = {"call": str(n)} | calls[n].columns()
    if reason:
        table.rows.append(columns | {"launch": "1", "left_out": reason})
        table.left_out.append(f"call {n}: {reason}")
    else:
        table.add(launch_rows(columns, launches))


def short_name(kernel: str) -> str:
    """A kernel's name with its template's arguments, without those of the call and without namespaces."""
    head = re.sub(r"^void ", "", kernel)
    depth = 0
    for at, letter in enumerate(head):
        # the call's parentheses are the first outside the template's brackets
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and at:
            head = head[:at]
            break
    return re.sub(r"\b(?:cutlass|pytorch_flash|at|native|c10|std)::", "", head)


# Chains


def collect_chains(
    out: Path,
    cases: Sequence[ChainCase],
    cc: str,
    *,
    launches_out: Path | None = None,
    command: str = "",
    progress: Progress = silent,
) -> Table:
    """Checks and measures the chains that `out` lacks, and lists the launches of those that `launches_out` lacks.
    Raises InputError where the profiler refuses, or the first range's report is not understood; tables keep what
    they had. `launches_out`: where a row for each launch of the chains goes, or None."""

    def facts(options: Sequence[str], flushed: str) -> Mapping[str, object]:
        return provenance(
            command,
            options,
            inputs="random normal; fresh for the check, of one seed under the profiler",
            l2_start=f"cold: flushed before {flushed}",
            check=CHECKED,
        )

    table = Table(out, chain_case.COLUMNS, facts(RANGE_OPTIONS, "the first launch of a call"))
    listing = None
    if launches_out is not None:
        listing = Table(launches_out, COLUMNS, facts(profiler_options(False), "every launch"))
    to_measure = missing(cases, table.rows)
    to_list = set(unlisted(cases, listing.rows)) if listing is not None else set()
    prebuild([case.problem.spec for case in to_measure if case.chain == OWN], cc)
    # a chain may be measured and not listed, or the other way round: each is run once for both
    work = list(dict.fromkeys([*to_measure, *(case for case in cases if case in to_list)]))
    right: set[ChainCase] = set()
    for portion in _portions(work, CHAIN_PORTION):
        right |= _checked_portion(portion, to_list, table, listing)
    for case in progress([case for case in to_measure if case in right]):
        _measure_chain(case, table, listing.rows if listing else ())
    return table


def _checked_portion(
    portion: Sequence[ChainCase], to_list: set[ChainCase], table: Table, listing: Table | None
) -> set[ChainCase]:
    """Runs a few chains in one process and gives those whose results are right; why others are left out goes to the
    table. Launches of those in `to_list` are listed."""
    calls = dict(enumerate(portion, start=1))
    profiled = [n for n, case in calls.items() if case in to_list]
    options = profiler_options(False) if profiled else None
    done = run_calls("chain", calls, options, profile=profiled)
    # a call without a line is one that the process did not survive
    why = dict.fromkeys(calls, f"the checking process ended; {done.end}")
    why |= {line["call"]: line.get("left_out", "") for line in done.lines}
    table.left_out += [f"{_named(calls[n])}: {reason}" for n, reason in why.items() if reason]
    right = [n for n in profiled if not why[n]]
    if listing is not None and right:
        try:
            counted, notes = done.launches()
        except InputError as reason:
            table.left_out.append(f"launches: {reason}")
        else:
            table.left_out += notes
            _list_launches(calls, counted, listing, right)
    return {calls[n] for n, reason in why.items() if not reason}


def _list_launches(
    calls: dict[int, ChainCase],
    counted: dict[int, list[Profiled]],
    listing: Table,
    right: list[int],
) -> None:
    """A row in the listing for each launch of the calls that went right."""
    for n in right:
        columns = describe_launches(calls[n]) | {"call": str(next_call(listing.rows))}
        listing.add(launch_rows(columns, counted.get(n, ()), CHAIN_NAME_LENGTH))
    if listing.rows:
        listing.save()


def _measure_chain(case: ChainCase, table: Table, listed: Sequence[Row]) -> None:
    """One range: a row of the table, or a line that says why there is none. What the profiler said of one that fails
    goes into TABLE.failed.txt, beside it."""
    try:
        done = run_calls("range", {1: case}, RANGE_OPTIONS)
        try:
            # a report that is not understood is kept whole: a new version of the profiler may print another form
            values = parse_range(done.report(" of the range"), RANGE_COUNTED)
        except InputError:
            text = f"{_named(case)}\n{done.output}\n{done.page}\n"
            write_whole(table.path.with_suffix(".failed.txt"), text)
            raise
    except InputError as reason:
        # where the first range fails, the cause is the machine or the profiler: the others would fail alike
        if not table.measured:
            raise
        table.left_out.append(f"{_named(case)}: {reason}")
        return
    calls = [row["call"] for row in listed if describe_launches(case).items() <= row.items()]
    counted = {name: counted_text(name, value) for name, value in values.items()}
    counted["range_seconds"] = counted.pop("seconds")
    table.rows.append(
        case.columns() | counted | {"launches": str(calls.count(calls[-1])) if calls else ""}
    )
    table.measured += 1
    table.save()


def _named(case: ChainCase) -> str:
    return " ".join(case.columns().values())

"""Chains under the profiler: every call checked and its launches listed, then the whole call as one range.

A range runs through one L2, flushed before its first launch: a process a call, which the profiler starts again for
every pass (`--replay-mode app-range`). The list of launches comes of a kernel replay, which flushes the L2 before each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.base.progress import Progress, silent
from iosim.evidence.cuda.ncu import METRICS, Profiled, parse_range, parse_raw, refusal
from iosim.evidence.measure import collect
from iosim.evidence.measure.chain_case import COLUMNS, COUNTED, OWN, ChainCase, describe_launches, unlisted
from iosim.evidence.measure.collect import counted_text, launch_row
from iosim.evidence.measure.machine import prebuild
from iosim.evidence.measure.table import COLUMNS as LAUNCH_COLUMNS
from iosim.evidence.measure.table import Row, Table, missing, next_call

PORTION = 8
"""Calls that one checking process takes on."""
MARK = "spin_kernel"
"""In the name of the launch that stands before each call."""
KERNEL_NAME_LENGTH = 200
COUNTERS = (*COUNTED, "seconds")
RANGE_OPTIONS = ("--replay-mode", "app-range", "--cache-control", "all", "--clock-control", "none", "--metrics",
                 ",".join(METRICS[name][0] for name in COUNTERS))  # fmt: skip


@dataclass
class Chains(Table):
    """The table of chains and, where asked for, the one of launches."""

    listing: Table | None = None

    @property
    def launches(self) -> list[Row]:
        return [] if self.listing is None else self.listing.rows

    def save(self) -> None:
        """Writes the tables that have rows, each with what measured it."""
        if self.rows:
            super().save()
        if self.listing is not None and self.listing.rows:
            self.listing.save()


def collect_chains(
    out: Path, cases: Sequence[ChainCase], cc: str, *, launches_out: Path | None = None, command: str = "",
    progress: Progress = silent,
) -> Chains:  # fmt: skip
    """Measures the chains that `out` lacks, and lists the launches of those that `launches_out` lacks. Raises
    InputError where the profiler refuses, or the first range's report is not understood; tables keep what they had.

    Args:
        cases: the plan.
        cc: compute capability of the GPU.
        launches_out: where a row for each launch of the chains goes, or None.
    """

    def told(options: Sequence[str], before: str) -> Mapping[str, object]:
        return collect.provenance(
            command, options, inputs="random normal; fresh for the check, of one seed under the profiler",
            l2_start=f"cold: flushed before {before}", check="every call against float64 before it was profiled",
        )  # fmt: skip

    tables = Chains(out, COLUMNS, told(RANGE_OPTIONS, "the first launch of a call"))
    options = collect.profiler_options(False)
    if launches_out is not None:
        tables.listing = Table(launches_out, LAUNCH_COLUMNS, told(options, "every launch"))
    todo = missing(cases, tables.rows)
    listed = set(unlisted(cases, tables.launches)) if launches_out is not None else set()
    prebuild([case.problem.spec for case in todo if case.chain == OWN], cc)
    work = list(dict.fromkeys([*todo, *(case for case in cases if case in listed)]))
    good: set[ChainCase] = set()
    for n in range(0, len(work), PORTION):
        good |= _check(work[n : n + PORTION], listed, tables, options)
        tables.save()
    for case in progress([case for case in todo if case in good]):
        _measure(case, tables)
    return tables


def _check(cases: list[ChainCase], listed: set[ChainCase], tables: Chains, options: list[str]) -> set[ChainCase]:
    """Checks calls against float64, and lists the launches of those in `listed`; gives the calls that are right."""
    calls = [{"case": case.to_dict(), "profile": case in listed} for case in cases]
    profiled = any(case in listed for case in cases)
    done = collect.run("check", calls, options if profiled else None)
    ended = f"the checking process ended; {done.end}"
    why = dict(zip(cases, [line.get("left_out") for line in done.lines], strict=False))
    tables.left_out += [f"{_named(case)}: {left}" for case in cases if (left := why.get(case, ended))]
    right = [case for case in cases if why.get(case, ended) is None]
    if done.page:
        kernels, notes = parse_raw(done.page)
        tables.left_out += notes
        _list(kernels, [case for case in right if case in listed], tables)
    elif any(case in listed for case in right):
        said = done.why or refusal(done.output) or done.end
        tables.left_out.append(f"launches: the profiler left no report; {said}")
    return set(right)


def _list(kernels: Sequence[Profiled], cases: Sequence[ChainCase], tables: Chains) -> None:
    """Rows of the launches of `cases`, out of a report in which a mark stands before each call."""
    calls = split_calls(kernels)
    if len(calls) != len(cases):
        tables.left_out.append(f"launches: the report has {len(calls)} calls of {len(cases)}; none is listed")
        return
    for case, members in zip(cases, calls, strict=True):
        call = {"call": str(next_call(tables.launches))}
        tables.launches.extend(
            describe_launches(case) | launch_row(one, one.kernel[:KERNEL_NAME_LENGTH]) | call | {"launch": str(n)}
            for n, one in enumerate(members, start=1)
        )


def split_calls(kernels: Sequence[Profiled]) -> list[list[Profiled]]:
    """The launches of each call: those between two marks. What stands before the first mark belongs to none."""
    calls: list[list[Profiled]] = []
    for one in kernels:
        if MARK in one.kernel:
            calls.append([])
        elif calls:
            calls[-1].append(one)
    return calls


def _measure(case: ChainCase, tables: Chains) -> None:
    """One range: a row in the table of chains, or a line that says why there is none."""
    try:
        values = _range(case, tables.path)
    except InputError as reason:
        if not tables.measured:
            raise
        tables.left_out.append(f"{_named(case)}: {reason}")
        return
    counted = {name: counted_text(name, values[name]) for name in COUNTED}
    more = {
        "range_seconds": counted_text("seconds", values["seconds"]),
        "launches": _launches(case, tables.launches),
    }
    tables.rows.append(case.columns() | counted | more)
    tables.measured += 1
    tables.save()


def _range(case: ChainCase, out: Path) -> dict[str, float]:
    """Counters of a whole call. What the profiler said of one that fails goes into TABLE.failed.txt, beside it."""
    done = collect.run("range", case.to_dict(), RANGE_OPTIONS)
    try:
        return parse_range(done.report(" of the range"), COUNTERS)
    except InputError:
        write_whole(out.with_suffix(".failed.txt"), f"{_named(case)}\n{done.output}\n{done.page}\n")
        raise


def _launches(case: ChainCase, rows: Sequence[Row]) -> str:
    """How many launches of a chain the table of launches holds; empty where it holds none."""
    want = describe_launches(case)
    matching = [row["call"] for row in rows if want.items() <= row.items()]
    return str(matching.count(matching[-1])) if matching else ""


def _named(case: ChainCase) -> str:
    return " ".join(case.columns().values())

"""Rows from a user's own profile: an Nsight Compute report (.ncu-rep), or what it prints as CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.ncu import Profiled, find_ncu, import_report, parse_raw, profiled_of
from iosim.evidence.cuda.ncu_rows import parse
from iosim.evidence.validate.recognise import Call, Given, Unknown, recognise
from iosim.evidence.validate.residuals import Skipped
from iosim.evidence.validate.rows import COLUMN, QUANTITIES, UNIT, Row, text_of_file

OPTION = "--ncu"
NAME_SHOWN = 60
REPORT = ".ncu-rep"
TOLD = re.compile(r"(?:^|[\s:])iosim((?: +[^\s:]+)+)")
"""What an NVTX range says of the calls in it: `iosim` and options of `iosim validate`."""

Told = Callable[[str], Given]
"""Reads the options of an NVTX range; raises InputError."""
Opened = Callable[[Path], "Iterable[Mapping[str, Any]] | None"]
"""The launches of a report as the profiler's Python module has them; None where there is no such module."""


@dataclass(frozen=True)
class ProfileRows:
    """`rows` are matched, `unmatched` are not, each with the reason; `notes` tell of broken lines of the file."""

    rows: tuple[Row, ...]
    unmatched: tuple[Skipped, ...]
    notes: tuple[str, ...]


def read_profile(
    path: str | Path,
    stated: Given,
    read_range: Told = lambda text: Given(),
    opened: Opened = lambda path: None,
) -> ProfileRows:
    """The launches of a profile, matched with catalog kernels by their names and grids and by what is given. Raises
    InputError where the file cannot be read, is no profile, or holds none of the counters.

    Args:
        path: a report, or a CSV that ncu wrote: its raw page, or a row a metric.
        stated: what is said of all calls.
        read_range: reads what an NVTX range says of the calls in it, which goes before `stated`.
        opened: reads a report by the profiler's Python module, where there is one.
    """
    where = f"{OPTION} '{path}'"
    launches, notes = _launches(path, where, opened)
    if not launches:
        why = f": {notes[0]}" if notes else ""
        raise InputError(
            f"{where} holds no whole launch{why}; accepted: a profile of at least one kernel"
        )
    if not any(_measured(launch) for launch in launches):
        raise InputError(
            f"{where} holds none of the counters; accepted: a profile made with --metrics {metrics()}"
        )
    return matched(launches, stated, Path(path).name, notes, read_range)


def metrics() -> str:
    return ",".join(METRICS[COLUMN[q]][0] for q in QUANTITIES)


def _launches(path: str | Path, where: str, opened: Opened) -> tuple[list[Profiled], list[str]]:
    if Path(path).suffix == REPORT:
        if not Path(path).is_file():
            raise InputError(
                f"{where} does not exist; accepted: a report of ncu, or a CSV that it wrote"
            )
        return _of_report(Path(path), where, opened)
    try:
        return parse(text_of_file(path, where))
    except InputError as error:
        raise InputError(str(error) if OPTION in str(error) else f"{where}: {error}") from None


def _of_report(path: Path, where: str, opened: Opened) -> tuple[list[Profiled], list[str]]:
    """Launches of a report by the profiler's Python module; without one that is new enough, by the profiler."""
    refused: InputError | None = None
    try:
        # the profiler's Python module needs no GPU tools; where it is missing or too old, ncu itself converts
        by_module = opened(path)
        if by_module is not None:
            return [profiled_of(facts) for facts in by_module], []
    except InputError as error:
        refused = error
    try:
        return parse_raw(import_report(path))
    except InputError as error:
        # the module's reason where there is no profiler, else the profiler's own
        why = refused if refused is not None and not _has_ncu() else error
        hint = f"or a CSV made elsewhere with ncu --import {path.name} --csv --page raw --print-units base"
        accepted = f"a report that ncu here can read, or its Python module (pip install ncu-report), {hint}"
        raise InputError(f"{where}: {why}; accepted: {accepted}") from None


def _has_ncu() -> bool:
    try:
        find_ncu()
    except InputError:
        return False
    return True


def said_of(launch: Profiled, stated: Given, read_range: Told) -> Given:
    """What is said of a launch: by the NVTX ranges around it, the innermost first, and by `stated`. Raises Unknown
    where a range says what is no option."""
    # outermost first, so that what an inner range says goes over it
    for text in launch.ranges:
        for words in TOLD.findall(text):
            try:
                stated = stated.under(read_range(words.strip()))
            except InputError as error:
                raise Unknown(f"NVTX range 'iosim{words}': {error}") from None
    return stated


def matched(
    launches: Sequence[Profiled],
    stated: Given,
    source: str,
    notes: Sequence[str] = (),
    read_range: Told = lambda text: Given(),
) -> ProfileRows:
    """The launches as rows; those of one call, a main launch and the ones that belong to it, share its number."""
    rows: list[Row] = []
    unmatched: list[Skipped] = []
    parts: list[str] = []
    first: Row | None = None
    call = 0
    for number, launch in enumerate(launches, start=1):
        measured = _measured(launch)
        try:
            recognised = recognise(launch.kernel, launch.grid, said_of(launch, stated, read_range))
            if not measured:
                raise Unknown("has none of the counters that are compared")
            # a launch that belongs to others is taken only right behind all of them
            before = (first and first.implementation, tuple(parts))
            if recognised.follows and before != (recognised.implementation, recognised.follows):
                raise Unknown(
                    f"is not preceded by the launches of its call ({', '.join(recognised.follows)})"
                )
        except Unknown as reason:
            unmatched.append(Skipped(_bare(launch, source, number), str(reason)))
            if "elementwise_kernel" not in launch.kernel and "Memset" not in launch.kernel:
                first, parts = (
                    None,
                    [],
                )  # PyTorch's elementwise kernels and fills may stand between those of one call
            continue
        # a launch with none before it begins a call
        if not recognised.follows:
            call, first, parts = call + 1, None, []
        parts.append(recognised.part)
        # later launches have the problem of the first: their names and grids do not tell it
        facts = recognised.facts if first is None else dict(first.facts)
        rows.append(row_of(launch, recognised, facts, source, call, len(parts)))
        first = first or rows[-1]
    return ProfileRows(tuple(rows), tuple(unmatched), tuple(notes))


def _measured(launch: Profiled) -> dict[str, int | float]:
    counted = {q: value for q in QUANTITIES if (value := launch.column(COLUMN[q])) is not None}
    return {
        q: value if q == "time" else round(value) * UNIT.get(q, 1) for q, value in counted.items()
    }


def row_of(
    launch: Profiled,
    recognised: Call,
    facts: dict[str, str],
    source: str,
    call: int = 1,
    number: int = 1,
) -> Row:
    columns = {
        "implementation": recognised.implementation,
        "stage": recognised.part,
        "kernel": launch.kernel,
    }
    columns |= {
        "grid": str(launch.grid or ""),
        "block": str(launch.block or ""),
        "call": str(call),
        "launch": str(number),
    }
    for name in ("registers", "smem_bytes"):
        value = launch.column(name)
        columns[name] = "" if value is None else str(round(value))
    # iosim's forward has a warp per 32 threads of its block; other libraries add loading warps
    if recognised.implementation == "flash_fwd" and not facts.get("warps") and launch.block:
        columns["warps"] = str(launch.block[0] // 32)
    return Row(
        source,
        call,
        number,
        False,
        recognised.implementation,
        {**facts, **columns},
        _measured(launch),
    )


def _bare(launch: Profiled, source: str, number: int) -> Row:
    name = launch.kernel if len(launch.kernel) <= NAME_SHOWN else f"{launch.kernel[:NAME_SHOWN]}..."
    return Row(
        source,
        number,
        1,
        False,
        name,
        {"kernel": launch.kernel, "grid": str(launch.grid or "")},
        {},
    )

"""Rows from a user's own profile: an Nsight Compute report (.ncu-rep), or its raw page in CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iosim.base.errors import InputError
from iosim.evidence.cuda.ncu import METRICS, Profiled, import_report, parse_raw
from iosim.evidence.validate.given import Call, Given, Unknown
from iosim.evidence.validate.recognise import recognise
from iosim.evidence.validate.residuals import Skipped
from iosim.evidence.validate.rows import COLUMN, QUANTITIES, Row, text_of_file

OPTION = "--ncu"
NAME_SHOWN = 60
REPORT = ".ncu-rep"


@dataclass(frozen=True)
class ProfileRows:
    """`rows` are matched, `unmatched` are not, each with the reason; `notes` tell of broken lines of the file."""

    rows: tuple[Row, ...]
    unmatched: tuple[Skipped, ...]
    notes: tuple[str, ...]


def read_profile(path: str | Path, stated: Given) -> ProfileRows:
    """The launches of a profile, matched with catalog kernels by their names and grids and by what is given.

    Raises:
        InputError: the file cannot be read, is no profile, or holds none of the counters.
    """
    where = f"{OPTION} '{path}'"
    launches, notes = _launches(path, where)
    if not launches:
        told = f": {notes[0]}" if notes else ""
        raise InputError(f"{where} holds no whole launch{told}; accepted: a profile of at least one kernel")
    if not any(_measured(launch) for launch in launches):
        raise InputError(f"{where} holds none of the counters; accepted: a profile made with --metrics {metrics()}")
    return matched(launches, stated, Path(path).name, tuple(notes))


def metrics() -> str:
    """The counters of QUANTITIES, as the profiler's option takes them."""
    return ",".join(METRICS[COLUMN[q]][0] for q in QUANTITIES)


def _launches(path: str | Path, where: str) -> tuple[list[Profiled], list[str]]:
    if Path(path).suffix == REPORT:
        if not Path(path).is_file():
            raise InputError(f"{where} does not exist; accepted: a report of ncu, or its raw page in CSV")
        try:
            return parse_raw(import_report(Path(path)))
        except InputError as error:
            hint = f"or a CSV made elsewhere with ncu --import {Path(path).name} --csv --page raw --print-units base"
            raise InputError(f"{where}: {error}; accepted: a report that ncu here can read, {hint}") from None
    try:
        return parse_raw(text_of_file(path, where))
    except InputError as error:
        raise InputError(str(error) if OPTION in str(error) else f"{where}: {error}") from None


def matched(launches: Sequence[Profiled], stated: Given, source: str, notes: tuple[str, ...] = ()) -> ProfileRows:
    """The launches as rows; those of one call, a main launch and the ones that belong to it, share its number."""
    rows: list[Row] = []
    unmatched: list[Skipped] = []
    parts: list[str] = []
    first: Row | None = None
    call = 0
    for number, launch in enumerate(launches, start=1):
        measured = _measured(launch)
        try:
            recognised = recognise(launch.kernel, launch.grid, stated)
            if not measured:
                raise Unknown("has none of the counters that are compared")
            if recognised.follows and (
                first is None or tuple(parts) != recognised.follows or not _belongs(recognised, first)
            ):
                raise Unknown(f"is not preceded by the launches of its call ({', '.join(recognised.follows)})")
        except Unknown as reason:
            unmatched.append(Skipped(_bare(launch, source, number), str(reason)))
            if not _passes_by(launch.kernel):
                first, parts = None, []
            continue
        if not recognised.follows:
            call += 1
            first, parts = None, []
        facts = recognised.facts if first is None else dict(first.facts)
        row = _row(launch, recognised, facts, source, call, len(parts) + 1)
        first = first or row
        parts.append(recognised.part)
        rows.append(row)
    return ProfileRows(tuple(rows), tuple(unmatched), notes)


def _belongs(recognised: Call, first: Row) -> bool:
    return recognised.implementation == first.implementation


def _passes_by(kernel: str) -> bool:
    """Whether a launch may stand between those of one call: PyTorch's elementwise kernels and fills."""
    return "elementwise_kernel" in kernel or "Memset" in kernel


def _measured(launch: Profiled) -> dict[str, int | float]:
    values: dict[str, int | float] = {}
    for quantity in QUANTITIES:
        value = launch.column(COLUMN[quantity])
        if value is not None:
            values[quantity] = value if quantity == "time" else round(value)
    return values


def _row(launch: Profiled, recognised: Call, facts: dict[str, str], source: str, call: int, number: int) -> Row:
    registers, shared = launch.column("registers"), launch.column("smem_bytes")
    own = {
        "implementation": recognised.implementation, "kernel": launch.kernel, "grid": str(launch.grid),
        "block": str(launch.block), "registers": "" if registers is None else str(round(registers)),
        "smem_bytes": "" if shared is None else str(round(shared)), "call": str(call), "launch": str(number),
        "stage": recognised.part,
    }  # fmt: skip
    if recognised.implementation == "flash_fwd" and not facts.get("warps"):
        own["warps"] = str(launch.block[0] // 32)
    return Row(source, call, number, False, recognised.implementation, {**facts, **own}, _measured(launch))


def _bare(launch: Profiled, source: str, number: int) -> Row:
    """A launch that is not matched, under its own name."""
    name = launch.kernel if len(launch.kernel) <= NAME_SHOWN else f"{launch.kernel[:NAME_SHOWN]}..."
    return Row(source, number, 1, False, name, {"kernel": launch.kernel, "grid": str(launch.grid)}, {})

"""The tidy tables: what a file already holds, and which calls of a plan it still lacks.

A row a launch, all rows of a call with one `call` number. A file may be added to: calls that it holds, told by what was
run and not by their number, are not run again, so that an interrupted plan goes on where it stopped.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.base.records import dataclass, field
from iosim.evidence.columns import KNOBS, LAUNCH, METRICS, PROBLEM, TILE
from iosim.evidence.measure.machine import facts, write_provenance

COLUMNS = (
    "call",
    "launch",
    *PROBLEM,
    *TILE,
    *LAUNCH,
    *(name for name in METRICS if name not in LAUNCH),
    *KNOBS,
    "spill_store_bytes",
    "sources",
)
"""Columns of a profiled table; kernels/measurements/README.md says what each counts."""
TIME_COLUMNS = ("call", *PROBLEM, *TILE, *KNOBS, "l2_start", "ms", "tflops")
"""Columns of a table of times: `l2_start` is warm or cold, `ms` the median, `tflops` over the kept pairs."""

Row = dict[str, str]


class Described(Protocol):
    def columns(self) -> Row:
        """The columns of a row that the call decides."""

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""


C = TypeVar("C", bound=Described)


@dataclass
class Table:
    """A table that is being filled: its rows, how many calls were measured in this run, and why others were not.
    `provenance` is what is said of it beside the machine."""

    path: Path
    columns: Sequence[str]
    provenance: Mapping[str, Any]
    rows: list[Row] = field(init=False)
    measured: int = 0
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = read_table(self.path, self.columns)

    def add(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        self.measured += len({row["call"] for row in rows})

    def save(self) -> None:
        write_table(self.path, self.rows, self.columns)
        write_provenance(self.path, {**facts(), **self.provenance})


def read_table(path: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of a table written here; none where there is no file yet. Raises InputError where the file is another
    table."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            names, rows = list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = f"{error}; accepted: a new file, or a table made here"
        raise InputError(f"`out` '{path}' cannot be read: {why}") from None
    # a short row lacks values, a long one has some under no name
    if names != list(columns) or any(None in (*row, *row.values()) for row in rows):
        raise InputError(
            f"`out` '{path}' is another table; accepted: a new file, or one that this command wrote"
        )
    return rows


def write_table(path: Path, rows: Iterable[Mapping[str, str]], columns: Sequence[str]) -> None:
    """Writes the table whole, in the order of calls and launches; as it stands where rows have no call."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        sorted(rows, key=lambda row: (int(row.get("call", 0)), int(row.get("launch", 0))))
    )
    write_whole(path, out.getvalue())


def missing(cases: Sequence[C], rows: Iterable[Mapping[str, str]], l2_start: str = "") -> list[C]:
    names = list(cases[0].columns()) if cases else []
    calls = {
        row.get("call", n): (*map(row.get, names), row.get("l2_start", ""))
        for n, row in enumerate(rows)
    }
    # counted, not a set: a plan may have the same call several times on purpose
    remaining, wanted = Counter(calls.values()), []
    for case in cases:
        key = (*case.columns().values(), l2_start)
        if remaining[key] > 0:
            remaining[key] -= 1
        else:
            wanted.append(case)
    return wanted


def next_call(rows: Iterable[Mapping[str, str]]) -> int:
    return max((int(row["call"]) for row in rows), default=0) + 1

"""The tidy tables: their columns, what a file already holds, and which calls of a plan it still lacks.

A row a launch, all rows of a call with one `call` number. A file may be added to: calls that it holds, told by what was
run and not by their number, are not run again, so that an interrupted plan goes on where it stopped.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.files import write_whole
from iosim.evidence.measure.case import KNOBS, PROBLEM, TILE, Case, describe

COUNTED = (
    "hbm_read", "hbm_write", "l2_read", "l2_write", "l2_slice_read", "l2_slice_write", "l2_slice_miss", "l2_fabric",
)  # fmt: skip
COLUMNS = (
    "call", "launch", *PROBLEM, *TILE, "kernel", "grid", "block", "registers", "smem_bytes", *COUNTED, "seconds",
    "local_read", "local_write", "smem_wavefronts", "sm_clock_hz", *KNOBS, "spill_store_bytes", "sources",
)  # fmt: skip
"""Of a profiled table; kernels/measurements/README.md says what each counts."""
TIME_COLUMNS = ("call", *PROBLEM, *TILE, *KNOBS, "l2_start", "ms", "tflops")
"""Of a table of times: `l2_start` is warm or cold, `ms` the median, `tflops` over the kept pairs."""
TELLS = (*PROBLEM, *TILE, *KNOBS)

Row = dict[str, str]
Key = tuple[str, ...]


def read_table(path: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of a table written here; none where there is no file yet.

    Raises:
        InputError: the file is another table.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            names, rows = list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"`out` '{path}' cannot be read: {error}; accepted: a new file, or a table made here"
        ) from None
    if names != list(columns) or any(None in row.values() for row in rows):
        raise InputError(f"`out` '{path}' is another table; accepted: a new file, or one that this command wrote")
    return rows


def write_table(path: Path, rows: Iterable[Mapping[str, str]], columns: Sequence[str]) -> None:
    """Writes the table whole, in the order of calls and launches; as it stands where rows have no call."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: (int(row.get("call", 0)), int(row.get("launch", 0)))))
    write_whole(path, out.getvalue())


def _key(row: Mapping[str, str], more: str = "") -> Key:
    return (*(row[name] for name in TELLS), more)


def held_calls(rows: Iterable[Mapping[str, str]]) -> Counter[Key]:
    """How often a table holds each call."""
    calls = {row["call"]: _key(row, row.get("l2_start", "")) for row in rows}
    return Counter(calls.values())


def missing(cases: Iterable[Case], rows: Iterable[Mapping[str, str]], l2_start: str = "") -> list[Case]:
    """The calls that a table lacks; one that a plan holds twice must be there twice."""
    left = held_calls(rows)
    wanted = []
    for case in cases:
        key = _key(describe(case), l2_start)
        if left[key] > 0:
            left[key] -= 1
        else:
            wanted.append(case)
    return wanted


def next_call(rows: Iterable[Mapping[str, str]]) -> int:
    return max((int(row["call"]) for row in rows), default=0) + 1

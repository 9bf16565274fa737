"""A program's traffic in the format of chrome://tracing and ui.perfetto.dev, on a clock of predicted time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from iosim.base.files import write_whole
from iosim.studies.program.row import OperatorTraffic

US = 1e6
Event = dict[str, Any]


def write(rows: Sequence[OperatorTraffic], title: str, path: str | Path) -> None:
    """Write the trace of a program's operators.

    Raises:
        InputError: the file cannot be written.
    """
    document = {"displayTimeUnit": "ms", "traceEvents": list(events(rows, title))}
    write_whole(Path(path), json.dumps(document) + "\n")


def events(rows: Sequence[OperatorTraffic], title: str) -> Iterator[Event]:
    """Operators on one line of time, the modules that they stand in above them, and HBM's rate as a counter."""
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": title}}
    open_modules: list[tuple[str, float]] = []
    now = 0.0
    for row in rows:
        path = (row.phase, *row.module)
        shared = 0
        names = [name for name, _ in open_modules]
        while shared < min(len(path), len(names)) and path[shared] == names[shared]:
            shared += 1
        yield from _closed(open_modules, shared, now)
        open_modules += [(name, now) for name in path[shared:]]
        length = row.time_s * US
        yield _operator(row, now, length)
        yield {"ph": "C", "pid": 0, "name": "HBM GB/s", "ts": now, "args": _rates(row)}
        now += length
    yield from _closed(open_modules, 0, now)
    yield {"ph": "C", "pid": 0, "name": "HBM GB/s", "ts": now, "args": {"read": 0, "written": 0}}


def _closed(open_modules: list[tuple[str, float]], keep: int, now: float) -> Iterator[Event]:
    """Modules that end here, the innermost first."""
    while len(open_modules) > keep:
        name, begin = open_modules.pop()
        yield {"ph": "X", "pid": 0, "tid": 0, "cat": "module", "name": name, "ts": begin, "dur": now - begin}


def _operator(row: OperatorTraffic, begin: float, length: float) -> Event:
    values = row.to_dict()
    told = ("module", "kernel", "hbm_read", "hbm_write", "compulsory", "l2_read", "l2_write", "flops", "known")
    return {"ph": "X", "pid": 0, "tid": 0, "cat": row.phase, "name": row.operator, "ts": begin, "dur": length,
            "args": {name: values[name] for name in told}}  # fmt: skip


def _rates(row: OperatorTraffic) -> dict[str, float]:
    seconds = max(row.time_s, 1e-12) * 1e9
    return {"read": row.hbm_read / seconds, "written": row.hbm_write / seconds}

"""A timeline in Chrome's Trace Event Format, which ui.perfetto.dev and chrome://tracing draw.

Perfetto keeps whole nanoseconds and drops a slice that overlaps another of its row, were it by one: ends are rounded,
and lengths follow. Process 0, thread 0 and a thread with its process's number are special to it: processes count from
1, and rows from above them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Event = dict[str, Any]
VIEWERS = "https://ui.perfetto.dev (or chrome://tracing)"
FIRST_ROW = 10
NS_PER_US = 1000


def process(pid: int, name: str) -> Event:
    """The name of a group of rows and counters; `pid` is 1 to 9."""
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def row(pid: int, number: int, name: str) -> list[Event]:
    metadata = {"ph": "M", "pid": pid, "tid": FIRST_ROW + number}
    place = {**metadata, "name": "thread_sort_index", "args": {"sort_index": number}}
    return [{**metadata, "name": "thread_name", "args": {"name": name}}, place]


def span(
    name: str,
    kind: str,
    at: tuple[int, int],
    begin_us: float,
    end_us: float,
    args: Mapping[str, Any] | None = None,
) -> Event:
    """A slice of a `kind` in the row `at`: its process and its number there."""
    # Both ends are rounded, never the length: neighbours then share an end and do not overlap.
    begin, end = round(begin_us * NS_PER_US), round(end_us * NS_PER_US)
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": at[0],
        "tid": FIRST_ROW + at[1],
        "ts": begin / NS_PER_US,
        "dur": (end - begin) / NS_PER_US,
        "args": dict(args or {}),
    }


def counter(name: str, pid: int, at_us: float, values: Mapping[str, float]) -> Event:
    """The values of a counter from a time on; every event of that name has the same series."""
    return {
        "ph": "C",
        "name": name,
        "pid": pid,
        "ts": round(at_us * NS_PER_US) / NS_PER_US,
        "args": dict(values),
    }


def whole(events: Iterable[Event], **extra: Any) -> dict[str, Any]:
    """The file as data, of slices each before those inside it; `extra` stands in `otherData`."""
    # Names of processes and rows first ("M" is metadata), then by start; the sort is stable, so
    # an outer slice stays before an inner one that starts with it.
    ordered = sorted(events, key=lambda e: (e["ph"] != "M", e.get("ts", 0.0)))
    return {"traceEvents": ordered, "otherData": extra}


def text(file: Mapping[str, Any]) -> str:
    return json.dumps(file, separators=(",", ":"), allow_nan=False) + "\n"

"""Checks a trace as its viewers read it: what they would drop, merge, misname or refuse.

The rules, and where they stand:

- "Trace Event Format" (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): an object with
  `traceEvents`, or an array; `displayTimeUnit` ms or ns; the phases and their fields; `ts` and `dur` in microseconds;
  slices of a thread nest.
- catapult, tracing/tracing/extras/importer/trace_event_importer.html (chrome://tracing): the names of metadata; a
  counter's series are those of its first event; flow events need a name, an id and a slice around them.
- Perfetto (ui.perfetto.dev), src/trace_processor/importers/json/json_trace_tokenizer.cc: an event without `ph`, or
  without `ts` but for M, is dropped; times become whole nanoseconds by `llround(1000 * us)`; numbers of processes and
  threads have 32 bits; thread 0 becomes its process's number (until pull request 2278).
- Perfetto, json_trace_parser_impl.cc beside it: X without `dur` is dropped; a counter's values are numbers, a flow's id
  is one or a text. Issue 394: processes are counted from 1.
- Perfetto, importers/common/slice_tracker.cc, MaybeCloseStack: a slice that begins in an open one of its thread and
  ends after it is dropped (`slice_drop_overlapping_complete_event`). Of slices that begin together, the first is open.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

NANOSECONDS = 1000
REQUIRED = {
    "B": ("name", "tid"),
    "E": ("tid",),
    "X": ("name", "tid", "dur"),
    "i": ("name",),
    "I": ("name",),
    "b": ("name", "cat", "id"),
    "n": ("name", "cat", "id"),
    "e": ("name", "cat", "id"),
    "C": ("name", "args"),
    "s": ("name", "tid", "id"),
    "t": ("name", "tid", "id"),
    "f": ("name", "tid", "id"),
    "M": ("name", "args"),
}
"""Phase -> fields beside `ph`, `pid` and, but for M, `ts`. Of the others (P, N, O, D, v, V, R, c), no trace has any."""
METADATA: dict[str, tuple[str, type]] = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}

Event = dict[str, Any]


def checked(text: str) -> dict[str, Any]:
    """The trace that `text` holds. Raises AssertionError: a viewer would not show what was written."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    value = json.loads(text, parse_constant=refuse)
    whole: dict[str, Any] = value if isinstance(value, dict) else {"traceEvents": value}
    assert whole.get("displayTimeUnit", "ms") in ("ms", "ns"), whole["displayTimeUnit"]
    events = whole["traceEvents"]
    assert isinstance(events, list), "traceEvents is a list"
    for event in events:
        _fields(event)
    timed = sorted((e for e in events if e["ph"] != "M"), key=lambda e: _ns(e["ts"]))
    _rows(events)
    _nested(timed)
    _counters(timed)
    _flows(timed)
    return whole


def _fields(event: Event) -> None:
    phase = event.get("ph")
    assert phase in REQUIRED, f"phase {phase!r} of {event}"
    missing = [
        name
        for name in ("pid", *REQUIRED[phase], *(() if phase == "M" else ("ts",)))
        if name not in event
    ]
    assert not missing, f"no {missing} in {event}"
    kinds: dict[str, Callable[[Any], bool]] = {
        "pid": _number_of_a_process,
        "tid": _number_of_a_process,
        "ts": _time,
        "dur": _time,
        "name": lambda v: isinstance(v, str) and bool(v),
        "cat": lambda v: isinstance(v, str) and bool(v),
        "args": lambda v: isinstance(v, dict),
        "id": lambda v: isinstance(v, int | str) and not isinstance(v, bool),
        "s": lambda v: v in (("g", "p", "t") if phase in "iI" else ()),
        "bp": lambda v: v == "e",
    }
    wrong = [name for name, value in event.items() if name in kinds and not kinds[name](value)]
    assert not wrong, f"wrong {wrong} in {event}"
    if phase == "M":
        assert event["name"] in METADATA, f"metadata {event['name']!r}"
        key, kind = METADATA[event["name"]]
        assert isinstance(event["args"].get(key), kind), f"no {key} in {event}"
        assert "tid" in event or event["name"].startswith("process"), f"no tid in {event}"
    if phase == "C":
        values = list(event["args"].values())
        assert values, f"no series in {event}"
        assert all(isinstance(v, int | float) and not isinstance(v, bool) for v in values), (
            f"no numbers in {event}"
        )


def _number_of_a_process(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _time(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def _ns(microseconds: float) -> int:
    return math.floor(microseconds * NANOSECONDS + 0.5)


def _rows(events: list[Event]) -> None:
    """No process is the idle one, and no row is taken for another or for its process's first."""
    processes = {e["pid"] for e in events}
    rows = {
        e["tid"]
        for e in events
        if "tid" in e and e.get("name") not in ("process_name", "process_sort_index")
    }
    assert 0 not in processes, "process 0 is the idle process"
    assert 0 not in rows, "thread 0 becomes its process's number"
    assert not rows & processes, f"threads {sorted(rows & processes)} have the number of a process"
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    drawn = {(e["pid"], e["tid"]) for e in events if e["ph"] in "BX"}
    assert drawn <= named, f"rows {sorted(drawn - named)} have no name"
    assert {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"} == processes


def _nested(timed: list[Event]) -> None:
    """`timed` in order of their times, those of one time as they stand in the file."""
    stacks: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for event in timed:
        if event["ph"] not in "BEX":
            continue
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        begin = _ns(event["ts"])
        if event["ph"] == "E":
            assert stack, f"nothing to end for {event}"
            assert stack.pop()[1] == -1, f"{event} ends a slice inside another"
            continue
        length = _ns(event["dur"]) if event["ph"] == "X" else -1
        while stack and stack[-1][1] >= 0:
            end = sum(stack[-1][:2])
            if end < begin or (end == begin and (stack[-1][1] or length)):
                stack.pop()
                continue
            assert length < 0 or begin + length <= end, (
                f"{event} overlaps {stack[-1][2]!r}, and is dropped"
            )
            break
        stack.append((begin, length, event.get("name", "")))
    assert not [s for stack in stacks.values() for s in stack if s[1] == -1], "a slice has no end"


def _counters(timed: list[Event]) -> None:
    first: dict[tuple[Any, ...], set[str]] = {}
    for event in timed:
        if event["ph"] == "C":
            series = first.setdefault(
                (event["pid"], event["name"], event.get("id")), set(event["args"])
            )
            assert set(event["args"]) == series, f"{event} has other series than {sorted(series)}"


def _flows(timed: list[Event]) -> None:
    slices = [
        (e["pid"], e["tid"], _ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"]))
        for e in timed
        if e["ph"] == "X"
    ]
    begun: set[Any] = set()
    for event in timed:
        if event["ph"] not in "stf":
            continue
        here = (event["pid"], event["tid"])
        at = _ns(event["ts"])
        assert event["ph"] == "s" or event["id"] in begun, f"{event} was not begun"
        begun.add(event["id"])
        assert any(s[:2] == here and s[2] <= at <= s[3] for s in slices), f"{event} is in no slice"

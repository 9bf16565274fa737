"""Timelines: whatever the times, viewers keep every slice; and the checker of that refuses what they would not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_events import checked

from iosim.show import timeline

PS_PER_US = 1e6
NAMED = [timeline.process(1, "SMs"), *timeline.row(1, 0, "SM 0")]


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 10**7), st.integers(0, 3)), max_size=40)
)
def test_slices_back_to_back_and_inside_each_other_are_all_kept(
    lengths: list[tuple[int, int, int]],
) -> None:
    """Of picoseconds: gaps, lengths, and how many slices of the same times stand inside each other."""
    spans, now = [], 0
    for gap, length, inside in lengths:
        begin, now = now + gap, now + gap + length
        times = begin / PS_PER_US, now / PS_PER_US
        spans += [timeline.span(f"level {n}", "work", (1, 0), *times) for n in range(inside + 1)]
    outer = timeline.span("all", "module", (1, 0), 0, now / PS_PER_US)
    traceEvents = checked(timeline.text(timeline.whole([*NAMED, outer, *spans])))["traceEvents"]
    assert len(traceEvents) == len(spans) + 4
    assert sum(e["dur"] for e in traceEvents if e.get("cat") == "module") == pytest.approx(
        now / PS_PER_US, abs=1e-3
    )


SPAN: dict[str, Any] = timeline.span("a", "work", (1, 0), 1.0, 3.0)
COUNT = timeline.counter("bytes", 1, 0.0, {"read": 1})
FLOW = {"ph": "s", "pid": 1, "tid": SPAN["tid"], "name": "flow", "id": 1, "ts": 2.0}
FAULTS = [
    ("phase", {**SPAN, "ph": "Z"}),
    ("phase", {k: v for k, v in SPAN.items() if k != "ph"}),
    ("no .'dur'.", {k: v for k, v in SPAN.items() if k != "dur"}),
    ("no .'ts'.", {k: v for k, v in SPAN.items() if k != "ts"}),
    ("wrong .'dur'.", {**SPAN, "dur": -1}),
    ("wrong .'ts'.", {**SPAN, "ts": "1"}),
    ("wrong .'pid'.", {**SPAN, "pid": 2**32}),
    ("idle process", timeline.process(0, "p")),
    ("thread 0", {**SPAN, "tid": 0}),
    ("number of a process", {**SPAN, "tid": 1}),
    ("no name", {**SPAN, "tid": 99}),
    ("metadata 'thread'", {**NAMED[1], "name": "thread"}),
    ("no sort_index", {**NAMED[2], "args": {}}),
    ("overlaps 'a'", {**SPAN, "ts": 2.999}),
    ("overlaps 'a'", {**SPAN, "dur": 2.001}),
    ("nothing to end", {"ph": "E", "pid": 1, "tid": SPAN["tid"], "ts": 0.5}),
    ("has no end", {"ph": "B", "name": "b", "pid": 1, "tid": SPAN["tid"], "ts": 4}),
    ("no numbers", {**COUNT, "args": {"read": "1"}}),
    ("no series", {**COUNT, "args": {}}),
    ("other series", {**COUNT, "args": {"read": 1, "written": 1}}),
    ("was not begun", {**FLOW, "ph": "f", "id": 2}),
    ("in no slice", {**FLOW, "ts": 4.0}),
]


@pytest.mark.parametrize(("reason", "event"), FAULTS)
def test_what_viewers_do_not_show_is_refused(reason: str, event: dict[str, Any]) -> None:
    sound = [*NAMED, SPAN, COUNT, FLOW, {**FLOW, "ph": "f", "bp": "e", "ts": 2.5}]
    checked(json.dumps(sound))
    with pytest.raises(AssertionError, match=reason):
        checked(json.dumps([*sound, event]))


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(AssertionError, match="NaN is no JSON"):
        checked(json.dumps([*NAMED, timeline.counter("bytes", 1, 0.0, {"read": float("nan")})]))
    with pytest.raises(ValueError, match="not JSON compliant"):
        timeline.text({"traceEvents": [float("nan")]})

"""The rows of a part of a sweep as columns, in closed form or predicted one by one: the same rows whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.fields import Kind
from iosim.base.records import dataclass
from iosim.kernel.conditions import Conditions
from iosim.prediction.many import Request, try_many
from iosim.prediction.result import Prediction
from iosim.studies.sweep import cases, closed
from iosim.studies.sweep.cases import (
    FOLLOWS,
    SETTINGS,
    Numbers,
    Part,
    Words,
    ma,
    problem_of,
    settings_of,
    shown,
)

KEYS = {"passes": "pass"}
KINDS = {Kind.WHOLE: "int", Kind.PROBABILITY: "float", Kind.FLAG: "bool"}
MOST = 1 << 63
"""Bytes from here on do not fit a file's whole numbers."""


def timed(conditions: Conditions) -> bool:
    """True where rows have a time: closed forms have none."""
    return conditions.method not in closed.METHODS


@dataclass(frozen=True)
class Done:
    """Rows `start` to `stop`, as columns or as CSV; how many were refused, and predicted alone for want of a form."""

    start: int
    stop: int
    rows: Any
    refused: int
    one_by_one: int


def columns(names: tuple[str, ...], conditions: Conditions) -> dict[str, str]:
    """The columns of a sweep's rows, and of what type they are: text, int, float or bool."""
    kinds = {name: kind for name, kind in cases.LABELS.items() if name in names}
    kinds |= dict.fromkeys((*cases.PLACES, "runs_as"), "text")
    kinds |= {
        KEYS.get(name, name): KINDS.get(SETTINGS[name].kind, "text") for name in _shown(names)
    }
    kinds |= dict.fromkeys(closed.KERNEL, "int") | {"l2_start": "text", "method": "text"}
    kinds |= {name: "int" for name in closed.FOUND if name not in closed.KERNEL}
    if timed(conditions):
        kinds |= {"time_s": "float", "bound_by": "text"}
    return kinds | {"refused": "text"}


def _shown(names: tuple[str, ...]) -> list[str]:
    return [name for name in SETTINGS if name in cases.ALWAYS or name in names]


def evaluate(part: Part, names: tuple[str, ...], conditions: Conditions) -> Done:
    # Closed forms fill what they can; the rest is predicted row by row into the same columns.
    result = closed.evaluate(part, conditions.method or "", conditions.l2_start)
    method: list[str | None] = [None if timed(conditions) else conditions.method] * part.rows
    bound_by: list[str | None] = [None] * part.rows
    times = ma.masked_all(part.rows, dtype=np.float64)
    for row, outcome in _one_by_one(part, result.remaining.tolist(), conditions):
        if isinstance(outcome, InputError):
            result.refused[row] = str(outcome)
            continue
        for name, value in _numbers(outcome).items():
            result.columns[name][row] = value
        result.runs_as[row] = outcome.kernel.name
        method[row], bound_by[row] = outcome.method, outcome.time.bound_by
        times[row] = outcome.time.total_s
    cells: dict[str, Words | Numbers] = dict(part.columns) | result.columns | _problem(part, names)
    words = {
        "runs_as": result.runs_as,
        "method": method,
        "bound_by": bound_by,
        "refused": result.refused,
    }
    cells |= {name: Words.of(values) for name, values in words.items()}
    cells |= {
        "l2_start": Words((conditions.l2_start,), np.zeros(part.rows, dtype=np.int64)),
        "time_s": times,
    }
    refused = sum(reason is not None for reason in result.refused)
    ordered = {name: cells[name] for name in columns(names, conditions)}
    return Done(
        part.start,
        part.start + part.rows,
        ordered,
        refused,
        0 if timed(conditions) else result.without_form,
    )


def _one_by_one(
    part: Part, rows: list[int], conditions: Conditions
) -> Iterator[tuple[int, Prediction | InputError]]:
    """Rows by themselves, with their predictions or why they are refused; equal replays are shared."""
    requests: dict[int, Request] = {}
    for row in rows:
        case = part.case(row)
        try:
            call = problem_of(case), case["kernel"], case["gpu"], settings_of(case)
            requests[row] = Request(*call, l2_start=conditions.l2_start, method=conditions.method)
        except InputError as error:
            yield row, error
    for row, outcome in zip(requests, try_many(list(requests.values()), jobs=1), strict=True):
        # A row that no file could hold is refused rather than wrapped round.
        if not isinstance(outcome, InputError) and max(_numbers(outcome).values()) >= MOST:
            yield (
                row,
                InputError(
                    "more bytes than 64 bits count; accepted: fewer tokens, heads or sequences"
                ),
            )
        else:
            yield row, outcome


def _numbers(p: Prediction) -> dict[str, int]:
    beside = (
        p.flops,
        p.memory_bytes["peak"],
        max(fit.spilled_registers for fit in p.call.residencies),
    )
    return closed.numbers(
        p.kernel, p.traffic, p.traffic if p.hbm_known else None, p.hbm_bounds, *beside
    )


def _problem(part: Part, names: tuple[str, ...]) -> dict[str, Words | Numbers]:
    cells: dict[str, Words | Numbers] = {}
    for name in _shown(names):
        key, column = KEYS.get(name, name), part.columns.get(name)
        if name in FOLLOWS:
            cells[key] = part.followed(name)
        elif column is None:
            cells[key] = Words((SETTINGS[name].default,), np.zeros(part.rows, dtype=np.int64))
        else:
            cells[key] = shown(name, column)
    return cells

"""How much the tests try: all of it, or a part in the run that leaves slow tests out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

QUICK_SHARE = 24
"""A quick run draws one in so many examples of a property."""
LEAST_EXAMPLES = 5
DEFAULT_EXAMPLES = 100
"""Hypothesis' own number."""

SHARE = int(os.environ.get("IOSIM_EXAMPLES_SHARE", "1"))
"""One in so many of them in any other run: .ci/run asks for a sixteenth."""

KEPT_REPLAYS = "IOSIM_TESTS_KEPT"
"""The environment variable of the directory that a run's tests may keep replays in, together."""

quick = False
"""Set by conftest.py before tests are collected."""


def examples(all_of_them: int) -> int:
    """How many examples of a property are drawn in this run."""
    return min(all_of_them, max(LEAST_EXAMPLES, all_of_them // (QUICK_SHARE if quick else SHARE)))


def some(values: Iterable[Any]) -> list[Any]:
    """Cases of a slow test, of which a run that asks for a share takes one in four."""
    return list(values)[:: 4 if SHARE > 1 else 1]


def slow(value: Any) -> Any:
    """Parameters of one case, which a quick run leaves out; a tuple holds several."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)


def every(stride: int) -> list[Any]:
    """Parameters of a test that takes one in so many of its rows: `stride` in a quick run, and all in the slow part."""
    return [stride, slow(1)]


def quick_every(values: Iterable[Any], stride: int) -> list[Any]:
    """Parameters of a test, of which a quick run takes one in so many."""
    return [v if n % stride == 0 else slow(v) for n, v in enumerate(values)]


def quick_first(values: Iterable[Any], number: int) -> list[Any]:
    """Parameters of a test, of which a quick run takes the first `number`."""
    return [v if n < number else slow(v) for n, v in enumerate(values)]

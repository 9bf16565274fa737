"""What iosim gives is what was recorded of it: tests/golden/make_studies.py makes the cases and says when to run it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from effort import slow
from scripts import load_script

from iosim.catalog.libraries import entry_names

pytestmark = pytest.mark.usefixtures("replays_once")

STUDIES = load_script("tests/golden/make_studies.py")
COMMANDS = load_script("tests/golden/command_cases.py")
DRAWN = load_script("tests/golden/drawn_cases.py")
REL = 1e-9
"""Floats are recorded with twelve digits; the order in which NumPy sums may move the last of them."""

MOST = 10
"""Differences that are told."""


def apart(recorded: Any, played: Any, at: str = "") -> list[str]:
    """Where two values differ."""
    if isinstance(recorded, list) and isinstance(played, list) and len(recorded) == len(played):
        return [
            x
            for n, (a, b) in enumerate(zip(recorded, played, strict=True))
            for x in apart(a, b, f"{at}[{n}]")
        ]
    if isinstance(recorded, dict) and isinstance(played, dict) and recorded.keys() == played.keys():
        return [x for key, a in recorded.items() for x in apart(a, played[key], f"{at} {key}")]
    if isinstance(recorded, float) and isinstance(played, int | float):
        return (
            []
            if math.isclose(played, recorded, rel_tol=REL, abs_tol=1e-18)
            else [f"{at}: {recorded}, now {played}"]
        )
    return (
        []
        if recorded == played and type(recorded) is type(played)
        else [f"{at}: {recorded}, now {played}"]
    )


APART = ("code", "commands", "drawn", "launches", "pages", "programs")
"""Studies whose tests stand below, in tests/code/test_recorded_code.py, tests/catalog/test_recorded_launches.py,
tests/show/test_recorded_pages.py or tests/integrations/torch/test_recorded_programs.py."""
LONG = ("counts", "tables", "tiles", "replay", "timing", "distributed", "training")


@pytest.mark.recorded
@pytest.mark.parametrize(
    "name", [slow(n) if n in LONG else n for n in STUDIES.STUDIES if n not in APART]
)
def test_studies_are_as_recorded(name: str) -> None:
    held(STUDIES.recorded_in_common(name), STUDIES.made_in_common(name))


@pytest.mark.recorded
@pytest.mark.parametrize("kernel", entry_names())
@pytest.mark.parametrize(
    "name", [slow(n) if n in LONG else n for n in STUDIES.OF_KERNELS if n not in APART]
)
def test_kernels_are_as_recorded(name: str, kernel: str) -> None:
    """A test a kernel, so that a planted change of one is held against its own cases alone."""
    held(STUDIES.recorded_of_kernel(kernel)[name], STUDIES.made_of_kernel(name, kernel))


@pytest.mark.recorded
@pytest.mark.parametrize(
    "call",
    [c if c in COMMANDS.FIRST_CALLS else slow(c) for c in COMMANDS.CALLS],
    ids=[f"{n}-{line.split()[0]}" for n, line in enumerate(COMMANDS.CALLS)],
)
def test_calls_print_what_is_recorded(call: str) -> None:
    """The quick part has the first call of each command."""
    recorded = STUDIES.recorded_in_common("commands")
    cases = STUDIES.plain(list(COMMANDS.cases((call,))))
    held({case: recorded[case] for case, _ in cases}, cases)


def test_all_recorded_calls_are_made_again() -> None:
    calls = [COMMANDS.named(line) for line in COMMANDS.CALLS]
    assert list(STUDIES.recorded_in_common("commands")) == calls


@pytest.mark.slow
@pytest.mark.recorded
@pytest.mark.parametrize("call", DRAWN.calls())
def test_drawn_calls_print_what_is_recorded(call: str) -> None:
    recorded = STUDIES.recorded_in_common("drawn")
    assert {call: recorded[call]} == dict(STUDIES.plain(list(DRAWN.cases((call,)))))


def test_all_drawn_calls_are_recorded() -> None:
    assert tuple(STUDIES.recorded_in_common("drawn")) == DRAWN.calls()


def held(recorded: dict[str, Any], cases: Iterable[tuple[str, Any]]) -> None:
    """That the cases are those recorded, in their order."""
    rest, differ = list(recorded), []
    for case, value in cases:
        assert rest[:1] == [case]
        rest.pop(0)
        differ += apart(recorded[case], value, case)
        assert len(differ) < MOST, "\n".join(differ)
    assert differ == []
    assert rest == []

"""What iosim gives is what was recorded of it: tests/golden/make_studies.py makes the cases and says when to run it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from scripts import load_script

pytestmark = pytest.mark.usefixtures("replays_once")

STUDIES = load_script("tests/golden/make_studies.py")
COMMANDS = load_script("tests/golden/command_cases.py")
REL = 1e-9
"""Floats are recorded with twelve digits; the order in which NumPy sums may move the last of them."""

MOST = 10
"""Differences that are told."""


def apart(recorded: Any, made: Any, at: str = "") -> list[str]:
    """Where two values differ."""
    if isinstance(recorded, list) and isinstance(made, list) and len(recorded) == len(made):
        return [
            x
            for n, (a, b) in enumerate(zip(recorded, made, strict=True))
            for x in apart(a, b, f"{at}[{n}]")
        ]
    if isinstance(recorded, dict) and isinstance(made, dict) and recorded.keys() == made.keys():
        return [x for key, a in recorded.items() for x in apart(a, made[key], f"{at} {key}")]
    if isinstance(recorded, float) and isinstance(made, int | float):
        return (
            []
            if math.isclose(made, recorded, rel_tol=REL, abs_tol=1e-18)
            else [f"{at}: {recorded}, now {made}"]
        )
    return (
        []
        if recorded == made and type(recorded) is type(made)
        else [f"{at}: {recorded}, now {made}"]
    )


LONG = ("counts", "tiles", "replay", "timing", "distributed", "training", "commands")


@pytest.mark.recorded
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in STUDIES.STUDIES]
)
def test_studies_are_as_recorded(name: str) -> None:
    held(STUDIES.recorded(name), STUDIES.made(name))


def test_the_first_call_of_each_command_prints_what_is_recorded() -> None:
    """The slow part has all of them."""
    recorded = STUDIES.recorded("commands")
    made = STUDIES.plain(list(COMMANDS.cases(COMMANDS.FIRST_CALLS)))
    held({case: recorded[case] for case, _ in made}, made)


def held(recorded: dict[str, Any], made: Iterable[tuple[str, Any]]) -> None:
    """That the cases are those recorded, in their order."""
    left, differ = list(recorded), []
    for case, value in made:
        assert left[:1] == [case]
        left.pop(0)
        differ += apart(recorded[case], value, case)
        assert len(differ) < MOST, "\n".join(differ)
    assert differ == []
    assert left == []

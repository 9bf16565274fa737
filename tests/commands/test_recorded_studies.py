"""What iosim gives is what was recorded of it: tests/golden/make_studies.py makes the cases and says when to run it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scripts import load_script

STUDIES = load_script("tests/golden/make_studies.py")
REL = 1e-9
"""Floats are recorded with twelve digits; the order in which NumPy sums may move the last of them."""

MOST = 10
"""Differences that are told."""


def apart(recorded: Any, made: Any, at: str = "") -> list[str]:
    """Where two values differ."""
    if isinstance(recorded, list) and isinstance(made, list) and len(recorded) == len(made):
        return [x for n, (a, b) in enumerate(zip(recorded, made, strict=True)) for x in apart(a, b, f"{at}[{n}]")]
    if isinstance(recorded, dict) and isinstance(made, dict) and recorded.keys() == made.keys():
        return [x for key, a in recorded.items() for x in apart(a, made[key], f"{at} {key}")]
    if isinstance(recorded, float) and isinstance(made, int | float):
        return [] if math.isclose(made, recorded, rel_tol=REL, abs_tol=1e-18) else [f"{at}: {recorded}, now {made}"]
    return [] if recorded == made and type(recorded) is type(made) else [f"{at}: {recorded}, now {made}"]


LONG = ("tiles", "replay", "timing", "distributed", "training")


@pytest.mark.recorded
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in STUDIES.STUDIES])
def test_studies_are_as_recorded(name: str) -> None:
    recorded, differ = STUDIES.recorded(name), []
    left = list(recorded)
    for case, value in STUDIES.made(name):
        assert left[:1] == [case]
        left.pop(0)
        differ += apart(recorded[case], value, case)
        assert len(differ) < MOST, "\n".join(differ)
    assert differ == []
    assert left == []

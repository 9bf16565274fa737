"""The test of a module is found by its name: `iosim/ROOM/.../NAME.py` has `tests/ROOM/.../test_NAME.py`."""

from __future__ import annotations

from pathlib import Path

from scripts import ROOT

LEAST = 237
"""Modules whose test bears their name and lies where they do; 200 is the goal."""


def where_its_test_is(module: Path) -> Path:
    """Where the test of a module is looked for."""
    below = module.relative_to(ROOT / "iosim")
    return ROOT / "tests" / below.parent / f"test_{module.name}"


def modules() -> list[Path]:
    return [path for path in (ROOT / "iosim").rglob("*.py") if not path.name.startswith("__")]


def test_the_test_of_a_module_is_found_by_its_name() -> None:
    total = sum(where_its_test_is(module).is_file() for module in modules())
    assert total >= LEAST, f"{total} modules have a test of their name"
    assert total < LEAST + 10, "raise LEAST to what there is"


def test_a_planted_name_is_seen() -> None:
    assert where_its_test_is(ROOT / "iosim/base/units.py") == ROOT / "tests/base/test_units.py"
    assert not where_its_test_is(ROOT / "iosim/base/no_module.py").exists()

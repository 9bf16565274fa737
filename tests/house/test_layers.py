"""The house: every import between rooms goes downwards, readers do not import each other, and no files form a circle.

Imports inside functions and under TYPE_CHECKING count too: a name that is only read for its type is still known.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec

import pytest
from house import (
    DOORS,
    FLOORS,
    MOST_ARROWS,
    MOST_FLOORS,
    MOST_ROOMS,
    PACKAGE,
    arrows_between_rooms,
    circle,
    drawn_room,
    edges,
    height,
    imported,
    modules,
    room,
    upward,
)
from scripts import ROOT


def test_every_file_lies_in_a_room_with_a_floor() -> None:
    assert {room(name) for name in modules() if name not in DOORS} == set(FLOORS)


def test_imports_go_down() -> None:
    assert upward(edges()) == []


def test_no_files_form_a_circle() -> None:
    assert circle(edges()) == []


def test_the_drawing_of_the_whole_tree_is_small() -> None:
    arrows = arrows_between_rooms()
    rooms = {name for arrow in arrows for name in arrow} | {"kernels"}  # CUDA imports nothing
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)
    assert len(arrows) <= MOST_ARROWS, sorted(arrows)
    assert height(arrows) <= MOST_FLOORS


def test_a_planted_arrow_of_a_script_is_drawn() -> None:
    folder, script = "benchmarks", PACKAGE.parent / "benchmarks" / "terms.py"
    drawn = {drawn_room(module) for module in imported("terms", script, modules())}
    assert "show" in drawn
    assert {(folder, name) for name in drawn if name != "iosim"} <= arrows_between_rooms()


def test_every_room_says_what_it_is_for() -> None:
    for name in FLOORS:
        first = (
            ast.get_docstring(
                ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8"))
            )
            or ""
        )
        assert len(first.split()) > 10, name


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError as error:
        return not str(error.name).startswith("iosim")  # a package that is not installed here


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["benchmarks", "experiments", "examples", "docs"])
def test_what_scripts_import_is_there(folder: str) -> None:
    """Also inside functions that run on a GPU alone."""
    lacking = [
        f"{path.name}:{node.lineno}: {node.module}.{alias.name}"
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "iosim"
        for alias in node.names
        if not is_there(str(node.module), alias.name)
    ]
    assert lacking == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("iosim.base.units", "iosim.problem.attention"),
        ("iosim.problem.attention", "iosim.hardware.profile"),
        ("iosim.show.page", "iosim.studies.report"),
        ("iosim.readers.replay.replay", "iosim.readers.bounds"),
        ("iosim.studies.explain", "iosim.commands.common"),
        ("iosim.evidence.measure.choose", "iosim.integrations.triton.kernel"),
    ],
)
def test_a_planted_upward_import_is_seen(name: str, other: str) -> None:
    planted = dict(edges())
    planted[name] = planted[name] | {other}
    assert f"{name} -> {other}" in upward(planted)


@pytest.mark.slow
def test_a_planted_circle_is_seen() -> None:
    planted = dict(edges())
    planted["iosim.base.errors"] = planted["iosim.base.errors"] | {"iosim.base.units"}
    without_others = {name: planted[name] for name in ("iosim.base.errors", "iosim.base.units")}
    assert set(circle(without_others)) == {"iosim.base.errors", "iosim.base.units"}

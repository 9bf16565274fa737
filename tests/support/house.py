"""The rooms of the package, their floors, and the imports between their files."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import iosim

PACKAGE = Path(iosim.__file__).resolve().parent
FLOORS = {
    "base": 1,
    "problem": 2,
    "hardware": 2,
    "show": 2,
    "kernel": 3,
    "catalog": 4,
    "code": 4,
    "readers": 5,
    "prediction": 6,
    "studies": 7,
    "integrations": 8,
    "evidence": 8,
    "api": 9,
    "commands": 9,
}
"""Room -> floor. `iosim` itself, `iosim.__main__`, `iosim.torch` and `iosim.triton` are the doors: they open on every
floor."""
DOORS = ("iosim", "iosim.__main__", "iosim.torch", "iosim.triton")
SCRIPTS = ("benchmarks", "experiments")
"""Folders of scripts beside the package: a room each in the drawing of the whole tree."""
MOST_ROOMS, MOST_FLOORS, MOST_ARROWS = 20, 10, 85
"""Of the whole tree: the package's rooms, its doors and the scripts. The face, `import iosim`, only hands names on."""

Edges = dict[str, set[str]]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Module name -> file."""
    paths = {}
    for path in sorted(package.rglob("*.py")):
        parts = ("iosim", *path.relative_to(package).with_suffix("").parts)
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imported(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of `known` that a file imports."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known:
                    yield whole
                elif node.module in known:
                    yield str(node.module)


@cache
def edges() -> Edges:
    known = modules()
    return {
        name: {other for other in imported(name, path, known) if other != name}
        for name, path in known.items()
    }


def room(module: str) -> str:
    return module.split(".")[1]


def drawn_room(module: str) -> str:
    """The room of a module in the drawing of the whole tree; a door is a room of its own."""
    inside = module.startswith("iosim.") and module not in DOORS
    return room(module) if inside else module


@cache
def arrows_between_rooms() -> set[tuple[str, str]]:
    """(room, room that it imports) over the package and the scripts; nothing for the face."""
    known = modules()
    imports = [(drawn_room(name), other) for name, others in edges().items() for other in others]
    for folder in SCRIPTS:
        for path in sorted((PACKAGE.parent / folder).rglob("*.py")):
            imports += [(folder, other) for other in imported(path.stem, path, known)]
    arrows = {(a, drawn_room(other)) for a, other in imports}
    return {(a, b) for a, b in arrows if a != b and "iosim" not in (a, b)}


def height(arrows: set[tuple[str, str]]) -> int:
    """Floors of a drawing in which a room stands above all that it imports."""
    below: dict[str, set[str]] = {}
    for a, b in arrows:
        below.setdefault(a, set()).add(b)
    floors: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(below).static_order():
        floors[name] = 1 + max((floors[other] for other in below.get(name, ())), default=0)
    return max(floors.values())


def upward(arrows: Edges) -> list[str]:
    """Imports that do not go down: to a higher floor, to another room of the same floor, or from reader to reader."""
    arrows_up = []
    for name, others in arrows.items():
        for other in others if name not in DOORS else ():
            if other in DOORS:
                arrows_up.append(f"{name} -> {other}")
            elif room(name) != room(other):
                if FLOORS[room(other)] >= FLOORS[room(name)]:
                    arrows_up.append(f"{name} -> {other}")
            elif room(name) == "readers" and name.split(".")[2:3] != other.split(".")[2:3]:
                arrows_up.append(f"{name} -> {other}")
    return arrows_up


def circle(arrows: Edges) -> list[str]:
    """Files that import each other in a circle, the first that is found; empty where there is none."""
    try:
        graphlib.TopologicalSorter(
            {name: others for name, others in arrows.items() if name not in DOORS}
        ).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []

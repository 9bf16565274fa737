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
    "base": 1, "problem": 2, "hardware": 2, "show": 2, "kernel": 3, "catalog": 4, "code": 4, "readers": 5,
    "prediction": 6,
    "studies": 7, "integrations": 8, "evidence": 8, "api": 9, "commands": 9,
}  # fmt: skip
"""Room -> floor. `iosim` itself, `iosim.__main__`, `iosim.torch` and `iosim.triton` are the doors: they open on every
floor."""
DOORS = ("iosim", "iosim.__main__", "iosim.torch", "iosim.triton")
MOST_ARROWS = 80

Edges = dict[str, set[str]]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Module name -> file."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = ("iosim", *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


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


def upward(arrows: Edges) -> list[str]:
    """Imports that do not go down: to a higher floor, to another room of the same floor, or from reader to reader."""
    found = []
    for name, others in arrows.items():
        for other in others if name not in DOORS else ():
            if other in DOORS:
                found.append(f"{name} -> {other}")
            elif room(name) != room(other):
                if FLOORS[room(other)] >= FLOORS[room(name)]:
                    found.append(f"{name} -> {other}")
            elif room(name) == "readers" and name.split(".")[2:3] != other.split(".")[2:3]:
                found.append(f"{name} -> {other}")
    return found


def circle(arrows: Edges) -> list[str]:
    """Files that import each other in a circle, the first that is found; empty where there is none."""
    try:
        graphlib.TopologicalSorter(
            {name: others for name, others in arrows.items() if name not in DOORS}
        ).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []

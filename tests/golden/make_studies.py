"""Records what iosim gives for many small cases: `python tests/golden/make_studies.py` writes studies/*.json.

Names of studies after it make these alone.

A case is a line, a name and its numbers. tests/commands/test_recorded_studies.py holds the code to them, so that a
change of any number is seen and has to be meant: run this script then, and say why in the commit. Cases are small, for
every one of them is made again by each test run; rules that turn at a border have cases on both sides of it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "support")]

STUDIES = {
    "catalog": ("catalog_cases", "cases"),
    "counts": ("count_cases", "cases"),
    "timing": ("timing_cases", "cases"),
    "engine": ("replay_cases", "engine"),
    "replay": ("replay_cases", "replays"),
    "training": ("training_cases", "cases"),
    "distributed": ("distributed_cases", "cases"),
    "tiles": ("tile_cases", "cases"),
    "plans": ("plan_cases", "cases"),
    "commands": ("command_cases", "cases"),
}
"""The module beside this one that makes a study's cases, and its function."""


def plain(value: Any) -> Any:
    """As JSON has it: tuples are lists, NumPy's numbers are Python's, floats have twelve digits."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, bool | int | str) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def made(name: str) -> Iterator[tuple[str, Any]]:
    """The cases of a study, one by one."""
    module, function = STUDIES[name]
    seen: set[str] = set()
    for case, value in getattr(importlib.import_module(module), function)():
        assert case not in seen, f"{name} has '{case}' twice"
        seen.add(case)
        yield case, plain(value)


def path(name: str) -> Path:
    return HERE / "studies" / f"{name}.json"


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path(name).read_text(encoding="utf-8"))
    return found


def main(names: list[str]) -> None:
    path("").parent.mkdir(exist_ok=True)
    for name in names or list(STUDIES):
        lines = [f"{json.dumps(case)}: {json.dumps(value)}" for case, value in made(name)]
        path(name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print(f"{name}: {len(lines)} cases")


if __name__ == "__main__":
    main(sys.argv[1:])

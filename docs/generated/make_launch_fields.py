"""Writes docs/generated/launch-fields.md, who says, sets and reads each field of `Launch`, out of the package's source:

python docs/generated/make_launch_fields.py
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "iosim"
TARGET = ROOT / "docs" / "generated" / "launch-fields.md"
LAUNCH = "kernel/launch.py"
SETTING = ("catalog", "code")
"""Rooms that describe kernels, and so set fields."""
READING = ("kernel", "readers", "prediction")
"""Rooms that read what is described."""
RECEIVER = re.compile(r"(^|[._])(launch|main)$|launches\[")
"""What a launch is called where a field of it is read."""
MAKERS = ("Launch", "main_launch", "row_pass", "replace")
SHOWN = 2
HEAD = """\
# Fields of a launch

Made by `python docs/generated/make_launch_fields.py` from the source. A field says what it is in the file of its first
column, below its name or in the class of its type. The files after it are those that set it and those that read it, the
ones with most places first.

| field | what it is | said in | set in | read in |
| --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Field:
    """A field of `Launch`: what its source says of it, in which file, and the files that set and read it."""

    name: str
    meaning: str
    said_in: str
    set_in: tuple[str, ...]
    read_in: tuple[str, ...]

    @property
    def row(self) -> str:
        cells = (
            f"`{self.name}`",
            self.meaning,
            f"`{self.said_in}`",
            _listed(self.set_in),
            _listed(self.read_in),
        )
        return f"| {' | '.join(cells)} |"


def _listed(files: tuple[str, ...]) -> str:
    more = len(files) - SHOWN
    return ", ".join(f"`{file}`" for file in files[:SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))


def _class(file: str, name: str) -> ast.ClassDef | None:
    return next(
        (n for n in _tree(file).body if isinstance(n, ast.ClassDef) and n.name == name), None
    )


def declared() -> dict[str, tuple[str, str]]:
    """Field -> (what is said of it, the file): the sentence below its name, else that of its type's class."""
    launch = _class(LAUNCH, "Launch")
    assert launch is not None
    declared_fields = {}
    for node, below in zip(launch.body, [*launch.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                doc = str(below.value.value), LAUNCH
            else:
                doc = _of_type(node.annotation)
            declared_fields[node.target.id] = (
                re.split(r"[.:;]\s", f"{' '.join(doc[0].split())} ")[0],
                doc[1],
            )
    return declared_fields


def _of_type(annotation: ast.expr) -> tuple[str, str]:
    """The docstring of the class that a field is of, and its file."""
    names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
    imported = {
        alias.name: f"{str(node.module).removeprefix('iosim.').replace('.', '/')}.py"
        for node in _tree(LAUNCH).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name in names:
        file = imported.get(name, LAUNCH)
        of = _class(file, name) if (PACKAGE / file).is_file() else None
        if of is not None:
            return ast.get_docstring(of) or "", file
    return "", ""


def fields() -> list[Field]:
    docs = declared()
    sets = _places(SETTING, _sets)
    reads = _places(READING, _reads)
    return [
        Field(name, *docs[name], tuple(f for f, _ in sets(name)), tuple(f for f, _ in reads(name)))
        for name in docs
    ]


def _places(
    rooms: tuple[str, ...], find: Callable[[ast.AST, list[str]], Iterator[str]]
) -> Callable[[str], list[tuple[str, int]]]:
    """The files of some rooms where `find` sees a field, with the number of places, most first."""
    names = list(declared())
    files = sorted(
        p.relative_to(PACKAGE).as_posix() for room in rooms for p in (PACKAGE / room).rglob("*.py")
    )
    seen = {
        f: Counter(n for node in ast.walk(_tree(f)) for n in find(node, names))
        for f in files
        if f != LAUNCH
    }
    return lambda name: sorted(
        ((f, count[name]) for f, count in seen.items() if count[name]), key=lambda x: -x[1]
    )


def _sets(node: ast.AST, names: list[str]) -> Iterator[str]:
    """Fields that a call gives a launch: `Launch(...)`, or `replace(main, ...)`."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] not in MAKERS:
        return
    maker = ast.unparse(node.func).split(".")[-1]
    if maker == "replace" and not (node.args and RECEIVER.search(ast.unparse(node.args[0]))):
        return
    if maker == "Launch":
        yield from names[: len(node.args)]
    yield from (str(keyword.arg) for keyword in node.keywords if keyword.arg in names)


def _reads(node: ast.AST, names: list[str]) -> Iterator[str]:
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return
    if node.attr in names and RECEIVER.search(ast.unparse(node.value)):
        yield node.attr


def page() -> str:
    return HEAD + "".join(f"{field.row}\n" for field in fields())


def main() -> None:
    TARGET.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

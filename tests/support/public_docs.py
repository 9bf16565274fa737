"""What the public classes say of their attributes: every one is documented, and a number has its unit there."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

UNIT = re.compile(
    r"\b(bytes|seconds|joules|watts|tokens|cycles|hertz|rows|columns|keys|queries|heads|layers|sequences|elements|"
    r"operations|dollars|GPUs|SMs|"
    r"CTAs|warps|threads|registers|buffers|parts|parameters|launches|partitions|ways|waves|rounds|steps|splits|pairs|"
    r"accesses|blocks|times|share|fraction|probability|ratio|factor|number|percent|per second|a second|capability)\b",
    re.I,
)
NUMBERS = (int, float)


def reached(*roots: type[Any]) -> list[type[Any]]:
    """The classes of this package among the roots, and those of their public attributes, and of theirs."""
    seen_classes: dict[type[Any], None] = {}
    waiting = list(roots)
    while waiting:
        owner = waiting.pop(0)
        if (
            owner in seen_classes
            or not owner.__module__.startswith("iosim")
            or issubclass(owner, Enum)
        ):
            continue
        seen_classes[owner] = None
        for _, annotation, _ in attributes(owner):
            waiting += [c for c in classes(annotation) if inspect.isclass(c)]
    return list(seen_classes)


def classes(annotation: Any) -> Iterator[Any]:
    """The classes that an annotation names."""
    arguments = typing.get_args(annotation)
    if not arguments:
        yield annotation
    for argument in arguments:
        yield from classes(argument)


def attributes(owner: type[Any]) -> Iterator[tuple[str, Any, str]]:
    """(name, type, what is said of it) of every public field and property."""
    hints = _hints(owner)
    if dataclasses.is_dataclass(owner):
        for field in dataclasses.fields(owner):
            if not field.name.startswith("_"):
                about = field.metadata.get("about")
                doc = (
                    f"{about.help} {about.more}" if about is not None else _said(owner, field.name)
                )
                yield field.name, hints.get(field.name), doc
    for name, value in inspect.getmembers(owner):
        if name.startswith("_") or not isinstance(value, property | cached_property):
            continue
        getter = value.fget if isinstance(value, property) else value.func
        hint = _hints(getter).get("return") if getter is not None else None
        yield name, hint, inspect.getdoc(value) or ""


def _hints(owner: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except (NameError, AttributeError):
        return {
            name: _evaluated(text, owner)
            for name, text in getattr(owner, "__annotations__", {}).items()
        }


def _evaluated(text: Any, owner: Any) -> Any:
    """An annotation whose names may be imported for type checkers alone."""
    module = inspect.getmodule(owner)
    try:
        return eval(text, dict(vars(module)))
    except (NameError, TypeError, AttributeError):
        return text


def _said(owner: type[Any], name: str) -> str:
    """The string below a field, or the field's entry in a docstring's list, of the class or of one it inherits."""
    for base in owner.__mro__:
        if base.__module__.startswith("iosim"):
            doc = _below(base).get(name) or _listed(base).get(name)
            if doc:
                return doc
    return ""


@functools.cache
def _below(owner: type[Any]) -> dict[str, str]:
    """Strings that stand below the fields of a class."""
    tree = ast.parse(Path(inspect.getfile(owner)).read_text(encoding="utf-8"))
    docs = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__:
            for field, below in zip(node.body, node.body[1:], strict=False):
                documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                if (
                    documented
                    and isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                ):
                    docs[field.target.id] = str(below.value.value)
    return docs


@functools.cache
def _listed(owner: type[Any]) -> dict[str, str]:
    """Entries "name, other: what they are" of the docstring, with the lines that go on below them."""
    docs: dict[str, str] = {}
    entry: list[str] = []
    deep = 0
    for line in (inspect.getdoc(owner) or "").splitlines():
        match = re.match(r"( +)([a-z_0-9]+(?:, [a-z_0-9]+)*): (.*)", line)
        if match:
            entry = match[2].split(", ")
            deep = len(match[1])
            docs |= dict.fromkeys(entry, match[3])
        elif entry and line.startswith(" " * (deep + 1)):
            docs |= {name: f"{docs[name]} {line.strip()}" for name in entry}
        elif line.strip():
            entry = []
    return docs


def is_number(annotation: Any) -> bool:
    """Whether an attribute is a number, or holds numbers alone besides names."""
    leaves = [c for c in classes(annotation) if c is not type(None) and c is not Ellipsis]
    return any(c in NUMBERS for c in leaves) and all(c in (*NUMBERS, str) for c in leaves)


def wanting(owner: type[Any]) -> list[str]:
    """What a class leaves unsaid of its public attributes, a line each."""
    faults = []
    for name, annotation, doc in attributes(owner):
        where = f"{owner.__module__}.{owner.__name__}.{name}"
        if not doc:
            faults.append(f"{where}: not documented")
        elif is_number(annotation) and not UNIT.search(doc):
            faults.append(f"{where}: a number without its unit: {doc}")
    return faults

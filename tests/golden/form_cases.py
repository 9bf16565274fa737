"""Which values are accepted: every key of data files and every field of a request, an option or a setting with its
range and default; sentences and lists of words apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from iosim.base.fields import default_text
from iosim.base.records import MISSING, fields, is_dataclass

ROOT = Path(__file__).resolve().parents[2]
MAKES_RANGES = re.compile(r"= (ask\.\w+|number|quantity|about|like)\(")
"""How a module writes a field with a range."""

MODULES = (
    "catalog.libraries.catalog_file",
    "catalog.resource_table",
    "catalog.serving.stack",
    "evidence.validate.reasons",
    "hardware.quantities",
    "hardware.profile_file",
    "studies.distributed.links",
    "studies.latency.calibration",
)
"""Below iosim; of each the tables and forms that have a name in capitals."""
APART = ("choices", "hint", "such_as", "see", "form")
"""Fields of a form that are words."""
NOT_FORMS = ("FIELDS", "TERMS", "READ_BY", "SPECIALISED_UNITS", "YES_NO", "COLUMNS", "SAME_BUILD")
"""Tables that are no forms, or another module's."""
LONGEST = 120
"""Letters of a form's text; longer ones are of forms inside forms, which have names of their own."""


def text(value: Any) -> str:
    """A form with the fields that are not their defaults; of functions their names, of sentences that they are there."""
    if is_dataclass(value) and not isinstance(value, type):
        held = ((f, getattr(value, f.name)) for f in fields(value))
        said = ", ".join(
            f"{f.name}={text(x)}"
            for f, x in held
            if f.name not in APART and (type(f.default) is not type(x) or f.default != x)
        )
        return f"{type(value).__name__}({said})"
    match value:
        case Enum():
            return value.name
        case float():
            return f"{value:.9g}"
        case str():
            return "_" if " " in value else repr(value)
        case Mapping():
            return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in value.items()) + "}"
        case tuple() | list():
            return "(" + ", ".join(map(text, value)) + ")"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(text, value))) + "}"
    return getattr(value, "__name__", None) or repr(value)


def ranged(record: type) -> dict[str, str]:
    """Default and range of each field of a record that has one, and of options the default in words, in Python and on the
    command line."""
    ranges = {}
    for f in fields(record):
        about = f.metadata.get("about")
        low, high = (
            (about.low, about.high)
            if about is not None
            else (f.metadata.get("low"), f.metadata.get("high"))
        )
        if low is not None:
            ends = [f"{end:.9g}" for end in (low, high) if end is not None]
            words = [] if about is None else [default_text(about), default_text(about, usual=True)]
            ranges[f.name] = " ".join(
                [text(f.default) if f.default is not MISSING else "", *ends, *map(repr, words)]
            )
    return ranges


def records() -> Iterator[tuple[str, type]]:
    """Records whose fields have ranges, by their module's own text: none is left out for want of being listed."""
    for file in sorted((ROOT / "iosim").rglob("*.py")):
        if not MAKES_RANGES.search(file.read_text(encoding="utf-8")):
            continue
        name = file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for record in vars(import_module(name)).values():
            if isinstance(record, type) and is_dataclass(record) and record.__module__ == name:
                yield f"{name.removeprefix('iosim.')} {record.__name__}", record


def cases() -> Iterator[tuple[str, Any]]:
    for case, record in records():
        if ranges := ranged(record):
            yield case, ranges
    seen = set[int]()
    for module in MODULES:
        for name, value in vars(import_module(f"iosim.{module}")).items():
            if not name.strip("_").isupper() or name in NOT_FORMS or id(value) in seen:
                continue
            seen.add(id(value))  # another module may import it
            if isinstance(value, Mapping):
                yield f"{module} {name}", {str(k): text(v)[:LONGEST] for k, v in value.items()}
            elif is_dataclass(value):
                yield f"{module} {name}", text(value)[:LONGEST]

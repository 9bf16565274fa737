"""Reads the catalog's TOML files: one file a kernel, the first tile whose conditions hold wins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.kernel.libraries.choice import choice_names, fold

_HERE = Path(__file__).resolve().parent
SCHEMA = 1

Entry = Mapping[str, Any]


@cache
def entry_names() -> tuple[str, ...]:
    """Names of the catalog's kernels, which are the stems of its files."""
    return tuple(sorted(p.stem for p in _HERE.glob("*.toml")))


@cache
def _read(stem: str) -> Entry:
    with open(_HERE / f"{stem}.toml", "rb") as file:
        data = tomllib.load(file)
    if data.get("schema") != SCHEMA or data.get("name") != stem:
        raise InputError(f"catalog file {stem}.toml has schema {data.get('schema')!r} or name {data.get('name')!r}")
    return data


@cache
def _aliases() -> dict[str, str]:
    found: dict[str, str] = {}
    for stem in entry_names():
        entry = _read(stem)
        for alias in (*entry.get("aliases", ()), *entry.get("backward_aliases", ())):
            if found.get(fold(alias), stem) != stem:
                raise InputError(f"catalog alias '{alias}' names both {found[fold(alias)]} and {stem}")
            found[fold(alias)] = stem
    return found


def entry_name(name: str) -> str:
    """The catalog name for `name` or one of its aliases.

    Raises:
        InputError: no such kernel.
    """
    folded = fold(name)
    if folded in entry_names():
        return folded
    if folded in _aliases():
        return _aliases()[folded]
    raise unknown_name("`kernel`", name, (*entry_names(), *choice_names()))


def entry(name: str) -> Entry:
    """The catalog entry called `name` or by one of its aliases."""
    return _read(entry_name(name))

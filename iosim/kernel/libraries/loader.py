"""Reads the catalog's TOML files, and a user's own: one file a kernel, the first tile whose conditions hold wins.

Wherever a kernel is taken by name, the path of such a file is taken as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.base.schema import Problem, read_toml, refuse
from iosim.kernel.libraries import catalog_file
from iosim.kernel.libraries.choice import choice_names, fold

_HERE = Path(__file__).resolve().parent

Entry = Mapping[str, Any]


@cache
def entry_names() -> tuple[str, ...]:
    """Names of the catalog's kernels, which are the stems of its files."""
    return tuple(sorted(p.stem for p in _HERE.glob("*.toml")))


OWN_NAMES = ("aliases", "backward_aliases")
"""What a file does not take over from the one that it is like."""
ROWS = ("tile", "split_tile", "backward_tile", "spill", "backward_spill")
"""Lists of rows of which the first that fits is taken."""


def completed(data: dict[str, Any]) -> dict[str, Any]:
    """A file's entries over those of the catalog kernel that its `like` names: key by key in a table, and its rows
    before the other's, so that they are tried first."""
    base = data.get("like")
    if not isinstance(base, str) or base not in entry_names():
        return data
    made: dict[str, Any] = {key: value for key, value in _read(base).items() if key not in OWN_NAMES}
    for key, value in data.items():
        known = made.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            made[key] = {**known, **value}
        elif key in ROWS and isinstance(value, list) and isinstance(known, list):
            made[key] = [*value, *known]
        else:
            made[key] = value
    return made


@cache
def _read(stem: str) -> Entry:
    data = completed(read_toml(_HERE / f"{stem}.toml", "catalog file"))
    wrong = catalog_file.problems(data)
    if not wrong and data["name"] != stem:
        wrong = [Problem("name", f"must be that of the file, {stem}")]
    refuse(wrong, f"{stem}.toml")
    return data


def is_file(name: str) -> bool:
    """Whether a kernel's name is the path of a file: it ends in .toml, or has a directory."""
    return name.strip().lower().endswith(".toml") or "/" in name


def check_file(path: str, what: str = "kernel file") -> list[Problem]:
    """Everything that is wrong with a kernel's file of one's own.

    Args:
        what: what the file is, for messages.

    Raises:
        InputError: it cannot be read as TOML.
    """
    data = completed(read_toml(Path(path), what))
    wrong = catalog_file.problems(data)
    if not wrong and data["name"] in entry_names():
        wrong = [Problem("name", f"'{data['name']}' is the catalog's; a kernel of your own needs another")]
    return wrong


@lru_cache(maxsize=64)
def _read_own(path: str, changed_ns: int) -> Entry:
    refuse(check_file(path, "`kernel`"), f"`kernel` '{path}'")
    return completed(read_toml(Path(path), "`kernel`"))


def _own(path: str) -> Entry:
    try:
        changed = Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        changed = 0  # reading it says what is wrong
    return _read_own(path, changed)


@cache
def _aliases() -> dict[str, str]:
    stem_of: dict[str, str] = {}
    for stem in entry_names():
        entry = _read(stem)
        for alias in (*entry.get("aliases", ()), *entry.get("backward_aliases", ())):
            if stem_of.get(fold(alias), stem) != stem:
                raise InputError(f"catalog alias '{alias}' names both {stem_of[fold(alias)]} and {stem}")
            stem_of[fold(alias)] = stem
    return stem_of


def entry_name(name: str) -> str:
    """The catalog name for `name` or one of its aliases; of the path of a file, the name in it.

    Raises:
        InputError: no such kernel, or a file that is none.
    """
    if is_file(name):
        return str(_own(name)["name"])
    folded = fold(name)
    if folded in entry_names():
        return folded
    if folded in _aliases():
        return _aliases()[folded]
    raise unknown_name("`kernel`", name, (*entry_names(), *choice_names()))


def entry(name: str) -> Entry:
    """The catalog entry called `name` or by one of its aliases, or the file of that path."""
    return _own(name) if is_file(name) else _read(entry_name(name))

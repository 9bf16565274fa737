"""Sections of published numbers: one module a section, found by the decorator `@section`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.evidence.reproduce.row import Row


@dataclass(frozen=True)
class Section:
    """A source whose numbers are computed again: its letter, its title, and the function that gives the rows."""

    letter: str
    title: str
    rows: Callable[[], Iterable[Row]]


_SECTIONS: dict[str, Section] = {}

Maker = Callable[[], Iterable[Row]]


def section(letter: str, title: str) -> Callable[[Maker], Maker]:
    """Register the rows of a section.

    Raises:
        ValueError: the letter is taken.
    """

    def register(maker: Maker) -> Maker:
        if letter in _SECTIONS:
            raise ValueError(f"section '{letter}' is registered already")
        _SECTIONS[letter] = Section(letter, title, maker)
        return maker

    return register


@cache
def _load_all() -> None:
    """Import every module of this package whose name is one letter."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if len(module.name) == 1:
            importlib.import_module(f"{package}.{module.name}")


def sections() -> tuple[Section, ...]:
    """All sections, by letter."""
    _load_all()
    return tuple(_SECTIONS[letter] for letter in sorted(_SECTIONS))


def reproduce(letters: Iterable[str] | None = None, progress: Progress = silent) -> list[Row]:
    """The rows of the sections asked for; of all when none is named. `progress` hands on the sections one by one, and
    may show how far it is.

    Raises:
        InputError: no such section.
    """
    known = {s.letter: s for s in sections()}
    wanted = list(known) if letters is None else [letter.strip().upper() for letter in letters]
    for letter in wanted:
        if letter not in known:
            raise InputError(f"`section` '{letter}' is not known; accepted: {', '.join(known)}")
    return [row for one in progress([known[letter] for letter in dict.fromkeys(wanted)]) for row in one.rows()]

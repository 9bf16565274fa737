"""The terminal that a text is for: how wide it is, and whether it shows colours.

A text that goes into a file or a pipe has no width: it is read by programs, and by people in a window of another size.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

NARROWEST = 40
"""Columns that a text takes however narrow the terminal is."""
_CODES = {"red": "31", "yellow": "33", "green": "32"}
_for_a_person: ContextVar[bool] = ContextVar("for_a_person", default=True)


@contextmanager
def output(*, for_a_person: bool) -> Iterator[None]:
    """True where what is written in here is for someone who reads it in this terminal."""
    token = _for_a_person.set(for_a_person)
    try:
        yield
    finally:
        _for_a_person.reset(token)


def columns() -> int | None:
    """Width of the terminal behind standard output, or of COLUMNS where that is set; None for a file or a pipe."""
    width = os.environ.get("COLUMNS", "")
    if not _for_a_person.get():
        return None
    if width.isdecimal() and int(width):
        return max(NARROWEST, int(width))
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    import shutil  # it loads five kinds of compression

    return max(NARROWEST, shutil.get_terminal_size().columns)


def in_colour(stream: TextIO | None = None) -> bool:
    """True where a stream, standard output if none is given, is a terminal that shows colours, and nobody asked for
    none (no-color.org)."""
    stream = stream or (sys.stdout if _for_a_person.get() else None)
    if stream is None or not stream.isatty():
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str, stream: TextIO | None = None) -> str:
    """`text` in red, yellow or green where the terminal shows it."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if in_colour(stream) else text


def folded(text: str, hanging: int | None = None) -> str:
    """A text with no line wider than the terminal: long ones go on below, `hanging` columns in or two further in."""
    width = columns()
    if width is None:
        return text
    return "".join(_lines(line, width, hanging) for line in text.splitlines(keepends=True))


def _lines(line: str, width: int, hanging: int | None) -> str:
    if len(line.rstrip("\n")) <= width or "\x1b" in line:
        return line
    indent = len(line) - len(line.lstrip()) + 2 if hanging is None else hanging
    parts = textwrap.wrap(
        line.rstrip("\n"),
        width,
        subsequent_indent=" " * min(indent, width // 2),
        break_on_hyphens=False,
    )
    return "".join(f"{part}\n" for part in parts)

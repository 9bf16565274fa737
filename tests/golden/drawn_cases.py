"""What many calls of all commands print: of each its exit code, its first line, and a checksum of all of it.

drawn_calls.txt has the calls. Some were written by hand for what no other test asks for; draw_calls.py drew the others
at random, and keeps a call for a line of the package or a choice in it that no call before it has. Their text is too
long to be recorded: of numbers a checksum takes six digits, as many as it can without hanging on the last bit.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from command_cases import DATA, PTX, named

from iosim.commands.cli import main

CALLS_FILE = Path(__file__).with_name("drawn_calls.txt")
PLACES = {"{DATA}": str(DATA), "{PTX}": str(PTX)}
NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?")


def written(line: str) -> str:
    """A call as the file has it: without the place of this tree."""
    for word, place in PLACES.items():
        line = line.replace(place, word)
    return line


def calls() -> tuple[str, ...]:
    """The calls as the file has them."""
    return tuple(CALLS_FILE.read_text(encoding="utf-8").splitlines())


def printed(line: str) -> tuple[Any, str, str]:
    """Exit code, output and errors of a call, made in this process and in an empty folder."""
    for word, place in PLACES.items():
        line = line.replace(word, place)
    output, errors = io.StringIO(), io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            code: Any = main(line.split())
        except SystemExit as end:
            code = end.code
    return code, named(output.getvalue()), named(errors.getvalue())


def rounded(text: str) -> str:
    """A text whose numbers have six digits."""
    return NUMBER.sub(lambda number: f"{float(number[0]):.6g}", text)


def said(line: str) -> list[Any]:
    code, output, errors = printed(line)
    first = rounded((errors or output).lstrip("{\n ").partition("\n")[0])
    return [code, first[:160], f"{zlib.crc32(rounded(output + errors).encode()):08x}"]


def cases(lines: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
    for line in calls() if lines is None else lines:
        yield line, said(line)

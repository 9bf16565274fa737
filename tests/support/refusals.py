"""How a command line is refused: exit code 2, nothing on standard output, one line on standard error.

Of what that line should say, tests hold the names: options, values, keys, files, numbers. Its sentences may be worded
anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest

from iosim.commands.cli import main

_NAME = re.compile(
    r"""--[a-z][\w-]*                    # an option
      | '[^']*'                          # a value in quotes
      | \d[\d,]*\.?\d*\w*                # a number, with its unit
      | [A-Za-z]\w*(?:[_./]\w+)+         # a key, a file
      | [A-Za-z]+\d\w*                   # fa2, bf16, h100""",
    re.VERBOSE,
)


def names(text: str) -> list[str]:
    """What a line that says `text` in other words must hold: a single word, a list's words, a sentence's names."""
    if re.fullmatch(r"\S+(, \S+)*", text):
        return text.split(", ")
    return _NAME.findall(text)


def assert_names(line: str, wanted: Iterable[str]) -> None:
    """That a line names what each of the given texts does; an option stands for its field."""
    for text in wanted:
        missing = [
            name for name in names(text) if name not in line and name.replace("_", "-") not in line
        ]
        assert not missing, f"{line!r} does not name {missing}"


def refused(capsys: pytest.CaptureFixture[str], argv: Sequence[str], *wanted: str) -> str:
    """The one line with which `iosim ARGV` is refused; it names what each of `wanted` does."""
    assert main(list(argv)) == 2, argv
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("iosim: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert_names(captured.err, wanted)
    return captured.err

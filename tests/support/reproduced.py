"""The rows of `iosim reproduce`, each section computed once and only when a test asks for it: all take minutes."""

from __future__ import annotations

import os
from functools import cache
from unittest.mock import patch

from effort import KEPT_REPLAYS

from iosim.evidence.reproduce import Row, reproduce, sections


@cache
def _section(letter: str) -> tuple[Row, ...]:
    with patch.dict(os.environ, IOSIM_CACHE=os.environ[KEPT_REPLAYS]):
        return tuple(reproduce([letter]))


def rows(letters: str = "") -> list[Row]:
    """The rows of these sections, of all where none is named."""
    return [row for letter in letters or (s.letter for s in sections()) for row in _section(letter)]


def find(letters: str, *words: str) -> Row:
    """The one row of these sections whose claim holds all the words."""
    matches = [r for r in rows(letters) if all(w in r.claim for w in words)]
    assert len(matches) == 1, [r.claim for r in matches]
    return matches[0]


def say_how_or_why(letter: str) -> bool:
    """True where every row of a section has its arithmetic or says that it cannot be reproduced, and no claim stands
    twice."""
    section = rows(letter)
    explained = all(
        r.arithmetic and (r.computed is not None or "cannot be reproduced" in r.note)
        for r in section
    )
    return explained and len(section) == len({r.claim for r in section})

"""Which changes of a line are planted: all that can be made, what is known of some, and a draw of them by a seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from areas import ROOT, area_of, sources
from edits import c_edits, python_edits, toml_edits

EDITS = {".py": python_edits, ".c": c_edits, ".h": c_edits, ".toml": toml_edits}
NOTES = ROOT / "tests" / "mutants.json"


@dataclass(frozen=True)
class Change:
    """An edit of a file: what stood in [start, end) of its text, and what stands there in its place."""

    area: str
    file: str
    start: int
    end: int
    text: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n    - {self.before}\n    + {self.after}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the change wherever its line stands."""
        return self.file, self.before, self.after


def change(area: str, file: str, source: str, start: int, end: int, text: str) -> Change:
    first = source.rfind("\n", 0, start) + 1
    last = source.find("\n", end)
    last = len(source) if last < 0 else last
    before = source[first:last]
    after = source[first:start] + text + source[end:last]
    short = [" ".join(x.split()) for x in (before, after)]
    return Change(
        area, file, start, end, text, source.count("\n", 0, start) + 1, short[0], short[1]
    )


def changes(name: str) -> list[Change]:
    """Every change of an area, in the order of its files."""
    changes_made: list[Change] = []
    for file in (f for f in sources() if area_of(f) == name):
        source = (ROOT / file).read_text(encoding="utf-8")
        edits = EDITS[Path(file).suffix](source)
        changes_found = (change(name, file, source, *edit) for edit in sorted(edits))
        changes_made += {c.key: c for c in changes_found if c.before != c.after}.values()
    return changes_made


@dataclass(frozen=True)
class Notes:
    """What is known of some changes."""

    equal: dict[tuple[str, str, str], str]
    once_missed: frozenset[tuple[str, str, str]]

    @classmethod
    def read(cls) -> Notes:
        data = json.loads(NOTES.read_text(encoding="utf-8"))
        equal = {(e["file"], e["before"], e["after"]): e["reason"] for e in data["equal"]}
        return cls(
            equal, frozenset((e["file"], e["before"], e["after"]) for e in data["once_missed"])
        )

    def gone(self) -> list[tuple[str, str, str]]:
        """Those whose line is no longer there."""
        return [key for key in (*self.equal, *sorted(self.once_missed)) if line_of(key) is None]


def line_of(key: tuple[str, str, str]) -> tuple[int, int, str] | None:
    """(number, where it starts, text) of the line that a change is of; None where it is not there."""
    file, before, _ = key
    if not (ROOT / file).exists():
        return None
    at = 0
    for number, line in enumerate(
        (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True), 1
    ):
        if " ".join(line.split()) == before:
            return number, at, line.rstrip("\n")
        at += len(line)
    return None


def by_hand(key: tuple[str, str, str]) -> Change | None:
    """A change that is not of the kinds above, by its line; None where that line is not there."""
    file, before, after = key
    area, line_found = area_of(file), line_of(key)
    if area is None or line_found is None:
        return None
    number, at, line = line_found
    text = line[: len(line) - len(line.lstrip())] + after
    return Change(area, file, at, at + len(line), text, number, before, after)


def drawn(
    areas: list[str], count: int | None, seed: int, notes: Notes, *, new: bool = False
) -> list[Change]:
    """`count` changes, as many of each area as of the others where it has them; first those that were once missed.

    Args:
        new: none that was once missed, and none that is known to alter nothing.
    """

    def by_lot(change: Change) -> str:
        """What stands elsewhere does not decide whether a change is drawn."""
        drawn_for = f"{seed} {Path(change.file).name} {change.before} {change.after}"
        return hashlib.sha256(drawn_for.encode()).hexdigest()

    known = {*notes.once_missed, *notes.equal} if new else set()
    available = {name: [c for c in changes(name) if c.key not in known] for name in areas}
    every = {c.key: c for all_ in available.values() for c in all_}
    first = [
        c
        for key in sorted(notes.once_missed - known)
        if (c := every.get(key) or by_hand(key)) and c.area in areas
    ]
    if count is None:
        return list({c.key: c for c in (*first, *every.values())}.values())
    taken = {c.key: c for c in first}
    for name in areas:
        available[name].sort(key=by_lot)
    for name in cycle(areas):
        if len(taken) >= count or not any(available.values()):
            return list(taken.values())
        while available[name] and available[name][-1].key in taken:
            available[name].pop()
        if available[name]:
            taken[available[name][-1].key] = available[name].pop()
    return []

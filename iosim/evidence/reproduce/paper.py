"""Reads a paper's claims from its TOML file, and computes each: one published number beside what iosim computes for it.

A file names its section, and holds `[defaults]`, keys that all claims share; `[kernels]`, keys that a claim's `kernel`
stands for; and `[[claim]]`, whose keys are those of a `Side` (a problem, a kernel, a GPU, a `quantity`), of the
arithmetic that it `computes` by, or words of its texts:

    claim, claimed, unit, arithmetic, note, mistake   a `Row`; `claimed` may name a key
    over          the keys in which a second side differs: the row is the quotient
    each          tables of columns, each crossed with the others: a row for every combination
    each_of       the same from code, such as the points of a recorded table
    among, choose columns of which the claim takes the row with the least ("min") or the largest ("max") number
    row           several claims that share all other keys
    takes         which of the arithmetic's values is the number, where it is not `computed`
    whole         rounded down

Texts are format strings of the keys, of `of` and `over`, and of what the arithmetic gives.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cache
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, plain
from iosim.base.schema import read_toml
from iosim.evidence.crossed import Keys, columns, crossed
from iosim.evidence.reproduce.side import SIDE, Side, scaled

TEXTS = ("claim", "arithmetic", "note", "mistake")
ROW = (
    *TEXTS,
    "claimed",
    "unit",
    "computes",
    "over",
    "each",
    "each_of",
    "among",
    "choose",
    "row",
    "takes",
    "whole",
    "kernels",
)
PLACE = Path(__file__).parent
ARITHMETIC = ("chunk_schedules", "published", "training_grid")
"""Modules with arithmetic of their own, loaded when a section is computed."""

_COMPUTES: dict[str, Callable[..., Keys]] = {}
_EACH: dict[str, Callable[[], Iterable[Keys]]] = {}


def arithmetic(function: Callable[..., Keys]) -> Callable[..., Keys]:
    """Register what rows `compute` by: takes a side as `of`, and keys of the row as its other arguments; gives
    `computed`, in the row's unit, and words for its texts."""
    assert function.__name__ not in _COMPUTES
    _COMPUTES[function.__name__] = function
    return function


def each_of(function: Callable[[], Iterable[Keys]]) -> Callable[[], Iterable[Keys]]:
    _EACH[function.__name__] = function
    return function


@dataclass(frozen=True)
class Section:
    """Claims of one source or several: their letter, their title, and the files that hold them."""

    letter: str
    title: str
    files: tuple[Path, ...]

    def rows(self, is_meant: Callable[[float, str], bool] | None = None) -> Iterator[Row]:
        """The claims, each computed; of them those alone whose number, in its unit, is meant."""
        for name in ARITHMETIC:
            importlib.import_module(f"{__package__}.{name}")
        sides: dict[str, Side] = {}  # equal ones are predicted once
        for path in self.files:
            yield from _rows(read_toml(path), self.letter, sides, is_meant)


@cache
def sections() -> tuple[Section, ...]:
    files: dict[str, list[Path]] = {}
    papers = {path: read_toml(path) for path in sorted(PLACE.glob("*.toml"))}
    titles = {head["section"]: head["title"] for head in papers.values() if "title" in head}
    for path, head in sorted(papers.items(), key=lambda item: "title" not in item[1]):
        files.setdefault(head["section"], []).append(path)
    return tuple(Section(letter, titles[letter], tuple(files[letter])) for letter in sorted(files))


def reproduce(letters: Iterable[str] | None = None, progress: Progress = silent) -> list[Row]:
    """The rows of the sections asked for; of all when none is named. `progress` hands on the sections one by one,
    and may show how far it is. Raises InputError where there is no such section."""
    known = {s.letter: s for s in sections()}
    wanted = list(known) if letters is None else [letter.strip().upper() for letter in letters]
    for letter in wanted:
        if letter not in known:
            raise InputError(f"`section` '{letter}' is not known; accepted: {', '.join(known)}")
    return [
        row
        for section in progress([known[letter] for letter in dict.fromkeys(wanted)])
        for row in section.rows()
    ]


def rows_that_claim(is_meant: Callable[[float, str], bool]) -> list[Row]:
    """The rows whose published number, in its unit, is the one that is meant; no other is computed."""
    return [row for section in sections() for row in section.rows(is_meant)]


def _stated(keys: Keys) -> float | None:
    """The number that a row's source states."""
    claimed = keys.get("claimed")
    number: float | None = keys[claimed] if isinstance(claimed, str) else claimed
    return number


def _rows(
    paper: Keys,
    letter: str,
    sides: dict[str, Side],
    is_meant: Callable[[float, str], bool] | None = None,
) -> Iterator[Row]:
    defaults, read = paper.get("defaults", {}), set[str]()
    for claim in paper["claim"]:
        # the nearer goes over the farther: defaults, claim, point, row
        shared = {"kernels": paper.get("kernels", {}), **defaults, **claim}
        of_code = [_EACH[claim["each_of"]]()] if "each_of" in claim else []
        points, several = list(crossed(claim.get("each", ()), *of_code)), claim.get("row", [{}])
        for row in several:
            _refuse_unread(row, _read({**shared, **row}))
        # a misspelt key is refused: it would be ignored in silence, and the row computed without it
        here = set[str]().union(*(_read({**shared, **points[0], **row}) for row in several))
        _refuse_unread(claim, here)
        _refuse_unread(points[0] if "each" in claim else (), here)
        read |= here
        for point, row in product(points, several):
            keys = {**shared, **point, **row}
            stated = _stated(keys)
            if is_meant is None or (stated is not None and is_meant(stated, keys["unit"])):
                yield _claim_row(keys, letter, sides)
    _refuse_unread(defaults, read)


def _parameters(keys: Keys) -> set[str]:
    return (
        set(inspect.signature(_COMPUTES[keys["computes"]]).parameters)
        if "computes" in keys
        else set()
    )


def _read(keys: Keys) -> set[str]:
    texts = (
        name for text in TEXTS for _, name, _, _ in Formatter().parse(keys.get(text, "")) if name
    )
    return {
        *SIDE,
        *ROW,
        *(name.split(".")[0] for name in texts),
        *_parameters(keys),
        str(keys.get("claimed")),
    }


def _refuse_unread(stated: Iterable[str], read: set[str]) -> None:
    for key in stated:
        if key not in read:
            raise unknown_name("key", key, sorted(read))


def _claim_row(keys: Keys, letter: str, sides: dict[str, Side]) -> Row:
    if "among" in keys:
        # the best of several settings stands for the claim, as where a paper tunes its tiles
        points = [_valued({**keys, **point}, sides) for point in columns(keys["among"])]
        values_of_row = {"min": min, "max": max}[keys["choose"]](
            points, key=lambda values: float(values["computed"])
        )
    else:
        values_of_row = _valued(keys, sides)
    texts = {name: str(values_of_row.get(name, "")).format_map(values_of_row) for name in TEXTS}
    return Row(
        letter,
        texts["claim"],
        _stated(keys),
        values_of_row["computed"],
        keys["unit"],
        texts["arithmetic"],
        texts["note"],
        texts["mistake"],
    )


def _valued(keys: Keys, sides: dict[str, Side]) -> dict[str, Any]:
    values: dict[str, Any] = {**keys, "of": _side(keys, sides)}
    if "over" in keys:
        values["over"] = _side({**keys, **keys["over"]}, sides)
    if "computes" in keys:
        names = _parameters(keys) & values.keys()
        values |= _COMPUTES[keys["computes"]](**{name: values[name] for name in names})
        return values | {"computed": values[keys.get("takes", "computed")]}
    if "quantity" not in keys:
        return values | {"computed": None}
    numbers = [
        getattr(side, side.keys["quantity"]) for side in (values["of"], values.get("over")) if side
    ]
    number = numbers[0] / numbers[1] if "over" in keys else scaled(numbers[0], keys["unit"])
    return values | {"computed": int(number) if keys.get("whole") else number}


def _side(keys: Keys, sides: dict[str, Side]) -> Side:
    keys = {**keys, **keys["kernels"].get(keys.get("kernel"), {})}
    mine = {name: keys[name] for name in SIDE if name in keys}
    return sides.setdefault(repr(sorted(mine.items())), Side(mine))


AGREES, NEAR = 0.01, 0.2
"""How far a ratio may be from 1 to agree, and to be near."""


class Verdict(Enum):
    AGREES = "agrees"
    NEAR = "near"
    OFF = "off"
    MISTAKE = "mistake"
    OPEN = "open"


@dataclass(frozen=True)
class Row:
    """A claim, the number it states, the number iosim computes, and the arithmetic between them. `claimed` is None
    where the source states none for this row (a prediction printed beside a claim), `computed` is None where no model
    of iosim gives the number; `note` then says why. `mistake` says what is wrong with a claim that iosim computes as
    its source makes it: a ratio of 1 then says that the mistake was understood, not that the claim is right."""

    section: str
    claim: str
    claimed: float | None
    computed: float | None
    unit: str
    arithmetic: str
    note: str = ""
    mistake: str = ""

    @property
    def ratio(self) -> float | None:
        """Computed over claimed; None where there is nothing to divide."""
        if self.claimed is None or self.computed is None or self.claimed == 0:
            return None
        return self.computed / self.claimed

    @property
    def verdict(self) -> Verdict:
        if self.mistake:
            return Verdict.MISTAKE
        if self.ratio is None:
            return Verdict.OPEN
        off = round(abs(self.ratio - 1), 9)
        return Verdict.AGREES if off <= AGREES else Verdict.NEAR if off <= NEAR else Verdict.OFF

    def to_dict(self) -> dict[str, Any]:
        record = plain(
            section=self.section,
            claim=self.claim,
            claimed=self.claimed,
            computed=self.computed,
            unit=self.unit,
            ratio=self.ratio,
            arithmetic=self.arithmetic,
            note=self.note,
            mistake=self.mistake,
            verdict=self.verdict.value,
        )
        return record | {"mistake": self.mistake or None}


WORDS = {
    Verdict.AGREES: "within 1 % of the published number",
    Verdict.NEAR: "within 20 %",
    Verdict.OFF: "further off",
    Verdict.MISTAKE: "a mistake of the source",
    Verdict.OPEN: "without a number on one side",
}


def reproduced_answer(rows: Sequence[Row]) -> str:
    """One sentence; an agreement with a mistake is counted as the mistake."""
    counts = {verdict: sum(r.verdict is verdict for r in rows) for verdict in Verdict}
    verdicts = ", ".join(f"{n} {WORDS[verdict]}" for verdict, n in counts.items() if n)
    sections = sorted({r.section for r in rows})
    where = f"of section {sections[0]}" if len(sections) == 1 else f"of {len(sections)} sections"
    return f"Of {len(rows)} rows {where} {verdicts}."

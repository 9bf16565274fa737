"""An order as code: lines of Triton, a CUDA device function, or a formula.

All three come of `iosim.kernel.remap.place`, the arithmetic that the replay plays, taken with symbols: nothing is
written twice. Numbers of tiles, heads and blocks stay names, so that the code holds for any grid.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from iosim.base.errors import unknown_name
from iosim.base.records import dataclass
from iosim.kernel.remap import place
from iosim.kernel.schedule import Direction, Schedule
from iosim.show.template import filled


@dataclass(frozen=True)
class Language:
    """How a language writes the quotient of whole numbers, the smaller of two, and a step: its name and its value."""

    quotient: str
    least: str
    step: str = "{} = {}"


LANGUAGES = {
    "triton": Language("//", "tl.minimum"),
    "cuda": Language("/", "min", "const int {} = {};"),
    "formula": Language("//", "min"),
}
SUM, PRODUCT, NAME = range(1, 4)


def _operator(sign: str, binds: int, *, turned: bool = False) -> Callable[[Term, Term | int], Term]:
    return lambda term, other: term._with(sign, other, binds, turned=turned)


@dataclass(frozen=True)
class Term:
    """A piece of an expression: its text, and how tightly its outermost operator binds."""

    text: str
    binds: int
    language: Language

    def _with(self, operator: str, other: Term | int, binds: int, *, turned: bool = False) -> Term:
        if operator == "+" and other == 0:
            return self
        operator = self.language.quotient if operator == "//" else operator
        second = other if isinstance(other, Term) else Term(str(other), NAME, self.language)
        first_term, second_term = (second, self) if turned else (self, second)
        # a * b * c needs no parentheses, a % b * c does for a reader.
        keeps = operator == "*" and first_term.binds == PRODUCT and "%" not in first_term.text
        # Only the left operand may go without: a - (b - c) and a // (b * c) need theirs.
        bare = first_term.binds > binds or (first_term.binds == binds and (binds == SUM or keeps))
        first = first_term.text if bare else f"({first_term.text})"
        last = second_term.text if second_term.binds > binds else f"({second_term.text})"
        return Term(f"{first} {operator} {last}", binds, self.language)

    __add__, __radd__ = _operator("+", SUM), _operator("+", SUM, turned=True)
    __sub__, __rsub__ = _operator("-", SUM), _operator("-", SUM, turned=True)
    __mul__, __rmul__ = _operator("*", PRODUCT), _operator("*", PRODUCT, turned=True)
    __floordiv__, __mod__ = _operator("//", PRODUCT), _operator("%", PRODUCT)


def steps(schedule: Schedule, language: Language, number: str = "tile") -> list[tuple[str, str]]:
    """(name, expression) of each step from a tile's number to `head` and `block`, in `blocks`, `heads` and `batch`."""
    lines: list[tuple[str, str]] = []

    def let(name: str, value: Term) -> Term:
        if value.text != name:
            lines.append((name, value.text))
        return Term(name, NAME, language)

    def least(a: Term | int, b: Term | int) -> Term:
        first, second = (term.text if isinstance(term, Term) else str(term) for term in (a, b))
        return Term(f"{language.least}({first}, {second})", NAME, language)

    def symbol(name: str) -> Term:
        return Term(name, NAME, language)

    place(
        schedule,
        symbol(number),
        blocks=symbol("blocks"),
        heads=symbol("heads"),
        batch=symbol("batch"),
        let=let,
        least=least,
    )
    return lines


def sizes(schedule: Schedule) -> list[str]:
    """The names that an order's steps use beside the tile's number, in the order of the functions' arguments."""
    used = " ".join(text for _, text in steps(schedule, LANGUAGES["formula"]))
    return [name for name in ("blocks", "heads", "batch") if re.search(rf"\b{name}\b", used)]


def grid(schedule: Schedule) -> str:
    if schedule.cluster == 1:
        return "blocks * heads"
    return f"(blocks + {schedule.cluster - 1}) // {schedule.cluster} * {schedule.cluster} * heads"


def key_block(schedule: Schedule, language: Language) -> str:
    """The key block of step t of a tile that visits [first, last), as an expression."""
    if schedule.direction is Direction.ASCENDING:
        return "first_key + t"
    if schedule.direction is Direction.DESCENDING:
        return "last_key - 1 - t"
    whose = "block" if schedule.cluster == 1 else f"(block {language.quotient} {schedule.cluster})"
    # Even blocks walk up, odd ones down: t becomes (last - 1 - first - t) by one product, no branch.
    odd = f"{whose} % 2"
    return f"first_key + t + {odd} * (last_key - 1 - first_key - 2 * t)"


def code(schedule: Schedule, language: str) -> str:
    """The order in a language; as a formula it is arithmetic on whole numbers, // the quotient rounded down."""
    if language not in LANGUAGES:
        raise unknown_name("`code`", language, LANGUAGES)
    written, used = LANGUAGES[language], sizes(schedule)
    multiple = schedule.section_heads or schedule.chiplets
    note = f", a multiple of {multiple}" if schedule.chiplets > 1 else ""
    return filled(
        Path(__file__).with_name(f"{language}.jinja"),
        schedule=schedule,
        steps="\n".join(written.step.format(*step) for step in steps(schedule, written)),
        grid=grid(schedule).replace("//", written.quotient),
        key_block=key_block(schedule, written),
        sizes=used,
        note=note + ("; batch: sequences" if "batch" in used else ""),
    )

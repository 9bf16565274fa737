"""Fields of a dataclass that say all about themselves: kind, range, help, option of the command line, key in JSON.

    batch: int = about(1, Kind.WHOLE, "sequences", low=1, high=100)

What is said there once is what checks a value, adds the option to a parser, writes the JSON, prints the command line
that gives an object back, and fills the documentation's table. Not for what several fields say together: a dataclass
checks that itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from numbers import Real
from typing import Any, Generic, SupportsIndex, TypeVar

from iosim.base.errors import InputError, unknown_name
from iosim.base.records import dataclass, field, fields, replace
from iosim.base.schema import Whole
from iosim.base.units import list_text, size, sizes

T = TypeVar("T")


class Resolved(Generic[T]):
    """The annotation of a field that is given as a T or None, and read as a T: `__post_init__` puts the default in."""

    def __get__(self, instance: object, owner: type[object]) -> T:
        raise NotImplementedError

    def __set__(self, instance: object, value: T | None) -> None:
        raise NotImplementedError


UNSET: Any = None
MAX_LENGTHS = 1 << 16
MAX_SIZE = 1 << 31


class Kind(Enum):
    WHOLE = auto()
    """A whole number; k and m for 1024 and 1024^2."""
    PROBABILITY = auto()
    """0 <= P < 1."""
    FLAG = auto()
    WORD = auto()
    """One of a few words."""
    SIDES = auto()
    """Two sides, QxK; one number for both where the field says so."""
    LENGTHS = auto()
    """Whole numbers, 512,1024."""
    FILE = auto()
    NUMBER = auto()
    """A number, whole or not."""
    TEXT = auto()
    """A text or a number that is read where it is used."""
    SIZES = auto()
    """Whole numbers or texts of them, 512,4k or 1k:64k:x2, that are read where they are used."""
    NAMES = auto()
    """Names, a,b."""
    NAME = auto()
    """One name, or another text."""
    NUMBERS = auto()
    """Numbers, 3,1."""
    OBJECT = auto()
    """Anything that only Python can give."""


@dataclass(frozen=True)
class About:
    """What a field says of itself.

    Args:
        kind: what values it has.
        help: what it is, in one line.
        more: what a reader of the documentation wants to know besides.
        low, high: range of a whole number, or of the numbers of which the value consists.
        words: those accepted; a value of another spelling goes through `normal` first.
        normal: a word as it is kept (bfloat16 as bf16).
        one_for_both: of two sides, one number may stand for both.
        default_of: the default, where it follows from the object's other fields.
        default_text: that default in words.
        option: of the command line; None for a field that has none.
        spellings: of the option in one letter.
        bare: the value of an option that is given without one.
        usual: the default on the command line, where that is another one than Python's.
        key: in JSON.
        always: in JSON at its default, too.
        name, default: as the dataclass has them.
    """

    kind: Kind
    help: str
    more: str = ""
    low: int = 1
    high: int = MAX_SIZE
    words: tuple[str, ...] = ()
    normal: Callable[[Any], Any] = lambda word: word
    one_for_both: bool = False
    default_of: Callable[[Any], Any] | None = None
    default_text: str = ""
    option: str | None = ""
    spellings: tuple[str, ...] = ()
    metavar: str = ""
    usual: Any = None
    bare: Any = None
    key: str = ""
    always: bool = False
    name: str = ""
    default: Any = None

    @property
    def accepted(self) -> str:
        return {
            Kind.WHOLE: f"{self.low} to {self.high}",
            Kind.PROBABILITY: "0 <= P < 1",
            Kind.FLAG: "True, False",
            Kind.WORD: ", ".join(self.words),
            Kind.SIDES: f"two whole numbers of {self.low} to {self.high}",
            Kind.LENGTHS: f"whole numbers of {self.low} to {self.high}",
            Kind.NUMBER: f"{self.low} to {self.high}",
        }.get(self.kind, "")

    @property
    def asked(self) -> Any:
        """The default where the field is asked for, on the command line and by keyword."""
        return self.default if self.usual is None else self.usual

    def check(self, value: Any) -> Any:
        """The value as it is kept; None stays None where that is the default."""
        if value is None and self.default is None:
            return None
        if self.kind is Kind.WHOLE:
            return whole(self.name, value, self.low, self.high)
        if self.kind is Kind.PROBABILITY:
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
                raise InputError(
                    f"`{self.name}` {value!r} is out of range; accepted: {self.accepted}"
                )
            return float(value)
        if self.kind is Kind.NUMBER and not self.low <= value <= self.high:
            raise InputError(f"`{self.name}` {value} is out of range; accepted: {self.accepted}")
        if self.kind is Kind.FLAG and not isinstance(value, bool):
            raise InputError(
                f"`{self.name}` {value!r} is no truth value; accepted: {self.accepted}"
            )
        if self.kind is Kind.WORD:
            word = self.normal(value)
            if not isinstance(word, str) or word not in self.words:
                raise unknown_name(f"`{self.name}`", str(value), self.words)
            return word
        if self.kind is Kind.NUMBERS:
            return self._numbers(value)
        if self.kind is Kind.SIDES:
            return self._sides(value)
        return self._lengths(value) if self.kind is Kind.LENGTHS else value

    def read(self, text: str, name: str) -> Any:
        """A value from the text of an option, a keyword or a cell, unchecked; `name` names it in messages."""
        if self.kind is Kind.WHOLE:
            # A sign is taken off first: `size` reads 4k and 1m, which have none.
            negative = self.low < 0 and text.strip().startswith("-")
            return -size(text.strip()[1:], name) if negative else size(text, name)
        if self.kind is Kind.SIDES:
            first, _, second = text.lower().partition("x")
            try:
                return size(first, name), size(second or (first if self.one_for_both else ""), name)
            except InputError:
                raise InputError(
                    f"{name} '{text}' is not of the form QxK, such as 128x64"
                ) from None
        if self.kind is Kind.LENGTHS:
            return tuple(sizes(text, name, sequences=True))
        if self.kind is Kind.FLAG:
            return {"true": True, "false": False, "1": True, "0": False}.get(text.lower(), text)
        if self.kind in (Kind.NUMBER, Kind.PROBABILITY):
            try:
                return float(text) if self.kind is Kind.NUMBER else self.check(float(text))
            except ValueError:  # an InputError, too
                wrong = (
                    "is no number"
                    if self.kind is Kind.NUMBER
                    else f"is out of range; accepted: {self.accepted}"
                )
                raise InputError(f"{name} '{text}' {wrong}") from None
        return text

    def _numbers(self, value: Sequence[Any]) -> list[Any]:
        try:
            return [float(number) if isinstance(number, str) else number for number in value]
        except ValueError:
            raise InputError(
                f"`{self.name}` {','.join(map(str, value))}: no numbers; accepted: such as 3,1"
            ) from None

    def _sides(self, value: Any) -> tuple[int, int]:
        # NumPy's whole numbers are SupportsIndex and no int; `whole` makes them one.
        pair = (value, value) if self.one_for_both and isinstance(value, SupportsIndex) else value
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            more = ", or one for both" if self.one_for_both else ""
            raise InputError(f"`{self.name}` {value!r} is no pair; accepted: {self.accepted}{more}")
        first, second = (whole(self.name, side, -MAX_SIZE, MAX_SIZE) for side in pair)
        if not self.low <= min(first, second) <= max(first, second) <= self.high:
            raise InputError(
                f"`{self.name}` {self.text(value)} is out of range; accepted: {self.accepted}"
            )
        return first, second

    def _lengths(self, value: Any) -> tuple[int, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InputError(
                f"`{self.name}` {value!r} is no list of lengths; accepted: numbers from {self.low}"
            )
        if not 1 <= len(value) <= MAX_LENGTHS:
            raise InputError(
                f"`{self.name}` holds {len(value)} lengths; accepted: 1 to {MAX_LENGTHS}"
            )
        return tuple(whole(self.name, length, self.low, self.high) for length in value)

    def resolve(self, owner: Any) -> Any:
        return self.default if self.default_of is None else self.default_of(owner)

    def text(self, value: Any) -> str:
        if self.kind is Kind.SIDES:
            return "x".join(map(str, value)) if isinstance(value, Sequence) else str(value)
        return list_text(value, sequences=True) if self.kind is Kind.LENGTHS else str(value)

    def argument(self, value: Any) -> list[str]:
        if self.option is None:
            raise InputError(
                f"`{self.name}` has no option; accepted on a command line: fields that have one"
            )
        if self.kind is Kind.FLAG:
            return [self.option if value else f"--no-{self.option[2:]}"]
        text = self.text(value)
        return [f"{self.option}={text}"] if text.startswith("-") else [self.option, text]


def about(default: Any, kind: Kind, help: str, **rest: Any) -> Any:
    """A field of a dataclass with what is to be said of it; see `About`. `help`: its first sentence, then `more`."""
    line, _, more = help.partition(". ")
    return field(default=default, metadata={"about": About(kind, line, more, **rest)})


def _about(kind: Kind, metavar: str = "", usual: Any = None) -> Callable[..., Any]:
    def about_one(help: str, default: Any = usual, **rest: Any) -> Any:
        return about(default, kind, help, **({"metavar": metavar} | rest))

    return about_one


count, number, flag = _about(Kind.WHOLE, "N"), _about(Kind.NUMBER), _about(Kind.FLAG, usual=False)
name, text, file = _about(Kind.NAME, "NAME"), _about(Kind.TEXT, "WORD"), _about(Kind.FILE, "FILE")
names, counts = _about(Kind.NAMES, "NAME,..."), _about(Kind.SIZES, "N,...")
"""`about` by kind: what a field is in one line, its default, and what else is to be said of it."""


def word(help: str, words: tuple[str, ...], default: str | None = None, **rest: Any) -> Any:
    """`about` a field that holds one of some words."""
    return about(default, Kind.WORD, help, words=words, **rest)


def like(other: About, default: Any = None, **changes: Any) -> Any:
    """A field of a dataclass that says what `other` says of another one's, with `changes`."""
    return field(default=default, metadata={"about": replace(other, usual=None, **changes)})


def put_checked(owner: Any) -> None:
    for name, about_field in fields_of(type(owner)).items():
        object.__setattr__(owner, name, about_field.check(getattr(owner, name)))


def fields_of(owner: type[Any]) -> Mapping[str, About]:
    return table_of(
        **{member.name: member for member in fields(owner) if "about" in member.metadata}
    )


def table_of(**several: Any) -> Mapping[str, About]:
    """What fields say of themselves, by name: a dataclass's, or fields that are of none."""
    table: dict[str, About] = {}
    for name, member in several.items():
        about: About = member.metadata["about"]
        option = f"--{name.replace('_', '-')}" if about.option == "" else about.option
        table[name] = replace(
            about, name=name, default=member.default, option=option, key=about.key or name
        )
    return table


def whole(name: str, value: object, low: int, high: int = MAX_SIZE) -> int:
    """`value` as a whole number within bounds. Raises InputError: it is none."""
    if type(value) is int and low <= value <= high:  # nearly always, and asked millions of times
        return value
    number: Any = (
        value.__index__()
        if isinstance(value, SupportsIndex) and not isinstance(value, bool)
        else value
    )
    for problem in Whole(low, high).problems(number, ""):
        raise InputError(f"`{name}` {problem}")
    return int(number)


def default_text(about_field: About, usual: bool = False) -> str:
    """A field's default in words; with `usual`, that of the command line. Empty for none."""
    if about_field.default_text:
        return about_field.default_text
    value = about_field.asked if usual else about_field.default
    return "" if value is None or value is False else about_field.text(value)


def described(about_field: About) -> str:
    return f"{about_field.help}. {about_field.more}" if about_field.more else about_field.help


def documented(owner: type[Any]) -> str:
    """A dataclass's docstring with its fields in place of the line "Fields:"."""
    text = str(owner.__doc__)
    rows = []
    for about_field in fields_of(owner).values():
        default = default_text(about_field)
        accepted = f" ({about_field.accepted})" if about_field.accepted else ""
        rest = f"; by default {default}." if default else "."
        rows.append(f"        {about_field.name}: {described(about_field)}{accepted}{rest}")
    return text.replace("    Fields:\n", "\n".join(["    Args:", *rows, ""]), 1)

"""The one checker of data files: what a TOML or CSV file may hold, declared as data beside the code that reads it.

A schema is made of `Table`, `MapOf`, `ListOf`, `Pairs` and the leaves `Text`, `Whole`, `Real`, `Flag`; `Table.of` makes
one of a dataclass. `problems` lists everything that is wrong, each with the key it is about and what is accepted there;
`checked` raises the first with the file's name. It reads values, and converts none.
"""

from __future__ import annotations

import csv
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from iosim.base.errors import InputError, alike
from iosim.base.files import read_text
from iosim.base.records import MISSING, dataclass, field, fields

MAX_FILE_BYTES = 1_000_000
UNBOUNDED = 2**63
DEEP = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){64}""")
"""A dotted key of more parts than any file needs."""


class Problem(NamedTuple):
    """One thing that is wrong: the key, as TOML would write it with the places of lists in brackets, and why."""

    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}" if self.key else self.reason


Rule = Callable[[Mapping[str, Any]], Iterable[Problem]]
"""Finds contradictions in a table; it is asked only when every value of the table has its form."""


class Spec(Protocol):
    def problems(self, value: Any, key: str) -> Iterator[Problem]: ...


@dataclass(frozen=True)
class Text:
    """One line of text that is not blank, of `choices` where there are any. `lines`: whether more than one line is
    allowed. `pattern`: what the whole text must match. `such_as`: an example for messages."""

    choices: Sequence[str] | Callable[[], Sequence[str]] | None = None
    lines: bool = False
    longest: int = 1000
    pattern: str | None = None
    such_as: str = ""

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        example = f' such as "{self.such_as}"' if self.such_as else ""
        if not isinstance(value, str):
            yield Problem(key, f"must be a text{example}, not {shown(value)}")
        elif not value.strip():
            yield Problem(key, f"must be a text{example}, not an empty one")
        elif not self.lines and value != one_line(value, self.longest):
            yield Problem(
                key, f"must be one line of text{example}, of up to {self.longest} characters"
            )
        elif self.pattern and not re.fullmatch(self.pattern, value):
            yield Problem(key, f"must be a text{example}, not {shown(value)}")
        elif self.choices is not None:
            choices = self.choices() if callable(self.choices) else self.choices
            if value not in choices:
                yield Problem(key, f"{shown(value)} is not known; {_meant(value, choices)}")


@dataclass(frozen=True)
class Whole:
    low: float = 0
    high: float = UNBOUNDED
    hint: str = ""

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        if isinstance(value, bool) or not isinstance(value, int):
            yield Problem(
                key,
                f"{shown(value)} is not a whole number; accepted: {_range(self.low, self.high)}",
            )
        else:
            yield from _in_range(value, self.low, self.high, key, self.hint)


@dataclass(frozen=True)
class Real:
    low: float
    high: float
    hint: str = ""

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield Problem(key, f"must be a number, not {shown(value)}")
        elif isinstance(value, float) and not math.isfinite(value):
            yield Problem(key, f"must be finite, not {value}")
        else:
            yield from _in_range(value, self.low, self.high, key, self.hint)


@dataclass(frozen=True)
class Flag:
    only: bool | None = None

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        accepted = "true or false" if self.only is None else str(self.only).lower()
        if not isinstance(value, bool) or self.only not in (None, value):
            yield Problem(key, f"must be {accepted}, not {shown(value)}")


@dataclass(frozen=True)
class ListOf:
    """A list of `item`s. `least`: entries at least; `exactly`: that many, neither more nor fewer. `ascending`: whether
    each must be more than the one before."""

    item: Spec
    least: int = 1
    exactly: int | None = None
    ascending: bool = False
    unique: bool = False

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield Problem(key, f"must be a list, not {shown(value)}")
            return
        if self.exactly is not None and len(value) != self.exactly:
            yield Problem(key, f"must be a list of {self.exactly}, not of {len(value)}")
        if len(value) < self.least:
            entries = "1 entry" if self.least == 1 else f"{self.least} entries"
            yield Problem(key, f"must be a list with at least {entries}")
        wrong = [
            problem
            for n, element in enumerate(value)
            for problem in self.item.problems(element, f"{key}[{n}]")
        ]
        yield from wrong
        if not wrong and self.ascending and any(b <= a for a, b in pairwise(value)):
            yield Problem(key, "must be in ascending order")
        if (
            not wrong
            and self.unique
            and any(element in value[:n] for n, element in enumerate(value))
        ):
            yield Problem(key, "has the same entry twice")


@dataclass(frozen=True)
class Pairs:
    """A list of pairs, ascending by their first numbers; `names` say what the two are."""

    first: Spec
    second: Spec
    names: tuple[str, str]

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        if not isinstance(value, list) or not value:
            yield Problem(key, "must be a list with at least one entry")
            return
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            yield Problem(key, f"must be a list of pairs [{self.names[0]}, {self.names[1]}]")
            return
        # Both sides of all pairs are checked first: an order of values of a wrong type says nothing.
        sides = (self.first, self.second)
        both = (
            (spec, element, f"{key}[{n}]")
            for n, pair in enumerate(value)
            for spec, element in zip(sides, pair, strict=True)
        )
        wrong = [
            problem for spec, element, place in both for problem in spec.problems(element, place)
        ]
        yield from wrong
        if not wrong and any(b[0] <= a[0] for a, b in pairwise(value)):
            yield Problem(key, f"{self.names[0]} must be in ascending order")


@dataclass(frozen=True)
class OneOrMany:
    item: Spec

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        if isinstance(value, list):
            yield from ListOf(self.item).problems(value, key)
        else:
            yield from self.item.problems(value, key)


@dataclass(frozen=True)
class MapOf:
    """A table whose keys are names: any, or those of `names`; every value is an `item`."""

    item: Spec
    names: Sequence[str] | None = None

    def problems(self, value: Any, key: str) -> Iterator[Problem]:
        if not isinstance(value, dict):
            of = f" with an entry for each of {', '.join(self.names)}" if self.names else ""
            yield Problem(key, f"must be a table{of}, not {shown(value)}")
            return
        for name, element in value.items():
            path = _path(key, name)
            if self.names is not None and name not in self.names:
                yield _unknown(path, [_path(key, n) for n in self.names])
            else:
                yield from self.item.problems(element, path)


@dataclass(frozen=True)
class Table:
    """A table with keys of its own.

    Attributes:
        keys: what each may be.
        required: those that must be there.
        rules: what cannot hold at once.
        form: how the table is written, for messages where something else stands in its place.
        see: where the keys are described, for messages about a key that is like none of them.
        others: what stands under keys of another kind: a pattern of their names, and the specification of each.
    """

    keys: Mapping[str, Spec]
    required: Sequence[str] = ()
    rules: Sequence[Rule] = field(default=())
    form: str = ""
    see: str = ""
    others: tuple[str, Spec] | None = None

    def problems(self, value: Any, key: str = "") -> Iterator[Problem]:
        if not isinstance(value, dict):
            yield Problem(
                key,
                f"{f'write {self.form}' if self.form else 'must be a table'}, not {shown(value)}",
            )
            return
        # Keys first, then what is missing; rules are asked only where every value has the right form,
        # for they read values without checking them.
        fine = True
        for name, element in value.items():
            path = _path(key, name)
            spec = self.keys.get(name)
            if spec is None and self.others is not None and re.fullmatch(self.others[0], name):
                spec = self.others[1]
            if spec is None:
                fine = False
                yield _unknown(path, [_path(key, n) for n in self.keys], self.see)
                continue
            for problem in spec.problems(element, path):
                fine = False
                yield problem
        for name in self.required:
            if name not in value:
                fine = False
                yield Problem(_path(key, name), "missing; it is needed")
        if fine:
            for rule in self.rules:
                yield from (
                    Problem(".".join(part for part in (key, p.key) if part), p.reason)
                    for p in rule(value)
                )

    @classmethod
    def of(cls, kind: type, *, form: str = "", **more: Spec) -> Table:
        """The table of a dataclass: its fields are the keys, their types what is accepted; those without a default are
        required. `more` replaces the specification of single fields."""
        # A field's own type is its specification; bounds in its metadata narrow a whole number.
        kinds = typing.get_type_hints(kind)
        keys = {
            f.name: more.get(f.name) or _bounded(spec_of(kinds[f.name]), f.metadata)
            for f in fields(kind)
            if f.init
        }
        needed = [
            f.name
            for f in fields(kind)
            if f.init and f.default is MISSING and f.default_factory is MISSING
        ]
        return cls(keys, needed, form=form)


def _bounded(spec: Spec, metadata: Mapping[str, Any]) -> Spec:
    if not isinstance(spec, Whole) or metadata.get("low") is None:
        return spec
    high = metadata.get("high")
    return Whole(metadata["low"], spec.high if high is None else high)


def spec_of(kind: Any) -> Spec:
    """What a field of type `kind` accepts: bool, int, float, str, StrEnum, tuple[T, ...] and each of these or None."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        # An optional field may be left out; None is never written in a file.
        (kind,) = [member for member in inner if member is not type(None)]
        return spec_of(kind)
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return ListOf(spec_of(inner[0]), least=0)
        return ListOf(spec_of(inner[0]), exactly=len(inner))
    if origin is typing.Literal:
        return Text(tuple(inner))
    if kind is bool:
        return Flag()
    if kind is int:
        return Whole()
    if kind is float:
        return Real(0, 1e18)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Text(tuple(str(word) for word in kind))
    if kind is str:
        return Text()
    raise TypeError(f"no specification for a field of type {kind}")


def checked(data: Mapping[str, Any], schema: Table, where: object) -> Mapping[str, Any]:
    """`data`, once the schema has nothing against it; `where` says what it is, at the beginning of a refusal."""
    refuse(list(schema.problems(data)), where)
    return data


def refuse(wrong: Sequence[Problem | str], where: object) -> None:
    """Raises InputError where there is a problem: it tells the first, and how many more there are."""
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(f"{one_line(where)}: {wrong[0]}{more}")


def read_toml(path: Path, subject: str = "file", such_as: str = "") -> dict[str, Any]:
    """The tables of a TOML file, for messages a `subject`; what belongs in it is to be read in `such_as`. Raises
    InputError: there is no such regular file, it is empty, longer than a megabyte, not UTF-8 or not valid TOML."""
    name = f"{subject} '{one_line(path)}'"
    text = read_text(path, name, "a TOML file", MAX_FILE_BYTES)
    if not text.strip():
        raise InputError(
            f"{name} is empty" + (f"; {such_as} shows what belongs in it" if such_as else "")
        )
    return parse_toml(text, name)


def parse_toml(text: str, name: str) -> dict[str, Any]:
    import tomllib  # costs milliseconds; whoever reads no file need not wait for it

    try:
        if DEEP.search(text):
            raise RecursionError
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{name} is not what it should be: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and integers beyond Python's limit of digits
        raise InputError(f"{name} is not valid TOML: {one_line(error)}") from None


def toml_text(value: Any) -> str:
    """A value as TOML writes it, tables and lists in one line."""
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{toml_key(key)} = {toml_text(element)}" for key, element in value.items())
            + " }"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)


Column = Callable[[str], Any]
"""Makes a cell's value of its text; raises ValueError where the text is none."""


def whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{shown(text)} is not a whole number; accepted: {_range(0, UNBOUNDED)}")
    return int(text)


def word(*choices: str) -> Column:

    def one(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{shown(text)} is not known; {_meant(text, choices)}")
        return text

    return one


def read_csv(
    path: Path, columns: Mapping[str, Column], subject: str = "table"
) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file, its cells converted; lines that begin with # are comments."""
    name = f"{subject} '{one_line(path)}'"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            # Lines keep their numbers in the file, which messages name, though comments are left out.
            lines = [(n, line) for n, line in enumerate(file, start=1) if not line.startswith("#")]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{name} cannot be read: {one_line(getattr(error, 'strerror', None) or error)}"
        ) from None
    try:
        header, *rows = [*csv.reader(line for _, line in lines)] or [[]]
    except csv.Error as error:
        raise InputError(f"{name} is no CSV table: {error}") from None
    # The header is held against the columns both ways before any cell is read.
    for column in header:
        if column not in columns:
            raise InputError(f"{name}: {_unknown(column, columns)}")
    for column in columns:
        if column not in header:
            raise InputError(f"{name}: {column}: missing; it is needed")
    makers = [columns[column] for column in header]
    for (number, _), cells in zip(lines[1:], rows, strict=False):
        if len(cells) != len(header):
            raise InputError(
                f"{name}, line {number}: has {len(cells)} cells; accepted: {len(header)}"
            )
        row = {}
        for column, make, cell in zip(header, makers, cells, strict=True):
            try:
                row[column] = make(cell)
            except ValueError as error:
                raise InputError(f"{name}, line {number}: {column}: {error}") from None
        yield row


def one_line(text: object, limit: int = 200) -> str:
    """`text` as one line of printable characters, cut after `limit` of them, for messages about hostile input."""
    # Hostile text may be long: it is cut before it is looked through, and again once it is one line.
    start = str(text)[: 4 * limit]
    if not start.isprintable():
        start = "".join(c if c.isprintable() else " " for c in start)
    line = " ".join(start.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def shown(raw: object) -> str:
    if isinstance(raw, dict | list):
        return "a table" if isinstance(raw, dict) else "a list"
    if isinstance(raw, int) and abs(raw) >= 10**21:
        return "a number of more than 20 digits"
    return one_line(repr(raw), 40)


def _in_range(value: float, low: float, high: float, key: str, hint: str) -> Iterator[Problem]:
    if not low <= value <= high:
        more = f"; {hint}" if hint else ""
        yield Problem(key, f"{shown(value)} is out of range; accepted: {_range(low, high)}{more}")


def _range(low: float, high: float) -> str:
    first, last = (f"{end:g}" if isinstance(end, float) else str(end) for end in (low, high))
    return f"{first} or more" if high >= UNBOUNDED else f"{first} to {last}"


def _path(table: str, name: object) -> str:
    plain = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name)
    if not plain and not table:
        return one_line(name, 60)
    last = str(name) if plain else f'"{one_line(name, 60)}"'
    return f"{table}.{last}" if table else last


def _meant(value: str, choices: Iterable[str]) -> str:
    words = list(choices)
    near = alike(value, words, 1)
    return f"did you mean {near[0]}?" if near else f"accepted: {', '.join(words)}"


def _unknown(path: str, known: Iterable[str], see: str = "") -> Problem:
    words = list(known)
    near = alike(path, words, 1)
    if near:
        return Problem(path, f"unknown key; did you mean {near[0]}?")
    return Problem(
        path, f"unknown key; see {see}" if see else f"unknown key; accepted: {', '.join(words)}"
    )

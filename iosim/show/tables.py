"""Tables: rows of plain values, written as aligned text, Markdown, CSV or a pandas DataFrame. Pages write them as HTML.

Numbers stay exact in a table and become text only where they are shown.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from iosim.base.fields import UNSET, Resolved
from iosim.base.records import dataclass, field, replace
from iosim.base.units import (
    bytes_text,
    count_text,
    number_text,
    per_second_text,
    rate_text,
    seconds_text,
)
from iosim.show import terminal

if TYPE_CHECKING:
    import pandas

Cell = str | int | float | None
K = TypeVar("K")
V = TypeVar("V")

ColumnKind = Literal[
    "",
    "text",
    "bytes",
    "seconds",
    "count",
    "number",
    "per_second",
    "rate",
    "ratio",
    "percent",
    "error",
    "right",
    "commands",
]
"""How the cells of a column read; "" is what the unit at the end of its key says."""
COMMANDS: Final = "commands"
"""Kind of the column that names, by their ids, the command lines which give a row's numbers."""
RIGHT: Final = "right"
"""Kind of a column of text that stands to the right, as numbers do."""
NOTHING = "nothing to show\n"
GAP = "  "
READABLE = 24
"""Columns that a cell of text keeps where it is wrapped."""
MOST_PIVOTED = 5
"""Numbers of a pivoted column that become columns."""

UNITS: Mapping[str, ColumnKind] = {"_bytes": "bytes", "_s": "seconds"}
"""Unit at the end of a key -> the kind of its column."""
_AS_TEXT: dict[str, Callable[[Any], str]] = {
    "bytes": bytes_text,
    "seconds": seconds_text,
    "count": count_text,
    "number": number_text,
    "per_second": per_second_text,
    "rate": rate_text,
    "ratio": lambda x: f"{number_text(x)}x",
    "percent": lambda x: f"{100 * x:,.1f} %",
    "error": lambda x: f"{100 * x:,.2f} %",
}


class Marked(float):
    """A number that people read with a mark behind it; everybody else finds the number alone."""

    mark: str

    @staticmethod
    def of(value: float, mark: str) -> float:
        """`value`, whole or not, with a mark."""
        kind = _MarkedInt if isinstance(value, int) else Marked
        number = kind(value)
        number.mark = mark
        return number


class _MarkedInt(int):
    mark: str


@dataclass(frozen=True)
class Column:
    """`key` heads the column in CSV and carries the unit; `title` heads it for people, by default the key; `kind` says
    how cells read, by default as the unit does."""

    key: str
    title: Resolved[str] = UNSET
    kind: ColumnKind = ""
    colours: Mapping[str, str] = field(default_factory=dict)
    """First word of a cell -> its colour on a terminal."""

    def __post_init__(self) -> None:
        kind = self.kind or next(
            (kind for unit, kind in UNITS.items() if self.key.endswith(unit)), "text"
        )
        object.__setattr__(self, "title", self.key if self.title is None else self.title)
        object.__setattr__(self, "kind", kind)

    @property
    def numeric(self) -> bool:
        return self.kind in _AS_TEXT

    @property
    def to_the_right(self) -> bool:
        return self.numeric or self.kind == RIGHT

    def text(self, value: Any) -> str:
        """A cell for a person; "-" where there is no value."""
        if value is None:
            return "-"
        text = (
            _AS_TEXT[self.kind](value)
            if self.numeric and not isinstance(value, str)
            else str(value)
        )
        return text + getattr(value, "mark", "")

    def aligned(self, part: str, width: int, cell: str) -> str:
        """A line of a cell's text, as wide as its column."""
        colour = self.colours.get(cell.split(" ", 1)[0])
        padded = part.rjust(width) if self.to_the_right else part.ljust(width)
        return terminal.coloured(padded, colour) if colour else padded


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], columns: Sequence[Column] = ()) -> Table:
        """Records under some columns; else as they are, under the keys of the first, what looks like numbers right."""
        items = list(records)
        keys = [c.key for c in columns] or (list(items[0]) if items else [])
        rows = tuple(tuple(record.get(key) for key in keys) for record in items)
        # Without columns nothing says what a value is: a column stands to the right where every cell
        # begins as a number does.
        kinds: Iterator[ColumnKind] = (
            RIGHT if all(_like_a_number(row[n]) for row in rows) else "text"
            for n in range(len(keys))
        )
        return cls(tuple(columns) or tuple(map(Column, keys, keys, kinds)), rows)

    def index(self, key: str) -> int:
        return next(n for n, c in enumerate(self.columns) if c.key == key)

    def without(self, *keys: str) -> Table:
        remaining = [n for n, c in enumerate(self.columns) if c.key not in keys]
        return Table(
            tuple(self.columns[n] for n in remaining),
            tuple(tuple(row[n] for n in remaining) for row in self.rows),
        )

    def winning(self, key: str, cells: Iterable[Any]) -> Table:
        """The table with these cells of a column in green on a terminal, where it has that column."""
        column = next((c for c in self.columns if c.key == key), None)
        if column is None:
            return self
        words = (column.text(cell).split(" ", 1)[0] for cell in cells)
        return self.coloured(key, dict.fromkeys(words, "green"))

    def coloured(self, key: str, colours: Mapping[str, str]) -> Table:
        columns = (replace(c, colours=colours) if c.key == key else c for c in self.columns)
        return Table(tuple(columns), self.rows)

    @property
    def marked(self) -> bool:
        return any(getattr(cell, "mark", "") for row in self.rows for cell in row)

    def cells(self) -> list[list[str]]:
        return [
            [c.text(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Columns aligned for a terminal, numbers to the right; in a narrow one cells are wrapped, or columns go on
        in further tables below, each with the first column again."""
        if not self.rows:
            return NOTHING
        lines = [[c.title for c in self.columns], *self.cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        limit = terminal.columns()
        if limit is None or _total(widths) <= limit:
            return self._lines(lines, widths, range(len(widths)))
        # Too wide: columns of text shrink as far as their longest word, numbers never. Whatever is
        # still too wide goes on in a further table, and each table gives its spare width back.
        narrow = [
            width if c.to_the_right else _narrowest(column)
            for c, width, column in zip(self.columns, widths, zip(*lines, strict=True), strict=True)
        ]
        parts = []
        for numbers in _shares(narrow, limit):
            shares = _widened([narrow[n] for n in numbers], [widths[n] for n in numbers], limit)
            parts.append(self._lines(lines, shares, numbers))
        return "\n".join(parts)

    def _lines(
        self, lines: Sequence[Sequence[str]], widths: Sequence[int], numbers: Sequence[int]
    ) -> str:
        """The columns with these numbers, their cells wrapped to these widths."""
        out = []
        for cells in lines:
            # A row of cells is as many lines as its longest cell; shorter cells go on as blanks.
            wrapped = [_wrapped(cells[n], width) for n, width in zip(numbers, widths, strict=True)]
            for row in zip_longest(*wrapped, fillvalue=""):
                padded = (
                    self.columns[n].aligned(part, width, cells[n])
                    for n, width, part in zip(numbers, widths, row, strict=True)
                )
                out.append(GAP.join(padded).rstrip() + "\n")
        return "".join(out)

    def markdown(self) -> str:
        if not self.rows:
            return NOTHING

        def line(cells: Iterable[str]) -> str:
            return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"

        rule = line("---:" if c.to_the_right else "---" for c in self.columns)
        return line(c.title for c in self.columns) + rule + "".join(map(line, self.cells()))

    def csv(self) -> str:
        if not self.columns:
            return ""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([c.key for c in self.columns])
        writer.writerows(self.rows)
        return out.getvalue()

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame.from_records(list(self.rows), columns=[c.key for c in self.columns])

    def pivoted(self, by: Sequence[str], pivot: str, shows: Sequence[str]) -> Table:
        """A row per combination of the columns `by`, a column per value of `pivot`, cells of the columns `shows` as text.
        Of many numbers under `pivot`, a few stand for all: the first, the last, and some between."""
        spread = self.index(pivot)
        fixed, shown_columns = [self.index(key) for key in by], [self.index(key) for key in shows]
        names = list(dict.fromkeys(row[spread] for row in self.rows))
        if self.columns[spread].numeric:
            names.sort(key=lambda v: float(v or 0))
            names = spread_out(names, MOST_PIVOTED)
        # Row (values of `by`) -> value of `pivot` -> text of the cell; a combination that has no row
        # stays empty.
        cells: dict[tuple[Cell, ...], dict[Cell, str]] = {}
        for row in self.rows:
            place = tuple(row[n] for n in fixed)
            cells.setdefault(place, {})[row[spread]] = ", ".join(
                self.columns[c].text(row[c]) for c in shown_columns
            )
        title = f"{self.columns[spread].title} = " if self.columns[spread].numeric else ""
        heads = (f"{title}{self.columns[spread].text(name)}" for name in names)
        columns = (*(self.columns[n] for n in fixed), *(Column(h, h, RIGHT) for h in heads))
        return Table(
            columns, tuple((*place, *map(of_name.get, names)) for place, of_name in cells.items())
        )


def grouped(members: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """The members by a key, in the order of the first of each."""
    groups: dict[K, list[V]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups


def spread_out(values: Sequence[V], count: int) -> list[V]:
    """At most `count` of the values, evenly from the first to the last."""
    last = len(values) - 1
    return (
        list(values)
        if last < count
        else [values[round(n * last / (count - 1))] for n in range(count)]
    )


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _narrowest(cells: Sequence[str]) -> int:
    """The width of a column of text whose cells are wrapped: its longest word, and a line of some words."""
    return max(
        max((len(word) for cell in cells for word in cell.split()), default=0),
        min(max(map(len, cells)), READABLE),
    )


def _shares(widths: Sequence[int], limit: int) -> list[list[int]]:
    """Numbers of the columns of each of several tables, none wider than `limit`; the first column leads them all."""
    shares = [[0]]
    for number in range(1, len(widths)):
        if len(shares[-1]) > 1 and _total([widths[n] for n in (*shares[-1], number)]) > limit:
            shares.append([0])
        shares[-1].append(number)
    return shares


def _widened(narrow: Sequence[int], wanted: Sequence[int], limit: int) -> list[int]:
    """Widths from `narrow` up to `wanted`, the narrowest first, and no more in all than `limit`."""
    widths = list(narrow)
    rest = limit - _total(widths)
    # Columns that want little come first, so that what is spared reaches those that want much.
    for n in sorted(range(len(widths)), key=lambda n: wanted[n] - narrow[n]):
        more = min(max(0, rest), wanted[n] - widths[n])
        widths[n] += more
        rest -= more
    if rest < 0:  # one word is wider than what is left: it is broken
        widest = max(range(len(widths)), key=lambda n: widths[n])
        widths[widest] = max(1, widths[widest] + rest)
    return widths


def _like_a_number(value: Any) -> bool:
    return value is None or str(value)[:1] in "+-." or str(value)[0].isdigit()


def _wrapped(cell: str, width: int) -> list[str]:
    return (
        [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False) or [""]
    )

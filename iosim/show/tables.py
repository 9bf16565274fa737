"""Tables: rows of plain values, written as aligned text, Markdown, CSV or a pandas DataFrame. Pages write them as HTML.

Numbers stay exact in a table and become text only where they are shown.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iosim.base.units import bytes_text, count_text, number_text, rate_text, seconds_text

if TYPE_CHECKING:
    import pandas

Cell = str | int | float | None

COMMANDS = "commands"
"""Kind of the column that names, by their ids, the command lines which give a row's numbers."""
RIGHT = "right"
"""Kind of a column of text that stands to the right, as numbers do."""
NOTHING = "nothing to show\n"

_AS_TEXT: dict[str, Callable[[Any], str]] = {
    "bytes": bytes_text,
    "seconds": seconds_text,
    "count": count_text,
    "number": number_text,
    "rate": rate_text,
    "ratio": lambda x: f"{number_text(x)}x",
    "percent": lambda x: f"{100 * x:.1f} %",
    "error": lambda x: f"{100 * x:.2f} %",
}


@dataclass(frozen=True)
class Column:
    """`key` heads the column in CSV and carries the unit; `title` heads it for people; `kind` says how cells read."""

    key: str
    title: str
    kind: str = "text"

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
        return _AS_TEXT[self.kind](value) if self.numeric and not isinstance(value, str) else str(value)


@dataclass(frozen=True)
class Table:
    """Rows under columns; every row has a cell a column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Table:
        """Records as they are, under the keys of the first; columns of what looks like numbers stand to the right."""
        items = list(records)
        keys = list(items[0]) if items else []
        rows = tuple(tuple(record.get(key) for key in keys) for record in items)
        kinds = (RIGHT if all(_like_a_number(row[n]) for row in rows) else "text" for n in range(len(keys)))
        return cls(tuple(Column(key, key, kind) for key, kind in zip(keys, kinds, strict=True)), rows)

    def index(self, key: str) -> int:
        """Position of the column called `key`."""
        return next(n for n, c in enumerate(self.columns) if c.key == key)

    def without(self, *keys: str) -> Table:
        """The table without some columns."""
        kept = [n for n, c in enumerate(self.columns) if c.key not in keys]
        return Table(tuple(self.columns[n] for n in kept), tuple(tuple(row[n] for n in kept) for row in self.rows))

    def cells(self) -> list[list[str]]:
        """Every cell as a person reads it."""
        return [[c.text(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def text(self) -> str:
        """Columns aligned for a terminal, numbers to the right."""
        if not self.rows:
            return NOTHING
        lines = [[c.title for c in self.columns], *self.cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        def aligned(cells: Sequence[str]) -> str:
            padded = (
                cell.rjust(width) if column.to_the_right else cell.ljust(width)
                for column, cell, width in zip(self.columns, cells, widths, strict=True)
            )
            return "  ".join(padded).rstrip()

        return "".join(f"{aligned(cells)}\n" for cells in lines)

    def markdown(self) -> str:
        """A Markdown table; numbers stand to the right."""
        if not self.rows:
            return NOTHING

        def line(cells: Iterable[str]) -> str:
            return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"

        rule = line("---:" if c.to_the_right else "---" for c in self.columns)
        return line(c.title for c in self.columns) + rule + "".join(map(line, self.cells()))

    def csv(self) -> str:
        """CSV headed by the columns' keys; numbers are exact, what is not known is empty."""
        if not self.columns:
            return ""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([c.key for c in self.columns])
        writer.writerows(self.rows)
        return out.getvalue()

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame headed by the columns' keys."""
        import pandas

        return pandas.DataFrame.from_records(list(self.rows), columns=[c.key for c in self.columns])

    def pivoted(self, by: Sequence[str], pivot: str, shows: Sequence[str]) -> Table:
        """A row a combination of the columns `by`, a column a value of `pivot`, cells of the columns `shows` as text.

        A column of command lines stays, and names those of all cells of its row.
        """
        spread, commands = self.index(pivot), self.index(COMMANDS)
        fixed, shown = [self.index(key) for key in by], [self.index(key) for key in shows]
        numbered = self.columns[spread].numeric
        names = list(dict.fromkeys(row[spread] for row in self.rows))
        if numbered:
            names.sort(key=lambda v: float(v or 0))
        cells: dict[tuple[Cell, ...], dict[Cell, str]] = {}
        used: dict[tuple[Cell, ...], dict[str, None]] = {}
        for row in self.rows:
            place = tuple(row[n] for n in fixed)
            cells.setdefault(place, {})[row[spread]] = ", ".join(self.columns[c].text(row[c]) for c in shown)
            used.setdefault(place, {}).update(dict.fromkeys(str(row[commands]).split()))
        what = ", ".join(self.columns[c].title for c in shown)
        heads = [f"{pivot} {name}" if numbered else f"{name}: {what}" for name in names]
        columns = (*(self.columns[n] for n in fixed), *(Column(h, h, RIGHT) for h in heads), self.columns[commands])
        rows = (
            (*place, *(of_name.get(name) for name in names), " ".join(used[place])) for place, of_name in cells.items()
        )
        return Table(columns, tuple(rows))


def _like_a_number(value: Any) -> bool:
    return value is None or str(value)[:1] in "+-." or str(value)[0].isdigit()

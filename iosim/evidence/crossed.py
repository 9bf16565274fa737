"""Tables of columns as data files write them, and all combinations of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

Keys = Mapping[str, Any]


def columns(table: Keys) -> Iterator[dict[str, Any]]:
    """The rows of a table that stands by columns, or as `columns` and `rows`."""
    names, rows = (
        (table["columns"], table["rows"])
        if "rows" in table
        else (table, zip(*table.values(), strict=True))
    )
    for row in rows:
        yield dict(zip(names, row, strict=True))


def crossed(tables: Iterable[Keys], *more: Iterable[Keys]) -> Iterator[dict[str, Any]]:
    """Every combination of the rows of tables, and of `more` rows, the first table's the slowest, as one row each."""
    for several in product(*map(columns, tables), *more):
        yield {key: value for part in several for key, value in part.items()}

"""A figure of a sweep: one number of its rows against a size, a line per combination of what else differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.base.records import dataclass
from iosim.base.units import bytes_text, count_text, number_text, seconds_text
from iosim.show import axes
from iosim.show.axes import End, at_ends, layered
from iosim.show.page import PLOT_REM, Page, Panel, Section
from iosim.show.tables import Table, grouped
from iosim.studies.sweep.cases import FOLLOWS
from iosim.studies.sweep.files import ASKS_BYTES, FOUND

X, Y = "seq_q", ("time_s", "hbm_read_bytes", "l2_read_bytes")
"""What is drawn where nothing is asked for: the first of Y that is known."""
SIZES = ("seq_q", "seq_k", "batch", "heads", "kv_heads", "head_dim")
"""Sizes that may take the place of X where there is one value of it."""
WORDS = {
    "seq_q": "query tokens",
    "seq_k": "key tokens",
    "batch": "sequences",
    "flops": "operations",
}
MOST_LINES = 12
AXES_REM, END_REM = 5.0, 1.2
Row = Mapping[str, Any]
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Plot:
    """Names of the columns along both axes."""

    x: str
    y: str


def plot_of(columns: Columns, requested: Sequence[str] | None) -> Plot:
    """The columns to draw: those that were asked for, else times or bytes against a size that varies. Raises
    InputError: a column that is not there, not of numbers, or without a value."""
    numbers = [name for name, values in columns.items() if _is_number(values)]
    if requested is not None and len(requested) != 2:
        raise InputError(
            f"`plot` {','.join(requested)} is not two columns; accepted: x,y such as seq_q,time_s"
        )
    for name in requested or ():
        if name not in numbers:
            raise unknown_name("`plot`", name, numbers)
    if requested is not None:
        return Plot(*requested)
    varying = [name for name in SIZES if name in numbers and len({*columns[name]}) > 1]
    y = next((name for name in Y if name in numbers), numbers[-1])
    return Plot(varying[0] if varying else X, y)


def page(columns: Columns, plot: Plot, answer: str, table: Table | None, command: str) -> Page:
    """The figure, and the table of all rows where there is one."""
    lines = _lines(columns, plot)
    panel = _panel(lines, plot)
    title = f"{_words(plot.y)} against {_words(plot.x)}"
    caption = "Rows that are refused, or have no such number, are left out."
    sections = (
        Section("plot", f"{title[0].upper()}{title[1:]}", (caption,), panels=(panel,)),
        *(() if table is None else (Section("rows", "Rows", table=table, folded=True),)),
    )
    return Page(
        f"How does {_words(plot.y)} change with {_words(plot.x)}?",
        f"{answer}.",
        sections,
        command=command,
        answer=(panel.alt,),
        verdict=(_verdict(lines, plot),),
    )


def _verdict(lines: Mapping[str, Sequence[Row]], plot: Plot) -> str:
    """The lowest and the highest line at the largest x that has most lines."""
    text = _text_of(plot.y)
    by_x = grouped(
        [(row[plot.x], row[plot.y], name) for name, rows in lines.items() for row in rows],
        lambda place: place[0],
    )
    x, places = max(by_x.items(), key=lambda item: (len(item[1]), item[0]))
    low, high = (choose(places, key=lambda place: place[1]) for choose in (min, max))
    where = f"At {number_text(x)} {_words(plot.x)} {_words(plot.y)} is"
    if low[1] == high[1]:
        return f"{where} **{text(low[1])}** for {low[2]}."
    return f"{where} **{text(low[1])}** for {low[2]}, the least, and **{text(high[1])}** for {high[2]}, the most."


def _panel(lines: Mapping[str, Sequence[Row]], plot: Plot) -> Panel:
    text = _text_of(plot.y)
    x_values = sorted({row[plot.x] for rows in lines.values() for row in rows})
    drawn, ends, readings = [], [], []
    for n, (name, rows) in enumerate(lines.items()):
        xs, ys = [row[plot.x] for row in rows], [row[plot.y] for row in rows]
        hover = [
            f"{name}<br>{_words(plot.x)} {number_text(x)}<br>{text(y)}"
            for x, y in zip(xs, ys, strict=True)
        ]
        drawn.append(axes.line(name, xs, ys, hover, n))
        ends.append(
            End(name.replace(", ", ",<br>"), ys[-1] or 0.0, axes.colour(n), axes.symbol(n)[1])
        )
        readings.append(
            f"{name}: {text(ys[0])} at {number_text(xs[0])}, {text(ys[-1])} at {number_text(xs[-1])}"
        )
    y_values = [row[plot.y] for rows in lines.values() for row in rows]
    # Zeros have no place on a logarithmic axis: such columns start at zero.
    is_log = min(y_values) > 0
    y = (
        axes.log_axis(y_values, _words(plot.y), text)
        if is_log
        else axes.linear_axis(y_values, _words(plot.y), text)
    )
    along = (
        axes.length_axis(x_values, _words(plot.x))
        if x_values[0] >= 1
        else axes.linear_axis(x_values, _words(plot.x), number_text)
    )
    height = max(PLOT_REM, AXES_REM + sum(END_REM * (1 + end.name.count("<br>")) for end in ends))
    alt = f"{_words(plot.y)} against {_words(plot.x)}. {'; '.join(readings)}."
    return Panel(
        "sweep-1", "", alt, tuple(layered(drawn)), axes.layout(along, y, **at_ends(ends, y)), height
    )


def _lines(columns: Columns, plot: Plot) -> dict[str, list[Row]]:
    """Rows with both numbers by what tells them apart beside x, each line in order of x. Raises InputError: none, or
    more lines than can be told apart."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    known = [row for row in rows if row[plot.x] is not None and row[plot.y] is not None]
    if not known:
        raise InputError(
            f"`plot` {plot.x},{plot.y}: no row has both; accepted: columns that have values"
        )
    # A size that only follows the one along the axis (keys as many as queries) tells no lines apart.
    varying = [
        name
        for name, values in columns.items()
        if name not in (*FOUND, plot.x, plot.y)
        and (name in ASKS_BYTES or not name.endswith("_bytes"))
        and len({*map(str, values)}) > 1
        and values != columns[plot.x]
        and columns.get(FOLLOWS.get(name, "")) != values
    ]

    def name(row: Row) -> str:
        words = [str(row[c]) if isinstance(row[c], str) else f"{c} {row[c]}" for c in varying]
        return ", ".join(words) or f"{row['gpu']}, {row['kernel']}"

    lines = grouped(known, name)
    if len(lines) > MOST_LINES:
        raise InputError(
            f"`plot` {plot.x},{plot.y} has {len(lines)} lines; accepted: {MOST_LINES} at most, fewer combinations of "
            f"{', '.join(varying)}"
        )
    return {name: sorted(rows, key=lambda row: row[plot.x]) for name, rows in lines.items()}


def _is_number(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in known
    )


def _words(column: str) -> str:
    """The name of a column in words: its unit stands at the ticks."""
    if column in WORDS:
        return WORDS[column]
    words = column.removesuffix("_bytes").removesuffix("_s").replace("_", " ")
    return words.replace("hbm ", "HBM ").replace("l2 ", "L2 ")


def _text_of(column: str) -> Any:
    if column.endswith("_bytes"):
        return bytes_text
    return seconds_text if column.endswith("_s") else count_text

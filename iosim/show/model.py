"""What a report is made of, as data: tables, panels, figures. Knows neither HTML nor Markdown nor plotly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iosim.base.units import bytes_text, seconds_text

if TYPE_CHECKING:
    import pandas

    from iosim.studies.report.collect import Omission, Point
    from iosim.studies.report.request import ReportRequest

Cell = str | int | float | None

COMMANDS = "commands"
"""Kind of the column that names, by their ids, the command lines which give a row's numbers."""


def count_text(n: int | float) -> str:
    """65536 -> "65,536"."""
    return f"{n:,.0f}"


def number_text(x: float) -> str:
    """Four significant digits, with separators of thousands."""
    return f"{x:,.0f}" if abs(x) >= 1e4 else f"{x:.4g}"


def rate_text(flops_per_s: float) -> str:
    """3.12e14 -> "312 TFLOP/s"."""
    return f"{number_text(flops_per_s / 1e12)} TFLOP/s"


_AS_TEXT: dict[str, Callable[[Any], str]] = {
    "bytes": bytes_text,
    "seconds": seconds_text,
    "count": count_text,
    "number": number_text,
    "rate": rate_text,
    "ratio": lambda x: f"{number_text(x)}x",
    "percent": lambda x: f"{100 * x:.1f} %",
}


@dataclass(frozen=True)
class Column:
    """`key` heads the column in CSV and carries the unit; `title` heads it on the page; `kind` says how cells read."""

    key: str
    title: str
    kind: str = "text"

    @property
    def numeric(self) -> bool:
        return self.kind in _AS_TEXT

    def text(self, value: Cell) -> str:
        """A cell for a person; "-" where there is no number."""
        if value is None:
            return "-"
        return _AS_TEXT[self.kind](value) if self.numeric and not isinstance(value, str) else str(value)


@dataclass(frozen=True)
class Table:
    """Rows of plain values; numbers are exact, and become text only where they are shown."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def index(self, key: str) -> int:
        """Position of the column called `key`."""
        return next(n for n, c in enumerate(self.columns) if c.key == key)

    def frame(self) -> pandas.DataFrame:
        """The table as a pandas DataFrame, headed by the columns' keys."""
        import pandas

        return pandas.DataFrame.from_records(list(self.rows), columns=[c.key for c in self.columns])


@dataclass(frozen=True)
class Series:
    """One entry of a figure's legend: a name, its colour, and its marker as a character or its dash as plotly says."""

    name: str
    colour: str
    mark: str = ""
    dash: str = ""


@dataclass(frozen=True)
class Panel:
    """One plot: traces and layout in plotly's JSON form, and a sentence for those who do not see it."""

    id: str
    title: str
    alt: str
    data: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """Panels that share a legend, and the table that holds every number in them.

    In Markdown, the column `pivot` becomes the columns of the table, those in `by` its rows, and `shows` fills it.
    """

    id: str
    title: str
    caption: str
    table: Table
    panels: tuple[Panel, ...]
    legend: tuple[Series, ...]
    pivot: str
    shows: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    by: tuple[str, ...] = ("gpu", "seq_len")


@dataclass(frozen=True)
class Report:
    """All that HTML and Markdown print. `commands` maps ids to command lines."""

    title: str
    request: ReportRequest
    points: tuple[Point, ...]
    omissions: tuple[Omission, ...]
    summary: Table
    figures: tuple[Figure, ...]
    commands: Mapping[str, str]
    notes: tuple[str, ...]

    def figure(self, figure_id: str) -> Figure:
        """The figure called `figure_id`.

        Raises:
            KeyError: there is none.
        """
        for figure in self.figures:
            if figure.id == figure_id:
                return figure
        raise KeyError(figure_id)

"""A report as data: predictions, what is omitted, the figures and the command lines behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iosim.prediction.estimates import legend
from iosim.show.page import Figure
from iosim.show.tables import Table
from iosim.studies.report.collect import Omission, Point
from iosim.studies.report.request import ReportRequest


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

    @property
    def has_ratios(self) -> bool:
        """Whether the summary compares anything with a naive kernel."""
        return any(row[self.summary.index("ratio_l2")] is not None for row in self.summary.rows)

    @property
    def legend(self) -> str | None:
        """What the marks of HBM bytes mean; None where none is marked."""
        return legend(p.prediction for p in self.points)

    def figure(self, figure_id: str) -> Figure:
        """The figure called `figure_id`.

        Raises:
            KeyError: there is none.
        """
        for figure in self.figures:
            if figure.id == figure_id:
                return figure
        raise KeyError(figure_id)

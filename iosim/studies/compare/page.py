"""The recipe of a page with kernels side by side, which comparisons and reports follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosim.base.records import dataclass
from iosim.show.page import Figure, Page, Section
from iosim.show.tables import Table
from iosim.studies.compare.points import Point
from iosim.studies.compare.sentences import in_short, subject, verdicts
from iosim.studies.compare.study import Comparison


@dataclass(frozen=True)
class SideBySide:
    """What a page of kernels side by side is made of."""

    comparison: Comparison
    points: Sequence[Point]
    """The predictions that the verdicts are on."""
    title: str
    base: str | None
    """The kernel that the others are held against."""
    figures: Sequence[Figure]
    """The first stands open below the verdicts, the others wait below the tables."""
    tables: Sequence[Section]
    """The numbers, and what is missing."""
    closing: Sequence[Section]
    """Notes."""
    under: Sequence[str]
    """What stands under the verdicts."""
    reading: Sequence[str]
    """How to read it all."""

    def page(self, command: str, commands: Mapping[str, str]) -> Page:
        legend = self.comparison.legend
        first, *others = self.figures
        sections = (
            first.section(legend, folded=False),
            *self.tables,
            *(figure.section(legend) for figure in others),
            *self.closing,
            Section("reading", "How to read this page", tuple(self.reading), folded=True),
        )
        return Page(
            self.title,
            subject(self.comparison.request),
            sections,
            command=command,
            commands=commands,
            answer=(*verdicts(self.points, self.base), *self.under),
            verdict=in_short(self.points, self.base),
        )


def numbers(comparison: Comparison, heading: str, table: Table, ratios: Sequence[str]) -> Section:
    """The section of a page's numbers: what its `ratios` are and its marks mean, then the table."""
    marks = () if comparison.legend is None else (f"{comparison.legend}.",)
    return Section("summary", heading, (*ratios, *marks), table=table)

"""The recipe of a page with kernels side by side, which comparisons and reports follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosim.show.page import Figure, Page, Section
from iosim.show.tables import Table
from iosim.studies.compare.points import Point
from iosim.studies.compare.sentences import in_short, subject, verdicts
from iosim.studies.compare.study import Comparison


def side_by_side(
    comparison: Comparison,
    points: Sequence[Point],
    title: str,
    base: str | None,
    figures: Sequence[Figure],
    *,
    under: Sequence[str],
    tables: Sequence[Section],
    closing: Sequence[Section],
    reading: Sequence[str],
    command: str,
    commands: Mapping[str, str],
) -> Page:
    """A page: verdicts on `points` against the kernel `base`, what stands `under` them, the first figure, `tables` of
    numbers and of what is missing, the other figures folded, `closing` sections, and how to read it all."""
    legend = comparison.legend
    first, *others = figures
    sections = (
        first.section(legend, folded=False),
        *tables,
        *(figure.section(legend) for figure in others),
        *closing,
        Section("reading", "How to read this page", tuple(reading), folded=True),
    )
    return Page(
        title,
        subject(comparison.request),
        sections,
        command=command,
        commands=commands,
        answer=(*verdicts(points, base), *under),
        verdict=in_short(points, base),
    )


def numbers(comparison: Comparison, heading: str, table: Table, ratios: Sequence[str]) -> Section:
    """The section of a page's numbers: what its `ratios` are and its marks mean, then the table."""
    marks = () if comparison.legend is None else (f"{comparison.legend}.",)
    return Section("summary", heading, (*ratios, *marks), table=table)

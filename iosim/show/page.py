"""What a page is made of, as data: sections of prose, plots, tables and lists. `html` and `markdown` write it.

Prose may carry **bold**, `code` and line breaks, and nothing else; "<->" becomes an arrow where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iosim.show.tables import Table


@dataclass(frozen=True)
class Series:
    """One entry of a legend: a name, its colour, and its marker as a character or its dash as plotly says."""

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
class Section:
    """One heading and what stands under it.

    Args:
        text: paragraphs.
        legend: of the panels; a press on an entry hides and shows its series in all of them.
        items: a list.
        folded: the table waits behind a line to be opened.
        brief: what Markdown shows instead of the table, where the panels have said more.
        wide: the plots take the whole width of the page, and more of its height.
    """

    id: str
    heading: str
    text: tuple[str, ...] = ()
    legend: tuple[Series, ...] = ()
    panels: tuple[Panel, ...] = ()
    items: tuple[str, ...] = ()
    table: Table | None = None
    folded: bool = False
    brief: Table | None = None
    wide: bool = False


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

    @property
    def brief(self) -> Table:
        """The table in few columns: a row a combination of `by`."""
        return self.table.pivoted(self.by, self.pivot, self.shows)


def numbered(figures: Sequence[Figure]) -> tuple[Section, ...]:
    """Figures as the sections of a page, counted from 1."""
    return tuple(
        Section(
            f.id, f"{n}. {f.title}", (f.caption,), f.legend if f.panels else (), f.panels,
            tuple(f"Left out: {line}" for line in f.left_out), f.table, folded=True, brief=f.brief,
        )
        for n, f in enumerate(figures, 1)
    )  # fmt: skip


def listed(section_id: str, heading: str, items: Sequence[str]) -> tuple[Section, ...]:
    """A section with a list; none where the list is empty."""
    return (Section(section_id, heading, items=tuple(items)),) if items else ()


@dataclass(frozen=True)
class Page:
    """All that a page says.

    Args:
        subject: under the title: what was computed.
        answer: the first paragraphs, before the subject: what came out, in a sentence or one a GPU.
        text: paragraphs before the first section.
        command: the command line that makes the page again.
        commands: command lines by the ids that tables name in their column of kind COMMANDS.
        contents: a list of the sections at the top.
    """

    title: str
    subject: str
    sections: tuple[Section, ...]
    text: tuple[str, ...] = ()
    command: str = ""
    commands: Mapping[str, str] = field(default_factory=dict)
    contents: bool = False
    answer: tuple[str, ...] = ()

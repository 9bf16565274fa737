"""What a page is made of, as data: an answer, and sections of prose, plots, tables and lists.

`html` writes it, and `markdown`: its answer, its prose and its tables; plots are left to their tables.

Prose may carry **bold**, `code` and line breaks, and nothing else; "<->" becomes an arrow where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.records import dataclass, field
from iosim.show.tables import COMMANDS, Table


@dataclass(frozen=True)
class Series:
    """One entry of a legend: a name, its colour, and its marker as a character or its dash as plotly says."""

    name: str
    colour: str
    mark: str = ""
    dash: str = ""


PLOT_REM = 19.0
"""Height of a plot in units of the page's font size, unless its panel says otherwise."""


@dataclass(frozen=True)
class Panel:
    """One plot: traces and layout in plotly's JSON form, and a sentence for those who do not see it."""

    id: str
    title: str
    alt: str
    data: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]
    height_rem: float = PLOT_REM


@dataclass(frozen=True)
class Section:
    """One heading and what stands under it: paragraphs, a legend (a press on an entry hides its series in all panels),
    `most_across` panels beside each other, a list, a table and what Markdown shows in its place (`brief`). All but the
    heading of what is `folded` waits to be opened, as the table does with `fold_table`; paper shows both open."""

    id: str
    heading: str
    text: tuple[str, ...] = ()
    legend: tuple[Series, ...] = ()
    panels: tuple[Panel, ...] = ()
    items: tuple[str, ...] = ()
    table: Table | None = None
    folded: bool = False
    fold_table: bool = False
    brief: Table | None = None
    most_across: int = 3

    @property
    def across(self) -> int:
        """Panels beside each other in as few rows as there can be, and the rows alike: four are two and two."""
        count = len(self.panels)
        # Rows first (count over the most beside each other, rounded up), then panels per row.
        return -(-count // -(-count // self.most_across)) if count else 1


@dataclass(frozen=True)
class Figure:
    """Panels that share a legend, and the table that holds every number in them. In Markdown, the column `pivot`
    becomes the columns of the table, those in `by` its rows, and `shows` fills it; where `short` is there, it stands
    instead."""

    id: str
    title: str
    caption: str
    table: Table
    panels: tuple[Panel, ...]
    legend: tuple[Series, ...]
    pivot: str
    shows: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    by: tuple[str, ...] = ("gpu", "kernel")
    short: Table | None = None
    most_across: int = 3

    @property
    def brief(self) -> Table:
        """The table in few rows and columns."""
        return (
            self.table.pivoted(self.by, self.pivot, self.shows)
            if self.short is None
            else self.short
        )

    def section(self, marks: str | None = None, *, folded: bool = True) -> Section:
        """The figure as a section of a page; `marks` says what the marks behind its numbers mean, if it has any."""
        legend = (f"{marks}.",) if marks and self.table.marked else ()
        return Section(
            self.id,
            self.title,
            (self.caption, *legend),
            self.legend if self.panels else (),
            self.panels,
            tuple(f"Left out: {line}" for line in self.left_out),
            self.table,
            folded=folded,
            fold_table=bool(self.panels),
            brief=self.brief,
            most_across=self.most_across,
        )


def listed(
    section_id: str, heading: str, items: Sequence[str], *, folded: bool = False
) -> tuple[Section, ...]:
    return (Section(section_id, heading, items=tuple(items), folded=folded),) if items else ()


@dataclass(frozen=True)
class Page:
    """All that a page says: the question that it answers, what was computed (`subject`), what came out (`answer`, a
    sentence or one a GPU; `verdict` says it in few words), sections, and the command lines that make it and its tables'
    rows again, those of rows by the ids in a column of kind COMMANDS."""

    title: str
    subject: str
    sections: tuple[Section, ...]
    text: tuple[str, ...] = ()
    command: str = ""
    commands: Mapping[str, str] = field(default_factory=dict)
    answer: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()

    @property
    def lead(self) -> tuple[str, ...]:
        return self.verdict or tuple(
            re.split(r"(?<=\.) (?=[A-Z])", sentence)[0] for sentence in self.answer[:1]
        )

    @property
    def made_by(self) -> str:
        """The command whose page it is, such as "iosim report"."""
        return " ".join(self.command.split()[:2])


_TAG = re.compile(r"<(?=[A-Za-z/!?])")
"""Where HTML begins; the arrow in SM<->L2 does not."""


def markdown(page: Page) -> str:
    """The whole file. Names of profiles and kernels come from users' files: no tag of theirs stays one."""
    parts = [f"# {page.title}", *page.answer, page.subject, *page.text]
    named: dict[str, None] = {}
    for section in sorted(page.sections, key=lambda s: s.folded):
        body = _body(section)
        parts += [f"## {section.heading}", *body] if body else []
        named.update(dict.fromkeys(_commands_of(section)))
    # Only here, where all prose has come together; the command lines below stand in code blocks,
    # which show tags as text.
    parts = [_TAG.sub("&lt;", part) for part in parts]
    if page.command:
        parts += ["## Command lines" if named else "## Command line", f"```sh\n{page.command}\n```"]
    if named:
        parts.append(
            "\n".join(["```text", *(f"{name}  {page.commands[name]}" for name in named), "```"])
        )
    return "\n\n".join(parts) + "\n"


def _commands_of(section: Section) -> list[str]:
    table = section.brief or section.table
    if table is None:
        return []
    at = next((n for n, c in enumerate(table.columns) if c.kind == COMMANDS), None)
    return [] if at is None else [name for row in table.rows for name in str(row[at]).split()]


def _body(section: Section) -> list[str]:
    table = section.brief or section.table
    parts = list(section.text) if table or section.items or not section.panels else []
    parts += [table.markdown().rstrip()] if table else []
    parts += (
        ["\n".join(f"- {item.replace(chr(10), ' ')}" for item in section.items)]
        if section.items
        else []
    )
    return parts

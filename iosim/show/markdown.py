"""The report as Markdown: the same numbers as the HTML, as tables."""

from __future__ import annotations

import re

from iosim.show import words
from iosim.show.model import COMMANDS, Cell, Column, Figure, Report

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
"""Where HTML begins; the arrow in SM<->L2 does not."""


def render(report: Report) -> str:
    """The whole file. Names of profiles and kernels come from users' files: no tag of theirs stays one."""
    parts = [f"# {report.title}", words.subject(report), words.LEVELS, words.EXACT,
             "This report again:", f"```sh\n{report.request.report_line()}\n```",
             "## Summary, at the longest sequence", _table(report.summary.columns, report.summary.rows)]  # fmt: skip
    if report.omissions:
        parts += ["## Left out", "\n".join(f"- {words.omission(o)}" for o in report.omissions)]
    for n, figure in enumerate(report.figures, 1):
        parts += [f"## {n}. {figure.title}", figure.caption, figure_table(figure)]
        parts += ["\n".join(f"- Left out: {line}" for line in figure.left_out)] if figure.left_out else []
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {n}" for n in report.notes)]
    parts = [part if part.startswith("```") else _TAG.sub("&lt;", part) for part in parts]
    listed = "\n".join(f"{name}  {line}" for name, line in report.commands.items())
    parts += ["## Command lines", f"```text\n{listed}\n```"]
    return "\n\n".join(parts) + "\n"


def figure_table(figure: Figure) -> str:
    """A figure's table, its column `pivot` spread into columns; each row names the command lines of its numbers."""
    table = figure.table
    spread, ids = table.index(figure.pivot), table.index(COMMANDS)
    by = [table.index(key) for key in figure.by]
    shown = [table.index(key) for key in figure.shows]
    numbered = table.columns[spread].numeric
    names = list(dict.fromkeys(row[spread] for row in table.rows))
    if numbered:
        names.sort(key=lambda v: float(v or 0))
    cells: dict[tuple[Cell, ...], dict[Cell, str]] = {}
    used: dict[tuple[Cell, ...], dict[str, None]] = {}
    for row in table.rows:
        where = tuple(row[n] for n in by)
        cells.setdefault(where, {})[row[spread]] = ", ".join(table.columns[c].text(row[c]) for c in shown)
        used.setdefault(where, {}).update(dict.fromkeys(str(row[ids]).split()))
    what = ", ".join(table.columns[c].title for c in shown)
    heads = [Column("", f"{figure.pivot} {name}" if numbered else f"{name}: {what}", "right") for name in names]
    columns = (*(table.columns[n] for n in by), *heads, table.columns[ids])
    rows = tuple((*where, *(found.get(n) for n in names), " ".join(used[where])) for where, found in cells.items())
    return _table(columns, rows)


def _table(columns: tuple[Column, ...], rows: tuple[tuple[Cell, ...], ...]) -> str:
    def line(cells: list[str]) -> str:
        return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |"

    rule = [("---:" if c.numeric or c.kind == "right" else "---") for c in columns]
    body = [line([c.text(v) for c, v in zip(columns, row, strict=True)]) for row in rows]
    return "\n".join([line([c.title for c in columns]), f"| {' | '.join(rule)} |", *body])

"""`iosim reproduce`: published numbers beside what iosim's models give for them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.commands.parser import COMMON, CommandParser
from iosim.show.tables import RIGHT, Cell, Column, Table

if TYPE_CHECKING:
    from iosim.evidence.reproduce import Row


def add_options(parser: CommandParser) -> None:
    common_options = parser.group(COMMON)
    told = "sections, such as A,G (default: all; --list says what each is about)"
    options.add_names(common_options, "--section", usual=None, several=True, metavar="LETTER", help=told)
    common_options.add_argument("--list", action="store_true", help="the sections' letters and titles alone")
    common.add_output_options(parser, ("table", "json", "csv", "md"))


COLUMNS = (Column("claim"), Column("claimed", kind=RIGHT), Column("computed", kind=RIGHT), Column("unit"),
           Column("ratio", kind=RIGHT))  # fmt: skip


def number(value: float | None) -> str | None:
    """Four significant digits, thousands apart."""
    if value is None:
        return None
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def shown(row: Row) -> tuple[Cell, ...]:
    ratio = None if row.ratio is None else f"{row.ratio:.3f}{' (mistake)' * bool(row.mistake)}"
    return row.claim, number(row.claimed), number(row.computed), row.unit, ratio


def why(row: Row) -> str:
    """The arithmetic of a row and its note, in one line."""
    mistake = f"a mistake, computed as the source makes it: {row.mistake}" if row.mistake else ""
    return "; ".join(text for text in (row.arithmetic, row.note, mistake) if text)


def plain(titles: dict[str, str], rows: list[Row]) -> str:
    parts = []
    for letter in dict.fromkeys(r.section for r in rows):
        mine = {f"{letter}{n}": r for n, r in enumerate((r for r in rows if r.section == letter), 1)}
        table = Table((Column("row"), *COLUMNS), tuple((name, *shown(r)) for name, r in mine.items()))
        reasons = "".join(f"  {name}: {why(r)}\n" for name, r in mine.items())
        parts.append(f"{letter}. {titles[letter]}\n\n{table.text()}\n{reasons}")
    return "\n".join(parts)


def markdown(titles: dict[str, str], rows: list[Row]) -> str:
    columns = (*COLUMNS, Column("arithmetic"))
    return "\n".join(
        f"## {letter}. {titles[letter]}\n\n"
        + Table(columns, tuple((*shown(r), why(r)) for r in rows if r.section == letter)).markdown()
        for letter in dict.fromkeys(r.section for r in rows)
    )


def run(args: argparse.Namespace) -> int:
    from iosim.evidence.reproduce import answer, reproduce, sections

    if args.list:
        common.emit("".join(f"{s.letter}. {s.title}\n" for s in sections()), args.out)
        return 0
    rows = reproduce(args.section, progress("sections"))
    titles = {s.letter: s.title for s in sections()}
    return common.tell(
        args, answer(rows), json=lambda: {"rows": [r.to_dict() for r in rows]},
        rows=lambda: (r.to_dict() for r in rows), text=lambda md: (markdown if md else plain)(titles, rows),
    )  # fmt: skip

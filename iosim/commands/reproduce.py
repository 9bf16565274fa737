"""`iosim reproduce`: published numbers beside what iosim's models give for them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common

if TYPE_CHECKING:
    from iosim.evidence.reproduce import Row


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "reproduce", help="published numbers computed again: claim, computed, ratio, arithmetic"
    )
    parser.add_argument("--section", action="append", metavar="LETTER", help="one section (repeats; default all)")
    common.add_output_options(parser, ("table", "json", "csv", "md"))
    parser.set_defaults(run=run)


def number(value: float | None) -> str:
    """Four significant digits, thousands apart; "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def shown(row: Row) -> dict[str, str]:
    """The numbers of a row as text."""
    return {
        "claim": row.claim, "claimed": number(row.claimed), "computed": number(row.computed), "unit": row.unit,
        "ratio": "-" if row.ratio is None else f"{row.ratio:.3f}",
    }  # fmt: skip


def why(row: Row) -> str:
    """The arithmetic of a row and its note, in one line."""
    return f"{row.arithmetic}; {row.note}" if row.note else row.arithmetic


def plain(titles: dict[str, str], rows: list[Row]) -> str:
    """A table a section, and below it the arithmetic of each row by its number."""
    parts = []
    for letter in dict.fromkeys(r.section for r in rows):
        mine = [r for r in rows if r.section == letter]
        table = common.table_text({"row": f"{letter}{n}", **shown(r)} for n, r in enumerate(mine, 1))
        reasons = "".join(f"  {letter}{n}: {why(r)}\n" for n, r in enumerate(mine, 1))
        parts.append(f"{letter}. {titles[letter]}\n\n{table}\n{reasons}")
    return "\n".join(parts)


def markdown(titles: dict[str, str], rows: list[Row]) -> str:
    """A heading and a table a section."""
    parts = []
    for letter in dict.fromkeys(r.section for r in rows):
        lines = [f"## {letter}. {titles[letter]}", "", "| claim | claimed | computed | unit | ratio | arithmetic |",
                 "| --- | ---: | ---: | --- | ---: | --- |"]  # fmt: skip
        for row in rows:
            if row.section == letter:
                cells = (*shown(row).values(), why(row))
                lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def run(args: argparse.Namespace) -> int:
    from iosim.evidence.reproduce import reproduce, sections

    rows = reproduce(args.section, progress("sections"))
    titles = {s.letter: s.title for s in sections()}
    if args.format == "json":
        text = common.json_text({"schema": 1, "rows": [r.to_dict() for r in rows]})
    elif args.format == "csv":
        text = common.csv_text(r.to_dict() for r in rows)
    elif args.format == "md":
        text = markdown(titles, rows)
    else:
        text = plain(titles, rows)
    common.emit(text, args.out)
    return 0

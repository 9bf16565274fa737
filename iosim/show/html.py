"""A page as one HTML file: complete without JavaScript but for the plots, and nothing is fetched from a network.

The template escapes everything that it is handed. `static/plots.js` draws the plots.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from functools import cache
from itertools import groupby
from operator import add
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from iosim.base.errors import InputError
from iosim.show.page import PLOT_REM, Page
from iosim.show.tables import COMMANDS, Table
from iosim.show.template import STATIC, environment

if TYPE_CHECKING:
    from jinja2 import Template

_EXACT_IN_JAVASCRIPT = 1 << 53
_PLAIN = re.compile(r"[\w .,:()+/%-]*")
_DASHES = {"dot": "dotted", "dash": "dashed"}
_GROUPING = ("seq_q", "gpu", "kernel")
"""Columns that may head groups of rows, where a row alone does not name its own."""
MOST_IN_A_ROW = 4
MOST_CARDS = 60
"""Columns that a narrow window holds beside each other, and rows that it shows as cards where there are more."""


def html(page: Page, *, interactive: bool = False) -> str:
    """The whole file; its data are JSON, deflated and as base64: a tenth of its size. With `interactive` plotly draws
    the plots, which stands in the file, too. Raises InputError: plotly is not installed."""
    text = json.dumps(_data(page), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    scripts = (_plotly(), _script("plotly_panels.js")) if interactive else (_script("plots.js"),)
    return _template().render(
        page=page,
        scripts=(*scripts, _script("page.js")),
        data=base64.b64encode(zlib.compress(text.encode(), 9)).decode(),
    )


def _script(name: str) -> Markup:
    return Markup((STATIC / name).read_text(encoding="utf-8"))


def _plotly() -> Markup:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InputError(
            "`interactive`: plotly is not installed; accepted: with iosim[plot] installed"
        ) from None
    return Markup(get_plotlyjs())


@cache
def _template() -> Template:
    environment_of_pages = environment(STATIC, escaped=True)
    environment_of_pages.filters["prose"] = prose
    environment_of_pages.globals |= {
        "COMMANDS": COMMANDS,
        "DASHES": _DASHES,
        "PLOT_REM": PLOT_REM,
        "group_columns": group_columns,
        "groups": groups,
        "file": lambda name: Markup((STATIC / name).read_text(encoding="utf-8")),
        "arrows": _arrows,
        "is_cards": is_cards,
    }
    return environment_of_pages.get_template("page.html")


def group_columns(table: Table) -> int:
    """How many of the first columns become headings of groups of rows: those that repeat themselves from row to row."""
    count = 0
    for column in table.columns:
        heads = [row[: count + 1] for row in table.rows]
        # A column groups rows while its values repeat; the last column never does, for a row must
        # keep a cell of its own.
        if (
            column.key not in _GROUPING
            or len(set(heads)) == len(heads)
            or len(table.columns) <= count + 1
        ):
            break
        count += 1
    return count


def is_cards(table: Table) -> bool:
    """True where its rows are cards in a narrow window."""
    return (
        len(table.columns) - group_columns(table) > MOST_IN_A_ROW and len(table.rows) <= MOST_CARDS
    )


def groups(table: Table) -> list[tuple[str, list[list[str]]]]:
    """Cells of rows that follow each other under one heading, and the heading."""
    count = group_columns(table)
    titles = [f"{c.title} = " if c.to_the_right else "" for c in table.columns[:count]]
    rows = ((", ".join(map(add, titles, cells)), cells) for cells in table.cells())
    return [
        (head, [cells for _, cells in members])
        for head, members in groupby(rows, key=lambda row: row[0])
    ]


def prose(text: str) -> Markup:
    """Escaped, with arrows, line breaks, bold and code."""
    if _PLAIN.fullmatch(text):  # most cells of tables
        return Markup(text)
    safe = str(escape(_arrows(text)))
    safe = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", safe).replace("\n", "<br>")
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", safe))


def _arrows(value: Any) -> Any:
    """A text, or every text of a list or dictionary, with an arrow in place of "<->"."""
    if isinstance(value, dict):
        return {k: _arrows(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_arrows(v) for v in value]
    return value.replace("<->", "↔") if isinstance(value, str) else value


def _data(page: Page) -> dict[str, Any]:
    return {
        "panels": {
            p.id: {"data": _arrows(p.data), "layout": _arrows(p.layout)}
            for s in page.sections
            for p in s.panels
        },
        "tables": {s.id: _table(s.table) for s in page.sections if s.table is not None},
        "commands": dict(page.commands),
    }


def _table(table: Table) -> dict[str, Any]:
    rows = [
        # JavaScript's numbers are doubles: integers from 2^53 on travel as texts.
        [str(v) if isinstance(v, int) and abs(v) >= _EXACT_IN_JAVASCRIPT else v for v in row]
        for row in table.rows
    ]
    return {"columns": [c.key for c in table.columns], "rows": rows}


def unpacked(page: str) -> dict[str, Any]:
    """What the script of a page draws and offers for download: panels, tables and commands, as `html` put it in."""
    # The base64 alphabet has no "<": the data end where the next tag begins.
    packed = page.partition('id="page-data">')[2].partition("<")[0]
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return data

"""A comparison as one HTML file: tables, figures and command lines, and nothing fetched from anywhere."""

from __future__ import annotations

from html import escape
from typing import Any

from iosim.show import words
from iosim.show.html import download_button, figure_html, page_text, table_data, table_html, with_arrows
from iosim.show.model import Cell, Column, Figure, Table
from iosim.show.page import page
from iosim.studies.compare.figures import figures
from iosim.studies.compare.study import QUANTITIES, Comparison, Entry
from iosim.studies.report.assemble import fits

TITLE = "Attention side by side"


def render(found: Comparison, command: str) -> str:
    """The whole file. `command` is the command line that makes it again."""
    drawn = figures(found)
    summary = summary_table(found)
    body = (
        "<main>",
        f"<p>{page_text(words.LEVELS)}</p>",
        "<noscript><p>The plots need JavaScript; the tables hold every number of theirs.</p></noscript>",
        f'<section id="summary"><h2>Side by side</h2><p>Ratios: {escape(str(found.baseline))} over the row; above 1x '
        f"the row needs less.</p>{table_html(summary)}\n{download_button('summary')}</section>",
        *([_missing(found)] if found.missing else []),
        *(figure_html(figure, n) for n, figure in enumerate(drawn, 1)),
        _closing(found, command),
        "</main>",
    )
    return page(TITLE, page_text(words.subject_of(found.request)), body, _data(found, drawn, summary))


def summary_table(found: Comparison) -> Table:
    """Every entry in one row, what cannot run included."""
    columns = (
        Column("gpu", "GPU"), Column("kernel", "kernel"), Column("seq_len", "N", "count"), Column("tile", "tile"),
        Column("l2_bytes", "SM<->L2", "bytes"), Column("hbm_bytes", "HBM", "bytes"),
        Column("time_s", "time", "seconds"), Column("bound_by", "bound by"), Column("peak_bytes", "peak", "bytes"),
        Column("workspace_bytes", "of it workspace", "bytes"), Column("fits", "fits"),
        Column("l2_ratio", "SM<->L2 ratio", "ratio"),
        Column("hbm_ratio", "HBM ratio", "ratio"), Column("time_ratio", "time ratio", "ratio"),
        Column("memory_ratio", "memory ratio", "ratio"), Column("reason", "cannot run"),
    )  # fmt: skip
    return Table(columns, tuple(_row(e) for e in found.entries))


def _row(e: Entry) -> tuple[Cell, ...]:
    if e.point is None:
        return (e.gpu, e.kernel, e.seq_len, *(None,) * 12, e.reason)
    p = e.point.prediction
    return (
        e.gpu, e.kernel, e.seq_len, str(p.kernel.tile), e.point.l2, e.point.hbm, e.point.time_s, p.time.bound_by,
        p.memory_bytes["peak"], p.memory_bytes["workspace"], fits(e.point), *(e.ratio(q) for q in QUANTITIES), "",
    )  # fmt: skip


def _data(found: Comparison, drawn: tuple[Figure, ...], summary: Table) -> dict[str, Any]:
    tables = {"summary": summary, **{f.id: f.table for f in drawn}}
    return {
        "panels": {p.id: {"data": p.data, "layout": with_arrows(p.layout)} for f in drawn for p in f.panels},
        "tables": {name: table_data(table) for name, table in tables.items()},
        "commands": dict(found.commands),
    }


def _missing(found: Comparison) -> str:
    lines = dict.fromkeys(f"{e.kernel} on {e.gpu} (N = {e.seq_len:,}): {e.reason}" for e in found.missing)
    items = "".join(f"<li>{page_text(x)}</li>" for x in lines)
    return f'<section id="missing"><h2>Cannot run</h2><ul>{items}</ul></section>'


def _closing(found: Comparison, command: str) -> str:
    notes = "".join(f"<li>{page_text(n)}</li>" for n in found.notes)
    lines = "\n".join(
        f'<li id="{name}"><b>{name}</b> <code>{escape(line)}</code></li>' for name, line in found.commands.items()
    )
    return "\n".join([
        f'<section id="notes"><h2>Notes</h2><ul>{notes}</ul></section>' if notes else "",
        '<section id="command-lines"><h2>Command lines</h2>',
        f'<p>This page again:</p><pre class="scroll" tabindex="0">{escape(command)}</pre>',
        f'<ul class="commands scroll" tabindex="0">\n{lines}\n</ul></section>',
    ])  # fmt: skip

"""The report as one HTML file: text, tables, plotly.js and its data, and nothing fetched from anywhere."""

from __future__ import annotations

from html import escape
from typing import Any

from iosim.show import words
from iosim.show.model import COMMANDS, Cell, Column, Figure, Panel, Report, Series, Table
from iosim.show.page import page

_EXACT_IN_JAVASCRIPT = 1 << 53


def render(report: Report) -> str:
    """The whole file."""
    body = (
        _contents(report),
        "<main>",
        _about(report),
        *(figure_html(figure, n) for n, figure in enumerate(report.figures, 1)),
        _closing(report),
        "</main>",
    )
    return page(report.title, page_text(words.subject(report)), body, _data(report))


def page_text(text: str) -> str:
    """Escaped, with an arrow where plain text has "<->"."""
    return escape(text.replace("<->", "↔"))


def _data(report: Report) -> dict[str, Any]:
    tables = {"summary": report.summary, **{f.id: f.table for f in report.figures}}
    return {
        "panels": {p.id: {"data": p.data, "layout": with_arrows(p.layout)} for f in report.figures for p in f.panels},
        "tables": {name: table_data(table) for name, table in tables.items()},
        "commands": report.commands,
    }


def with_arrows(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: with_arrows(v) for k, v in value.items()}
    return value.replace("<->", "↔") if isinstance(value, str) else value


def table_data(table: Table) -> dict[str, Any]:
    rows = [[str(v) if isinstance(v, int) and abs(v) >= _EXACT_IN_JAVASCRIPT else v for v in row] for row in table.rows]
    return {"columns": [c.key for c in table.columns], "rows": rows}


def _contents(report: Report) -> str:
    items = ['<li><a href="#summary">Summary</a></li>']
    items += ['<li><a href="#left-out">Left out</a></li>'] if report.omissions else []
    items += [f'<li><a href="#{f.id}">{n}. {page_text(f.title)}</a></li>' for n, f in enumerate(report.figures, 1)]
    items += ['<li><a href="#notes">Notes</a></li>'] if report.notes else []
    items += ['<li><a href="#command-lines">Command lines</a></li>']
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _about(report: Report) -> str:
    parts = [
        f"<p>{page_text(words.LEVELS)}</p>\n<p>{page_text(words.EXACT)}</p>",
        "<noscript><p>The plots need JavaScript; the tables below hold every number of theirs.</p></noscript>",
        '<section id="summary"><h2>Summary, at the longest sequence</h2>',
        f"{table_html(report.summary)}\n{download_button('summary')}</section>",
    ]
    if report.omissions:
        items = "".join(f"<li>{page_text(words.omission(o))}</li>" for o in report.omissions)
        parts.append(f'<section id="left-out"><h2>Left out</h2><ul>{items}</ul></section>')
    return "\n".join(parts)


def download_button(table: str) -> str:
    return f'<button type="button" class="download" data-table="{table}">Download CSV</button>'


def figure_html(figure: Figure, number: int) -> str:
    legend = "".join(
        f'<button type="button" class="series" aria-pressed="true" data-series="{escape(s.name)}">'
        f"{_swatch(s)} {page_text(s.name)}</button>"
        for s in figure.legend
    )
    left_out = "".join(f"<li>{page_text(line)}</li>" for line in figure.left_out)
    group = '<div class="legend" role="group" aria-label="Series: press to hide or show">'
    return "\n".join([
        f'<section id="{figure.id}" class="figure"><h2>{number}. {page_text(figure.title)}</h2>',
        f"<p>{page_text(figure.caption)}</p>",
        f"{group}{legend}</div>" if figure.panels else "",
        f'<div class="panels">{"".join(_panel(p) for p in figure.panels)}</div>' if figure.panels else "",
        f"<p>Left out:</p><ul>{left_out}</ul>" if left_out else "",
        f"<details><summary>Table ({len(figure.table.rows)} rows)</summary>{table_html(figure.table)}</details>",
        download_button(figure.id),
        "</section>",
    ])  # fmt: skip


def _swatch(s: Series) -> str:
    if s.dash:
        style = {"dot": "dotted", "dash": "dashed"}.get(s.dash, "solid")
        return f'<span class="dash" style="border-top:2px {style} {s.colour}" aria-hidden="true"></span>'
    return f'<span style="color:{s.colour}" aria-hidden="true">{s.mark}</span>'


def _panel(panel: Panel) -> str:
    return (
        f'<figure><figcaption>{page_text(panel.title)}</figcaption><div class="plot" id="{panel.id}" role="img" '
        f'aria-label="{escape(panel.alt, quote=True)}"><p class="fallback">{page_text(panel.alt)}</p></div></figure>'
    )


def table_html(table: Table) -> str:
    head = "".join(f"<th{_align(c)}>{page_text(c.title)}</th>" for c in table.columns)
    body = "\n".join(
        f"<tr>{''.join(_cell(c, v) for c, v in zip(table.columns, row, strict=True))}</tr>" for row in table.rows
    )
    return (f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n'
            "</tbody></table></div>")  # fmt: skip


def _align(column: Column) -> str:
    return ' class="n"' if column.numeric else ""


def _cell(column: Column, value: Cell) -> str:
    if column.kind == COMMANDS:
        links = " ".join(f'<a href="#{name}">{name}</a>' for name in str(value).split())
        return f"<td>{links}</td>"
    return f"<td{_align(column)}>{page_text(column.text(value))}</td>"


def _closing(report: Report) -> str:
    lines = "\n".join(
        f'<li id="{name}"><b>{name}</b> <code>{escape(line)}</code></li>' for name, line in report.commands.items()
    )
    notes = "".join(f"<li>{page_text(n)}</li>" for n in report.notes)
    return "\n".join([
        f'<section id="notes"><h2>Notes</h2><ul>{notes}</ul></section>' if notes else "",
        '<section id="command-lines"><h2>Command lines</h2>',
        f'<p>This report again:</p><pre class="scroll" tabindex="0">{escape(report.request.report_line())}</pre>',
        f'<ul class="commands scroll" tabindex="0">\n{lines}\n</ul></section>',
    ])  # fmt: skip

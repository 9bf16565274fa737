"""A page of sections, each with plots and a table: the traces, the studies of several GPUs and of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from iosim.show.html import download_button, page_text, table_data, table_html
from iosim.show.model import Panel, Table
from iosim.show.page import page


@dataclass(frozen=True)
class Section:
    """One heading. A `wide` section's plots take the whole width of the page, and more of its height."""

    id: str
    heading: str
    caption: str = ""
    panels: tuple[Panel, ...] = ()
    table: Table | None = None
    wide: bool = False


def document(title: str, subject: str, sections: Sequence[Section], command: str) -> str:
    """The whole file. `command` is the command line that makes it again."""
    data = {
        "panels": {p.id: {"data": p.data, "layout": p.layout} for s in sections for p in s.panels},
        "tables": {s.id: table_data(s.table) for s in sections if s.table is not None},
        "commands": {},
    }
    body = (
        "<main>",
        "<noscript><p>The plots need JavaScript; the tables hold their main numbers.</p></noscript>",
        *(_section(s) for s in sections),
        f'<section><h2>Command line</h2><pre class="scroll" tabindex="0">{escape(command)}</pre></section>',
        "</main>",
    )
    return page(title, escape(subject), body, data)


def _section(s: Section) -> str:
    kind = ' class="figure"' if s.panels else ""
    parts = [f'<section id="{s.id}"{kind}><h2>{page_text(s.heading)}</h2>']
    parts += [f"<p>{page_text(s.caption)}</p>"] if s.caption else []
    parts += [f'<div class="panels">{"".join(_panel(p, s.wide) for p in s.panels)}</div>'] if s.panels else []
    parts += [table_html(s.table), download_button(s.id)] if s.table is not None else []
    return "".join([*parts, "</section>"])


def _panel(panel: Panel, wide: bool) -> str:
    frame, plot = (' style="grid-column: 1 / -1"', ' style="height: 26rem"') if wide else ("", "")
    return (
        f'<figure{frame}><figcaption>{page_text(panel.title)}</figcaption><div class="plot"{plot} id="{panel.id}" '
        f'role="img" aria-label="{escape(panel.alt, quote=True)}"><p class="fallback">{page_text(panel.alt)}</p></div>'
        "</figure>"
    )

"""The frame of a self-contained page: its head, plotly.js, data and script, and a policy that forbids the network.

The page is complete without JavaScript but for the plots.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

_STATIC = Path(__file__).resolve().parent / "static"
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(title: str, subject: str, body: Iterable[str], data: Any) -> str:
    """The whole file.

    Args:
        title: plain text.
        subject: HTML of the paragraph under the heading.
        body: HTML between heading and scripts, a piece a line.
        data: what the page's script draws and offers for download.
    """
    name = escape(title)
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{name}</title>",
        '<link rel="icon" href="data:,">',
        f"<style>\n{_static('report.css')}</style>",
        "</head>",
        "<body>",
        f"<header><h1>{name}</h1>\n<p>{subject}</p></header>",
        *body,
        f'<script type="application/json" id="report-data">{_json(data)}</script>',
        f"<script>{plotly_js()}</script>",
        f"<script>\n{_static('report.js')}</script>",
        "</body>",
        "</html>",
        "",
    ])  # fmt: skip


@cache
def plotly_js() -> str:
    """The plotly.js that the installed plotly package carries."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that may stand in a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")

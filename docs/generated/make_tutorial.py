"""Writes docs/tutorial.ipynb: the text and the code of docs/tutorial.md, run in order, with what it shows.

    python docs/generated/make_tutorial.py

A figure is kept as plotly's data, which a test compares, and as a picture, which needs Chromium: a page without it
shows pictures where a notebook's JavaScript does not run.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import html
import io
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iosim.base.files import write_whole
from iosim.show.html import STATIC

PAGE = Path(__file__).resolve().parent.parent / "tutorial.md"
PLACE = PAGE.with_suffix(".ipynb")
WIDTH, HEIGHT = 900, 420
CODE = re.compile(r"^```py\n(.*?)\n```$", re.S | re.M)


def cells() -> Iterator[tuple[str, bool]]:
    """The text and the code between its fences, in order, and which of them are code."""
    for number, source in enumerate(CODE.split(PAGE.read_text(encoding="utf-8"))):
        if source.strip():
            yield source.strip("\n"), bool(number % 2)


def notebook(pictures: bool = True) -> dict[str, Any]:
    """The notebook, its code run; without `pictures`, figures are left to plotly's data."""
    names: dict[str, Any] = {}
    notebook_cells, count = [], 0
    for number, (source, is_code) in enumerate(cells()):
        cell: dict[str, Any] = {
            "id": f"cell-{number}",
            "metadata": {},
            "source": source.splitlines(keepends=True),
        }
        if is_code:
            count += 1
            outputs = run(source, names, count, pictures)
            cell |= {"cell_type": "code", "execution_count": count, "outputs": outputs}
        else:
            cell |= {"cell_type": "markdown"}
        notebook_cells.append(dict(sorted(cell.items())))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": notebook_cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def run(source: str, names: dict[str, Any], count: int, pictures: bool) -> list[dict[str, Any]]:
    """What a cell prints, and what its last expression shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    text = printed.getvalue()
    outputs: list[dict[str, Any]] = []
    if text:
        outputs.append(
            {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        )
    if value is not None:
        data = shown(value, pictures)
        outputs.append(
            {
                "data": data,
                "execution_count": count,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs


def shown(value: Any, pictures: bool) -> dict[str, Any]:
    """What a notebook keeps of a value, by type."""
    if hasattr(value, "to_plotly_json"):
        figure = json.loads(value.to_json())
        figure["layout"].pop("template", None)
        data: dict[str, Any] = {"application/vnd.plotly.v1+json": figure}
        if pictures:
            data["image/png"] = picture(figure)
        return data
    data = {}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = str(value._repr_html_()).splitlines(keepends=True)
    if hasattr(value, "free_symbols"):
        import sympy

        data["text/latex"] = [f"$\\displaystyle {sympy.latex(value)}$"]
    return data | {"text/plain": repr(value).splitlines(keepends=True)}


def picture(figure: dict[str, Any]) -> str:
    """A figure as PNG in base64, drawn by Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("make_tutorial: a picture needs chromium, which is not installed")
    style, script = (
        (STATIC / name).read_text(encoding="utf-8") for name in ("page.css", "plots.js")
    )
    title = html.escape(figure["layout"].get("title", {}).get("text", ""))
    size = f"width:{WIDTH - 16}px;height:{HEIGHT - 40}px;max-height:none"
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "page.html"
        page.write_text(
            f"<!DOCTYPE html><meta charset=utf-8><style>{style}</style><body class=paper style='padding:8px'>"
            f"<b>{title}</b><div class=plot id=f style='{size}'></div><script>{script}</script>"
            f"<script>drawPanel(document.getElementById('f'), {json.dumps(figure)})</script></body>",
            encoding="utf-8",
        )
        target = Path(place) / "figure.png"
        command = [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={place}/profile",
            f"--window-size={WIDTH},{HEIGHT}",
            "--virtual-time-budget=5000",
            f"--screenshot={target}",
            page.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return base64.b64encode(target.read_bytes()).decode()


def text(pictures: bool = True) -> str:
    """The whole file."""
    return json.dumps(notebook(pictures), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    written = text()
    write_whole(PLACE, written)
    print(f"{PLACE}: {len(written):,} characters")

"""Writes docs/tutorial.ipynb: the cells below, run in order, with what they show.

    python docs/generated/make_tutorial.py

A figure is kept as plotly's data, which a test compares, and as a picture, which needs Chromium: a page without it
shows pictures where a notebook's JavaScript does not run.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from iosim.base.files import write_whole
from iosim.show.html import PLOTLY

PLACE = Path(__file__).resolve().parent.parent / "tutorial.ipynb"
WIDTH, HEIGHT = 900, 420
CELLS = (
    """# iosim in a notebook

Ten minutes, no GPU. How many bytes does attention move between a GPU's memory, its L2 and its SMs, and why? The
functions take the options of the command line as keywords; what they return shows itself in a notebook, and holds
every number. The same with the command line: [tutorial](tutorial.md).""",
    "import iosim",
    """## One prediction

FlashAttention-2 on an H100, 32 heads of 4,096 tokens, causal. The first sentence is the answer; the tables have the
bytes of each level, and the least and the most that could have reached HBM.""",
    'p = iosim.predict(kernel="fa2", gpu="h100", heads=32, seq_len=4096, head_dim=128, causal=True)\np',
    "Every number is an attribute, with its unit in its name or in its docstring:",
    'print(f"{p.hbm.read:,} bytes from HBM, {p.l2.read:,} from L2, {1e6 * p.time_s:.0f} us, bound by {p.bound_by}")',
    "and the traffic a DataFrame, a row a tensor, level and direction:",
    'p.to_pandas().pivot_table(index=["tensor", "direction"], columns="level", values="bytes")',
    """## Against standard attention

Which kernels save how much, at which level? Lists are lists, or the command line's `"naive,fa2,fa3"`.""",
    'c = iosim.compare(kernel=["naive", "fa2", "fa3"], gpu="h100", seq_len=[1024, 4096], heads=32, head_dim=128)\n'
    'c.to_pandas()[["kernel", "seq_len", "l2_read_bytes", "hbm_read_bytes", "l2_ratio", "hbm_ratio", "time_ratio"]]',
    """Many times fewer bytes from HBM, but only a few times fewer between SMs and L2: tiling does the second, the L2
the rest. Figures are those of the command's pages, drawn by plotly; `c.figures` lists their names.""",
    "c.figure()",
    """## When the L2 no longer helps

The same kernel at 32k tokens on an H200: why does it read the keys several times, and which change would help?""",
    'e = iosim.explain(kernel="fa2", gpu="h200", heads=8, seq_len="32k", head_dim=128, causal=True, dtype="bf16")\n'
    "print(e.advice)",
    'for launch in e.launches:\n    print(launch.regime, *launch.reasons, sep="\\n- ")',
    """## A tile of one's own

Which tile is the fastest at head_dim 256, and does 128x128 fit? `study_tile` says everything about one tile.""",
    'ranking = iosim.pick_tiles(gpu="rtx4090", head_dim=256)\n'
    'print(ranking.best.tile, len(ranking.candidates), "tiles fit")',
    'iosim.study_tile("128x128", gpu="rtx4090", head_dim=256).answer',
    "`flash` is FlashAttention-2's algorithm with any tile, here of 96 queries and 48 keys:",
    'iosim.predict(kernel="flash", gpu="rtx4090", tile="96x48", warps=6, seq_len=4096)',
    """## The formula behind the count

Bytes between SMs and L2 have a closed form, a SymPy expression:""",
    'iosim.formula("flash", head_dim=128, tile=(128, 64), dtype="fp16").formula.total("read").factor()',
    """## Serving and training

Attention of all layers per generated token over the context's length, and the memory of a training step:""",
    'iosim.decode("h100", heads=32, kv_heads=8, layers=32, context="1k:64k:x4")',
    'iosim.train_memory("l4", seq_len=4096, width=1024, layers=24)',
    """## What is misspelt is told

Errors name the keyword, and what would be accepted:""",
    'try:\n    iosim.predict(gpu="h100", seqlen=4096)\nexcept iosim.InputError as error:\n    print(error)',
    """Next: [ten questions answered](../examples/README.md), [concepts](concepts.md), and how far to trust all this:
[validation](validation.md).""",
)  # fmt: skip
"""Text, and code: a cell that Python reads as code is code."""


def notebook(pictures: bool = True) -> dict[str, Any]:
    """The notebook, its code run; without `pictures`, figures are left to plotly's data."""
    names: dict[str, Any] = {}
    cells, count = [], 0
    for number, source in enumerate(CELLS):
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
        if is_code(source):
            count += 1
            outputs = run(source, names, count, pictures)
            cell |= {"cell_type": "code", "execution_count": count, "outputs": outputs}
        else:
            cell |= {"cell_type": "markdown"}
        cells.append(dict(sorted(cell.items())))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def is_code(source: str) -> bool:
    """Whether Python reads a cell as code."""
    with contextlib.suppress(SyntaxError):
        ast.parse(source)
        return not source.startswith("#")
    return False


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
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = shown(value, pictures)
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
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
    size = json.dumps({"width": WIDTH, "height": HEIGHT, "paper_bgcolor": "white", "plot_bgcolor": "white"})
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "page.html"
        page.write_text(
            f"<body style='margin:0'><div id=f></div><script>{PLOTLY.read_text(encoding='utf-8')}</script><script>"
            f"var f={json.dumps(figure)};Plotly.newPlot('f',f.data,Object.assign(f.layout,{size}),{{staticPlot:true}})"
            "</script></body>",
            encoding="utf-8",
        )
        target = Path(place) / "figure.png"
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   f"--user-data-dir={place}/profile", f"--window-size={WIDTH},{HEIGHT}",
                   "--virtual-time-budget=5000", f"--screenshot={target}", page.as_uri()]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return base64.b64encode(target.read_bytes()).decode()


def text(pictures: bool = True) -> str:
    """The whole file."""
    return json.dumps(notebook(pictures), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    written = text()
    write_whole(PLACE, written)
    print(f"{PLACE}: {len(written):,} characters")

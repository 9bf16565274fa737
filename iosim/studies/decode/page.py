"""The sweep over the context as Markdown, and as one HTML file with figures that fetches nothing.

Three plots against the context, a line a GPU and kernel: bytes from and to HBM per generated token, the splits that the
kernel chose, and tokens a second with the bound that the keys and values set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from iosim.base.units import bytes_text, seconds_text
from iosim.show import axes
from iosim.show.page import page
from iosim.studies.decode.decode import DecodePoint

TITLE = "Attention per generated token"
NOTE = (
    "Attention of all layers alone, per generated token. K/V bound: tokens a second if HBM delivered the kept keys and "
    "values and nothing else took time."
)
Value = Callable[[DecodePoint], float | None]
Row = dict[str, Any]


def row(point: DecodePoint) -> Row:
    """A row of the table, as text."""
    hbm, bound = point.per_token("hbm"), point.bound_tokens_per_s
    return {
        "gpu": point.prediction.profile.name, "kernel": point.prediction.kernel.name, "context": f"{point.context:,}",
        "splits": point.prediction.kernel.splits, "cache": bytes_text(point.cache_bytes),
        "fits": {True: "yes", False: "no", None: "?"}[point.fits],
        "HBM/token": "-" if hbm is None else bytes_text(hbm), "SM<->L2/token": bytes_text(point.per_token("l2") or 0),
        "time/token": seconds_text(point.step_s / point.tokens), "tokens/s": f"{point.tokens_per_s:,.0f}",
        "K/V bound": "?" if bound is None else f"{bound:,.0f}", "bound by": point.prediction.time.bound_by,
    }  # fmt: skip


def notes(points: Sequence[DecodePoint]) -> list[str]:
    """What a reader should know of the kernels, and of all numbers."""
    return [*dict.fromkeys(n for p in points for n in p.prediction.kernel.notes), NOTE]


def subject(points: Sequence[DecodePoint]) -> str:
    """The model and the step in one line."""
    p = points[0]
    shape, problem = p.shape, p.prediction.problem
    d, d_v = problem.head_dim, problem.head_dim_v
    width = f"{d}" if d_v == d else f"{d}/{d_v}"
    kind = "one latent K/V" if shape.latent_kv else f"{shape.kv_heads} key/value heads"
    pages = f", pages of {shape.page_size} tokens" if shape.page_size else ""
    tokens = "one new token" if p.new_tokens == 1 else f"{p.new_tokens} new tokens"
    return (f"{shape.layers} layers, {shape.heads} query heads, {kind}, head_dim {width}, {problem.dtype}{pages}; "
            f"batch {p.batch}, {tokens} a step")  # fmt: skip


def markdown(points: Sequence[DecodePoint]) -> str:
    """The whole file."""
    rows = [row(p) for p in points]
    names = list(rows[0])

    def line(cells: Sequence[object]) -> str:
        return f"| {' | '.join(str(c) for c in cells)} |"

    table = [line(names), line(["---"] * len(names)), *(line(list(r.values())) for r in rows)]
    parts = [f"# {TITLE}", f"{subject(points)}.", "\n".join(table), "\n".join(f"- {n}" for n in notes(points))]
    return "\n\n".join(parts) + "\n"


def html(points: Sequence[DecodePoint]) -> str:
    """The whole file; complete without JavaScript but for the plots."""
    plots = {
        "bytes": ("HBM bytes per generated token", lambda p: p.per_token("hbm"), bytes_text),
        "splits": ("splits of the keys", lambda p: float(p.prediction.kernel.splits), _count),
        "tokens": ("tokens a second", lambda p: p.tokens_per_s, _count),
    }  # fmt: skip
    panels = {f"figure-{name}": _panel(points, *what) for name, what in plots.items()}
    figures = "".join(_figure(f"figure-{name}", f"{title} against the context") for name, (title, *_) in plots.items())
    data = {
        "panels": {name: {"data": d, "layout": lay} for name, (d, lay) in panels.items()}, "tables": {}, "commands": {},
    }  # fmt: skip
    body = (
        "<main>",
        "<noscript><p>The plots need JavaScript; the table below needs none.</p></noscript>",
        f'<section class="figure"><h2>Figures</h2>{_legend(points)}<div class="panels">{figures}</div></section>',
        f"<section><h2>Numbers</h2>{_table([row(p) for p in points])}</section>",
        *(f"<p>{_text(n)}</p>" for n in notes(points)),
        "</main>",
    )
    return page(TITLE, _text(subject(points)), body, data)


def _count(n: float) -> str:
    return f"{n:,.0f}"


def _text(text: str) -> str:
    return escape(text.replace("<->", "↔"))


def _lines(points: Sequence[DecodePoint]) -> dict[str, list[DecodePoint]]:
    """Points by the name of their line."""
    found: dict[str, list[DecodePoint]] = {}
    for p in points:
        found.setdefault(f"{p.prediction.profile.name}, {p.prediction.kernel.name}", []).append(p)
    return found


def _panel(
    points: Sequence[DecodePoint], title: str, value: Value, text: Callable[[float], str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A line a GPU and kernel; for tokens a second the bound as well."""
    data: list[dict[str, Any]] = []
    values: list[float] = []
    for n, (name, members) in enumerate(_lines(points).items()):
        shown = [(p.context, v) for p in members if (v := value(p)) is not None]
        bound = [(p.context, b) for p in members if (b := p.bound_tokens_per_s) is not None]
        if title.startswith("tokens") and bound:
            values += [b for _, b in bound]
            data.append(axes.guide(name, [c for c, _ in bound], [b for _, b in bound], f"{name}: K/V bound", "dot"))
        if shown:
            values += [v for _, v in shown]
            hover = [f"{escape(name)}, {c:,} tokens<br>{text(v)}" for c, v in shown]
            data.append(axes.line(name, [c for c, _ in shown], [v for _, v in shown], hover, n))
    lengths = sorted({p.context for p in points})
    x = {**axes.length_axis(lengths), "title": {"text": "context (tokens)", "standoff": 10}}
    return data, axes.layout(x, axes.log_axis(values, title, text))


def _legend(points: Sequence[DecodePoint]) -> str:
    """A button a line, which hides and shows it in all plots."""
    buttons = "".join(
        f'<button type="button" class="series" aria-pressed="true" data-series="{escape(name, quote=True)}">'
        f'<span style="color:{axes.colour(n)}" aria-hidden="true">{axes.symbol(n)[1]}</span> {escape(name)}</button>'
        for n, name in enumerate(_lines(points))
    )
    return f'<div class="legend" role="group" aria-label="Lines: press to hide or show">{buttons}</div>'


def _figure(name: str, said: str) -> str:
    return (
        f'<figure><figcaption>{_text(said)}</figcaption><div class="plot" id="{name}" role="img" '
        f'aria-label="{escape(said, quote=True)}"><p class="fallback">{_text(said)}</p></div></figure>'
    )


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in rows[0])
    body = "\n".join(f"<tr>{''.join(f'<td>{_text(str(v))}</td>' for v in r.values())}</tr>" for r in rows)
    return (f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'
            "</div>")  # fmt: skip

"""The sweep over the context as a page, and its table.

Three plots against the context, a line a GPU and kernel: bytes from and to HBM per generated token, the splits that the
kernel chose, and tokens a second with the bound that the keys and values set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from iosim.base.units import bytes_text, count_text
from iosim.show import axes
from iosim.show.page import Page, Panel, Section, Series
from iosim.show.tables import Column, Table
from iosim.studies.decode.answer import answer
from iosim.studies.decode.decode import DecodePoint

TITLE = "Attention per generated token"
NOTE = (
    "Attention of all layers alone, per generated token. K/V bound: tokens a second if HBM delivered the kept keys and "
    "values and nothing else took time."
)
COLUMNS = (
    Column("gpu", "gpu"), Column("kernel", "kernel"), Column("context", "context", "count"),
    Column("splits", "splits", "count"), Column("cache_bytes", "cache", "bytes"), Column("fits", "fits"),
    Column("hbm_bytes_per_token", "HBM/token", "bytes"), Column("l2_bytes_per_token", "SM<->L2/token", "bytes"),
    Column("s_per_token", "time/token", "seconds"), Column("tokens_per_s", "tokens/s", "count"),
    Column("bound_tokens_per_s", "K/V bound", "count"), Column("bound_by", "bound by"),
)  # fmt: skip
Value = Callable[[DecodePoint], float | None]


def table(points: Sequence[DecodePoint]) -> Table:
    """A row a point."""
    return Table(COLUMNS, tuple(
        (p.prediction.profile.name, p.prediction.kernel.name, p.context, p.prediction.kernel.splits, p.cache_bytes,
         {True: "yes", False: "no", None: None}[p.fits], p.per_token("hbm"), p.per_token("l2"), p.step_s / p.tokens,
         p.tokens_per_s, p.bound_tokens_per_s, p.prediction.time.bound_by)
        for p in points
    ))  # fmt: skip


def notes(points: Sequence[DecodePoint]) -> tuple[str, ...]:
    """What a reader should know of the kernels, and of all numbers."""
    return (*dict.fromkeys(n for p in points for n in p.prediction.kernel.notes), NOTE)


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


def as_page(points: Sequence[DecodePoint], command: str = "iosim decode") -> Page:
    """The whole page. `command` is the command line that makes it again."""
    lines = _lines(points)
    legend = tuple(Series(name, axes.colour(n), axes.symbol(n)[1]) for n, name in enumerate(lines))
    panels = (
        _panel("bytes", points, "HBM bytes per generated token", lambda p: p.per_token("hbm"), bytes_text),
        _panel("splits", points, "splits of the keys", lambda p: float(p.prediction.kernel.splits), count_text),
        _panel("tokens", points, "tokens a second", lambda p: p.tokens_per_s, count_text, bound=True),
    )
    sections = (
        Section("figures", "Figures", legend=legend, panels=panels),
        Section("numbers", "Numbers", table=table(points)),
        Section("notes", "Notes", items=notes(points)),
    )
    return Page(TITLE, f"{subject(points)}.", sections, command=command, answer=(answer(points),))


def _lines(points: Sequence[DecodePoint]) -> dict[str, list[DecodePoint]]:
    """Points by the name of their line."""
    lines: dict[str, list[DecodePoint]] = {}
    for p in points:
        lines.setdefault(f"{p.prediction.profile.name}, {p.prediction.kernel.name}", []).append(p)
    return lines


def _panel(
    name: str, points: Sequence[DecodePoint], title: str, value: Value, text: Callable[[float], str], *,
    bound: bool = False,
) -> Panel:  # fmt: skip
    """A line a GPU and kernel, and with `bound` the tokens a second that the keys and values allow."""
    data: list[dict[str, Any]] = []
    values: list[float] = []
    readings: list[str] = []
    for n, (line, members) in enumerate(_lines(points).items()):
        shown = [(p.context, v) for p in members if (v := value(p)) is not None]
        bounds = [(p.context, b) for p in members if bound and (b := p.bound_tokens_per_s) is not None]
        if bounds:
            contexts, most = zip(*bounds, strict=True)
            values += most
            data.append(axes.guide(line, contexts, most, f"{line}: K/V bound", "dot"))
        if shown:
            contexts, ys = zip(*shown, strict=True)
            values += ys
            hover = [f"{line}, {c:,} tokens<br>{text(v)}" for c, v in shown]
            data.append(axes.line(line, contexts, ys, hover, n))
            readings.append(f"{line}: {text(ys[0])} at {contexts[0]:,} tokens to {text(ys[-1])} at {contexts[-1]:,}")
    x = axes.length_axis(sorted({p.context for p in points}), "context (tokens)")
    heading = f"{title} against the context"
    return Panel(f"figure-{name}", heading, f"{heading}. {'; '.join(readings)}.", tuple(data),
                 axes.layout(x, axes.log_axis(values, title, text)))  # fmt: skip

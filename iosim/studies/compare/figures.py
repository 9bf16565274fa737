"""Figures of a comparison: bytes of both levels, time and memory, and bytes by what the tensors are for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from iosim.base.units import bytes_text, seconds_text
from iosim.show import axes
from iosim.show.bars import Part, bars
from iosim.show.page import Figure, Series
from iosim.show.tables import Cell, Column, Table
from iosim.studies.compare.study import GROUPS, Comparison, by_group
from iosim.studies.report.collect import Point
from iosim.studies.report.figures import FROM, WHO, call_time, hbm_traffic, l2_traffic, memory_footprint, who
from iosim.studies.report.overview import overview

T = TypeVar("T")
Text = Callable[[float], str]


def figures(comparison: Comparison) -> tuple[Figure, ...]:
    """Bytes of both levels first. Lines against the length where there are several lengths, else bars; a lone bar is
    not drawn, for the table says as much."""
    request, points = comparison.request, comparison.points
    drawn = [overview(request, points)]
    if len(request.lengths) > 1:
        drawn += [l2_traffic(request, points), hbm_traffic(request, points), call_time(request, points),
                  memory_footprint(request, points)]  # fmt: skip
    elif len(points) > 1:
        drawn += [bars_of(comparison, "time", "time", seconds_text),
                  bars_of(comparison, "memory", "peak bytes", bytes_text)]  # fmt: skip
    drawn.append(stacked(comparison, "l2", "SM<->L2"))
    return (*drawn, stacked(comparison, "hbm", "HBM")) if request.method != "bounds" else tuple(drawn)


def bars_of(comparison: Comparison, quantity: str, title: str, text: Text) -> Figure:
    """One quantity, a panel a GPU and a bar a kernel; what is missing has no bar."""
    there = [e for e in comparison.entries if e.value(quantity) is not None]
    columns = (*WHO, Column(quantity, title, "seconds" if quantity == "time" else "bytes"),
               Column("ratio", f"{comparison.baseline} over it", "ratio"), FROM)  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for e in there:
        assert e.point is not None
        ids = dict.fromkeys(p.id for p in (e.point, e.baseline) if p is not None)
        value = e.point.hbm_shown if quantity == "hbm" else e.value(quantity)
        rows.append((*who(e.point), value, e.shown(quantity), " ".join(ids)))
    top = max(e.value(quantity) or 0.0 for e in there)
    kernels = comparison.request.kernels
    panels = []
    for n, (gpu, members) in enumerate(_panels([(e.gpu, e.kernel, e) for e in there]), 1):
        values = [e.value(quantity) or 0.0 for _, e in members]
        hover = [f"{e.kernel} on {e.gpu}<br>{text(v)}" for (_, e), v in zip(members, values, strict=True)]
        part = Part(title, [axes.colour(kernels.index(e.kernel)) for _, e in members], values, hover)
        readings = "; ".join(f"{name} {text(v)}" for (name, _), v in zip(members, values, strict=True))
        panels.append(bars(f"{quantity}-{n}", gpu, f"{title}, {gpu}: {readings}.", [name for name, _ in members],
                           [part], text, top=top, most_rows=len(kernels)))  # fmt: skip
    heading = title[0].upper() + title[1:]
    return Figure(quantity, heading, f"{heading} of one call.", Table(columns, tuple(rows)), tuple(panels), (),
                  "seq_len", (quantity, "ratio"), most_across=2)  # fmt: skip


def _panels(bars_there: Sequence[tuple[str, str, T]]) -> list[tuple[str, list[tuple[str, T]]]]:
    """Bars as (GPU, kernel, bar), by panel with their names: a panel a GPU, or one for all where each has one bar."""
    by_gpu: dict[str, list[tuple[str, T]]] = {}
    for gpu, kernel, bar in bars_there:
        by_gpu.setdefault(gpu, []).append((kernel, bar))
    if all(len(members) == 1 for members in by_gpu.values()):
        return [("", [(f"{gpu}, {members[0][0]}", members[0][1]) for gpu, members in by_gpu.items()])]
    return list(by_gpu.items())


def stacked(comparison: Comparison, level: str, word: str) -> Figure:
    """Bytes at one level by group of tensors at the longest sequence, a panel a GPU and a bar a kernel."""
    points = [p for p in comparison.points if p.seq_len == comparison.request.lengths[-1]]
    parts = {p.id: by_group(p.prediction, level) for p in points}
    used = [g for g in GROUPS if any(g in part for part in parts.values())]
    columns = (*WHO, Column("group", "tensors"), Column("bytes", f"{word} bytes", "bytes"), FROM)
    rows = tuple((*who(p), g, n, p.id) for p in points for g, n in parts[p.id].items())
    top = float(max((sum(part.values()) for part in parts.values()), default=0))
    panels = []
    for n, (gpu, members) in enumerate(_panels([(p.gpu.label, p.kernel, p) for p in points]), 1):
        data = [_part(g, [p for _, p in members], parts) for g in used]
        readings = "; ".join(f"{name}: {_listed(parts[p.id])}" for name, p in members)
        panels.append(bars(f"parts-{level}-{n}", gpu, f"{word} bytes by tensor, {gpu}: {readings}.",
                           [name for name, _ in members], data, bytes_text, top=top,
                           most_rows=len(comparison.request.kernels)))  # fmt: skip
    legend = tuple(Series(g, axes.colour(GROUPS.index(g)), "■") for g in used)
    at = f", at N = {comparison.request.lengths[-1]:,}" if len(comparison.request.lengths) > 1 else ""
    return Figure(
        f"parts-{level}", f"{word} bytes by tensor{at}",
        f"What the {word} bytes are for. A pass over the scores stands with the bias, mask or dropout it is for.",
        Table(columns, rows), tuple(panels), legend, "group", ("bytes",), most_across=2,
    )  # fmt: skip


def _part(group: str, points: Sequence[Point], parts: dict[str, dict[str, int]]) -> Part:
    values = [parts[p.id].get(group) for p in points]
    hover = [f"{p.kernel}, {group}<br>{bytes_text(v)}" if v else "" for p, v in zip(points, values, strict=True)]
    return Part(group, axes.colour(GROUPS.index(group)), values, hover)


def _listed(part: dict[str, int]) -> str:
    return ", ".join(f"{g} {bytes_text(n)}" for g, n in part.items())

"""Figures of a comparison at one length: bars by kernel and GPU, and bars stacked by what the tensors are for.

Bytes between SMs and L2 and bytes between L2 and HBM never share a plot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from iosim.base.units import bytes_text, seconds_text
from iosim.show import axes
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import Cell, Column, Table
from iosim.studies.compare.study import Comparison
from iosim.studies.compare.tensors import GROUPS, by_group
from iosim.studies.report.collect import Point
from iosim.studies.report.figures import FROM, WHO, call_time, hbm_traffic, l2_traffic, memory_footprint, who

Text = Callable[[float], str]


def figures(comparison: Comparison) -> tuple[Figure, ...]:
    """Lines against the length where there are several; bars where there is one."""
    request, points = comparison.request, comparison.points
    known = request.method != "bounds"
    if len(request.lengths) > 1:
        drawn = [l2_traffic(request, points), hbm_traffic(request, points), call_time(request, points),
                 memory_footprint(request, points)]  # fmt: skip
    else:
        drawn = [bars(comparison, "l2", "SM<->L2 bytes", bytes_text), bars(comparison, "time", "time", seconds_text),
                 bars(comparison, "memory", "peak bytes", bytes_text)]  # fmt: skip
        drawn[1:1] = [bars(comparison, "hbm", "HBM bytes", bytes_text)] * known
    drawn.append(stacked(comparison, "l2", "SM<->L2"))
    return (*drawn, stacked(comparison, "hbm", "HBM")) if known else tuple(drawn)


def bars(comparison: Comparison, quantity: str, title: str, text: Text) -> Figure:
    """One quantity, bars of a kernel beside each other on every GPU; what is missing has no bar."""
    there = [e for e in comparison.entries if e.value(quantity) is not None]
    columns = (*WHO, Column(quantity, title, "seconds" if quantity == "time" else "bytes"),
               Column("ratio", f"{comparison.baseline} over it", "ratio"), FROM)  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for e in there:
        assert e.point is not None
        ids = dict.fromkeys(p.id for p in (e.point, e.baseline) if p is not None)
        rows.append((*who(e.point), e.value(quantity), e.ratio(quantity), " ".join(ids)))
    data, readings = [], []
    legend = tuple(Series(k, axes.colour(n), "■") for n, k in enumerate(comparison.request.kernels)
                   if any(e.kernel == k for e in there))  # fmt: skip
    for n, kernel in enumerate(comparison.request.kernels):
        mine = [(e.gpu, e.value(quantity) or 0.0) for e in there if e.kernel == kernel]
        if mine:
            hover = [f"{kernel} on {gpu}<br>{text(v)}" for gpu, v in mine]
            data.append(axes.bar(kernel, [gpu for gpu, _ in mine], [v for _, v in mine], hover, n))
            readings.append(f"{kernel} {', '.join(f'{text(v)} on {gpu}' for gpu, v in mine)}")
    gpus = [g.label for g in comparison.request.gpus]
    x = axes.category_axis(gpus)
    y = axes.linear_axis((e.value(quantity) or 0.0 for e in there), title, text)
    panel = Panel(f"{quantity}-1", title, f"{title}: {'; '.join(readings)}.", tuple(data),
                  axes.layout(x, y, barmode="group"))  # fmt: skip
    return Figure(f"{quantity}", title[0].upper() + title[1:], f"{title[0].upper() + title[1:]} of one call.",
                  Table(columns, tuple(rows)), (panel,), legend, "kernel", (quantity, "ratio"))  # fmt: skip


def stacked(comparison: Comparison, level: str, word: str) -> Figure:
    """Bytes at one level by group of tensors at the longest sequence, a panel a GPU and a bar a kernel."""
    points = [p for p in comparison.points if p.seq_len == comparison.request.lengths[-1]]
    parts = {p.id: by_group(p.prediction, level) for p in points}
    used = [g for g in GROUPS if any(g in part for part in parts.values())]
    columns = (*WHO, Column("group", "tensors"), Column("bytes", f"{word} bytes", "bytes"), FROM)
    rows = tuple((*who(p), g, n, p.id) for p in points for g, n in parts[p.id].items())
    y = axes.linear_axis((sum(part.values()) for part in parts.values()), f"{word} bytes", bytes_text)
    panels = []
    for n, gpu in enumerate(dict.fromkeys(p.gpu.label for p in points), 1):
        mine = [p for p in points if p.gpu.label == gpu]
        x = axes.category_axis([p.kernel for p in mine])
        data = [_part(g, mine, parts, GROUPS.index(g)) for g in used]
        readings = "; ".join(f"{p.kernel}: {_listed(parts[p.id])}" for p in mine)
        panels.append(Panel(f"parts-{level}-{n}", gpu, f"{word} bytes by tensor on {gpu}: {readings}.", tuple(data),
                            axes.layout(x, y, barmode="stack")))  # fmt: skip
    legend = tuple(Series(g, axes.colour(GROUPS.index(g)), "■") for g in used)
    at = f", at N = {comparison.request.lengths[-1]:,}" if len(comparison.request.lengths) > 1 else ""
    return Figure(
        f"parts-{level}", f"{word} bytes by tensor{at}",
        f"What the {word} bytes are for. A pass over the scores stands with the bias, mask or dropout it is for.",
        Table(columns, rows), tuple(panels), legend, "group", ("bytes",), by=("gpu", "kernel", "seq_len"),
    )  # fmt: skip


def _part(group: str, points: Sequence[Point], parts: dict[str, dict[str, int]], n: int) -> dict[str, Any]:
    mine = [(p.kernel, parts[p.id][group]) for p in points if group in parts[p.id]]
    hover = [f"{kernel}, {group}<br>{bytes_text(v)}" for kernel, v in mine]
    return axes.bar(group, [kernel for kernel, _ in mine], [v for _, v in mine], hover, n)


def _listed(part: dict[str, int]) -> str:
    return ", ".join(f"{g} {bytes_text(n)}" for g, n in part.items())

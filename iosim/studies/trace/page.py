"""A trace, or several side by side, as a page: plots and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from iosim.base.units import bytes_text
from iosim.readers.replay.engine import PS
from iosim.readers.replay.tracing import LaunchTrace
from iosim.show import axes
from iosim.show.page import Page, Panel, Section
from iosim.show.tables import Cell, Column, Table
from iosim.studies.trace.answer import answer
from iosim.studies.trace.trace import TraceResult
from iosim.studies.trace.views import reuse_rows, tensor_rows

MAX_CTA_LINES = 600
MB = 1e6


def as_page(traces: Sequence[TraceResult], command: str) -> Page:
    """The whole page. `command` is the command line that makes it again."""
    q = traces[0].prediction.problem
    kernels = ", ".join(t.prediction.kernel.name for t in traces)
    title = f"Trace of {kernels} on {traces[0].prediction.profile.name}"
    subject = (f"batch {q.batch}, {q.heads} heads, {q.seq_q:,} x {q.seq_k:,} tokens, head_dim {q.head_dim}, "
               f"{q.dtype}, mask {q.mask_text}, {q.passes}. Time is the replay's own.")  # fmt: skip
    tables = {"tensors": tensor_table(traces), "reuse": reuse_table(traces), "drift": drift_table(traces)}
    sections: list[Section] = []
    for name, heading, caption, draw in (
        ("tensors", "Hit rate over time", "Of the bytes that SMs ask of the L2, the share found there.", _hits),
        ("read", "HBM reads over time", "Bytes that missed in the L2, as a rate, by tensor.", _reads),
        ("drift", "What is in use at once", "Range between the first and the last CTA of every head in progress, added "
         "up. Above the line one partition of the L2 cannot keep it: the last CTA does not find what the first "
         "has read.", _in_use),
        ("walk", "Where CTAs stand", "Every line is a CTA of one head on its way through the loop, from start to "
         "end. Lines that run close together share what they read.", _walk),
        ("reuse", "Reuse distances", "Bytes loaded, by the distinct bytes that the partition had loaded since it "
         "loaded the same line before. Past the line they miss. First loads are in the table.", _reuse),
    ):  # fmt: skip
        drawn = _alike([p for n, t in enumerate(traces) for p in draw(t, f"{name}-{n}")])
        sections.append(Section(name, heading, (caption,), panels=tuple(drawn), table=tables.get(name)))
    return Page(title, subject, tuple(sections), command=command, answer=(answer(traces),))


def tensor_table(traces: Sequence[TraceResult]) -> Table:
    """Bytes asked and missed, by kernel and tensor."""
    columns = (Column("kernel", "kernel"), Column("tensor", "tensor"), Column("asked_bytes", "asked of L2", "bytes"),
               Column("missed_bytes", "missed, read from HBM", "bytes"),
               Column("hit_rate", "hit rate", "percent"))  # fmt: skip
    return Table(columns, tuple((t.prediction.kernel.name, *row.values()) for t in traces for row in tensor_rows(t)))


def reuse_table(traces: Sequence[TraceResult]) -> Table:
    """The reuse histogram by kernel and launch, in few rows."""
    columns = (Column("kernel", "kernel"), Column("launch", "launch"), Column("kind", "kind"),
               Column("from_bytes", "from", "bytes"), Column("to_bytes", "to", "bytes"),
               Column("bytes", "loaded", "bytes"), Column("share", "share", "percent"))  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for t in traces:
        for one in t.launches:
            total = max(1, one.reuse.total)
            rows += [(t.prediction.kernel.name, one.name, r["kind"], r["from_bytes"], r["to_bytes"], r["bytes"],
                      r["bytes"] / total) for r in reuse_rows(one, t.partition_bytes)]  # fmt: skip
    return Table(columns, tuple(rows))


def drift_table(traces: Sequence[TraceResult]) -> Table:
    """By kernel and launch: CTAs, their times, and what is in use at once."""
    columns = (Column("kernel", "kernel"), Column("launch", "launch"), Column("work_tiles", "work tiles", "count"),
               Column("slots", "at once", "count"), Column("fastest_s", "shortest", "seconds"),
               Column("slowest_s", "longest", "seconds"),
               Column("median_in_use_bytes", "in use, median", "bytes"), Column("peak_in_use_bytes", "peak", "bytes"),
               Column("partition_bytes", "one partition", "bytes"),
               Column("share_above", "time above it", "percent"))  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for t in traces:
        for one in t.launches:
            took = one.ctas.end_ps - one.ctas.start_ps
            drifts = one.peak_in_use_bytes is not None
            rows.append((
                t.prediction.kernel.name, one.name, one.ctas.tiles, one.slots, int(took.min()) / PS,
                int(took.max()) / PS, one.median_in_use_bytes, one.peak_in_use_bytes, t.partition_bytes,
                one.share_above(t.partition_bytes) if drifts else None,
            ))  # fmt: skip
    return Table(columns, tuple(rows))


def _ms(t: TraceResult) -> list[float]:
    return [round(1e3 * (b + 0.5) * t.bin_ps / PS, 6) for b in range(t.bins)]


def _some(values: Any) -> list[float | None]:
    return [round(float(v), 4) if np.isfinite(v) else None for v in values]


def _lines(t: TraceResult, panel: str, values: Any, unit: str, **y: Any) -> list[Panel]:
    """A line a tensor over time."""
    data, ranges = [], []
    for n, name in enumerate(t.tensors):
        if t.loaded()[name]:
            ys = _some(values[:, n])
            hover = [f"{name}: {v:g} {unit}" if v is not None else "" for v in ys]
            data.append(axes.line(name, _ms(t), ys, hover, n, mode="lines"))
            known = [v for v in ys if v is not None]
            ranges.append(f"{name} {min(known):g} to {max(known):g}")
    layout = axes.layout(axes.axis("time (ms)"), axes.axis(unit, **y), **axes.LEGEND_ABOVE)
    name = t.prediction.kernel.name
    return [Panel(panel, name, f"{name}, {unit}: {'; '.join(ranges)}.", tuple(data), layout)]


def _alike(panels: Sequence[Panel]) -> list[Panel]:
    """The panels with one vertical axis, where it starts at zero."""
    tops = [y for p in panels for line in p.data for y in line["y"] if y is not None]
    top = 1.05 * max(tops, default=1.0) or 1.0
    return [
        replace(p, layout={**p.layout, "yaxis": {**p.layout["yaxis"], "range": [0, top]}})
        if "rangemode" in p.layout["yaxis"] else p
        for p in panels
    ]  # fmt: skip


def _hits(t: TraceResult, panel: str) -> list[Panel]:
    return _lines(t, panel, 100 * t.hit_rate(), "% hit", range=[-3, 103])


def _reads(t: TraceResult, panel: str) -> list[Panel]:
    return _lines(t, panel, t.miss / (t.bin_ps / PS) / 1e9, "GB/s", rangemode="tozero")


def _drawable(t: TraceResult) -> list[LaunchTrace]:
    return [one for one in t.launches if one.peak_in_use_bytes is not None]


def _in_use(t: TraceResult, panel: str) -> list[Panel]:
    panels = []
    for n, one in enumerate(_drawable(t)):
        ys = _some(one.in_use_bytes / MB)
        hover = [f"{v:g} MB" if v is not None else "" for v in ys]
        size = t.partition_bytes / MB
        data = (
            axes.line("in use", _ms(t), ys, hover, 0, mode="lines"),
            axes.guide("one partition", [0, _ms(t)[-1]], [size] * 2, f"one partition: {size:.4g} MB", "dash"),
        )
        title = f"{t.prediction.kernel.name}, {one.name}"
        alt = (f"{title}: {bytes_text(one.median_in_use_bytes or 0)} at the median, "
               f"{bytes_text(one.peak_in_use_bytes or 0)} at the peak.")  # fmt: skip
        layout = axes.layout(axes.axis("time (ms)"), axes.axis("MB in use", rangemode="tozero"))
        panels.append(Panel(f"{panel}-{n}", title, alt, data, layout))
    return panels


def _walk(t: TraceResult, panel: str) -> list[Panel]:
    """The CTAs of the head in the middle of the launch, as lines from their first index to their last."""
    panels = []
    for k, one in enumerate(_drawable(t)):
        c = one.ctas
        owner = c.owner[np.flatnonzero(c.count > 0)]
        mine = np.flatnonzero((c.owner == owner[owner.size // 2]) & (c.count > 0))
        mine = mine[:: -(-mine.size // MAX_CTA_LINES)]
        end = c.first[mine] + c.count[mine] - 1
        begin = np.where(c.down[mine] == 1, end, c.first[mine])
        finish = np.where(c.down[mine] == 1, c.first[mine], end)
        xs: list[float | None] = []
        ys: list[float | None] = []
        hover: list[str] = []
        for n, tile in enumerate(mine.tolist()):
            xs += [int(c.start_ps[tile]) / 1e9, int(c.end_ps[tile]) / 1e9, None]
            ys += [float(begin[n]), float(finish[n]), None]
            hover += [f"work tile {tile} on SM {int(c.sm[tile])}"] * 2 + [""]
        title = f"{t.prediction.kernel.name}, {one.name}"
        line = axes.line("CTA", xs, ys, hover, 0, mode="lines") | {"line": {"color": axes.colour(0), "width": 0.7}}
        what = "key" if one.shared_tensors[0] in ("K", "V") else "query"
        layout = axes.layout(axes.axis("time (ms)"), axes.axis(f"{what} block"))
        panels.append(Panel(f"{panel}-{k}", title, f"{title}: {mine.size} CTAs of one head.", (line,), layout))
    return panels


def _reuse(t: TraceResult, panel: str) -> list[Panel]:
    panels = []
    for n, one in enumerate(t.launches):
        h = one.reuse
        xs = [(i + 0.5) * h.width_bytes / MB for i in range(h.loads.size)]
        ys = [int(v) / 1e9 for v in h.loads]
        hover = [f"{x:.4g} MB: {y:.4g} GB" for x, y in zip(xs, ys, strict=True)]
        bars = axes.bar("loads", xs, ys, hover, 0)
        size = t.partition_bytes / MB
        line = axes.guide("one partition", [size] * 2, [0, max(ys)], f"one partition: {size:.4g} MB", "dash")
        title = f"{t.prediction.kernel.name}, {one.name}"
        alt = f"{title}: {bytes_text(h.beyond(t.partition_bytes))} at a distance of one partition or more."
        last = max([1.2 * size, *(x + h.width_bytes / MB for x, y in zip(xs, ys, strict=True) if y)])
        layout = axes.layout(
            axes.axis("reuse distance (MB)", range=[0, last]), axes.axis("GB loaded", rangemode="tozero")
        )
        panels.append(Panel(f"{panel}-{n}", title, alt, (bars, line), layout))
    return panels

"""What a trace, or several side by side, look like: an answer, tables, and a page of plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.base.records import replace
from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import sentences
from iosim.kernel.launch import Rows
from iosim.prediction.confidence import confidence, who
from iosim.readers.replay.engine import PS
from iosim.readers.replay.tracing import CtaTable, LaunchTrace
from iosim.show import axes
from iosim.show.axes import End, at_ends
from iosim.show.page import Page, Panel, Section
from iosim.show.tables import Cell, Column, Table
from iosim.studies.trace.trace import TraceResult, numbers, reuse_rows, tensor_rows


def traces_answer(traces: Sequence[TraceResult]) -> str:
    """A line for each trace, and one word of confidence."""
    sure = confidence([t.prediction for t in traces])
    return "\n".join(sentences([clause]) for clause in [*map(_asked, traces), sure])


def _met(t: TraceResult) -> tuple[int, int, float]:
    rows = tensor_rows(t)
    loaded, missed = (sum(int(r[key]) for r in rows) for key in ("asked_bytes", "missed_bytes"))
    return loaded, missed, 100 * (1 - missed / loaded) if loaded else 0.0


def _behind(t: TraceResult) -> str:
    levels = t.prediction.profile.levels
    return f"the {levels[1].name}" if len(levels) > 1 else "HBM"


def _verdict(traces: Sequence[TraceResult]) -> str:
    shares, misses = [], []
    for t in traces:
        _, missed, share = _met(t)
        shares.append(f"{share:.1f} % for {t.prediction.kernel.name}")
        misses.append(bytes_text(missed))
    behind = _behind(traces[0])
    return f"Of the bytes asked, the L2 has {', '.join(shares)}; {behind} gives the rest: {', '.join(misses)}."


def _asked(t: TraceResult) -> str:
    loaded, missed, share = _met(t)
    hits = f"{share:.1f} % are there, {bytes_text(missed)} from {_behind(t)}"
    p = t.prediction
    took = f"{seconds_text(p.time_s)}, bound by {p.bound_by}"
    parts = [f"{who(p)} asks {bytes_text(loaded)} of the L2: {hits}; {took}"]
    drifting = [launch for launch in t.launches if launch.peak_in_use_bytes is not None]
    if drifting:
        widest = max(drifting, key=lambda launch: launch.peak_in_use_bytes or 0)
        peak, capacity = widest.peak_in_use_bytes or 0, t.partition_bytes
        names = " and ".join(widest.shared_tensors)
        above = f"{100 * widest.share_above(capacity):.0f} % of the time more than"
        fits = "within" if peak <= capacity else above
        parts.append(
            f"Up to {bytes_text(peak)} of {names} in use at once, {fits} the {bytes_text(capacity)} kept"
        )
    return ". ".join(parts)


IntArray = npt.NDArray[np.int64]
MAX_CTA_LINES, CTA_COLOURS = 600, 6
MB = 1e6
TIME = "time (ms)"
SAME_RATE = 0.03
"""Difference of hit rates, at the median over time, up to which tensors share a line."""


Plots = Callable[[TraceResult, str], list[Panel]]


def _plots(read: str, top: float) -> tuple[tuple[str, str, str, Plots], ...]:
    """(name, heading, caption, what draws it) of each section; `read` heads the bytes read, of which `top` is the most."""
    return (
        (
            "walk",
            "Where CTAs stand",
            "Every line is a CTA of one head on its way through the loop, from start to "
            "end. Lines that run close together share what they read. One time axis for all.",
            _walk,
        ),
        (
            "read",
            read,
            "What missed in the L2, added up over time, by tensor. The dotted line is "
            "the compulsory reads: every input once. Where the top climbs past it, bytes are read again.",
            partial(_reads, top=top),
        ),
        (
            "tensors",
            "Hit rate over time",
            "Of the bytes that SMs ask of the L2, the share found there. Tensors that "
            "fare alike share a line.",
            _hits,
        ),
        (
            "drift",
            "What is in use at once",
            "Range between the first and the last CTA of every head in progress, added "
            "up. Above the line one partition of the L2 cannot keep it: the last CTA does not find what the first "
            "has read.",
            _in_use,
        ),
        (
            "reuse",
            "Reuse distances",
            "Bytes loaded, by the distinct bytes that the partition had loaded since it "
            "loaded the same line before. Past the dashed line they miss. First loads are in the table.",
            _reuse,
        ),
    )


def as_page(traces: Sequence[TraceResult], command: str) -> Page:
    q = traces[0].prediction.problem
    *first_names, last = dict.fromkeys(t.prediction.kernel.name for t in traces)
    kernels = " and ".join([", ".join(first_names), last] if first_names else [last])
    title = f"What does the L2 of the {traces[0].prediction.profile.name} keep for {kernels}?"
    subject = f"{q.line}."
    # One scale of bytes for all kernels: the most that any reads, or must read.
    top = max(max(t.miss.sum(), t.prediction.hbm_bounds.compulsory_read) for t in traces) / MB
    tables = {
        "read": tensor_table(traces),
        "reuse": reuse_table(traces),
        "drift": drift_table(traces),
    }
    behind = _behind(traces[0])
    read = "HBM bytes read so far" if behind == "HBM" else f"Bytes from {behind} so far"
    sections: list[Section] = []
    last_ms = max(1e3 * t.bins * t.bin_ps / PS for t in traces)
    for name, heading, caption, draw in _plots(read, top):
        drawn = _alike([p for n, t in enumerate(traces) for p in draw(t, f"{name}-{n}")], last_ms)
        if drawn or tables.get(name):
            sections.append(
                Section(
                    name,
                    heading,
                    (caption,),
                    panels=tuple(drawn),
                    table=tables.get(name),
                    folded=name not in ("walk", "read"),
                    most_across=3,
                )
            )
    sentences = tuple(traces_answer(traces).split("\n"))
    return Page(
        title,
        subject,
        tuple(sections),
        command=command,
        answer=sentences,
        verdict=(_verdict(traces),),
    )


def tensor_table(traces: Sequence[TraceResult]) -> Table:
    columns = (
        Column("kernel"),
        Column("tensor"),
        Column("asked_bytes", "asked of L2"),
        Column("missed_bytes", f"missed, read from {_behind(traces[0])}"),
        Column("hit_rate", "hit rate", kind="percent"),
    )
    return Table(
        columns,
        tuple((t.prediction.kernel.name, *row.values()) for t in traces for row in tensor_rows(t)),
    )


def reuse_table(traces: Sequence[TraceResult]) -> Table:
    columns = (
        Column("kernel"),
        Column("launch"),
        Column("kind"),
        Column("from_bytes", "from"),
        Column("to_bytes", "to"),
        Column("bytes", "loaded", kind="bytes"),
        Column("share", kind="percent"),
    )
    rows: list[tuple[Cell, ...]] = []
    for t in traces:
        for launch in t.launches:
            total = max(1, launch.reuse.total)
            rows += [
                (
                    t.prediction.kernel.name,
                    launch.name,
                    r["kind"],
                    r["from_bytes"],
                    r["to_bytes"],
                    r["bytes"],
                    r["bytes"] / total,
                )
                for r in reuse_rows(launch, t.partition_bytes)
            ]
    return Table(columns, tuple(rows))


def drift_table(traces: Sequence[TraceResult]) -> Table:
    columns = (
        Column("kernel"),
        Column("launch"),
        Column("work_tiles", "work tiles", kind="count"),
        Column("slots", "at once", kind="count"),
        Column("fastest_s", "shortest"),
        Column("slowest_s", "longest"),
        Column("median_in_use_bytes", "in use, median"),
        Column("peak_in_use_bytes", "peak"),
        Column("partition_bytes", "one partition"),
        Column("share_above", "time above it", kind="percent"),
    )
    rows: list[tuple[Cell, ...]] = []
    for t in traces:
        for launch in t.launches:
            took = launch.ctas.end_ps - launch.ctas.start_ps
            drifts = launch.peak_in_use_bytes is not None
            rows.append(
                (
                    t.prediction.kernel.name,
                    launch.name,
                    launch.ctas.tiles,
                    launch.slots,
                    int(took.min()) / PS,
                    int(took.max()) / PS,
                    launch.median_in_use_bytes,
                    launch.peak_in_use_bytes,
                    t.partition_bytes,
                    launch.share_above(t.partition_bytes) if drifts else None,
                )
            )
    return Table(columns, tuple(rows))


def _ms(t: TraceResult) -> list[float]:
    return [round(1e3 * (b + 0.5) * t.bin_ps / PS, 6) for b in range(t.bins)]


def _alike(panels: Sequence[Panel], last_ms: float) -> list[Panel]:
    """The panels with one vertical axis, where it starts at zero, and one axis of time, which ends at `last_ms`."""
    # Only axes that start at zero are made alike; those of block numbers keep their own.
    tops = [p.layout["yaxis"]["range"][1] for p in panels if "rangemode" in p.layout["yaxis"]]
    right = max((p.layout["margin"]["r"] for p in panels), default=0)
    shared: list[Panel] = []
    for p in panels:
        x, y = p.layout["xaxis"], p.layout["yaxis"]
        y = y | {"range": [0, max(tops)]} if "rangemode" in y else y
        x = x | {"range": [0, last_ms]} if x["title"]["text"] == TIME else x
        margin = {**p.layout["margin"], "r": right}
        shared.append(replace(p, layout={**p.layout, "xaxis": x, "yaxis": y, "margin": margin}))
    return shared


def _from_zero(title: str, top: float) -> dict[str, Any]:
    return axes.axis(title, type="linear", rangemode="tozero", range=[0, 1.08 * top or 1.0])


def _above(text: str, y: float) -> dict[str, Any]:
    """The name of a level line, on its right end; below it where the axis ends there."""
    return axes.note(text, 1, y, xref="paper", xanchor="right", yref="y", yanchor="bottom")


def _hits(t: TraceResult, panel: str) -> list[Panel]:
    """A line per tensor over time; one for those whose rates lie on each other."""
    drawn = {name: n for n, name in enumerate(t.tensors) if t.loaded()[name]}
    data, ends, ranges = [], [], []
    y = axes.axis("% hit", type="linear", range=[-3, 103])
    for n, names in enumerate(_same_rates(t, list(drawn))):
        # Tensors of a group are added up, bin by bin; bins without loads are gaps in the line.
        hit = t.hit[:, [drawn[name] for name in names]].sum(axis=1)
        both = hit + t.miss[:, [drawn[name] for name in names]].sum(axis=1)
        ys = numbers(
            np.divide(100.0 * hit, both, out=np.full(both.shape, np.nan), where=both > 0), 4
        )
        name = (
            " and ".join(names)
            if len(names) <= 3
            else f"{names[0]}, {names[1]} and {len(names) - 2} more"
        )
        hover = [f"{name}: {v:.4g} % hit" if v is not None else "" for v in ys]
        data.append(axes.line(name, _ms(t), ys, hover, n, mode="lines"))
        known = [v for v in ys if v is not None]
        ranges.append(f"{name} {min(known):.4g} to {max(known):.4g}")
        ends.append(End(name, known[-1], axes.colour(n)))
    kernel = t.prediction.kernel.name
    layout = axes.layout(axes.axis(TIME), y, **at_ends(ends, y))
    return [Panel(panel, kernel, f"{kernel}, % hit: {'; '.join(ranges)}.", tuple(data), layout)]


def _same_rates(t: TraceResult, names: Sequence[str]) -> list[list[str]]:
    """Tensors in groups whose hit rates differ by little throughout and by less in all."""
    rates = t.hit_rate()
    groups: list[list[str]] = []
    for name in names:
        mine = rates[:, t.tensors.index(name)]
        for group in groups:
            apart = np.abs(mine - rates[:, t.tensors.index(group[0])])
            if not np.isfinite(apart).any() or np.nanmedian(apart) <= SAME_RATE:
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _reads(t: TraceResult, panel: str, top: float) -> list[Panel]:
    """Bytes missed so far, stacked by tensor, and the compulsory reads; the axis goes up to `top` MB."""
    so_far = t.miss.cumsum(axis=0) / MB
    names = [name for name in t.tensors if t.misses()[name]]
    data, ends, base = [], [], 0.0
    for n, name in enumerate(names):
        ys = [round(float(v), 4) for v in so_far[:, t.tensors.index(name)]]
        hover = [f"{name}: {v:.4g} MB so far" for v in ys]
        line = axes.line(name, _ms(t), ys, hover, n, mode="lines")
        # Stacked areas: plotly adds them up, so each has its own values and its label half-way up.
        data.append(
            line | {"stackgroup": "bytes", "fillcolor": axes.colour(n), "line": {"width": 0}}
        )
        ends.append(
            End(f"{name} {bytes_text(t.misses()[name])}", base + ys[-1] / 2, axes.colour(n))
        )
        base += ys[-1]
    least = t.prediction.hbm_bounds.compulsory_read / MB
    data.append(
        axes.guide("compulsory", [0, _ms(t)[-1]], [least] * 2, f"compulsory: {least:.4g} MB", "dot")
    )
    y = _from_zero("MB read", top)
    layout = axes.layout(axes.axis(TIME), y, **at_ends(ends, y))
    layout["annotations"] = [
        *layout["annotations"],
        _above("compulsory", least) | {"x": 0, "xanchor": "left"},
    ]
    kernel = t.prediction.kernel.name
    by_name = ", ".join(f"{name} {bytes_text(t.misses()[name])}" for name in names)
    alt = f"{kernel} reads {bytes_text(base * MB)} from HBM: {by_name}; compulsory {bytes_text(least * MB)}."
    return [Panel(panel, kernel, alt, tuple(data), layout)]


def _drawable(t: TraceResult) -> list[LaunchTrace]:
    return [launch for launch in t.launches if launch.peak_in_use_bytes is not None]


def _in_use(t: TraceResult, panel: str) -> list[Panel]:
    panels = []
    for n, launch in enumerate(_drawable(t)):
        ys = numbers(launch.in_use_bytes / MB, 4)
        hover = [f"{v:g} MB" if v is not None else "" for v in ys]
        size = t.partition_bytes / MB
        data = (
            axes.line("in use", _ms(t), ys, hover, 0, mode="lines"),
            axes.guide(
                "one partition",
                [0, _ms(t)[-1]],
                [size] * 2,
                f"one partition: {size:.4g} MB",
                "dash",
            ),
        )
        title = f"{t.prediction.kernel.name}, {launch.name}"
        rest = f"{bytes_text(launch.peak_in_use_bytes or 0)} at the peak."
        alt = f"{title}: {bytes_text(launch.median_in_use_bytes or 0)} at the median, {rest}"
        y = _from_zero("MB in use", max([size, *(v for v in ys if v is not None)]))
        layout = axes.layout(
            axes.axis(TIME), y, annotations=[_above(f"one partition, {size:.4g} MB", size)]
        )
        panels.append(Panel(f"{panel}-{n}", title, alt, data, layout))
    return panels


def _walk(t: TraceResult, panel: str) -> list[Panel]:
    """The CTAs of the head in the middle of the launch, as lines from their first index to their last."""
    panels = []
    for k, launch in enumerate(_drawable(t)):
        c = launch.ctas
        owner = c.owner[np.flatnonzero(c.count > 0)]
        mine = np.flatnonzero((c.owner == owner[owner.size // 2]) & (c.count > 0))
        # Every n-th CTA, so that a browser draws at most some hundred lines.
        mine = mine[:: -(-mine.size // MAX_CTA_LINES)]
        # A CTA that walks down begins at its last index.
        end = c.first[mine] + c.count[mine] - 1
        begin = np.where(c.down[mine] == 1, end, c.first[mine])
        finish = np.where(c.down[mine] == 1, c.first[mine], end)
        title = f"{t.prediction.kernel.name}, {launch.name}"
        lines = _cta_lines(c, mine, begin, finish)
        axis_word = "key" if launch.shared_axis is Rows.KEY else "query"
        since, till = c.start_ps[mine].min() / 1e9, c.end_ps[mine].max() / 1e9
        rest = f"{axis_word} blocks {c.first[mine].min()} to {end.max()}, from {since:.4g} to {till:.4g} ms."
        summary = f"{some(mine.size, 'CTA')} of one head, {rest}"
        layout = axes.layout(axes.axis(TIME), axes.axis(f"{axis_word} block"))
        panels.append(Panel(f"{panel}-{k}", title, f"{title}: {summary}", lines, layout))
    return panels


def _cta_lines(
    c: CtaTable, mine: IntArray, begin: IntArray, finish: IntArray
) -> tuple[dict[str, Any], ...]:
    """The ways of CTAs, neighbours in different colours."""
    lines = []
    for n in range(min(CTA_COLOURS, mine.size)):
        xs: list[float | None] = []
        ys: list[float | None] = []
        hover: list[str] = []
        for at in range(n, mine.size, CTA_COLOURS):
            tile = int(mine[at])
            xs += [int(c.start_ps[tile]) / 1e9, int(c.end_ps[tile]) / 1e9, None]
            ys += [float(begin[at]), float(finish[at]), None]
            hover += [f"work tile {tile} on SM {int(c.sm[tile])}"] * 2 + [""]
        line = axes.line("CTA", xs, ys, hover, n, mode="lines")
        lines.append(line | {"line": {"color": axes.colour(n), "width": 1.0}})
    return tuple(lines)


def _reuse(t: TraceResult, panel: str) -> list[Panel]:
    panels = []
    for n, launch in enumerate(t.launches):
        h = launch.reuse
        if not h.loads.any():  # nothing is loaded twice
            continue
        xs = [(i + 0.5) * h.width_bytes / MB for i in range(h.loads.size)]
        ys = [int(v) / 1e9 for v in h.loads]
        hover = [f"{x:.4g} MB: {y:.4g} GB" for x, y in zip(xs, ys, strict=True)]
        bars = axes.bar("loads", xs, ys, hover, 0)
        size = t.partition_bytes / MB
        title = f"{t.prediction.kernel.name}, {launch.name}"
        alt = f"{title}: {bytes_text(h.beyond(t.partition_bytes))} at a distance of one partition or more."
        last = max(
            [1.2 * size, *(x + h.width_bytes / MB for x, y in zip(xs, ys, strict=True) if y)]
        )
        y = _from_zero("GB loaded", max(ys, default=0.0))
        anchor, shift = ("left", 4) if size < last / 2 else ("right", -4)
        place = {"xref": "x", "xanchor": anchor, "xshift": shift, "yref": "paper", "yanchor": "top"}
        word = axes.note(f"one partition, {size:.4g} MB", size, 1, **place)
        x = axes.axis("reuse distance (MB)", range=[0, last])
        layout = axes.layout(x, y, annotations=[word], shapes=[axes.upright(size, "dash")])
        panels.append(Panel(f"{panel}-{n}", title, alt, (bars,), layout))
    return panels

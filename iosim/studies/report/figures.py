"""Figures against the sequence length: traffic of each level, memory, time, and the ratios between kernels.

Bytes between SMs and L2 and bytes between L2 and HBM never share a plot of these; overview.py draws both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from iosim.base.units import bytes_text, number_text, seconds_text
from iosim.kernel.algorithms import algorithm_of
from iosim.prediction.estimates import mark_of, marked
from iosim.show import axes
from iosim.show.labels import hollow, layered
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import COMMANDS, Cell, Column, Table
from iosim.studies.report.collect import Point, series
from iosim.studies.report.request import Gpu, ReportRequest

Value = Callable[[Point], float | None]
Guide = tuple[str, str, str, list[int], list[float]]
"""Name, hover text, dash, lengths and values of a grey line."""

WHO = (Column("gpu", "GPU"), Column("kernel", "kernel"), Column("seq_len", "N", "count"))
FROM = Column("commands", "command (listed at the end)", COMMANDS)


def who(p: Point) -> tuple[Cell, ...]:
    """The cells under WHO."""
    return p.gpu.label, p.kernel, p.seq_len


def kernel_legend(request: ReportRequest, *guides: tuple[str, str]) -> tuple[Series, ...]:
    """Legend of the kernels, and of grey lines given as (name, dash)."""
    named = [Series(k, axes.colour(n), axes.symbol(n)[1]) for n, k in enumerate(request.kernels)]
    return (*named, *(Series(name, axes.NEUTRAL, dash=dash) for name, dash in guides))


def gpu_panels(
    request: ReportRequest,
    points: Sequence[Point],
    figure_id: str,
    value: Value,
    title: str,
    text: Callable[[float], str],
    guides: Callable[[Gpu, list[Point]], list[Guide]] = lambda gpu, points: [],
    estimate: Callable[[Point], bool] = lambda p: False,
) -> tuple[Panel, ...]:
    """One panel a GPU, all with the same axes: `value` against N, a line a kernel; its marks are hollow where a value
    is an `estimate`."""
    drawn: dict[str, list[Point]] = {}
    for p in points:
        drawn.setdefault(p.gpu.label, []).append(p)
    lines = {label: guides(members[0].gpu, members) for label, members in drawn.items()}
    values = [v for p in points if (v := value(p)) is not None]
    values += [v for of_gpu in lines.values() for *_, ys in of_gpu for v in ys]
    x, y = axes.length_axis(request.lengths), axes.log_axis(values, title, text)
    panels = []
    for n, (label, members) in enumerate(drawn.items(), 1):
        grey = [axes.guide(name, ns, ys, hover, dash) for name, hover, dash, ns, ys in lines[label]]
        drawn_lines, readings = [], []
        for _, kernel, row in series(members):
            shown = [(p, v) for p in row if (v := value(p)) is not None]
            if not shown:
                continue
            hover = [f"{kernel}, N = {p.seq_len:,}<br>{text(v)} ({p.id})" for p, v in shown]
            line = axes.line(kernel, [p.seq_len for p, _ in shown], [v for _, v in shown], hover,
                             request.kernels.index(kernel))  # fmt: skip
            drawn_lines.append(hollow(line, [estimate(p) for p, _ in shown]))
            readings.append(f"{kernel} {text(shown[0][1])} at N = {shown[0][0].seq_len:,} to {text(shown[-1][1])} at "
                        f"N = {shown[-1][0].seq_len:,}")  # fmt: skip
        panels.append(Panel(f"{figure_id}-{n}", label, f"{title}, {label}: {'; '.join(readings)}.",
                            (*grey, *layered(drawn_lines)), axes.layout(x, y)))  # fmt: skip
    return tuple(panels)


HOLLOW = " Hollow marks are estimates."


def estimated(p: Point) -> bool:
    """Whether its HBM bytes are an estimate, not a replay of the whole."""
    return bool(mark_of(p.prediction.method))


def l2_traffic(request: ReportRequest, points: Sequence[Point]) -> Figure:
    """Bytes between SMs and L2."""
    columns = (*WHO, Column("l2_read_bytes", "read", "bytes"), Column("l2_write_bytes", "written", "bytes"),
               Column("l2_bytes", "SM<->L2 bytes", "bytes"), Column("tile", "tile"), FROM)  # fmt: skip
    rows = tuple(
        (*who(p), p.prediction.total("l2", "read"), p.prediction.total("l2", "write"), p.l2,
         str(p.prediction.kernel.tile), p.id)
        for p in points
    )  # fmt: skip
    return Figure(
        "traffic-l2", "Traffic between the SMs and L2",
        "Bytes that cross between the SMs and L2, read and written together, against the sequence length. They follow "
        "from the tiles alone: a count. This is what the FlashAttention papers count as memory accesses.",
        Table(columns, rows),
        gpu_panels(request, points, "traffic-l2", lambda p: p.l2, "SM<->L2 bytes", bytes_text),
        kernel_legend(request), "seq_len", ("l2_bytes",),
    )  # fmt: skip


def hbm_traffic(request: ReportRequest, points: Sequence[Point]) -> Figure:
    """Bytes between L2 and HBM: the estimate, and the bounds it lies between."""
    known = request.method != "bounds"
    columns = (*WHO, Column("hbm_read_bytes", "read", "bytes"), Column("hbm_write_bytes", "written", "bytes"),
               Column("hbm_bytes", "HBM bytes", "bytes"), Column("compulsory_bytes", "compulsory", "bytes"),
               Column("no_l2_bytes", "with no L2", "bytes"), Column("method", "method"), FROM)  # fmt: skip
    rows = tuple(
        (*who(p), *(marked(p.prediction.total("hbm", d), p.prediction) if known else None for d in ("read", "write")),
         p.hbm_shown, p.compulsory, p.no_l2, p.prediction.method, p.id)
        for p in points
    )  # fmt: skip

    def guides(gpu: Gpu, members: list[Point]) -> list[Guide]:
        least: dict[int, int] = {}
        for p in members:
            least[p.seq_len] = min(least.get(p.seq_len, p.compulsory), p.compulsory)
        grey_lines: list[Guide] = [("compulsory", f"{gpu.label}: inputs once, outputs once", "dot", list(least),
                               list(least.values()))]  # fmt: skip
        if not known:
            grey_lines += [("with no L2", f"{k}: with no L2", "dash", [p.seq_len for p in row], [p.no_l2 for p in row])
                      for _, k, row in series(members)]  # fmt: skip
        return grey_lines

    how = "of which only the bounds are asked for: compulsory (dotted) and with no L2 (dashed)."
    if known:
        by = "replay" if request.method is None else f"the method '{request.method}'"
        how = (f"by {by}, L2 {request.l2_start} at the start. The truth lies between the compulsory bytes (inputs "
               f"once, outputs once; dotted) and those with no L2.")  # fmt: skip
    return Figure(
        "traffic-hbm", "Traffic between L2 and HBM",
        f"Bytes that cross between L2 and device memory, read and written together, {how}"
        + HOLLOW * any(map(estimated, points)),
        Table(columns, rows),
        gpu_panels(request, points, "traffic-hbm", lambda p: p.hbm, "HBM bytes", bytes_text, guides, estimated),
        kernel_legend(request, ("compulsory", "dot"), *([] if known else [("with no L2", "dash")])),
        "seq_len", ("hbm_bytes",) if known else ("compulsory_bytes", "no_l2_bytes"),
    )  # fmt: skip


def memory_footprint(request: ReportRequest, points: Sequence[Point]) -> Figure:
    """Bytes of device memory that a call needs."""
    columns = (*WHO, Column("peak_bytes", "peak", "bytes"), Column("workspace_bytes", "of it workspace", "bytes"),
               Column("gpu_memory_bytes", "the GPU has", "bytes"), FROM)  # fmt: skip
    rows = tuple(
        (*who(p), p.prediction.memory_bytes["peak"], p.prediction.memory_bytes["workspace"],
         p.gpu.profile.memory_bytes, p.id)
        for p in points
    )  # fmt: skip

    def guides(gpu: Gpu, members: list[Point]) -> list[Guide]:
        size = gpu.profile.memory_bytes
        ends = [request.lengths[0], request.lengths[-1]]
        return [("memory of the GPU", f"{gpu.label} has {bytes_text(size)}", "dash", ends, [size] * 2)] if size else []

    return Figure(
        "memory", "Memory footprint",
        "Device memory that one call needs at its peak: inputs, outputs and what is made between launches. Above the "
        "dashed line it does not fit on the GPU; traffic and time there are what a larger memory would see.",
        Table(columns, rows),
        gpu_panels(request, points, "memory", lambda p: p.prediction.memory_bytes["peak"], "peak bytes", bytes_text,
                   guides),
        kernel_legend(request, ("memory of the GPU", "dash")), "seq_len", ("peak_bytes",),
    )  # fmt: skip


def call_time(request: ReportRequest, points: Sequence[Point]) -> Figure:
    """Predicted seconds of a call."""
    columns = (*WHO, Column("time_s", "time", "seconds"), Column("bound_by", "bound by"),
               Column("time_specification_s", "at specified rates", "seconds"), FROM)  # fmt: skip
    rows = tuple(
        (*who(p), p.time_s, p.prediction.time.bound_by, p.prediction.time_specification.total_s, p.id) for p in points
    )
    return Figure(
        "time", "Time",
        "Predicted time of one call: each launch takes as long as its slowest resource needs (HBM, L2, matrix units, "
        "exponentials, or the launch itself), at measured rates where the profile has them.",
        Table(columns, rows),
        gpu_panels(request, points, "time", lambda p: p.time_s, "time", seconds_text),
        kernel_legend(request), "seq_len", ("time_s", "bound_by"),
    )  # fmt: skip


def is_baseline(kernel: str, p: Point) -> bool:
    """Whether a kernel passes over an N x N matrix in memory."""
    return algorithm_of(p.prediction.kernel.algorithm).standard


def baseline(points: Sequence[Point]) -> str | None:
    """The first kernel of the report that is naive; None without one."""
    return next((p.kernel for p in points if is_baseline(p.kernel, p)), None)


def ratio(request: ReportRequest, points: Sequence[Point], level: str) -> Figure | None:
    """Bytes of the naive kernel over those of every other at one level; None where there is nothing to compare."""
    base = baseline(points)
    value: Value = (lambda p: p.l2) if level == "l2" else (lambda p: p.hbm)
    below = {(p.gpu.label, p.seq_len): p for p in points if p.kernel == base}
    others = [k for k in request.kernels if any(p.kernel == k and not is_baseline(k, p) for p in points)]
    pairs = [
        (p, b, above / under)
        for k in others
        for p in points
        if p.kernel == k and (b := below.get((p.gpu.label, p.seq_len)))
        and (above := value(b)) and (under := value(p))
    ]  # fmt: skip
    if base is None or not pairs:
        return None
    word = "SM<->L2" if level == "l2" else "HBM"
    columns = (*WHO, Column("baseline", "baseline"), Column(f"{level}_bytes", f"{word} bytes", "bytes"),
               Column(f"baseline_{level}_bytes", "baseline's", "bytes"), Column("ratio", f"{base} over it", "ratio"),
               FROM)  # fmt: skip
    cell = (lambda v, *ps: marked(v, *(p.prediction for p in ps))) if level == "hbm" else (lambda v, *ps: v)
    rows = tuple(
        (*who(p), base, cell(value(p), p), cell(value(b), b), cell(r, p, b), f"{p.id} {b.id}") for p, b, r in pairs
    )
    gpus = [g.label for g in request.gpus]
    x = axes.length_axis(request.lengths)
    y = axes.log_axis([r for *_, r in pairs], f"{base} / kernel", _times)
    panels = []
    for n, kernel in enumerate([k for k in others if any(p.kernel == k for p, *_ in pairs)], 1):
        data: list[dict[str, Any]] = []
        readings = []
        for g, label in enumerate(gpus):
            row = [(p, r) for p, _, r in pairs if p.kernel == kernel and p.gpu.label == label]
            if row:
                hover = [f"{label}, N = {p.seq_len:,}<br>{_times(r)}" for p, r in row]
                data.append(axes.line(label, [p.seq_len for p, _ in row], [r for _, r in row], hover, g))
                readings.append(f"{label} {_times(row[0][1])} to {_times(row[-1][1])}")
        alt = (
            f"{word} bytes of {base} over those of {kernel}, from the shortest N to the longest: {'; '.join(readings)}."
        )
        panels.append(Panel(f"ratio-{level}-{n}", f"{base} / {kernel}", alt, tuple(layered(data)), axes.layout(x, y)))
    return Figure(
        f"ratio-{level}", f"Naive over tiled: {word} bytes",
        f"{word} bytes of '{base}' over those of each other kernel for the same problem. Below 1x a kernel moves more "
        "than naive attention does.",
        Table(columns, rows), tuple(panels),
        tuple(Series(label, axes.colour(g), axes.symbol(g)[1]) for g, label in enumerate(gpus)
              if any(p.gpu.label == label for p, *_ in pairs)),
        "seq_len", ("ratio",),
    )  # fmt: skip


def _times(r: float) -> str:
    return f"{number_text(r)}x"

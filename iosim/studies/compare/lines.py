"""Figures against the sequence length that comparisons and reports share: traffic of each level, memory and time.

Bytes between SMs and L2 and bytes between L2 and HBM never share a plot of these; overview.py draws both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from iosim.base.schema import read_toml
from iosim.base.units import bytes_text, seconds_text
from iosim.base.words import WAYS
from iosim.prediction.result import mark_of, marked
from iosim.show import axes
from iosim.show.axes import hollow, layered
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import COMMANDS, Cell, Column, Table
from iosim.studies.compare.points import (
    CaseGrid,
    Gpu,
    Point,
    by_gpu,
    least_bytes,
    series,
)

Value = Callable[[Point], float | None]
Guide = tuple[str, str, str, list[int], list[float]]
Dot = tuple[float, float, str]
"""Where a point stands, and its hover text."""

WHO = (
    Column("gpu", "GPU"),
    Column("kernel"),
    Column("seq_q", "N", kind="count"),
)
FROM = Column("commands", "command (listed at the end)", COMMANDS)


@cache
def _texts() -> Mapping[str, Mapping[str, Any]]:
    return read_toml(Path(__file__).with_name("figures.toml"))


def drawn(
    kind: str,
    columns: Iterable[Column],
    rows: Iterable[tuple[Cell, ...]],
    panels: Iterable[Panel],
    legend: Sequence[Series],
    *,
    id: str = "",
    without: Sequence[str] = (),
    words: Mapping[str, object] = MappingProxyType({}),
    **more: Any,
) -> Figure:
    """The figure of a kind of figures.toml: `columns` are its table's, beside those that say whose row it is; `words` what
    its texts leave open, `without` columns that it has not, `more` further fields of `Figure`."""
    text = _texts()[kind]
    title, caption = (text[name].format(**words) for name in ("title", "caption"))
    table = Table((*WHO, *columns, FROM), tuple(rows)).without(*without)
    fields = {"pivot": text.get("pivot", "seq_q"), "shows": tuple(text["shows"])} | more
    return Figure(id or kind, title, caption, table, tuple(panels), tuple(legend), **fields)


def who(p: Point) -> tuple[Cell, ...]:
    return p.gpu.label, p.kernel, p.seq_len


def kernel_legend(request: CaseGrid, *guides: tuple[str, str]) -> tuple[Series, ...]:
    named = [Series(k, axes.colour(n), axes.symbol(n)[1]) for n, k in enumerate(request.kernels)]
    return (*named, *(Series(name, axes.NEUTRAL, dash=dash) for name, dash in guides))


def kernel_lines(
    request: CaseGrid, points: Iterable[Point], place: Callable[[Point], Dot | None]
) -> Iterator[tuple[str, list[Point], list[Dot], dict[str, Any]]]:
    """(kernel, its points, their places, the line through them) of each kernel that `place` puts somewhere."""
    for kernel, row in series(points).items():
        placed = [(p, dot) for p in row if (dot := place(p)) is not None]
        if placed:
            dots = [dot for _, dot in placed]
            yield (
                kernel,
                [p for p, _ in placed],
                dots,
                axes.through(kernel, dots, request.kernels.index(kernel)),
            )


def gpu_panels(
    request: CaseGrid,
    points: Sequence[Point],
    figure_id: str,
    value: Value,
    title: str,
    text: Callable[[float], str],
    guides: Callable[[Gpu, list[Point]], list[Guide]] = lambda gpu, points: [],
    estimate: Callable[[Point], bool] = lambda p: False,
) -> tuple[Panel, ...]:
    """One panel per GPU, all with the same axes: `value` against N, a line per kernel; its marks are hollow where a value
    is an `estimate`."""
    points_of = by_gpu(points)
    guides_of = {label: guides(members[0].gpu, members) for label, members in points_of.items()}
    # Axes span the points and the guides of all GPUs, so that panels compare.
    values = [v for p in points if (v := value(p)) is not None]
    values += [v for of_gpu in guides_of.values() for *_, ys in of_gpu for v in ys]
    x = axes.length_axis(request.lengths)
    y = axes.log_axis(values, title, text)

    def dot(p: Point) -> Dot | None:
        """Where a point stands and what a pointer over it reads; None where it has no value."""
        v = value(p)
        if v is None:
            return None
        return p.seq_len, v, f"{p.kernel}, N = {p.seq_len:,}<br>{text(v)} ({p.id})"

    panels = []
    for n, (label, members) in enumerate(points_of.items(), 1):
        grey = [
            axes.guide(name, ns, ys, hover, dash) for name, hover, dash, ns, ys in guides_of[label]
        ]
        marks, readings = [], []
        for kernel, placed, dots, line in kernel_lines(request, members, dot):
            marks.append(hollow(line, [estimate(p) for p in placed]))
            # What someone who sees no figure hears: the ends of each line.
            ends = (f"{text(v)} at N = {at:,}" for at, v, _ in (dots[0], dots[-1]))
            readings.append(f"{kernel} {' to '.join(ends)}")
        panels.append(
            Panel(
                f"{figure_id}-{n}",
                label,
                f"{title}, {label}: {'; '.join(readings)}.",
                (*grey, *layered(marks)),
                axes.layout(x, y),
            )
        )
    return tuple(panels)


HOLLOW = " Hollow marks are estimates."


def estimated(p: Point) -> bool:
    """True where its HBM bytes are an estimate, not a replay of the whole."""
    return bool(mark_of(p.prediction.method))


def l2_traffic(request: CaseGrid, points: Sequence[Point]) -> Figure:
    ways_of_point = ((p, (p.prediction.total("l2", way) for way in WAYS)) for p in points)
    rows = (
        (*who(p), *ways, p.l2, str(p.prediction.kernel.tile), p.id) for p, ways in ways_of_point
    )
    panels = gpu_panels(request, points, "traffic-l2", lambda p: p.l2, "SM<->L2 bytes", bytes_text)
    columns = (
        Column("l2_read_bytes", "read"),
        Column("l2_write_bytes", "written"),
        Column("l2_bytes", "SM<->L2 bytes"),
        Column("tile"),
    )
    return drawn("traffic-l2", columns, rows, panels, kernel_legend(request))


def hbm_traffic(request: CaseGrid, points: Sequence[Point]) -> Figure:
    """Bytes between L2 and HBM: the estimate, and the bounds it lies between."""
    known = request.method != "bounds"
    rows = []
    for p in points:
        ways = (
            marked(p.prediction.total("hbm", way), p.prediction) if known else None for way in WAYS
        )
        rows.append((*who(p), *ways, p.hbm_shown, p.compulsory, p.no_l2, p.prediction.method, p.id))

    def guides(gpu: Gpu, members: list[Point]) -> list[Guide]:
        least, hover = least_bytes(members), f"{gpu.label}: inputs once, outputs once"
        grey_lines: list[Guide] = [("compulsory", hover, "dot", list(least), list(least.values()))]
        # The upper bound only where HBM bytes are not found: beside replayed bytes it would stretch the axis.
        for k, row in () if known else series(members).items():
            grey_lines.append(
                (
                    "with no L2",
                    f"{k}: with no L2",
                    "dash",
                    [p.seq_len for p in row],
                    [p.no_l2 for p in row],
                )
            )
        return grey_lines

    how = "of which only the bounds are asked for: compulsory (dotted) and with no L2 (dashed)."
    if known:
        by = "replay" if request.method is None else f"the method '{request.method}'"
        more = "The truth lies between the compulsory bytes (inputs once, outputs once; dotted) and those with no L2."
        how = f"by {by}, L2 {request.l2_start} at the start. {more}"
    panels = gpu_panels(
        request, points, "traffic-hbm", lambda p: p.hbm, "HBM bytes", bytes_text, guides, estimated
    )
    legend = kernel_legend(
        request, ("compulsory", "dot"), *([] if known else [("with no L2", "dash")])
    )
    words = {"how": how, "hollow": HOLLOW if any(map(estimated, points)) else ""}
    bounds: dict[str, Any] = {} if known else {"shows": ("compulsory_bytes", "no_l2_bytes")}
    columns = (
        Column("hbm_read_bytes", "read"),
        Column("hbm_write_bytes", "written"),
        Column("hbm_bytes", "HBM bytes"),
        Column("compulsory_bytes", "compulsory"),
        Column("no_l2_bytes", "with no L2"),
        Column("method"),
    )
    return drawn("traffic-hbm", columns, rows, panels, legend, words=words, **bounds)


def memory_footprint(request: CaseGrid, points: Sequence[Point]) -> Figure:
    sizes = (
        (p, (p.prediction.memory_bytes[name] for name in ("peak", "workspace"))) for p in points
    )
    rows = ((*who(p), *of_call, p.gpu.profile.usable_memory_bytes, p.id) for p, of_call in sizes)

    def guides(gpu: Gpu, members: list[Point]) -> list[Guide]:
        size = gpu.profile.usable_memory_bytes
        ends = [request.lengths[0], request.lengths[-1]]
        return (
            [("memory of the GPU", f"{gpu.label} has {bytes_text(size)}", "dash", ends, [size] * 2)]
            if size
            else []
        )

    panels = gpu_panels(
        request,
        points,
        "memory",
        lambda p: p.prediction.memory_bytes["peak"],
        "peak bytes",
        bytes_text,
        guides,
    )
    columns = (
        Column("peak_bytes", "peak"),
        Column("workspace_bytes", "of it workspace"),
        Column("gpu_memory_bytes", "the GPU has"),
    )
    return drawn(
        "memory", columns, rows, panels, kernel_legend(request, ("memory of the GPU", "dash"))
    )


def call_time(request: CaseGrid, points: Sequence[Point]) -> Figure:
    rows = (
        (
            *who(p),
            p.time_s,
            p.prediction.time.bound_by,
            p.prediction.time_specification.total_s,
            p.id,
        )
        for p in points
    )
    panels = gpu_panels(request, points, "time", lambda p: p.time_s, "time", seconds_text)
    columns = (
        Column("time_s", "time"),
        Column("bound_by", "bound by"),
        Column("time_specification_s", "at specified rates"),
    )
    return drawn("time", columns, rows, panels, kernel_legend(request))

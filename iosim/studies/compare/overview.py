"""The chart that carries a report: bytes of both levels, naive against tiled, beside the bytes that no kernel avoids.

Over several lengths it has a line per kernel and level; at one length, a row per kernel with a mark per level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.units import bytes_text
from iosim.show import axes
from iosim.show.axes import End, at_ends, hollow
from iosim.show.page import Figure, Panel, Series
from iosim.show.tables import MOST_PIVOTED, Cell, Column, Table, grouped, spread_out
from iosim.studies.compare.lines import HOLLOW, drawn, estimated, who
from iosim.studies.compare.points import CaseGrid, Point, baseline, by_gpu, least_bytes, series

LEVELS = {"HBM": ("hbm", "solid"), "SM<->L2": ("l2", "dash")}
LEVEL_COLOURS = {"HBM": axes.colour(1), "SM<->L2": axes.colour(0)}
MARKS = tuple(
    Series(name, colour, "■" if name == "HBM" else "●") for name, colour in LEVEL_COLOURS.items()
)
BAND = "rgba(139,143,152,0.55)"
"""Grey that lets the lines on it stand out, on white and on dark ground."""
COMPULSORY = "compulsory"
LINES = (
    *(Series(name, axes.NEUTRAL, dash=dash) for name, (_, dash) in LEVELS.items()),
    Series(COMPULSORY, BAND, "▬"),
)
ROOM = 0.6
"""Share of the range of bytes that is added on each side, for the words beside the marks."""
LINES_REM = 21.0
MOST_DRAWN = 5
"""Kernels up to which a report's lines show all of them."""
MOST_PROBLEMS = 4
"""Lengths up to which a comparison has a panel for each."""
ROW_REM, AXIS_REM = 2.4, 4.2


def overview(
    request: CaseGrid,
    points: Sequence[Point],
    every: Mapping[str, Sequence[str]] | None = None,
) -> Figure:
    """The figure; with `every`, the kernels asked for by GPU, it has all of them, a panel per problem where those are
    few."""
    lines = len(request.lengths) > (MOST_PROBLEMS if every else 1)
    # Of many kernels a report's lines show two per GPU: more would cross.
    few = lines and not every and len({p.kernel for p in points}) > MOST_DRAWN
    drawn_points = [
        p for members in by_gpu(points).values() for p in (_fastest(members) if few else members)
    ]
    values = [float(v) for p in drawn_points for v in (p.l2, p.hbm, p.compulsory) if v]
    together = by_gpu(drawn_points)
    if len(request.lengths) > 1 and not lines:
        together = grouped(
            sorted(drawn_points, key=lambda p: p.seq_len),
            lambda p: f"N = {p.seq_len:,}, {p.gpu.label}",
        )
    panels = []
    for n, (title, members) in enumerate(together.items(), 1):
        kernels = (every or {}).get(members[0].gpu.label) or [p.kernel for p in members]
        where = (f"overview-{n}", title, members, values)
        panels.append(_lines(request, *where) if lines else _rows(kernels, *where))
    words = _overview_words(drawn_points, few, lines, points)
    rows = ((*who(p), p.smem, p.l2, p.hbm_shown, p.compulsory, p.id) for p in drawn_points)
    without = () if any(p.smem for p in drawn_points) else ("smem_bytes",)
    across, short = (
        2 if lines or len(by_gpu(drawn_points)) > 1 else 3,
        _short(request, drawn_points) if lines else None,
    )
    legend = LINES if lines else MARKS
    columns = (
        Column("smem_bytes", "shared memory"),
        Column("l2_bytes", "SM<->L2"),
        Column("hbm_bytes", "HBM"),
        Column("compulsory_bytes", "compulsory"),
    )
    return drawn(
        "overview",
        columns,
        rows,
        panels,
        legend,
        without=without,
        words=words,
        most_across=across,
        short=short,
    )


def _overview_words(
    drawn_points: list[Point], few: bool, lines: bool, points: Sequence[Point]
) -> dict[str, str]:
    """What the texts of the figure leave open."""
    base = baseline(points)
    which = (
        f"of '{base}' and of the fastest tiled kernel of each GPU"
        if base and few
        else "of each kernel"
    )
    words = {
        "against": " against the sequence length" if lines else "",
        "hollow": HOLLOW if any(map(estimated, drawn_points)) else "",
    }
    words |= {"which": which, "least": "the grey band" if lines else "the dotted line"}
    return words


def _short(request: CaseGrid, points: Sequence[Point]) -> Table:
    lengths = spread_out(list(request.lengths), MOST_PIVOTED)
    rows: list[tuple[Cell, ...]] = []
    for gpu, members in by_gpu(points).items():
        for kernel, row in series(members).items():
            at = {p.seq_len: p for p in row}
            rows += [
                (
                    gpu,
                    f"{kernel} {level}",
                    *(getattr(at[n], cell) if n in at else None for n in lengths),
                )
                for level, cell in (("SM<->L2", "l2"), ("HBM", "hbm_shown"))
            ]
        least = least_bytes(members)
        rows.append((gpu, COMPULSORY, *(least.get(n) for n in lengths)))
    columns = (Column(f"n_{n}", f"N = {n:,}", "bytes") for n in lengths)
    return Table((Column("gpu", "GPU"), Column("bytes"), *columns), tuple(rows))


def _fastest(points: Sequence[Point]) -> list[Point]:
    """The kernels that stand for one GPU: the naive one and the fastest other, or the two fastest."""
    times = {
        kernel: row[-1].time_s
        for kernel, row in series(points).items()
        if not any(p.naive for p in row)
    }
    base = baseline(points)
    kernels = {base, *sorted(times, key=times.__getitem__)[: 1 if base else 2]}
    return [p for p in points if p.kernel in kernels]


def _lines(
    request: CaseGrid,
    panel_id: str,
    gpu: str,
    points: Sequence[Point],
    values: Sequence[float],
) -> Panel:
    """A panel of several lengths: bytes against N, two lines per kernel (HBM and SM<->L2) over a band of the compulsory
    bytes, each with its name at its end."""
    x = axes.length_axis(request.lengths)
    y = axes.log_axis(values, "", bytes_text)
    least = least_bytes(points)
    band = axes.guide(
        COMPULSORY,
        list(least),
        list(least.values()),
        "compulsory: inputs once, outputs once",
        "solid",
    )
    data: list[dict[str, Any]] = [band | {"line": {"color": BAND, "width": 9}}]
    ends, readings = [], []
    for kernel, row in series(points).items():
        n = request.kernels.index(kernel)
        for level, (key, dash) in LEVELS.items():
            drawn = [(p, v) for p in row if (v := getattr(p, key))]
            if not drawn:
                continue
            name = f"{kernel} {level}"
            data.append(_level_line(name, key, dash, drawn, n))
            first, last = drawn[0][1], drawn[-1][1]
            ends.append(End(name, last, axes.colour(n), axes.symbol(n)[1]))
            readings.append(f"{name} {bytes_text(first)} to {bytes_text(last)}")
    most_compulsory = list(least.values())[-1]
    ends.append(End(COMPULSORY, most_compulsory, BAND, "▬"))
    alt = (
        f"Bytes against N on {gpu}, shortest to longest: {'; '.join(readings)}; "
        f"compulsory up to {bytes_text(most_compulsory)}."
    )
    return Panel(panel_id, gpu, alt, tuple(data), axes.layout(x, y, **at_ends(ends, y)), LINES_REM)


def _level_line(
    name: str, key: str, dash: str, drawn: Sequence[tuple[Point, Any]], number: int
) -> dict[str, Any]:
    """The line of one level of a kernel (the kernel's `number` gives its colour); estimates have hollow marks."""
    hover = [f"{name}, N = {p.seq_len:,}<br>{bytes_text(v)} ({p.id})" for p, v in drawn]
    line = axes.line(name, [p.seq_len for p, _ in drawn], [v for _, v in drawn], hover, number)
    line = hollow(line, [key == "hbm" and estimated(p) for p, _ in drawn])
    return line | {"line": line["line"] | {"dash": dash, "width": 2.2}}


def _rows(
    kernels: Sequence[str],
    panel_id: str,
    gpu: str,
    points: Sequence[Point],
    values: Sequence[float],
) -> Panel:
    """A panel of one length: a row per kernel, with a mark for its HBM bytes and one for its SM<->L2 bytes, and an
    upright line at the compulsory bytes."""
    low, high = axes.log_range(values)
    # Room on both sides for the numbers beside the marks.
    room = max(0.3, ROOM * (high - low))
    x = axes.log_axis([10 ** (low - room), 10 ** (high + room)], "", bytes_text)
    x |= {"range": [low - room, high + room], "tickangle": 0}
    y = {**axes.category_axis(kernels), "autorange": "reversed"}
    data = [_between_levels(p) for p in points if p.hbm]
    data += [_level_marks(key, level, points) for level, (key, _) in LEVELS.items()]
    least = min(p.compulsory for p in points)
    # A row for a kernel that cannot run, which says so in its place.
    for kernel in {*kernels} - {p.kernel for p in points}:
        data.append(
            axes.guide("between", [least], [kernel], "cannot run", "dot") | {"mode": "text"}
        )
    line = axes.upright(least, "dot", layer="below")
    word = axes.note(
        f"compulsory {bytes_text(least)}",
        math.log10(least),
        1,
        xref="x",
        yref="paper",
        yanchor="bottom",
    )
    readings = [
        f"{p.kernel} {bytes_text(p.l2)} SM<->L2"
        + (f" and {bytes_text(p.hbm)} HBM" if p.hbm else "")
        for p in points
    ]
    alt = f"Bytes on {gpu}: {'; '.join(readings)}; compulsory {bytes_text(least)}."
    layout = axes.layout(
        x, y, shapes=[line], annotations=[word], margin={"l": 8, "r": 12, "t": 22, "b": 8}
    )
    return Panel(panel_id, gpu, alt, tuple(data), layout, AXIS_REM + ROW_REM * len(kernels))


def _between_levels(p: Point) -> dict[str, Any]:
    """A line from a kernel's SM<->L2 bytes to its HBM bytes."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "between",
        "x": [p.l2, p.hbm],
        "y": [p.kernel, p.kernel],
        "hoverinfo": "skip",
        "line": {"color": BAND, "width": 3},
    }


def _level_marks(key: str, level: str, points: Sequence[Point]) -> dict[str, Any]:
    """The marks of one level, each with its number beside it."""
    drawn = [(p, v) for p in points if (v := getattr(p, key))]
    # Of a kernel's two marks the larger has its number on the right, the smaller on the left.
    right = [
        level == "SM<->L2" if p.hbm is None or p.l2 >= p.hbm else level == "HBM" for p, _ in drawn
    ]
    mark = {
        "type": "scatter",
        "mode": "markers+text",
        "name": level,
        "x": [v for _, v in drawn],
        "y": [p.kernel for p, _ in drawn],
        "text": [f" {bytes_text(v)} " for _, v in drawn],
        "textposition": ["middle right" if r else "middle left" for r in right],
        "cliponaxis": False,
        "hovertext": [f"{p.kernel} {level}<br>{bytes_text(v)} ({p.id})" for p, v in drawn],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {
            "color": LEVEL_COLOURS[level],
            "size": 11,
            "symbol": "square" if key == "hbm" else "circle",
        },
    }
    return hollow(mark, [key == "hbm" and estimated(p) for p, _ in drawn])

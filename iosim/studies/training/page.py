"""Memory over time and the map of what fits, as a page."""

from __future__ import annotations

from typing import Any

from iosim.base.units import bytes_text, length_text, seconds_text
from iosim.show import axes
from iosim.show.page import Page, Panel, Section
from iosim.show.tables import Column, Table
from iosim.studies.training.answer import answer, frontier_answer
from iosim.studies.training.frontier import Frontier
from iosim.studies.training.graph import Kind
from iosim.studies.training.prediction import TrainingPrediction
from iosim.studies.training.text import memory_table

GB = 1e9
MAX_POINTS = 1500
MORE_COLOURS = ("#1d3f6e", "#8f4a12", "#175c3f", "#5f2d6b", "#7d2030", "#c9b458")
CAPACITY_SHOWN_FROM = 0.3
"""Share of the GPU's memory from which its line stands in the plot; below, it would flatten the rest."""


def as_page(prediction: TrainingPrediction, frontier: Frontier | None, command: str) -> Page:
    """The whole page. `command` is the command line that makes it again."""
    m, s = prediction.model, prediction.setup
    title = f"Training memory on {prediction.profile.name}"
    subject = (f"{m.layers} layers of width {m.width}, {m.heads} heads, "
               f"{prediction.graph.parameter_elements / 1e6:,.1f} M parameters; batch {s.batch}, {s.seq_len:,} tokens, "
               f"{s.attention} attention, {s.precision}, {s.optimizer}, recompute {s.recompute}.")  # fmt: skip
    caption = ("Bytes of tensors that live at once, by what they hold, through forward, backward and the optimizer's "
               "step. A dashed line is the GPU's memory.")  # fmt: skip
    sections = [
        Section("memory", "Memory over time", (caption,), panels=(memory_panel(prediction),),
                table=memory_table(prediction), wide=True),
    ]  # fmt: skip
    if frontier is not None:
        caption = "Peak memory by sequence length. Cells beyond the GPU's memory are marked."
        sections.append(
            Section(
                "frontier",
                "What fits",
                (caption,),
                panels=(frontier_panel(frontier),),
                table=frontier_table(frontier),
                wide=True,
            )
        )
    said = answer(prediction) if frontier is None else frontier_answer(frontier, prediction.profile.name, s.attention)
    return Page(title, subject, tuple(sections), command=command, answer=(said,))


def memory_panel(prediction: TrainingPrediction) -> Panel:
    """A stacked area a kind; long steps are thinned, each bin showing the event with the most bytes."""
    curve = prediction.curve()
    step = -(-len(curve) // MAX_POINTS)
    bins = [max(curve[n : n + step], key=lambda e: sum(e[2].values())) for n in range(0, len(curve), step)]
    unit = 1e3 if prediction.time else 1.0
    xs = [round(t * unit, 6) for t, _, _ in bins]
    kinds = [k for k in Kind if any(by.get(k) for _, _, by in bins)]
    colours = (*axes.COLOURS, *MORE_COLOURS)
    data: list[dict[str, Any]] = []
    for n, kind in enumerate(kinds):
        ys = [by.get(kind, 0) / GB for _, _, by in bins]
        hover = [f"{kind}: {bytes_text(by.get(kind, 0))}, {phase}" for _, phase, by in bins]
        data.append({
            "type": "scatter", "mode": "lines", "name": str(kind), "x": xs, "y": ys, "text": hover,
            "hovertemplate": "%{text}<extra></extra>", "stackgroup": "bytes",
            "line": {"color": colours[n % len(colours)], "width": 0.5, "shape": "vh"},
        })  # fmt: skip
    capacity, top = prediction.capacity_bytes / GB, prediction.peak_bytes / GB
    if top > CAPACITY_SHOWN_FROM * capacity:
        data.append(axes.guide("memory", [xs[0], xs[-1]], [capacity] * 2, f"memory: {capacity:.4g} GB", "dash"))
    layout = axes.layout(
        axes.axis("time (ms)" if prediction.time else "event"), axes.axis("GB", rangemode="tozero"),
        showlegend=True, legend={"traceorder": "reversed"},
    )  # fmt: skip
    peak = prediction.timeline.peak
    alt = (f"Peak {bytes_text(prediction.peak_bytes)} in {peak.phase} at {peak.name}; the GPU has "
           f"{bytes_text(prediction.capacity_bytes)}."
           + (f" A step takes {seconds_text(prediction.time.total_s)}." if prediction.time else ""))  # fmt: skip
    return Panel("memory-0", prediction.profile.name, alt, tuple(data), layout)


def frontier_table(frontier: Frontier) -> Table:
    """Peak bytes a length, and the longest sequence that fits, a row a value of the axis."""
    columns = (Column(frontier.axis, frontier.axis, "count"),
               *(Column(f"peak_bytes_{n}", f"{n:,} tokens", "bytes") for n in frontier.seq_lens),
               Column("longest_seq_len", "longest that fits", "count"))  # fmt: skip
    rows = zip(frontier.values, frontier.peak_bytes, frontier.longest, strict=True)
    return Table(columns, tuple((v, *peaks, longest) for v, peaks, longest in rows))


def frontier_panel(frontier: Frontier) -> Panel:
    """A heat map of peak bytes over the GPU's memory; a cross on cells that do not fit."""
    share = [[p / frontier.capacity_bytes for p in row] for row in frontier.peak_bytes]
    text = [
        [f"{frontier.axis} {v:,}, {n:,} tokens: {bytes_text(p)}" for n, p in zip(frontier.seq_lens, row, strict=True)]
        for v, row in zip(frontier.values, frontier.peak_bytes, strict=True)
    ]
    xs, ys = [length_text(n) for n in frontier.seq_lens], [f"{v:,}" for v in frontier.values]
    heat = {
        "type": "heatmap", "x": xs, "y": ys, "z": [[min(2.0, s) for s in row] for row in share], "text": text,
        "hovertemplate": "%{text}<extra></extra>", "zmin": 0, "zmax": 2, "xgap": 1, "ygap": 1,
        "colorscale": [[0, "#2f9a6c"], [0.5, "#f2e6c9"], [0.5001, "#e9a46a"], [1, "#cf4357"]],
        "colorbar": {"title": {"text": "of memory"}, "tickvals": [0, 1, 2], "ticktext": ["0", "1", "2 or more"]},
    }  # fmt: skip
    outside = [(xs[c], ys[r]) for r in range(len(ys)) for c in range(len(xs)) if not frontier.fits(r, c)]
    marks = {
        "type": "scatter", "mode": "markers", "x": [x for x, _ in outside], "y": [y for _, y in outside],
        "hoverinfo": "skip", "name": "does not fit", "marker": {"symbol": "x", "color": "#5a2a2a", "size": 8},
    }  # fmt: skip
    layout = axes.layout(axes.axis("sequence length N (tokens)", type="category"),
                         axes.axis(frontier.axis, type="category"))  # fmt: skip
    fitting = len(xs) * len(ys) - len(outside)
    alt = f"{fitting} of {len(xs) * len(ys)} combinations fit in {bytes_text(frontier.capacity_bytes)}."
    return Panel("frontier-0", f"{frontier.axis} x tokens", alt, (heat, marks), layout)

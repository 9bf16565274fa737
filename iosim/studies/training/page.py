"""Memory over time and the map of what fits, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iosim.base.units import bytes_text, length_text, seconds_text, some
from iosim.show import axes
from iosim.show.page import Page, Panel, Section, Series
from iosim.show.tables import Column, Table
from iosim.studies.training.answer import answer, frontier_answer
from iosim.studies.training.frontier import Frontier
from iosim.studies.training.graph import Kind
from iosim.studies.training.prediction import TrainingPrediction
from iosim.studies.training.text import memory_table

GB = 1e9
MAX_POINTS = 1500
LEAST_SHOWN = 0.01
"""Share of the peak below which a kind of tensors has no area of its own."""
NARROWEST = 0.12
"""Share of the step below which a phase has no name in the plot."""
MOST_WORDS = 9
"""Columns of the map up to which its cells hold numbers."""
MEMORY_REM = 24.0
MORE_COLOURS = ("#1d3f6e", "#8f4a12", "#175c3f", "#5f2d6b", "#7d2030", "#c9b458")
CAPACITY_SHOWN_FROM = 0.3
"""Share of the GPU's memory from which its line stands in the plot; below, it would flatten the rest."""


def as_page(prediction: TrainingPrediction, frontier: Frontier | None, command: str) -> Page:
    """The whole page. `command` is the command line that makes it again."""
    m, s = prediction.model, prediction.setup
    gpu = prediction.profile.name
    title = (f"How much memory does a training step take on {gpu}?" if frontier is None else
             f"Which models train on {gpu}?")  # fmt: skip
    subject = (f"{some(m.layers, 'layer')} of width {m.width}, {some(m.heads, 'head')}, "
               f"{prediction.graph.parameter_elements / 1e6:,.1f} M parameters; batch {s.tokens}, "
               f"{s.attention} attention, {s.precision}, {s.optimizer}, recompute {s.recompute}.")  # fmt: skip
    fits = []
    if frontier is not None:
        caption = (f"Peak memory by {frontier.axis} and sequence length; colours show it as a share of the GPU's "
                   f"{bytes_text(frontier.capacity_bytes)}, a cross what does not fit.")  # fmt: skip
        fits = [Section("frontier", "What fits", (caption,), panels=(frontier_panel(frontier),),
                        table=frontier_table(frontier))]  # fmt: skip
    top = prediction.peak_bytes
    size = bytes_text(prediction.capacity_bytes)
    memory = (f"The dashed line is the GPU's memory, {size}." if _shows_capacity(prediction) else
              f"The GPU's memory, {size}, lies far above: the peak takes {top / prediction.capacity_bytes:.0%} of "
              "it.")  # fmt: skip
    caption = f"Bytes of tensors that live at once, by what they hold. {memory}"
    panel, legend = memory_panel(prediction)
    sections = (
        *fits,
        Section("memory", "Memory over one step", (caption,), legend, (panel,), table=memory_table(prediction),
                folded=frontier is not None),
    )  # fmt: skip
    said = answer(prediction) if frontier is None else frontier_answer(frontier, gpu, s.attention)
    return Page(title, subject, sections, command=command, answer=(said,))


def _shows_capacity(prediction: TrainingPrediction) -> bool:
    return prediction.peak_bytes > CAPACITY_SHOWN_FROM * prediction.capacity_bytes


def memory_panel(prediction: TrainingPrediction) -> tuple[Panel, tuple[Series, ...]]:
    """A stacked area a kind, and their legend; long steps are thinned, each bin showing the event with the most bytes.
    Kinds that never take a hundredth of the peak are one."""
    curve = prediction.curve()
    step = -(-len(curve) // MAX_POINTS)
    bins = [max(curve[n : n + step], key=lambda e: sum(e[2].values())) for n in range(0, len(curve), step)]
    unit = 1e3 if prediction.time else 1.0
    xs = [round(t * unit, 6) for t, _, _ in bins]
    large = [k for k in Kind if max(by.get(k, 0) for _, _, by in curve) >= LEAST_SHOWN * prediction.peak_bytes]
    small = [k for k in Kind if k not in large and any(by.get(k) for _, _, by in bins)]
    parts = [(str(k), [k]) for k in large] + ([("all others", small)] if small else [])
    colours = (*axes.COLOURS, *MORE_COLOURS)
    data: list[dict[str, Any]] = []
    for n, (name, kinds) in enumerate(parts):
        amounts = [sum(by.get(k, 0) for k in kinds) for _, _, by in bins]
        hover = [f"{name}: {bytes_text(v)}, {phase}" for v, (_, phase, _) in zip(amounts, bins, strict=True)]
        data.append({
            "type": "scatter", "mode": "lines", "name": name, "x": xs, "y": [v / GB for v in amounts], "text": hover,
            "hovertemplate": "%{text}<extra></extra>", "stackgroup": "bytes",
            "fillcolor": colours[n % len(colours)],
            "line": {"color": colours[n % len(colours)], "width": 0, "shape": "vh"},
        })  # fmt: skip
    capacity, top = prediction.capacity_bytes / GB, prediction.peak_bytes / GB
    words: list[dict[str, Any]] = []
    if _shows_capacity(prediction):
        data.append(axes.guide("memory", [xs[0], xs[-1]], [capacity] * 2, f"memory: {capacity:.4g} GB", "dash"))
        words.append({"xref": "paper", "x": 1, "xanchor": "right", "y": capacity, "yanchor": "bottom",
                      "showarrow": False, "text": f"memory of the GPU, {capacity:.4g} GB",
                      "font": {"size": 11}})  # fmt: skip
        top = max(top, capacity)
    borders, names = _phases(bins, xs)
    layout = axes.layout(
        axes.axis("time (ms)" if prediction.time else "event", range=[xs[0], xs[-1]]),
        axes.axis("GB", range=[0, 1.1 * top]), annotations=[*words, *names], shapes=borders,
        margin={"l": 8, "r": 12, "t": 24, "b": 8},
    )  # fmt: skip
    peak = prediction.timeline.peak
    alt = (f"Peak {bytes_text(prediction.peak_bytes)} in {peak.phase} at {peak.name}; the GPU has "
           f"{bytes_text(prediction.capacity_bytes)}."
           + (f" A step takes {seconds_text(prediction.time.total_s)}." if prediction.time else ""))  # fmt: skip
    legend = tuple(Series(trace["name"], trace["line"]["color"], "■") for trace in data if "stackgroup" in trace)
    return Panel("memory-0", prediction.profile.name, alt, tuple(data), layout, MEMORY_REM), legend


def _phases(
    bins: Sequence[tuple[float, str, dict[Kind, int]]], xs: Sequence[float]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines where a phase begins, and the names of those that are wide enough, above the plot."""
    begins: dict[str, float] = {}
    before = xs[0]
    for (_, phase, _), x in zip(bins, xs, strict=True):
        begins.setdefault(phase, before)
        before = x
    ends = [*list(begins.values())[1:], xs[-1]]
    lines = [
        {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": axes.NEUTRAL, "width": 1, "dash": "dot"}}
        for x in list(begins.values())[1:]
    ]  # fmt: skip
    names = [
        {"x": (first + last) / 2, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False, "text": phase,
         "font": {"size": 11}}
        for (phase, first), last in zip(begins.items(), ends, strict=True)
        if last - first >= NARROWEST * (xs[-1] - xs[0])
    ]  # fmt: skip
    return lines, names


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
        [
            f"{frontier.axis} {v:,}, {some(n, 'token')}: {bytes_text(p)}"
            for n, p in zip(frontier.seq_lens, row, strict=True)
        ]
        for v, row in zip(frontier.values, frontier.peak_bytes, strict=True)
    ]
    xs, ys = [length_text(n) for n in frontier.seq_lens], [f"{v:,}" for v in frontier.values]
    cells = [[f"{p / GB:.3g}" + " ✕" * (not frontier.fits(r, c)) for c, p in enumerate(row)]
             for r, row in enumerate(frontier.peak_bytes)]  # fmt: skip
    in_words = len(xs) <= MOST_WORDS and len(ys) <= 2 * MOST_WORDS
    heat = {
        "type": "heatmap", "x": xs, "y": ys, "z": [[min(2.0, s) for s in row] for row in share], "text": cells,
        "hovertext": text, "hovertemplate": "%{hovertext}<extra></extra>", "zmin": 0, "zmax": 2, "xgap": 1, "ygap": 1,
        **({"texttemplate": "%{text}", "textfont": {"size": 11}} if in_words else {}),
        "colorscale": [[0, "#2f9a6c"], [0.5, "#f2e6c9"], [0.5001, "#e9a46a"], [1, "#cf4357"]],
        "colorbar": {"tickvals": [0, 1, 2], "ticktext": ["0 %", "100 %", "200 %"], "thickness": 10},
    }  # fmt: skip
    outside = [(xs[c], ys[r]) for r in range(len(ys)) for c in range(len(xs)) if not frontier.fits(r, c)]
    marks = {
        "type": "scatter", "mode": "markers", "x": [x for x, _ in outside], "y": [y for _, y in outside],
        "hoverinfo": "skip", "name": "does not fit",
        "marker": {"symbol": "x-thin", "size": 26, "line": {"color": "#5a2a2a", "width": 1}},
    }  # fmt: skip
    layout = axes.layout(axes.axis("sequence length N (tokens)", type="category"),
                         axes.axis(frontier.axis, type="category"))  # fmt: skip
    fitting = len(xs) * len(ys) - len(outside)
    alt = f"{fitting} of {len(xs) * len(ys)} combinations fit in {bytes_text(frontier.capacity_bytes)}."
    title = f"Peak memory in GB, {frontier.axis} against tokens" if in_words else f"{frontier.axis} against tokens"
    return Panel(
        "frontier-0",
        title,
        alt,
        (heat,) if in_words else (heat, marks),
        layout,
        min(26.0, max(12.0, 5.0 + 2.2 * len(ys))),
    )

"""Axes, colours, marks and names of the plots: logarithmic axes with ticks in words, and one colour a series; bars.

Ticks are chosen here rather than by the browser, so that "1 GB" stands where 10^9 is and labels never collide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from iosim.base.records import dataclass
from iosim.base.units import length_text
from iosim.show.page import Panel

COLOURS = ("#3574c2", "#d26f24", "#2f9a6c", "#a457b5", "#cf4357", "#8a7322", "#1f9ab0", "#7a7a7a")
"""Mid-tones that stand out on white and on dark ground alike."""
PART_COLOURS = (*COLOURS, "#1d3f6e", "#8f4a12", "#175c3f", "#5f2d6b", "#7d2030", "#c9b458")
"""Of parts that lie on each other, of which there may be more than eight."""
NEUTRAL = "#8b8f98"
SYMBOLS = (
    ("circle", "●"),
    ("square", "■"),
    ("diamond", "◆"),
    ("triangle-up", "▲"),
    ("triangle-down", "▼"),
    ("x", "✖"),
    ("star", "★"),
    ("hexagon", "⬢"),
)
MOST_TICKS = 6
MOST_LENGTHS = 4
"""As many ticks of lengths stand beside each other on paper, and one more."""
NARROWEST = 1.4
"""Ticks stand no nearer to each other than if this many times their most shared the axis."""
TICKS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1,))
"""Factors of powers of ten that may carry ticks, the finest first."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MOST_STEPS = 5
"""Steps of ticks that start at zero, and the most of them."""


def colour(n: int) -> str:
    return COLOURS[n % len(COLOURS)]


def part_colour(n: int) -> str:
    return PART_COLOURS[n % len(PART_COLOURS)]


def symbol(n: int) -> tuple[str, str]:
    """plotly's name of the n-th series' marker, and a character like it: another one where colours begin anew."""
    return SYMBOLS[(n + n // len(COLOURS)) % len(SYMBOLS)]


def log_range(values: Iterable[float]) -> list[float]:
    """Exponents of ten around the positive ones of `values`, with a margin."""
    logs = [math.log10(v) for v in values if v > 0] or [0.0]
    low, high = min(logs), max(logs)
    margin = max(0.06 * (high - low), 0.12)
    return [round(low - margin, 4), round(high + margin, 4)]


def _ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """Round numbers between two exponents of ten: the finest of four sets that is not too many nor too narrow."""
    first, last = math.floor(low), math.ceil(high)
    ticks: list[float] = []
    for factors in TICKS:
        # A coarse set may miss a narrow range altogether: the finer set before it stays.
        finer = ticks
        ticks = [float(f"{f}e{e}") for e in range(first, last + 1) for f in factors]
        ticks = [v for v in ticks if low <= math.log10(v) <= high] or finer
        gaps = [math.log10(b / a) for a, b in pairwise(ticks)]
        if len(ticks) <= max_ticks and min(gaps, default=high) >= (high - low) / (
            NARROWEST * max_ticks
        ):
            return ticks
    # Even powers of ten are too many over a wide range: every n-th of them.
    step = -(-len(ticks) // max_ticks)
    return [v for n, v in enumerate(ticks) if n % step == 0]


def log_axis(
    values: Iterable[float], title: str, text: Callable[[float], str], max_ticks: int = MOST_TICKS
) -> dict[str, Any]:
    """A logarithmic axis over the positive ones of `values`, with up to `max_ticks` ticks written by `text`."""
    ends = log_range(values)
    ticks = _ticks(ends[0], ends[1], max_ticks)
    return axis(title, type="log", range=ends, tickvals=ticks, ticktext=[text(t) for t in ticks])


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 10}, "automargin": True, "zeroline": False, **more}


def category_axis(names: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(names),
        "automargin": True,
    }


def linear_axis(
    values: Iterable[float], title: str, text: Callable[[float], str]
) -> dict[str, Any]:
    """An axis from 0 with a few round ticks, written by `text`."""
    top = max(values, default=0.0) or 1.0
    unit = 10.0 ** math.floor(math.log10(top))
    # The finest round step with which few enough steps reach the top.
    step = next(s * u for u in (unit / 10, unit) for s in STEPS if s * u * MOST_STEPS >= top)
    ticks = [n * step for n in range(math.ceil(top / step) + 1)]
    return axis(
        title,
        type="linear",
        range=[0, ticks[-1] * 1.02],
        tickvals=ticks,
        ticktext=["0", *(text(t) for t in ticks[1:])],
    )


def length_axis(
    lengths: Sequence[int], title: str = "sequence length N (tokens)"
) -> dict[str, Any]:
    """The axis of sequence lengths: ticks at lengths that were asked for, thinned out until they fit."""
    ends = log_axis(lengths, title, str)
    nearest = math.log(max(lengths) / min(lengths)) / MOST_LENGTHS
    labelled: list[int] = []
    # From the longest down: the longest always has its tick, and the dense short ones give way.
    for n in sorted(lengths, reverse=True):
        if not labelled or math.log(labelled[0] / n) > nearest:
            labelled.insert(0, n)
    return {**ends, "tickvals": labelled, "ticktext": [length_text(n) for n in labelled]}


def layout(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "xaxis": x,
        "yaxis": y,
        "margin": {"l": 8, "r": 12, "t": 10, "b": 8},
        "showlegend": False,
        "hovermode": "closest",
        **more,
    }


def note(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """Words in a plot; `more` says on which axes they stand, and on which side of their place."""
    return {"x": x, "y": y, "showarrow": False, "font": {"size": 11}, "text": text, **more}


def upright(x: float, dash: str, **more: Any) -> dict[str, Any]:
    """A grey line from the bottom of a plot to its top."""
    return {
        "type": "line",
        "xref": "x",
        "x0": x,
        "x1": x,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": NEUTRAL, "width": 1.5, "dash": dash},
        **more,
    }


def line(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    hover: Sequence[str],
    n: int,
    *,
    mode: str = "lines+markers",
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": list(x),
        "y": list(y),
        "text": list(hover),
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": colour(n), "width": 1.8},
        "marker": {"color": colour(n), "symbol": symbol(n)[0], "size": 7},
    }


def through(name: str, dots: Iterable[tuple[Any, Any, str]], n: int) -> dict[str, Any]:
    """The line through points, each with its hover text."""
    x, y, hover = zip(*dots, strict=True)
    return line(name, x, y, hover, n)


def guide(name: str, x: Sequence[Any], y: Sequence[Any], hover: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "text": [hover] * len(x),
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": NEUTRAL, "width": 1.5, "dash": dash},
    }


def bar(
    name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], n: int, **more: Any
) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        "y": list(y),
        "text": list(hover),
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour(n)},
        **more,
    }


LINE_PX = 15.0
CHARACTER_PX = 6.5
LEAST_PLOT_PX = 135.0
"""Height of the plotting area where it is least: on paper."""
ON_EACH_OTHER = 0.03
"""Relative difference up to which two values are drawn as one point."""
WIDTHS = (4.5, 7.0, 9.5)
SIZES = (11.0, 14.0, 17.0)
"""Widths of lines and sizes of marks below one, two and more others."""


@dataclass(frozen=True)
class End:
    name: str
    y: float
    colour: str
    mark: str = "■"


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near to the wanted ones as can be, in their order, at least `gap` apart and between `low` and `high`;
    a smaller gap where there is no room."""
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    # Pool adjacent violators: each label alone at its wanted place, then neighbours that would
    # overlap merge and share the mean of their places. The result is the least-squares one.
    clusters: list[list[float]] = []  # sum and count of wanted places, less the gaps below them
    for rank, n in enumerate(order):
        clusters.append([wanted[n] - rank * gap, 1])
        while (
            len(clusters) > 1
            and clusters[-2][0] / clusters[-2][1] >= clusters[-1][0] / clusters[-1][1]
        ):
            total, count = clusters.pop()
            clusters[-1][0] += total
            clusters[-1][1] += count
    bases = [total / count for total, count in clusters for _ in range(int(count))]
    # A base leaves room for the labels above it, so that clamping the bases clamps every place.
    highest = high - (len(wanted) - 1) * gap
    places = [0.0] * len(wanted)
    for rank, (n, base) in enumerate(zip(order, bases, strict=True)):
        places[n] = min(max(base, low), highest) + rank * gap
    return places


def at_ends(ends: Sequence[End], y_axis: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations and the right margin of a layout: every line's name beside its end."""
    low, high = y_axis["range"]
    wanted = [math.log10(e.y) if y_axis["type"] == "log" else e.y for e in ends]
    lines = max((e.name.count("<br>") + 1 for e in ends), default=1)
    places = apart(wanted, lines * LINE_PX / LEAST_PLOT_PX * (high - low), low, high)
    on_the_right = {
        "xref": "paper",
        "xanchor": "left",
        "xshift": 3,
        "yref": "y",
        "yanchor": "middle",
        "align": "left",
    }
    annotations = [
        note(
            f'<span style="color:{e.colour}">{e.mark}</span> {e.name}',
            1,
            round(place, 6),
            **on_the_right,
        )
        for e, place in zip(ends, places, strict=True)
    ]
    widest = max(
        (len(part) for e in ends for part in e.name.replace("<->", "--").split("<br>")), default=0
    )
    right, top = round(CHARACTER_PX * (widest + 2)) + 6, round(2.5 + lines * LINE_PX / 2)
    return {"annotations": annotations, "margin": {"l": 8, "r": right, "t": top, "b": 8}}


def layered(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines; one that lies on later ones, at half of its points or more, is wider: all are seen."""
    points = [dict(zip(line["x"], line["y"], strict=True)) for line in lines]
    # Lines are drawn in order: one that later ones cover is seen only where it is wider.
    above = [sum(_meet(mine, other) for other in points[n + 1 :]) for n, mine in enumerate(points)]
    return [
        _widened(line, min(met, len(WIDTHS))) if met else line
        for line, met in zip(lines, above, strict=True)
    ]


def _widened(line: dict[str, Any], met: int) -> dict[str, Any]:
    wider = {
        "line": line["line"] | {"width": WIDTHS[met - 1]},
        "marker": line["marker"] | {"size": SIZES[met - 1]},
    }
    return line | wider


def _meet(a: Mapping[Any, float | None], b: Mapping[Any, float | None]) -> bool:
    pairs = [(y, z) for x, y in a.items() if y is not None and (z := b.get(x)) is not None]
    near = sum(abs(y - z) <= ON_EACH_OTHER * abs(y) for y, z in pairs)
    return bool(pairs) and 2 * near >= len(pairs)


def hollow(line: dict[str, Any], estimated: Sequence[bool]) -> dict[str, Any]:
    """The line with hollow marks at the points that are estimates."""
    if not any(estimated):
        return line
    symbol = line["marker"]["symbol"]
    return line | {
        "marker": line["marker"]
        | {"symbol": [f"{symbol}-open" if e else symbol for e in estimated]}
    }


def alike(lines: Mapping[str, Sequence[float | None]]) -> list[list[str]]:
    """The names in groups of lines that have the same points throughout."""
    groups: list[list[str]] = []
    for name, ys in lines.items():
        for group in groups:
            others = lines[group[0]]
            if len(others) == len(ys) and all(
                y == z or (y is not None and z is not None and abs(y - z) <= ON_EACH_OTHER * abs(y))
                for y, z in zip(ys, others, strict=True)
            ):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


ROW_REM = 2.1
AXIS_REM = 3.6
LEAST_REM, TITLE_REM = 6.0, 1.4
ROOM = 1.3
"""Length of the axis over the longest bar: the words at its end need room."""


@dataclass(frozen=True)
class Part:
    """What a bar, or a part of every bar, is for: its name, a colour or one a bar, values and hover texts a row."""

    name: str
    colour: str | Sequence[str]
    values: Sequence[float | None]
    hover: Sequence[str]


@dataclass(frozen=True)
class Beside:
    """The longest bar and the most bars of all panels that are to be compared."""

    longest: float
    count: int


def bars(
    panel_id: str,
    title: str,
    alt: str,
    names: Sequence[str],
    parts: Sequence[Part],
    text: Callable[[float], str],
    *,
    axis_title: str = "",
    beside: Beside | None = None,
) -> Panel:
    """Bars with one part are plain, others stack."""
    wholes = [sum(p.values[n] or 0.0 for p in parts) for n in range(len(names))]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": p.name,
            "y": list(names),
            "x": list(p.values),
            "text": list(p.hover),
            "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": p.colour if isinstance(p.colour, str) else list(p.colour)},
        }
        for p in parts
    ]
    data.append(_whole_labels(names, text, wholes))
    longest = beside.longest if beside else max(wholes, default=0.0)
    x = linear_axis([longest], axis_title, text)
    # Every second tick: horizontal bars are narrow, and the words at their ends need the room.
    x["range"] = [0, ROOM * longest or 1.0]
    x["tickvals"], x["ticktext"] = x["tickvals"][::2], x["ticktext"][::2]
    y = {**category_axis(names), "autorange": "reversed"}
    rows = max(beside.count if beside else 0, len(names))
    height = max(LEAST_REM, AXIS_REM + ROW_REM * rows + (TITLE_REM if axis_title else 0.0))
    return Panel(
        panel_id, title, alt, tuple(data), layout(x, y, barmode="stack", bargap=0.3), height
    )


def _whole_labels(
    names: Sequence[str], text: Callable[..., Any], wholes: list[float | int]
) -> dict[str, Any]:
    """The sum of each bar in words, at its end."""
    return {
        "type": "scatter",
        "mode": "text",
        "name": "whole",
        "y": list(names),
        "x": wholes,
        "text": [f" {text(v)}" for v in wholes],
        "textposition": "middle right",
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def stacked(
    panel_id: str,
    title: str,
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    axis_title: str,
    text: Callable[[float], str],
    of: str = "",
) -> Panel:
    """Upright bars, a bar per name, its parts on each other; hover texts name bar and part, with `of` in between."""
    named = {word: list(zip(names, values, strict=True)) for word, values in parts.items()}
    data = [
        bar(word, names, parts[word], [f"{name} {of}{word}<br>{text(v)}" for name, v in both], n)
        for n, (word, both) in enumerate(named.items())
    ]
    readings = ", ".join(
        f"{name} {word} {text(v)}" for word, both in named.items() for name, v in both
    )
    y = linear_axis(map(sum, zip(*parts.values(), strict=True)), axis_title, text)
    stacks = layout(category_axis(names), y, barmode="stack")
    return Panel(panel_id, title, f"{title}: {readings}.", tuple(data), stacks)

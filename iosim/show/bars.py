"""Bars: horizontal ones, a row a name, its parts beside each other and the whole in words at the end; upright ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from iosim.base.records import dataclass
from iosim.show import axes
from iosim.show.page import Panel

ROW_REM = 2.1
AXIS_REM = 3.6
LEAST_REM = 6.0
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
    """Of all panels that are to be compared: the longest bar, and the most bars."""

    longest: float
    most: int


def bars(
    panel_id: str, title: str, alt: str, names: Sequence[str], parts: Sequence[Part], text: Callable[[float], str], *,
    axis_title: str = "", beside: Beside | None = None,
) -> Panel:  # fmt: skip
    """Bars with one part are plain, others stack."""
    wholes = [sum(p.values[n] or 0.0 for p in parts) for n in range(len(names))]
    data: list[dict[str, Any]] = [
        {
            "type": "bar", "orientation": "h", "name": p.name, "y": list(names), "x": list(p.values),
            "text": list(p.hover), "textposition": "none", "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": p.colour if isinstance(p.colour, str) else list(p.colour)},
        }
        for p in parts
    ]  # fmt: skip
    data.append({
        "type": "scatter", "mode": "text", "name": "whole", "y": list(names), "x": wholes,
        "text": [f" {text(v)}" for v in wholes], "textposition": "middle right", "hoverinfo": "skip",
        "cliponaxis": False,
    })  # fmt: skip
    longest = beside.longest if beside else max(wholes, default=0.0)
    x = axes.linear_axis([longest], axis_title, text)
    x["range"] = [0, ROOM * longest or 1.0]
    x["tickvals"], x["ticktext"] = x["tickvals"][::2], x["ticktext"][::2]
    y = {**axes.category_axis(names), "autorange": "reversed"}
    height = max(LEAST_REM, AXIS_REM + ROW_REM * max(beside.most if beside else 0, len(names)) + 1.4 * bool(axis_title))
    return Panel(panel_id, title, alt, tuple(data), axes.layout(x, y, barmode="stack", bargap=0.3), height)


def stacked(
    panel_id: str, title: str, names: Sequence[str], parts: Mapping[str, Sequence[float]], axis_title: str,
    text: Callable[[float], str], of: str = "",
) -> Panel:  # fmt: skip
    """Upright bars, a bar a name, its parts on each other; hover texts name bar and part, with `of` in between."""
    named = {word: list(zip(names, values, strict=True)) for word, values in parts.items()}
    data = [
        axes.bar(word, names, parts[word], [f"{name} {of}{word}<br>{text(v)}" for name, v in both], n)
        for n, (word, both) in enumerate(named.items())
    ]
    readings = ", ".join(f"{name} {word} {text(v)}" for word, both in named.items() for name, v in both)
    y = axes.linear_axis(map(sum, zip(*parts.values(), strict=True)), axis_title, text)
    layout = axes.layout(axes.category_axis(names), y, barmode="stack")
    return Panel(panel_id, title, f"{title}: {readings}.", tuple(data), layout)

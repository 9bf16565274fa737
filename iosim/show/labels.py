"""Names at the ends of lines, each apart from the next; and lines that lie on each other, all of them kept in sight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.records import dataclass

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
    """The name of a line, where it ends on the vertical axis, its colour and, as a character, its marker."""

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
    clusters: list[list[float]] = []  # sum and count of wanted places, less the gaps below them
    for rank, n in enumerate(order):
        clusters.append([wanted[n] - rank * gap, 1])
        while len(clusters) > 1 and clusters[-2][0] / clusters[-2][1] >= clusters[-1][0] / clusters[-1][1]:
            total, count = clusters.pop()
            clusters[-1][0] += total
            clusters[-1][1] += count
    bases = [total / count for total, count in clusters for _ in range(int(count))]
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
    annotations = [
        {
            "xref": "paper", "x": 1, "xanchor": "left", "xshift": 3, "yref": "y", "y": round(place, 6),
            "yanchor": "middle", "align": "left", "showarrow": False, "font": {"size": 11},
            "text": f'<span style="color:{e.colour}">{e.mark}</span> {e.name}',
        }
        for e, place in zip(ends, places, strict=True)
    ]  # fmt: skip
    widest = max((len(part) for e in ends for part in e.name.replace("<->", "--").split("<br>")), default=0)
    return {
        "annotations": annotations,
        "margin": {"l": 8, "r": round(CHARACTER_PX * (widest + 2)) + 6, "t": round(2.5 + lines * LINE_PX / 2), "b": 8},
    }


def layered(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines; one that lies on later ones, at half of its points or more, is wider: all are seen."""
    points = [dict(zip(line["x"], line["y"], strict=True)) for line in lines]
    above = [sum(_meet(mine, other) for other in points[n + 1 :]) for n, mine in enumerate(points)]
    return [
        line if not met else
        line | {"line": line["line"] | {"width": WIDTHS[min(met, len(WIDTHS)) - 1]}}
        | {"marker": line["marker"] | {"size": SIZES[min(met, len(SIZES)) - 1]}}
        for line, met in zip(lines, above, strict=True)
    ]  # fmt: skip


def _meet(a: Mapping[Any, float | None], b: Mapping[Any, float | None]) -> bool:
    pairs = [(y, z) for x, y in a.items() if y is not None and (z := b.get(x)) is not None]
    near = sum(abs(y - z) <= ON_EACH_OTHER * abs(y) for y, z in pairs)
    return bool(pairs) and 2 * near >= len(pairs)


def hollow(line: dict[str, Any], estimated: Sequence[bool]) -> dict[str, Any]:
    """The line with hollow marks at the points that are estimates."""
    if not any(estimated):
        return line
    symbol = line["marker"]["symbol"]
    return line | {"marker": line["marker"] | {"symbol": [f"{symbol}-open" if e else symbol for e in estimated]}}


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

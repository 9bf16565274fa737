"""Bars of what wholes are made of: a colour for each part on the whole page, its legend, and a panel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from iosim.show import axes
from iosim.show.page import Panel, Series

Wholes = Mapping[str, Mapping[str, float]]
"""The parts of each bar: seconds or bytes by name."""


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the order in which they come."""
    return {name: axes.part_colour(n) for n, name in enumerate(dict.fromkeys(names))}


def legend_of(colours: Mapping[str, str], names: Iterable[str]) -> tuple[Series, ...]:
    """The entries of those parts that are there."""
    there = set(names)
    return tuple(Series(name, colour, "■") for name, colour in colours.items() if name in there)


def part_bars(
    panel_id: str,
    title: str,
    wholes: Wholes,
    colours: Mapping[str, str],
    text: Callable[[float], str],
) -> Panel:
    """A bar for each whole, its parts after each other and the sum at its end."""
    parts = []
    for name, colour in colours.items():
        values = [of.get(name, 0.0) for of in wholes.values()]
        hover = [f"{whole}<br>{name} {text(v)}" for whole, v in zip(wholes, values, strict=True)]
        parts.append(axes.Part(name, colour, values, hover))
    sums = "; ".join(f"{whole} {text(sum(of.values()))}" for whole, of in wholes.items())
    return axes.bars(panel_id, title, f"{title}: {sums}.", list(wholes), parts, text)

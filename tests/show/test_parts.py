"""Bars of what wholes are made of: colours, entries of the legend, sums."""

from __future__ import annotations

from iosim.show import axes
from iosim.show.parts import colours_of, legend_of, part_bars


def test_a_part_has_one_colour_on_the_whole_page() -> None:
    colours = colours_of(["a", "b", "a", "c"])
    assert colours == {name: axes.part_colour(n) for n, name in enumerate("abc")}
    assert [(s.name, s.colour) for s in legend_of(colours, ["c", "a"])] == [
        ("a", colours["a"]),
        ("c", colours["c"]),
    ]


def test_bars_of_parts_and_their_sums() -> None:
    wholes = {"x": {"a": 1.0, "b": 2.0}, "y": {"b": 4.0}}
    panel = part_bars("id", "Times", wholes, colours_of("ab"), lambda v: f"{v:g} s")
    bars = [d for d in panel.data if d["type"] == "bar"]
    assert [d["x"] for d in bars] == [[1.0, 0.0], [2.0, 4.0]]
    assert bars[1]["text"] == ["x<br>b 2 s", "y<br>b 4 s"]
    assert panel.alt == "Times: x 3 s; y 4 s."

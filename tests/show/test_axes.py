"""Axes: ticks are round numbers that fit, ranges hold what is drawn."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosim.show import axes
from iosim.show.page import Panel
from iosim.show.shown import drawn

POSITIVE = st.floats(1e-9, 1e15)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        # less than a power of ten: the finest set that is not too many
        (1.0, 9.0, [1, 2, 3, 5]),
        (3.0, 9.0, [3, 4, 5, 6, 8]),
        (1.0, 2.0, [1, 1.5, 2]),
        (1.0, 100.0, [1, 2, 5, 10, 20, 50, 100]),
        (1.0, 1e4, [1, 10, 100, 1e3, 1e4]),
        (1.0, 1e9, [1, 100, 1e4, 1e6, 1e8]),
    ],
)
def test_ticks_of_a_logarithmic_axis(low: float, high: float, ticks: list[float]) -> None:
    got = axes._ticks(math.log10(low), math.log10(high), 7)
    assert got == pytest.approx(ticks)


@given(a=POSITIVE, b=POSITIVE, limit=st.integers(2, 9))
def test_ticks_are_inside_their_axis_and_never_too_many(a: float, b: float, limit: int) -> None:
    axis = axes.log_axis([a, b, -1.0, 0.0], "x", str, limit)
    low, high = axis["range"]
    assert low < math.log10(min(a, b)) <= math.log10(max(a, b)) < high
    ticks = axis["tickvals"]
    assert len(ticks) <= limit
    assert all(x < y for x, y in pairwise(ticks))
    assert all(low <= math.log10(t) <= high for t in ticks)
    assert axis["ticktext"] == [str(t) for t in ticks]


@pytest.mark.parametrize(
    ("top", "ticks"),
    [(1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (7, [0, 2, 4, 6, 8]), (12, [0, 2.5, 5, 7.5, 10, 12.5]),
     (30, [0, 10, 20, 30]), (0, [0, 0.2, 0.4, 0.6, 0.8, 1])],
)  # fmt: skip
def test_ticks_from_zero(top: float, ticks: list[float]) -> None:
    axis = axes.linear_axis([top / 2, top], "y", str)
    assert axis["tickvals"] == pytest.approx(ticks)
    assert axis["range"] == pytest.approx([0, ticks[-1] * 1.02])
    assert axis["ticktext"][0] == "0"


def test_lengths_stand_where_there_is_room() -> None:
    axis = axes.length_axis([1024, 1100, 2048, 4096, 8192, 16384])
    # 16 times between the ends, and room for four: each more than twice the one before
    assert axis["tickvals"] == [1100, 4096, 16384]


@pytest.mark.parametrize(("names", "legend"), [(1, False), (2, True), (3, True)])
def test_a_legend_stands_where_two_names_are(names: int, legend: bool) -> None:
    data = [{"type": "scatter", "x": [1], "y": [1], "name": f"line {n}"} for n in range(names)]
    panel = Panel("p", "title", "what is seen", tuple(data), {})
    assert drawn([panel]).layout.showlegend is legend


@pytest.mark.parametrize(("values", "beside", "longest"), [
    # Bars of two parts, and the end of their axis: 1.3 times the longest whole, or the longest of all panels
    ([(2.0, 1.0), (4.0, 1.0)], None, 1.3 * 5),
    ([(2.0, None), (1.0, 1.5)], None, 1.3 * 2.5),
    ([(2.0, 1.0), (4.0, 1.0)], axes.Beside(10.0, 3), 1.3 * 10),
    ([(0.0, 0.0)], None, 1.0),
    ([], None, 1.0),
])  # fmt: skip
def test_bars_leave_room_for_the_words_at_their_ends(
    values: list[tuple[float | None, float | None]], beside: axes.Beside | None, longest: float
) -> None:
    names = [f"row {n}" for n in range(len(values))]
    parts = [
        axes.Part(name, "#123456", [row[n] for row in values], names)
        for n, name in enumerate(("one", "two"))
    ]
    panel = axes.bars("id", "title", "alt", names, parts, "{:g}".format, beside=beside)
    assert panel.layout["xaxis"]["range"] == [0, pytest.approx(longest)]

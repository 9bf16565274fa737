"""Pages as HTML: escaped, with colours that stand out and rows as cards."""

from __future__ import annotations

import pytest
from small_pages import page

from iosim.show import axes
from iosim.show.html import STATIC, html, is_cards, unpacked
from iosim.show.page import Page, Section
from iosim.show.tables import Column, Table

NASTY = "<script>alert('&')</script>"


def test_everything_is_escaped() -> None:
    text = html(page(NASTY))
    assert "<script>alert" not in text
    assert "('&')" not in text.partition("<script")[0]
    assert text.count("<script") == 3  # data, the plots' and the page's own
    assert text.count("&lt;script&gt;") > 15
    data = unpacked(text)
    assert data["panels"]["plot-1"]["data"][0]["x"] == [NASTY]
    assert data["tables"]["first"]["rows"][0][0] == NASTY
    assert data["commands"] == {"P1": NASTY}


@pytest.mark.parametrize("ground", ["#f7f8fa", "#1c2027"])  # --panel of page.css, light and dark
def test_colours_of_series_stand_out_on_both_grounds(ground: str) -> None:
    assert ground in (STATIC / "page.css").read_text(encoding="utf-8")
    for colour in axes.COLOURS:
        assert contrast(colour, ground) >= 3, colour  # WCAG's least for graphics


def contrast(a: str, b: str) -> float:
    """WCAG's ratio of luminances."""

    def luminance(colour: str) -> float:
        parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_sixteen_series_differ_in_colour_or_mark() -> None:
    assert len({(axes.colour(n), axes.symbol(n)) for n in range(16)}) == 16


def test_rows_are_cards_where_columns_are_many_and_rows_few() -> None:
    columns = tuple(Column(f"c{n}", "a<b") for n in range(6))
    wide = Table(columns, (("1",) * 6,))
    assert is_cards(wide)
    assert html(Page("t", "s", (Section("w", "w", table=wide),))).count('data-label="a&lt;b"') == 6
    assert not is_cards(Table(columns[:4], (("1",) * 4,)))
    assert not is_cards(Table(columns, (("1",) * 6,) * 100))


@pytest.mark.parametrize(
    ("number", "travels"),
    [
        (2**53 - 1, 2**53 - 1),
        (2**53, str(2**53)),  # the first beyond which doubles have gaps
        (-(2**53), str(-(2**53))),
        (1e300, 1e300),
    ],
)
def test_integers_that_javascript_would_round_travel_as_texts(
    number: float, travels: object
) -> None:
    table = Table((Column("n", "n"),), [(number,)])
    section = Section("one", "One", table=table)
    (row,) = unpacked(html(Page("t", "t", (section,))))["tables"]["one"]["rows"]
    assert row == [travels]

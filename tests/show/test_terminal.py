"""When text has colours: on a terminal that shows them, for a person who did not ask for none."""

from __future__ import annotations

import io
import sys

import pytest

from iosim.show.terminal import coloured, columns, folded, in_colour, output

RED = "\x1b[31mslow\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_a_stream_is_asked_before_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert coloured("slow", "red", Terminal()) == RED
    assert coloured("slow", "red", io.StringIO()) == "slow"


def test_standard_output_has_colours_where_a_person_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert in_colour()
    with output(for_a_person=False):
        assert not in_colour()
        assert in_colour(Terminal())
    monkeypatch.setattr(sys, "stdout", None)  # closed
    assert not in_colour()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colours_has_none(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert not in_colour(Terminal())


def test_a_width_is_a_number_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    for width, wanted in (("100", 100), ("0", None), ("wide", None), ("", None)):
        monkeypatch.setenv("COLUMNS", width)
        assert columns() == wanted


def test_a_long_line_goes_on_two_columns_further_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = " ".join(["twelve chars"] * 5)
    assert folded(f"   {words}\n").splitlines() == [
        "   twelve chars twelve chars twelve",
        "     chars twelve chars twelve chars",
    ]
    assert folded(f"{words}\n", 4).splitlines()[1].startswith("    twelve")

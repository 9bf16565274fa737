"""Progress: a bar on a terminal, nothing in a pipe, and the same items either way."""

from __future__ import annotations

import sys

import pytest

from iosim.base import progress as module
from iosim.base.progress import announce, counter, progress, silent


def test_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert progress("predicting") is silent
    assert list(silent([3, 1, 2])) == [3, 1, 2]
    with counter(10, "replay", after_s=0.0) as shown:
        shown(10)
    announce("measuring: clocks")
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module, "AFTER_S", 0.0)
    assert list(progress("predicting")([3, 1, 2])) == [3, 1, 2]
    out, err = capsys.readouterr()
    assert "predicting" in err
    assert out == ""
    with counter(10, "replay", "tile", after_s=0.0) as shown:
        shown(4)
        shown(25)  # a count beyond the total ends at the total
    err = capsys.readouterr().err
    assert "replay" in err
    assert "25" not in err


def test_short_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress("predicting")(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == ""

"""Progress: a bar on a terminal, a line now and then in a pipe, and the same items either way."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from iosim.base import progress as module
from iosim.base.progress import LINES, announce, counter, progress


@pytest.fixture(autouse=True)
def every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_S", 10.0)
    monkeypatch.setattr(LINES, "_said", 0.0)


def test_short_work_shows_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress("predicting")([3, 1, 2])) == [3, 1, 2]
    with counter(10, "replay", after_s=0.0) as count_up:
        count_up(10)
    announce("measuring: clocks")
    assert capsys.readouterr() == ("", "")


def test_a_line_every_ten_seconds_in_a_pipe() -> None:
    begin = time.monotonic()
    with counter(3, "predicting") as outer, counter(1000, "replay", "tile") as inner:
        assert LINES.due(begin + 9.9) is None
        outer(1)
        inner(2000)  # a count beyond the total ends at the total
        assert (
            LINES.due(begin + 10.6)
            == "iosim: predicting: 1 of 3; replay: 1,000 of 1,000 tiles; 11 s"
        )
        assert LINES.due(begin + 20.4) is None
        assert str(LINES.due(begin + 20.7)).endswith("; 21 s")
    assert LINES.due(begin + 100) is None


def test_items_of_unknown_number_are_counted() -> None:
    begin = time.monotonic()
    for _ in progress("reading")(iter(range(2))):
        last = LINES.due(begin + 1e6)
    assert last is None  # the second comes at the time of the first
    items = progress("reading")(x for x in range(5))
    for _ in range(4):
        next(items)  # type: ignore[call-overload]
    assert LINES.due(begin + 2e6) == "iosim: reading: 3; 2000000 s"
    items.close()  # type: ignore[attr-defined]
    assert LINES.due(begin + 3e6) is None


def test_lines_come_while_work_waits() -> None:
    code = (
        "import time, iosim.base.progress as p\np.LINE_S = 0.1\n"
        "with p.counter(8, 'replay', 'tile') as done:\n    done(3)\n    time.sleep(0.6)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stderr.startswith("iosim: replay: 3 of 8 tiles; 0 s\n")
    assert completed.stdout == ""


def test_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module, "AFTER_S", 0.0)
    assert list(progress("predicting")([3, 1, 2])) == [3, 1, 2]
    out, err = capsys.readouterr()
    assert "predicting" in err
    assert out == ""
    with counter(10, "replay", "tile", after_s=0.0) as count_up:
        count_up(4)
        assert LINES.due(time.monotonic() + 1e7) is None  # where there is a bar there is no line
        count_up(25)  # a count beyond the total ends at the total
    err = capsys.readouterr().err
    assert "replay" in err
    assert "25" not in err


def test_short_work_shows_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress("predicting")(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == ""

"""docs/threads.md: every command of it runs, and most of the threads have one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from effort import quick_every
from scripts import ROOT

from iosim.commands.cli import main

PAGE = ROOT / "docs" / "threads.md"

if not PAGE.is_file():
    pytest.skip("iosim runs from an install without its docs", allow_module_level=True)

ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.M)[
    2:
]
COMMANDS = {thread: answer.strip("`") for thread, _, answer in ROWS if answer.startswith("`iosim ")}


def test_most_threads_have_a_command_and_the_others_a_reason() -> None:
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread, _, _ in ROWS)
    assert len({thread for thread, _, _ in ROWS}) == len(ROWS) >= 28
    assert {answer.split(":")[0] for thread, _, answer in ROWS if thread not in COMMANDS} <= {
        "not answered"
    }
    assert len(COMMANDS) >= 0.8 * len(ROWS)


@pytest.mark.parametrize("thread", quick_every(COMMANDS, 4))
def test_a_threads_command_answers(
    thread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(COMMANDS[thread])[1:]) == 0, COMMANDS[thread]
    assert len(capsys.readouterr().out.splitlines()) > 2

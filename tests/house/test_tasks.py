"""docs/how-to/tasks.md: twenty tasks of a new user, each answered by one command, which runs."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from effort import quick_every
from scripts import ROOT

import iosim
from iosim.commands.cli import main

PAGE = ROOT / "docs" / "how-to" / "tasks.md"

if not PAGE.is_file():
    pytest.skip("iosim runs from an install without its docs", allow_module_level=True)

ROWS = re.findall(
    r"^\| ([^|]+) \| `([^|]+)` \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.M
)
COMMANDS = {task: command for task, command, _ in ROWS if command.startswith("iosim ")}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the page says is the reader's own."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "my-gpu.toml", tmp_path)
    shutil.copy(ROOT / "tests" / "code" / "ptx" / "flash_forward.ptx", tmp_path / "kernel.ptx")
    mask = np.tri(128, dtype=bool)
    numbers = mask.sum(axis=1)[None, None]
    indices = np.argsort(~mask, axis=1, kind="stable")[None, None]
    np.savez(
        tmp_path / "mask.npz",
        BLOCK_SIZE=(128, 128),
        kv_num_blocks=numbers.astype(np.int32),
        kv_indices=indices.astype(np.int32),
    )
    assert main(["kernels", "new", "--from", "fa2", "--name", "mine", "--out", "mine.toml"]) == 0
    command = "predict --kernel mine.toml --gpu h100 --seq-len 4k --format json --out base.json"
    assert main(command.split()) == 0
    return tmp_path


def test_twenty_tasks_have_a_command_and_a_page() -> None:
    assert len(ROWS) == len({task for task, _, _ in ROWS}) == 20
    for task, command, pages in ROWS:
        places = re.findall(r"\]\(([^)]+)\)", pages)
        assert places, task
        assert all((PAGE.parent / place).is_file() for place in places), task
        if command.startswith("python "):
            assert (ROOT / command.split()[1]).is_file()


@pytest.mark.parametrize("task", quick_every(COMMANDS, 5))
def test_a_tasks_command_answers(
    task: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(shlex.split(COMMANDS[task])[1:]) == 0
    out = capsys.readouterr().out
    # The first line is the answer, of which a number is a part.
    assert re.search(r"\d", out.splitlines()[0]), out[:200]
    for place in re.findall(r"--html (\S+)", COMMANDS[task]):
        assert (files / place).stat().st_size > 10_000


def test_the_notebooks_line_draws() -> None:
    pytest.importorskip("plotly")
    (line,) = (command for _, command, _ in ROWS if command.startswith("iosim."))
    assert eval(line, {"iosim": iosim}).data

"""The README says what is true: its commands run, and its table is what its script prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from effort import SHARE
from scripts import ROOT

from iosim.commands.cli import main
from iosim.evidence.published.judge import judge
from iosim.evidence.published.tables import shipped

if not (ROOT / "README.md").is_file():
    pytest.skip("iosim runs from an install without its README", allow_module_level=True)

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.strip()
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S)
    for line in block.strip().splitlines()
]
IOSIM = [
    part.strip()
    for line in COMMANDS
    for part in line.split("&&")
    if part.strip().startswith("iosim ")
]


def test_there_are_examples() -> None:
    assert len(IOSIM) >= 8
    assert "iosim predict --gpu a100 --kernel naive,fa2" in IOSIM[0]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_replays")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=pytest.mark.slow)
        if c.startswith(("iosim validate", "iosim report"))
        else c
        for c in IOSIM
    ],
)
def test_every_command_runs(
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if SHARE > 1:  # lengths beyond take minutes and run the same code
        command = command.replace("512:64k:x2", "512:4k:x2")
    assert main(shlex.split(command)[1:]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""


def printed(block: int) -> str:
    """What a block of Python prints."""
    code = re.findall(r"```python\n(.*?)```", TEXT, re.S)[block]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_the_python_call_runs() -> None:
    assert "SM <-> L2 (counted)" in printed(0)


@pytest.mark.slow
def test_the_module_of_pytorch_runs() -> None:
    pytest.importorskip("torch")
    assert "self_attn" in printed(1)


def test_every_file_it_names_is_there() -> None:
    for name in re.findall(r"`((?:docs|kernels|benchmarks|examples)/[\w./]*)`", TEXT):
        assert (ROOT / name).exists(), name


POINTS = 0.5
"""By how many per cent the table may lag behind the model."""
CLAIMS = {
    "T4": (("t4", "times"), ("t4", "plain")),
    "L4": (("l4", "bytes"),),
    "A100": (
        ("a100-sxm-80gb", "bytes"),
        ("a100-sxm-80gb", "times"),
        ("a100-pcie-80gb", "times"),
        ("a100-sxm-40gb", "plain"),
    ),
    "H100": (("h100-sxm", "times"),),
    "B200": (("b200", "times"),),
}
"""Line of the table -> what of it `iosim validate --published` prints: profile and kind of rows."""


@pytest.mark.slow
def test_the_table_says_what_public_rows_say() -> None:
    of_gpu = {gpu.gpu: gpu for gpu in judge(shipped()).gpus}
    for name, claims in CLAIMS.items():
        (line,) = re.findall(rf"^\| {name} \|.*$", TEXT, re.M)
        for gpu, kind in claims:
            median = of_gpu[gpu].median_error[kind]
            assert median is not None
            rows = of_gpu[gpu].rows[kind]
            stated = re.search(rf"\b{rows} [^,;|]*?([0-9.]+) %", line)
            assert stated, (line, gpu, kind, rows)
            assert abs(float(stated[1]) - 100 * median) < POINTS, (line, gpu, kind, median)

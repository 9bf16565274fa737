"""Every example with a recorded output prints it. To record: python examples/NAME.py > examples/output/NAME.txt"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
RECORDED = sorted(p.stem for p in (EXAMPLES / "output").glob("*.txt"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_an_example_prints_what_is_recorded(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (EXAMPLES / "output" / f"{name}.txt").read_text(encoding="utf-8")


def test_every_recorded_output_has_its_example() -> None:
    assert RECORDED
    assert all((EXAMPLES / f"{name}.py").is_file() for name in RECORDED)

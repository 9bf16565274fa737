"""Every example prints what is recorded of it; `python docs/renew.py` records it anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from scripts import ROOT

EXAMPLES = ROOT / "examples"
RECORDED = sorted(p.stem for p in (EXAMPLES / "output").glob("*.txt"))


@pytest.mark.slow
@pytest.mark.usefixtures("kept_replays")
@pytest.mark.parametrize("name", RECORDED)
def test_an_example_prints_what_is_recorded(name: str) -> None:
    environment = dict(
        os.environ
    )  # without the terminal's width, which readline puts into the process' own
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (EXAMPLES / "output" / f"{name}.txt").read_text(encoding="utf-8")


def test_every_recorded_output_has_its_example() -> None:
    assert RECORDED
    assert all((EXAMPLES / f"{name}.py").is_file() for name in RECORDED)


def test_the_index_names_every_script_and_its_links_lead_somewhere() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = {p.stem for p in EXAMPLES.glob("*.py")}
    assert set(re.findall(r"\((\w+)\.py\)", index)) == scripts
    for target in re.findall(r"\]\(([^)#:\s]+)\)", index):
        assert (EXAMPLES / target).exists(), target

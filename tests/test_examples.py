"""Every example prints what is recorded of it; `python docs/renew.py` records it anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import load_script

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
QUESTIONS = sorted((EXAMPLES / "questions").glob("*.md"))
RECORDED = sorted(p.stem for p in (EXAMPLES / "output").glob("*.txt"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_an_example_prints_what_is_recorded(name: str) -> None:
    environment = dict(os.environ)  # without the terminal's width, which readline puts into the process' own
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (EXAMPLES / "output" / f"{name}.txt").read_text(encoding="utf-8")


def test_every_recorded_output_has_its_example() -> None:
    assert RECORDED
    assert all((EXAMPLES / f"{name}.py").is_file() for name in RECORDED)


@pytest.mark.slow
@pytest.mark.parametrize("page", QUESTIONS, ids=lambda p: p.stem)
def test_a_questions_commands_print_what_stands_below_them(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    text = page.read_text(encoding="utf-8")
    assert load_script("docs/renew.py").renewed(text) == text


@pytest.mark.parametrize("page", QUESTIONS, ids=lambda p: p.stem)
def test_a_question_is_asked_answered_and_led_to(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, *_ = text.splitlines()
    assert re.fullmatch(r"# .*\?", title)
    blocks = re.findall(r"^```(\w+)$", text, re.M)
    assert blocks[1::2] == ["text"] * (len(blocks) // 2)
    assert f"[{title[2:]}](questions/{page.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_the_index_names_every_script_and_its_links_lead_somewhere() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = {p.stem for p in EXAMPLES.glob("*.py")}
    assert set(re.findall(r"\((\w+)\.py\)", index)) == scripts
    for page in (EXAMPLES / "README.md", *QUESTIONS):
        for target in re.findall(r"\]\(([^)#:\s]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"

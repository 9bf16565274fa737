"""The script that plants changes: which ones, that it draws the same again, and that the tests notice them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from scripts import ROOT, load_script

MUTATE = load_script("tests/mutate.py")
SOURCE = '''
"""Text with 3 < 4."""
LIMIT: int = 192

def f(a: int, b: int = 7) -> int:
    if a < b and not b:
        raise ValueError(f"{a + 1}")
    return -(-a // b), min(a, 2)
'''
C_SOURCE = """
/* if (a < b) c += 1; */
#define SLACK 128
static int f(int a, int b) {
    if (a < b) a += 2;
    return a ? b : a;
}
"""


def edited(source: str, edits: list[tuple[int, int, str]]) -> set[str]:
    """The changed lines of a source, each with one edit."""
    made = (MUTATE.change("timing", "x", source, *edit) for edit in edits)
    return {c.after for c in made}


def test_changes_of_python() -> None:
    assert edited(SOURCE, MUTATE.python_edits(SOURCE)) == {
        "LIMIT: int = 193", "LIMIT: int = 19", "def f(a: int, b: int = 8) -> int:",
        "if a <= b and not b:", "if a < b or not b:", "if a < b and bool(b):", "if False:", "if True:",
        "return ((a) // b), min(a, 2)", "return -(-a // b), max(a, 2)", "return -(-a // b), min(a, 3)",
        "return min(a, 2), -(-a // b)",
    }  # fmt: skip


def test_changes_of_c() -> None:
    assert edited(C_SOURCE, MUTATE.c_edits(C_SOURCE)) == {
        "#define SLACK 129", "#define SLACK 12", "if (a <= b) a += 2;", "if (a < b) a -= 2;", "if (a < b) a += 3;",
        "if (a < b) ;", "if (0) a += 2;", "if (1) a += 2;", "return a ? a : b;",
    }  # fmt: skip


def test_the_same_seed_draws_the_same() -> None:
    notes = MUTATE.Notes.read()
    one, two, other = (MUTATE.drawn(["timing", "tiles"], 80, seed, notes) for seed in (0, 0, 1))
    assert one == two
    assert one != other
    assert len({c.key for c in one}) == 80
    assert {c.area for c in one} == {"timing", "tiles"}


def test_every_area_has_files_and_every_test_is_there() -> None:
    for name, area in MUTATE.AREAS.items():
        assert MUTATE.changes(name), name
        assert all((ROOT / test.partition("::")[0]).exists() for test in (*area.tests, *area.more))


def test_reasons_are_given() -> None:
    notes = MUTATE.Notes.read()
    assert all(notes.equal.values())
    assert not notes.once_missed & notes.equal.keys()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the engine is compiled anew with gcc")
def test_planted_changes_are_noticed() -> None:
    """Those once missed, and a few others."""
    command = [sys.executable, str(ROOT / "tests" / "mutate.py"), "--count", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    (score,) = re.findall(r"^caught: (\d+) of (\d+)", done.stdout, re.M)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has no line" not in done.stdout, done.stdout  # a note for a line that has gone
    assert int(score[1]) >= 12

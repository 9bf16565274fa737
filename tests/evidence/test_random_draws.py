"""README's claims: predictions beside library calls drawn at random, on an H100 and an H200."""

from __future__ import annotations

import re
from functools import cache
from types import ModuleType

import pytest
from scripts import ROOT, load_script

PAGE = ROOT / "docs" / "generated" / "random-draws.md"
README = ROOT / "README.md"


@cache
def script() -> ModuleType:
    return load_script("benchmarks/random_draws.py")


def in_short() -> str:
    """The first table of the page."""
    return PAGE.read_text(encoding="utf-8").split("## In short\n\n")[1].split("\n\n")[0]


def test_readme_has_the_table_of_the_page() -> None:
    assert in_short() in README.read_text(encoding="utf-8")


def test_seeds_stand_in_readme() -> None:
    text = README.read_text(encoding="utf-8")
    assert all(re.search(rf"--seed {seed}\b", text) for seeds in script().SEEDS.values() for seed in seeds[-1:])


@pytest.mark.slow
def test_the_page_is_what_the_script_writes() -> None:
    found = script()
    page = found.page([found.drawn(gpu) for gpu in found.SEEDS], "Calls drawn at random", brief=True)
    assert page == PAGE.read_text(encoding="utf-8")

"""README's claims: predictions beside library calls drawn at random, on an H100 and an H200."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import pytest
from scripts import ROOT, load_script

PAGE = ROOT / "docs" / "generated" / "random-draws.md"
README = ROOT / "README.md"


@cache
def script() -> ModuleType:
    return load_script("benchmarks/random_draws.py")


def row(heading: str, *first: str) -> list[tuple[str, str]]:
    """The cells of a row of the page below a heading, each as that of the H100 and that of the H200."""
    below = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n\n")[1].split("\n\n")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in below.splitlines()]
    (cells,) = [line[len(first) :] for line in lines if line[: len(first)] == list(first)]
    return [(h100, h200) for h100, h200 in (cell.split("/") for cell in cells)]


def test_readme_says_what_the_page_says() -> None:
    launches, _, _, _, near, *_ = row("In short", "all", "all")
    _, mean, *_ = row("Times of calls, under the profiler", "all", "30 us and longer")
    text = README.read_text(encoding="utf-8")
    for gpu, drawn, share, error in zip(("H100", "H200"), launches, near, mean, strict=True):
        claim = (
            f"| {gpu} | {drawn} drawn launches: {share} % within 5 % or 2 MB "
            f"| drawn calls {float(error):.1f} % (mean)"
        )
        assert claim in text, f"docs/generated/random-draws.md says: {claim}"


def test_the_page_is_of_the_newest_draws() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for gpu, seeds in script().SEEDS.items():
        assert f"{gpu.upper()} (seed {seeds[-1]})" in text


@pytest.mark.slow
def test_the_page_is_what_the_script_writes() -> None:
    script_module = script()
    page = script_module.page(
        [script_module.drawn(gpu) for gpu in script_module.SEEDS],
        "Calls drawn at random",
        brief=True,
    )
    assert page == PAGE.read_text(encoding="utf-8")

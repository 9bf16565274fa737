"""The docs: every command on a page runs, every figure printed below a command is one that it prints, every link leads
somewhere, and every file that a page or a message names is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import iosim
from iosim.commands.cli import main

ROOT = Path(iosim.__file__).resolve().parent.parent
DOCS = ROOT / "docs"

if not DOCS.is_dir():
    pytest.skip("iosim runs from an install without its docs", allow_module_level=True)

PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
FIGURE = re.compile(r"\d[\d,]*\.?\d*(?: (?:[kMGT]?B|us|ms|s|%)\b)?")


def title(page: Path) -> str:
    return str(page.relative_to(DOCS))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks of a page."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What a link may name of a page after #."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(kind in ("sh", "python") for kind, _ in blocks(p))], ids=title
)
def test_commands_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for kind, text in blocks(page):
        if kind == "sh":
            for command in text.strip().splitlines():
                assert main(shlex.split(command)[1:]) == 0, command
            output = capsys.readouterr()
            assert output.err == "", text
            printed = output.out
        elif kind == "python":
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True,
                                  env=dict(os.environ))  # fmt: skip
            printed = done.stdout
        elif kind == "text":
            missing = [figure for figure in FIGURE.findall(text) if figure not in printed]
            assert not missing, f"not printed by the command above: {missing}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)", text):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda p: p.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    if page.parent.name == "generated":
        return
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?:iosim|docs|kernels|experiments|benchmarks|examples|tests|reports)/[\w./-]*\w", text):
        assert (ROOT / name).exists(), name


def test_pages_that_code_names_are_there() -> None:
    for folder in ("iosim", "benchmarks", "kernels", "examples", "tests", "reports"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{path.name}: {name}"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.name == "README.md" or f"({page.relative_to(DOCS)})" in index, page.name

"""Pages: what they hold, the commands that they name, and their gallery."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scripts import ROOT, load_script
from small_pages import page

from iosim.commands import common
from iosim.show.html import html
from iosim.show.page import Page, Panel, Section, listed, markdown


def test_prose_has_bold_code_arrows_and_breaks_and_nothing_else() -> None:
    text = html(Page("t", "SM<->L2 by **hand** and `a < b`\nnext <i>", ()))
    assert ">SM↔L2 by <b>hand</b> and <code>a &lt; b</code><br>next &lt;i&gt;</p>" in text


def test_lists_and_sections_without_content_are_left_out() -> None:
    assert listed("notes", "Notes", ()) == ()
    plots = Section("plots", "Only plots", ("about plots",), panels=(Panel("p", "p", "p", (), {}),))
    text = markdown(Page("t", "s", (plots, Section("said", "Said", ("prose",)))))
    assert "Only plots" not in text
    assert "## Said\n\nprose" in text


@pytest.mark.parametrize(
    ("count", "across"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (7, 3)]
)
def test_panels_fill_rows_alike(count: int, across: int) -> None:
    panels = tuple(Panel(f"p{n}", "", "", (), {}) for n in range(count))
    assert Section("s", "s", panels=panels).across == across


def test_markdown_lists_the_commands_that_its_tables_name() -> None:
    text = markdown(page("w"))
    assert text.startswith("# w\n\nw\n\nw; w\n\nw\n")
    assert "P1  w" in text
    unnamed = Page(
        "t", "s", (Section("a", "A", ("prose",)),), command="iosim x", commands={"P1": "iosim y"}
    )
    assert "iosim y" not in markdown(unnamed)


def test_a_page_says_which_command_made_it_and_its_verdict_first() -> None:
    page = Page(
        "t", "s", (), command="iosim x --y", answer=("It is 1.5 MB. Of them 2 are read.", "More.")
    )
    assert (page.made_by, page.lead) == ("iosim x", ("It is 1.5 MB.",))
    text = html(page)
    assert '<meta name="generator" content="iosim x">' in text
    assert text.index("It is 1.5 MB.") < text.index("Of them 2 are read.") < text.index("More.")
    assert Page("t", "s", (), answer=("One.",), verdict=("V.",)).lead == ("V.",)


def test_a_typed_command_does_not_say_where_its_files_went(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "ring",
        "--num-gpus",
        "4",
        "--html",
        "/x/y.html",
        "--csv=a.csv",
        "-o",
        "b",
        "--out",
        "c",
        "--link",
        "a b",
        "--force",
    ]
    monkeypatch.setattr(sys, "argv", ["iosim", *words])
    assert common.typed("ring") == "iosim ring --num-gpus 4 --link 'a b'"
    assert common.typed("trace") == "iosim trace"


GALLERY = sorted((ROOT / "reports").glob("*.html"))


@pytest.mark.parametrize("file", GALLERY, ids=lambda file: file.name)
def test_the_gallery_is_small(file: Path) -> None:
    assert file.stat().st_size < 400_000
    assert file.with_suffix(".md").exists()


@pytest.mark.slow
def test_the_gallery_can_be_made_anywhere(tmp_path: Path) -> None:
    load_script("docs/make_gallery.py").make(["decode"], tmp_path)
    assert "<figure>" in (tmp_path / "decode.html").read_text(encoding="utf-8")
    assert "| h200-sxm |" in (tmp_path / "decode.md").read_text(encoding="utf-8")

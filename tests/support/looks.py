"""What can be seen of a page and must not be: faults at a width, and on paper.

`looks.js` finds what a browser's layout tells. Where pages break is read from the PDF: links to marks that are put into
the page become named destinations, which say on which page each mark came to stand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from browser import Browser

LOOKS = Path(__file__).with_name("looks.js").read_text(encoding="utf-8")
PAPER_PX = 688
"""182 mm: A4 less its margins."""
TOLD = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")

MARKS = """(() => {
  const links = document.createElement("p");
  links.style.cssText = "font-size:1px;position:absolute;top:0;left:0";
  const mark = (node, where, id) => {
    const anchor = document.createElement(node.tagName === "TBODY" ? "tr" : "i");
    anchor.id = id;
    node.insertAdjacentElement(where, anchor);
    const link = document.createElement("a");
    link.href = `#${id}`;
    link.textContent = ".";
    links.append(link);
  };
  document.querySelectorAll("figure").forEach((figure, n) => {
    mark(figure, "afterbegin", `figure-${n}-begins`);
    mark(figure, "beforeend", `figure-${n}-ends`);
  });
  document.querySelectorAll("section").forEach((section, n) => {
    const heading = section.querySelector("h2");
    const follows = section.querySelector("figure, td, li, pre, p");
    if (!heading || !follows) return;
    mark(heading, "afterbegin", `heading-${n}-begins`);
    mark(follows, "afterbegin", `heading-${n}-follows`);
  });
  document.body.append(links);
})()"""


def faults(browser: Browser, page: Path, width: int, scheme: str = "light") -> list[list[str]]:
    """All that is wrong with a page in a window of that width, every section open: [kind, where, what] each."""
    browser.open(page, width, scheme)
    return [*_looks(browser, False), *_told(browser)]


def faults_on_paper(browser: Browser, page: Path) -> list[list[str]]:
    """The same on A4, and what pages cut in two."""
    browser.open(page, 1280)
    browser.evaluate("iosimPage.done")
    browser.evaluate(MARKS)
    cut = broken(pages_of_marks(browser.printed()))
    warnings = _told(browser)
    browser.open(page, PAPER_PX)
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        return [*cut, *warnings, *_looks(browser, True), *_told(browser)]
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


def _looks(browser: Browser, paper: bool) -> list[list[str]]:
    browser.evaluate("iosimPage.done")
    faults: list[list[str]] = browser.evaluate(f"({LOOKS})({str(paper).lower()})")
    return faults


def _told(browser: Browser) -> list[list[str]]:
    events: list[dict[str, Any]] = [e for e in browser.events if e.get("method") in TOLD]
    return [["console", str(e["method"]), str(e["params"])[:300]] for e in events]


def pages_of_marks(pdf: bytes) -> dict[str, int]:
    """The number of the page on which each mark stands."""
    pages = sorted(int(n) for n in re.findall(rb"(\d+) 0 obj\n<</Type /Page\n", pdf))
    marks = re.findall(rb"/((?:figure|heading)-\d+-\w+) \[(\d+) 0 R", pdf)
    return {name.decode(): pages.index(int(page)) for name, page in marks}


def broken(marks: dict[str, int]) -> list[list[str]]:
    """Figures that begin and end on two pages, and headings that stand on another page than what follows them."""
    ends = {"begins": ("ends", "follows")}
    return [
        ["split", name.removesuffix("-begins"), f"page {page + 1} and {marks[other] + 1}"]
        for name, page in marks.items()
        if name.endswith("-begins")
        for other in (name.replace("begins", end) for end in ends["begins"])
        if other in marks and marks[other] != page
    ]

"""The HTML report in headless Chromium: fetches nothing, draws what is open, folds, reveals, hides series, hands out
its tables, and comes back from paper as it was. How it looks is in test_looks.py."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, PATIENCE_S, Browser

from iosim.problem.attention import AttentionProblem
from iosim.show.html import PLOTLY, html
from iosim.show.page import Page, Panel, Section
from iosim.studies.report import Report, ReportRequest, build, render

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
WIDTHS = (1280, 390)
DRAWN = "[...document.querySelectorAll('.js-plotly-plot')].map((p) => p.id)"


@pytest.fixture(scope="module")
def report() -> Report:
    problems = tuple(AttentionProblem(heads=32, kv_heads=8, seq_q=n, head_dim=128, mask="causal")
                     for n in (512, 4096, 32768))  # fmt: skip
    return build(ReportRequest.of(("t4", "l4"), ("naive", "cutlass"), problems, method="capacity"))


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(report, "html"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


def panels(report: Report, *names: str) -> list[str]:
    return [p.id for f in report.figures if f.id in names for p in f.panels]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_console_is_silent_and_nothing_is_fetched(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    browser.evaluate("iosimPage.done")
    told = [e for e in browser.events if e["method"] in (
        "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]  # fmt: skip
    assert told == []
    fetched = {e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"}
    assert [url for url in fetched if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in fetched if url.startswith("file:")]) == 1


def test_what_is_folded_is_drawn_when_it_opens(browser: Browser, page: Path, report: Report) -> None:
    browser.open(page, WIDTHS[0])
    browser.evaluate("iosimPage.done")
    assert browser.evaluate(DRAWN) == panels(report, "overview")
    browser.evaluate("document.querySelector('#time summary').click()")
    browser.evaluate("new Promise((done) => setTimeout(done, 50)).then(() => iosimPage.draw())")
    assert browser.evaluate(DRAWN) == panels(report, "overview", "time")
    browser.evaluate("document.querySelector('button.all').click()")
    browser.evaluate("new Promise((done) => setTimeout(done, 50)).then(() => iosimPage.draw())")
    assert browser.evaluate(DRAWN) == [p.id for f in report.figures for p in f.panels]
    assert browser.evaluate("document.querySelector('button.all').textContent") == "Fold all"


def test_a_link_opens_what_is_folded_around_its_target(browser: Browser, page: Path) -> None:
    browser.open(page, WIDTHS[0])
    opened = "document.querySelector('#command-lines details').open"
    assert browser.evaluate(opened) is False
    browser.evaluate("document.querySelector('#summary td a').click()")
    browser.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert browser.evaluate(opened) is True


def test_series_hide_and_come_back(browser: Browser, page: Path) -> None:
    browser.open(page, WIDTHS[1])
    browser.evaluate("document.querySelector('#traffic-l2 summary').click()")
    browser.evaluate("new Promise((done) => setTimeout(done, 50)).then(() => iosimPage.draw())")
    hidden = ("[...document.querySelectorAll('#traffic-l2 .plot')].flatMap((p) => "
              "p.data.filter((t) => t.visible === false).map((t) => t.name))")  # fmt: skip
    press = "document.querySelector('#traffic-l2 button.series').click()"
    browser.evaluate(press)
    assert browser.evaluate(hidden) == ["naive"] * 2  # one a panel
    browser.evaluate(press)
    assert browser.evaluate(hidden) == []


def test_paper_draws_all_and_leaves_the_page_as_it_was(browser: Browser, page: Path, report: Report) -> None:
    browser.open(page, WIDTHS[0])
    browser.evaluate("iosimPage.done")
    state = ("[document.documentElement.className, document.querySelectorAll('details[open]').length, "
             "document.querySelector('#overview-1').layout.width]")  # fmt: skip
    before = browser.evaluate(state)
    assert browser.printed()[:4] == b"%PDF"
    assert browser.evaluate(DRAWN) == [p.id for f in report.figures for p in f.panels]
    assert browser.evaluate(f"new Promise((done) => setTimeout(done, 50)).then(() => {state})") == before


def test_downloads_are_the_tables(browser: Browser, page: Path, report: Report, tmp_path: Path) -> None:
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tables = {"summary": report.summary, **{f.id: f.table for f in report.figures}}
    for number, (name, table) in enumerate(tables.items()):
        if number % 8 == 0:  # Chromium takes ten downloads of a page that no user asked for
            browser.open(page, WIDTHS[0])
        browser.evaluate(f"document.querySelector('button[data-table=\"{name}\"]').click()")
        header, *rows = csv.reader(io.StringIO(arrived(tmp_path / f"{name}.csv")))
        assert header == [c.key for c in table.columns]
        assert len(rows) == len(table.rows)
        for got, row in zip(rows, table.rows, strict=True):
            for column, cell, value in zip(table.columns, got, row, strict=True):
                if column.key == "commands":
                    assert cell == " ; ".join(report.commands[i] for i in str(value).split())
                elif isinstance(value, int | float):
                    assert float(cell) == value
                else:
                    assert cell == ("" if value is None else value)


def arrived(path: Path) -> str:
    """The text of a download, once it is there: Chromium renames it when it is complete."""
    end = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ground_follows_the_scheme(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page, WIDTHS[0], scheme)
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_shared_copy_of_plotly_is_found_and_draws(browser: Browser, tmp_path: Path) -> None:
    """Every kind of trace that pages hold, from a page that names plotly.js in a folder above."""
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "x": [1, 2], "y": [1, 2]},
        {"type": "bar", "x": [1, 2], "y": [1, 2]},
        {"type": "heatmap", "x": [1, 2], "y": [1, 2], "z": [[1, 2], [3, 4]]},
    ]
    plots = tuple(Panel(f"plot-{n}", "", "", (t,), {"xaxis": {}, "yaxis": {}}) for n, t in enumerate(traces))
    (tmp_path / "pages").mkdir()
    (tmp_path / PLOTLY.name).write_bytes(PLOTLY.read_bytes())
    place = tmp_path / "pages" / "page.html"
    place.write_text(html(Page("t", "s", (Section("plots", "p", panels=plots),)), f"../{PLOTLY.name}"))
    browser.open(place, 1280)
    browser.evaluate("iosimPage.done")
    assert browser.evaluate("document.querySelectorAll('.plot .main-svg').length") >= len(traces)
    drawn = ".scatterlayer .point, .barlayer .point path, .heatmaplayer image"
    assert browser.evaluate(f"document.querySelectorAll('{drawn}').length") == 2 + 2 + 1
    assert not [e for e in browser.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]

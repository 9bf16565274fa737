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
from iosim.show import axes
from iosim.show.html import html
from iosim.show.page import Page, Panel, Section
from iosim.studies.report import CaseGrid, Report, build, render

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
WIDTHS = (1280, 390)
DRAWN = "[...document.querySelectorAll('.plot.drawn')].map((p) => p.id)"


@pytest.fixture(scope="module")
def report() -> Report:
    problems = tuple(
        AttentionProblem(heads=32, kv_heads=8, seq_q=n, head_dim=128, mask="causal")
        for n in (512, 4096, 32768)
    )
    return build(CaseGrid.of(("t4", "l4"), ("naive", "cutlass"), problems, method="capacity"))


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
def test_the_console_is_silent_and_nothing_is_fetched(
    browser: Browser, page: Path, width: int
) -> None:
    browser.open(page, width)
    browser.evaluate("iosimPage.done")
    events = [
        e
        for e in browser.events
        if e["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    ]
    assert events == []
    fetched = {
        e["params"]["request"]["url"]
        for e in browser.events
        if e["method"] == "Network.requestWillBeSent"
    }
    assert [url for url in fetched if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in fetched if url.startswith("file:")]) == 1


def test_what_is_folded_is_drawn_when_it_opens(
    browser: Browser, page: Path, report: Report
) -> None:
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
    hidden = (
        "iosimPage.ready.then(({ panels }) => [...document.querySelectorAll('#traffic-l2 .plot')].flatMap((p) => "
        "panels[p.id].data.filter((t) => t.visible === false).map((t) => t.name)))"
    )
    press = "document.querySelector('#traffic-l2 button.series').click()"
    browser.evaluate(press)
    assert browser.evaluate(hidden) == ["naive"] * 2  # one a panel
    browser.evaluate(press)
    assert browser.evaluate(hidden) == []


def test_paper_draws_all_and_leaves_the_page_as_it_was(
    browser: Browser, page: Path, report: Report
) -> None:
    browser.open(page, WIDTHS[0])
    browser.evaluate("iosimPage.done")
    state = (
        "[document.documentElement.className, document.querySelectorAll('details[open]').length, "
        "document.querySelector('#overview-1').width]"
    )
    before = browser.evaluate(state)
    assert browser.printed()[:4] == b"%PDF"
    assert browser.evaluate(DRAWN) == [p.id for f in report.figures for p in f.panels]
    assert (
        browser.evaluate(f"new Promise((done) => setTimeout(done, 50)).then(() => {state})")
        == before
    )


def test_downloads_are_the_tables(
    browser: Browser, page: Path, report: Report, tmp_path: Path
) -> None:
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


def test_a_series_that_hides_takes_its_names_along(browser: Browser, page: Path) -> None:
    browser.open(page, WIDTHS[0])
    browser.evaluate("iosimPage.done")
    names = "[...document.querySelectorAll('#overview-1 .note')].map((t) => t.textContent)"
    every = browser.evaluate(names)
    press = "document.querySelector('#overview button.series').click()"
    browser.evaluate(f"{press}; iosimPage.ready")
    names_left = browser.evaluate(names)
    assert [name for name in every if not name.endswith(" HBM")] == names_left
    assert 0 < len(names_left) < len(every)
    browser.evaluate(f"{press}; iosimPage.ready")
    assert browser.evaluate(names) == every


def test_keys_go_from_value_to_value_and_a_touch_stays(browser: Browser, page: Path) -> None:
    browser.open(page, WIDTHS[1])
    browser.evaluate("iosimPage.done")
    browser.evaluate("document.querySelector('#overview-1').focus()")
    tooltip = "(() => { const t = document.querySelector('#overview-1 + .tip'); return t.hidden ? '' : t.innerText; })()"

    def press(key: str) -> str:
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        text: str = browser.evaluate(tooltip)
        return text

    first, second = press("ArrowRight"), press("ArrowRight")
    assert first
    assert second not in ("", first)
    assert press("ArrowLeft") == first
    assert press("ArrowLeft") not in ("", first)  # the last
    assert press("Escape") == ""
    mark = "document.querySelector('#overview-1 .mark:last-of-type').getBoundingClientRect()"
    x, y = browser.evaluate(
        f"(() => {{ const b = {mark}; return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
    )
    for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    assert browser.evaluate(tooltip)
    browser.evaluate("document.querySelector('#overview-1').blur()")
    assert browser.evaluate(tooltip) == ""


def test_ticks_tell_logarithmic_axes_and_names_stand_in_two_rows(
    browser: Browser, tmp_path: Path
) -> None:
    names = [f"a name of some length {n}" for n in range(4)]
    drawn: list[tuple[list[Any], dict[str, Any]]] = [
        ([1, 1000], axes.log_axis([1, 1000], "", str)),
        ([512, 4096], axes.length_axis([512, 4096])),
        (names, axes.category_axis(names)),
    ]
    lines = [axes.line("a", xs, [1] * len(xs), [""] * len(xs), 0) for xs, _ in drawn]
    layouts = [axes.layout(x, axes.axis("")) for _, x in drawn]
    plots = tuple(Panel(f"plot-{n}", "", "", (line,), layouts[n]) for n, line in enumerate(lines))
    place = tmp_path / "page.html"
    place.write_text(html(Page("t", "s", (Section("plots", "p", panels=plots, most_across=1),))))
    browser.open(place, 560)
    browser.evaluate("iosimPage.done")
    small = "[...document.querySelectorAll('.plot .axis')].map((a) => (a.getAttribute('d').match(/v3/g) ?? []).length)"
    assert browser.evaluate(small) == [31, 0, 0]  # 0.7 to 0.9, 1 to 9, 10 to 90, 100 to 900, 1000
    rows = (
        "new Set([...document.querySelectorAll('#plot-2 .tick')].filter((t) => t.textContent.startsWith('a name'))"
        ".map((t) => t.getBoundingClientRect().y)).size"
    )
    assert browser.evaluate(rows) == 2


def test_every_kind_of_trace_is_drawn(browser: Browser, tmp_path: Path) -> None:
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "markers", "x": [1, 2], "y": [1, 2], "text": ["one", "two"]},
        {"type": "bar", "x": [1, 2], "y": [1, 2], "text": ["one", "two"]},
        {
            "type": "heatmap",
            "x": ["a", "b"],
            "y": ["c", "d"],
            "z": [[1, 2], [3, 4]],
            "text": [["one", "two"]] * 2,
            "colorscale": [[0, "#000000"], [1, "#ffffff"]],
        },
    ]
    plots = tuple(
        Panel(f"plot-{n}", "", "", (t,), {"xaxis": {}, "yaxis": {}}) for n, t in enumerate(traces)
    )
    place = tmp_path / "page.html"
    place.write_text(html(Page("t", "s", (Section("plots", "p", panels=plots),))))
    browser.open(place, 1280)
    browser.evaluate("iosimPage.done")
    marks = "[...document.querySelectorAll('.plot')].map((p) => p.querySelectorAll('.mark').length)"
    assert browser.evaluate(marks) == [2, 2, 4]
    for n in range(len(traces)):
        over = (
            f"(() => {{ const p = document.querySelector('#plot-{n}'); "
            "const b = p.querySelector('.mark').getBoundingClientRect(); "
            "const at = { clientX: b.x + b.width / 2, clientY: b.y + b.height / 2 }; "
            "p.dispatchEvent(new PointerEvent('pointermove', at)); "
            "return p.nextElementSibling.textContent })()"
        )
        assert browser.evaluate(over) == "one"
    assert not [
        e
        for e in browser.events
        if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
    ]

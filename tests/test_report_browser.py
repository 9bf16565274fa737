"""The HTML report in headless Chromium, at 1280 and at 390 pixels: drawn, quiet, readable, downloads work.

Chromium is driven through a pipe with its DevTools protocol, so that the page is opened from its file as it is, at a
true width of 390 pixels, and every request, log line and exception is seen.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iosim.problem.attention import AttentionProblem
from iosim.show.html import PLOTLY, html
from iosim.show.page import Page, Panel, Section
from iosim.studies.report import ReportRequest, build, render
from iosim.studies.report.report import Report

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
         "--remote-debugging-pipe"]  # fmt: skip
WIDTHS = (1280, 390)
PATIENCE_S = 60.0

PROBE = """(async () => {
  await iosimPage.done;
  const boxes = (nodes) => [...nodes].map((n) => n.getBoundingClientRect()).filter((b) => b.width);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const plots = [...document.querySelectorAll(".plot")].map((plot) => {
    const frame = plot.getBoundingClientRect();
    const texts = boxes(plot.querySelectorAll(".xtick text, .ytick text, .g-xtitle text, .g-ytitle text, "
      + ".cbaxis text, .colorbar .cbtitle text"));
    return {
      id: plot.id, svgs: plot.querySelectorAll("svg.main-svg").length, width: frame.width,
      marks: plot.querySelectorAll(".scatterlayer .point, .heatmaplayer image").length,
      texts: texts.length,
      overlaps: texts.filter((a, n) => texts.slice(n + 1).some((b) => meet(a, b))).length,
      clipped: texts.filter((b) => b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1
        || b.bottom > frame.bottom + 1).length,
    };
  });
  const hidden = () => [...document.querySelectorAll("#traffic-l2 .plot")].flatMap((p) =>
    p.data.filter((t) => t.visible === false).map((t) => t.name));
  const button = document.querySelector("#traffic-l2 button.series");
  button.click();
  const toggled = hidden();
  button.click();
  document.querySelectorAll("details").forEach((d) => { d.open = true; });
  const wide = [...document.querySelectorAll("body *")].filter((n) => !n.closest(".scroll, .plot")
    && n.getBoundingClientRect().right > innerWidth + 1).map((n) => n.tagName + "." + n.className);
  document.querySelectorAll("details").forEach((d) => { d.open = false; });
  return {
    plots, toggled, back: hidden(), wide, width: innerWidth, page: document.documentElement.scrollWidth,
    smallest: Math.min(...[...document.querySelectorAll("p, td, li, code")]
      .map((n) => parseFloat(getComputedStyle(n).fontSize))),
    drawn: document.documentElement.dataset.drawn,
  };
})()"""


class Browser:
    """One headless Chromium with a profile of its own, spoken to through a pipe; `events` is what it told unasked."""

    def __init__(self, folder: Path) -> None:
        their_read, self._write = os.pipe()
        self._read, their_write = os.pipe()
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        redirect = f'exec "$0" "$@" 3<&{their_read} 4>&{their_write}'
        self._process = subprocess.Popen(["bash", "-c", redirect, *command], pass_fds=(their_read, their_write),
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(their_read)
        os.close(their_write)
        self._waiting = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self._read, 1 << 20) if ready else b""
            assert more, "Chromium went silent"
            self._waiting += more
        message, _, self._waiting = self._waiting.partition(b"\0")
        data: dict[str, Any] = json.loads(message)
        return data

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a DevTools command."""
        self._last += 1
        session = {"sessionId": self._session} if self._session else {}
        message = json.dumps({"id": self._last, "method": method, "params": params, **session})
        os.write(self._write, message.encode() + b"\0")
        while (data := self._message()).get("id") != self._last:
            self.events.append(data)
        assert "error" not in data, data
        result: dict[str, Any] = data["result"]
        return result

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Load a file in a window of that width."""
        self.events.clear()
        window = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **window)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._message())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of what it promises."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        os.write(self._write, b'{"id":0,"method":"Browser.close"}\0')
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)


@pytest.fixture(scope="module")
def report() -> Report:
    problems = tuple(AttentionProblem(heads=32, kv_heads=8, seq_q=512 << n, head_dim=128, mask="causal")
                     for n in range(10))  # fmt: skip
    return build(ReportRequest.of(("t4", "l4", "a100"), ("naive", "cutlass", "fa2"), problems))


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(report, "html"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


@pytest.fixture(scope="module", params=WIDTHS)
def found(request: pytest.FixtureRequest, browser: Browser, page: Path) -> dict[str, Any]:
    """What the probe finds at one width, and all that the browser told meanwhile."""
    browser.open(page, request.param)
    data: dict[str, Any] = browser.evaluate(PROBE)
    assert data["width"] == request.param
    return {**data, "events": list(browser.events)}


def test_the_console_is_silent_and_nothing_is_fetched(found: dict[str, Any]) -> None:
    told = [e for e in found["events"] if e["method"] in (
        "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]  # fmt: skip
    assert told == []
    fetched = {e["params"]["request"]["url"] for e in found["events"] if e["method"] == "Network.requestWillBeSent"}
    assert [url for url in fetched if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in fetched if url.startswith("file:")]) == 1


def test_every_panel_is_drawn(found: dict[str, Any], report: Report) -> None:
    assert found["drawn"] == "true"
    assert [p["id"] for p in found["plots"]] == [p.id for f in report.figures for p in f.panels]
    for plot in found["plots"]:
        assert plot["svgs"] >= 1, plot
        assert plot["marks"] >= 1, plot
        assert plot["width"] > 280, plot
        assert plot["texts"] >= 6, plot


def test_ticks_and_titles_are_whole_and_apart(found: dict[str, Any]) -> None:
    assert [p for p in found["plots"] if p["overlaps"] or p["clipped"]] == []


def test_nothing_is_wider_than_the_page(found: dict[str, Any]) -> None:
    assert found["wide"] == []
    assert found["page"] <= found["width"]
    assert found["smallest"] >= 12


def test_series_hide_and_come_back(found: dict[str, Any]) -> None:
    assert found["toggled"] == ["naive"] * 3  # one a panel
    assert found["back"] == []


def test_downloads_are_the_tables(browser: Browser, page: Path, report: Report, tmp_path: Path) -> None:
    browser.open(page, WIDTHS[0])
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tables = {"summary": report.summary, **{f.id: f.table for f in report.figures}}
    for name, table in tables.items():
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
@pytest.mark.parametrize("width", WIDTHS)
def test_screenshots_are_pictures(browser: Browser, page: Path, width: int, scheme: str, tmp_path: Path) -> None:
    browser.open(page, width, scheme)
    browser.evaluate("iosimPage.done")
    browser.screenshot(tmp_path / "page.png")
    picture = (tmp_path / "page.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(picture[16:20]) == width
    assert len(picture) > 50_000  # an empty page is a few kB
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_shared_copy_of_plotly_is_found_and_draws(browser: Browser, tmp_path: Path) -> None:
    """Every kind of trace that pages hold, from a page that names plotly.js in a folder above."""
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "x": [1, 2], "y": [1, 2]},
        {"type": "bar", "x": [1, 2], "y": [1, 2]},
        {"type": "heatmap", "x": [1, 2], "y": [1, 2], "z": [[1, 2], [3, 4]]},
    ]
    panels = tuple(Panel(f"plot-{n}", "", "", (t,), {"xaxis": {}, "yaxis": {}}) for n, t in enumerate(traces))
    (tmp_path / "pages").mkdir()
    (tmp_path / PLOTLY.name).write_bytes(PLOTLY.read_bytes())
    place = tmp_path / "pages" / "page.html"
    place.write_text(html(Page("t", "s", (Section("plots", "p", panels=panels),)), f"../{PLOTLY.name}"))
    browser.open(place, 1280)
    browser.evaluate("iosimPage.done")
    assert browser.evaluate("document.querySelectorAll('.plot .main-svg').length") >= len(traces)
    drawn = ".scatterlayer .point, .barlayer .point path, .heatmaplayer image"
    assert browser.evaluate(f"document.querySelectorAll('{drawn}').length") == 2 + 2 + 1
    assert not [e for e in browser.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]

"""Every kind of page as it looks, at three widths, in the dark and on paper; and each fault looked for, planted.

Nothing is wider than the page, no label lies on another, no panel is empty, no word is cut off, nothing is said on the
console, no chart is cut in two by a page's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from effort import some
from looks import broken, faults, faults_on_paper

from iosim.problem.attention import AttentionProblem
from iosim.show import axes
from iosim.show.html import STATIC, html
from iosim.show.page import Page, Panel, Section
from iosim.show.tables import Column, Table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
WIDTHS = (1280, 768, 390)


def problems(*lengths: int) -> tuple[AttentionProblem, ...]:
    return tuple(
        AttentionProblem(heads=32, kv_heads=8, seq_q=n, head_dim=128, mask="causal")
        for n in lengths
    )


def report(*lengths: int, gpus: tuple[str, ...] = ("t4", "l4", "a100", "h100")) -> Page:
    from iosim.studies.report import CaseGrid, as_page, build

    kernels = ("naive", "cutlass", "fa2")
    return as_page(build(CaseGrid.of(gpus, kernels, problems(*lengths), method="capacity")))


def compare(*lengths: int) -> Page:
    from iosim.studies import compare as study

    comparison = study.compare(
        problems(*lengths),
        ["naive", "cutlass", "fa2", "cudnn"],
        ["a100", "h100"],
        method="capacity",
    )
    return study.as_page(comparison, "iosim compare")


def decode(*contexts: int) -> Page:
    from iosim.studies.decode import Decoding, ModelShape, sweep

    gpus = ("l4", "a100", "h100", "h200")
    return Decoding(tuple(p for gpu in gpus for p in sweep(ModelShape(), contexts, gpu))).as_page()


def ring(*names: str) -> Page:
    from iosim.hardware.profile import load_profile
    from iosim.studies.distributed import cluster, study
    from iosim.studies.distributed.face import as_page

    gpu, (problem,) = load_profile("h100"), problems(65536)
    results = study(problem, 8, gpu, cluster(gpu, "nvlink"), names=list(names) or None)
    return as_page(results, problem, 8, "8 x h100-sxm", "iosim ring")


def train() -> Page:
    from iosim.studies.training import Decoder, Setup, frontier, predict_training

    model = Decoder(layers=12, width=768, heads=12)
    setup = Setup(seq_len=4096)
    limits = frontier(
        model,
        setup,
        predict_training(model, setup, "l4").profile,
        "width",
        [512, 768, 2048],
        [1024, 4096, 8192, 16384],
    )
    return predict_training(model, setup, "l4").as_page(limits, "iosim train-memory")


def trace() -> Page:
    from iosim import predict
    from iosim.studies.trace.face import as_page
    from iosim.studies.trace.trace import trace as traced

    (problem,) = problems(2048)
    return as_page(
        [traced(predict(problem, kernel, "a100")) for kernel in ("fa2", "naive")], "iosim trace"
    )


def validation() -> Page:
    from iosim.evidence.validate import compare as beside
    from iosim.evidence.validate import read
    from iosim.evidence.validate.report import comparison_page
    from iosim.evidence.validate.rows import default_files
    from iosim.hardware.profile import load_profile

    rows = [row for file in default_files()[:1] for row in read(file)][::40]
    return comparison_page(beside(rows, load_profile("h200")), "iosim validate")


PAGES = {
    "report": lambda: report(512, 4096, 65536, gpus=("t4", "h100")),
    "compare": lambda: compare(4096),
    "decode": lambda: decode(1024, 8192, 65536),
    "ring": ring,
    "train": train,
    "trace": trace,
}
OTHERS = {
    "report-four-gpus": lambda: report(512, 1024, 4096, 16384, 65536),
    "report-one-length": lambda: report(4096),
    "compare-lengths": lambda: compare(1024, 4096, 16384),
    "decode-one-context": lambda: decode(8192),
    "ring-one-schedule": lambda: ring("balanced"),
    "validation": validation,
}
"""Further forms of the same pages."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(
    scope="module",
    params=[*PAGES, *(pytest.param(name, marks=pytest.mark.slow) for name in some(OTHERS))],
)
def page(request: pytest.FixtureRequest, folder: Path) -> Path:
    place = folder / f"{request.param}.html"
    place.write_text(html((PAGES | OTHERS)[request.param]()), encoding="utf-8")
    return place


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wrong_at_any_width(browser: Browser, page: Path, width: int) -> None:
    assert faults(browser, page, width) == []


@pytest.mark.parametrize("kind", ["compare", "train"])
def test_nothing_is_wrong_in_the_dark(browser: Browser, folder: Path, kind: str) -> None:
    place = folder / f"{kind}-dark.html"
    place.write_text(html(PAGES[kind]()), encoding="utf-8")
    assert faults(browser, place, WIDTHS[0], "dark") == []


def test_nothing_is_wrong_on_paper(browser: Browser, page: Path) -> None:
    assert faults_on_paper(browser, page) == []


# --- planted faults ---------------------------------------------------------------------------------------------------


def plot(n: int = 1, **more: Any) -> Panel:
    """A panel without fault."""
    lines = (axes.line("a", [1, 2, 3], [1.0, 2.0, 3.0], ["", "", ""], 0),)
    layout = axes.layout(axes.axis("x"), axes.axis("y"), **more)
    return Panel(f"plot-{n}", f"Plot {n}", "A line from 1 to 3.", lines, layout)


def with_panels(*panels: Panel, **more: Any) -> Page:
    return Page(
        "A question?",
        "A subject.",
        (Section("plots", "Plots", ("A caption.",), panels=panels, **more),),
        command="iosim x",
    )


def word(text: str, x: float) -> dict[str, Any]:
    return {"xref": "paper", "x": x, "xanchor": "left", "y": 2, "text": text, "showarrow": False}


WIDE = Table(
    tuple(Column(f"c{n}", f"column {n}") for n in range(30)),
    (tuple("some words" for _ in range(30)),),
)
PLAIN = with_panels(plot())
FAULTY = {
    "overflow": (PLAIN, '<div style="width:1500px">wide</div>'),
    "clipped": (
        PLAIN,
        '<p style="width:60px;overflow:hidden;white-space:nowrap">cut off somewhere in the middle</p>',
    ),
    "overlap": (with_panels(plot(annotations=[word("one label", 0.5), word("another", 0.52)])), ""),
    "empty": (with_panels(replace(plot(), data=())), ""),
    "one bar": (with_panels(replace(plot(), data=(axes.bar("a", ["one"], [1.0], [""], 0),))), ""),
    "unnamed": (
        with_panels(
            replace(
                plot(),
                data=tuple(
                    axes.line(name, [1, 2], [n, 2.0], ["", ""], n) for n, name in enumerate("ab")
                ),
            )
        ),
        "",
    ),
    "hidden": (
        with_panels(
            replace(
                plot(annotations=[word("a, b", 0.5)]),
                data=tuple(
                    axes.line(name, [1, 2], [1.0, 2.0], ["", ""], n) for n, name in enumerate("ab")
                ),
            )
        ),
        "",
    ),
    "console": (PLAIN, '<script>console.error("something went wrong")</script>'),
    "width": (PLAIN, "<style>.plot svg { width: 300px !important }</style>"),
    "edge": (
        Page("A question?", "", (Section("t", "T", table=WIDE),)),
        "<style>.scroll { background: none }</style>",
    ),
    "contrast": (PLAIN, '<p style="color:#bbb">hardly to be seen</p>'),
    "small": (PLAIN, '<p style="font-size:9px">tiny</p>'),
    "nameless": (PLAIN, "<button></button>"),
    "no keyboard": (PLAIN, '<button tabindex="-1">press</button>'),
}


def faulty(kind: str, folder: Path) -> Path:
    """A page with one fault planted."""
    page, planted = FAULTY[kind]
    place = folder / f"{kind}.html"
    place.write_text(html(page).replace("</main>", f"{planted}</main>"), encoding="utf-8")
    return place


def test_a_page_without_fault_has_none(browser: Browser, folder: Path) -> None:
    place = folder / "plain.html"
    place.write_text(html(PLAIN), encoding="utf-8")
    assert [faults(browser, place, width) for width in WIDTHS] == [[], [], []]
    assert faults_on_paper(browser, place) == []


@pytest.mark.parametrize("kind", list(FAULTY))
def test_a_planted_fault_is_seen(browser: Browser, folder: Path, kind: str) -> None:
    assert kind in {fault for fault, *_ in faults(browser, faulty(kind, folder), WIDTHS[0])}


def test_labels_of_a_plot_that_leave_it_are_seen(browser: Browser, folder: Path) -> None:
    place = folder / "label.html"
    label = word("a label that is far too long for the margin that it has", 1.0)
    place.write_text(html(with_panels(plot(annotations=[label]))), encoding="utf-8")
    assert ["clipped", "plot-1"] in [fault[:2] for fault in faults(browser, place, 390)]


def test_charts_and_headings_that_paper_splits_are_seen(browser: Browser, folder: Path) -> None:
    """Without the rules that keep things together, some of ten charts lie across the end of a page."""
    many = with_panels(*(plot(n) for n in range(10)), most_across=1)
    whole, cut = folder / "kept.html", folder / "cut.html"
    text = html(many)
    whole.write_text(text, encoding="utf-8")
    rules = (STATIC / "page.css").read_text(encoding="utf-8")
    loose = rules.replace("break-inside: avoid", "break-inside: auto").replace(
        "break-after: avoid", "break-after: auto"
    )
    assert loose != rules
    cut.write_text(text.replace(rules, loose), encoding="utf-8")
    assert faults_on_paper(browser, whole) == []
    assert "split" in {kind for kind, *_ in faults_on_paper(browser, cut)}
    assert broken({"figure-1-begins": 0, "figure-1-ends": 1}) == [
        ["split", "figure-1", "page 1 and 2"]
    ]
    assert broken({"heading-1-begins": 2, "heading-1-follows": 2}) == []

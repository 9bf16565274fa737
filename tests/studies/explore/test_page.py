"""`iosim explore`: its page in headless Chromium finds what `iosim predict` says, the server answers with the same
JSON, and the page is written whole, to its own place, with nothing from elsewhere."""

from __future__ import annotations

import contextlib
import ctypes as ct
import io
import json
import random
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from browser import CHROMIUM, Browser
from effort import quick_every
from walking import COLLISIONS

from iosim.base.errors import InputError
from iosim.commands import common, explore
from iosim.commands.cli import main, parsed
from iosim.prediction.answer import why
from iosim.prediction.predictor import predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import build
from iosim.readers.replay.library import LAYOUT
from iosim.readers.replay.packed import WASM32
from iosim.studies.explore import page
from iosim.studies.explore.record import record
from iosim.studies.explore.server import server
from iosim.studies.models.prediction import run_models
from iosim.studies.requests import ExploreRequest, PredictRequest

browsing = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
SMALL = ExploreRequest(
    gpu=("h100-sxm", "t4"),
    kernel=("fa2", "cutlass"),
    seq_len="512,1k",
    heads=("8/2",),
    head_dim="64",
)
WIDE = ExploreRequest(
    gpu=("a100-sxm-80gb", "h100-sxm", "l40s", "b200"),
    seq_len="512,2k,8k",
    heads=("32/8",),
    head_dim="128",
    kernel=("fa2", "fa3", "fa4", "cutlass", "flash"),
)
HELD_UP = ExploreRequest(
    gpu=("a10",), kernel=("flash",), seq_len="4k", heads=("16",), head_dim="128"
)
"""Calls that HBM holds up: 6 MiB of L2 before 600 GB/s."""
TIME_ERROR = 0.03
OWN = '<meta name="generator" content="iosim explore">'


def printed(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(list(words)) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(page.attention_page(SMALL, "grid"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    pages = {"/": page.attention_page(SMALL, "server")}
    with server(0, pages, partial(explore.answered, parsed=parsed)) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def fetched(address: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as response:
        return (
            json.load(response)
            if "json" in response.headers["Content-Type"]
            else response.read().decode()
        )


# ---- the page and what it carries ----


def states(request: ExploreRequest) -> list[tuple[str, list[str]]]:
    """All states of a page: the link that holds each, and the words of its command line."""
    lists = page.lists(request)
    result: list[tuple[dict[str, str], list[str]]] = [({}, [])]
    for control in lists:
        result = [
            ({**names, control["name"]: text}, [*words, *more.split()])
            for names, words in result
            for text, more in (
                control["choices"]
                if control["only"] in ("", names.get("kernel"))
                else control["choices"][:1]
            )
        ]
    return [(urlencode(names), words) for names, words in result]


def predicted(words: list[str]) -> Prediction | str:
    """What `iosim predict --method replay` says; or why not."""
    options = parsed(["predict", *words, "--method", "replay"])
    try:
        (p,) = run_models(common.request(options, PredictRequest))
    except InputError as error:
        return str(error)
    assert isinstance(p, Prediction)
    return p


def same_in_the_browser(browser: Browser, place: Path, chosen: list[tuple[str, list[str]]]) -> None:
    browser.open(place, 1280)
    browser.evaluate("iosimPage.done")
    answers = browser.evaluate(f"iosimPage.answers({json.dumps([state for state, _ in chosen])})")
    for (state, words), answer in zip(chosen, answers, strict=True):
        p = predicted(words)
        if isinstance(p, str):
            assert answer == {"error": p}, state
            continue
        assert "error" not in answer, (state, answer)
        assert answer["command"].split() == ["iosim", "predict", *words, "--method", "replay"]
        # The page shows the data alone; check bits of ECC in line are the command line's to say.
        hbm = sorted(
            (r.launch, r.tensor, r.direction, int(r.bytes))
            for r in p.traffic.payload
            if r.level == "hbm"
        )
        assert sorted(map(tuple, answer["hbm"])) == hbm, state
        assert answer["why"] == why(p), state
        assert abs(answer["time"] / p.time_s - 1) < TIME_ERROR, state


class TestInChromium:
    pytestmark = browsing

    def test_every_state_of_a_small_page_is_what_predict_says(
        self, browser: Browser, small: Path
    ) -> None:
        same_in_the_browser(browser, small, states(SMALL))

    @pytest.mark.slow
    @pytest.mark.parametrize(("explored", "count"), [(WIDE, 50), (HELD_UP, 12)])
    def test_drawn_states_of_a_wide_one(
        self, browser: Browser, tmp_path: Path, explored: ExploreRequest, count: int
    ) -> None:
        place = tmp_path / "index.html"
        place.write_text(page.attention_page(explored, "grid"), encoding="utf-8")
        same_in_the_browser(browser, place, random.Random(7).sample(states(explored), count))

    def test_nothing_is_fetched_and_nothing_goes_wrong(self, browser: Browser, small: Path) -> None:
        browser.open(small, 1280)
        browser.evaluate("iosimPage.done")
        failures = [
            e
            for e in browser.events
            if e["method"]
            in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        ]
        assert failures == []
        urls = {
            e["params"]["request"]["url"]
            for e in browser.events
            if e["method"] == "Network.requestWillBeSent"
        }
        assert [url for url in urls if not url.startswith(("data:", "blob:"))] == [small.as_uri()]

    @pytest.mark.parametrize("width", quick_every([390, 768, 1280], 3))
    @pytest.mark.parametrize("scheme", quick_every(["light", "dark"], 2))
    def test_words_are_apart_and_inside(
        self, browser: Browser, small: Path, width: int, scheme: str
    ) -> None:
        browser.open(small, width, scheme)
        browser.evaluate("iosimPage.done")
        for state in (
            "",
            "kernel=cutlass&seq=512&mask=none",
            "gpu=t4&kernel=cutlass&seq=1k&mask=causal",
        ):
            browser.evaluate(
                f"location.hash = '{state}'; new Promise((done) => setTimeout(done, 300))"
            )
            assert browser.evaluate(COLLISIONS) == [], state
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        ground, ink = browser.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle("
            "document.querySelector('.draw text')).fill]"
        )
        assert (sum(map(int, ground[4:-1].split(","))) > 400) == (scheme == "light")
        assert (sum(map(int, ink[4:-1].split(","))) > 400) == (scheme == "dark")

    def test_a_link_holds_the_state_and_keys_change_it(self, browser: Browser, small: Path) -> None:
        browser.open(small, 1280)
        browser.evaluate("iosimPage.done")
        for key in ("Home", "ArrowRight", "ArrowRight"):
            browser.evaluate("document.getElementById('kernel').focus()")
            for kind in ("keyDown", "keyUp"):
                code = {"Home": 36, "ArrowRight": 39}[key]
                browser.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    windowsVirtualKeyCode=code,
                )
        state = browser.evaluate("location.hash")
        assert "kernel=cutlass" in state
        assert "cutlass" in browser.evaluate(
            "(async () => { await new Promise((d) => setTimeout(d, 1500)); return "
            "document.getElementById('verdict').textContent; })()"
        )
        browser.evaluate("location.hash = 'gpu=t4&kernel=cutlass&seq=512&mask=none'")
        text = browser.evaluate(
            "(async () => { await new Promise((d) => setTimeout(d, 1500)); return "
            "document.getElementById('verdict').textContent; })()"
        )
        p = predict(
            AttentionProblem(heads=8, kv_heads=2, seq_q=512, head_dim=64),
            "cutlass",
            "t4",
            method="replay",
        )
        assert text.startswith(
            "cutlass on t4 in fp16 reads 3.277 MB"
            if p.hbm.read == 3_276_800
            else "cutlass on t4 in fp16 reads "
        )

    def test_what_cannot_run_says_why(self, browser: Browser, small: Path) -> None:
        browser.open(small, 390)
        browser.evaluate("iosimPage.done")
        (answer,) = browser.evaluate("iosimPage.answers(['gpu=t4&kernel=fa2'])")
        assert "needs cc 8.0" in answer["error"]

    @pytest.mark.slow
    def test_what_is_asked_for_last_is_answered(self, browser: Browser, small: Path) -> None:
        browser.open(small, 1280)
        browser.evaluate("iosimPage.done")
        for state in ("gpu=t4&kernel=fa2", "gpu=h100-sxm&kernel=cutlass&seq=512"):
            browser.evaluate(f"""(async () => {{
              for (const kernel of ["fa2", "cutlass", "fa2"]) {{
                location.hash = `gpu=h100-sxm&seq=1k&kernel=${{kernel}}`;
                await new Promise((done) => setTimeout(done, 20));
              }}
              location.hash = "{state}";
              await new Promise((done) => setTimeout(done, 1500));
            }})()""")
            answers = browser.evaluate(
                "['verdict', 'told'].map((id) => document.getElementById(id).textContent)"
            )
            refused = "t4" in state
            assert answers[0].startswith("No answer" if refused else "cutlass on h100-sxm")
            assert ("needs cc 8.0" if refused else "Replayed") in answers[1]

    def test_on_paper_all_is_open_and_nothing_is_to_press(
        self, browser: Browser, small: Path
    ) -> None:
        browser.open(small, 1280)
        browser.evaluate("iosimPage.done")
        assert browser.printed().startswith(b"%PDF")
        assert browser.evaluate(
            "[...document.querySelectorAll('details')].every((fold) => fold.open)"
        )

    def test_the_server_answers_what_the_page_asks(self, browser: Browser, served: str) -> None:
        class Address:
            def as_uri(self) -> str:
                return f"{served}/#gpu=h100-sxm&kernel=fa2&seq=1k&more=--pass+bwd"

        browser.open(Address(), 1280)  # type: ignore[arg-type]
        browser.evaluate("iosimPage.done")
        assert browser.evaluate("document.getElementById('subject').textContent").count("bwd") == 1
        assert "--pass bwd" in browser.evaluate("document.getElementById('command').textContent")
        assert "Replayed" in browser.evaluate("document.getElementById('told').textContent")


# ---- the server ----


@pytest.mark.parametrize(
    "line",
    [
        "--kernel fa2 --gpu h100 --seq-len 1k --heads 8 --causal",
        "--kernel naive --seq-len 512 --heads 4",
        "--kernel fa2 --seq-len 1 --seq-len-k 4k --heads 8 --kv-heads 2 --gpu l4",
        "--kernel flash --tile 64x64 --order head --seq-len 1k --heads 4 --window 200",
    ],
)
def test_the_served_json_is_that_of_predict(served: str, line: str) -> None:
    answer = fetched(f"{served}/answer?line={quote(line)}")
    mine = json.loads(printed("predict", *line.split(), "--format", "json"))
    assert {name: answer[name] for name in mine} == mine
    assert answer["record"]["why_text"] in answer["answer"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--kernel fa9", "--kernel 'fa9' is not known"),
        ("--seq-len 0", "--seq-len 0"),
        ("--bogus 1", "--bogus"),
        ("--kernel fa2,naive", "accepted: one GPU"),
        ("--model llama-3-8b", "--model"),
        ("--help", "iosim predict --help"),
        ("'", "quotation"),
        ("--kernel fa2 --gpu t4", "needs cc 8.0"),
    ],
)
def test_what_cannot_be_answered_is_a_line(served: str, line: str, message: str) -> None:
    answer = fetched(f"{served}/answer?line={quote(line)}")
    assert list(answer) == ["error"]
    assert message in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.parametrize(
    "headers", [{"Host": "elsewhere.example:80"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_other_sites_get_no_answer(served: str, headers: dict[str, str]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetched(f"{served}/answer?line=--kernel+fa2", **headers)


def test_there_is_nothing_else(served: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetched(f"{served}/etc/passwd")
    assert OWN in fetched(f"{served}/")


def test_a_taken_port_is_one_line(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = served.rpartition(":")[2]
    assert main(["explore", "--port", port, "--gpu", "t4", "--kernel", "cutlass"]) == 2
    assert f"--port {port} cannot be had" in capsys.readouterr().err


# ---- the folder ----


def explored(folder: Path, *more: str) -> int:
    return main(
        [
            "explore",
            "--out",
            str(folder),
            "--gpu",
            "t4",
            "--kernel",
            "cutlass",
            "--seq-len",
            "512",
            "--heads",
            "4",
            "--head-dim",
            "64",
            *more,
        ]
    )


def test_the_page_is_one_file_in_a_folder_that_it_replaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert explored(tmp_path / "page") == 0
        assert [path.name for path in (tmp_path / "page").iterdir()] == ["index.html"]
    assert "index.html" in capsys.readouterr().out


@pytest.mark.slow
def test_the_same_page_has_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    words = [
        "--gpu",
        "h100,t4",
        "--kernel",
        "fa2,naive",
        "--seq-len",
        "512,1k",
        "--heads",
        "4",
        "--head-dim",
        "64",
    ]
    for name in ("one", "other"):
        command = [sys.executable, "-m", "iosim", "explore", *words, "--out", str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True)
    first, other = ((tmp_path / name / "index.html").read_bytes() for name in ("one", "other"))
    assert first == other


def test_no_address_of_the_process_is_in_what_the_page_gets() -> None:
    """Pointers of the engine's structures are read as whole numbers by ctypes."""
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64)
    replay = record(predict(problem, "fa2", "h100", method="bounds"))[0]["replay"]
    assert replay is not None
    pointers = {
        name
        for structure in WASM32.structures.values()
        for name, kind, *_ in structure._fields_
        if kind is ct.c_uint32
    }
    pointers -= {
        name
        for structure in LAYOUT.structures.values()
        for name, kind, *_ in structure._fields_
        if kind is ct.c_uint32
    }
    named = set(replay["config"]) | {
        name for launch in replay["launches"] for name in launch["plan"]
    }
    assert named
    assert not named & pointers


def test_the_roof_is_the_specification() -> None:
    """989 TFLOP/s at 1,830 MHz, where the highest clock would make 1,070 of them."""
    problem = AttentionProblem(heads=4, seq_q=512, head_dim=64, dtype="fp16")
    facts, _ = record(predict(problem, "fa2", "h100", method="bounds"))
    assert facts["peaks"] == [989e12, 3352e9]


def test_an_index_of_others_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "index.html").write_text("mine")
    assert explored(tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "index.html").read_text() == "mine"
    assert explored(tmp_path, "--force") == 0
    assert OWN in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "no/such/folder"],
        ["--out", "/dev/null"],
        ["--gpu", "h101"],
        ["--kernel", "fa9", "--out", "x"],
        ["--seq-len", "0", "--out", "x"],
        ["--heads", "8/x", "--out", "x"],
        ["--heads", "8/3", "--out", "x"],
        ["--gpu", "t4", "--kernel", "fa3", "--out", "x"],
        ["--gpu", "h100,mi300x", "--out", "x"],
        ["--gpu", "mi355x", "--port", "0"],
        ["--port", "-1"],
        ["--port", "70000"],
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explore", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not any(tmp_path.rglob("*.html"))


def test_without_an_engine_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "WASM", tmp_path / "engine.wasm")
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="ziglang"):
        page.engine()


@pytest.mark.slow
def test_a_long_call_has_no_pictures() -> None:
    long = predict(
        AttentionProblem(heads=64, seq_q=131072, head_dim=64), "fa2", "h100", method="bounds"
    )
    facts, streams = record(long)
    assert facts["replay"] is None
    assert streams == ()

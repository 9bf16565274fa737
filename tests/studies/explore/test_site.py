"""The explorer's static folder: it holds all that a Python in a browser needs, refuses another Python than the one its
engine is built for, and computes in the page what the commands print."""

from __future__ import annotations

import http.server
import io
import math
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import browser_python
import pytest
from browser import CHROMIUM, Browser
from walking import WALKED, Address, printed, same_as_the_commands, told, waited, walk

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import build, engine
from iosim.studies.explore import site

ROOT = Path(__file__).resolve().parents[3]
PYTHON = browser_python.folder()
with_python = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif(
        PYTHON is None, reason="IOSIM_PYODIDE names no folder of the Pyodide that is needed"
    ),
]


# ---- a Python without threads, and with pointers of 32 bits ----


def test_a_replay_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def threaded() -> tuple[int, float]:
        p = predict(AttentionProblem(heads=32, seq_q=4096), "fa2", "a100", method="replay")
        return p.hbm.read, p.time_s

    monkeypatch.setenv("IOSIM_CACHE", "off")  # what is kept needs no replay
    before = threaded()

    def no_thread(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(engine.threading, "Thread", no_thread)
    monkeypatch.setattr(engine, "has_threads", lambda: False)
    assert threaded() == before


# ---- the static folder ----


def test_a_folder_of_another_python_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["--runtime", str(tmp_path)],
        ["--out", str(tmp_path / "page"), "--runtime", str(tmp_path)],
    ):
        assert main(["explore", *words]) == 2
    for name in site.runtime()["files"]:
        (tmp_path / name).write_bytes(b"another")
    assert main(["explore", "--out", str(tmp_path / "page"), "--runtime", str(tmp_path)]) == 2
    told_lines = capsys.readouterr().err.splitlines()
    assert len(told_lines) == 3
    assert "--runtime needs --out" in told_lines[0]
    assert "pyodide.js" in told_lines[1]
    assert "another release" in told_lines[2]
    assert not (tmp_path / "page").exists()


def test_the_archive_holds_the_package_its_data_and_the_engine() -> None:
    packed = site.archive()
    assert packed == site.archive()
    names = {*zipfile.ZipFile(io.BytesIO(packed)).namelist()}
    assert {
        "iosim/commands/explore.py",
        "iosim/readers/replay/_engine.so",
        "iosim/readers/replay/shared.h",
        "iosim/_data/hardware_profiles/h100-sxm.toml",
        "iosim/studies/explore/checked.toml",
    } <= names
    engine_text = zipfile.ZipFile(io.BytesIO(packed)).read("iosim/readers/replay/_engine.so")
    assert engine_text == build.SIDE.read_bytes()
    assert not [name for name in names if name.endswith((".pyc", ".wasm")) or "__pycache__" in name]
    assert len(packed) < 3_000_000


# ---- in a real browser ----


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The static folder, as any host serves it."""
    folder = tmp_path_factory.mktemp("static") / "page"
    assert main(["explore", "--out", str(folder), "--runtime", str(PYTHON)]) == 0
    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


class TestStatic:
    pytestmark = with_python

    def test_the_page_computes_what_the_commands_print(self, browser: Browser, static: str) -> None:
        """Bytes are equal. Times are, but for the last bits of powers, which C libraries round otherwise."""
        answers = walk(browser, static)
        assert answers["kernels"] == told(WALKED, "kernels")
        assert answers["memory"]["evidence"] == told(WALKED, "memory")["evidence"]
        same_as_the_commands(browser, answers, rel_tol=1e-12)
        urls = {
            e["params"]["request"]["url"]
            for e in browser.events
            if e["method"] == "Network.requestWillBeSent"
        }
        assert [url for url in urls if not url.startswith((static, "data:", "blob:"))] == []

    def test_it_replays_attention_of_any_length(self, browser: Browser, static: str) -> None:
        line = "--seq-len 3000 --heads 4 --kv-heads 4 --head-dim 64 --window 500"
        query = urlencode({"gpu": "l4", "kernel": "fa2", "mask": "none", "more": line})
        browser.open(Address(f"{static}attention.html#{query}"), 1280)  # type: ignore[arg-type]
        waited(browser, "iosimPage.done")
        p = printed(f"iosim predict --gpu l4 --kernel fa2 {line}")["predictions"][0]
        (answer,) = browser.evaluate(f"iosimPage.answers([{query!r}])")
        assert "error" not in answer, answer
        assert (
            sum(row[3] for row in answer["hbm"] if row[2] == "read") == p["totals"]["hbm"]["read"]
        )
        assert math.isclose(answer["time"], p["time_s"], rel_tol=1e-12)


def test_a_folder_without_the_files_is_refused() -> None:
    with pytest.raises(InputError, match=r"pyodide\.js"):
        site.runtime_files(ROOT)


class TestItsDownload:
    """tests/support/browser_python.py fails softly: a line, no file, and the tests above are skipped."""

    def test_it_ends_at_its_limit(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        run = subprocess.run

        def slow(_: list[str], **how: Any) -> Any:
            return run([sys.executable, "-c", "import time; time.sleep(60)"], **how)

        monkeypatch.setattr(browser_python.subprocess, "run", slow)
        assert browser_python.LIMIT_S == 60
        monkeypatch.setattr(browser_python, "LIMIT_S", 0.1)
        assert browser_python.main(str(tmp_path / "place")) == 1
        assert "was not downloaded in 0.1 s" in capsys.readouterr().err
        assert not (tmp_path / "place").exists()

    @pytest.mark.parametrize("names", [[], [*site.runtime()["files"]]], ids=["none", "others"])
    def test_files_of_another_sum_are_not_written(
        self,
        names: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def bundle(scratch: str) -> Path:
            wheel = Path(scratch) / "bundle.whl"
            with zipfile.ZipFile(wheel, "w") as packed:
                for name in names:
                    packed.writestr(f"assets/{name}", b"another")
            return wheel

        monkeypatch.setattr(browser_python, "downloaded", bundle)
        assert browser_python.main(str(tmp_path / "place")) == 1
        assert "has no pyodide.js of Pyodide" in capsys.readouterr().err
        assert not (tmp_path / "place").exists()

    def test_a_folder_of_others_counts_as_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pyodide.js").write_bytes(b"another")
        monkeypatch.setenv("IOSIM_PYODIDE", str(tmp_path))
        assert browser_python.folder() is None

"""The report's files: the same bytes each time, one small page that fetches nothing, whole or absent; bad input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from iosim.base import files
from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.problem.attention import AttentionProblem
from iosim.show.html import unpacked
from iosim.show.page import Page
from iosim.studies.report import CaseGrid, Report, build, render, targets, write

pytestmark = pytest.mark.usefixtures("replays_once")

SMALL = [
    "report",
    "--gpu",
    "t4",
    "--gpu",
    "a100",
    "--kernel",
    "naive",
    "--kernel",
    "fa2",
    "--seq-len",
    "512,2k",
]


def problems(*lengths: int) -> tuple[AttentionProblem, ...]:
    return tuple(AttentionProblem(heads=8, head_dim=64, seq_q=n) for n in lengths)


@pytest.fixture(scope="module")
def report() -> Report:
    return build(CaseGrid.of(("t4", "a100"), ("naive", "fa2"), problems(512, 2048, 8192)))


@pytest.mark.slow
def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    reports = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        out.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "iosim", *SMALL, "--out", str(out)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""  # no progress bar in a pipe
        reports.append([(out / name).read_bytes() for name in ("report.html", "report.md")])
        assert sorted(p.name for p in out.iterdir()) == ["report.html", "report.md"]
    assert reports[0] == reports[1]


def test_the_page_is_one_small_file_that_fetches_nothing(report: Report) -> None:
    page = render(report, "html")
    assert len(page.encode()) < 400_000
    assert "http" not in re.sub(r"http-equiv", "", page)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page)
    assert "default-src 'none'" in page
    assert not re.search(r"20\d\d-\d\d-\d\d", page)


@pytest.mark.slow
def test_what_users_name_is_escaped(tmp_path: Path) -> None:
    from iosim.base.data import data_dir

    text = (data_dir("hardware_profiles") / "l4.toml").read_text()
    mine = tmp_path / "x<script>alert(1)</script>&.toml".replace("/", "_")
    mine.write_text(text.replace("value = 58", "value = 57"))
    report = build(CaseGrid.of(("l4", str(mine)), ("fa2",), problems(512)))
    text = render(report, "html")
    assert "<script>alert" not in text
    assert text.count("<script") == 3  # data, the plots' and the page's own


@pytest.mark.slow
def test_whole_numbers_beyond_javascript_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "iosim.studies.report.study.search",
        lambda request, gpus: {g.label: "left out" for g in gpus},
    )
    (huge,) = problems(1 << 22)
    report = build(CaseGrid.of(("h200",), ("naive",), (huge.with_(batch=1024),)))
    assert report.points[0].l2 > 1 << 53
    overview = unpacked(render(report, "html"))["tables"]["overview"]
    assert str(report.points[0].l2) in overview["rows"][0]


def test_markdown_tables_are_well_formed(report: Report) -> None:
    text = render(report, "md")
    widths: list[int] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            widths = []
            continue
        widths.append(line.count("|") - line.count("\\|"))
        assert widths[-1] == widths[0], line
    for figure in report.figures:
        assert f"## {figure.title}\n" in text


def test_markdown_answers_first_and_its_tables_are_short(report: Report) -> None:
    lines = render(report, "md").splitlines()
    assert lines[0].startswith("# ")
    assert lines[0].endswith("?")
    assert next(line for line in lines[1:] if line).startswith("On t4 at 8,192 tokens ")
    rows: list[int] = []
    for before, line in pairwise(["", *lines]):
        if line.startswith("|"):
            rows = rows if before.startswith("|") else [*rows, 0]
            rows[-1] += 1
            assert line.count("|") <= 14
    kernels_of_a_gpu = 14  # that run there, and the fastest tile: no row a length
    assert max(rows) <= 2 + 2 * kernels_of_a_gpu


def test_formats_and_places(tmp_path: Path) -> None:
    assert targets(tmp_path) == {"html": tmp_path / "report.html", "md": tmp_path / "report.md"}
    assert targets(tmp_path / "a.html") == {"html": tmp_path / "a.html", "md": tmp_path / "a.md"}
    assert targets(tmp_path / "a.md") == {"html": tmp_path / "a.html", "md": tmp_path / "a.md"}
    assert targets(tmp_path / "a.html", "html") == {"html": tmp_path / "a.html"}
    assert targets(tmp_path, "md") == {"md": tmp_path / "report.md"}
    for name, form in (("html", "md"), ("md", "html")):
        with pytest.raises(InputError, match="contradicts format"):
            targets(tmp_path / f"a.{name}", form)
    with pytest.raises(InputError, match="accepted: both, html, md"):
        targets(tmp_path, "pdf")


BAD = [
    ("directory that does not exist", ["--out", "{tmp}/none/report.html"], "there is no directory"),
    ("no file name", ["--out", "{tmp}/none"], "an existing directory"),
    ("other suffix", ["--out", "{tmp}/report.pdf"], ".html or .md"),
    (
        "place that takes no files",
        ["--out", "/proc/report.html"],
        "'/proc/report.html' cannot be written",
    ),
    ("file as directory", ["--out", "/dev/null/report.html"], "there is no directory"),
    ("target is a directory", ["--out", "{tmp}/taken"], "is a directory"),
    (
        "format against suffix",
        ["--out", "{tmp}/a.md", "--format", "html"],
        "contradicts --format html",
    ),
    ("unknown format", ["--format", "pdf"], "invalid choice"),
    ("nothing runs", ["--gpu", "t4", "--kernel", "fa3"], "no kernel of this report can run"),
    ("unknown GPU", ["--gpu", "a1000"], "did you mean"),
    ("unknown kernel", ["--kernel", "fa9"], "--kernel 'fa9' is not known"),
    ("unknown method", ["--method", "guess"], "--method 'guess' is not known"),
    ("unknown start", ["--l2", "tepid"], "--l2 'tepid' is not known"),
    ("bad length", ["--seq-len", "4k:1k:x2"], "--seq-len"),
    ("zero length", ["--seq-len", "0"], "out of range"),
    ("two masks", ["--causal", "--mask", "butterfly"], "contradicts"),
    ("no profile file", ["--gpu", "{tmp}/none.toml"], "none.toml"),
]


@pytest.mark.parametrize(("words", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "taken" / "report.md").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    refused(
        capsys,
        ["report", "--seq-len", "512", *(w.replace("{tmp}", str(tmp_path)) for w in words)],
        message,
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_unwritable_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    assert main([*SMALL, "--out", str(tmp_path)]) == 2
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_failed_write_leaves_both_files_as_they_were(
    fails_at: int, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("old")
    calls = []
    original = files.written_whole

    def failing(path: Path) -> Any:
        calls.append(path)
        if len(calls) == fails_at:
            raise InputError("--out cannot be written: No space left on device")
        return original(path)

    monkeypatch.setattr(files, "written_whole", failing)
    with pytest.raises(InputError, match="No space left"):
        write(report, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(page: Page) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("iosim.studies.report.markdown", interrupted)
    assert main([*SMALL, "--out", str(tmp_path)]) == 130
    assert list(tmp_path.iterdir()) == []


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from iosim.commands.cli import main\ntry: main(['report', '--help'])"
        "\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'pandas', 'sympy', 'plotly', 'tqdm', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

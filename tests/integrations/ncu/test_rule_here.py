"""The rule in this process, without a copy of it being installed: whom it asks and how, and what it puts on the page."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nv_rules
import pytest
from scripts import ROOT

from iosim.integrations.ncu import report, rule

LAUNCH: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "ncu_h200.json").read_text())[1]
ANSWER: dict[str, Any] = {
    "status": "as_predicted",
    "answer": "as predicted",
    "tables": [
        {"title": "full", "description": "with rows", "header": ["a", "b"], "rows": [["1", "2"]]},
        {"title": "empty", "description": "without", "header": ["a", "b"], "rows": []},
    ],
    "metrics": [
        {"name": "read", "counted": 5, "predicted": 4, "differs": True, "words": "more"},
        {"name": "written", "counted": 3, "predicted": 3, "differs": False, "words": "as many"},
    ],
    "advice": "a larger tile",
    "speedup_percent": 7.5,
}
OK, WARNING, NONE = (
    nv_rules.IFrontend.MsgType_MSG_OK,
    nv_rules.IFrontend.MsgType_MSG_WARNING,
    nv_rules.IFrontend.MsgType_MSG_NONE,
)


class Asked:
    """Stands for the process that answers: writes what it is told to, and remembers how it was called."""

    def __init__(self, code: int, output: str, errors: str) -> None:
        self.code, self.output, self.errors = code, output, errors
        self.command: list[str] = []
        self.environment: dict[str, str] = {}
        self.facts: Any = None

    def __call__(
        self, command: list[str], environment: dict[str, str], output: str, errors: str
    ) -> int:
        self.command, self.environment = command, environment
        self.facts = json.loads(Path(command[command.index("--launch") + 1]).read_text())
        Path(output).write_text(self.output)
        Path(errors).write_text(self.errors)
        return self.code


def answering(
    monkeypatch: pytest.MonkeyPatch,
    code: int = 0,
    output: str = json.dumps(ANSWER),
    errors: str = "",
    **settings: Any,
) -> Asked:
    process = Asked(code, output, errors)
    monkeypatch.setattr(rule, "NvRules", nv_rules)
    monkeypatch.setattr(rule, "_run", process)
    installed = {"python": sys.executable, "words": ["--gpu", "h200"], **settings}
    monkeypatch.setattr(rule, "INSTALLED", installed)
    return process


@pytest.mark.parametrize(
    ("names", "asks"),
    [(None, True), (("gemm", "flash"), True), (("gemm",), False), ((), False)],
)
def test_kernels_whose_names_fit_are_asked_for(
    names: Sequence[str] | None, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {} if names is None else {"names": names}
    process = answering(monkeypatch, **settings)
    answer = rule.ask({"kernel": "flash_fwd"})
    assert answer == ((ANSWER, "") if asks else (None, "no catalog kernel has this name"))
    assert process.facts == ({"kernel": "flash_fwd"} if asks else None)


def test_how_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in rule.NOT_OURS:
        monkeypatch.setenv(name, "the profiler's")
    monkeypatch.setenv("OURS", "kept")
    process = answering(monkeypatch)
    rule.ask({"kernel": "flash_fwd"})
    launch = process.command[5]
    assert process.command == [
        *(sys.executable, "-m", "iosim", "ncu-rule", "--launch", launch, "--format", "json"),
        *("--gpu", "h200"),
    ]
    others = {name: value for name, value in os.environ.items() if name not in rule.NOT_OURS}
    assert process.environment == others
    assert process.environment["OURS"] == "kept"
    process = answering(monkeypatch, path="/where/iosim/lies")
    rule.ask({"kernel": "flash_fwd"})
    assert process.environment == others | {"PYTHONPATH": "/where/iosim/lies"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"python": "/nowhere/python"}, "the Python that .* '/nowhere/python', is not there"),
        ({"code": 3, "errors": "first\nlast\n"}, "^last$"),
        ({"code": 3}, "^iosim ended with exit code 3$"),
        ({"code": -9}, "^iosim ended with exit code -9$"),
    ],
)
def test_where_no_answer_comes(
    settings: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, **settings)
    with pytest.raises(OSError, match=why):
        rule.ask({"kernel": "flash_fwd"})


def test_errors_beside_an_answer_are_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, errors="a warning\n")
    assert rule.ask({"kernel": "flash_fwd"}) == (ANSWER, "")


def page(**settings: Any) -> nv_rules.Page:
    context = nv_rules.Context(LAUNCH | settings)
    rule.apply(context)
    return context.page


def test_an_answer_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    process = answering(monkeypatch)
    shown_page = page()
    assert process.facts == {name: LAUNCH[name] for name in process.facts}
    high, low = (
        nv_rules.IFrontend.Severity_SEVERITY_HIGH,
        nv_rules.IFrontend.Severity_SEVERITY_LOW,
    )
    about = {"title": "full", "description": "with rows"}
    assert shown_page == nv_rules.Page(
        messages=[
            (OK, "as predicted", rule.TITLE),
            (nv_rules.IFrontend.MsgType_MSG_OPTIMIZATION, "a larger tile", "What Would Help"),
        ],
        tables=[(0, ["a", "b"], [["1", "2"]], about)],  # the one that has rows
        focus=[(0, "read", 5.0, high, "more"), (0, "written", 3.0, low, "as many")],
        speedups=[(1, nv_rules.IFrontend.SpeedupType_GLOBAL, 7.5)],
        handed_on={"read": 4.0, "written": 3.0},
    )


@pytest.mark.parametrize(
    ("answer", "messages", "speedups"),
    [
        ({"status": "differs", "advice": ""}, [WARNING], 0),
        ({"status": "unknown", "advice": ""}, [NONE], 0),
        ({"speedup_percent": 0}, [OK, nv_rules.IFrontend.MsgType_MSG_OPTIMIZATION], 0),
        ({"speedup_percent": 0.5}, [OK, nv_rules.IFrontend.MsgType_MSG_OPTIMIZATION], 1),
    ],
)
def test_advice_and_what_it_gains(
    answer: dict[str, Any], messages: list[int], speedups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, output=json.dumps(ANSWER | answer))
    shown_page = page()
    assert [kind for kind, _, _ in shown_page.messages] == messages
    assert len(shown_page.speedups) == speedups


def test_an_older_profiler_gets_what_it_knows() -> None:
    """Without tables, and without numbers handed on to other rules."""

    class Older:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def message(self, kind: int, text: str, title: str) -> int:
            self.calls.append(text)
            return 0

        def focus_metric(self, message: int, name: str, *_: Any) -> None:
            self.calls.append(name)

        def speedup(self, *_: Any) -> None:
            self.calls.append("speedup")

    frontend = Older()
    rule.show(frontend, nv_rules.IFrontend, ANSWER)
    assert frontend.calls == ["as predicted", "read", "written", "a larger tile", "speedup"]


def test_a_kernel_that_is_passed_over_and_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, names=("gemm",))
    passed_over = "No prediction: no catalog kernel has this name."
    assert page().messages == [(NONE, passed_over, rule.TITLE)]
    answering(monkeypatch, code=1, errors="it has no GPU")
    ((kind, text, title),) = page().messages
    assert (kind, title) == (WARNING, rule.TITLE)
    assert text.startswith("No prediction: OSError: it has no GPU. ")


def test_facts_of_a_launch_without_what_older_profilers_lack() -> None:
    """No unit, no device, no sizes, no ranges, counters that hold no number."""

    class Bare:
        NameBase_DEMANGLED = 1

        def name(self, base: int) -> str:
            return f"name {base}"

        def metric_by_name(self, name: str) -> nv_rules.Metric | None:
            held = {rule.METRICS[0]: 5, rule.METRICS[1]: "many", rule.METRICS[2]: 2.5}
            return nv_rules.Metric(held[name]) if name in held else None

        def nvtx_state(self) -> None:
            return None

    assert rule.facts_of(Bare()) == {
        "kernel": "name 1",
        "grid": [1, 1, 1],
        "block": [1, 1, 1],
        "device": "",
        "ranges": [],
        "metrics": {rule.METRICS[0]: [5, ""], rule.METRICS[2]: [2.5, ""]},
    }


def test_a_process_with_its_output_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is there is written anew; one that is not is made."""
    output, errors = tmp_path / "output", tmp_path / "errors"
    output.write_text("what stood there before, and is longer")
    command = ["/bin/sh", "-c", 'sleep 0.05; echo "$GIVEN"; echo err >&2; exit 3']
    # As on Linux, without `subprocess`, which the profiler's Python has not.
    monkeypatch.setitem(sys.modules, "subprocess", None)
    assert rule._run(command, {"GIVEN": "text", "PATH": "/bin"}, str(output), str(errors)) == 3
    assert (output.read_text(), errors.read_text()) == ("text\n", "err\n")


def test_where_the_module_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the search path, else in folders of the profiler's own, of which the newest that loads counts."""
    for version, text in (("2024.1", "held = 1"), ("2025.1", "held = 2"), ("2026.1", "import nix")):
        folder = tmp_path / version / "extras" / "python"
        folder.mkdir(parents=True)
        (folder / "report_of_tests.py").write_text(text)
    monkeypatch.setattr(report, "MODULE", "report_of_tests")
    monkeypatch.setattr(report, "BESIDE", tmp_path / "2027.1")
    assert report.module() is None
    assert report.launches(tmp_path / "some.ncu-rep") is None
    monkeypatch.setattr(report, "BESIDE", tmp_path)
    before = list(sys.path)
    try:
        assert report.module().held == 2
    finally:
        sys.modules.pop("report_of_tests", None)
    assert sys.path == before


@pytest.mark.parametrize(
    ("code", "output", "told_rows"),
    [(report.NO_MODULE, "", None), (0, '[{"kernel": "a"}]', [{"kernel": "a"}])],
)
def test_what_the_process_that_reads_a_report_says(
    code: int,
    output: str,
    told_rows: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(command: list[str], **_: Any) -> Any:
        assert command == [sys.executable, "-m", report.__name__, str(tmp_path / "a.ncu-rep")]
        return type("Done", (), {"returncode": code, "stdout": output, "stderr": "why"})

    monkeypatch.setattr(report, "MODULE", "json")  # one that is there
    monkeypatch.setattr(report.subprocess, "run", run)
    assert report.launches(tmp_path / "a.ncu-rep") == told_rows

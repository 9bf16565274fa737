"""Reports read by a stand-in of the profiler's Python module, in a process of its own as the real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT

from iosim.base.errors import InputError
from iosim.integrations.ncu import report

LAUNCHES: list[dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "ncu_h200.json").read_text())
STAND_IN = """
import json, os, sys
sys.path.append({support!r})
from nv_rules import Action

class Range:
    def __init__(self, launches): self.launches = launches
    def num_actions(self): return len(self.launches)
    def action_by_idx(self, n): return Action(self.launches[n])

class Report:
    def __init__(self, launches): self.ranges = [Range(launches[:1]), Range(launches[1:])]
    def num_ranges(self): return len(self.ranges)
    def range_by_idx(self, n): return self.ranges[n]

def load_report(name):
    with open(name) as file:
        text = file.read()
    if text == "broken":
        os._exit(9)
    return Report(json.loads(text)) if text else None
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delitem(sys.modules, report.MODULE, raising=False)
    folder = tmp_path / "python"
    folder.mkdir()
    text = STAND_IN.format(support=str(ROOT / "tests" / "support"))
    (folder / f"{report.MODULE}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    yield tmp_path
    sys.modules.pop(report.MODULE, None)


def test_launches_of_all_ranges_are_told_as_the_rule_tells_one(stand_in: Path) -> None:
    file = stand_in / "some.ncu-rep"
    file.write_text(json.dumps(LAUNCHES), encoding="utf-8")
    told = report.launches(file)
    assert told is not None
    assert [launch["kernel"] for launch in told] == [launch["kernel"] for launch in LAUNCHES]
    for launch, recorded in zip(told, LAUNCHES, strict=True):
        for name in ("grid", "block", "device", "ranges"):
            assert launch[name] == recorded[name]
        assert launch["metrics"].items() <= recorded["metrics"].items()
        assert launch["metrics"]


@pytest.mark.parametrize(
    ("content", "why"),
    [("", "it is no report, or one of a later version"), ("broken", "it ended with exit code 9")],
)
def test_what_cannot_be_read_is_refused(content: str, why: str, stand_in: Path) -> None:
    file = stand_in / "some.ncu-rep"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=f"{report.MODULE} cannot read 'some.ncu-rep': {why}"):
        report.launches(file)


def test_main_tells_a_report_in_json(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: what the one that reads a report prints, and its exit codes."""
    file = stand_in / "some.ncu-rep"
    monkeypatch.setattr(sys, "argv", ["report", str(file)])
    file.write_text(json.dumps(LAUNCHES[:2]), encoding="utf-8")
    assert report.main() == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    file.write_text("", encoding="utf-8")
    assert report.main() == 1
    monkeypatch.setattr(report, "module", lambda: None)
    assert report.main() == report.NO_MODULE

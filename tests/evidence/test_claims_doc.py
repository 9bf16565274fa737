"""docs/generated/claims.md is what its script writes from `iosim reproduce`, and counts every row."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import reproduced
from scripts import ROOT, load_script

from iosim.evidence.reproduce import reproduce, sections

DOCS = ROOT / "docs" / "generated"

if not (DOCS / "make_claims.py").is_file():
    pytest.skip("iosim runs from an install without its docs", allow_module_level=True)

TEXT = (DOCS / "claims.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(DOCS / "make_claims.py")


@pytest.mark.slow
def test_the_file_is_what_the_script_writes(script: ModuleType) -> None:
    assert script.text(reproduced.rows()) == TEXT, (
        "python docs/generated/make_claims.py writes it again"
    )


@pytest.mark.slow
def test_every_row_is_counted_once() -> None:
    rows = re.findall(r"^\| ([A-Z])\. .* \| (\d+) \| ((?:\d+ \| ){5}\d+) \|$", TEXT, re.M)
    assert [letter for letter, *_ in rows] == [section.letter for section in sections()]
    assert all(int(total) == sum(map(int, counts.split(" | "))) for _, total, counts in rows)
    assert sum(int(total) for _, total, _ in rows) == len(reproduced.rows())


def test_bands(script: ModuleType) -> None:
    ratios = [1.0, 1.01, 0.99, 1.011, 0.96, 1.2, 0.5, 3.0, None]
    # 1 to 1.01 either way: 3; up to 5 %: 1.011 and 0.96; up to 20 %: 1.2; beyond: 0.5 and 3; one with no ratio
    assert script.counted(ratios) == [3, 2, 1, 2, 1]


def test_check_says_whether_it_is_up_to_date(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script, "PLACE", tmp_path / "claims.md")
    monkeypatch.setattr(script, "reproduce", list)
    monkeypatch.setattr(script, "text", lambda rows: "made\n")
    monkeypatch.setattr(sys, "argv", ["make_claims.py", "--check"])
    assert script.main() == 1
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(sys, "argv", ["make_claims.py"])
    assert script.main() == 0
    assert (tmp_path / "claims.md").read_text(encoding="utf-8") == "made\n"
    monkeypatch.setattr(sys, "argv", ["make_claims.py", "--check"])
    assert script.main() == 0
    assert "up to date" in capsys.readouterr().out


def test_reproduce_hands_its_sections_to_a_bar() -> None:
    seen: list[str] = []

    def watch(sections: Any) -> Any:
        seen.extend(s.letter for s in sections)
        return sections

    assert {r.section for r in reproduce(["a", "G"], watch)} == {"A", "G"}
    assert seen == ["A", "G"]

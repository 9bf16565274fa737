"""What is said of kernels' code is what was recorded of it: tests/golden/code_cases.py has the kernels."""

from __future__ import annotations

import re
from typing import Any

import pytest
from effort import slow
from scripts import load_script

from iosim.readers.replay.library import why_missing

STUDIES = load_script("tests/golden/make_studies.py")
CASES = load_script("tests/golden/code_cases.py")
RECORDED = load_script("tests/commands/test_recorded_studies.py")
QUICK = ("column_store", "rms_norm", "flash_forward", "staged", "narrow", "split_columns")


@pytest.mark.recorded
@pytest.mark.skipif(why_missing() is not None, reason="no engine to replay with")
@pytest.mark.parametrize("entry", [e if e in QUICK else slow(e) for e in CASES.LAUNCHES])
def test_code_is_read_as_recorded(entry: str) -> None:
    recorded = STUDIES.recorded_in_common("code")
    said: dict[str, Any] = STUDIES.plain(CASES.said(entry))
    assert RECORDED.apart(recorded[entry], said) == []


def test_all_recorded_kernels_are_read_again() -> None:
    assert list(STUDIES.recorded_in_common("code")) == list(CASES.LAUNCHES)


def test_recorded_code_names_no_folder_of_the_machine_that_compiled_it() -> None:
    """Sources stand by their names; the compiler's own headers lie where it was installed."""
    for ptx in sorted(CASES.FOLDER.glob("*.ptx")):
        named = re.findall(r'^\s*\.file\s+\d+\s+"([^"]*)"', ptx.read_text(encoding="utf-8"), re.M)
        assert [name for name in named if "/" in name and "/cuda" not in name] == [], ptx.name

"""What is said of kernels' code is what was recorded of it: tests/golden/code_cases.py has the kernels."""

from __future__ import annotations

from typing import Any

import pytest
from effort import slow
from scripts import load_script

from iosim.readers.replay.library import why_missing

STUDIES = load_script("tests/golden/make_studies.py")
CASES = load_script("tests/golden/code_cases.py")
RECORDED = load_script("tests/commands/test_recorded_studies.py")
QUICK = ("column_store", "rms_norm", "flash_forward")


@pytest.mark.recorded
@pytest.mark.skipif(why_missing() is not None, reason="no engine to replay with")
@pytest.mark.parametrize("entry", [e if e in QUICK else slow(e) for e in CASES.LAUNCHES])
def test_code_is_read_as_recorded(entry: str) -> None:
    recorded = STUDIES.recorded_in_common("code")
    said: dict[str, Any] = STUDIES.plain(CASES.said(entry))
    assert RECORDED.apart(recorded[entry], said) == []


def test_all_recorded_kernels_are_read_again() -> None:
    assert list(STUDIES.recorded_in_common("code")) == list(CASES.LAUNCHES)

"""What pages hold is what was recorded of it: tests/golden/page_cases.py makes the cases, make_studies.py records them."""

from __future__ import annotations

import pytest
from effort import quick_every
from scripts import load_script

STUDIES = load_script("tests/golden/make_studies.py")
CASES = load_script("tests/golden/page_cases.py")
NAMES = [f"{n}-{line.split()[0]}" for n, line in enumerate(CASES.CALLS)]


@pytest.mark.recorded
@pytest.mark.parametrize("call", quick_every(CASES.CALLS, 4), ids=NAMES)
def test_pages_are_as_recorded(call: str) -> None:
    recorded = STUDIES.recorded_in_common("pages")
    ((case, page),) = CASES.cases((call,))
    assert page == recorded[case]


def test_all_recorded_pages_are_made_again() -> None:
    calls = [line.replace(str(CASES.DATA), "data") for line in CASES.CALLS]
    assert list(STUDIES.recorded_in_common("pages")) == calls

"""Every kernel's launches, before anything is counted or timed, are those recorded: tests/golden/launch_cases.py."""

from __future__ import annotations

import pytest
from scripts import load_script

from iosim.catalog.libraries import entry_names

STUDIES = load_script("tests/golden/make_studies.py")
CASES = load_script("tests/golden/launch_cases.py")


@pytest.mark.slow
@pytest.mark.recorded
@pytest.mark.parametrize("kernel", entry_names())
def test_launches_are_as_recorded(kernel: str) -> None:
    recorded_again = dict(STUDIES.made_of_kernel("launches", kernel))
    assert recorded_again == STUDIES.recorded_of_kernel(kernel)["launches"]


@pytest.mark.parametrize("kernel", entry_names())
def test_a_case_of_every_kernel_is_recorded(kernel: str) -> None:
    assert STUDIES.recorded_of_kernel(kernel)["launches"]


def test_a_text_has_what_is_not_the_default() -> None:
    launch = CASES.call("naive", CASES.PROBLEMS["square"])[1].chain.launches[0]
    text = CASES.text(launch)
    assert text.startswith(
        "Launch(name='scores', domain=Domain(batch=2, heads=8, rows=256, seq_k=256, "
    )
    assert "persistent_ctas" not in text
    assert CASES.text((1.0, 2 / 3, None, True)) == "(1, 0.666666667, None, True)"

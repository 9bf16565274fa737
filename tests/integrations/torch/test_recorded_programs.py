"""What PyTorch calls are recorded as is what was recorded of them: tests/golden/torch_cases.py makes the cases."""

from __future__ import annotations

import pytest
from scripts import load_script

torch = pytest.importorskip("torch")

STUDIES = load_script("tests/golden/make_studies.py")
RECORDED = STUDIES.recorded_in_common("programs")
MOST = 10
"""Cases that are told."""


@pytest.mark.recorded
@pytest.mark.skipif(
    torch.__version__.partition("+")[0] != RECORDED["PyTorch"],
    reason="another PyTorch runs other operators",
)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_programs_are_as_recorded() -> None:
    programs = dict(STUDIES.made_in_common("programs"))
    assert programs.keys() == RECORDED.keys()
    differ = [name for name, record in programs.items() if record != RECORDED[name]]
    assert {name: programs[name] for name in differ[:MOST]} == {
        name: RECORDED[name] for name in differ[:MOST]
    }

"""What loads and stores of machine code ask for, in the mean over the sites of a line of PTX, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.code.addresses import GLOBAL, SHARED
from iosim.code.uses import _in_part, _mean, _merged
from iosim.kernel.launch import Mode
from iosim.kernel.machine import MemoryUse


def site(number: int = 0, **more: Any) -> Any:
    defaults = {
        "requests": 10,
        "sectors": 40,
        "lines": 20,
        "wavefronts": 30,
        "mode": Mode.LOAD,
        "space": GLOBAL,
        "distinct_bytes": 40 * 32,
    }
    return SimpleNamespace(number=number, **defaults | more)


def test_sites_of_a_line_are_one_request_in_the_mean() -> None:
    """10 and 30 requests with 40 and 200 sectors; a quarter of the first's miss L1, and all of the second's."""
    sites = [site(1), site(2, requests=30, sectors=200, lines=100, wavefronts=50)]
    use = _mean(sites, {1: 0.25})
    assert use == MemoryUse(240 / 40, 120 / 40, 80 / 40, 0.75 * 40 / 240, 0.0)


def test_no_sites_ask_for_nothing() -> None:
    assert _mean([], {}) == MemoryUse(0.0, 0.0, 0.0, 0.0, 0.0)
    assert _mean([site(space=SHARED, sectors=0)], {}).hits_l1 == 0.0


@pytest.mark.parametrize(
    ("written", "part"),
    [
        (40 * 32, 0.0),  # whole sectors
        (40 * 24, 0.5),  # a quarter is not written, and stands for up to twice as many sectors
        (40 * 16, 1.0),
        (40 * 4, 1.0),
        (41 * 32, 0.0),  # of a repeat
    ],
)
def test_sectors_that_are_stored_in_part(written: int, part: float) -> None:
    assert _in_part([site(mode=Mode.STORE, distinct_bytes=written)], 40) == pytest.approx(part)


def test_loads_and_shared_memory_store_no_sectors() -> None:
    assert _in_part([site(distinct_bytes=1)], 40) == 0.0
    assert _in_part([site(mode=Mode.STORE, space=SHARED, distinct_bytes=1)], 40) == 0.0
    assert _in_part([site(mode=Mode.STORE, distinct_bytes=1)], 0) == 0.0
    both = [site(distinct_bytes=1), site(mode=Mode.STORE, distinct_bytes=40 * 24)]
    assert _in_part(both, 40) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("kind", "lane_bytes", "width", "wavefronts"),
    [
        ("LDS", 16, 4, 2.0),  # four loads of four bytes merged: two wavefronts at least
        ("LDS", 16, 16, 1.0),  # not merged
        ("STS", 16, 8, 2.0),
        ("LDS", 8, 4, 1.0),
        ("LDG", 16, 4, 1.0),  # of device memory
    ],
)
def test_merged_accesses_of_shared_memory(
    kind: str, lane_bytes: int, width: int, wavefronts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iosim.code.uses.lane_bytes", lambda instruction: lane_bytes)
    instruction: Any = SimpleNamespace(kind=kind)
    assert _merged(MemoryUse(0, 0, 1.0), instruction, width).wavefronts == wavefronts
    assert _merged(MemoryUse(0, 0, 7.0), instruction, width).wavefronts == 7.0

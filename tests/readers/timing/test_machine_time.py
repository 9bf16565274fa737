"""Launches whose code is known: rounds of CTAs, units under a time's names, and for what loads wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iosim.readers.timing.machine_time import _alike, _late_share, _moves_s, _seconds, _tiles_alone
from iosim.readers.timing.warps import Turn

SMS, PER_SM = 4, 2
CYCLES = {1: 100.0, 2: 150.0}
"""Of so many CTAs that share an SM."""
ADDED = 120.0
"""Cycles that a full round adds to others."""


def running(work_tiles: int) -> Any:
    return SimpleNamespace(
        launch=SimpleNamespace(work_tiles=work_tiles, touched=None, domain=None),
        resident=SimpleNamespace(slots=SMS * PER_SM, waves=work_tiles / (SMS * PER_SM)),
        rates=SimpleNamespace(profile=SimpleNamespace(sm_count=SMS)),
        ctas_per_sm=PER_SM,
    )


def tile(ctas: int) -> Turn:
    return Turn(CYCLES[ctas], {"lsu": 10.0 * ctas})


@pytest.mark.parametrize(
    ("tiles", "cycles", "busy"),
    [
        (3, 100, 10),  # three SMs have one
        (5, 150, 20),  # an SM has two
        (8, 150, 20),  # a full round
        (9, 100 + 120, 20 + 10),  # and one CTA more, alone on its SM
        (11, 150 + 120, 20 + 20),  # behind one round those of an SM end together: it takes two
        (16, 150 + 120, 2 * 20),
        (19, 100 + 2 * 120, 2 * 20 + 10),  # behind two they are spread over all SMs
        (21, 150 + 2 * 120, 2 * 20 + 20),  # five over four SMs
    ],
)
def test_rounds_of_ctas_without_a_loop(
    tiles: int, cycles: float, busy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iosim.readers.timing.machine_time._uneven", lambda *_: None)
    rounds = _tiles_alone(running(tiles), tile, lambda turn: ADDED, clock=1000.0)
    assert rounds.total_s == pytest.approx(cycles / 1000)
    assert rounds.seconds == pytest.approx({"smem": busy / 1000})
    assert rounds.waves == tiles / 8
    assert rounds.step_s == ()


def test_units_stand_under_the_names_of_a_time_the_longest_of_each() -> None:
    busy = {
        "fma": 4.0,
        "alu": 6.0,
        "issue": 5.0,
        "tensor": 3.0,
        "lsu": 0.0,
        "from-l2": 8.0,
        "uniform": 9.0,
    }
    assert _seconds(busy, 0.5) == {"exp": 3.0, "tensor": 1.5, "l2": 4.0}


TOUCHED = SimpleNamespace(entries=np.zeros(12), count=np.zeros(4), shares=None)
"""Twelve moves of four CTAs."""


def test_moves_are_spread_evenly_over_a_ctas_time() -> None:
    launch: Any = SimpleNamespace(touched=TOUCHED)
    # Three moves of a CTA, whose tile takes 100 cycles where it has an SM for itself, else 150.
    assert _moves_s(launch, tile, 2, 1e6) == pytest.approx((100e-6 / 3, 50e-6))
    assert _moves_s(SimpleNamespace(touched=None), tile, 2, 1e6) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "alike"), [(1.04, True), (1.05 - 1e-9, True), (1.06, False), (2.0, False)]
)
def test_ctas_are_alike_within_a_twentieth(limit: float, alike: bool) -> None:
    shares = np.array([1.0, limit])
    launch: Any = SimpleNamespace(touched=SimpleNamespace(shares=shares))
    assert _alike(launch) is alike


def loading(l2: dict[str, float], hbm: dict[str, float], shares: Any) -> Any:
    """A launch that loads so many bytes of each tensor; two CTAs at a time ask for A's lines."""
    touched = SimpleNamespace(shares=shares, asked_together=lambda slots: {"A": slots / 4})
    return SimpleNamespace(
        launch=SimpleNamespace(touched=touched),
        resident=SimpleNamespace(slots=8),
        chain=SimpleNamespace(tensors=list(l2)),
        moved=lambda level, direction, tensor: {"l2": l2, "hbm": hbm}[level][tensor],
    )


@pytest.mark.parametrize(
    ("l2", "hbm", "shares", "late"),
    [
        ({"A": 100.0}, {"A": 10.0}, None, 0.2),  # two ask together for each line of HBM's
        ({"A": 100.0}, {"A": 80.0}, None, 1.0),  # no more than come at all
        (
            {"A": 100.0},
            {"A": 10.0},
            np.array([1.0, 3.0]),
            0.1,
        ),  # unequal CTAs do not go side by side
        (
            {"A": 100.0, "B": 300.0},
            {"A": 10.0, "B": 30.0},
            None,
            (20 + 240) / 400,
        ),  # of B all eight ask
        ({"A": 0.0}, {"A": 0.0}, None, 0.0),
    ],
)
def test_loads_that_wait_as_long_as_for_hbm(
    l2: dict[str, float], hbm: dict[str, float], shares: Any, late: float
) -> None:
    assert _late_share(loading(l2, hbm, shares)) == pytest.approx(late)

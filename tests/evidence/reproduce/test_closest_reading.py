"""Which reading of a study is nearest to what it published, of grids by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from iosim.evidence.reproduce import training_grid
from iosim.evidence.reproduce.training_grid import closest

SAVED = {
    "a tenth": ((0.069, 0.065), 0.05),
    "as published": ((0.65, 0.7284), 0.495),  # on average 68.92 %, at least 65 %
    "half as much again": ((0.975, 1.09), 0.74),
}
"""Shares of time of two configurations, and of memory of both."""


@pytest.mark.parametrize("without", [None, "a tenth", "half as much again"])
def test_the_closest_reading_saves_what_was_published(
    without: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grid(reading: str) -> list[SimpleNamespace]:
        times, memory = SAVED[reading]
        return [SimpleNamespace(saved={"time": time, "memory": memory}) for time in times]

    monkeypatch.setattr(training_grid, "grid", grid)
    monkeypatch.setattr(training_grid, "READINGS", tuple(r for r in SAVED if r != without))
    assert closest() == "as published"

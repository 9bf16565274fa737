"""What one time without the profiler is made of: warm-ups, a flush of the L2, and events around each call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

SLEEPS_MS, FLUSHES_MS = 50.0, 7.0


class Device:
    """A GPU of paper: it writes down what it is asked for, in order, and its clock goes on as that takes."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now = 0.0
        self.scratch_bytes = 0
        self.cuda = SimpleNamespace(
            Event=self.event,
            _sleep=lambda cycles: self.does("idle", SLEEPS_MS),
            synchronize=lambda: self.does("wait", 0.0),
        )

    def does(self, event: str, ms: float) -> None:
        self.log.append(event)
        self.now += ms

    def empty(self, size: int, dtype: str, device: str) -> Any:
        assert (dtype, device) == ("uint8", "cuda")
        self.scratch_bytes = size
        return SimpleNamespace(zero_=lambda: self.does("flush", FLUSHES_MS))

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=float("nan"))
        event.elapsed_time = lambda end: end.at - event.at

        def record() -> None:
            self.does("event", 0.0)
            event.at = self.now

        event.record = record
        return event


@pytest.mark.parametrize("flush", [False, True])
def test_a_time_is_the_median_of_calls_that_start_alike(
    flush: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from iosim.evidence.measure import timing

    device = Device()
    monkeypatch.setattr(timing, "torch", device)
    # The first three warm up; then 9, 1, 2, 30 and 4 ms, whose median is 4 and whose mean is 9.2.
    lengths = iter((100.0, 100.0, 100.0, 9.0, 1.0, 2.0, 30.0, 4.0))
    median_ms = timing.median_ms(lambda: device.does("call", next(lengths)), flush, repeats=5)
    assert median_ms == 4.0
    before = ["flush"] if flush else []
    assert device.log == ["call"] * 3 + [*before, "idle", "event", "call", "event"] * 5 + ["wait"]
    # more than the largest L2 (126 MB) twice over, or none at all
    assert device.scratch_bytes == (268_435_456 if flush else 0)

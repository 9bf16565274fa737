"""Models of many layers from two of few: every event's bytes, and the step's seconds, grow by the same for each layer.

Layers are alike, so that an event of the first, second, last but one or last layer lies on a straight line over the
number of layers, and events between the second and the last but one lie between these two. Four and five layers give
the lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from iosim.hardware.profile import HardwareProfile
from iosim.studies.training.model import Decoder
from iosim.studies.training.plan import plan
from iosim.studies.training.setup import Setup
from iosim.studies.training.step_time import step_time
from iosim.studies.training.timeline import Timeline, play

FEW = 4
_LAYER = re.compile(r"^layer(\d+)\.")

Place = tuple[str, int, str]
"""Phase, layer (counted from the front, or below zero from the back), name within the layer."""


@dataclass(frozen=True)
class Lines:
    """Bytes of every event at `FEW` layers, and what one layer more adds."""

    lines: tuple[tuple[int, int], ...]

    def peak_bytes(self, layers: int) -> int:
        """The most bytes of tensors that live at once, of a model with `layers` layers, `FEW` or more."""
        return max(at + (layers - FEW) * more for at, more in self.lines)


def peak_bytes(model: Decoder, setup: Setup) -> int:
    """The most bytes of tensors that live at once in a step of `model`."""
    if model.layers <= FEW:
        return _play(model, setup).peak_bytes
    return memory_lines(replace(model, layers=FEW), setup).peak_bytes(model.layers)


@lru_cache(maxsize=4096)
def memory_lines(model: Decoder, setup: Setup) -> Lines:
    """The lines of a model, whose own number of layers does not matter."""
    few, more = (_places(replace(model, layers=n), setup) for n in (FEW, FEW + 1))
    return Lines(tuple((few[place], more[place] - few[place]) for place in few))


def _play(model: Decoder, setup: Setup) -> Timeline:
    return play(plan(model, setup), setup.rule, setup.number.parameter_bytes, accumulate=setup.accumulate)


def _places(model: Decoder, setup: Setup) -> dict[Place, int]:
    peaks: dict[Place, int] = {}
    for event in _play(model, setup).events:
        match = _LAYER.match(event.name)
        layer = int(match[1]) if match else 0
        if 1 < layer < model.layers - 2:
            continue
        place = layer if layer < 2 else layer - model.layers
        key = (event.phase, place, event.name[match.end() :] if match else f"/{event.name}")
        peaks[key] = max(peaks.get(key, 0), event.peak_bytes)
    return peaks


def step_seconds(model: Decoder, setup: Setup, profile: HardwareProfile) -> dict[str, float]:
    """Seconds of a step by phase, on a straight line over the number of layers."""
    few, more = (_seconds(replace(model, layers=n), setup, profile) for n in (1, 2))
    return {phase: few[phase] + (model.layers - 1) * (more[phase] - few[phase]) for phase in few}


@lru_cache(maxsize=4096)
def _seconds(model: Decoder, setup: Setup, profile: HardwareProfile) -> dict[str, float]:
    time = step_time(plan(model, setup), model, setup, profile)
    return {phase: time.phase_s(phase) for phase in time.parts}

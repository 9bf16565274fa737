"""Steps of a loop for tests of the time model, made of what a test states."""

from __future__ import annotations

from iosim.kernel.launch import Launch
from iosim.kernel.unit import UnitModel
from iosim.readers.timing import step_time
from iosim.readers.timing.rates import SmRates
from iosim.readers.timing.step_terms import Step
from iosim.readers.timing.step_time import StepCost


def step_cost(
    launch: Launch,
    unit: UnitModel,
    rates: SmRates,
    l2_bytes: float,
    element_bytes: float,
    cc: int,
    shared_bytes: float | None = None,
) -> StepCost:
    """What a step costs that moves so many bytes at the L2 and, where they are known, at shared memory; one CTA is on
    the SM."""
    return step_time.step_cost(
        Step(launch, unit, rates, l2_bytes, 0.0, element_bytes, cc, 1, shared_bytes)
    )

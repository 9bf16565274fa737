"""A timed call: what is predicted for it, and what was measured."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from iosim.base.data import data_dir
from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.kernel.conditions import Conditions
from iosim.kernel.traffic import Traffic
from iosim.prediction.call import Call

SHORT_S = 30e-6
"""Launches shorter than this are a regime of their own: latency and first loads decide them."""


@dataclass(frozen=True)
class Timed:
    launch: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Case:
    """One call of a table, numbered as it stands there.

    Attributes:
        name: the kernel, as tables show it.
        regime: what sets its rows apart.
        seconds: of each launch; one for the whole chain where `whole`.
        fits: constants of a step were fitted on it, where its number is odd.
        launched: from a CUDA graph ("graph"), or "alone".
        warm: the L2 at its start.
        clocks: "boost" after a pause, "sustained" after seconds of load.
        extra_s: seconds beside the launches, of a serving stack between calls.
    """

    name: str
    regime: str
    number: int
    call: Call
    traffic: Traffic
    seconds: tuple[float, ...]
    whole: bool = False
    fits: bool = False
    launched: str = "alone"
    warm: bool = False
    clocks: str = "boost"
    extra_s: float = 0.0

    def times(self, call: Call | None = None) -> Iterator[Timed]:
        """Predicted and measured times by launch; of `call` in place of its own, where something was changed."""
        start = "warm" if self.warm else "cold"
        conditions = Conditions(l2_start=start, clocks=self.clocks, launched=self.launched)
        found = (call or self.call).time(self.traffic, conditions)
        if self.whole:
            yield Timed("", found.total_s + self.extra_s, self.seconds[0])
            return
        for launch, seconds in zip(found.launches, self.seconds, strict=True):
            yield Timed(launch.name, launch.total_s, seconds)


def moved(call: Call, flushed: bool = False) -> Traffic:
    """Bytes at both levels, those of HBM by the capacity rule. `flushed`: each launch starts from an empty L2, as
    under the profiler."""
    if not flushed:
        return call.counted + call.capacity()
    traffic = call.counted
    for launch in call.chain.launches:
        chain = replace(call.chain, launches=(launch,))
        traffic = traffic + Call.of(call.problem, call.kernel, call.profile, chain).capacity()
    return traffic


def place(name: str) -> Path:
    """A recorded table: one that commands read, or one of a checkout's experiments. Raises InputError where this
    installation has no experiments."""
    shipped = data_dir("kernels") / "measurements" / name
    if shipped.is_file():
        return shipped
    of_checkout = data_dir("kernels").parent / "experiments" / "measurements" / name
    if not of_checkout.is_file():
        raise InputError(f"{name} is in no wheel: it lies in experiments/measurements of a checkout")
    return of_checkout


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    with place(name).open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))

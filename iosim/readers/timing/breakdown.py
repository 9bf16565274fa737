"""What each term is worth in the time of a launch: seconds that add up to it.

Terms are switched off one after the other, at the clock that was found, and what each takes with it is its worth: first
what waits and what fails to overlap, then the units that others hide, last the resource that bounds the launch. What
hides behind another term is worth nothing; what is counted as the worth of the bounding resource is all of its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.conditions import ALONE, Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.kernel.residency import Residency
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.chain_time import ChainTime
from iosim.readers.timing.launch_time import LaunchTime, launch_time
from iosim.readers.timing.rates import Rates
from iosim.readers.timing.running import Running
from iosim.readers.timing.terms import TERMS, Term, recorded, without

MODULES = ("step_terms", "overlap", "tile_terms", "pass_time", "launch_terms")
"""Modules of `TERMS`, in the order in which a time is built up."""


@dataclass(frozen=True)
class TermWorth:
    """What a term is worth in a launch."""

    term: Term
    """The term."""
    value: float
    """Its value in the unit of its scope, before anything overlaps."""
    seconds: float
    """Seconds of the launch's time that go with it."""


@dataclass(frozen=True)
class Breakdown:
    """The time of a launch by its terms."""

    time: LaunchTime
    """The time of the launch."""
    terms: tuple[TermWorth, ...]
    """Terms that are not zero, the most worth first."""
    rest_s: float
    """Seconds of no term: those of warps that play their machine code."""


def ordered_terms() -> list[Term]:
    """All terms in the order in which a time is built up."""

    def position(term: Term) -> tuple[int, int]:
        module = term.function.__module__.rpartition(".")[2]
        return MODULES.index(module), term.function.__code__.co_firstlineno

    return sorted(TERMS.values(), key=position)


def breakdowns(
    problem: AttentionProblem,
    chain: Chain,
    traffic: Traffic,
    profile: HardwareProfile,
    residencies: Sequence[Residency],
    kernel: Kernel,
    *,
    time: ChainTime,
    conditions: Conditions = ALONE,
) -> tuple[Breakdown, ...]:
    """The time of each launch of a chain by its terms.

    Args:
        time: what `chain_time` found for the same call, at measured rates.
    """
    of_launches = []
    for number, (launch, resident) in enumerate(zip(chain.launches, residencies, strict=True)):
        rates = Rates(profile, measured=True)
        rates.clock_hz = time.launches[number].clock_hz
        running = Running(
            problem, kernel, chain, launch, resident, traffic, rates, conditions, number == 0
        )
        of_launches.append(_breakdown(running))
    return tuple(of_launches)


def _breakdown(running: Running) -> Breakdown:
    with recorded() as values:
        time, _ = launch_time(running)
    names = [term.name for term in reversed(ordered_terms()) if values.get(term.name)]
    seconds_left, switched_off, seconds = time.total_s, list[str](), dict[str, float]()
    # What a term is worth depends on the order: from the last built up to the first, waits before
    # units, the bounding unit at the end. The worths then add up to the whole time.
    names.sort(key=lambda name: _turn(TERMS[name], time.bound_by))
    for name in names:
        switched_off.append(name)
        with without(switched_off):
            total = launch_time(running)[0].total_s
        seconds[name] = seconds_left - total
        seconds_left = total
    worth = (TermWorth(TERMS[name], values[name], seconds[name]) for name in names)
    return Breakdown(time, tuple(sorted(worth, key=lambda w: -w.seconds)), seconds_left)


def _turn(term: Term, bound_by: str) -> int:
    """When a term is switched off: what waits before the units, the one that bounds the launch last."""
    if term.unit == bound_by:
        return 2
    return 1 if term.unit else 0

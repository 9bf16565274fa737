"""Time and energy of a chain of launches on a GPU.

An attention loop takes the time of its steps (`iosim.readers.timing.step_time`) in the schedule of its CTAs
(`iosim.readers.timing.makespan`), beside that of its HBM bytes. Other launches take the longest of their resources. A
launch has a fixed latency, and launches of a chain run one after the other. Where the GPU's energies are known
(`iosim.readers.timing.energy`), the clock is the highest at which the board keeps its power limit. Measured errors,
constants and what they leave unexplained: docs/timing.md. NB: times of the host are a part of it only where a chain is
launched from Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iosim.base.records import dataclass, replace
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.conditions import ALONE, Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.kernel.residency import Residency
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.energy import Energies, energies, energy_j, mean_power_w
from iosim.readers.timing.launch_time import LaunchTime, launch_time
from iosim.readers.timing.rates import Rates
from iosim.readers.timing.running import Running, executed_pairs

FEW_SMS = 16 / 132
"""Share of the SMs up to which tensor cores at work leave the clock as it is: inferred, a pair of SMs of each of eight
GPCs (NVIDIA H100 whitepaper). 51 launches of 30 us and longer on fewer SMs keep 0.99 of the clock in the median, others
0.91 (h100_random_2.csv to _7.csv, h200_random_2.csv to _6.csv)."""
LEAST_CLOCK_SHARE = 0.4
"""Share of the boost clock below which no limit drives the SMs."""
CLOCK_TOLERANCE = 1e-7
"""How far from its limit the power may be at the clock that is found, as a share."""
SEARCH_STEPS = 12
"""Most clocks that are tried."""
CEILINGS = ("specification", "measured")
HOST_LAUNCH_S = 0.24e-3 / 10
"""Seconds of the processor between two launches of an eager PyTorch program: ten launches on 128 tokens take 0.24 ms on
an RTX 2080 Ti, and on 256 tokens 0.25 (lucidrains/flash-cosine-sim-attention @6f17f29, README, float16). NB: it is the
processor's and PyTorch's, not the GPU's: an A100's host took 0.29 ms for them."""
POWER_OF_CLOCK = 3.0
"""With which power of the clock the power grows, at first guess: voltage squared, and work a second."""


@dataclass(frozen=True)
class ChainTime:
    """Times of a chain's launches, at one set of ceilings."""

    launches: tuple[LaunchTime, ...]
    """The launches in order."""
    ceilings: str
    """Whose rates they are at: measured ones, or those of the specification."""
    missing: tuple[str, ...]
    """What the profile does not know and the time leaves out, a sentence each."""
    energies: Energies | None = None
    """The constants of its energy."""

    @property
    def total_s(self) -> float:
        """Seconds of all launches."""
        return math.fsum(t.total_s for t in self.launches)

    @property
    def bound_by(self) -> str:
        """The resource that bounds the launches which take the longest together."""
        share: dict[str, float] = {}
        for t in self.launches:
            share[t.bound_by] = share.get(t.bound_by, 0.0) + t.total_s
        return max(share, key=lambda k: share[k], default="latency")

    @property
    def energy_j(self) -> dict[str, float] | None:
        """Joules by level, over all launches; None where the GPU's constants are not known."""
        total: dict[str, float] = {}
        for t in self.launches:
            if t.energy_j is None:
                return None
            for level, joules in t.energy_j.items():
                total[level] = total.get(level, 0.0) + joules
        return total

    @property
    def energy_range_j(self) -> tuple[float, float] | None:
        """Least and most joules where the GPU's constants were not measured; None elsewhere."""
        energy = self.energy_j
        return self.energies.between(energy, self.total_s) if energy and self.energies else None

    @property
    def power_w(self) -> float | None:
        """Mean power of the board, in watts; None where it is not known."""
        return mean_power_w(self.energy_j, self.total_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ceilings": self.ceilings,
            "time_s": self.total_s,
            "bound_by": self.bound_by,
            "energy_j": self.energy_j,
            "launches": [
                {
                    "name": t.name,
                    "time_s": t.total_s,
                    "bound_by": t.bound_by,
                    "seconds": t.seconds,
                    "parts": t.parts,
                    "waves": t.waves,
                    "clock_hz": t.clock_hz,
                    "power_w": t.power_w,
                }
                for t in self.launches
            ],
        }


def chain_time(
    problem: AttentionProblem,
    chain: Chain,
    traffic: Traffic,
    profile: HardwareProfile,
    residencies: Sequence[Residency],
    kernel: Kernel,
    *,
    measured: bool = True,
    conditions: Conditions = ALONE,
) -> ChainTime:
    """Time of a chain whose `traffic` holds rows at l2 and hbm.

    Args:
        residencies: of each launch, in order.
        kernel: what runs the chain.
        measured: use measured bandwidths, rates and clocks where the profile has them; else the specification's alone.
        conditions: the clocks, how it is launched, and whether the first loads find their data in the L2.
    """
    rates = Rates(profile, measured)
    of = energies(profile) if measured else None
    times = []
    for n, (launch, resident) in enumerate(zip(chain.launches, residencies, strict=True)):
        times.append(
            _at_its_clock(
                Running(
                    problem, kernel, chain, launch, resident, traffic, rates, conditions, n == 0
                ),
                of,
            )
        )
    if conditions.launched == "python":
        times = _launched_by_host(times)
    return ChainTime(tuple(times), CEILINGS[measured], tuple(rates.missing), of)


def host_seconds(issued: int, busy_s: float) -> float:
    """Seconds in which the GPU, done at `busy_s`, waits for the launch that the processor issues as the `issued`-th."""
    return max(0.0, issued * HOST_LAUNCH_S - busy_s)


def _launched_by_host(times: Sequence[LaunchTime]) -> list[LaunchTime]:
    """The launches with the seconds in which each waits for the processor, from the call's first line on."""
    waited: list[LaunchTime] = []
    busy_s = 0.0
    for issued, time in enumerate(times, 1):
        wait_s = host_seconds(issued, busy_s)
        seconds = time.seconds | {"latency": time.seconds["latency"] + wait_s}
        parts = time.parts | {"start": time.parts["start"] + wait_s}
        waited.append(replace(time, total_s=time.total_s + wait_s, seconds=seconds, parts=parts))
        busy_s += waited[-1].total_s
    return waited


def ceiling_s(
    problem: AttentionProblem,
    chain: Chain,
    traffic: Traffic,
    profile: HardwareProfile,
    fastest_hz: float,
) -> float:
    """Seconds that no kernel which moves `traffic` goes below: of each launch the longer of its HBM bytes and its
    products, each at the highest rate that the GPU has for them, with no latency and nothing that waits.

    Args:
        fastest_hz: the fastest clock that was asked for, or 0: the GPU's highest clock counts where that is above.
    """
    rates = Rates(profile, measured=False)
    hbm, seconds = rates.peak_hbm(), 0.0
    for launch in chain.launches:
        tensor = rates.peak_tensor(launch.work.dtype or problem.dtype, fastest_hz)
        products = executed_pairs(launch) * launch.work.flops_per_pair
        hbm_bytes = traffic.total("hbm", launch=launch.name)
        seconds += max(hbm_bytes / hbm, products / tensor)
    return seconds


def _at_its_clock(running: Running, of: Energies | None) -> LaunchTime:
    """The launch at the highest clock that its power allows, with its energy."""
    rates, clocks = running.rates, running.conditions.clocks
    at_work = (
        running.launch.tiles_with_rows * running.launch.work.product_ctas / rates.profile.sm_count
    )
    highest = rates.highest_clock_hz(running.uses_tensor_cores and at_work > FEW_SMS)
    rates.clock_hz = highest = highest if isinstance(clocks, str) else clocks
    if of is None or highest is None:
        return launch_time(running)[0]
    # Power over limit at a clock falls as the clock does, nearly by a power law: secant steps in
    # logarithms, from the third power on, find where it is 1.
    limit = {"sustained": of.power_w, "boost": of.peak_power_w}.get(str(clocks), math.inf)

    def at(clock_hz: float) -> tuple[LaunchTime, float]:
        """The launch at a clock, and what it takes of the power over what there is."""
        rates.clock_hz = clock_hz
        time, activity = launch_time(running)
        time = replace(time, energy_j=energy_j(activity, of, clock_hz, time.total_s))
        return time, (time.power_w or 0.0) / limit

    time, taken = at(highest)
    if taken <= 1.0:
        return time
    clock, slope = highest, POWER_OF_CLOCK
    for _ in range(SEARCH_STEPS):
        before, taken_before = clock, taken
        clock = min(highest, max(LEAST_CLOCK_SHARE * highest, clock * taken ** (-1 / slope)))
        time, taken = at(clock)
        if abs(taken - 1.0) <= CLOCK_TOLERANCE or clock == before:
            break
        # At least 1: power grows with the clock, or noise in the slope would send the search away.
        slope = max(1.0, math.log(taken / taken_before) / math.log(clock / before))
    return time

"""Time of a launch whose machine code is known: its warps play their instructions on the units of an SM.

A step over keys and what a work tile runs beside its steps are played for every number of CTAs that may share an SM;
of rates that all SMs share, of the L2's loads and stores, each SM has its part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from iosim.base.records import dataclass, replace
from iosim.kernel.launch import Launch
from iosim.kernel.machine import Machine, Region
from iosim.kernel.unit import UNITS, MatrixUnit
from iosim.readers.timing.loop_time import Computing
from iosim.readers.timing.makespan import makespan, span_of_shares, steps_per_tile
from iosim.readers.timing.rates import Rates
from iosim.readers.timing.running import Running
from iosim.readers.timing.step_terms import EXPOSED_LOADS
from iosim.readers.timing.warps import PARTS, SmPace, Turn, ctas_in_turn, placed_warps, regions_turn

UNIT_NAMES = {
    "tensor": "tensor",
    "xu": "exp",
    "fma": "exp",
    "fmaheavy": "exp",
    "alu": "exp",
    "issue": "exp",
    "lsu": "smem",
    "from-l2": "l2",
    "to-l2": "l2",
}
"""Under which of a time's names a unit's cycles stand: of those that share one, the longest."""

COPIES = frozenset({"global-copy", "bulk-copy"})
LOADS = COPIES | {"global-load"}
"""Classes of instructions that bring data from device memory; copies run while their warp goes on."""

LEAST_UNEVEN = 0.05
"""Difference between the CTAs with most and least work, in the mean one's, below which they are taken to be alike."""


@dataclass(frozen=True)
class MachineRates:
    """How fast an SM plays a kernel's code at the clock of `rates`, where `from_dram` of the loads that miss L1 come
    from HBM."""

    rates: Rates
    machine: Machine
    threads: int
    from_dram: float = 0.0

    @property
    def pace(self) -> SmPace:
        """What an SM does in a cycle."""
        p, clock = self.rates.profile, self.rates.clock_hz or math.inf
        l2, dram = (
            float(p.need(name)) for name in ("l2_latency_near_cycles", "dram_latency_cycles")
        )
        l2_bytes_per_cycle = self.rates.l2() / p.sm_count / clock
        return SmPace(
            l2_latency=l2 + self.from_dram * (dram - l2),
            tensor_flops=self._products() / p.sm_count / clock / PARTS,
            l2_bytes=l2_bytes_per_cycle,
            stored_bytes=l2_bytes_per_cycle * p.need("l2_write_fraction"),
            exps=(p.exp_per_clock_per_sm or 0) / PARTS,
        )

    def _products(self) -> float:
        """FLOP a second of the GPU's matrix units, by the instructions that the code has."""
        slots = [s for r in self.machine.step + self.machine.tile for s in r.slots if s.flops]
        if not slots:
            return math.inf
        beside = any(slot.runs_beside for slot in slots)
        return self.rates.tensor(
            slots[0].dtype, UNITS[MatrixUnit.WGMMA if beside else MatrixUnit.MMA_SYNC]
        )

    def step(self, ctas: int) -> Turn:
        """A step of each of so many CTAs on an SM."""
        return regions_turn(self.machine.step, placed_warps(self.threads, ctas), self.pace)

    def tile(self, ctas: int) -> Turn:
        """What each runs beside its steps."""
        return regions_turn(self.machine.tile, placed_warps(self.threads, ctas), self.pace)

    def in_turn(self, ctas: int, together: Turn) -> float:
        """Cycles that a round of CTAs adds to others; `together` is what one takes by itself."""
        warps = placed_warps(self.threads, ctas)
        return ctas_in_turn(self.machine.tile, warps, self.pace, together)


def machine_computing(running: Running, machine: Machine) -> Computing:
    """A launch whose code is known: its steps in the schedule of its CTAs, as its warps play them."""
    launch, rates, resident = running.launch, running.rates, running.resident
    played = MachineRates(rates, machine, launch.resources.threads, _late_share(running))
    clock, sms, per_sm = rates.clock_hz or math.inf, rates.profile.sm_count, running.ctas_per_sm
    step, tile = cache(played.step), cache(played.tile)
    if not machine.step:
        alone = _tiles_alone(running, tile, lambda turn: played.in_turn(per_sm, turn), clock)
        turns, waited = _loading(machine)
        return replace(alone, turns=turns, waited_loads=waited)
    span = makespan(launch, sms, per_sm, lambda ctas: step(ctas).cycles, tile(per_sm).cycles)
    of_all = step(per_sm)
    return Computing(
        seconds=_seconds(of_all.busy, span.steps / per_sm / clock),
        waves=resident.waves,
        total_s=span.cycles / clock,
        tile_s=tile(per_sm).cycles / clock,
        step_s=tuple(step(ctas).cycles / clock for ctas in range(1, per_sm + 1)),
        waited_loads=EXPOSED_LOADS if any(map(_waits, machine.step)) else 0,
    )


def _waits(region: Region) -> bool:
    """True where a warp waits for what it loads: where no copies run ahead."""
    groups = {slot.group for slot in region.slots}
    return "global-load" in groups and not groups & COPIES


def _loading(machine: Machine) -> tuple[float, int]:
    """Of the loop that loads most often: its turns in a work tile, and for how many loads a move waits; 0 where no loop
    loads."""
    loops = [r for r in machine.tile if r.repeats and LOADS & {slot.group for slot in r.slots}]
    if not loops:
        return 0.0, 0
    loop = max(loops, key=lambda region: region.turns)
    return loop.turns, int(_waits(loop))


def _late_share(running: Running) -> float:
    """The part of what comes from the L2 for which a CTA waits as long as for HBM. CTAs that do equal work go side by
    side: of those that ask for a line at one time one has it loaded, and all wait."""
    launch, slots = running.launch, running.resident.slots
    touched = launch.touched.asked_together(slots) if launch.touched is not None else {}
    late = read = 0.0
    for tensor in running.chain.tensors:
        from_l2 = running.moved("l2", "read", tensor)
        together = touched.get(tensor, slots) if _alike(launch) else 1.0
        late += min(from_l2, together * running.moved("hbm", "read", tensor))
        read += from_l2
    return late / read if read else 0.0


def _alike(launch: Launch) -> bool:
    """True where all CTAs do about the same work."""
    if launch.touched is None:
        steps = steps_per_tile(launch.domain, launch.outer)
        return float(steps.max(initial=0.0)) == float(steps.min(initial=math.inf))
    shares = launch.touched.shares
    return shares is None or float(shares.max() - shares.min()) < LEAST_UNEVEN


def _tiles_alone(
    running: Running, tile: Callable[[int], Turn], in_turn: Callable[[Turn], float], clock: float
) -> Computing:
    """A launch without a loop over keys: rounds of CTAs; `in_turn` gives the cycles that a round adds to others."""
    launch, resident, sms = running.launch, running.resident, running.rates.profile.sm_count
    if (uneven := _uneven(running, tile, clock)) is not None:
        return uneven
    # Full rounds, and a last one with fewer CTAs. Behind one round those of an SM end together, and it
    # takes as many again: of 120 for 264 places 60 SMs had two (h200_stalls.csv, ragged). Later they
    # have drifted apart, and each SM takes its part.
    full, rest = divmod(launch.work_tiles, resident.slots)
    shared = min(rest, running.ctas_per_sm) if full == 1 else -(-rest // sms)
    # rounds run into one another: the first of them takes all of its time, each other what it adds
    cycles = tile(shared).cycles if rest else 0.0
    if full:
        added = full - 1 if rest == 0 else full
        first = 0.0 if rest else tile(running.ctas_per_sm).cycles
        cycles += first + added * in_turn(tile(running.ctas_per_sm))
    busy = {unit: full * taken for unit, taken in tile(running.ctas_per_sm).busy.items()}
    if rest:
        busy = {unit: busy.get(unit, 0.0) + taken for unit, taken in tile(shared).busy.items()}
    return Computing(
        seconds=_seconds(busy, 1 / clock),
        waves=resident.waves,
        total_s=cycles / clock,
        step_s=_moves_s(launch, tile, running.ctas_per_sm, clock),
    )


def _uneven(running: Running, tile: Callable[[int], Turn], clock: float) -> Computing | None:
    """A launch whose CTAs are known to do unequal work; None: they are alike."""
    launch, sms, per_sm = running.launch, running.rates.profile.sm_count, running.ctas_per_sm
    shares = launch.touched.shares if launch.touched is not None else None
    if shares is None or _alike(launch):
        return None
    span = span_of_shares(shares, sms, per_sm, lambda ctas: tile(ctas).cycles)
    of_all = tile(per_sm)
    return Computing(
        seconds=_seconds(of_all.busy, span.steps / per_sm / clock),
        waves=running.resident.waves,
        total_s=span.cycles / clock,
        step_s=_moves_s(launch, tile, per_sm, clock),
    )


def _moves_s(
    launch: Launch, tile: Callable[[int], Turn], ctas: int, clock: float
) -> tuple[float, ...]:
    """Seconds between two moves of each of n CTAs that share an SM, of a launch whose moves are known: a CTA's time is
    spread evenly over these. One CTA and all of them are played, and between the two each CTA adds as much."""
    if launch.touched is None or not launch.touched.entries.size:
        return ()
    moves = launch.touched.entries.size / max(1, launch.touched.count.size)
    alone, together = tile(1).cycles, tile(ctas).cycles
    added = (together - alone) / max(1, ctas - 1)
    return tuple((alone + added * n) / clock / moves for n in range(ctas))


def _seconds(busy: dict[str, float], factor: float) -> dict[str, float]:
    """Seconds of each unit by the names of a time."""
    seconds: dict[str, float] = {}
    for unit, taken in busy.items():
        if (name := UNIT_NAMES.get(unit)) is not None and taken:
            seconds[name] = max(seconds.get(name, 0.0), taken * factor)
    return seconds

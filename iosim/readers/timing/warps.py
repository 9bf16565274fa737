"""Warps of one part of an SM that play a trace: who issues when, what it waits for, which unit is taken for how long.

An SM has four parts, each with a scheduler that issues an instruction of one of its warps in a cycle, and units of its
own; loads, stores and shuffles of all four go through one path to shared memory and L1, of which each part is taken to
have a quarter. What instructions wait for stands in the code: cycles after those of fixed latency, barriers after
others. No constant is fitted; latencies are those that microbenchmarks found.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from iosim.base.records import dataclass, field
from iosim.kernel.machine import SECTOR_BYTES, Region, Slot

PARTS = 4
"""Of an SM, each with a scheduler."""
LATENCIES = {"shared": 29.0, "l1": 41.0, "special": 18.0, "shuffle": 24.0, "constant": 30.0, "special-register": 20.0,
             "product": 33.0}  # fmt: skip
"""Cycles from issue to result, queues apart: Luo et al. 2024 (arXiv 2402.13499) for shared memory and L1 of an H100,
Jia et al. 2018 and 2019 for the others (Volta and Turing, alike within a few cycles)."""
QUEUED_CYCLES = 24.0
"""How far a unit may be behind before a warp waits to issue to it: some instructions' worth of a queue."""
WARM_TURNS = 2
"""Turns of a loop before one is timed."""
GROUP_LATENCY = {
    "shared-load": "shared", "shared-store": "shared", "shared-atomic": "shared", "shuffle": "shuffle",
    "special": "special", "conversion": "special", "constant-load": "constant", "product": "product",
}  # fmt: skip
FROM_MEMORY = ("global-load", "local-load", "global-copy", "global-atomic", "bulk-copy")
THROUGH_L1 = ("global-load", "local-load", "global-store", "local-store", "global-atomic", "global-copy")


@dataclass(frozen=True)
class PartRates:
    """What a part of an SM does in a cycle of the SM, at the clock of the model."""

    l2_latency: float
    """Cycles of a load that the L2 serves, and the mean of those that it asks HBM for."""
    tensor_flops: float
    """Of its matrix unit, of the type of the products."""
    l2_bytes: float
    """That come from the L2."""
    stored_bytes: float
    """That go to the L2."""
    exps: float = 0.0
    """Results of the special functions; 0: as the table of opcodes has it."""

    def latency(self, slot: Slot) -> float:
        """Cycles until the result of an instruction is there, queues apart."""
        if slot.use and slot.group in FROM_MEMORY:
            # a request is there when its last sector is: one that misses in part waits for the L2
            return missed_latency(1 - slot.use.hits_l1, slot.use.sectors, self.l2_latency)
        return LATENCIES.get(GROUP_LATENCY.get(slot.group, ""), LATENCIES.get(slot.unit, 10.0))


def missed_latency(missed: float, sectors: float, behind: float) -> float:
    """Mean latency of a request of so many sectors, each of which misses L1 with the same chance."""
    any_missed: float = 1 - (1 - min(1.0, missed)) ** max(1.0, sectors)
    return LATENCIES["l1"] + any_missed * (behind - LATENCIES["l1"])


@dataclass
class _Warp:
    """Where a warp is in its trace."""

    group: int
    """Its CTA, whose warps meet at barriers."""
    at: int = 0
    ready: float = 0.0
    barriers: list[float] = field(default_factory=lambda: [0.0] * 6)
    copies: list[float] = field(default_factory=list)
    """When the groups of copies that were begun are there, the last one open."""
    products: list[float] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)


@dataclass
class _Part:
    """When the units of a part are free."""

    issue: float = 0.0
    units: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    meeting: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """A turn of a loop, of each of a part's warps, in SM cycles."""

    cycles: float
    """Of all together: each warp has made one turn."""
    busy: dict[str, float]
    """For which each unit was taken meanwhile."""


def unit_cycles(slot: Slot, rates: PartRates) -> float:
    """Cycles for which an instruction takes its unit of a part."""
    if slot.group == "product":
        return slot.flops / rates.tensor_flops if slot.flops else 0.0
    if slot.unit == "xu" and slot.group == "special" and rates.exps:
        return 32 / rates.exps
    if slot.use is None or slot.unit != "lsu":
        return slot.cycles
    through_l1 = PARTS * slot.use.lines if slot.group in THROUGH_L1 else 0.0
    return max(through_l1, PARTS * slot.use.wavefronts, 1.0)


def l2_cycles(slot: Slot, rates: PartRates) -> tuple[str, float]:
    """Which way to or from the L2 an instruction takes, and for how long; empty where it takes none."""
    if slot.use is None or slot.group not in THROUGH_L1:
        return "", 0.0
    moved = slot.use.sectors * SECTOR_BYTES
    if slot.group in ("global-store", "local-store", "global-atomic"):
        return "to-l2", moved / rates.stored_bytes
    return "from-l2", moved * (1 - slot.use.hits_l1) / rates.l2_bytes


def play(slots: Sequence[Slot], warps: Sequence[int], rates: PartRates, turns: int = 1) -> Turn:
    """A turn of a loop's trace, the last of `turns`, in which the ones before it are still at work.

    Args:
        slots: the trace of a turn.
        warps: the CTA of each warp of the part.
        rates: of the part.
        turns: 1 for code that is run once.
    """
    if not slots or not warps:
        return Turn(0.0, {})
    part, states = _Part(), [_Warp(cta) for cta in warps]
    last = len(slots) * turns
    queue = [(0.0, n) for n in range(len(states))]
    costs = [(unit_cycles(slot, rates), rates.latency(slot), *l2_cycles(slot, rates)) for slot in slots]
    while queue:
        time, number = heapq.heappop(queue)
        state = states[number]
        slot, cost = slots[state.at % len(slots)], costs[state.at % len(slots)]
        earliest = max(state.ready, part.issue, _waited(slot, state), _unit_free(slot, cost[0], part))
        if earliest > time and queue and earliest > queue[0][0]:
            heapq.heappush(queue, (earliest, number))
            continue
        _issue(slot, cost, state, part, earliest)
        state.at += 1
        if state.at % len(slots) == 0:
            state.marks.append(state.ready)
        if state.at == last:
            continue
        if slot.group == "barrier" and slot.unit == "control" and not _met(number, states, part, earliest):
            continue
        for other in _released(number, state, part, states) if slot.group == "barrier" else (number,):
            if states[other].at < last:
                heapq.heappush(queue, (states[other].ready, other))
    ends = [max(state.marks[turn] for state in states if len(state.marks) > turn) for turn in range(turns)]
    if turns == 1:
        return Turn(max(ends[0], *_tails(states)), dict(part.busy))
    counted = turns - 1
    return Turn((ends[-1] - ends[0]) / counted, {unit: busy / turns for unit, busy in part.busy.items()})


def _tails(states: Sequence[_Warp]) -> list[float]:
    """When everything that a warp has begun is there."""
    return [max(state.barriers) for state in states]


def _waited(slot: Slot, state: _Warp) -> float:
    """When everything is there that an instruction waits for."""
    until = 0.0
    if slot.waits:
        until = max((t for n, t in enumerate(state.barriers) if slot.waits >> n & 1), default=0.0)
    if slot.leaves is not None:
        begun = state.products if slot.unit == "control" and state.products else state.copies
        done = begun[: len(begun) - slot.leaves] if slot.leaves else begun
        until = max([until, *done])
    return until


def _unit_free(slot: Slot, cycles: float, part: _Part) -> float:
    free = part.units.get(slot.unit, 0.0)
    queued = QUEUED_CYCLES if slot.unit in ("lsu", "xu", "tma") or slot.runs_beside else 0.0
    return free - queued if cycles else 0.0


def _issue(slot: Slot, cost: tuple[float, float, str, float], state: _Warp, part: _Part, now: float) -> None:
    cycles, latency, way, way_cycles = cost
    part.issue = now + 1
    state.ready = now + slot.stall
    begun = max(now, part.units.get(slot.unit, 0.0))
    if cycles:
        part.units[slot.unit] = begun + cycles
        part.busy[slot.unit] = part.busy.get(slot.unit, 0.0) + cycles
    part.busy["issue"] = part.busy.get("issue", 0.0) + 1
    done = begun + cycles
    if way:
        free = max(begun, part.units.get(way, 0.0)) + way_cycles
        part.units[way] = free
        part.busy[way] = part.busy.get(way, 0.0) + way_cycles
        done = max(done, free)
    if slot.frees is not None:
        state.barriers[slot.frees] = max(state.barriers[slot.frees], done)
    if slot.sets is not None:
        state.barriers[slot.sets] = max(state.barriers[slot.sets], done + latency)
    if slot.runs_beside:
        state.products.append(done + latency)
    elif slot.group in ("global-copy", "bulk-copy"):
        state.copies.append(done + latency)
    elif slot.leaves is not None:
        state.products.clear()


def _met(number: int, states: Sequence[_Warp], part: _Part, now: float) -> bool:
    """Whether all warps of a CTA in this part have come to a barrier."""
    cta = states[number].group
    waiting = part.meeting.setdefault(cta, [])
    waiting.append(number)
    if len(waiting) < sum(state.group == cta for state in states):
        return False
    for other in waiting:
        states[other].ready = max(states[other].ready, now + 1)
    return True


def _released(number: int, state: _Warp, part: _Part, states: Sequence[_Warp]) -> list[int]:
    """The warps that a barrier lets go."""
    return part.meeting.pop(state.group, [number])


def loop_turn(slots: Sequence[Slot], warps: Sequence[int], rates: PartRates) -> Turn:
    """A turn of a loop that is run many times."""
    return play(slots, warps, rates, turns=WARM_TURNS + 1)


def regions_turn(regions: Sequence[Region], warps: Sequence[int], rates: PartRates) -> Turn:
    """All regions one after the other, each as often as it runs."""
    cycles, busy = 0.0, dict[str, float]()
    for region in regions:
        one = loop_turn(region.slots, warps, rates) if region.repeats else play(region.slots, warps, rates)
        cycles += region.turns * one.cycles
        for unit, taken in one.busy.items():
            busy[unit] = busy.get(unit, 0.0) + region.turns * taken
    return Turn(cycles, busy)


def part_warps(threads: int, ctas: int) -> list[int]:
    """The CTA of each warp of a part, of so many CTAs on the SM: a quarter of their warps, dealt round."""
    return [cta for cta in range(ctas) for _ in range(max(1, -(-threads // 32)))][::PARTS]


__all__ = ["PartRates", "Turn", "loop_turn", "part_warps", "play", "regions_turn"]

"""Warps of an SM that play a trace: who issues when, what it waits for, which unit is taken for how long.

An SM has four parts, each with a scheduler that issues an instruction of one of its warps in a cycle, and units of its
own; loads, stores and shuffles of all four go through one path to shared memory, L1 and the L2. What instructions wait
for stands in the code: cycles after those of fixed latency, barriers after others. No constant is fitted; latencies are
those that microbenchmarks found.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from iosim.base.records import dataclass, field, replace
from iosim.kernel.machine import SECTOR_BYTES, Region, Slot

PARTS = 4
"""Parts of an SM, each with a scheduler."""
LATENCIES = {
    "shared": 29.0,
    "l1": 41.0,
    "special": 18.0,
    "shuffle": 24.0,
    "constant": 30.0,
    "special-register": 20.0,
    "product": 33.0,
}
"""Cycles from issue to result, queues apart: Luo et al. 2024 (arXiv 2402.13499) for shared memory and L1 of an H100,
Jia et al. 2018 and 2019 for the others (Volta and Turing, alike within a few cycles)."""
FROM_L2, TO_L2 = "from-l2", "to-l2"
SHARED_UNITS, SHARED_BY_ALL = ("lsu", FROM_L2, TO_L2, "tma"), -1
"""What all parts of an SM have in common."""
PART_WRITE_TIMES = 63 / 26
"""Times that the L2 takes for a sector of which a store writes a part, over a whole one: 26 such sectors a cycle of an
H100's 63 (h100_cache_edges.csv, columns-own-1 and columns-side-2 of every second row of `columns`)."""
MOST_PLAYED = 60_000
"""Instructions of all warps of an SM up to which they are played together; else one part's stand for all."""
QUEUED_CYCLES = 24.0
"""How far a unit may be behind before a warp waits to issue to it: some instructions' worth of a queue."""
TICKS_PER_CYCLE = 64
"""Ticks of a cycle, in which times are compared."""
ROUNDS_PLAYED = 4
"""CTAs that follow one another in each place of an SM while they are played."""
WARM_TURNS = 2
"""Turns of a loop before one is timed."""
GROUP_LATENCY = {
    "shared-load": "shared",
    "shared-store": "shared",
    "shared-atomic": "shared",
    "shuffle": "shuffle",
    "special": "special",
    "conversion": "special",
    "constant-load": "constant",
    "product": "product",
}
AT_ONCE = ("special", "conversion")
"""Groups whose latency has in it what their unit takes for a warp."""
CONFLICT_CYCLES = 2.0
"""Cycles that a further way of a bank conflict adds to the latency of its warp's access, of which the banks take one:
on a GTX 980 28 cycles without, 30, 34, 42, 58 and 90 with conflicts of 2 to 32 ways (Mei and Chu 2017, arXiv
1509.02308)."""
FROM_MEMORY = ("global-load", "local-load", "global-copy", "global-atomic", "bulk-copy")
SHARED_ACCESSES = ("shared-load", "shared-store", "shared-atomic")
THROUGH_L1 = (
    "global-load",
    "local-load",
    "global-store",
    "local-store",
    "global-atomic",
    "global-copy",
)


@dataclass(frozen=True)
class SmPace:
    """What an SM does in a cycle, at the clock of the model."""

    l2_latency: float
    """Cycles of a load that the L2 serves, and the mean of those that it asks HBM for."""
    tensor_flops: float
    """Operations of a part's matrix unit, of the type of the products."""
    l2_bytes: float
    """Bytes that come from the L2 while all SMs load: CTAs of equal work load side by side."""
    stored_bytes: float
    """Bytes that go to the L2."""
    exps: float = 0.0
    """Results of a part's special functions; 0: as the table of opcodes has it."""
    share: float = 1.0
    """How many parts' worth of work goes through what they share, where one of them is played for all."""

    def latency(self, slot: Slot) -> float:
        """Cycles until the result of an instruction is there, queues apart."""
        if slot.group in AT_ONCE:  # from the issue on, with what it takes of its unit
            return max(0.0, LATENCIES[GROUP_LATENCY[slot.group]] - unit_cycles(slot, self))
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

    cta: int
    """Whose warps meet at barriers."""
    part: int
    """The part of the SM whose scheduler and units it has."""
    at: int = 0
    ready: float = 0.0
    barriers: list[float] = field(default_factory=lambda: [0.0] * 6)
    copies: list[float] = field(default_factory=list)
    """When the groups of copies that were begun are there, and what of a group is open."""
    products: list[float] = field(default_factory=list)
    conflicts: float = 0.0
    """When the ways of its last access to shared memory are through."""
    open_copies: float = 0.0
    open_products: float = 0.0
    marks: list[float] = field(default_factory=list)
    """When its turns ended."""


@dataclass
class _Sm:
    """When the units of the SM's parts are free, and of those that all parts share."""

    units: dict[tuple[str, int], float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    meeting: dict[int, list[int]] = field(default_factory=dict)

    def free(self, unit: str, part: int) -> float:
        """When a unit is free."""
        return self.units.get((unit, SHARED_BY_ALL if unit in SHARED_UNITS else part), 0.0)

    def take(self, unit: str, part: int, until: float, cycles: float) -> None:
        """A unit is taken until then, for so many cycles."""
        self.units[unit, SHARED_BY_ALL if unit in SHARED_UNITS else part] = until
        self.busy[unit] = self.busy.get(unit, 0.0) + cycles


@dataclass(frozen=True)
class Turn:
    """A turn of a loop, of each of a part's warps, in SM cycles."""

    cycles: float
    """Cycles in which each warp makes one turn."""
    busy: dict[str, float]
    """Cycles for which each unit is taken meanwhile."""


def unit_cycles(slot: Slot, rates: SmPace) -> float:
    """Cycles for which an instruction takes its unit."""
    if slot.group == "product":
        return slot.flops / rates.tensor_flops if slot.flops else 0.0
    if slot.unit == "xu" and slot.group == "special" and rates.exps:
        return 32 / rates.exps
    if slot.use is None or slot.unit != "lsu":
        return slot.cycles
    through_l1 = slot.use.lines if slot.group in THROUGH_L1 else 0.0
    return max(through_l1, slot.use.wavefronts, 1 / PARTS) * rates.share


def conflict_cycles(slot: Slot) -> float:
    """Cycles that the conflicts of an access to shared memory add to what its unit takes."""
    return (CONFLICT_CYCLES - 1) * slot.conflicts


def l2_cycles(slot: Slot, rates: SmPace) -> tuple[str, float]:
    """Which way to or from the L2 an instruction takes, and for how long; empty where it takes none."""
    if slot.use is None or slot.group not in THROUGH_L1:
        return "", 0.0
    bytes_moved = slot.use.sectors * SECTOR_BYTES * rates.share
    if slot.group in ("global-store", "local-store", "global-atomic"):
        bytes_moved *= 1 + (PART_WRITE_TIMES - 1) * slot.use.in_part
        return TO_L2, bytes_moved / rates.stored_bytes
    return FROM_L2, bytes_moved * (1 - slot.use.hits_l1) / rates.l2_bytes


def play(
    slots: Sequence[Slot],
    warps: Sequence[tuple[int, int]],
    rates: SmPace,
    turns: int = 1,
    apart: float | None = None,
) -> Turn:
    """A turn of a loop's trace, the last of `turns`, in which the ones before it are still at work.

    Args:
        slots: the trace of a turn.
        warps: the CTA and the part of each warp.
        rates: of the SM.
        turns: 1 for code that is run once.
        apart: cycles from the start of a CTA to that of the next, where a turn is a whole CTA, in whose place another
            starts when all its warps have ended; None where all start together and each warp goes on by itself.
    """
    if not slots or not warps:
        return Turn(0.0, {})
    sm, states, last = _Sm(), _starting(warps, apart or 0.0), len(slots) * turns
    # earliest time, who came first, the warp
    queue = [(state.ready, n, n) for n, state in enumerate(states)]
    heapq.heapify(queue)
    came = count(len(states))
    costs = [_cost(slot, rates) for slot in slots]
    while queue:
        time, place, number = heapq.heappop(queue)
        state = states[number]
        slot, cost = slots[state.at % len(slots)], costs[state.at % len(slots)]
        # A warp issues when its own last instruction lets it, the scheduler and the unit are free, and all
        # that it waits for is there.
        free = max(sm.free("issue", state.part), _unit_free(slot, cost.unit, sm, state.part))
        earliest = max(state.ready, free, _waited(slot, state))
        # Not yet: back into the queue with the time found. Another's turn may come first and take the
        # unit, so that the time is worked out anew then.
        if earliest > time and queue and (earliest, place) > queue[0][:2]:
            heapq.heappush(queue, (earliest, place, number))  # others come first
            continue
        _issue(slot, cost, state, sm, earliest)
        state.at += 1
        if state.at % len(slots) == 0:
            state.marks.append(state.ready)
        freed = [number]
        ends = apart is not None and state.at % len(slots) == 0
        if ends or (slot.group == "barrier" and slot.unit == "control"):
            freed = _meet(number, states, sm, earliest)
        for other in freed:
            if states[other].at < last:
                heapq.heappush(queue, (states[other].ready, next(came), other))
    return _turn(states, sm, turns)


def _starting(warps: Sequence[tuple[int, int]], apart: float) -> list[_Warp]:
    """Warps before their first instruction, each CTA's so many cycles after those of the one before it."""
    return [_Warp(cta, part, ready=in_ticks(cta * apart)) for cta, part in warps]


@dataclass(frozen=True)
class _Cost:
    """What an instruction takes, in cycles."""

    unit: float
    """Of its unit."""
    latency: float
    """Until its result is there, queues apart."""
    way: str
    """Its way to or from the L2; empty where it takes none."""
    way_cycles: float
    conflicts: float
    """Of its warp alone, behind what it takes of its unit: while the ways of a conflict follow one another, others'
    accesses go between them."""


def _cost(slot: Slot, rates: SmPace) -> _Cost:
    way, cycles = l2_cycles(slot, rates)
    return _Cost(
        in_ticks(unit_cycles(slot, rates)),
        in_ticks(rates.latency(slot)),
        way,
        in_ticks(cycles),
        in_ticks(conflict_cycles(slot)),
    )


def in_ticks(cycles: float) -> float:
    """Cycles in whole ticks. Sums of them are exact, so that who comes first does not hang on a last bit."""
    return round(cycles * TICKS_PER_CYCLE) / TICKS_PER_CYCLE


def _turn(states: Sequence[_Warp], sm: _Sm, turns: int) -> Turn:
    """What a turn takes: the mean of all but the first, or all of what is run once, with what it has begun."""
    parts = len({state.part for state in states})
    busy_per_part = {
        unit: busy / (1 if unit in SHARED_UNITS else parts) / turns
        for unit, busy in sm.busy.items()
    }
    ends = [max(state.marks[turn] for state in states) for turn in range(turns)]
    # Stores go on behind their warps, but no turn is shorter than its busiest unit's work.
    least = max(busy_per_part.values())
    if turns > 1:
        return Turn(max((ends[-1] - ends[0]) / (turns - 1), least), busy_per_part)
    return Turn(max([ends[0], least, *(max(state.barriers) for state in states)]), busy_per_part)


def _waited(slot: Slot, state: _Warp) -> float:
    """When everything is there that an instruction waits for."""
    until = 0.0
    if slot.waits:
        until = max(time for n, time in enumerate(state.barriers) if slot.waits >> n & 1)
    if slot.leaves is not None:
        begun = state.products if slot.group == "product-wait" else state.copies
        done = begun[: len(begun) - slot.leaves] if slot.leaves else begun
        until = max([until, *done])
    return until


def _unit_free(slot: Slot, cycles: float, sm: _Sm, part: int) -> float:
    """When an instruction may be issued to its unit: some hold a queue, and products that run beside their warps are
    queued without an end."""
    if slot.runs_beside or not cycles:
        return 0.0
    queued = QUEUED_CYCLES if slot.unit in ("lsu", "xu", "tma") else 0.0
    return sm.free(slot.unit, part) - queued


def _issue(slot: Slot, cost: _Cost, state: _Warp, sm: _Sm, now: float) -> None:
    # `stall` cycles of fixed latency stand in the code; barriers 0 to 5 tell of variable ones.
    state.ready = now + slot.stall
    sm.take("issue", state.part, now + 1, 1.0)
    begun = max(now, sm.free(slot.unit, state.part)) if cost.unit else now
    if cost.unit:
        sm.take(slot.unit, state.part, begun + cost.unit, cost.unit)
    done = begun + cost.unit
    if slot.group in SHARED_ACCESSES:
        # A warp's accesses go through one after the other; others' go between the ways of their conflicts.
        done = max(begun, state.conflicts) + cost.unit + cost.conflicts
        state.conflicts = done
    # A load has read its registers when its unit has taken it, a store when it is on its way.
    read = done
    if cost.way:
        until = max(begun, sm.free(cost.way, state.part)) + cost.way_cycles
        sm.take(cost.way, state.part, until, cost.way_cycles)
        done = max(done, until)
        read = done if cost.way == TO_L2 else read
    if slot.frees is not None:
        state.barriers[slot.frees] = max(state.barriers[slot.frees], read)
    if slot.sets is not None:
        state.barriers[slot.sets] = max(state.barriers[slot.sets], done + cost.latency)
    _groups(slot, state, done + cost.latency)


def _groups(slot: Slot, state: _Warp, done: float) -> None:
    """Copies and products that are waited for in groups."""
    if slot.runs_beside:
        state.open_products = max(state.open_products, done)
        if slot.closes:
            state.products.append(state.open_products)
    elif slot.group in ("global-copy", "bulk-copy"):
        state.open_copies = max(state.open_copies, done)
    elif slot.group == "commit":
        state.copies.append(state.open_copies)
    elif slot.leaves is not None:
        groups = state.products if slot.group == "product-wait" else state.copies
        del groups[: len(groups) - slot.leaves]


def _meet(number: int, states: Sequence[_Warp], sm: _Sm, now: float) -> list[int]:
    """The warps that a barrier lets go: all of a CTA once the last has come, none before."""
    cta = states[number].cta
    waiting = sm.meeting.setdefault(cta, [])
    waiting.append(number)
    if len(waiting) < sum(state.cta == cta for state in states):
        return []
    for other in waiting:
        states[other].ready = max(states[other].ready, now + 1)
    return sm.meeting.pop(cta)


def ctas_in_turn(
    regions: Sequence[Region], warps: Sequence[tuple[int, int]], rates: SmPace, alone: Turn
) -> float:
    """Cycles in which an SM's places make a CTA each, where others start as they end: they are spread over the time of
    one, so that some load while others compute or store. `alone` is what they take when all start together. Code with
    loops is played loop by loop, and told by that."""
    ctas = len({cta for cta, _ in warps})
    if ctas < 2 or len(regions) != 1 or regions[0].repeats:
        return alone.cycles
    slots = regions[0].slots
    played, pace = _played(len(slots) * ROUNDS_PLAYED, warps, rates)
    spread = play(slots, played, pace, ROUNDS_PLAYED, apart=alone.cycles / ctas)
    return min(alone.cycles, spread.cycles)


def loop_turn(slots: Sequence[Slot], warps: Sequence[tuple[int, int]], rates: SmPace) -> Turn:
    """A turn of a loop that is run many times."""
    return play(slots, warps, rates, turns=WARM_TURNS + 1)


def regions_turn(
    regions: Sequence[Region], warps: Sequence[tuple[int, int]], rates: SmPace
) -> Turn:
    """All regions one after the other, each as often as it runs."""
    cycles, busy = 0.0, dict[str, float]()
    for region in regions:
        turns = WARM_TURNS + 1 if region.repeats else 1
        played, pace = _played(len(region.slots) * turns, warps, rates)
        region_turn = play(region.slots, played, pace, turns)
        cycles += region.turns * region_turn.cycles
        for unit, taken in region_turn.busy.items():
            busy[unit] = busy.get(unit, 0.0) + region.turns * taken
    return Turn(cycles, busy)


def _played(
    slots: int, warps: Sequence[tuple[int, int]], rates: SmPace
) -> tuple[Sequence[tuple[int, int]], SmPace]:
    """Whose warps play so many instructions each: all, or where these are too many one part's, and what all parts share
    at a share of its rate."""
    if slots * len(warps) <= MOST_PLAYED:
        return warps, rates
    mine, parts = one_part(warps)
    return mine, replace(rates, share=parts)


def placed_warps(threads: int, ctas: int) -> list[tuple[int, int]]:
    """The CTA and the part of each warp of so many CTAs on an SM, whose parts take them in turn."""
    warps_per_cta = max(1, -(-threads // 32))
    return [(n // warps_per_cta, n % PARTS) for n in range(ctas * warps_per_cta)]


def one_part(warps: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], float]:
    """The warps of the fullest part alone, and how many parts' worth of work the SM has."""
    mine = [(cta, part) for cta, part in warps if part == 0]
    return mine, len(warps) / len(mine)


__all__ = [
    "SmPace",
    "Turn",
    "ctas_in_turn",
    "loop_turn",
    "one_part",
    "placed_warps",
    "play",
    "regions_turn",
]

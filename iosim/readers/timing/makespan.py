"""How long a grid of work tiles of unequal length keeps the SMs busy.

Tiles are measured in steps (visited pairs of blocks); the caller says how many cycles a step takes when several CTAs
share an SM. Tiles go to free slots in the launch's order, or by a persistent grid's list. Which SM gets which CTA
is taken as round robin; drift between CTAs and clusters are not treated.

Times that are compared are whole ticks. CTAs that did the same steps beside the same neighbours end at the same tick,
whatever their cycles are, and the order of their slots decides who takes the next tile. In floating point the last bit
decided: a clock changed by 1e-12 moved the end of a causal grid by several per cent. A tick is a share of a step (or of
the time for which a lock is held), so that a change of the clock scales the ticks and moves no end before another.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import count

import numpy as np
import numpy.typing as npt

from iosim.base.arrays import repeated, tallied
from iosim.base.records import dataclass, replace
from iosim.kernel.launch import Domain, Launch, Outer
from iosim.kernel.remap import place, turns
from iosim.kernel.schedule import Order, Schedule, Scheduler

FloatArray = npt.NDArray[np.float64]

MOST_LISTED = 4_000_000
"""Tiles up to which the lists of a persistent grid are added up one by one; with more, they are taken to be even."""
MOST_TURNS = 200_000
"""Visits to locks up to which all are played one by one; with more, those of the first heads."""
CLAIMED_TILES_PER_SLOT = 64
"""Tiles per slot that are scheduled one by one where tiles are claimed one ahead: early claims decide for long."""
CLAIM_STEPS = (0.3, 0.5, 0.7, 0.9)
"""What a tile takes besides, in steps, as it decides which CTA claims first: the mean over several, since who is first
among CTAs that end at about the same time decides for long."""
TICKS = 1024
"""Ticks of a step of a CTA alone on its SM, of a step that is claimed, of the time for which a lock is held. A power of
two, so that halves, quarters and eighths are whole and no ratio of small numbers lies halfway between two ticks."""
PARTS_OF_CTA = 256
"""Parts of the mean CTA's work in which that of others is given, where it is known one by one."""
TAIL_TILES_PER_SLOT = 4
"""Tiles a slot that are scheduled one by one at the end of a grid; what comes before keeps all slots busy."""


@dataclass(frozen=True)
class Makespan:
    """`cycles` from first to last CTA, `sm_steps` that each SM does in them, and `rounds` of tiles a slot."""

    cycles: float
    sm_steps: list[float]
    rounds: float

    @property
    def steps(self) -> float:
        """Steps of the busiest SM."""
        return max(self.sm_steps)

    def share(self, least: float) -> float:
        """The part of all SMs that is at work, and `least` where it is smaller, in the mean of the busiest SM's
        steps."""
        ends = np.sort(self.sm_steps)
        at_work = np.arange(len(ends), 0, -1) / len(ends)
        return float(np.diff(ends, prepend=0.0) @ np.maximum(at_work, least) / max(1.0, ends[-1]))


def steps_per_tile(domain: Domain, outer: Outer) -> FloatArray:
    """Steps of each work tile of one (batch, head), in ascending order of blocks, without CTAs that exit early, past
    the end of a packed sequence."""
    steps, has_rows = _ctas(domain, outer)
    return steps[has_rows]


def _ctas(domain: Domain, outer: Outer) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Steps of each CTA of one (batch, head), and whether it has a tile."""
    visited, steps = domain.visited, domain.visited.count
    has_rows = domain.query_rows > 0
    if outer is Outer.KEY:
        steps, has_rows = domain.visitors.count, domain.key_rows > 0
    elif outer is Outer.SPLIT:
        steps = visited.by_split(domain.key_blocks_per_split, domain.splits).count
        has_rows = repeated(has_rows, domain.splits)
    elif outer is Outer.HEAD:
        mine = np.arange(domain.key_blocks_total) % domain.splits
        steps = tallied(mine, weights=domain.visitors.count)
        has_rows = np.ones(len(steps), bool)
    return np.where(has_rows, steps, 0).astype(np.float64), has_rows


def makespan(
    launch: Launch, sms: int, ctas_per_sm: int, step: Callable[[int], float], tile_cycles: float
) -> Makespan:
    """Length of a launch whose tiles cost `tile_cycles` + steps x `step(CTAs on the SM)` cycles.

    Args:
        step: cycles in which each of n CTAs that share an SM does one step.
        tile_cycles: cycles a tile takes besides its steps.
    """
    work = steps_per_tile(launch.domain, launch.outer)
    heads, schedule = launch.domain.grid_heads, launch.schedule
    tiles, slots, longest = len(work) * heads, sms * ctas_per_sm, float(work.max(initial=0.0))
    total = float(work.sum()) * heads
    rounds, own_cycles = max(1.0, tiles / slots), tile_cycles * max(1.0, tiles / slots)
    # Three cases. Equal tiles: full rounds, and a last one in which fewer CTAs share an SM.
    if tiles > slots and longest == float(work.min()):
        full, rest = divmod(tiles, slots)
        shared = -(-rest // sms)
        cycles = full * (longest * step(ctas_per_sm) + tile_cycles)
        cycles += longest * step(shared) + tile_cycles if rest else 0.0
        tiles_per_sm, more = divmod(full * slots + rest, sms)
        sm_steps = [longest * tiles_per_sm] * (sms - more) + [longest * (tiles_per_sm + 1)] * more
        return Makespan(cycles, sm_steps, full + (rest > 0))
    # Unequal tiles of a persistent grid: each CTA's list is one long tile. Tiles claimed one ahead:
    # played with ticks of steps. All others: the end of the grid is played tile by tile.
    if tiles > slots and schedule.scheduler is Scheduler.PERSISTENT and tiles <= MOST_LISTED:
        works = _lists(work, schedule, launch.domain, slots).tolist()
    elif tiles > slots and schedule.scheduler is Scheduler.DYNAMIC and schedule.claims_ahead:
        end = _end_of_claims(launch.domain, launch.outer, schedule, slots)
        return Makespan(end * step(ctas_per_sm) + own_cycles, [end * ctas_per_sm], rounds)
    else:
        # The hardware starts CTAs without a tile, too, each in its place; they end at once.
        static = schedule.scheduler is Scheduler.STATIC
        ctas, has_rows = _ctas(launch.domain, launch.outer)
        per_slot = min(CLAIMED_TILES_PER_SLOT, TAIL_TILES_PER_SLOT * len(ctas) / len(work))
        every = ctas[has_rows | static]
        works = _tail(
            every, schedule, heads, int(per_slot * slots), launch.domain.sequences**static
        ).tolist()
    # paces[n - 1]: cycles of a step of each of n CTAs that share an SM.
    paces = [step(n + 1) for n in range(ctas_per_sm)]
    # What comes before the tail keeps all slots busy; the tail is played, from 0 on.
    before = (total - sum(works)) / slots
    paces_in_ticks = tuple(in_ticks(pace / paces[0]) if paces[0] else 0 for pace in paces)
    ticks, steps = _end_of_ctas(tuple(map(int, works)), sms, paces_in_ticks)
    cycles = before * paces[-1] + ticks * paces[0] / TICKS
    return Makespan(cycles + own_cycles, [before * ctas_per_sm + more for more in steps], rounds)


def span_of_shares(
    shares: FloatArray, sms: int, ctas_per_sm: int, tile: Callable[[int], float]
) -> Makespan:
    """Length of a launch of CTAs whose work is known one by one, in the order in which they start.

    Args:
        shares: the work of each over that of the mean one.
        tile: cycles in which each of n CTAs that share an SM does the mean one's work.
    """
    # As in `makespan`: what comes before the last CTAs keeps all slots busy, and these are played.
    slots = sms * ctas_per_sm
    works = np.rint(shares * PARTS_OF_CTA).astype(np.int64)
    end = works[-CLAIMED_TILES_PER_SLOT * slots :]
    before = float(works.sum() - end.sum()) / slots
    paces = [tile(n + 1) / PARTS_OF_CTA for n in range(ctas_per_sm)]
    paces_in_ticks = tuple(in_ticks(pace / paces[0]) if paces[0] else 0 for pace in paces)
    ticks, steps = _end_of_ctas(tuple(end.tolist()), sms, paces_in_ticks)
    cycles = before * paces[-1] + ticks * paces[0] / TICKS
    sm_steps = [(before * ctas_per_sm + more) / PARTS_OF_CTA for more in steps]
    return Makespan(cycles, sm_steps, max(1.0, len(works) / slots))


def in_ticks(share: float) -> int:
    """Whole ticks nearest to a share of the time that `TICKS` take."""
    return round(share * TICKS)


def in_turn(launch: Launch, alone: Makespan, slots: int, held: float) -> Makespan:
    """The grid's length where every CTA of a head takes each of the head's locks once for each of its key blocks, and
    holds it for `held` cycles. Each begins at another block of queries as far as there are enough (kernel_backward.h:
    getQueryStartShift); the others queue. Where the CTAs of a head need a lock for longer than one computes,
    they are played: first come, first served.

    Args:
        alone: the grid without locks. Its CTAs share its cycles evenly.
    """
    d, steps = launch.domain, _ctas(launch.domain, launch.outer)[0]
    key_blocks = d.key_blocks_total / len(steps)
    # Who walks at all takes a lock once at least.
    visits = np.maximum(1, np.rint(steps[steps > 0] / key_blocks)).astype(int).tolist()
    a_head, locks, taken = len(visits), d.query_blocks, held * key_blocks
    at_once, cycles_per_round = min(a_head, slots), alone.cycles / alone.rounds
    if taken * at_once <= cycles_per_round:
        return replace(alone, cycles=alone.cycles + (-(-at_once // locks) - 1) * held)
    heads = min(d.grid_heads, max(1, MOST_TURNS // sum(visits)))
    # Ticks of the time for which a CTA holds a lock.
    between, ctas = (
        max(0, in_ticks((cycles_per_round * a_head / sum(visits) - taken) / taken)),
        a_head * heads,
    )
    free = [0] * (heads * locks)
    waiting, following = [(between, 0, 0)] * min(slots, ctas), count()
    # First come, first served: (time, turn, CTA) of those who come to a lock; a lock is free again a
    # hold later, and its CTA comes to the next block after computing.
    while waiting:
        arrived, turn, cta = heapq.heappop(waiting)
        # A slot whose CTA has made all of its visits takes the next CTA of the grid.
        cta = cta if turn else next(following)
        if cta < ctas:
            head, place = divmod(cta, a_head)
            begins = place * launch.walks_round - visits[place]
            lock = head * locks + (begins + turn) % locks
            free[lock] = max(arrived, free[lock]) + TICKS
            heapq.heappush(waiting, (free[lock] + between, (turn + 1) % visits[place], cta))
    return replace(
        alone, cycles=max(max(free) * (taken / TICKS) * d.grid_heads / heads, alone.cycles)
    )


@lru_cache(maxsize=32)  # a clock is searched, and most clocks share a launch's paces in ticks
def _end_of_ctas(
    works: tuple[int, ...], sms: int, pace: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Ticks until the last CTA ends, and steps of each SM. CTAs start round robin over the SMs, each next one
    where one ends; those of an SM share it, and speed up as others end. An SM that CTAs without steps leave takes the
    next two, though others are free.

    Args:
        works: steps of each CTA, in the order in which they start.
        pace: ticks of a step with one CTA on the SM, with two and so on.
    """
    slots = sms * len(pace)
    # An SM's clock counts steps that each of its CTAs has done since the launch began: CTA with w
    # steps ends when the clock says w more than as it began. `events` says when each SM's next
    # CTA ends, at the pace of as many CTAs as it has.
    resident = [sorted(works[sm:slots:sms]) for sm in range(sms)]
    steps = [sum(ends) for ends in resident]
    now = 0
    events = [(ends[0] * pace[len(ends) - 1], sm, sm) for sm, ends in enumerate(resident) if ends]
    heapq.heapify(events)
    waiting, absent = iter(works[slots:]), 0 in works
    for later in range(
        sms, sms + len(works)
    ):  # of SMs where CTAs end together, each is served in turn
        now, turn, sm = events[0]
        ends = resident[sm]
        done = heapq.heappop(ends)
        if (work := next(waiting, None)) is not None:
            heapq.heappush(ends, done + work)
            steps[sm] += work
        if ends:
            # CTAs that end together are served SM by SM, but for SMs whose CTAs had no steps.
            again = absent and len(ends) > 1 and ends.count(done) >= len(ends) - 1
            turn = turn if again else later
            heapq.heapreplace(events, (now + (ends[0] - done) * pace[len(ends) - 1], turn, sm))
        else:
            heapq.heappop(events)
    return now, tuple(steps)


def _tail(
    work: FloatArray, schedule: Schedule, heads: int, tail_tiles: int, sequences: int = 1
) -> FloatArray:
    """The last tiles of the grid in the order in which they start; `tail_tiles` of them, or all. `sequences` of `work` are
    packed, as many tiles each; with query blocks fastest, all heads of one come before those of the next."""
    rows = work.reshape(sequences, -1)
    # The order in which a head's blocks start: from the first, from the last, or alternating.
    rows = rows[:, turns(schedule.start, rows.shape[1])]
    # Query blocks fastest: heads one after the other. Only the last of them are in the tail.
    if schedule.order is Order.QUERY:
        return repeated(rows[:, None], min(heads, -(-tail_tiles // rows.shape[1])), axis=1).ravel()[
            -tail_tiles:
        ]
    work = rows.ravel()
    if schedule.order is Order.BATCH:
        return np.tile(work, min(heads, -(-tail_tiles // len(work))))[-tail_tiles:]
    # Heads fastest: every block of all heads of a section, section by section, from the end back.
    section = schedule.section_heads or heads
    parts: list[FloatArray] = []
    heads_left, counted = heads, 0
    while heads_left > 0 and counted < tail_tiles:
        width = (heads_left % section or section) if heads_left == heads else section
        needed = -(-(tail_tiles - counted) // width)
        parts.insert(0, repeated(work[max(0, len(work) - needed) :], width))
        heads_left, counted = heads_left - width, counted + len(parts[0])
    return np.concatenate(parts)[-tail_tiles:]


@lru_cache(maxsize=512)
def _end_of_claims(domain: Domain, outer: Outer, schedule: Schedule, slots: int) -> float:
    """Steps until the last slot is done where tiles are claimed one ahead."""
    work = steps_per_tile(domain, outer)
    tail = _tail(work, schedule, domain.grid_heads, CLAIMED_TILES_PER_SLOT * slots)
    before = (float(work.sum()) * domain.grid_heads - float(tail.sum())) / slots
    ends = []
    # Who claims first among CTAs that end together is by chance: the mean over several pauses.
    for share in CLAIM_STEPS:
        besides = in_ticks(share)
        ticks = _claimed_ahead(slots, [int(steps) * TICKS + besides for steps in tail.tolist()])
        ends.append(ticks - besides * len(tail) / slots)
    return before + math.fsum(ends) / len(ends) / TICKS


def _lists(work: FloatArray, schedule: Schedule, domain: Domain, slots: int) -> FloatArray:
    """Steps of each CTA of a persistent grid: CTA c has tiles c, c + slots, c + 2 slots, ..."""
    blocks, heads = len(work), domain.grid_heads
    number = np.arange(blocks * heads)
    single = replace(schedule, cluster=1)
    _, block = place(
        single, number, blocks=blocks, heads=heads, batch=domain.batch * domain.sequences
    )
    return tallied(number % slots, weights=work[block]).astype(np.float64)


def _claimed_ahead(slots: int, tail: list[int]) -> int:
    """Ticks until the last slot is done, as tiles are claimed one ahead: a CTA that begins a tile claims the next
    number at once, and does it after. A tile of `tail` is so many ticks."""
    claimed = [(0, ticks) for ticks in tail[:slots]]
    heapq.heapify(claimed)
    for ticks in tail[slots:]:
        end, claim = claimed[0]
        heapq.heapreplace(claimed, (end + claim, ticks))
    return max(end + claim for end, claim in claimed)

"""Long launches are played in part: in coarse steps, or, where those do not fit, in windows of small ones.

In a coarse step a CTA goes over the tiles of several key blocks at once. The loop's tensors are cut into as many times
larger objects. What decides HBM traffic is kept: where each CTA is, to a small step where its work tile begins and
ends, which of them wait for memory, and which come to what another fetches. Where each head begins anew, with work
tiles of all lengths, the first heads stand for the rest.

A window's bytes per step stand for the steps settled before it and for half of those skipped before and after it. The
error is estimated from the windows themselves: how far each lies from the line between its neighbours.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iosim.base.records import dataclass, replace
from iosim.kernel.launch import SPILL, Chain, Launch, Outer
from iosim.readers.replay.l2 import L2Model
from iosim.readers.replay.lowering import Lowered, LoweredLaunch, lower
from iosim.readers.replay.templates import Template

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

PLAYED_ACCESSES = 24_000_000
"""Object accesses that a launch plays in all, about: a second."""
FOLLOWED_TOUCHES = 100_000_000
"""Look-ups of followed lines that a launch makes, about: `FEWEST_SETS` to `MOST_SETS` sets are followed by it."""
FOLLOWED_STEPS = 6_000_000
"""Small steps that a launch plays of work tiles that store to the same place at each and are followed there, about."""
FEWEST_SETS, MOST_SETS = 2, 32
FINE_STEPS = 8
"""Small steps of a coarse one up to which all heads are played."""
HEADS_PLAYED = 2
UNEVEN = 2
"""Longest over shortest work tile from which a head begins anew what the one before it did."""
EVEN_STEPS = 8
"""Coarse steps are multiples of this many small ones, so that neighbouring work tiles, which begin a few small steps
apart, stay in step."""
HELD_STEPS = 24
"""Coarse steps of one CTA that the L2 has to hold: with fewer, CTAs that wait for memory may part too early."""
LEAST_HELD = 1.0
"""And at least: where the L2 does not hold even one, a coarse step drives out what it reads itself."""
ERROR = 0.09
"""What HBM reads may be off by: of the 25 launches of benchmarks/sampled.py 23 are this close, 19 within 0.027."""


@dataclass(frozen=True)
class CoarseSteps:
    """How the launch `name` was played: `steps` small steps at once, `heads` of its `of` heads."""

    name: str
    steps: int
    heads: int
    of: int
    held: float
    """Coarse steps of a CTA that the L2 holds."""
    small_steps: int
    """Small steps of all work tiles of the launch."""


@dataclass(frozen=True)
class Coarse:
    """How a launch is to be played, with its work tiles. `lead` and `trail` are the small steps of each work tile's
    first and last coarse step."""

    how: CoarseSteps
    lead: Int32
    trail: Int32
    lowered: Lowered
    least_sets: float

    @property
    def whole_over_played(self) -> float:
        return self.how.of / self.how.heads


def coarse_plan(
    chain: Chain,
    lowered: Lowered,
    model: L2Model,
    budget: int = PLAYED_ACCESSES,
    spill_slots: int = 1,
) -> Coarse | None:
    """How a chain with one long launch is played in coarse steps, or None where it cannot be or need not be: also where
    the steps that the budget allows are longer than what the L2 holds. `lowered`: the chain in small steps. `budget`:
    object accesses to play, about. `spill_slots`: as for `lower`."""
    # Only one long launch: coarse objects of its tensors would not suit a second one's steps.
    long = [n for n, low in enumerate(lowered.launches) if low.accesses > budget]
    if len(long) != 1:
        return None
    launch, low = chain.launches[long[0]], lowered.launches[long[0]]
    if not _walks_on(launch, low):
        return None
    # Two savings: several small steps at once, and, where those would be long, the first heads for
    # all. Steps are as many as bring accesses down to the budget.
    of = _heads(launch, low) if len(chain.launches) == 1 else 1
    heads = of if low.accesses <= FINE_STEPS * budget else min(of, HEADS_PLAYED)
    steps = _rounded(-(-low.accesses * heads // (of * budget)))
    coarser = lower(_coarser(chain, launch, steps), spill_slots)
    big = coarser.launches[long[0]]
    # A coarse step must be made of small ones: same work tiles, same order, edges that fit.
    edges = _edges(low, big, steps)
    if edges is None or big.accesses > 2 * low.accesses // steps:
        return None
    tiles = big.tiles * heads // of
    launches = tuple(
        _first_tiles(big, tiles) if n == long[0] else x for n, x in enumerate(coarser.launches)
    )
    a_step = sum(
        int(lowered.size[t.base[t.base >= 0][:1]].sum()) * t.span * t.rows
        for t in low.loop
        if t.coef
    )
    # A coarse step asks for all its bytes at once. An L2 that does not hold them would drop what
    # the next CTA comes for, which small steps would not.
    held_steps = model.sets * model.ways * model.line_bytes / max(1, a_step * steps)
    if held_steps < LEAST_HELD:
        return None
    return Coarse(
        CoarseSteps(launch.name, steps, heads, of, held_steps, int(low.count.sum(dtype=np.int64))),
        edges[0][:tiles],
        edges[1][:tiles],
        replace(coarser, launches=launches),
        _sets(model, lowered, low, a_step, steps, heads / of),
    )


def _walks_on(launch: Launch, low: LoweredLaunch) -> bool:
    """True where every work tile goes over indices that run on, with loads that move with them."""
    d = launch.domain
    return (
        launch.outer in (Outer.QUERY, Outer.KEY)
        and d.splits == 1
        and d.sequences == 1
        and low.indices is None
        and low.group == 1
        and any(t.coef for t in low.loop)
        and all(t.stays or t.tensor != SPILL for t in low.loop)
    )


def _heads(launch: Launch, low: LoweredLaunch) -> int:
    """Heads that do the same one after the other, each beginning anew; 1 where they do not."""
    heads = launch.domain.grid_heads
    steps_by_head = low.count.reshape(heads, -1)
    alike = bool((steps_by_head == steps_by_head[0]).all() and (np.diff(low.head) >= 0).all())
    return (
        heads if alike and steps_by_head.max() >= UNEVEN * max(1, int(steps_by_head.min())) else 1
    )


def _rounded(steps: int) -> int:
    return max(2, steps) if steps < EVEN_STEPS // 2 else -(-steps // EVEN_STEPS) * EVEN_STEPS


def _coarser(chain: Chain, launch: Launch, steps: int) -> Chain:
    d = launch.domain
    loops_over_keys = launch.outer is Outer.QUERY
    grown = (
        replace(d, block_k=d.block_k * steps)
        if loops_over_keys
        else replace(d, block_q=d.block_q * steps)
    )
    return replace(
        chain,
        launches=tuple(replace(x, domain=grown) if x is launch else x for x in chain.launches),
    )


def _edges(low: LoweredLaunch, big: LoweredLaunch, steps: int) -> tuple[Int32, Int32] | None:
    """Small steps of each work tile's first and last coarse step; None where a coarse one is not made of `steps`."""
    last = low.first + low.count - 1
    # Coarse index = small index // steps: a tile over [first, last] has these many.
    count = np.where(low.count > 0, last // steps - low.first // steps + 1, 0)
    if big.count.size != low.count.size or (big.count != count).any():
        return None
    if (big.first != low.first // steps)[count > 0].any():
        return None
    # Small steps in the coarse step with the lowest index, and in that with the highest; a tile
    # that walks down begins with the highest.
    low_end = np.minimum(steps - low.first % steps, low.count)
    high_end = np.where(count == 1, low_end, last % steps + 1)
    down = low.down == 1
    return np.where(down, high_end, low_end).astype(np.int32), np.where(
        down, low_end, high_end
    ).astype(np.int32)


def _first_tiles(low: LoweredLaunch, n: int) -> LoweredLaunch:
    def cut(templates: tuple[Template, ...]) -> tuple[Template, ...]:
        return tuple(replace(t, base=np.ascontiguousarray(t.base[:n])) for t in templates)

    return replace(
        low,
        first=low.first[:n],
        count=low.count[:n],
        prologue=cut(low.prologue),
        loop=cut(low.loop),
        epilogue=cut(low.epilogue),
        down=low.down[:n],
        head=low.head[:n],
        block=low.block[:n],
    )


def _sets(
    model: L2Model, lowered: Lowered, low: LoweredLaunch, step_bytes: int, steps: int, share: float
) -> float:
    """Sets of a partition to follow: a line a coarse object, more where that would leave few; a power of two, so that
    groups of sets get equally many."""
    way = model.sets * model.line_bytes
    small_steps = int(low.count.sum(dtype=np.int64)) * share
    # Look-ups = small steps x followed lines of a step = small_steps x step_bytes / line x sets
    # followed / sets: solved for the sets followed.
    affordable = FOLLOWED_TOUCHES * way / (small_steps * step_bytes)
    stays = sum(int(lowered.size[t.base[:1]].sum()) for t in low.loop if t.stays)
    if stays:
        affordable = min(affordable, FOLLOWED_STEPS * way / (small_steps * stays))
    one_each = way * sum(t.coef != 0 for t in low.loop) / (step_bytes * steps)
    wanted = max(one_each, min(MOST_SETS, max(FEWEST_SETS, affordable)))
    return float(2 ** int(np.log2(wanted)))


SETTLE_STEPS = 192
"""Steps of a CTA that are played after a jump before rates are taken: the refilled L2 knows no order within a step."""
WINDOW_STEPS = 64
MIN_WINDOWS = 24
SECOND_DIFFERENCE = 1.5
"""Variance of r1 - (r0 + r2) / 2 in units of that of one of three independent values: 1 + 1/4 + 1/4."""


@dataclass(frozen=True)
class SamplingPlan:
    """Steps of a CTA that settle, that make a window, and that are skipped between windows."""

    settle: int
    window: int
    jump: int
    windows: int
    """About how many windows there will be; room is kept for more."""


def sampling_plan(
    launch: LoweredLaunch,
    slots: int,
    budget: int = PLAYED_ACCESSES,
    settle: int = SETTLE_STEPS,
    window: int = WINDOW_STEPS,
) -> SamplingPlan | None:
    """How a launch of `slots` CTAs at once is played in part, or None where all of it is to be played. `budget`: object
    accesses to play in all."""
    running = min(slots, launch.tiles)
    steps = int(launch.count.sum(dtype=np.int64)) // max(1, running)
    if launch.group != 1 or not launch.loop:
        return None
    # As many windows as the budget allows, evenly over the launch; none where jumps would be short
    # beside what is played (twice a cycle), as then playing all is no dearer.
    cycle = settle + window
    windows = max(MIN_WINDOWS, steps * budget // max(1, launch.accesses) // cycle)
    jump = steps // windows - cycle
    return SamplingPlan(settle, window, jump, windows) if jump >= 2 * cycle else None


@dataclass(frozen=True)
class Windows:
    """What was found: HBM bytes [windows, tensors] in `played` loads of a step; `stands_for` loads in all."""

    played: Int64
    stands_for: Int64
    read: Int64
    write: Int64
    waited: float
    """How much longer steps took than had no load been waited for."""
    passed_over: int = 0
    """Objects outside the loop that were looked at for skipped work tiles."""

    def totals(self) -> tuple[Int64, Int64]:
        """HBM bytes (read, written) by tensor over the whole launch."""
        share = self.stands_for / self.played
        read, write = (
            np.rint((counts * share[:, None]).sum(axis=0)).astype(np.int64)
            for counts in (self.read, self.write)
        )
        return read, write

    def standard_error(self) -> float:
        """Standard error of the bytes read and written together, as a fraction of them."""
        rate = (self.read + self.write).sum(axis=1) / self.played
        total = float((rate * self.stands_for).sum())
        if rate.size < 3 or total == 0:
            return 0.0
        # What a window says beside the line between its neighbours: their noise, free of a trend. Each
        # window's error counts by the loads that it stands for and did not play.
        apart = rate[1:-1] - (rate[:-2] + rate[2:]) / 2
        skipped = (self.stands_for - self.played)[1:-1]
        return (
            float(np.sqrt((apart**2 * skipped.astype(np.float64) ** 2).sum() / SECOND_DIFFERENCE))
            / total
        )

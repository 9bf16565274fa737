"""Terms of a work tile of an attention loop beside its steps, of a CTA's first tile, and of locks, in SM cycles."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from iosim.base.records import cached_property, dataclass
from iosim.kernel.launch import COLUMNS_OUTSIDE, Launch, Mode, Per
from iosim.kernel.schedule import Scheduler
from iosim.kernel.shared_memory import DEPTH
from iosim.readers.timing.makespan import steps_per_tile
from iosim.readers.timing.rates import SmRates
from iosim.readers.timing.running import Running
from iosim.readers.timing.step_terms import SCHEDULERS, STAGED_LOADS_PER_PRODUCT, UNHIDDEN_TURN
from iosim.readers.timing.terms import Scope, term

FIRST_LOADS = 2
"""Loads before a tile's first step, one behind the other: Q or what says where it lies, and the first keys.
`tile_cycles` has them, from HBM, as the launches had that it was found on."""
LOCKED_LOADS = 4
"""Accesses, one behind the other, for which a CTA holds the lock of a block of dQ's sums, beside the sums' bytes: the
lock, a counter, the sums and the fence behind them (pytorch, mem_eff_attention/kernel_backward.h)."""
L2_BYTES_PER_CYCLE, L2_STORED_PER_CYCLE = 44, 32
"""Bytes per cycle that an SM alone loads from the L2, where all 132 of an H100 load 29 each, and stores, where all
store 16."""
INSTRUCTION_BYTES = 16
CODE_AHEAD_BYTES = 70_000
"""Bytes of a kernel's code that come as fast as an SM alone loads; others come as they are reached. Fitted."""
CODE_FETCHED_AHEAD = 16 * 128
"""Bytes of code that an SM has asked for at a time as it runs straight on: a stream buffer of 16 lines of 128 bytes (Huerta
et al. 2025, arXiv 2503.20481, section 5.2: the size that agrees best with an RTX A6000). So many come from HBM in the
time of a load. From the L2 an SM fetches code as it does data."""
CODE_WAYS = 4
"""Lines of a set of the cache of instructions: inferred."""
CODE_AGAIN_PER_CYCLE = INSTRUCTION_BYTES * SCHEDULERS
"""Bytes per cycle of what a later tile runs outside of its loop: code that is near comes as fast as it is issued."""


@dataclass(frozen=True)
class Tile:
    """A work tile of a launch's loop on an SM: everything that its terms read."""

    running: Running
    rates: SmRates

    @property
    def plays_first_loads(self) -> bool:
        """True where the wait for a tile's own operands is told apart from `tile_cycles`: the profile's constant of
        other units has it."""
        return self.running.unit.tile_cycles == "tile_cycles"

    @property
    def keeps_place(self) -> bool:
        """True for a forward whose CTAs stay: what `tile_cycles` has of start and first loads, a CTA pays once."""
        return self.running.stays and self.plays_first_loads and not self.running.launch.is_backward

    @property
    def begin_cycles(self) -> float:
        """Cycles of a tile's begin, of `tile_cycles` without its first loads: begin and end are taken to be alike."""
        running = self.running
        whole = float(running.rates.profile.need(running.unit.tile_cycles))
        return (whole - FIRST_LOADS * running.rates.load_cycles(from_dram=True)) / 2

    @property
    def shown_share(self) -> float:
        """Share of a tile's cycles beside its steps that no other tile hides."""
        schedule = self.running.launch.schedule
        if schedule.overlaps_tiles and schedule.scheduler is not Scheduler.STATIC:
            return 0.0
        return 1.0

    @property
    def ctas_on_sm(self) -> int:
        """CTAs with rows that an SM has at once."""
        running = self.running
        return min(
            running.ctas_per_sm,
            -(-running.launch.tiles_with_rows // running.rates.profile.sm_count),
        )

    @property
    def rounds(self) -> float:
        """Rounds of resident CTAs whose first tiles wait; a CTA that stays has one."""
        running = self.running
        if running.stays:
            return 1.0
        return max(1.0, running.launch.work_tiles / running.resident.slots)

    @cached_property
    def operand_bytes(self) -> tuple[float, float]:
        """Bytes of the operands that a tile keeps, and of those of its first product, in the mean; blocks of the first
        round are whole ones."""
        running, launch = self.running, self.running.launch
        kept_bytes = sum(
            running.moved("l2", "read", name) for name in running.loaded(in_steps=False)
        )
        streamed = 0
        if not launch.rereads_q:
            streamed = running.moved("l2", "read", "Q" if launch.is_backward else "K")
        rows, others = launch.domain.query_rows, launch.domain.key_rows
        if launch.is_backward:
            rows, others = others, rows
        rounds = self.rounds
        return (
            kept_bytes / launch.work_tiles * whole_block(rows, rounds),
            streamed / max(1, running.steps) * whole_block(others, rounds),
        )

    @property
    def columns_outside(self) -> float:
        """Bytes of columns past the head that a tile's and its first step's loads fetch."""
        overheads = self.running.launch.overheads
        return math.fsum(
            o.per_tile + o.per_pair / 2 for o in overheads if o.name == COLUMNS_OUTSIDE
        )

    @property
    def fetched_ahead(self) -> float:
        """Bytes of a tile's first operands that a CTA which stays has fetched during the tile before. In a backward
        what a tile keeps stays in its buffers to the end."""
        if not self.running.stays:
            return 0.0
        kept_bytes, first = self.operand_bytes
        if self.running.launch.is_backward:
            return first + self.columns_outside
        return kept_bytes + first + self.columns_outside


def whole_block(rows: npt.NDArray[np.int64], rounds: float) -> float:
    """Bytes of a tile's block over those of the mean one: the first round's waits are those of a whole block, however
    few rows others have."""
    return float(1 + (rows.max() / rows[rows > 0].mean() - 1) / rounds)


@term(
    "begin and end of a tile",
    Scope.TILE,
    "tile_cycles of its unit (half of it, without FIRST_LOADS, where CTAs stay)",
    zero="launches without a loop",
    constants=("tile_cycles", "FIRST_LOADS"),
)
def tile_start_cycles(tile: Tile) -> float:
    """Cycles of a tile's set-up, first loads, last rescaling and stores, as the profile knows them for its unit."""
    running = tile.running
    cycles = float(running.rates.profile.need(running.unit.tile_cycles))
    if tile.keeps_place:
        cycles = tile.begin_cycles  # the end's, which are as many
    cycles *= tile.shown_share
    if running.launch.streams_queries:  # its queries never wait in shared memory
        cycles -= tile.rates.waits.load
    return cycles


@term(
    "a tile's operands",
    Scope.TILE,
    "(bytes that it keeps + bytes of its first product) / L2_BYTES_PER_CYCLE, by CTAs that begin together from the L2",
    zero="forwards whose CTAs stay; units whose tile_cycles has them",
    constants=("L2_BYTES_PER_CYCLE",),
)
def tile_operand_cycles(tile: Tile) -> float:
    """Cycles in which nothing is computed while a tile's own operands and those of its first product come. From the L2,
    the CTAs of an SM's first round share its rate."""
    if not tile.plays_first_loads:
        return 0.0
    running = tile.running
    at_once = min(
        running.ctas_per_sm, -(-running.launch.work_tiles // running.rates.profile.sm_count)
    )
    shared = 1.0
    if running.conditions.warm:
        shared += (at_once - 1) / tile.rounds
    waited = math.fsum(tile.operand_bytes) + tile.columns_outside - tile.fetched_ahead
    return waited * shared / L2_BYTES_PER_CYCLE * tile.shown_share


@term(
    "stores of a backward's tile",
    Scope.TILE,
    "bytes that a tile stores / L2_STORED_PER_CYCLE",
    zero="forwards",
    constants=("L2_STORED_PER_CYCLE",),
)
def tile_store_cycles(tile: Tile) -> float:
    """Cycles in which a backward's tile waits for its own stores: what it keeps stays in its buffers to the end."""
    running, launch = tile.running, tile.running.launch
    if not launch.is_backward or not tile.plays_first_loads:
        return 0.0
    names = {a.tensor for a in launch.accesses if a.per is not Per.PAIR and a.mode is not Mode.LOAD}
    stores = sum(running.moved("l2", "write", name) for name in names)
    return stores / launch.work_tiles / L2_STORED_PER_CYCLE * tile.shown_share


@term(
    "second warpgroup's start",
    Scope.TILE,
    "half of a step's products",
    zero="units whose warpgroups do not take turns at the softmax",
    constants=(),
)
def turn_start_cycles(tile: Tile, product_cycles: float) -> float:
    """Cycles in which one warpgroup waits for the other's first scores: both begin a tile together."""
    if not tile.running.unit.takes_turns:
        return 0.0
    return product_cycles / 2 * tile.shown_share


@term(
    "spills outside the loop",
    Scope.TILE,
    "loads and stores of a tile x spill_access_cycles (x warps of the SM of the share of frames past L1)",
    zero="builds that spill nothing there",
    constants=("spill_access_cycles",),
)
def tile_spill_cycles(tile: Tile) -> float:
    """Cycles of loads and stores of a thread's frame outside the loop."""
    launch, queued, past = tile.running.launch, 1, tile.running.frames_past_l1
    if past:
        # CTAs without a step end before the others' steps do.
        at_work = int((steps_per_tile(launch.domain, launch.outer) > 0).sum())
        ctas = -(-at_work * launch.domain.grid_heads // tile.running.rates.profile.sm_count)
        queued = min(tile.ctas_on_sm, ctas) * (launch.resources.threads // 32)
    waiting = 1 - past + past * queued
    return waiting * launch.work.spill.tile * tile.rates.waits.spill_access


@term(
    "loads of a tile, one behind the other",
    Scope.TILE,
    "serial loads x (latency of the L2 + LOAD_CYCLES)",
    zero="tiles whose place is their number",
    constants=("l2_latency_near_cycles",),
)
def tile_serial_cycles(tile: Tile) -> float:
    """Cycles of a tile's loads that wait for one another: its number, its sequence's place, its pages."""
    running, work = tile.running, tile.running.launch.work
    loads = work.serial_loads + work.first_loads * (1 - running.later_share)
    return loads * running.rates.load_latency_s(from_dram=False) * tile.rates.clock_hz


def code_behind_per_cycle(running: Running) -> float:
    """Bytes per cycle of code that comes as it is reached: from the L2 where the call before has left it there."""
    if running.conditions.warm:
        return L2_BYTES_PER_CYCLE
    return CODE_FETCHED_AHEAD / float(running.rates.profile.need("dram_latency_cycles"))


@term(
    "code",
    Scope.TILE,
    "code of the first round / L2_BYTES_PER_CYCLE, past CODE_AHEAD_BYTES / (CODE_FETCHED_AHEAD / latency of HBM); "
    "of later tiles outside the loop / CODE_AGAIN_PER_CYCLE, masked steps / L2_BYTES_PER_CYCLE",
    zero="kernels whose instructions were not counted",
    constants=(
        "CODE_AHEAD_BYTES",
        "CODE_FETCHED_AHEAD",
        "dram_latency_cycles",
        "CODE_AGAIN_PER_CYCLE",
        "L2_BYTES_PER_CYCLE",
    ),
)
def code_cycles(
    launch: Launch,
    ctas: int,
    slots: int,
    behind_per_cycle: float = L2_BYTES_PER_CYCLE,
    behind_itself: bool = False,
) -> float:
    """Cycles in which a tile waits for code, in the mean. Tiles of the first round begin together and wait for all that
    they run, `behind_per_cycle` bytes per cycle of what lies behind; each of an SM's `ctas` issues what is outside of its
    steps after the others, meanwhile unless the call comes `behind_itself` in a graph. Later ones find the loop's; where
    tiles differ in their steps, each CTA fetches its masked steps anew. Products with pipelines of their own wait for
    operands while code comes."""
    *begins, after, end = (INSTRUCTION_BYTES * count for count in launch.work.code)
    steps = steps_per_tile(launch.domain, launch.outer)
    parts = code_run(launch, int(steps.max(initial=0)))
    # Code up to CODE_AHEAD_BYTES comes at an SM's rate; what lies behind is fetched as it is reached.
    far = sum(max(0, last - max(first, CODE_AHEAD_BYTES)) for first, last in parts)
    near = sum(last - first for first, last in parts) - far
    once = again = 0.0
    if not launch.rereads_q:
        once = near / L2_BYTES_PER_CYCLE + far / behind_per_cycle
        outside = sum(last - first for first, last in parts[:2])
        again = outside / CODE_AGAIN_PER_CYCLE
        again += ctas * (parts[0][1] - begins[0]) * apart(steps) / L2_BYTES_PER_CYCLE
    issued = (
        (begins[0] + end - after) / INSTRUCTION_BYTES * launch.resources.threads / 32 / SCHEDULERS
    )
    others = (ctas - 1) * issued
    # In a graph behind itself the kernel begins with its code under way: waits add up; else the
    # longer of fetching and others' issuing counts.
    if behind_itself:
        once += others
    else:
        once = max(once, others)
    first_round = min(1.0, slots / max(1, launch.tiles_with_rows))
    return float(first_round * once + (1 - first_round) * again)


def code_run(launch: Launch, steps: int) -> list[tuple[int, int]]:
    """What a tile of so many steps runs, as (first, last) bytes: up to its masked steps, behind its loop, and the loop
    where it has steps without a mask."""
    *begins, after, end = (INSTRUCTION_BYTES * count for count in launch.work.code)
    parts = [(0, begins[min(steps, len(begins) - 1)]), (after, end)]
    return parts if steps < len(begins) else [*parts, (begins[-1], after)]


def apart(steps: npt.NDArray[np.float64]) -> float:
    """The chance that two tiles differ in their steps: CTAs of one length are at one place of the code."""
    return 1 - float(np.square(np.unique(steps, return_counts=True)[1] / len(steps)).sum())


def code_again_cycles(running: Running) -> float:
    """Cycles in which an SM fetches code for its later tiles: what a tile runs, where that is more than the cache of
    instructions holds, and CTAs of an SM are at different places of it. A cache that is walked round and round keeps
    nothing of a set that has one line too many. The cache of the GPC has it all; as its SMs ask, it gives each 3.9 bytes
    per cycle (h200_code_requests.csv), about what an SM asks for at a time in the time of a load from the L2."""
    launch = running.launch
    if launch.rereads_q or not launch.work.code:
        return 0.0
    steps = steps_per_tile(launch.domain, launch.outer)
    counts, tiles = np.unique(steps, return_counts=True)
    run_bytes = [
        sum(last - first for first, last in code_run(launch, int(count))) for count in counts
    ]
    over = max(run_bytes, default=0) / CODE_AHEAD_BYTES
    if over <= 1:
        return 0.0
    missed = min(1.0, (over - 1) * (CODE_WAYS + 1) / over)
    mean = float(tiles @ run_bytes) / len(steps)
    later = max(0, launch.tiles_with_rows - running.resident.slots)
    fetched = later / running.rates.profile.sm_count * mean * missed * apart(steps)
    return fetched / CODE_FETCHED_AHEAD * running.rates.load_cycles(from_dram=False)


@term(
    "merging warps",
    Scope.TILE,
    "CTAs on the SM x bytes that warps merge / bytes per cycle at shared memory",
    zero="kernels whose warps do not divide the keys",
    constants=("shared_memory_bytes_per_clock_per_sm",),
)
def merge_cycles(tile: Tile) -> float:
    """Cycles in which warps that divide the keys merge their parts through shared memory, once per tile."""
    return tile.ctas_on_sm * tile.running.launch.work.tile_shared_bytes / tile.rates.shared_bytes


@term(
    "first operands of a CTA that stays",
    Scope.CTA,
    "bytes of the first operands / an SM's rate at the L2, and FIRST_LOADS loads and half of tile_cycles without them",
    zero="CTAs of one tile",
    constants=("FIRST_LOADS", "L2_BYTES_PER_CYCLE", "tile_cycles"),
)
def cta_start_cycles(tile: Tile) -> float:
    """Cycles that a CTA with many tiles takes once, before its first: later operands it fetches ahead."""
    running = tile.running
    if not tile.plays_first_loads:
        return 0.0
    at_work = min(running.rates.profile.sm_count, running.launch.tiles_with_rows)
    # An SM draws at most what one alone can, and with all at work its part of the L2's bandwidth.
    share = running.rates.l2() / (at_work * (running.rates.clock_hz or math.inf))
    cycles = tile.fetched_ahead / min(L2_BYTES_PER_CYCLE, share)
    if tile.keeps_place:
        cycles += (
            FIRST_LOADS * running.rates.load_cycles(from_dram=not running.conditions.warm)
            + tile.begin_cycles
        )
    return cycles


@term(
    "locks of sums",
    Scope.STEP,
    "LOCKED_LOADS x step_load_cycles + the product that is added + 4 bytes x block_q x block_k there and back",
    zero="kernels whose CTAs add to sums without a lock, or to none",
    constants=(
        "LOCKED_LOADS",
        "STAGED_LOADS_PER_PRODUCT",
        "UNHIDDEN_TURN",
        "L2_BYTES_PER_CYCLE",
        "L2_STORED_PER_CYCLE",
    ),
)
def lock_cycles(launch: Launch, rates: SmRates) -> float:
    """Cycles for which a CTA holds the lock of a block of dQ's sums, that others of its head wait for: the product
    that is added, with its loads, and the sums on their way from the L2 and back. `makespan.in_turn` plays the
    queue."""
    pipelines, domain = launch.work.pipelines, launch.domain
    if pipelines is None or not pipelines.locked_flops:
        return 0.0
    product = rates.waits.product_step * (STAGED_LOADS_PER_PRODUCT + domain.block_k / DEPTH)
    sums = 4 * domain.block_q * domain.block_k * (1 / L2_BYTES_PER_CYCLE + 1 / L2_STORED_PER_CYCLE)
    product += (1 + UNHIDDEN_TURN) * pipelines.locked_flops / rates.tensor_flops
    return LOCKED_LOADS * rates.waits.load + product + sums


@term(
    "serial work of a step",
    Scope.STEP,
    "gather_cycles x rows gathered + serial cycles + serial loads x (latency of the L2 + LOAD_CYCLES)",
    zero="loops that neither gather rows nor walk a list",
    constants=("l2_latency_near_cycles",),
)
def serial_step_cycles(tile: Tile) -> float:
    """Cycles of a step that come on top of all else: rows gathered one by one, loads between two loops."""
    launch, work = tile.running.launch, tile.running.launch.work
    cycles = work.loop.serial_cycles + work.loop.serial_loads * tile.running.rates.load_cycles(
        from_dram=False
    )
    if work.gather_cycles:
        visited = launch.domain.visited
        rows = float(visited.end_row.sum()) / max(1, int(visited.count.sum()))
        cycles += work.gather_cycles * rows
    return cycles

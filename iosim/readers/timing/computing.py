"""What a launch does on the SMs, HBM aside: seconds by unit and of all together, and the pace of its CTAs."""

from __future__ import annotations

import math
import operator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from iosim.base.records import dataclass, replace
from iosim.base.words import Level, Way
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import COLUMNS_OUTSIDE, SPILL, Chain, Domain, Launch, Mode, Outer, Per
from iosim.kernel.residency import Residency
from iosim.kernel.schedule import Scheduler
from iosim.kernel.shared_memory import WAVEFRONT_BYTES, staged
from iosim.kernel.traffic import Traffic
from iosim.kernel.unit import UnitModel
from iosim.kernel.work import Dependent
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import dtype
from iosim.readers.timing.energy import IDLE_ROW_SHARE, INSTRUCTIONS_PER_SCORE, MMA_FLOPS
from iosim.readers.timing.makespan import Makespan, in_turn, makespan
from iosim.readers.timing.overlap import beside
from iosim.readers.timing.rates import Rates
from iosim.readers.timing.step_time import (
    CTA_START_CYCLES,
    L2_BYTES_PER_CYCLE,
    L2_STORED_PER_CYCLE,
    SCHEDULERS,
    SmRates,
    fetched_cycles,
    lock_cycles,
    row_padding,
    step_cost,
    step_cycles,
    unit_model,
    waited_loads,
)

PRODUCT_CYCLES = 900.0
"""Of a product that waits for the one before and hands its result on through shared memory, beside its operations, as
Triton compiles it. This and the next two are fitted on every other row of published_linear_attention.csv: on an L40S,
an H100 and an H200."""
TCGEN05_PRODUCT_CYCLES = 1300.0
"""The same on cc 10, where results lie in tensor memory. Fitted on Blackwell's four."""
SOLVED_ROW_CYCLES = 500.0
"""Of a row of a triangular system: picked out of registers, laid out anew and multiplied, each time a sum over the
CTA's threads. Fitted on all seven."""
TCGEN05_CC = range(100, 120)
FIRST_LOADS = 2
"""Loads before a tile's first step, one behind the other: Q or what says where it lies, and the first keys.
`tile_cycles` has them, from HBM, as the launches had that it was found on."""
SHARED_SECTORS_SHOW = 0.3
"""Of the time of sectors that copies fetch twice, where a row begins inside one, the part that comes on top where each
k-step waits for its copies. Fitted on the odd calls of the memory-efficient forward in the draws of library calls;
where all heads share K and V it is nearly all (experiments/measurements/h100_series.csv), however far apart rows lie.
"""
OVERLAPPED_TILE_SHARE = 0.1
"""What a tile takes besides its steps where the next one begins meanwhile, over what it takes else: the tiles of
flash_fwd_sm90's queue against one tile a CTA (experiments/measurements/h200_sm90_sweep.csv), where the difference is 2
to 5 microseconds a tile at head_dim 128, all of it and more; what is left is the hand-over."""


@dataclass(frozen=True)
class Computing:
    """Seconds that each unit alone would need on the busiest SM, and `total_s` of all together: 0 where the longest
    unit alone counts. `step_s` and `tile_s` as in `Pace`. The busiest SM has `busiest_share` times the mean SM's
    steps."""

    seconds: dict[str, float]
    waves: float
    total_s: float = 0.0
    shared_bytes: float = 0.0
    tile_s: float = 0.0
    step_s: tuple[float, ...] = ()
    busiest_share: float = 1.0
    waited_loads: int = 0
    """Of a step of keys."""


def executed_pairs(launch: Launch) -> int:
    """(query row, key row) pairs that a launch computes: whole tiles of every visited pair of blocks."""
    d = launch.domain
    return int(d.visited.count.sum()) * d.block_q * d.block_k * d.grid_heads


def worked(launch: Launch, unit: UnitModel, pairs: float) -> tuple[float, float]:
    """(pairs whose products change bits, warp instructions) of an attention loop."""
    rows = launch.domain.query_rows
    filled = float(rows.sum()) / max(1, int((rows > 0).sum())) / launch.domain.block_q
    warps = max(1, launch.resources.threads // 32)
    padding = row_padding(launch.domain.block_q, warps, unit, launch.work.loop.key_warps)
    padded = pairs * (1.0 if launch.is_backward or launch.work.scores_per_pair > 1 else padding)
    products = unit.issued_by_warps * launch.work.flops_per_pair / MMA_FLOPS
    instructions = padded * (launch.work.scores_per_pair * INSTRUCTIONS_PER_SCORE / 32 + products)
    return padded * (IDLE_ROW_SHARE + (1 - IDLE_ROW_SHARE) * min(1.0, filled)), instructions


@dataclass(frozen=True)
class Running:
    """A launch on a GPU at the clock of `rates`, its call's `first` or not; `traffic` has rows of all at l2 and hbm."""

    problem: AttentionProblem
    kernel: Kernel
    chain: Chain
    launch: Launch
    resident: Residency
    traffic: Traffic
    rates: Rates
    conditions: Conditions
    first: bool

    @property
    def dtype(self) -> str:
        """Type of its products' operands."""
        return self.launch.work.dtype or self.problem.dtype

    @property
    def element_bytes(self) -> float:
        """Of its products' operands, the mean where they are of two types."""
        if not self.launch.work.dtype:
            return self.problem.input_type.bytes
        each = [dtype(kind).bytes for kind in self.launch.work.dtype.split("+")]
        return math.fsum(each) / len(each)

    @cached_property
    def unit(self) -> UnitModel:
        """How what computes its products does it."""
        return unit_model(self.launch, self.rates.profile, self.dtype, self.kernel)

    def moved(self, level: Level, direction: Way | None = None, tensor: str | None = None) -> int:
        """Bytes that the launch moves."""
        moved: int = self.traffic.total(level, direction, launch=self.launch.name, tensor=tensor)
        return moved

    @property
    def per_sm(self) -> int:
        """CTAs that share an SM."""
        return max(1, min(self.resident.ctas_per_sm, -(-self.resident.slots // self.rates.profile.sm_count)))

    @property
    def finds_in_l2(self) -> bool:
        """Whether most of what it loads was left in the L2 by the launch before."""
        return 2 * self.moved("hbm", "read") < self.moved("l2", "read")

    def loaded(self, in_steps: bool) -> set[str]:
        """What a loop loads in its steps, or else beside them."""
        return {a.tensor for a in self.launch.accesses if (a.per is Per.PAIR) is in_steps and a.mode is Mode.LOAD}

    def shared_in_step(self) -> float | None:
        """Bytes of a loop's step at shared memory; None where it is not known how its operands pass through it."""
        items = staged(self.launch, self.chain)
        return math.fsum(one.bytes for one in items if one.step) if items is not None else None

    @property
    def waits_first(self) -> float:
        """Whether a loop's launch waits as long once more before its first tile: for code that joins warps that divide
        the keys, and for what warps that load set up (tensor maps, barriers). Which loops wait so was found on calls of
        one round (the first five draws of an H100)."""
        work = self.launch.work
        joined = (work.loop.key_warps - 1) * (not work.loop.copy_waits)  # else they are in every step
        turns = self.unit.takes_turns and not self.launch.is_backward  # these are in `own_cycles`
        return min(1.0, self.unit.loads_apart * (not turns) + joined)

    @property
    def stays(self) -> bool:
        """Whether a CTA has many work tiles, and warps of its own fetch each one's first operands while it ends the
        tile before: all but its first."""
        return self.launch.schedule.scheduler is not Scheduler.STATIC and self.unit.loads_apart

    @property
    def ahead(self) -> float:
        """Share of the work tiles that are not their CTA's first, where it stays."""
        return self.stays * max(0.0, 1 - self.resident.slots / self.launch.work_tiles)

    def own_cycles(self, steps: int) -> tuple[float, float]:
        """SM cycles in which nothing is computed while a work tile's own operands come, and those of its first product:
        in every tile, and in a CTA's first alone, where later ones are fetched ahead. Products with pipelines of their
        own wait there. In a backward what a tile owns stays in its buffers to the end, and its stores wait. From the
        L2, the CTAs of an SM's first round share its rate."""
        names = {a.tensor for a in self.launch.accesses if a.per is not Per.PAIR and a.mode is not Mode.LOAD}
        own = sum(self.moved("l2", "read", name) for name in self.loaded(in_steps=False))
        streamed = self.moved("l2", "read", "Q" if self.launch.is_backward else "K") * (not self.launch.rereads_q)
        stores = sum(self.moved("l2", "write", name) for name in names)
        tiles, backward = self.launch.work_tiles, self.launch.is_backward
        rounds, domain = max(1.0, tiles / self.resident.slots) ** (not self.stays), self.launch.domain
        mine, others = (domain.key_rows, domain.query_rows)[:: 1 if backward else -1]
        outside = math.fsum(o.per_tile + o.per_pair / 2 for o in self.launch.overheads if o.name == COLUMNS_OUTSIDE)
        loads = (own / tiles * whole_block(mine, rounds), streamed / max(1, steps) * whole_block(others, rounds))
        ahead = (loads[0] * (not backward) + loads[1] + outside) * self.stays
        at_once = min(self.per_sm, -(-tiles // self.rates.profile.sm_count))
        shared = 1 + self.conditions.warm * (at_once - 1) / rounds
        every = (math.fsum(loads) + outside - ahead) * shared / L2_BYTES_PER_CYCLE
        every += backward * stores / tiles / L2_STORED_PER_CYCLE
        at_work = min(self.rates.profile.sm_count, self.launch.tiles_with_rows)
        share = self.rates.l2() / (at_work * (self.rates.clock_hz or math.inf))
        return every, ahead / min(L2_BYTES_PER_CYCLE, share)

    def l2_loads(self) -> float:
        """Bytes that are loaded from the L2, and those that could be loaded in the time of its stores. Of a loop those
        of its steps alone: what a work tile stores at its end, the next one's loads overlap. Loads and stores go
        different ways, and in a loop at once."""
        stores = self.stored() / self.rates.profile.need("l2_write_fraction")
        both = max if self.launch.work.exps_per_pair else operator.add
        return float(both(self.fetched(), stores))

    def fetched(self) -> float:
        """Bytes of the launch at the L2 but for `stored`. CTAs of a cluster fetch keys and values once for all of them
        (TMA multicast)."""
        shared = sum(self.moved("l2", "read", name) for name in self.loaded(in_steps=True))
        loop = bool(self.launch.work.exps_per_pair)
        all_else = self.moved("l2", "read") if loop else self.moved("l2") - self.stored()
        return all_else - shared * (1 - 1 / self.launch.schedule.cluster)

    def fetched_twice(self) -> float:
        """Bytes of sectors that a loop's copies fetch once more, for the part that another row has of them."""
        found = 0.0
        for access in self.launch.accesses:
            if access.per is Per.PAIR and access.mode is Mode.LOAD:
                tensor = self.chain.tensors[access.tensor]
                more = tensor.split_bytes(access.fetch)
                found += self.moved("l2", "read", access.tensor) * more / (tensor.row_bytes + more)
        return found

    def stored(self) -> int:
        """Bytes of the launch's stores, of a loop those of its steps alone."""
        accesses = self.launch.accesses
        names: set[str | None] = {SPILL, *(a.tensor for a in accesses if a.per is Per.PAIR and a.mode is not Mode.LOAD)}
        if not self.launch.work.exps_per_pair:
            names = {None}
        return sum(self.moved("l2", "write", name) for name in names)


def loop_computing(running: Running, sm: SmRates) -> Computing:
    """An attention loop: its steps in the schedule of its CTAs, at the rates of one SM."""
    launch, rates, unit, resident = running.launch, running.rates, running.unit, running.resident
    profile = rates.profile
    steps = int(launch.domain.visited.count.sum()) * launch.domain.grid_heads
    l2_bytes = running.l2_loads() / max(1, steps, launch.work_tiles)  # splits without keys have no step
    l2_bytes *= longest_split(launch.domain)
    shared_bytes = running.shared_in_step() if launch.is_backward else None
    cost = step_cost(launch, unit, sm, l2_bytes, running.element_bytes, profile.cc, shared_bytes)
    per_sm = running.per_sm
    tile_cycles = profile.need(unit.tile_cycles)
    waits = unit.tile_cycles == "tile_cycles"
    own, first = (cycles * waits for cycles in running.own_cycles(steps))  # the replay plays these loads itself
    once = running.stays * waits * (not launch.is_backward)
    tile_cycles += own - once * (FIRST_LOADS * rates.load_cycles(from_dram=True) + CTA_START_CYCLES) + cost.drain
    first += once * (FIRST_LOADS * rates.load_cycles(from_dram=not running.conditions.warm) + CTA_START_CYCLES)
    overlaps = launch.schedule.overlaps_tiles and launch.schedule.scheduler is not Scheduler.STATIC
    tile_cycles *= OVERLAPPED_TILE_SHARE**overlaps
    tile_cycles -= launch.streams_queries * sm.waits.load  # for Q on its way into shared memory
    tile_cycles += launch.work.spill.tile * sm.waits.spill_access
    waited = launch.work.serial_loads + launch.work.first_loads * (1 - running.ahead)
    tile_cycles += waited * rates.load_latency_s(from_dram=False) * sm.clock_hz
    on_an_sm = min(per_sm, -(-launch.tiles_with_rows // profile.sm_count))
    warm, in_a_graph = running.conditions.warm, running.conditions.launched == "graph"
    tile_cycles += fetched_cycles(launch, on_an_sm, resident.slots, warm, in_a_graph)
    tile_cycles += on_an_sm * launch.work.tile_shared_bytes / sm.shared_bytes
    serial = launch.work.gather_cycles * rows_a_step(launch) + launch.work.loop.serial_cycles
    serial += launch.work.loop.serial_loads * rates.load_cycles(from_dram=False)
    together = launch.tile_ctas

    def step(ctas: int) -> float:
        return step_cycles(cost, ctas) + serial

    def span_of() -> Makespan:
        """Where CTAs of a cluster divide a tile, an SM each."""
        sms = profile.sm_count // together
        span = makespan(launch, sms, per_sm, lambda ctas: step(ctas) / together, tile_cycles)
        held = lock_cycles(launch, sm)
        return in_turn(launch, span, resident.slots, held) if held else span

    if launch.rereads_q:
        twice = running.fetched_twice() / max(1, steps, launch.work_tiles) / sm.l2_bytes
        cost = replace(cost, split=SHARED_SECTORS_SHOW * twice)
    span = span_of()
    if (share := span.share(_alone_share(running, sm))) < 1.0:
        cost = replace(cost, l2=cost.l2 * share)
        span = span_of()
    units = {"tensor": cost.tensor, "exp": cost.softmax, "smem": cost.smem, "l2": cost.l2}
    return Computing(
        seconds={name: span.steps * cycles / together / sm.clock_hz for name, cycles in units.items() if cycles},
        waves=resident.waves,
        total_s=(span.cycles + first) / sm.clock_hz,
        shared_bytes=steps * cost.smem * min(sm.shared_bytes, WAVEFRONT_BYTES),
        tile_s=(tile_cycles - own) / sm.clock_hz,
        step_s=tuple(step(ctas) / sm.clock_hz for ctas in range(1, per_sm + 1)),
        busiest_share=busiest_share(launch, span.steps, steps, profile.sm_count // together),
        waited_loads=waited_loads(launch, unit, profile.cc),
    )


def whole_block(rows: npt.NDArray[np.int64], rounds: float) -> float:
    """Bytes of a tile's block over those of the mean one: the first round's waits are those of a whole block, however
    few rows others have."""
    return float(1 + (rows.max() / rows[rows > 0].mean() - 1) / rounds)


def rows_a_step(launch: Launch) -> float:
    """Rows of keys that the mask leaves of a step, in the mean."""
    visited = launch.domain.visited
    return float(visited.end_row.sum()) / max(1, int(visited.count.sum()))


def _alone_share(running: Running, sm: SmRates) -> float:
    """What an SM alone takes for its bytes at the L2, loads then stores, over what it takes where all draw on it."""
    drawn = running.l2_loads()
    alone = running.fetched() / L2_BYTES_PER_CYCLE + running.stored() / L2_STORED_PER_CYCLE
    return min(1.0, alone * sm.l2_bytes / drawn) if drawn else 1.0


def busiest_share(launch: Launch, busiest: float, steps: int, sms: int) -> float:
    """Keys of the busiest SM over those of the mean one, where each SM has a tile and all tiles are equal but for the
    ends of splits; else 1: it was measured there alone."""
    d = launch.domain
    if not steps or launch.work_tiles < sms or len(set(d.visited.count.tolist())) > 1:
        return 1.0
    return busiest * sms / steps * longest_split(d)


def longest_split(domain: Domain) -> float:
    """Keys of a step of the longest split over those of the mean step: a ragged last key block has its own alone."""
    if domain.sequences > 1:
        return 1.0
    per = min(domain.key_blocks_per_split, domain.key_blocks_total)
    return min(per * domain.block_k, domain.seq_k) / per / (domain.seq_k / domain.key_blocks_total)


def waiting_cycles(dependent: Dependent, tokens: int, load_cycles: float, cc: int) -> float:
    """SM cycles in which a step of a CTA waits for its own loads, products and rows, of which it has as many as the
    launch has `tokens` at most."""
    product = (PRODUCT_CYCLES, TCGEN05_PRODUCT_CYCLES)[cc in TCGEN05_CC]
    waits = dependent.loads * load_cycles + dependent.products * product
    return waits + min(dependent.rows, tokens) * SOLVED_ROW_CYCLES


def dependent_computing(running: Running, dependent: Dependent) -> Computing:
    """A launch whose steps wait for one another. A step alone takes its waits and its own products; each further CTA on
    the SM adds what a step takes of the unit that is busiest. "sequence" is a CTA's steps alone, in every round."""
    launch, rates, resident, profile = running.launch, running.rates, running.resident, running.rates.profile
    clock, ctas = rates.clock_hz, launch.work.product_ctas
    seconds = {name: alone for name, alone in _unit_seconds(running).items() if name != "tensor"}
    steps = int(launch.domain.visited.count.sum()) * launch.domain.grid_heads * ctas
    if not clock or not steps:
        return Computing(seconds, resident.waves)
    rate = rates.tensor(running.dtype, running.unit) if launch.work.flops_per_pair else math.inf
    seconds["tensor"] = products = executed_pairs(launch) * launch.work.flops_per_pair / rate
    cycles = clock * profile.sm_count / steps  # of an SM for a step, of seconds of the whole GPU
    load = rates.load_latency_s(from_dram=not running.finds_in_l2) * clock
    alone = products * cycles + waiting_cycles(dependent, launch.domain.rows, load, profile.cc)
    busiest = max(products, seconds.get("l2", 0.0)) * cycles

    def step(beside: int) -> float:
        return alone + (beside - 1) * busiest

    grid = replace(launch, domain=replace(launch.domain, heads=launch.domain.heads * ctas))
    span = makespan(grid, profile.sm_count, running.per_sm, step, 0.0)
    of_a_tile = steps / (launch.work_tiles * ctas)
    return Computing(
        seconds | {"sequence": span.rounds * of_a_tile * alone / clock},
        resident.waves,
        span.cycles / clock,
        step_s=tuple(step(n) / clock for n in range(1, running.per_sm + 1)),
    )


def turns_s(running: Running, dependent: Dependent, seconds: dict[str, float]) -> float:
    """Seconds of a launch whose CTA waits in a step for loads, then for operands from shared memory, then multiplies,
    while the SM's other CTAs issue their instructions ("issue" in `seconds`): the two overlap in part. CTAs of a
    product's tile read the same rows at the same time, so that all of them wait for HBM."""
    launch, rates, slots, sms = running.launch, running.rates, running.resident.slots, running.rates.profile.sm_count
    work, tiles = launch.work, launch.work_tiles
    ctas, steps = tiles * work.product_ctas, int(launch.domain.visited.count.sum()) * launch.domain.grid_heads / tiles
    full, rest = divmod(ctas, slots)
    multiplied = seconds.get("tensor", 0.0) * sms / (-(-ctas // slots) * slots)
    from_hbm = 2 * running.moved("hbm", "read") * work.product_ctas ** (work.flops_per_pair > 0)
    waiting = steps * dependent.loads * rates.load_latency_s(from_hbm >= running.moved("l2", "read"))
    alone = multiplied + seconds.get("smem", 0.0) / -(-ctas // sms) + waiting
    issued = steps * dependent.instructions / SCHEDULERS / (rates.clock_hz or math.inf)
    seconds["issue"] = -(-ctas // sms) * issued
    together = [beside(alone, n * issued) for n in range(running.per_sm + 1)]
    return full * together[-1] + (rest > 0) * together[-(-rest // sms)]


def other_computing(running: Running) -> Computing:
    """A launch without an attention loop: the longest of its units."""
    launch, resident = running.launch, running.resident
    dependent = launch.work.dependent
    if dependent is not None and not dependent.instructions:
        return dependent_computing(running, dependent)
    seconds = _unit_seconds(running)
    total = _pass_seconds(running)
    steps = int(launch.domain.visited.count.sum()) * launch.domain.grid_heads
    rounds = -(-launch.work_tiles // resident.slots)
    per_sm = -(-resident.slots // running.rates.profile.sm_count)
    busiest = rounds * per_sm * steps / max(1, launch.work_tiles)
    alone = max(total, *seconds.values(), 0.0) / busiest if busiest and launch.outer is not Outer.FLAT else 0.0
    total = turns_s(running, dependent, seconds) if dependent else total
    return Computing(seconds, resident.waves, total, step_s=tuple(n * alone for n in range(1, per_sm + 1)))


def _pass_seconds(running: Running) -> float:
    """Seconds of a pass that its instructions bound: `operations_per_value` lane cycles for each value it loads."""
    values = running.moved("l2", "read") / running.element_bytes
    clock = running.rates.clock_hz or math.inf
    return float(values * running.launch.work.operations_per_value / (running.rates.fp32_lanes() * clock))


def _unit_seconds(running: Running) -> dict[str, float]:
    """Products with whole waves of tiles, operands from shared memory, exponentials, L2 bytes."""
    launch, rates, slots, profile = running.launch, running.rates, running.resident.slots, running.rates.profile
    work, pairs, ctas = launch.work, executed_pairs(launch), launch.work_tiles * launch.work.product_ctas
    clock = rates.clock_hz or math.inf
    rounds, busiest = -(-ctas // slots) * slots / ctas, pairs * -(-ctas // profile.sm_count) / ctas
    shared = (profile.shared_memory_bytes_per_clock_per_sm or math.inf) * clock
    exps = (profile.exp_per_clock_per_sm or math.inf) * clock * profile.sm_count
    products = rates.tensor(running.dtype, running.unit) if work.flops_per_pair else math.inf
    seconds = {
        "l2": running.l2_loads() / rates.l2(),
        "tensor": pairs * work.flops_per_pair / products * rounds,
        "smem": busiest * work.shared_bytes_per_pair / shared,
        "exp": pairs * work.exps_per_pair / exps,
    }
    return {unit: needed for unit, needed in seconds.items() if needed or unit == "l2"}

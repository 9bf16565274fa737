"""What an attention loop does on the SMs, HBM aside: its steps in the schedule of its CTAs, at the rates of one SM."""

from __future__ import annotations

from iosim.base.records import dataclass, replace
from iosim.kernel.launch import Domain, Launch
from iosim.kernel.shared_memory import WAVEFRONT_BYTES
from iosim.kernel.unit import UnitModel
from iosim.kernel.work import Layout
from iosim.readers.timing import tile_terms
from iosim.readers.timing.energy import IDLE_ROW_SHARE, INSTRUCTIONS_PER_SCORE, MMA_FLOPS
from iosim.readers.timing.makespan import Makespan, in_turn, makespan
from iosim.readers.timing.overlap import code_that_shows
from iosim.readers.timing.rates import SmRates
from iosim.readers.timing.running import Running
from iosim.readers.timing.step_terms import Step, row_padding
from iosim.readers.timing.step_time import StepCost, step_cost, step_cycles
from iosim.readers.timing.tile_terms import L2_BYTES_PER_CYCLE, L2_STORED_PER_CYCLE, Tile


@dataclass(frozen=True)
class Computing:
    """What a launch's SMs need, HBM aside."""

    seconds: dict[str, float]
    """Seconds that each unit alone would need on the busiest SM."""
    waves: float
    """Rounds of resident CTAs."""
    total_s: float = 0.0
    """Seconds of all units together; 0 where the longest unit alone counts."""
    shared_bytes: float = 0.0
    """Bytes at shared memory, of all SMs."""
    tile_s: float = 0.0
    """As in `Pace`."""
    step_s: tuple[float, ...] = ()
    """As in `Pace`."""
    busiest_share: float = 1.0
    """Steps of the busiest SM over those of the mean one."""
    waited_loads: int = 0
    """Loads of a step of keys that a CTA waits for."""
    turns: float = 0.0
    """As in `Pace`."""


def loop_computing(running: Running, sm: SmRates) -> Computing:
    """Seconds of an attention loop on the SMs."""
    step, tile = _step(running, sm), Tile(running, sm)
    cost, schedule = step_cost(step), _Grid(running, sm, tile)
    tile_cycles, waited = schedule.tile_cycles(cost)
    span = schedule.span(cost, tile_cycles)
    # SMs that still work while others have ended have more of the L2 each.
    share = span.share(_alone_share(running, sm))
    if share < 1.0:
        cost = replace(cost, l2=cost.l2 * share)
        span = schedule.span(cost, tile_cycles)
    code_s = tile_terms.code_again_cycles(running) / sm.clock_hz
    computing_s = (span.cycles + tile_terms.cta_start_cycles(tile)) / sm.clock_hz
    sms_per_tile, profile_sms = running.launch.tile_ctas, running.rates.profile.sm_count
    units = {"tensor": cost.tensor, "exp": cost.softmax, "smem": cost.smem, "l2": cost.l2}
    return Computing(
        seconds={
            name: span.steps * cycles / sms_per_tile / sm.clock_hz
            for name, cycles in units.items()
            if cycles
        },
        waves=running.resident.waves,
        total_s=computing_s + code_that_shows(span.cycles / sm.clock_hz, code_s),
        shared_bytes=running.steps * cost.smem * min(sm.shared_bytes, WAVEFRONT_BYTES),
        tile_s=(tile_cycles - waited) / sm.clock_hz,
        step_s=tuple(
            schedule.step_cycles(cost, n) / sm.clock_hz for n in range(1, running.ctas_per_sm + 1)
        ),
        busiest_share=busiest_share(
            running.launch, span.steps, running.steps, profile_sms // sms_per_tile
        ),
        waited_loads=step.waited_loads,
    )


def _step(running: Running, sm: SmRates) -> Step:
    """A mean step; of splits the longest counts."""
    launch = running.launch
    steps = max(1, running.steps, launch.work_tiles)  # splits without keys have no step
    return Step(
        launch=launch,
        unit=running.unit,
        rates=sm,
        l2_bytes=running.l2_loads() / steps * longest_split(launch.domain),
        twice_bytes=running.fetched_twice() / steps,
        element_bytes=running.element_bytes,
        cc=running.rates.profile.cc,
        ctas_per_sm=running.ctas_per_sm,
        frames_past_l1=running.frames_past_l1,
        counted_shared_bytes=running.shared_in_step()
        if launch.is_backward or _conflicts(launch)
        else None,
    )


def _conflicts(launch: Launch) -> bool:
    """True where a forward's lanes ask one bank for several words, which no estimate of its operands knows."""
    fragments = launch.work.fragments
    return fragments is not None and fragments.layout is Layout.THREAD_ROWS


@dataclass(frozen=True)
class _Grid:
    """The CTAs of a launch on the SMs."""

    running: Running
    sm: SmRates
    tile: Tile

    def tile_cycles(self, cost: StepCost) -> tuple[float, float]:
        """Cycles of a tile beside its steps, and those of them that a replay plays itself: loads and stores of what the
        tile keeps."""
        tile, launch, conditions = self.tile, self.running.launch, self.running.conditions
        in_graph = conditions.launched == "graph"
        waited = tile_terms.tile_operand_cycles(tile) + tile_terms.tile_store_cycles(tile)
        cycles = (
            tile_terms.tile_start_cycles(tile)
            + tile_terms.turn_start_cycles(tile, cost.tensor)
            + tile_terms.tile_spill_cycles(tile)
            + tile_terms.tile_serial_cycles(tile)
            + tile_terms.code_cycles(
                launch,
                tile.ctas_on_sm,
                self.running.resident.slots,
                tile_terms.code_behind_per_cycle(self.running),
                in_graph,
            )
            + tile_terms.merge_cycles(tile)
        )
        return cycles + waited, waited

    def step_cycles(self, cost: StepCost, ctas: int) -> float:
        """Cycles in which each of `ctas` CTAs on one SM does one step."""
        return step_cycles(cost, ctas) + tile_terms.serial_step_cycles(self.tile)

    def span(self, cost: StepCost, tile_cycles: float) -> Makespan:
        """The grid's cycles; where CTAs of a cluster divide a tile, each on its SM, they count as one."""
        running, sms_per_tile = self.running, self.running.launch.tile_ctas

        def step(ctas: int) -> float:
            return self.step_cycles(cost, ctas) / sms_per_tile

        sms = running.rates.profile.sm_count // sms_per_tile
        span = makespan(running.launch, sms, running.ctas_per_sm, step, tile_cycles)
        held = tile_terms.lock_cycles(running.launch, self.sm)
        if held:
            return in_turn(running.launch, span, running.resident.slots, held)
        return span


def _alone_share(running: Running, sm: SmRates) -> float:
    """What an SM alone takes for its bytes at the L2, loads then stores, over what it takes where all draw on it."""
    drawn = running.l2_loads()
    if not drawn:
        return 1.0
    alone = running.fetched() / L2_BYTES_PER_CYCLE + running.stored() / L2_STORED_PER_CYCLE
    return min(1.0, alone * sm.l2_bytes / drawn)


def busiest_share(launch: Launch, busiest_steps: float, steps: int, sms: int) -> float:
    """Keys of the busiest SM over those of the mean one, where each SM has a tile and all tiles are equal but for the
    ends of splits; else 1: it was measured there alone."""
    domain = launch.domain
    if not steps or launch.work_tiles < sms or len(set(domain.visited.count.tolist())) > 1:
        return 1.0
    return busiest_steps * sms / steps * longest_split(domain)


def longest_split(domain: Domain) -> float:
    """Keys of a step of the longest split over those of the mean step: a ragged last key block has its own alone."""
    if domain.sequences > 1:
        return 1.0
    blocks = min(domain.key_blocks_per_split, domain.key_blocks_total)
    return (
        min(blocks * domain.block_k, domain.seq_k)
        / blocks
        / (domain.seq_k / domain.key_blocks_total)
    )


def worked(launch: Launch, unit: UnitModel, pairs: float) -> tuple[float, float]:
    """(pairs whose products change bits, warp instructions) of an attention loop."""
    rows = launch.domain.query_rows
    filled = float(rows.sum()) / max(1, int((rows > 0).sum())) / launch.domain.block_q
    padded = pairs
    if not launch.is_backward and launch.work.scores_per_pair == 1:
        warps = max(1, launch.resources.threads // 32)
        padded *= row_padding(launch.domain.block_q, warps, unit, launch.work.loop.key_warps)
    per_score = launch.work.loop.instructions_per_score
    if per_score is None:
        per_score = INSTRUCTIONS_PER_SCORE
    instructions = launch.work.scores_per_pair * per_score / 32
    if unit.issued_by_warps:
        instructions += launch.work.flops_per_pair / MMA_FLOPS
    return padded * (
        IDLE_ROW_SHARE + (1 - IDLE_ROW_SHARE) * min(1.0, filled)
    ), padded * instructions

"""A function's machine code as the regions that a warp runs: what a step over keys costs, and a work tile beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iosim.base.records import dataclass, replace
from iosim.code.counts import turn_of
from iosim.code.listing import Instruction
from iosim.code.local import NO_LOCAL, LocalTraffic, local_traffic
from iosim.code.loops import Flow, Loop
from iosim.code.opcodes import operation
from iosim.code.runs import Runs
from iosim.code.trace import default_use, trace
from iosim.kernel.machine import Machine, MemoryUse, Region

MOST_INLINED = 8000
"""Instructions of a turn with the loops inside it up to which it is played as a whole; else each loop by itself."""
MOST_TURNS_RUN = 1 / 2
"""Runs from which on an instruction outside of loops is taken to run."""
Uses = Callable[[Instruction], MemoryUse | None]


def no_uses(_: Instruction) -> MemoryUse | None:
    """Nothing is known of the lanes' addresses."""
    return None


@dataclass(frozen=True)
class CodeOnSm:
    """Machine code with what an SM does of its memory accesses."""

    machine: Machine
    local: LocalTraffic
    """Local memory in a step over keys."""
    local_tile: LocalTraffic
    """And in a work tile, beside its steps."""
    key_loop: Loop | None = None


def with_local(uses: Uses, cc: int, hits: float) -> Uses:
    """Uses that know of local loads, too: `hits` of their sectors are served by L1."""

    def use_of(instruction: Instruction) -> MemoryUse | None:
        if operation(instruction, cc).group == "local-load":
            return replace(default_use(instruction, "local-load"), hits_l1=hits)
        return uses(instruction)

    return use_of


def code_on_sm(
    flow: Flow,
    runs: Runs,
    warps: int,
    l1_bytes: float,
    uses: Uses = no_uses,
    keys: Loop | None = None,
    steps_per_turn: float = 1.0,
) -> CodeOnSm:
    """A function's code as regions.

    Args:
        flow: its blocks and loops.
        runs: how often each instruction runs.
        warps: resident on the SM.
        l1_bytes: of its L1.
        uses: what loads and stores ask for.
        keys: the loop over keys, whose turns are told apart from what runs once a work tile; None: there is none.
        steps_per_turn: blocks of keys that a turn of it goes over.
    """
    cc = flow.function.cc
    step: tuple[Region, ...] = ()
    local = NO_LOCAL
    outside = [
        instruction
        for n, instruction in enumerate(flow.instructions)
        if runs.times[n] >= MOST_TURNS_RUN and flow.block_of(n) not in flow.loop_of
    ]
    once = local_traffic(outside, cc, warps, l1_bytes, uses)
    tile = [Region(trace(outside, cc, with_local(uses, cc, once.hit_share)))]
    beside = once
    for loop in (instruction for instruction in flow.loops if instruction.parent is None):
        start = flow.blocks[loop.header].first
        turns = runs.times[start]
        if not turns:
            continue
        turn = turn_of(flow, loop, runs)
        before = [
            flow.instructions[n] for n in range(start) if flow.block_of(n) not in flow.loop_of
        ]
        here = local_traffic(turn, cc, warps, l1_bytes, uses, before)
        regions = _loop_regions(flow, loop, runs, with_local(uses, cc, here.hit_share), turn)
        if keys is not None and loop.header == keys.header:
            step = tuple(replace(region, turns=region.turns / steps_per_turn) for region in regions)
            local = here.times(1 / steps_per_turn)
        else:
            tile += [replace(region, turns=region.turns * turns) for region in regions]
            beside = beside.plus(here.times(turns))
    return CodeOnSm(Machine(step, tuple(tile)), local, beside, keys)


def _loop_regions(
    flow: Flow, loop: Loop, runs: Runs, uses: Uses, turn: Sequence[Instruction]
) -> tuple[Region, ...]:
    """A turn of a loop: as a whole, or where loops inside it make it long, each of them by itself."""
    cc, at = flow.function.cc, flow.instructions[flow.blocks[loop.header].first].address
    # A turn is played as a whole, with the loops inside it as often as they turn: what one of them
    # waits for hides behind another. Longer ones are played loop by loop.
    if len(turn) <= MOST_INLINED:
        return (Region(trace(turn, cc, uses), 1.0, repeats=True, at=at),)
    turns = runs.times[flow.blocks[loop.header].first] or 1.0
    outside_inner = [
        flow.instructions[n] for n in flow.own_numbers(loop) if runs.times[n] >= turns / 2
    ]
    regions = [Region(trace(outside_inner, cc, uses), 1.0, repeats=True, at=at)]
    for inner in flow.inside(loop):
        often = runs.times[flow.blocks[inner.header].first] / turns
        if often:
            body = turn_of(flow, inner, runs)
            parts = _loop_regions(flow, inner, runs, uses, body)
            regions += [replace(part, turns=part.turns * often) for part in parts]
    return tuple(regions)

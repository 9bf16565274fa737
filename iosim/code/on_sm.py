"""A function's machine code as the regions that a warp runs: what a step over keys costs, and a work tile beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iosim.base.records import dataclass, replace
from iosim.code.counts import key_loop, turn_of
from iosim.code.listing import Instruction
from iosim.code.local import LocalTraffic, local_traffic
from iosim.code.loops import Flow, Loop
from iosim.code.opcodes import operation
from iosim.code.runs import Runs
from iosim.code.trace import default_use, trace
from iosim.kernel.machine import Machine, MemoryUse, Region

MOST_INLINED = 8000
"""Instructions of a turn with the loops inside it up to which it is played as a whole; else each loop by itself."""
Uses = Callable[[Instruction], MemoryUse | None]


def no_uses(_: Instruction) -> MemoryUse | None:
    """Nothing is known of the lanes' addresses."""
    return None


@dataclass(frozen=True)
class CodeOnSm:
    """Machine code with what an SM does of its memory accesses."""

    machine: Machine
    local: LocalTraffic
    """Local memory in a step over keys, or in a work tile of code without such a loop."""
    local_tile: LocalTraffic
    """And in a work tile, beside its steps."""
    key_loop: Loop | None = None


def with_local(uses: Uses, cc: int, hits: float) -> Uses:
    """Uses that know of local loads, too: `hits` of their sectors are served by L1."""

    def use_of(one: Instruction) -> MemoryUse | None:
        if operation(one, cc).group == "local-load":
            return replace(default_use(one, "local-load"), hits_l1=hits)
        return uses(one)

    return use_of


def code_on_sm(
    flow: Flow, runs: Runs, warps: int, l1_bytes: float, uses: Uses = no_uses, loop: Loop | None = None,
    steps_per_turn: float = 1.0,
) -> CodeOnSm:  # fmt: skip
    """A function's code as regions.

    Args:
        flow: its blocks and loops.
        runs: how often each instruction runs.
        warps: resident on the SM.
        l1_bytes: of its L1.
        uses: what loads and stores ask for.
        loop: the one over keys; the one that `key_loop` finds where it is not given.
        steps_per_turn: blocks of keys that a turn of it goes over.
    """
    cc, keys = flow.function.cc, loop or key_loop(flow, runs)
    inside: set[int] = set(flow.numbers(keys)) if keys else set()
    turn = turn_of(flow, keys, runs) if keys else []
    outside = [
        one for n, one in enumerate(flow.instructions)
        if n not in inside and runs.each[n] >= 1 / 2 and flow.block_of(n) not in flow.loop_of
    ]  # fmt: skip
    local = local_traffic(turn or outside, cc, warps, l1_bytes, uses)
    beside = local_traffic(outside, cc, warps, l1_bytes, uses)
    known = with_local(uses, cc, local.hit_share)
    step: tuple[Region, ...] = ()
    if keys is not None:
        step = _loop_regions(flow, keys, runs, known, turn)
        step = tuple(replace(region, turns=region.turns / steps_per_turn) for region in step)
    tile = [Region(trace(outside, cc, known))]
    for other in flow.loops:
        if other.parent is None and (keys is None or other.header != keys.header):
            turns = runs.each[flow.blocks[other.header].first]
            if turns:
                body = turn_of(flow, other, runs)
                tile += [replace(r, turns=r.turns * turns) for r in _loop_regions(flow, other, runs, known, body)]
    return CodeOnSm(Machine(step, tuple(tile)), local, beside, keys)


def _loop_regions(flow: Flow, loop: Loop, runs: Runs, uses: Uses, turn: Sequence[Instruction]) -> tuple[Region, ...]:
    """A turn of a loop: as a whole, or where loops inside it make it long, each of them by itself."""
    cc = flow.function.cc
    if len(turn) <= MOST_INLINED:
        return (Region(trace(turn, cc, uses), 1.0, repeats=True),)
    turns = runs.each[flow.blocks[loop.header].first] or 1.0
    own = [flow.instructions[n] for n in flow.own_numbers(loop) if runs.each[n] >= turns / 2]
    regions = [Region(trace(own, cc, uses), 1.0, repeats=True)]
    for inner in flow.inside(loop):
        often = runs.each[flow.blocks[inner.header].first] / turns
        if often:
            body = turn_of(flow, inner, runs)
            parts = _loop_regions(flow, inner, runs, uses, body)
            regions += [replace(part, turns=part.turns * often) for part in parts]
    return tuple(regions)

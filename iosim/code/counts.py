"""What a turn of a loop does, counted in machine code: instructions by class, products, exponentials, bytes of memory.

A turn is of one warp, products of wgmma apart, of which each of four warps has its quarter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from iosim.base.records import dataclass, field
from iosim.code.listing import Instruction
from iosim.code.loops import Flow, Loop
from iosim.code.opcodes import lane_bytes, operation, product
from iosim.code.runs import Runs

GLOBAL_LOADS = {"global-load": "synchronous", "global-copy": "asynchronous", "bulk-copy": "bulk"}
"""Class -> how loads of device memory come: into registers, by LDGSTS into shared memory, by TMA."""
MOST_LISTED = 20_000
"""Instructions of a turn that are listed at most, where loops inside it turn very often."""
Tally = defaultdict[str, float]


@dataclass(frozen=True)
class Counts:
    """What a warp executes in a turn of a loop, or once. Bytes are a thread's; `flops` those of a warp's products."""

    instructions: float = 0.0
    fp32: float = 0.0
    """Additions, multiplications, comparisons and selections in fp32."""
    integer: float = 0.0
    """Integer, logic and uniform instructions, and moves."""
    conversions: float = 0.0
    branches: float = 0.0
    barriers: float = 0.0
    products: dict[str, float] = field(default_factory=dict)
    """Matrix instructions by opcode and shape."""
    flops: float = 0.0
    special: dict[str, float] = field(default_factory=dict)
    """MUFU by kind: EX2, RCP, TANH."""
    local_load_bytes: float = 0.0
    local_store_bytes: float = 0.0
    shared_loads: dict[int, float] = field(default_factory=dict)
    """Loads of shared memory by bytes a lane."""
    shared_stores: dict[int, float] = field(default_factory=dict)
    global_loads: dict[str, float] = field(default_factory=dict)
    """Bytes of device memory that are asked for: synchronous, asynchronous (LDGSTS) or bulk (TMA, bytes not known)."""
    global_store_bytes: float = 0.0
    ahead: float | None = None
    """Cycles of the warp's own code between a synchronous load and what waits for it, in the mean; None without one."""
    groups_ahead: int | None = None
    """Groups of asynchronous copies that a turn leaves begun while it computes; None without copies."""


def _product_of(instruction: Instruction) -> tuple[str, float]:
    """A product's name with its shape, and the FLOPs of one."""
    shape = product(instruction)
    if shape is None:
        return instruction.kind, 0.0
    return f"{instruction.kind} {shape.rows}x{shape.columns}x{shape.depth}", shape.flops


def count(
    instructions: Sequence[Instruction], cc: int, runs: Sequence[float] | None = None
) -> Counts:
    """Counts of instructions, each executed as often as `runs` says, once where it is not given."""
    times = runs if runs is not None else [1.0] * len(instructions)
    totals: Tally = defaultdict(float)
    products, special, loads = (defaultdict[str, float](float) for _ in range(3))
    widths = {
        "shared-load": defaultdict[int, float](float),
        "shared-store": defaultdict[int, float](float),
    }
    flops = 0.0
    for instruction, often in zip(instructions, times, strict=True):
        if not often:
            continue
        group, width = operation(instruction, cc).group, lane_bytes(instruction)
        totals["instructions"] += often
        if group == "product":
            name, flops_of_one = _product_of(instruction)
            products[name] += often
            flops += often * flops_of_one
        elif group == "special":
            special[next(iter(instruction.modifiers), "")] += often
        elif group in widths:
            widths[group][width] += often
        elif group in GLOBAL_LOADS:
            loads[GLOBAL_LOADS[group]] += often * (width if group != "bulk-copy" else 0)
        else:
            _total(totals, group, width, often)
    waits = _ahead(instructions, cc) if runs is None else None
    return Counts(
        totals["instructions"],
        totals["fp32"],
        totals["integer"],
        totals["conversions"],
        totals["branches"],
        totals["barriers"],
        dict(products),
        flops,
        dict(special),
        totals["local_load_bytes"],
        totals["local_store_bytes"],
        global_loads=dict(loads),
        global_store_bytes=totals["global_store_bytes"],
        shared_loads=dict(widths["shared-load"]),
        shared_stores=dict(widths["shared-store"]),
        ahead=waits,
        groups_ahead=_groups_ahead(instructions, cc),
    )


def _total(totals: Tally, group: str, width: int, often: float) -> None:
    """One instruction that belongs to a total."""
    name = {
        "fp32": "fp32",
        "fp16": "fp32",
        "integer": "integer",
        "uniform": "integer",
        "conversion": "conversions",
        "branch": "branches",
        "barrier": "barriers",
    }.get(group)
    by_width = {
        "local-load": "local_load_bytes",
        "local-store": "local_store_bytes",
        "global-store": "global_store_bytes",
    }
    if name:
        totals[name] += often
    elif group in by_width:
        totals[by_width[group]] += often * width


def _ahead(turn: Sequence[Instruction], cc: int) -> float | None:
    """Mean cycles from a synchronous load to the first instruction that waits for it, in the turns of a loop."""
    places, at = [], 0
    for instruction in turn:
        places.append(at)
        at += max(1, instruction.control.stall)
    distances = []
    for number, instruction in enumerate(turn):
        if (
            operation(instruction, cc).group == "global-load"
            and instruction.control.sets is not None
        ):
            bit = 1 << instruction.control.sets
            later = [n for n in range(number + 1, len(turn)) if turn[n].control.waits & bit]
            again = [n for n in range(number) if turn[n].control.waits & bit]
            if later:
                distances.append(places[later[0]] - places[number])
            elif again:
                distances.append(at - places[number] + places[again[0]])
    return sum(distances) / len(distances) if distances else None


def _groups_ahead(turn: Sequence[Instruction], cc: int) -> int | None:
    """The number behind DEPBAR.LE SB0: groups that may still be under way."""
    pending = [
        int(instruction.operands[1], 16)
        for instruction in turn
        if instruction.kind == "DEPBAR"
        and "LE" in instruction.modifiers
        and len(instruction.operands) > 1
    ]
    copies = any(operation(instruction, cc).group == "global-copy" for instruction in turn)
    return max(pending, default=0) if copies else None


def product_loops(flow: Flow, cc: int) -> list[Loop]:
    """Loops with matrix products or multiply-adds and exponentials of their own or inside them: those over keys."""
    loops = []
    for loop in flow.loops:
        groups = Counter(operation(flow.instructions[n], cc).group for n in flow.numbers(loop))
        if groups["product"] and groups["special"]:
            loops.append(loop)
    return loops


def key_loop(flow: Flow, runs: Runs | None = None) -> Loop | None:
    """The loop that walks keys: of those with products and exponentials (fp32 kernels: with exponentials) the outermost
    with most instructions run; None where there is none."""
    cc = flow.function.cc
    candidates = product_loops(flow, cc)
    if not candidates:
        candidates = [
            loop
            for loop in flow.loops
            if any(
                flow.instructions[n].kind == "MUFU" and "EX2" in flow.instructions[n].modifiers
                for n in flow.numbers(loop)
            )
        ]
    headers = {loop.header for loop in candidates}
    outermost = [loop for loop in candidates if loop.parent not in headers]
    if not outermost:
        return None
    times = runs.times if runs is not None else [1.0] * len(flow.instructions)
    return max(outermost, key=lambda loop: sum(times[n] for n in flow.numbers(loop)))


def turn_of(flow: Flow, loop: Loop, runs: Runs, limit: int = MOST_LISTED) -> list[Instruction]:
    """Instructions of a turn of a loop in their order, those of loops inside it as often as they turn, `most` in all;
    what runs in less than half of the turns is left out."""
    start = flow.blocks[loop.header].first
    turns = runs.times[start] or 1.0
    # Blocks in their order; a loop inside stands where its header does, as often as it turns.
    inner = sorted(flow.inside(loop), key=lambda nested: nested.header)
    listed, number, blocks = list[Instruction](), 0, sorted(loop.blocks)
    while number < len(blocks):
        block = blocks[number]
        deeper = next((nested for nested in inner if block in nested.blocks), None)
        if deeper is not None:
            body = turn_of(flow, deeper, runs)
            often = runs.times[flow.blocks[deeper.header].first] / turns
            listed += body * min(round(often), max(1, limit // max(1, len(body))))
            number = next(
                (n for n in range(number, len(blocks)) if blocks[n] not in deeper.blocks),
                len(blocks),
            )
            continue
        span = flow.blocks[block]
        if runs.times[span.first] >= turns / 2:
            listed += flow.instructions[span.first : span.end]
        number += 1
    return listed

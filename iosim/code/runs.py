"""How often a warp executes each instruction: from runs of the PTX's lines, or from trips of loops.

Machine code compiled with -lineinfo (Triton's always is) says of every instruction which line of the PTX it stands for.
Where somebody has worked out how often those lines run (`iosim.code.ptx_run` does), the assembler's copies of a line
share its runs: an unrolled loop takes as many whole turns as fit, what stands behind it the rest. Without that, trips
are given, and of two ways inside a loop the one that does the loop's work is taken, of equals the shorter: the other is
most often the last, ragged turn. `Runs.assumed` says where that was done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from statistics import mode

from iosim.base.records import dataclass
from iosim.code.loops import Flow, Loop
from iosim.code.opcodes import operation

WORK = (
    "product",
    "special",
    "global-load",
    "global-copy",
    "bulk-copy",
    "global-store",
    "global-atomic",
    "barrier",
)
"""Classes of instructions that make a way one that does a loop's work."""
TELL_BEST = (*WORK, "shared-load", "shared-store")
"""Classes that run where their line does, and of which a line makes one: what has no effect may have been moved out of
a loop, and arithmetic be several instructions."""
NEVER = "!PT"
"""The predicate of what is never done."""
Copied = tuple[int, str]
"""A line of the PTX, and the opcode of what was made of it."""
TELL = ("fp32", "conversion")
HEAVY = ("product", "special", "global-load", "global-copy", "bulk-copy")


@dataclass(frozen=True)
class Runs:
    """Executions of every instruction by a warp, in the mean over warps."""

    times: tuple[float, ...]
    known: bool
    """True where the runs follow from the PTX, not from trips that were given or assumed."""
    assumed: tuple[str, ...] = ()

    @property
    def instructions(self) -> float:
        """Instructions that a warp executes."""
        return sum(self.times)


def runs_of_trips(flow: Flow, trips: Mapping[int, float], other: float = 1.0) -> Runs:
    """Runs where loops make so many turns each time that they are reached.

    Args:
        trips: turns by the address of a loop's first instruction.
        other: of loops that are not among them.
    """
    shares = [0.0] * len(flow.blocks)
    walk = _Walk(flow, trips, other, shares)
    walk.go(None, 0, 1.0)
    times = [shares[flow.block_of(n)] for n in range(len(flow.instructions))]
    return Runs(tuple(times), False, tuple(walk.assumed()))


class _Walk:
    """Follows the likely way through a function."""

    def __init__(
        self, flow: Flow, trips: Mapping[int, float], other: float, shares: list[float]
    ) -> None:
        self.flow, self.trips, self.other, self.shares = flow, trips, other, shares
        self.branches: dict[int, None] = {}
        """Addresses of branches of which one way is taken in every turn."""
        self.loops: dict[int, None] = {}
        """Addresses of loops whose turns were not given."""

    def assumed(self) -> Iterator[str]:
        """What was taken for granted, a sentence each."""
        if self.loops:
            some_loops = ", ".join(f"0x{address:x}" for address in self.loops)
            yield f"turns of the loops at {some_loops} are not known, and taken to be {self.other:g}"
        if self.branches:
            some_branches = ", ".join(f"0x{address:x}" for address in self.branches)
            yield f"in every turn the branches at {some_branches} are taken to go the way that does the loop's work"

    def go(self, loop: Loop | None, first: int, times: float) -> None:
        """From a block to the end of its loop, or of the function."""
        flow, block, seen = self.flow, first, set[int]()
        inner = {
            nested.header: nested
            for nested in flow.loops
            if nested.parent == (loop.header if loop else None)
        }
        # The walk takes each block once: a loop inside is walked by itself, and the walk goes on behind it.
        while block not in seen and (loop is None or block in loop.blocks):
            seen.add(block)
            if block in inner:
                inside = inner[block]
                self._turns(inside, times)
                after = [
                    f
                    for b in sorted(inside.blocks)
                    for f in flow.blocks[b].follows
                    if f not in inside.blocks
                ]
                seen |= inside.blocks
                block = min(after, key=lambda b: (b < block, b))
                continue
            self.shares[block] += times
            ways = [
                f
                for f in flow.blocks[block].follows
                if loop is None or (f in loop.blocks and f != loop.header)
            ]
            if not ways:
                return
            block = ways[0] if len(ways) == 1 else self._likely(loop, block, ways)

    def _turns(self, inside: Loop, times: float) -> None:
        address = self.flow.instructions[self.flow.blocks[inside.header].first].address
        if address not in self.trips:
            self.loops[address] = None
        self.go(inside, inside.header, times * self.trips.get(address, self.other))

    def _likely(self, loop: Loop | None, block: int, ways: list[int]) -> int:
        """The one of two ways that does the work; of equals the shorter inside a loop, else the longer."""
        flow = self.flow
        # What only one of the ways leads to says what that way is for: where there are products or a loop,
        # the work is done; the others jump over it.
        reached = [_reach(flow, loop, way) for way in ways]
        alone = [
            sorted(mine - set.union(set(), *(r for r in reached if r is not mine)))
            for mine in reached
        ]
        headers = {other.header for other in flow.loops}

        def rank(n: int) -> tuple[bool, int]:
            groups = [
                operation(flow.instructions[i], flow.function.cc).group
                for b in alone[n]
                for i in range(flow.blocks[b].first, flow.blocks[b].end)
            ]
            heavy = any(group in HEAVY for group in groups) or any(b in headers for b in alone[n])
            return heavy, -len(groups) if loop is not None else len(groups)

        best = max(range(len(ways)), key=rank)
        if loop is not None:
            self.branches[flow.instructions[flow.blocks[block].end - 1].address] = None
        return ways[best]


def _reach(flow: Flow, loop: Loop | None, start: int) -> set[int]:
    """Blocks that are reached from one without beginning the loop anew."""
    seen, waiting = set[int](), [start]
    while waiting:
        block = waiting.pop()
        if block not in seen:
            seen.add(block)
            ways = flow.blocks[block].follows
            waiting += [f for f in ways if loop is None or (f in loop.blocks and f != loop.header)]
    return seen


def runs_of_lines(flow: Flow, lines: Mapping[int, float]) -> Runs:
    """Runs by those of the PTX's lines, a warp's in the mean. Blocks without a line that is known run as often as the
    block that leads to them."""
    known: dict[int, float] = {}
    # Loads, stores and products are copied by the assembler as its loops need them, arithmetic is moved
    # and merged as well: it is asked only where a block has none of the former.
    for groups in (TELL_BEST, TELL):
        for block, votes in _votes(flow, lines, groups).items():
            known.setdefault(block, mode(votes))
    of_blocks = _of_blocks(flow, known)
    times = tuple(of_blocks[flow.block_of(n)] for n in range(len(flow.instructions)))
    return Runs(times, True)


def _of_blocks(flow: Flow, known: Mapping[int, float]) -> list[float]:
    """Runs of all blocks. One that nothing is known of runs in every turn of its loop where no turn goes around it, and
    else as often as the block that leads to it."""
    runs = [known.get(n, 0.0) for n in range(len(flow.blocks))]
    for loop in sorted(flow.loops, key=lambda nested: -len(nested.blocks)):
        # A block that dominates every branch back to the header runs in each turn.
        own_blocks = [b for b in loop.blocks if flow.loop_of[b] == loop.header]
        turns = max((known[b] for b in own_blocks if b in known), default=0.0)
        latches = [b for b in loop.blocks if loop.header in flow.blocks[b].follows]
        for block in own_blocks:
            if block not in known and all(flow.dominates(block, latch) for latch in latches):
                runs[block] = turns
    # Dominators come first in the order of blocks, so that each has its runs when it is asked.
    for n in range(len(flow.blocks)):
        if n not in known and not runs[n]:
            runs[n] = runs[flow.dominators[n]] if n else 1.0
    return runs


def _votes(
    flow: Flow, lines: Mapping[int, float], groups: Container[str]
) -> dict[int, list[float]]:
    """How often each block runs by each of its instructions of some classes whose line is known."""
    copies: dict[Copied, Counter[int]] = defaultdict(
        Counter
    )  # line and opcode -> cluster of blocks -> copies there
    clusters = [_cluster(flow, n) for n in range(len(flow.blocks))]
    telling = [
        (flow.block_of(number), (instruction.ptx_line, instruction.kind))
        for number, instruction in enumerate(flow.instructions)
        if instruction.ptx_line is not None
        and instruction.ptx_line in lines
        and operation(instruction, flow.function.cc).group in groups
        and instruction.predicate != NEVER
    ]
    for block, copied in telling:
        # An unrolled loop holds a line several times: its runs are shared out among the copies.
        copies[copied][clusters[block]] += 1
    shared = _shared(copies, lines)
    votes: dict[int, list[float]] = defaultdict(list)
    for block, copied in telling:
        votes[block].append(shared[copied, clusters[block]])
    return votes


def _cluster(flow: Flow, block: int) -> int:
    """Blocks that run together: those of one innermost loop; outside of loops each by itself."""
    return flow.loop_of.get(block, -1 - block)


def _shared(
    copies: Mapping[Copied, Counter[int]], lines: Mapping[int, float]
) -> dict[tuple[Copied, int], float]:
    """How often a line's copies run, by cluster: the one with most copies takes as many whole turns as fit."""
    shares: dict[tuple[Copied, int], float] = {}
    for copied, where in copies.items():
        # The unrolled body turns as often as all its copies are used, and what is left is the remainder's.
        rest = lines[copied[0]]
        for place, (cluster, count) in enumerate(
            sorted(where.items(), key=lambda item: (-item[1], item[0]))
        ):
            whole = rest // count if place + 1 < len(where) else rest / count
            shares[copied, cluster] = whole
            rest -= whole * count
    return shares

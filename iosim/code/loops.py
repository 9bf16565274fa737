"""Natural loops of a kernel's machine code: blocks, which block must come before which, and what each loop holds.

A backward branch whose target dominates it makes a loop (Aho, Lam, Sethi and Ullman 2006, section 9.6). A loop is named
by its first instruction. Calls go on behind themselves, but for those that never return, which are far branches.
Branches whose target is worked out at run time are not followed, and named in `Flow.unread`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from iosim.base.records import cached_property, dataclass
from iosim.code.listing import Instruction
from iosim.code.module import Function
from iosim.code.opcodes import operation

LEAVES = ("exit", "return")
ALWAYS = ("", "PT", "!UPF", "UPT")
INDIRECT = "indirect-branch"


@dataclass(frozen=True)
class Block:
    """Instructions that are run one after the other: numbers of the first and of the one after the last."""

    first: int
    end: int
    follows: tuple[int, ...]
    """Blocks that may come next."""


@dataclass(frozen=True)
class Loop:
    """A natural loop: the numbers of its blocks, that of its header, and the loop around it."""

    header: int
    blocks: frozenset[int]
    parent: int | None = None
    """The header of the loop around it."""


class Flow:
    """The blocks and loops of a function."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.instructions = function.instructions

    @cached_property
    def unread(self) -> tuple[str, ...]:
        """What cannot be read of it, a sentence each: branches worked out at run time, opcodes that are not known."""
        groups = {
            instruction.kind: operation(instruction, self.function.cc)
            for instruction in self.instructions
        }
        sentences = []
        if indirect := sorted(
            kind for kind, operation_of in groups.items() if operation_of.group == INDIRECT
        ):
            sentences.append(
                f"where {' and '.join(indirect)} go is worked out at run time, and not followed"
            )
        if unknown := sorted(
            kind for kind, operation_of in groups.items() if not operation_of.known
        ):
            sentences.append(
                f"opcodes that are not known, counted as an issue slot: {', '.join(unknown)}"
            )
        return tuple(sentences)

    def _group(self, number: int) -> str:
        """The class of an instruction, of calls that never return that of a branch."""
        instruction = self.instructions[number]
        group = operation(instruction, self.function.cc).group
        return "branch" if group == "call" and number in self._far_branches else group

    @cached_property
    def _far_branches(self) -> set[int]:
        """Calls behind whose target the code ends before it returns."""
        starts, places = (
            set(),
            {instruction.address: n for n, instruction in enumerate(self.instructions)},
        )
        for number, instruction in enumerate(self.instructions):
            if (
                operation(instruction, self.function.cc).group == "call"
                and instruction.target in places
            ):
                # Subroutines of the assembler (a division's slow path) return; a call that never does is a branch.
                rest = (
                    operation(i, self.function.cc).group
                    for i in self.instructions[places[instruction.target] :]
                )
                if next((group for group in rest if group in LEAVES), "exit") == "exit":
                    starts.add(number)
        return starts

    @cached_property
    def starts(self) -> list[int]:
        """Numbers of the first instruction of every block."""
        places = {instruction.address: n for n, instruction in enumerate(self.instructions)}
        # A block begins at the entry, at each target, and behind each instruction that may go elsewhere.
        starts = {0}
        for n, instruction in enumerate(self.instructions):
            group = self._group(n)
            if group == "branch" and instruction.target in places:
                starts.add(places[instruction.target])
            # An end or a branch closes its block, taken or not.
            if group in ("branch", INDIRECT, *LEAVES):
                starts.add(n + 1)
        return sorted(start for start in starts if start < len(self.instructions))

    def block_of(self, number: int) -> int:
        """The block that an instruction stands in."""
        return bisect_right(self.starts, number) - 1

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        places = {instruction.address: n for n, instruction in enumerate(self.instructions)}
        ends = [*self.starts[1:], len(self.instructions)]
        blocks = []
        for number, (first, end) in enumerate(zip(self.starts, ends, strict=True)):
            # A block is followed by its branch's target, and by the next block unless it always leaves.
            last = self.instructions[end - 1]
            group, always = self._group(end - 1), last.predicate in ALWAYS
            follows = []
            if group == "branch" and last.target in places:
                follows.append(self.block_of(places[last.target]))
            falls = not (always and group in ("branch", INDIRECT, *LEAVES)) or _conditional(last)
            if falls and number + 1 < len(ends):
                follows.append(number + 1)
            blocks.append(Block(first, end, tuple(dict.fromkeys(follows))))
        return tuple(blocks)

    @cached_property
    def dominators(self) -> tuple[int, ...]:
        """The immediate dominator of every block, -1 where none is (Cooper, Harvey and Kennedy 2001)."""
        order = self._postorder()
        # Cooper, Harvey and Kennedy 2001, "A simple, fast dominance algorithm": blocks in reverse postorder,
        # each one's dominator the meeting point of those of its predecessors, until nothing changes.
        rank = {block: n for n, block in enumerate(order)}
        before = self._before()
        dominator = [-1] * len(self.blocks)
        dominator[0] = 0
        changed = True
        while changed:
            changed = False
            # The entry comes first; of each other block the one that it was reached from is done before it.
            for block in reversed(order[:-1]):
                known = [b for b in before[block] if dominator[b] >= 0]
                new = known[0]
                for other in known[1:]:
                    new = _meet(new, other, dominator, rank)
                if dominator[block] != new:
                    dominator[block], changed = new, True
        return tuple(dominator)

    def _before(self) -> list[list[int]]:
        before: list[list[int]] = [[] for _ in self.blocks]
        for n, block in enumerate(self.blocks):
            for other in block.follows:
                before[other].append(n)
        return before

    def _postorder(self) -> list[int]:
        # Depth first without recursion: long kernels have thousands of blocks one behind the other.
        seen, order, stack = {0}, [], [(0, iter(self.blocks[0].follows))]
        while stack:
            block, rest = stack[-1]
            for other in rest:
                if other not in seen:
                    seen.add(other)
                    stack.append((other, iter(self.blocks[other].follows)))
                    break
            else:
                stack.pop()
                order.append(block)
        return order

    def dominates(self, first: int, second: int) -> bool:
        """True where every way to `second` leads through `first`."""
        while second != first:
            up = self.dominators[second]
            if up in (second, -1):
                return False
            second = up
        return True

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All natural loops, outer ones before those inside them; an endless one behind the last exit is left out."""
        bodies: dict[int, set[int]] = {}
        before = self._before()
        for n, block in enumerate(self.blocks):
            for header in block.follows:
                if header <= n and self.dominators[n] >= 0 and self.dominates(header, n):
                    bodies.setdefault(header, {header}).update(_body(header, n, before))
        leaving = {
            h: b
            for h, b in bodies.items()
            if any(f not in b for body in b for f in self.blocks[body].follows)
        }
        ordered = sorted(leaving, key=lambda h: (-len(leaving[h]), h))
        return tuple(
            Loop(header, frozenset(leaving[header]), _around(header, ordered, leaving))
            for header in sorted(ordered, key=lambda h: (h, -len(leaving[h])))
        )

    def inside(self, loop: Loop) -> Iterator[Loop]:
        """The loops directly inside a loop."""
        return (other for other in self.loops if other.parent == loop.header)

    def numbers(self, loop: Loop) -> Iterator[int]:
        """Numbers of the instructions of a loop, those of loops inside it too."""
        for block in sorted(loop.blocks):
            yield from range(self.blocks[block].first, self.blocks[block].end)

    def own_numbers(self, loop: Loop) -> list[int]:
        """Numbers of the instructions of a loop that no loop inside it holds."""
        deeper = {b for other in self.inside(loop) for b in other.blocks}
        return [n for n in self.numbers(loop) if self.block_of(n) not in deeper]

    def instruction(self, number: int) -> Instruction:
        return self.instructions[number]

    @cached_property
    def loop_of(self) -> dict[int, int]:
        """Block -> header of the innermost loop that holds it."""
        # Larger loops first, so that smaller ones inside them write over.
        innermost: dict[int, int] = {}
        for loop in sorted(self.loops, key=lambda outer: -len(outer.blocks)):
            innermost |= dict.fromkeys(loop.blocks, loop.header)
        return innermost


def _conditional(branch: Instruction) -> bool:
    """True where a branch has its condition among its operands (BRA P0, `(.L_x_2)) or its modifiers (BRA.DIV)."""
    named = any(
        o.lstrip("!").startswith(("P", "UP")) and o not in ALWAYS for o in branch.operands[:-1]
    )
    return named or "DIV" in branch.modifiers or "CONV" in branch.modifiers


def _meet(left_block: int, other: int, dominators: list[int], rank: dict[int, int]) -> int:
    """The nearest block that dominates both."""
    while left_block != other:
        while rank[left_block] < rank[other]:
            left_block = dominators[left_block]
        while rank[other] < rank[left_block]:
            other = dominators[other]
    return left_block


def _body(header: int, latch: int, before: list[list[int]]) -> set[int]:
    """The blocks from which a backward branch is reached without passing its target."""
    body, waiting = {header}, [latch]
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting.extend(before[block])
    return body


def _around(header: int, ordered: list[int], bodies: dict[int, set[int]]) -> int | None:
    """The smallest loop around another: one that holds its header holds all of it, for every way to it leads through
    that loop's own header."""
    around = [h for h in ordered if h != header and header in bodies[h]]
    return min(around, key=lambda h: len(bodies[h])) if around else None

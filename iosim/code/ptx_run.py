"""Evaluates the integer and predicate instructions of an entry for all lanes of many CTAs together.

Lanes that part go on in groups, each at its own instruction: inside a loop the group that is furthest back runs first,
so that groups meet again where their ways do. Trips of a loop that repeat are folded (`iosim.code.ptx_fold`). Floating
point and what is loaded are not known; a branch on them is taken not to part, and said so: lanes go by the shorter of
two ways that meet again, else they fall through.
"""

from __future__ import annotations

import time

import numpy as np

from iosim.base.errors import InputError
from iosim.base.records import dataclass, field
from iosim.code.ptx import Entry, Instruction
from iosim.code.ptx_fold import Snapshot, advanced, repeats, steps
from iosim.code.ptx_lanes import ALL, Settings
from iosim.code.ptx_memory import MemoryLanes
from iosim.code.ptx_trace import Fold, Trace, Visit, shifts
from iosim.code.ptx_values import Array, shrunk
from iosim.code.ptx_words import MEMORY, NOTHING, WARP

LONGEST_PERIOD = 8
"""Trips after which a loop may do the same again: the buffers of a pipeline take turns."""
MOST_TRIPS = 1 << 34
"""Trips beyond which a loop is taken to have no end."""
LONGEST_WAY = 256
"""Instructions of a way up to which it is looked for where it meets another."""
FLOAT_BRANCH = "a branch on floating point, or on what was loaded, is taken not to part"
FLOAT_GUARD = (
    "an access under a predicate of floating point, or of what was loaded, is taken as made"
)


@dataclass
class _Loop:
    head: int
    end: int
    snapshots: list[Snapshot] = field(default_factory=list)
    trips: int = 0


class Run(MemoryLanes):
    """One batch of CTAs going through an entry."""

    def __init__(self, entry: Entry, settings: Settings, coordinates: Array) -> None:
        super().__init__(entry, settings, coordinates)
        self.loops: list[_Loop] = []
        self._skipped = [self._is_skipped(n) for n in range(len(entry.instructions))]
        # A thread's own seconds: a busy machine refuses nothing that an idle one reads.
        self._until = time.thread_time() + settings.seconds

    def _is_skipped(self, at: int) -> bool:
        """True where an instruction decides no address and no way."""
        instruction = self.entry.instructions[at]
        if instruction.name in (
            "bra",
            "brx",
            "ld",
            "ldu",
            "st",
            "atom",
            "red",
            "cp",
            "ldmatrix",
            "stmatrix",
            "ret",
            "exit",
        ):
            return False
        written = self.entry.flow.writes[at]
        return instruction.name in NOTHING or not (written & self.entry.flow.needed)

    # ---- which group goes on ----

    def go(self) -> Trace:
        """Run to the end. Raises InputError: an indirect branch, or no end within the time."""
        code, flow = self.entry.instructions, self.entry.flow
        starts = set(flow.starts)
        waiting: dict[int, Array] = {0: ALL}
        while waiting:
            at = self._next(waiting)
            mask = waiting.pop(at)
            if at in flow.loops:
                self._enter(at, mask, waiting)
            self.trace.nodes.append(Visit(at, self._warps(mask)))
            while at < len(code):
                instruction = code[at]
                if instruction.name in ("bra", "ret", "exit", "trap", "brx"):
                    self._part(at, instruction, mask, waiting)
                    break
                if not self._skipped[at]:
                    self._do(at, instruction, mask)
                at += 1
                if at in starts:
                    _add(waiting, at, mask)
                    break
            if time.thread_time() > self._until:
                raise InputError(
                    f"kernel {self.entry.name} was not evaluated within {self.settings.seconds:g} s, "
                    f"{self.trace.executed:,} instructions: the loop at {self._where()} does not repeat evenly"
                )
        self._close_loops(-1)
        return self.trace

    def _warps(self, mask: Array) -> Array:
        """Warps of each CTA with a lane in a group, [CTAs or 1]."""
        count = -(-self.lanes // WARP)
        if mask.shape[1] == 1:
            return mask[:, 0] * count
        lanes = np.zeros((mask.shape[0], count * WARP), dtype=bool)
        # A CTA's last warp may have lanes that do not exist.
        lanes[:, : self.lanes] = mask
        warps: Array = lanes.reshape(mask.shape[0], count, WARP).any(axis=2).sum(axis=1)
        return warps

    def _where(self) -> str:
        at = self.loops[-1].head if self.loops else 0
        return self.entry.instructions[at].line or f"instruction {at}"

    def _next(self, waiting: dict[int, Array]) -> int:
        while self.loops:
            top = self.loops[-1]
            # The group that is furthest back goes first, so that it meets the others where their ways join.
            inside = [at for at in waiting if top.head < at <= top.end]
            if inside:
                return min(inside)
            if top.head in waiting:
                return top.head
            self._leave_loop()
        return min(waiting)

    def _close_loops(self, at: int) -> None:
        while self.loops and not self.loops[-1].head <= at <= self.loops[-1].end:
            self._leave_loop()

    def _leave_loop(self) -> None:
        """The innermost loop is done; what was recorded is of no use outside of all."""
        self.loops.pop()
        if not self.loops:
            self.record.clear()
            self.is_recording = False

    def _part(
        self, at: int, instruction: Instruction, mask: Array, waiting: dict[int, Array]
    ) -> None:
        """A branch, or an end."""
        if instruction.name == "brx":
            raise InputError(
                f"kernel {self.entry.name} branches through a table ({instruction.line}), which is not followed"
            )
        goes = mask
        if instruction.guard:
            flag = self._flag(instruction)
            if flag is None:
                self._note(FLOAT_BRANCH)
                _add(waiting, self._likely(at, instruction.target), mask)
                return
            goes = shrunk(mask & flag)
            stays = shrunk(mask & ~flag)
            if stays.any():
                _add(waiting, at + 1, stays)
        if instruction.name == "bra" and goes.any():
            _add(waiting, instruction.target, goes)

    def _likely(self, at: int, target: int) -> int:
        """Where lanes go whose branch is not known: on, or by the shorter of two ways that meet again."""
        # Of a function by parts (a tangent's small and large values) compilers make two ways; none of them
        # is empty, for one that jumps over something is most often meant to do it.
        on, there = self._straight(at + 1), self._straight(target)
        meet = next((number for number in there if number in set(on)), None)
        if meet is None:
            return at + 1
        lengths = [way.index(meet) for way in (on, there)]
        return target if 0 < lengths[1] < lengths[0] else at + 1

    def _straight(self, at: int) -> list[int]:
        """Instructions from one on to the next branch that is not always taken, without jumps and moves."""
        code, way = self.entry.instructions, list[int]()
        while at < len(code) and len(way) < LONGEST_WAY:
            instruction = code[at]
            if instruction.name == "bra" and not instruction.guard:
                at = instruction.target
                continue
            if instruction.name in ("bra", "ret", "exit", "trap", "brx"):
                break
            if instruction.name != "mov":
                way.append(at)
            at += 1
        return way

    # ---- loops ----

    def _enter(self, at: int, mask: Array, waiting: dict[int, Array]) -> None:
        flow = self.entry.flow
        if not self.loops or self.loops[-1].head != at:
            self.loops.append(_Loop(at, flow.loops[at]))
            self.is_recording = True
        loop = self.loops[-1]
        loop.trips += 1
        # Lanes that have parted inside the loop are at different trips: nothing repeats as a whole.
        if any(loop.head < other <= loop.end for other in waiting):
            loop.snapshots.clear()
            return
        held = {name: self.registers.get(name) for name in flow.carried(at)}
        loop.snapshots.append(Snapshot(len(self.trace.nodes), len(self.record), held, mask))
        # Three snapshots a period apart: the differences between the first two must come again between
        # the last two, and then go on for as long as no comparison turns out otherwise.
        for period in range(1, LONGEST_PERIOD + 1):
            if len(loop.snapshots) <= 2 * period:
                return
            if self._fold(loop, period):
                last = loop.snapshots[-1]
                held = {name: self.registers.get(name) for name in last.registers}
                loop.snapshots[:] = [Snapshot(len(self.trace.nodes), len(self.record), held, mask)]
                return
        del loop.snapshots[: -2 * LONGEST_PERIOD - 1]

    def _fold(self, loop: _Loop, period: int) -> bool:
        """Fold the trips that repeat the last `period` ones, if any do."""
        new, middle, old = (loop.snapshots[-1 - n * period] for n in range(3))
        before, after = (
            self.record[old.record : middle.record],
            self.record[middle.record : new.record],
        )
        if len(before) != len(after):
            return False
        stepped = steps(old, middle, new)
        spells = None if stepped is None else repeats(before, after, new.mask, self.ctas)
        if stepped is None or spells is None:
            return False
        spells = np.where(new.mask.any(axis=1, keepdims=True), spells, 0)
        if spells.max() >= MOST_TRIPS:
            raise InputError(
                f"kernel {self.entry.name} has a loop without an end at {self._where()}"
            )
        if spells.max() < 1:
            return False
        nodes, going = self.trace.nodes, np.broadcast_to(spells[:, 0] > 0, (self.ctas,))
        body = shifts(nodes[old.trace : middle.trace], nodes[middle.trace : new.trace], going)
        if body is None:
            return False
        if body:
            nodes.append(Fold(loop.head, body, spells[:, 0].copy()))
        for name, step in stepped.items():
            self.registers[name] = advanced(self.registers[name], step, spells)
        return True

    def _do(self, at: int, instruction: Instruction, mask: Array) -> None:
        self.trace.executed += 1
        guarded = bool(instruction.guard)
        if guarded:
            flag = self._flag(instruction)
            if flag is None:
                if instruction.name in MEMORY:
                    self._note(FLOAT_GUARD)
            else:
                mask = shrunk(mask & flag)
                if not mask.any():
                    return
        if instruction.name in MEMORY:
            self._memory(at, instruction, mask)
            return
        for name, value in self._results(at, instruction, mask):
            self._set(name, value, mask, guarded)


def _add(waiting: dict[int, Array], at: int, mask: Array) -> None:
    before = waiting.get(at)
    if before is None:
        waiting[at] = mask
        return
    both = shrunk(before | mask)
    waiting[at] = ALL if both.size == 1 and both.item() else both

"""Evaluates the integer and predicate instructions of an entry for all lanes of many CTAs together.

Lanes that part go on in groups, each at its own instruction: inside a loop the group that is furthest back runs first,
so that groups meet again where their ways do. Trips of a loop that repeat are folded (`iosim.code.ptx_fold`). Floating
point and what is loaded are not known; a branch on them is taken not to part (it falls through), and said so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.records import dataclass, field
from iosim.code import ptx_operations as operations
from iosim.code.ptx import Entry, Instruction
from iosim.code.ptx_fold import Bent, Compared, Recorded, Snapshot, advanced, repeats, steps
from iosim.code.ptx_operations import Kind, kind_of
from iosim.code.ptx_trace import Access, Fold, Trace, Visit, shifts
from iosim.code.ptx_values import (
    Array,
    Known,
    Split,
    Value,
    lanes_of,
    merged,
    number,
    plus,
    shrunk,
    signed,
    unsigned,
    whole,
    wrapped,
)

WARP = 32
LONGEST_PERIOD = 8
"""Trips after which a loop may do the same again: the buffers of a pipeline take turns."""
ALL = np.ones((1, 1), dtype=bool)
ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]")
OPAQUE = (
    "ex2",
    "rcp",
    "lg2",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
    "fma",
    "copysign",
    "testp",
    "mma",
    "wmma",
    "tcgen05",
    "dp4a",
    "dp2a",
    "clock",
    "tex",
    "tld4",
    "suld",
    "nanosleep",
    "redux",
    "match",
    "vote",
    "istypep",
    "isspacep",
)
NOTHING = (
    "bar",
    "barrier",
    "fence",
    "membar",
    "wgmma",
    "setmaxnreg",
    "griddepcontrol",
    "cluster",
    "pragma",
    "mbarrier",
    "prefetch",
    "prefetchu",
    "discard",
    "applypriority",
    "tensormap",
    "nanosleep",
    "call",
    "createpolicy",
    "clusterlaunchcontrol",
)
FLOAT_BRANCH = "a branch on floating point, or on what was loaded, is taken not to part"
FLOAT_GUARD = (
    "an access under a predicate of floating point, or of what was loaded, is taken as made"
)
LOADED_ADDRESS = "an address that was loaded, of which no values are given"
SHARED_AT, LOCAL_AT = 1 << 56, 1 << 57
"""Where the windows of shared and local memory lie among generic addresses here."""


@dataclass(frozen=True)
class Settings:
    """One launch: the grid, threads of a CTA by axis, values of the parameters by name, and numbers that lie in memory,
    (address, array, bytes an element)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: Mapping[str, int | None]
    memory: Sequence[tuple[int, Array, int]] = ()
    seconds: float = 5.0


@dataclass
class _Loop:
    head: int
    end: int
    snapshots: list[Snapshot] = field(default_factory=list)
    trips: int = 0


class Run:
    """One batch of CTAs going through an entry."""

    def __init__(self, entry: Entry, settings: Settings, coordinates: Array) -> None:
        self.entry, self.settings = entry, settings
        self.trace = Trace(coordinates)
        self.ctas, self.lanes = coordinates.shape[0], int(np.prod(settings.block))
        self.registers: dict[str, Value] = {}
        self.special = _special(settings, coordinates)
        self.record: list[Recorded] = []
        self.loops: list[_Loop] = []
        self._numbers: dict[str, Array] = {}
        self._live = frozenset().union(*entry.flow.live.values())
        self._skipped = [self._is_skipped(n) for n in range(len(entry.instructions))]
        self._until = time.monotonic() + settings.seconds

    def _is_skipped(self, at: int) -> bool:
        """Whether an instruction decides no address and no way."""
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
            if time.monotonic() > self._until:
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
        lanes[:, : self.lanes] = mask
        warps: Array = lanes.reshape(mask.shape[0], count, WARP).any(axis=2).sum(axis=1)
        return warps

    def _where(self) -> str:
        at = self.loops[-1].head if self.loops else 0
        return self.entry.instructions[at].line or f"instruction {at}"

    def _next(self, waiting: dict[int, Array]) -> int:
        while self.loops:
            top = self.loops[-1]
            inside = [at for at in waiting if top.head < at <= top.end]
            if inside:
                return min(inside)
            if top.head in waiting:
                return top.head
            self.loops.pop()
            if not self.loops:
                self.record.clear()
        return min(waiting)

    def _close_loops(self, at: int) -> None:
        while self.loops and not self.loops[-1].head <= at <= self.loops[-1].end:
            self.loops.pop()

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
                _add(waiting, at + 1, mask)
                return
            goes = shrunk(mask & flag)
            stays = shrunk(mask & ~flag)
            if stays.any():
                _add(waiting, at + 1, stays)
        if instruction.name == "bra" and goes.any():
            _add(waiting, instruction.target, goes)

    def _note(self, text: str) -> None:
        self.trace.notes[text] = self.trace.notes.get(text, 0) + 1

    # ---- loops ----

    def _enter(self, at: int, mask: Array, waiting: dict[int, Array]) -> None:
        flow = self.entry.flow
        if not self.loops or self.loops[-1].head != at:
            self.loops.append(_Loop(at, flow.loops[at]))
        loop = self.loops[-1]
        loop.trips += 1
        if any(loop.head < other <= loop.end for other in waiting):
            loop.snapshots.clear()
            return
        held = {name: self.registers.get(name) for name in flow.carried(at)}
        loop.snapshots.append(Snapshot(len(self.trace.nodes), len(self.record), held, mask))
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
        if spells.max() >= operations_limit():
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

    # ---- values ----

    def _get(self, text: Any) -> Value:
        if isinstance(text, tuple):
            return None
        if text in self.registers:
            return self.registers[text]
        if text in self.special:
            return self.special[text]
        if text in self._numbers:
            return self._numbers[text]
        value = _literal(text)
        if value is None:
            if text in self.entry.shared:
                value = self.entry.shared[text]
            elif text.startswith("__local_depot"):
                value = LOCAL_AT
            else:
                return None
        self._numbers[text] = number(value)
        return self._numbers[text]

    def _flag(self, instruction: Instruction) -> Array | None:
        value = self._get(instruction.guard)
        if value is None:
            return None
        flag: Array = whole(value).astype(bool)
        return ~flag if instruction.negated else flag

    def _set(self, name: str, value: Value, mask: Array, guarded: bool) -> None:
        if name == "_":
            return
        if mask is not ALL and (guarded or name in self._live):
            value = merged(mask, value, self.registers.get(name))
        self.registers[name] = value

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

    def _results(self, at: int, instruction: Instruction, mask: Array) -> list[tuple[str, Value]]:
        """(register, value) of what an instruction writes."""
        first = instruction.operands[0]
        name, opcode = instruction.name, instruction.opcode
        if isinstance(first, tuple):
            return self._unpacked(instruction, first)
        written = first.split("|")
        if name == "setp" or name == "set":
            return self._compared(at, instruction, mask, written)
        if name == "elect":
            lanes = np.arange(self.lanes)
            return [
                (written[0], number(0)),
                *((n, (lanes % WARP == 0)[None, :]) for n in written[1:]),
            ]
        if name == "activemask":
            return [(first, number(-1))]
        if name == "shfl":
            return [(written[0], self._shuffled(instruction)), *((n, ALL) for n in written[1:])]
        if name in OPAQUE or (operations.is_float(opcode) and name not in ("cvt", "mov", "selp")):
            return [(n, None) for n in written]
        return [(written[0], self._whole_result(at, instruction, mask))]

    def _whole_result(self, at: int, instruction: Instruction, mask: Array) -> Value:
        name, opcode = instruction.name, instruction.opcode
        if name == "mov" and isinstance(instruction.operands[1], tuple):
            return self._packed(instruction.operands[1], kind_of(opcode))
        values = [self._get(operand) for operand in instruction.operands[1:]]
        if name == "selp":
            return self._selected(values)
        if any(value is None for value in values):
            return None
        known: list[Any] = values
        if opcode[-1] == "pred":
            return _logical(name, [whole(v).astype(bool) for v in known])
        return self._integer(at, instruction, known, mask)

    def _integer(self, at: int, instruction: Instruction, v: list[Any], mask: Array) -> Value:
        name, opcode, kind = instruction.name, instruction.opcode, kind_of(instruction.opcode)
        if name == "mov":
            operand: Known = v[0]
            return operand
        if name == "cvta":
            return self._generic(opcode, v[0])
        if name == "cvt":
            return operations.convert(opcode, v[0])
        if name in ("min", "max"):
            a, b = (operations._source(x, kind) for x in v)
            self._keep(Compared(at, "lt", plus(a, b, -1), mask))
        elif name in BENDS:
            self._keep(Bent(at, name, tuple(v), mask))
        elif name in UNEVEN and ("hi" in opcode or not _is_number(instruction.operands[2])):
            # What is added to a product bends nothing.
            self._keep(Bent(at, _uneven(opcode), tuple(v[:2]), mask))
        if name in operations.TWO:
            return operations.TWO[name](v[0], v[1], kind)
        if name in ("mul", "mul24"):
            return operations.multiply(opcode, v[0], v[1])
        if name in ("mad", "mad24"):
            bits = (
                64
                if "wide" in opcode and kind.bits == 32
                else 2 * kind.bits
                if "wide" in opcode
                else kind.bits
            )
            return operations.add(
                operations.multiply(opcode, v[0], v[1]), v[2], Kind(kind.letter, bits)
            )
        if name == "neg":
            return operations.sub(number(0), v[0], kind)
        if name == "not":
            return operations.sub(number(-1), v[0], kind)
        if name == "abs":
            return operations.absolute(v[0], kind)
        if name == "bfe":
            return operations.bit_field(v[0], v[1], v[2], kind)
        if name == "bfi":
            return operations.insert(v[0], v[1], v[2], v[3], kind)
        if name == "lop3":
            return operations.logic(v[0], v[1], v[2], int(whole(v[3]).item()))
        if name == "prmt":
            return operations.permute(v[0], v[1], v[2])
        if name == "shf":
            return operations.funnel(opcode, v[0], v[1], v[2])
        if name == "popc":
            return operations.count_bits(v[0], kind)
        if name == "clz":
            return operations.leading_zeros(v[0], kind)
        self._note(f"instruction {instruction.text} is not known")
        return None

    def _keep(self, recorded: Recorded) -> None:
        if self.loops:
            self.record.append(recorded)

    def _generic(self, opcode: tuple[str, ...], value: Known) -> Known:
        """cvta: shared and local memory lie in windows of generic addresses."""
        if "shared" not in opcode and "shared_cta" not in opcode:
            return value
        return plus(value, number(SHARED_AT), -1 if "to" in opcode else 1)

    def _compared(
        self, at: int, instruction: Instruction, mask: Array, written: list[str]
    ) -> list[tuple[str, Value]]:
        kind = kind_of(instruction.opcode)
        values = [self._get(operand) for operand in instruction.operands[1:]]
        word = next((part for part in instruction.opcode[1:] if part in operations.COMPARISONS), "")
        if (
            operations.is_float(instruction.opcode)
            or not word
            or values[0] is None
            or values[1] is None
        ):
            return [(name, None) for name in written]
        a, b = (operations._source(v, kind) for v in values[:2] if v is not None)
        self._keep(Compared(at, word, plus(a, b, -1), mask))
        result = operations.compare(word, a, b, kind)
        joined = next(
            (part for part in instruction.opcode[1:] if part in ("and", "or", "xor")), None
        )
        other = ~result
        if joined is not None:
            third = values[2]
            if third is None:
                return [(name, None) for name in written]
            with_ = whole(third).astype(bool)
            with_ = ~with_ if str(instruction.operands[3]).startswith("!") else with_
            result, other = (_logical(joined, [flag, with_]) for flag in (result, other))
        return [*zip(written, (result, other), strict=False)]

    def _selected(self, values: list[Value]) -> Value:
        a, b, flag = values
        if flag is None:
            return None
        picks: Array = whole(flag).astype(bool)
        if picks.all():
            return a
        if not picks.any():
            return b
        if a is None or b is None:
            return None
        return merged(picks, a, b)

    def _shuffled(self, instruction: Instruction) -> Value:
        value, lane = self._get(instruction.operands[1]), self._get(instruction.operands[2])
        if value is None or lane is None:
            return None
        own_lane = np.arange(self.lanes)
        by = whole(lane)
        if by.shape[0] != 1:
            return None
        number_of = np.broadcast_to(by[0], (self.lanes,))
        moves = {
            "idx": number_of % WARP,
            "bfly": own_lane % WARP ^ number_of,
            "up": own_lane % WARP - number_of,
            "down": own_lane % WARP + number_of,
        }
        move = next((moves[part] for part in instruction.opcode if part in moves), None)
        if move is None:
            return None
        move = np.where((move >= 0) & (move < WARP), move, own_lane % WARP)
        return lanes_of(value, np.minimum(own_lane // WARP * WARP + move, self.lanes - 1))

    def _packed(self, parts: tuple[str, ...], kind: Kind) -> Value:
        bits = kind.bits // len(parts)
        total: Array | None = None
        for place, part in enumerate(parts):
            value = self._get(part)
            if value is None:
                return None
            piece = unsigned(whole(value), bits) << (place * bits)
            total = piece if total is None else total | piece
        return None if total is None else signed(total, kind.bits)

    def _unpacked(
        self, instruction: Instruction, parts: tuple[str, ...]
    ) -> list[tuple[str, Value]]:
        value = self._get(instruction.operands[1]) if instruction.name == "mov" else None
        if value is None:
            return [(part, None) for part in parts]
        bits, dense = kind_of(instruction.opcode).bits // len(parts), whole(value)
        return [(part, signed(dense >> (place * bits), bits)) for place, part in enumerate(parts)]

    # ---- memory ----

    def _memory(self, at: int, instruction: Instruction, mask: Array) -> None:
        if instruction.name == "ld" and "param" in instruction.opcode:
            self._parameter(instruction, mask)
            return
        if instruction.name == "st" and "param" in instruction.opcode:
            return
        if instruction.name == "cp":
            self._copy(at, instruction, mask)
            return
        address = self._address(
            instruction.operands[0 if instruction.name in ("st", "red", "stmatrix") else 1]
        )
        self.touch(at, address, mask, width_of(instruction))
        if instruction.name in ("ld", "ldu", "atom", "ldmatrix"):
            first = instruction.operands[0]
            for name in first if isinstance(first, tuple) else (first,):
                self._set(
                    name, self._loaded(instruction, address, mask), mask, bool(instruction.guard)
                )

    def _parameter(self, instruction: Instruction, mask: Array) -> None:
        match = ADDRESS.fullmatch(str(instruction.operands[1]))
        name = (
            ""
            if match is None
            else match[1] + (f"+{int(match[2], 0)}" if match[2] and int(match[2], 0) else "")
        )
        value = self.settings.values.get(name)
        first = instruction.operands[0]
        for register in first if isinstance(first, tuple) else (first,):
            known = (
                None if value is None else number(wrapped(value, kind_of(instruction.opcode).bits))
            )
            self._set(register, known, mask, bool(instruction.guard))

    def _address(self, operand: Any) -> Value:
        match = ADDRESS.fullmatch(str(operand))
        if match is None:
            return None
        base = self._get(match[1])
        if base is None or not match[2]:
            return base
        return plus(base, number(int(match[2], 0)))

    def _loaded(self, instruction: Instruction, address: Value, mask: Array) -> Value:
        """What lies at an address, where the numbers there are given."""
        if address is None or isinstance(instruction.operands[0], tuple):
            return None
        dense = whole(address)
        for base, array, size in self.settings.memory:
            inside = (dense >= base) & (dense < base + array.size * size)
            if bool((inside | ~mask).all()):
                place = np.clip((dense - base) // size, 0, array.size - 1)
                numbers: Array = array[place].astype(np.int64)
                return numbers
        return None

    def _copy(self, at: int, instruction: Instruction, mask: Array) -> None:
        """cp.async of 4 to 16 bytes a lane, or a bulk copy by one lane, with or without a tensor's map."""
        if "bulk" in instruction.opcode:
            self._bulk(at, instruction, mask)
            return
        if "global" not in instruction.opcode:  # cp.async.commit_group and its like
            return
        size = self._get(instruction.operands[2])
        width = 16 if size is None else int(whole(size).max())
        self.touch(at, self._address(instruction.operands[0]), mask, width, half=1)
        is_made = mask
        if (
            len(instruction.operands) > 3
            and (source := self._get(instruction.operands[3])) is not None
        ):
            is_made = shrunk(mask & (whole(source) > 0))
        if is_made.any():
            self.touch(at, self._address(instruction.operands[1]), is_made, width)

    def _bulk(self, at: int, instruction: Instruction, mask: Array) -> None:
        if "tensor" in instruction.opcode:
            self._note(
                "copies by tensor maps (TMA) are not counted: their tensors are described outside the code"
            )
            return
        if (
            "global" not in instruction.opcode
            or "prefetch" in instruction.opcode
            or len(instruction.operands) < 3
        ):
            return
        size = self._get(instruction.operands[2])
        loads = instruction.opcode.index("global") > 3
        place = instruction.operands[1 if loads else 0]
        if size is None:
            self._note("a bulk copy of a size that was loaded")
            return
        self.touch(at, self._address(place), mask, int(whole(size).max()))

    def touch(self, at: int, address: Value, mask: Array, width: int, half: int = 0) -> None:
        """Add an access to the trace. `half`: the shared side of a copy that has a global one, too."""
        site = 2 * at + half
        if address is None:
            self._note(f"{LOADED_ADDRESS} ({self.entry.instructions[at].text})")
            ctas = np.flatnonzero(np.broadcast_to(mask.any(axis=1), (self.ctas,)))
            self.trace.nodes.append(Access(site, ctas, np.zeros(ctas.size, dtype=np.int64), None))
            return
        dense = (not isinstance(address, Split) and min(address.shape) > 1) or min(mask.shape) > 1
        if dense:
            self._touch_rows(site, whole(address), mask, width)
            return
        lane = (
            address.lane
            if isinstance(address, Split)
            else address
            if address.shape[0] == 1
            else None
        )
        cta = (
            address.cta
            if isinstance(address, Split)
            else address
            if address.shape[1] == 1
            else None
        )
        lanes = np.broadcast_to(
            np.zeros(1, dtype=np.int64) if lane is None else lane[0], (self.lanes,)
        )
        active = np.broadcast_to(mask[0] if mask.shape[0] == 1 else ALL[0], (self.lanes,))
        ctas = np.arange(self.ctas) if mask.shape[0] == 1 else np.flatnonzero(mask[:, 0])
        first = int(lanes[active][0])
        base = (
            np.zeros(self.ctas, dtype=np.int64)
            if cta is None or cta is lane
            else np.broadcast_to(cta[:, 0], (self.ctas,))
        )
        pattern = self.trace.patterns.number(lanes - first, active, width)
        self.trace.nodes.append(Access(site, ctas, base[ctas] + first, pattern))

    def _touch_rows(self, site: int, address: Array, mask: Array, width: int) -> None:
        """An access whose lanes lie otherwise in some CTAs: those that lie alike together."""
        shape = (self.ctas, self.lanes)
        address, active = np.broadcast_to(address, shape), np.broadcast_to(mask, shape)
        ctas = np.flatnonzero(active.any(axis=1))
        address, active = address[ctas], active[ctas]
        first = address[np.arange(ctas.size), active.argmax(axis=1)]
        offset = np.where(active, address - first[:, None], 0)
        keys = np.concatenate([offset, active], axis=1)
        weights = _weights(keys.shape[1])
        _, index, which = np.unique(
            (keys * weights).sum(axis=1), return_index=True, return_inverse=True
        )
        for number_of, row in enumerate(index):
            those = np.flatnonzero(which.reshape(-1) == number_of)
            pattern = self.trace.patterns.number(offset[row], active[row], width)
            self.trace.nodes.append(Access(site, ctas[those], first[those], pattern))


MEMORY = ("ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix")
BENDS = (
    "and",
    "or",
    "xor",
    "shr",
    "div",
    "rem",
    "bfe",
    "bfi",
    "lop3",
    "prmt",
    "shf",
    "popc",
    "clz",
    "abs",
)
UNEVEN = ("mul", "mul24", "mad", "mad24", "shl")
"""Even where their second operand is a number, but for high halves, which are quotients."""


def _uneven(opcode: tuple[str, ...]) -> str:
    """The name that an operation of two factors is recorded under: a shift, a high half or a product."""
    if opcode[0] == "shl":
        return "shl"
    return "high" if "hi" in opcode else "mul"


def operations_limit() -> int:
    """Trips beyond which a loop is taken to have no end."""
    return 1 << 34


def _weights(count: int) -> Array:
    rng = np.random.default_rng(7)
    return rng.integers(1, 1 << 62, count, dtype=np.int64) | 1


def _add(waiting: dict[int, Array], at: int, mask: Array) -> None:
    before = waiting.get(at)
    if before is None:
        waiting[at] = mask
        return
    both = shrunk(before | mask)
    waiting[at] = ALL if both.size == 1 and both.item() else both


def _is_number(operand: Any) -> bool:
    return _literal(str(operand)) is not None


def _literal(text: str) -> int | None:
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return None
    try:
        return int(text.rstrip("Uu"), 0)
    except ValueError:
        return {"true": 1, "false": 0}.get(text)


def _logical(name: str, flags: list[Array]) -> Array:
    if name == "not":
        return ~flags[0]
    if name == "mov":
        return flags[0]
    of = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[name]
    return shrunk(of(flags[0], flags[1]))


def width_of(instruction: Instruction) -> int:
    """Bytes that a lane moves."""
    if instruction.name in ("ldmatrix", "stmatrix"):
        return 16
    count = next((int(part[1:]) for part in instruction.opcode if re.fullmatch(r"v\d", part)), 1)
    for part in reversed(instruction.opcode):
        match = re.fullmatch(r"[a-z]+?(\d+)(x2)?", part)
        if match is not None and part[0] in "bsuf" and int(match[1]) in (8, 16, 32, 64, 128):
            return count * int(match[1]) // 8 * (2 if match[2] else 1)
    return count * 4


def _special(settings: Settings, coordinates: Array) -> dict[str, Value]:
    """Special registers: a row of lanes, a column of CTAs, or one number."""
    x, y, z = settings.block
    lane = np.arange(x * y * z, dtype=np.int64)
    values: dict[str, Value] = {
        "%tid.x": (lane % x)[None, :],
        "%tid.y": (lane // x % y)[None, :],
        "%tid.z": (lane // (x * y))[None, :],
        "%laneid": (lane % WARP)[None, :],
        "%warpid": (lane // WARP)[None, :],
        "%nwarpid": number(-(-lane.size // WARP)),
        "%lanemask_lt": ((1 << (lane % WARP)) - 1)[None, :],
        "WARP_SZ": number(WARP),
        "%cluster_ctarank": number(0),
        "%cluster_nctarank": number(1),
        "%is_explicit_cluster": number(0),
    }
    for place, axis in enumerate("xyz"):
        values[f"%ctaid.{axis}"] = coordinates[:, place : place + 1].astype(np.int64)
        values[f"%nctaid.{axis}"] = number(settings.grid[place])
        values[f"%ntid.{axis}"] = number(settings.block[place])
        values[f"%clusterid.{axis}"] = values[f"%ctaid.{axis}"]
        values[f"%nclusterid.{axis}"] = values[f"%nctaid.{axis}"]
        values[f"%cluster_ctaid.{axis}"], values[f"%cluster_nctaid.{axis}"] = number(0), number(1)
    return values

"""What the lanes of many CTAs compute: the values of registers after each integer and predicate instruction.

A value is one number, a row of lanes, a column of CTAs, a sum of both or a whole table (`iosim.code.ptx_values`).
Floating point and what is loaded are not known. How a kernel goes from instruction to instruction is
`iosim.code.ptx_run`'s, what its loads and stores touch `iosim.code.ptx_memory`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iosim.base.records import dataclass
from iosim.code import ptx_operations as operations
from iosim.code.ptx import Entry, Instruction
from iosim.code.ptx_fold import Bent, Compared, Recorded
from iosim.code.ptx_operations import Kind, kind_of
from iosim.code.ptx_trace import Trace
from iosim.code.ptx_values import (
    Array,
    Known,
    Value,
    lanes_of,
    merged,
    number,
    plus,
    shrunk,
    signed,
    unsigned,
    whole,
)
from iosim.code.ptx_words import BENDS, OPAQUE, UNEVEN, WARP, is_number, literal, uneven_name

ALL = np.ones((1, 1), dtype=bool)
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


class Lanes:
    """Registers of one batch of CTAs, and what instructions make of them."""

    def __init__(self, entry: Entry, settings: Settings, coordinates: Array) -> None:
        self.entry, self.settings = entry, settings
        self.trace = Trace(coordinates)
        self.ctas, self.lanes = coordinates.shape[0], int(np.prod(settings.block))
        self.registers: dict[str, Value] = {}
        self.special = _special(settings, coordinates)
        self.record: list[Recorded] = []
        self.is_recording = False
        """Inside a loop, where comparisons and bends say whether its trips repeat."""
        self._numbers: dict[str, Array] = {}
        self._live = frozenset().union(*entry.flow.live.values())

    def _note(self, text: str) -> None:
        self.trace.notes[text] = self.trace.notes.get(text, 0) + 1

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
        value = literal(text)
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
        # Lanes that are not in the group keep what they had, where anybody reads it later.
        if mask is not ALL and (guarded or name in self._live):
            value = merged(mask, value, self.registers.get(name))
        self.registers[name] = value

    def _results(self, at: int, instruction: Instruction, mask: Array) -> list[tuple[str, Value]]:
        """(register, value) of what an instruction writes."""
        first = instruction.operands[0]
        name, opcode = instruction.name, instruction.opcode
        if isinstance(first, tuple):
            return self._unpacked(instruction, first)
        written = first.split("|")
        if name in ("setp", "set"):
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
        elif name in UNEVEN and ("hi" in opcode or not is_number(instruction.operands[2])):
            # What is added to a product bends nothing.
            self._keep(Bent(at, uneven_name(opcode), tuple(v[:2]), mask))
        if name in operations.TWO:
            return operations.TWO[name](v[0], v[1], kind)
        if name in ("mul", "mul24"):
            return operations.multiply(opcode, v[0], v[1])
        if name in ("mad", "mad24"):
            return _multiply_add(kind, opcode, v)
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
        if self.is_recording:
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
        values = [self._get(str(operand).lstrip("!")) for operand in instruction.operands[1:]]
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
        if instruction.name == "set":  # into a number: all of its bits, or none
            return [(written[0], np.where(result, -1, 0))]
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
        # shfl: lanes outside of the warp keep their own value (PTX ISA, shfl.sync).
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


def _multiply_add(kind: Kind, opcode: tuple[str, ...], v: list[Any]) -> Value:
    """The product, as wide as the instruction says, and the sum."""
    bits = (
        64
        if "wide" in opcode and kind.bits == 32
        else 2 * kind.bits
        if "wide" in opcode
        else kind.bits
    )
    return operations.add(operations.multiply(opcode, v[0], v[1]), v[2], Kind(kind.letter, bits))


def _logical(name: str, flags: list[Array]) -> Array:
    if name == "not":
        return ~flags[0]
    if name == "mov":
        return flags[0]
    of = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[name]
    return shrunk(of(flags[0], flags[1]))


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

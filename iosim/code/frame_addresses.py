"""Where in a thread's frame a load or store lies that adds registers to an address: worked out along the instructions.

A local array in a loop that is not unrolled is addressed by the stack pointer plus the loop's counter times a size, in a
handful of integer instructions (MOV, IADD3, LEA, IMAD, SHF, LOP3 and their uniform twins). They are followed with whole
numbers, the stack pointer among them; what comes from memory, from special registers or from any other instruction is
not known, and neither is what is worked out of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from iosim.code.listing import Instruction

STACK_POINTER = "R1"
STACK_AT = 1 << 24
"""The number that stands for the stack pointer: far from any constant, so that what is near it is a frame's address."""
LARGEST_FRAME = 1 << 19
"""Bytes of local memory a thread may have (CUDA C++ Programming Guide, technical specifications)."""
ALWAYS = ("", "PT", "UPT")
ZERO = ("RZ", "URZ", "UPT", "PT")
NUMBER = re.compile(r"^-?0x[0-9a-f]+$|^-?\d+$")
REGISTER = re.compile(r"^(-?)(U?R(?:\d+|Z))(?:\.reuse|\.U32|\.64)*$")
PREDICATE = re.compile(r"^!?U?P(?:\d|T)$")
MASK = (1 << 32) - 1
Values = Sequence[int]


class FrameRegisters:
    """Registers of a thread as far as their values are known."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {STACK_POINTER: STACK_AT, "RZ": 0, "URZ": 0}

    def run(self, instructions: Iterable[Instruction]) -> None:
        """Follows instructions in their order."""
        for instruction in instructions:
            self.step(instruction)

    def step(self, instruction: Instruction) -> None:
        """Follows one instruction: what it writes is known or forgotten."""
        target = REGISTER.match(instruction.operands[0]) if instruction.operands else None
        if target is None or target[2] == STACK_POINTER:
            return
        value = self._result(instruction) if instruction.predicate in ALWAYS else None
        for name in _written(instruction, target[2]):
            self._values.pop(name, None)
        if value is not None:
            self._values[target[2]] = value

    def place(self, instruction: Instruction) -> int | None:
        """Bytes from the stack pointer to where a local load or store begins; None where that is not known."""
        address = next((o for o in instruction.operands if o.startswith("[")), None)
        if address is None:
            return None
        total = 0
        # An address is a sum of registers and a constant, which may be below 0.
        for term in address.strip("[]").replace("+-", "+ -").split("+"):
            value = self._value(term.strip()) if term.strip() else 0
            if value is None:
                return None
            total += value
        offset = total - STACK_AT
        return offset if abs(offset) < LARGEST_FRAME else None

    def _value(self, operand: str) -> int | None:
        if NUMBER.match(operand):
            return int(operand, 0)
        register = REGISTER.match(operand)
        if register is None:
            return None
        value = self._values.get(register[2])
        return -value if value is not None and register[1] else value

    def _result(self, instruction: Instruction) -> int | None:
        """What an instruction writes, where it makes an address and all its operands are known."""
        operation = OPERATIONS.get(instruction.kind)
        if operation is None or {"X", "HI", "WIDE"} & set(instruction.modifiers):
            return None
        operands = [o for o in instruction.operands[1:] if not PREDICATE.match(o)]
        values = [self._value(o) for o in operands]
        known = [v for v in values if v is not None]
        if len(known) < len(values):
            return None
        try:
            return operation(known)
        except (IndexError, ValueError):  # a form of it that is not known here
            return None


def _written(instruction: Instruction, first: str) -> list[str]:
    """Registers that an instruction writes, from the first on."""
    # Wide results fill registers one behind the other.
    wide = {"64": 2, "WIDE": 2, "128": 4}
    count = max((wide.get(word, 1) for word in instruction.modifiers), default=1)
    if first in ZERO:
        return []
    letters, number = first.rstrip("0123456789"), int(first.lstrip("UR"))
    return [f"{letters}{number + n}" for n in range(count)]


def _multiplied(v: Values) -> int:
    return v[0] * v[1] + v[2]


def _shifted_sum(v: Values) -> int:
    """LEA: the first operand times a power of two, plus the second."""
    return (v[0] << v[2]) + v[1]


def _shifted(v: Values) -> int:
    """SHF.L: of the low register, where nothing is shifted in from the high one."""
    if v[2]:
        raise ValueError("bits of a second register")
    return v[0] << v[1]


def _logic(v: Values) -> int:
    """LOP3.LUT: a truth table over the bits of three operands (PTX ISA, lop3)."""
    a, b, c = (x & MASK for x in v[:3])
    result = 0
    # Each set bit of the table is one combination of the three operands' bits that gives 1.
    for row in range(8):
        if v[3] >> row & 1:
            bits = a if row & 4 else ~a
            bits &= b if row & 2 else ~b
            result |= bits & (c if row & 1 else ~c)
    return result & MASK


OPERATIONS: dict[str, Callable[[Values], int]] = {
    "MOV": lambda v: v[0],
    "UMOV": lambda v: v[0],
    "R2UR": lambda v: v[0],
    "IADD3": sum,
    "UIADD3": sum,
    "VIADD": sum,
    "IMAD": _multiplied,
    "UIMAD": _multiplied,
    "LEA": _shifted_sum,
    "ULEA": _shifted_sum,
    "SHF": _shifted,
    "USHF": _shifted,
    "LOP3": _logic,
    "ULOP3": _logic,
}

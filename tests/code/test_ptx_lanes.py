"""What is written down of the instructions inside a loop, which decides whether its trips repeat."""

from __future__ import annotations

import pytest

from iosim.code.ptx import Instruction
from iosim.code.ptx_fold import Bent
from iosim.code.ptx_lanes import ALL, Lanes
from iosim.code.ptx_values import number


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("add.s32 d a b", []),
        ("neg.s32 d a", []),
        ("mul.lo.s32 d a b", ["mul"]),
        ("mul.lo.s32 d a 3", []),  # by a number: as even as what it is of
        ("mul.hi.u32 d a 3", ["high"]),  # a high half is a quotient
        ("mad.lo.s32 d a b c", ["mul"]),
        ("shl.b32 d a b", ["shl"]),
        ("shl.b32 d a 2", []),
        ("and.b32 d a 7", ["and"]),
        ("min.s32 d a b", ["lt"]),
    ],
)
def test_bends_are_written_down(text: str, names: list[str]) -> None:
    opcode, *operands = text.split()
    instruction = Instruction(tuple(opcode.split(".")), tuple(operands))
    lanes = Lanes.__new__(Lanes)
    lanes.record, lanes.is_recording = [], True
    lanes._integer(0, instruction, [number(n) for n in (5, 3, 2)[: len(operands) - 1]], ALL)
    written = [step.name if isinstance(step, Bent) else step.word for step in lanes.record]
    assert written == names

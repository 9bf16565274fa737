"""Places in a thread's frame."""

from __future__ import annotations

from pathlib import Path

import pytest
from listings import function

from iosim.code.frame_addresses import FrameRegisters


@pytest.mark.parametrize(
    ("line", "offset"),
    [
        ("MOV R2, R1", 0),
        ("VIADD R2, R1, 0x40", 0x40),
        ("IADD3 R2, P0, R1, 0x10, R3", 0x1C),
        ("IMAD R2, R3, 0x8, R1", 0x60),
        ("LEA R2, R3, R1, 0x2", 0x30),
        ("LOP3.LUT R2, R3, 0x8, RZ, 0xc0, !PT", None),  # 8: a number, not a place in the frame
        ("IADD3.X R2, R1, 0x10, RZ, P0, !PT", None),
        ("@P0 MOV R2, R1", None),  # it may keep what it was
        ("LDC R2, c[0x0][0x28]", None),
    ],
)
def test_places_in_a_frame(line: str, offset: int | None, tmp_path: Path) -> None:
    lines = ["MOV R3, 0xc", line, "LDL R4, [R2]"]
    text = "".join(f"/*{16 * n:04x}*/ {line} ;\n" for n, line in enumerate(lines))
    *before, load = function(text, tmp_path).instructions
    registers = FrameRegisters()
    registers.run(before)
    assert registers.place(load) == offset

"""Opcodes as data: a class and a unit each, widths and products in their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from listings import function

from iosim.code.opcodes import lane_bytes, least_wavefronts, operation, operations_table, product


@pytest.mark.parametrize(
    ("text", "unit", "cycles"),
    [
        ("FFMA R1, R2, R3, R4", "fma", {75: 2, 80: 2, 86: 1, 90: 1}),
        ("IMAD R1, R2, R3, R4", "fmaheavy", {75: 2, 90: 2}),
        ("MUFU.EX2 R1, R2", "xu", {75: 8, 90: 8}),
        ("UIADD3 UR4, UR5, 0x1, URZ", "uniform", {90: 2}),
    ],
)
def test_opcodes_are_data(tmp_path: Path, text: str, unit: str, cycles: dict[int, int]) -> None:
    instruction = function(f"/*0000*/ {text} ;\n", tmp_path).instructions[0]
    assert operation(instruction, 90).unit == unit
    assert {cc: operation(instruction, cc).cycles for cc in cycles} == cycles
    assert operation(instruction, 89) == operation(instruction, 86)


def test_the_table_of_opcodes_holds_a_class_and_a_unit_each() -> None:
    for opcode, by_cc in operations_table().items():
        for entry in by_cc.values():
            assert entry.group, opcode
            assert entry.unit, opcode


@pytest.mark.parametrize(
    ("text", "width", "wavefronts"),
    [
        ("LDS.128 R4, [R2]", 16, 4),
        ("LDS.U16 R4, [R2]", 2, 1),
        ("LDSM.16.M88.4 R4, [R2]", 16, 4),
        ("LDSM.16.MT88.2 R4, [R2]", 8, 2),
        ("LDG.E.LTC128B.64 R4, desc[UR8][R2.64]", 8, 2),
        ("STS [R2], R4", 4, 1),
    ],
)
def test_widths_stand_in_the_opcode(tmp_path: Path, text: str, width: int, wavefronts: int) -> None:
    instruction = function(f"/*0000*/ {text} ;\n", tmp_path).instructions[0]
    assert (lane_bytes(instruction), least_wavefronts(instruction)) == (width, wavefronts)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("HMMA.16816.F32.BF16 R8, R4, R6, R8", (16, 8, 16, "bf16")),
        ("HMMA.1688.F32.TF32 R8, R4, R6, R8", (16, 8, 8, "tf32")),
        ("HGMMA.64x128x16.F32.BF16 R8, gdesc[UR4], R8, gsb0", (64, 128, 16, "bf16")),
        ("IMMA.16832.S8.S8 R8, R4, R6, R8", (16, 8, 32, "int8")),
        ("HMMA.1688.F32 R8, R4, R6, R8", (16, 8, 8, "fp16")),
    ],
)
def test_products_stand_in_the_opcode(
    tmp_path: Path, text: str, shape: tuple[int, int, int, str]
) -> None:
    product_shape = product(function(f"/*0000*/ {text} ;\n", tmp_path).instructions[0])
    assert product_shape is not None
    assert (
        product_shape.rows,
        product_shape.columns,
        product_shape.depth,
        product_shape.dtype,
    ) == shape

"""What an instruction is: its class, the unit that runs it and for how long, bytes a lane moves, which product.

Cycles are those for which one of an SM's four parts is taken by a warp's instruction: 32 lanes over the results a cycle
and SM of the CUDA C++ Programming Guide's table of arithmetic throughput, a quarter of them a part. Those of the memory
and of the matrix units depend on what is moved and multiplied, and have none in the table.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from iosim.base.records import dataclass
from iosim.code.listing import Instruction

FILE = Path(__file__).with_name("opcodes.csv")
WARP = 32
ARCHITECTURES = (75, 80, 86, 90, 100, 120)
"""Compute capabilities with a column of their own; others are read in the nearest one below."""
WORD_BYTES = 4
WAVEFRONT_BYTES = 128
"""What shared memory gives a warp in a cycle of an SM."""
WIDTHS = {
    "8": 1,
    "U8": 1,
    "S8": 1,
    "16": 2,
    "U16": 2,
    "S16": 2,
    "32": 4,
    "64": 8,
    "128": 16,
    "256": 32,
}
MATRIX_LOADS = ("LDSM", "STSM")
MATRICES = ("1", "2", "4")
"""How many of them such a load takes, each a word of a lane."""
SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)")
PRODUCTS = {
    "884": (8, 8, 4),
    "1684": (16, 8, 4),
    "1688": (16, 8, 8),
    "16816": (16, 8, 16),
    "16832": (16, 8, 32),
    "16864": (16, 8, 64),
    "8816": (8, 8, 16),
    "8832": (8, 8, 32),
    "168128": (16, 8, 128),
    "168256": (16, 8, 256),
}
"""Shapes of mma.sync as opcodes write them: rows, columns, depth."""
TYPES = {
    "F16": "fp16",
    "BF16": "bf16",
    "TF32": "tf32",
    "E4M3": "fp8",
    "E5M2": "fp8",
    "S8": "int8",
    "U8": "int8",
    "S4": "int4",
    "U4": "int4",
    "F32": "fp32",
    "F64": "fp64",
}
OWN_UNIT = ("HGMMA", "QGMMA", "IGMMA", "BGMMA")
"""Products that run beside what their warp does next; the four warps of a group each issue them."""


@dataclass(frozen=True)
class Operation:
    """What the table says of an opcode."""

    group: str
    """Its class, such as fp32 or shared-load."""
    unit: str
    cycles: float
    """For which a part of an SM is taken; 0 where that depends on what it moves or multiplies."""
    known: bool = True


@dataclass(frozen=True)
class Product:
    """A matrix product of one instruction."""

    rows: int
    columns: int
    depth: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.columns * self.depth


UNKNOWN = Operation("unknown", "control", 1.0, known=False)


@cache
def operations_table() -> Mapping[str, Mapping[int, Operation]]:
    """The table: opcode -> compute capability -> what it is there."""
    rows = {}
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows[row["opcode"]] = {
                cc: Operation(row["class"], row["unit"], float(row[f"cc{cc}"] or 0))
                for cc in ARCHITECTURES
            }
    return rows


def column(cc: int) -> int:
    """The compute capability whose column holds for `cc`."""
    return max((a for a in ARCHITECTURES if a <= cc), default=ARCHITECTURES[0])


@cache
def _operation(kind: str, cc: int) -> Operation:
    rows = operations_table()
    row = rows.get(kind)
    if row is None and kind.startswith("U") and kind[1:] in rows:
        row = rows["U*"]
    return row[column(cc)] if row is not None else UNKNOWN


def operation(instruction: Instruction, cc: int) -> Operation:
    """What an instruction is on a GPU; one that the table does not have is not `known`."""
    return _operation(instruction.kind, cc)


def lane_bytes(instruction: Instruction) -> int:
    """Bytes that a lane of a load or store moves."""
    if instruction.kind in MATRIX_LOADS:
        return WORD_BYTES * next((int(m) for m in instruction.modifiers if m in MATRICES), 1)
    # of LDG.E.U16.CONSTANT and LDG.E.LTC128B.128 the last width counts: what comes before it names a cache's line
    return next((WIDTHS[m] for m in reversed(instruction.modifiers) if m in WIDTHS), WORD_BYTES)


def least_wavefronts(instruction: Instruction) -> int:
    """Wavefronts of shared memory that an instruction of a whole warp takes where no bank is asked twice."""
    return max(1, WARP * lane_bytes(instruction) // WAVEFRONT_BYTES)


def product(instruction: Instruction) -> Product | None:
    """The product of a matrix instruction; None where its shape is not in its opcode, or it is none."""
    words = instruction.modifiers
    dtype = next((TYPES[w] for w in words if w in TYPES and w != "F32"), "fp16")
    if instruction.kind == "DMMA":  # which names no type
        dtype = "fp64"
    for word in words:
        if sides := SHAPE.fullmatch(word):
            return Product(int(sides[1]), int(sides[2]), int(sides[3]), dtype)
        if word in PRODUCTS:
            return Product(*PRODUCTS[word], dtype)
    return None

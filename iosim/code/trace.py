"""Instructions as what a warp does with the units of its SM: the trace that a time model plays.

`MemoryUse` says of an instruction that reads or writes memory how its lanes' addresses lie; without it neighbouring
lanes are taken to ask for neighbouring words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from iosim.base.records import replace
from iosim.code.listing import Instruction
from iosim.code.opcodes import (
    OWN_UNIT,
    WARP,
    Operation,
    lane_bytes,
    least_wavefronts,
    operation,
    product,
)
from iosim.kernel.machine import LINE_BYTES, SECTOR_BYTES, MemoryUse, Slot

TAKEN_BRANCH_CYCLES = 12
"""Cycles for which a warp waits behind a branch that it takes, beside those in the code: the mean of four ways through
a branch of two sides, of one warp (h200_branches.csv, ways `small` and `large` of 8 and 32 elements)."""
SHARED = ("shared-load", "shared-store", "shared-atomic", "shuffle")
LOADS = ("global-load", "local-load", "shared-load", "constant-load", "shuffle", "tensor-memory")
COUNT = re.compile(r"^(?:0x)?([0-9a-f]+)$")


def default_use(instruction: Instruction, group: str) -> MemoryUse:
    """Neighbouring lanes ask for neighbouring words: no bank is asked twice, and sectors are whole."""
    bytes_moved = WARP * lane_bytes(instruction)
    if group == "shuffle":
        return MemoryUse(0, 0, 1)
    if group in SHARED:
        return MemoryUse(0, 0, least_wavefronts(instruction))
    lines = max(1, bytes_moved // LINE_BYTES)
    wavefronts = lines if group == "global-copy" else 0
    return MemoryUse(max(1, bytes_moved // SECTOR_BYTES), lines, wavefronts)


def slot(instruction: Instruction, cc: int, use: MemoryUse | None = None) -> Slot:
    """An instruction on a GPU."""
    operation_of, control = operation(instruction, cc), instruction.control
    if instruction.predicate == "!PT":
        operation_of = Operation("control", "control", 1.0)
    flops, dtype = 0.0, ""
    if operation_of.group == "product" and (shape := product(instruction)) is not None:
        beside = instruction.kind in OWN_UNIT
        flops, dtype = shape.flops / (4 if beside else 1), shape.dtype
    if use is None and operation_of.unit == "lsu":
        use = default_use(instruction, operation_of.group)
    return Slot(
        operation_of.group,
        operation_of.unit,
        operation_of.cycles,
        max(1, control.stall),
        control.sets,
        control.frees,
        control.waits,
        use,
        flops,
        dtype,
        instruction.kind in OWN_UNIT,
        _leaves(instruction),
        _closes(instruction, operation_of.group),
        _conflicts(instruction, operation_of.group, use),
    )


def _conflicts(instruction: Instruction, group: str, use: MemoryUse | None) -> float:
    """Wavefronts of an access to shared memory that banks add which are asked more than once."""
    if use is None or group not in ("shared-load", "shared-store", "shared-atomic"):
        return 0.0
    return max(0.0, use.wavefronts - least_wavefronts(instruction))


def _leaves(instruction: Instruction) -> int | None:
    """How many groups may stay behind DEPBAR.LE SB0, 0x1 (copies) or WARPGROUP.DEPBAR.LE gsb0, 0x0 (products)."""
    if instruction.kind not in ("DEPBAR", "WARPGROUP") or "LE" not in instruction.modifiers:
        return None
    count = COUNT.match(instruction.operands[1]) if len(instruction.operands) > 1 else None
    return int(count[1], 16) if count else 0


def _closes(instruction: Instruction, group: str) -> bool:
    """LDGDEPBAR, and HGMMA with gsb0 among its operands."""
    return group == "commit" or (
        instruction.kind in OWN_UNIT and any("gsb" in operand for operand in instruction.operands)
    )


def trace(
    instructions: Iterable[Instruction],
    cc: int,
    use_of: Callable[[Instruction], MemoryUse | None] = lambda _: None,
) -> tuple[Slot, ...]:
    """Instructions one after the other; the first is taken to follow the last where this branches to it."""
    way = list(instructions)
    slots = [slot(instruction, cc, use_of(instruction)) for instruction in way]
    for n, (instruction, after) in enumerate(zip(way, way[1:] + way[:1], strict=True)):
        if instruction.target is not None and instruction.target == after.address:
            slots[n] = replace(slots[n], stall=slots[n].stall + TAKEN_BRANCH_CYCLES)
    return tuple(slots)

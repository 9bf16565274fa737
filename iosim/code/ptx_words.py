"""Words of the PTX: which instructions decide no address, what an operand or an address says, how wide an access is.

Nothing here knows of lanes (`iosim.code.ptx_lanes`).
"""

from __future__ import annotations

import re
from typing import Any

from iosim.code.ptx import Instruction

WARP = 32
ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]")
# Results of these are floating point, or nothing that an address is made of.
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
# These write no register that an address is made of.
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
MEMORY = ("ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix")
# Operations that do not keep differences: a fold of a loop must see that they repeat.
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


def uneven_name(opcode: tuple[str, ...]) -> str:
    """The name that an operation of two factors is recorded under: a shift, a high half or a product."""
    if opcode[0] == "shl":
        return "shl"
    return "high" if "hi" in opcode else "mul"


def is_number(operand: Any) -> bool:
    return literal(str(operand)) is not None


def literal(text: str) -> int | None:
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return None
    try:
        return int(text.rstrip("Uu"), 0)
    except ValueError:
        return {"true": 1, "false": 0}.get(text)


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

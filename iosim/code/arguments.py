"""What a kernel is launched with, as a user writes it: NAME=VALUE and NAME=TENSOR(shape,dtype).

    q=TENSOR(2x16x4096x64,fp16)   a tensor in memory of its own, contiguous
    n=4096  scale=0.125           a number
    starts=VALUES(int32,0,2000)   a tensor whose numbers decide addresses, such as lengths or a page table

Names may be those of the PTX's parameters; all others are taken in the order of the parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.code.ptx import Entry, Parameter
from iosim.code.ptx_values import Array

ELEMENT_BYTES = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint8": 1,
    "bool": 1,
}
LONG_NAMES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "i64": "int64",
    "i32": "int32",
    "half": "fp16",
    "float": "fp32",
    "int": "int32",
}
APART = 1 << 40
"""Bytes from the place of one tensor to that of the next."""
WORDS = re.compile(r"(TENSOR|VALUES)\((.*)\)", re.S)
SCRATCH = 2
"""Pointers that Triton adds behind a kernel's own parameters: scratch memory of the kernel and of its profiler."""


@dataclass(frozen=True)
class TensorArgument:
    """A tensor that a kernel is given a pointer to, contiguous unless the kernel's own strides say otherwise."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: tuple[int, ...] = ()
    """Its numbers, where they decide addresses."""

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.element_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of its last axis."""
        return self.shape[-1] * self.element_bytes if self.shape else self.element_bytes


Argument = TensorArgument | int | float


def dtype_named(word: str) -> str:
    """A type's own word. Raises InputError: it is not known."""
    name = LONG_NAMES.get(word, word)
    if name not in ELEMENT_BYTES:
        raise InputError(f"`arg` dtype '{word}' is not known; accepted: {', '.join(ELEMENT_BYTES)}")
    return name


def read_argument(text: str) -> tuple[str, Argument]:
    """One NAME=VALUE. Raises InputError: it is none, or its value makes no sense."""
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not name or not value:
        raise InputError(
            f"`arg` '{text}' is not of the form NAME=VALUE or NAME=TENSOR(shape,dtype)"
        )
    match = WORDS.fullmatch(value)
    if match is None:
        return name, _number(name, value)
    parts = [part.strip() for part in match[2].split(",") if part.strip()]
    if match[1] == "TENSOR":
        return name, _tensor(name, value, parts)
    if len(parts) < 2:
        raise InputError(
            f"`arg` {name} '{value}': accepted: VALUES(dtype,number,...), such as VALUES(int32,0,2000)"
        )
    numbers = tuple(n for part in parts[1:] for n in _values(name, part))
    return name, TensorArgument(name, (len(numbers),), dtype_named(parts[0]), numbers)


def _tensor(name: str, value: str, parts: list[str]) -> TensorArgument:
    sides = [side for part in parts[:-1] for side in part.split("x")]
    if not sides or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise InputError(
            f"`arg` {name} '{value}': accepted: TENSOR(shape,dtype), such as TENSOR(8x4096x128,bf16)"
        )
    return TensorArgument(name, tuple(int(side) for side in sides), dtype_named(parts[-1]))


def _values(name: str, part: str) -> Iterable[int]:
    """A whole number, or several as FIRST:END:STEP."""
    pieces = part.split(":")
    try:
        return range(*(int(p) for p in pieces)) if len(pieces) > 1 else [int(part, 0)]
    except (ValueError, TypeError):
        raise InputError(
            f"`arg` {name} '{part}' is no whole number; accepted: such as 2000, or 0:4096:1"
        ) from None


def _number(name: str, value: str) -> int | float:
    if value.lower() in ("true", "false"):
        return int(value.lower() == "true")
    try:
        return int(value, 0)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        accepted = "a number, TENSOR(shape,dtype) or VALUES(dtype,numbers)"
        raise InputError(f"`arg` {name} '{value}' is none of: {accepted}") from None


@dataclass(frozen=True)
class Bound:
    """Arguments beside a kernel's parameters: each parameter's value as the evaluation takes it, and the tensors in the
    order of their places in memory."""

    values: Mapping[str, int | None]
    tensors: tuple[TensorArgument, ...]

    @property
    def memory(self) -> Sequence[tuple[int, Array, int]]:
        return [
            (place(n), np.array(t.values, dtype=np.int64), t.element_bytes)
            for n, t in enumerate(self.tensors)
            if t.values
        ]


def place(number: int) -> int:
    """Where the tensor of this number begins."""
    return (number + 1) * APART


def bind(entry: Entry, arguments: Mapping[str, Any]) -> Bound:
    """The arguments beside the parameters of an entry. Raises InputError: too few or too many, or a tensor where a
    number is taken."""
    names = [p.name for p in entry.parameters]
    by_name: dict[str, Argument] = {name: arguments[name] for name in names if name in arguments}
    rest = [(name, value) for name, value in arguments.items() if name not in by_name]
    free = [name for name in names if name not in by_name]
    # Names that are no parameters' are taken in order; Triton adds up to two pointers that nobody gives.
    missing = len(free) - len(rest)
    optional = len([*takewhile(_is_pointer, reversed(entry.parameters[-SCRATCH:]))])
    if missing < 0 or missing > optional:
        needs = f"{len(names) - optional} to {len(names)}" if optional else f"{len(names)}"
        raise InputError(
            f"`arg` has {len(arguments)} values; kernel {entry.name} takes {needs}: "
            + ", ".join(f"{p.name} ({p.type})" for p in entry.parameters)
        )
    by_name |= {parameter: value for parameter, (_, value) in zip(free, rest, strict=False)}
    tensors: list[TensorArgument] = []
    values: dict[str, int | None] = {}
    for parameter in entry.parameters:
        value = by_name.get(parameter.name)
        if isinstance(value, TensorArgument):
            if parameter.size != 8:
                raise InputError(
                    f"`arg` {value.name} is a tensor, but parameter {parameter.name} is {parameter.type}"
                )
            values[parameter.name] = place(len(tensors))
            tensors.append(value)
        else:
            values[parameter.name] = value if isinstance(value, int) else None
    return Bound(values, tuple(tensors))


def _is_pointer(parameter: Parameter) -> bool:
    return parameter.size == 8

"""Number formats and their storage size."""

from __future__ import annotations

from iosim.base.errors import unknown_name
from iosim.base.records import dataclass


@dataclass(frozen=True)
class DType:
    """A storage format. `bytes` is what one element takes in memory."""

    name: str
    bytes: int


_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_DTYPES = {name: DType(name, size) for name, size in _BYTES.items()}

_ALIASES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "single": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "e4m3": "fp8",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
}

INPUT_DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")


def _key(name: str) -> str:
    key = str(name).strip().lower().removeprefix("torch.")
    return _ALIASES.get(key, key)


def is_dtype(name: str) -> bool:
    return _key(name) in _DTYPES


def dtype(name: str) -> DType:
    """The format called `name`, aliases such as `bfloat16` included. Raises InputError: no such format."""
    key = _key(name)
    if key not in _DTYPES:
        raise unknown_name("dtype", str(name), INPUT_DTYPES)
    return _DTYPES[key]

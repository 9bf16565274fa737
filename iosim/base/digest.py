"""A digest of values by their content: equal digests for equal values, in every process and on every machine.

Takes dataclasses by the fields that they are compared by, so that a field added later is part of the digest without a
word here. What is not known is refused, never written by its address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from iosim.base.records import fields, is_dataclass


def digest(value: Any) -> str:
    """64 hexadecimal digits of dataclasses, arrays, mappings (their order counts), sequences, enums and plain values.
    Raises TypeError: something else is among them."""
    pieces: list[bytes] = []
    _add(value, pieces.append)
    return hashlib.sha256(b"".join(b"%d:%b" % (len(piece), piece) for piece in pieces)).hexdigest()


def _add(value: Any, add: Callable[[bytes], None]) -> None:
    """Adds what a value consists of; each kind begins with its own letter, and says how many parts follow."""
    kind: Any = type(value)
    if (compared := _compared(kind)) is not None:
        begin, names = compared
        add(begin)
        for name, encoded in names:
            add(encoded)
            _add(getattr(value, name), add)
        return
    match value:
        case None | bool():
            add(repr(value).encode())
        case Enum():
            add(f"e{type(value).__qualname__}.{value.name}".encode())
        case int() | np.integer():
            add(b"i%d" % int(value))
        case float() | np.floating():
            # Every bit of a float, and the same for NumPy's: its decimal text may round.
            add(f"f{float(value).hex()}".encode())
        case str():
            add(b"s" + value.encode("utf-8", "surrogatepass"))
        case bytes():
            add(b"b" + value)
        case np.ndarray():
            if value.dtype.hasobject:
                raise TypeError("an array of objects has no digest")
            # Type and shape before the bytes: 4 x 2 zeros are not 2 x 4.
            add(f"a{value.dtype.str}{value.shape}".encode())
            add(np.ascontiguousarray(value).tobytes())
        case Mapping():
            add(b"m%d" % len(value))
            for key, element in value.items():
                _add(key, add)
                _add(element, add)
        case tuple() | list():
            add(b"t%d" % len(value))
            for element in value:
                _add(element, add)
        case _:
            raise TypeError(f"{type(value).__qualname__} has no digest")


@cache
def _compared(kind: Any) -> tuple[bytes, tuple[tuple[str, bytes], ...]] | None:
    """How a dataclass begins, and the fields that it is compared by; None of another type, and of enums."""
    record: Any = kind if is_dataclass(kind) else None
    if record is None or issubclass(record, Enum):
        return None
    names = [record_field.name for record_field in fields(record) if record_field.compare]
    return f"d{record.__qualname__} {len(names)}".encode(), tuple(
        (name, name.encode()) for name in names
    )

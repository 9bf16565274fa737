"""A digest of values by their content: equal digests for equal values, in every process and on every machine.

Takes dataclasses by the fields that they are compared by, so that a field added later is part of the digest without a
word here. What is not known is refused, never written by its address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np

from iosim.base.records import fields, is_dataclass


def digest(value: Any) -> str:
    """64 hexadecimal digits of dataclasses, arrays, mappings (their order counts), sequences, enums and plain values.
    Raises TypeError: something else is among them."""
    text = hashlib.sha256()
    for piece in _pieces(value):
        text.update(b"%d:" % len(piece))
        text.update(piece)
    return text.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    """What a value consists of; each kind begins with its own letter, and says how many parts follow."""
    match value:
        case None | bool():
            yield repr(value).encode()
        case Enum():
            yield f"e{type(value).__qualname__}.{value.name}".encode()
        case int() | np.integer():
            yield f"i{int(value)}".encode()
        case float() | np.floating():
            yield f"f{float(value).hex()}".encode()
        case str():
            yield b"s" + value.encode("utf-8", "surrogatepass")
        case bytes():
            yield b"b" + value
        case np.ndarray():
            if value.dtype.hasobject:
                raise TypeError("an array of objects has no digest")
            yield f"a{value.dtype.str}{value.shape}".encode()
            yield np.ascontiguousarray(value).tobytes()
        case Mapping():
            yield f"m{len(value)}".encode()
            for key, one in value.items():
                yield from _pieces(key)
                yield from _pieces(one)
        case tuple() | list():
            yield f"t{len(value)}".encode()
            for one in value:
                yield from _pieces(one)
        case _ if is_dataclass(value) and not isinstance(value, type):
            compared = [each.name for each in fields(value) if each.compare]
            yield f"d{type(value).__qualname__} {len(compared)}".encode()
            for name in compared:
                yield name.encode()
                yield from _pieces(getattr(value, name))
        case _:
            raise TypeError(f"{type(value).__qualname__} has no digest")

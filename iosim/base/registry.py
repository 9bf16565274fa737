"""Things that modules register under a name as they are loaded."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from iosim.base.errors import InputError, unknown_name

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Registry(dict[Key, Value]):
    """Values by name; `what` says what they are, for messages."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def put(self, name: Key, value: Value, override: bool = False) -> None:
        if name in self and not override:
            raise InputError(f"{self.what} '{name}' is registered already; pass override=True to replace it")
        self[name] = value

    def named(self, name: Key) -> Value:
        if name not in self:
            raise unknown_name(self.what, str(name), map(str, self))
        return self[name]

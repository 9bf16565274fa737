"""Things that modules register under a name as they are loaded, which they are when one is asked for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from importlib import import_module
from typing import TypeVar

from iosim.base.errors import InputError, unknown_name

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Registry(dict[Key, Value]):
    """Values by name; `subject` says what they are, for messages, and `modules` which names each module registers."""

    def __init__(self, subject: str, modules: Mapping[str, Iterable[Key]] | None = None) -> None:
        super().__init__()
        self.what = subject
        self._module_of = {
            name: module for module, names in (modules or {}).items() for name in names
        }

    def names(self) -> tuple[Key, ...]:
        return tuple(sorted({*self, *self._module_of}, key=str))

    def _load(self, name: Key) -> None:
        if name not in self and name in self._module_of:
            import_module(self._module_of[name])

    def put(self, name: Key, value: Value, override: bool = False) -> None:
        self._load(name)
        if name in self and not override:
            raise InputError(
                f"{self.what} '{name}' is registered already; pass override=True to replace it"
            )
        self[name] = value

    def named(self, name: Key) -> Value:
        self._load(name)
        if name not in self:
            raise unknown_name(self.what, str(name), map(str, self.names()))
        return self[name]

"""The keys of a config.json as its class in transformers reads them: defaults behind them, numbers checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.schema import one_line
from iosim.integrations.models.presets import class_defaults


class Reading:
    """The keys of a config, with its class's defaults behind them."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self.type = str(config.get("model_type", ""))
        self.defaults: Mapping[str, Any] = class_defaults()["types"].get(self.type, {})
        self.filled: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}

    def get(self, *names: str) -> Any:
        """The value of the first of some names that is there and not null; else the class's default; else None."""
        for name in names:
            if self.config.get(name) is not None:
                self.seen[name] = self.config[name]
                return self.config[name]
        if any(name in self.config for name in names):
            return None  # a null is said
        for name in names:
            if name in self.defaults:
                self.filled[name] = self.defaults[name]
                return self.defaults[name]
        return None

    def whole(self, names: Sequence[str], what: str, high: int, needed: bool = True) -> int | None:
        """A whole number.

        Raises:
            InputError: it is missing and needed, no whole number, or out of range.
        """
        value = self.get(*names)
        if value is None:
            if not needed:
                return None
            kind = f" (model_type {one_line(self.type, 40)})" if self.type else ""
            raise InputError(f"`model` '{self.name}'{kind} says no {what}: {' or '.join(names)} is missing; accepted: "
                             "the "
                             "config.json of a transformer")  # fmt: skip
        key = next(name for name in names if name in self.seen or name in self.filled)
        if isinstance(value, bool) or not isinstance(value, int):
            shown = "a list" if isinstance(value, list) else one_line(repr(value), 40)
            raise InputError(f"`model` '{self.name}': {key} is {shown}; accepted: a whole number")
        if not 1 <= value <= high:
            raise InputError(f"`model` '{self.name}': {key} {value} is out of range; accepted: 1 to {high}")
        return value

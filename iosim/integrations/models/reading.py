"""The keys of a config, by what they are called, with its class's defaults behind them.

A number has had several names (`spellings.toml`), and a class has defaults for what a file leaves out
(`defaults.json`). What is looked up is remembered, so that a key that names layers and that nothing reads can be said.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.schema import Whole, one_line, refuse

HERE = Path(__file__).parent
MAX_LAYERS = 10_000
MAX_SIZE = 1 << 24
MAX_RATIO = 1000
"""Most that one width may be of another."""
ACCEPTED = "accepted: the config.json of a transformer"


def model_data(name: str) -> dict[str, Any]:
    """What one of the TOML files beside this one holds."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


SPELLINGS = model_data("spellings.toml")
FAMILIES = model_data("families.toml")
SIZES: Mapping[str, Sequence[str]] = SPELLINGS["sizes"]


@cache
def class_defaults() -> dict[str, Any]:
    """What a config.json means where it leaves a key out: `types` by model_type, and which of them are `encoders`,
    `both` encoder and decoder, or stand for `whole` models of several parts."""
    return dict(json.loads((HERE / "defaults.json").read_text(encoding="utf-8")))


def at(config: Mapping[str, Any], name: str) -> Any:
    """The value of a key, whose dots lead into tables; None where there is none."""
    value: Any = config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


class Reading:
    """The keys of a config, with its class's defaults behind them."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self.said_type = str(config.get("model_type") or "")
        # Models' own code has types in capitals (Dream), which the lists here have not.
        types = class_defaults()["types"]
        low = self.said_type if self.said_type in types else self.said_type.lower()
        self.type = FAMILIES["alike"].get(low, low)
        self.defaults: Mapping[str, Any] = types.get(self.type, {})
        self.facts = {
            fact
            for fact, types in FAMILIES["facts"].items()
            if {self.type, self.said_type} & {*types}
        }
        self.filled: dict[str, Any] = {}
        self.seen: set[str] = set()

    def with_own(self, layer_keys: Mapping[str, Any]) -> Reading:
        """These keys with those of one layer in place of them; what is looked up is remembered in one place."""
        reading = Reading({**self.config, **layer_keys}, self.name)
        reading.defaults, reading.filled, reading.seen = self.defaults, self.filled, self.seen
        return reading

    def refused(self, why: str) -> InputError:
        """An InputError that names the model."""
        return InputError(f"`model` '{self.name}'{why}")

    def get(self, *names: str) -> Any:
        """The value of the first of some names that is there and not null; else the class's default; else None."""
        for name in names:
            value = at(self.config, name)
            if value is not None:
                self.seen.add(name.partition(".")[0])
                return value
        if any(name in self.config for name in names):
            return None  # a null is said
        for name in names:
            if name in self.defaults:
                self.filled[name] = self.defaults[name]
                return self.defaults[name]
        return None

    def key_of(self, names: Sequence[str]) -> str:
        """The name under which a value was found."""
        written = (name for name in names if at(self.config, name) is not None)
        return next(written, None) or next(
            (name for name in names if name in self.defaults), names[0]
        )

    def whole(self, names: Sequence[str], high: int = MAX_SIZE, *, low: int = 1) -> int | None:
        """A whole number; None where there is none. Raises InputError: no whole number, or out of range. Lists that
        hold one number many times stand for it."""
        value = self.get(*names)
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            if value[0] is None:
                raise self.refused(f": {self.key_of(names)} lists null alone; {ACCEPTED}")
            value = value[0]
        if value is None:
            return None
        refuse(list(Whole(low, high).problems(value, self.key_of(names))), f"`model` '{self.name}'")
        return int(value)

    def size(self, size_name: str, high: int = MAX_SIZE) -> int | None:
        """A number by what it is called in `spellings.toml`."""
        return self.whole(SIZES[size_name], high)

    def size_of(self, key: str) -> int | None:
        """A number by the one key that holds it."""
        return self.whole((key,), MAX_SIZE)

    def needed(self, size_name: str, words: str, high: int = MAX_SIZE) -> int:
        """A number by what it is called. Raises InputError: it is missing, no whole number, or out of range."""
        return self.needed_of(SIZES[size_name], words, high)

    def needed_of(self, names: Sequence[str], words: str, high: int = MAX_SIZE) -> int:
        """A whole number by some names. Raises InputError: it is missing, no whole number, or out of range."""
        value = self.whole(names, high)
        if value is None:
            kind = f" (model_type {one_line(self.said_type, 40)})" if self.said_type else ""
            which = " or ".join(names[:4])
            raise self.refused(f"{kind} says no {words}: {which} is missing; {ACCEPTED}")
        return value

    def number(self, *names: str) -> int:
        """A whole number that may be 0, which also stands for a key that is missing or false."""
        value = self.get(*names)
        return 0 if value is None or value is False else (self.whole(names, MAX_SIZE, low=0) or 0)

    def ratio(self, *names: str) -> float | None:
        """A number that need not be whole; None where there is none, or it is no number from 0 to 1000."""
        value = self.get(*names)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 < value <= MAX_RATIO else None

    def flag(self, *names: str) -> bool:
        """True where a key is there and true. Raises InputError: it is neither true nor false."""
        value = self.get(*names)
        if value is None or value in (False, True):  # 0 and 1 stand for them
            return bool(value)
        said = f"{self.key_of(names)} {one_line(repr(value), 40)}"
        raise self.refused(f": {said} is no flag; accepted: true or false")

    def is_one_of(self, group: str) -> bool:
        """True where the model_type belongs to a group of `families.toml`'s facts."""
        return group in self.facts

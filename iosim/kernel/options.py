"""Options that one algorithm alone understands: a frozen dataclass an algorithm, declared beside it and checked here.

Options that every kernel may have, whatever its algorithm, are fields of `Kernel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, Self, TypeVar, get_args, get_type_hints

from iosim.base.errors import InputError, unknown_name
from iosim.base.records import MISSING, dataclass, field, fields
from iosim.base.schema import Spec, Table

Kind = TypeVar("Kind")


def number(default: int | None, low: int = 0, high: int | None = None, means: str = "") -> Any:
    """A field that holds a whole number from `low` to `high`, both included."""
    return field(default=default, metadata={"low": low, "high": high, "means": means})


def meaning(means: str, default: Any = MISSING) -> Any:
    """A field of another type that says what it means."""
    return field(default=default, metadata={"means": means})


@dataclass(frozen=True)
class AlgorithmOptions:
    """Options of an algorithm that has none; those of every other derive from it. Lists become tuples, and words become
    members of the field's enum, as the object is made. Raises InputError: a value of another type than its field's, or
    out of its range."""

    def __post_init__(self) -> None:
        options: Any = type(self)
        for name, (spec, hint) in _forms(options).items():
            value = getattr(self, name)
            # None is a value of its own: the algorithm decides.
            if value is None and NoneType in get_args(hint):
                continue
            plain = list(value) if isinstance(value, tuple) else value
            for problem in spec.problems(plain, name):
                raise InputError(f"option {problem}")
            object.__setattr__(self, name, _typed(hint, plain))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The options with these values, as a catalog file or a user names them. Raises InputError: a name that is none
        of the options, or a value that its option does not take."""
        names = [option.name for option in fields(cls)]
        for name in values:
            if name not in names:
                if not names:
                    raise InputError(f"option '{name}' is not known; accepted: none")
                raise unknown_name("option", name, names)
        return cls(**values)


_hints = cache(get_type_hints)


@cache
def _forms(options: Any) -> Mapping[str, tuple[Spec, Any]]:
    hints = _hints(options)
    return {name: (spec, hints[name]) for name, spec in Table.of(options).keys.items()}


def _typed(hint: Any, value: Any) -> Any:
    """A value that has been checked, with members of enums in place of words, and tuples in place of lists."""
    # A hint such as `tuple[Pass, ...] | None` names at most one enum: words become its members.
    kinds = [
        kind
        for kind in get_args(hint) or (hint,)
        if isinstance(kind, type) and issubclass(kind, StrEnum)
    ]
    convert = kinds[0] if kinds else lambda word: word
    return tuple(map(convert, value)) if isinstance(value, list) else convert(value)


def typed(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that are fields of a dataclass: words as members of their enums, lists as tuples."""
    hints = _hints(kind)
    return {
        name: _typed(hints[name], value)
        for name, value in values.items()
        if name in hints and value is not None
    }


def built(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """A dataclass of those of `values` that are its fields, typed; the others keep their defaults."""
    return kind(**typed(kind, values))

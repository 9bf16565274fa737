"""Options that one algorithm alone understands: a frozen dataclass an algorithm, declared beside it and checked here.

Options that every kernel may have, whatever its algorithm, are fields of `Kernel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from iosim.base.errors import InputError, unknown_name


def number(default: int | None, low: int = 0, high: int | None = None) -> Any:
    """A field that holds a whole number from `low` to `high`, both included."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True)
class AlgorithmOptions:
    """Options of an algorithm that has none; those of every other derive from it.

    Lists become tuples, and words become members of the field's enum, as the object is made.

    Raises:
        InputError: a value of another type than its field's, or out of its range.
    """

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for option in fields(self):
            value = _converted(option.name, hints[option.name], getattr(self, option.name))
            low, high = option.metadata.get("low"), option.metadata.get("high")
            if low is not None and value is not None and (value < low or (high is not None and value > high)):
                accepted = f"{low} to {high}" if high is not None else f"{low} or more"
                raise InputError(f"option {option.name} {value} is out of range; accepted: {accepted}")
            object.__setattr__(self, option.name, value)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The options with these values, as a catalog file or a user names them.

        Raises:
            InputError: a name that is none of the options, or a value that its option does not take.
        """
        names = [option.name for option in fields(cls)]
        for name in values:
            if name not in names:
                if not names:
                    raise InputError(f"option '{name}' is not known; accepted: none")
                raise unknown_name("option", name, names)
        return cls(**values)


_HINTS: dict[type[AlgorithmOptions], dict[str, Any]] = {}


def _hints(options: type[AlgorithmOptions]) -> dict[str, Any]:
    if options not in _HINTS:
        _HINTS[options] = get_type_hints(options)
    return _HINTS[options]


def _converted(name: str, hint: Any, value: Any) -> Any:
    """`value` as the field's type has it.

    Raises:
        InputError: it cannot be that.
    """
    if get_origin(hint) is UnionType:
        if value is None:
            return None
        (hint,) = (kind for kind in get_args(hint) if kind is not NoneType)
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if not isinstance(value, (list, tuple)):
            raise InputError(f"option {name} {value!r} is not a list")
        if kinds[-1] is not Ellipsis and len(value) != len(kinds):
            raise InputError(f"option {name} {value!r} has {len(value)} values; accepted: {len(kinds)}")
        return tuple(_converted(name, kinds[0], one) for one in value)
    if issubclass(hint, StrEnum):
        try:
            return hint(value)
        except ValueError:
            raise InputError(f"option {name} '{value}' is not known; accepted: {', '.join(hint)}") from None
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        words = {bool: "true or false", int: "a whole number"}
        raise InputError(f"option {name} {value!r} is not {words[hint]}")
    return value

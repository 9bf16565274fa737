"""Options made of what fields say of themselves, and messages that name the option in place of the field."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from iosim.base.errors import InputError, spelled
from iosim.base.fields import About, Kind, default_text
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import FIELDS

SPELLED = {said.name: said.option for said in (*FIELDS.values(), *OVERRIDES.values())} | {
    "profile": "--gpu", "profiles": "--gpu", "l2_start": "--l2", "path": "--out",
}  # fmt: skip
"""Name in Python -> option, where it is not the name with dashes; None where only Python can give it."""


def with_options(error: InputError) -> str:
    """An error's message as the command line says it: `page_size` 48 is --page-size 48."""
    return spelled(error.marked, _option)


def _option(name: str, value: str | None) -> str:
    option = SPELLED.get(name, f"--{name.replace('_', '-')}")
    if option is None:
        return name if value is None else f"{name} {value}"
    if value == "False":
        return f"--no-{option[2:]}"
    return option if value in (None, "True") else f"{option} {value}"


def whole(text: str) -> int:
    """argparse type for a whole number, k and m allowed."""
    from iosim.base.units import size

    try:
        return size(text, "value")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def signed(text: str) -> int:
    """argparse type for a whole number of either sign, k and m allowed."""
    from iosim.base.units import size

    try:
        return -size(text[1:], "value") if text.startswith("-") else size(text, "value")
    except InputError:
        raise argparse.ArgumentTypeError(f"value '{text}' is no whole number such as 128 or -4k") from None


def sides(text: str) -> tuple[int, int]:
    """argparse type for two sides, such as 128x64, or one that stands for both."""
    first, _, second = text.lower().partition("x")
    return whole(first.strip()), whole((second or first).strip())


def pair(text: str) -> tuple[int, int]:
    """argparse type for two sides, such as 128x64."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*[xX]\s*[0-9]{1,9}\s*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"value '{text}' is not of the form QxK, such as 128x64")
    return sides(text)


def fraction(text: str) -> float:
    """argparse type for a probability."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"value '{text}' is out of range; accepted: 0 <= P < 1")
    return value


def lengths(text: str) -> tuple[int, ...]:
    """argparse type for several lengths."""
    from iosim.base.units import sizes

    try:
        return tuple(sizes(text, "value"))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add(group: Any, table: Mapping[str, About], names: Iterable[str] | None = None, **usual: Any) -> None:
    """Options of the fields in `table`, or of those among `names`; `usual` are defaults in place of the fields' own.

    An option's value lies under its field's name in the parsed arguments.
    """
    for name in table if names is None else names:
        field = table[name]
        if field.option is not None:
            _add_one(group, field, usual.get(name, field.usual))


def without_defaults(table: Mapping[str, About], *names: str) -> dict[str, About]:
    """Some fields of a table, left open where they are not given."""
    return {name: replace(table[name], default=None, default_text="", usual=None) for name in names}


def _add_one(group: Any, field: About, usual: Any) -> None:
    default = field.default if usual is None else usual
    text = field.text(usual) if usual is not None else default_text(field)
    told = field.help + (f": {', '.join(field.words)}" if field.kind is Kind.WORD else "")
    told += f" (default: {text})" if text else ""
    names = (field.option, *field.spellings)
    if field.kind is Kind.FLAG:
        action: Any = "store_true" if field.default is False else argparse.BooleanOptionalAction
        group.add_argument(*names, dest=field.name, action=action, default=default, help=told)
        return
    group.add_argument(*names, dest=field.name, type=_type(field), default=default, metavar=field.metavar, help=told)


def _type(field: About) -> Any:
    if field.kind is Kind.WHOLE:
        return signed if field.low < 0 else whole
    if field.kind is Kind.SIDES:
        return sides if field.one_for_both else pair
    return {Kind.PROBABILITY: fraction, Kind.LENGTHS: lengths}.get(field.kind, str)

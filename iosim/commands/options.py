"""Options made of what fields say of themselves, lists of values, and messages that name the option of a field.

A list is written alike for every option that takes one: --x a,b means --x a --x b. An option that takes one value
refuses a second.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError, spelled
from iosim.base.fields import About, Kind, default_text
from iosim.base.records import replace
from iosim.base.units import sizes
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import FIELDS

SPELLED = {said.name: said.option for said in (*FIELDS.values(), *OVERRIDES.values())} | {
    "profile": "--gpu", "profiles": "--gpu", "l2_start": "--l2", "path": "--out",
    "gpus": "--num-gpus",
}  # fmt: skip
"""Name in Python -> option, where it is not the name with dashes; None where only Python can give it."""


def with_options(error: InputError) -> str:
    """An error's message as the command line says it: `page_size` 48 is --page-size 48."""
    return spelled(error.marked, _option)


def spelling(name: str) -> str:
    """The option that sets a field, as it is written."""
    return _option(name, None)


def typed(values: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give options these values."""
    words = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(_option(name, str(value)))
        else:
            listed = value if isinstance(value, list) else [value]
            texts = ("x".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in listed)
            words += [spelling(name), ",".join(texts)]
    return words


def _option(name: str, value: str | None) -> str:
    option = SPELLED.get(name, f"--{name.replace('_', '-')}")
    if option is None:
        return name if value is None else f"{name} {value}"
    if value == "False":
        return f"--no-{option[2:]}"
    return option if value in (None, "True") else f"{option} {value}"


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


GIVEN = "_given"
"""Where parsed arguments keep what options of one value were given."""


class Usual(list[Any]):
    """The default of an option that takes a list: the first value given stands in its place."""


class Several(argparse.Action):
    """An option that takes a list, and more of it where it is given again."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        earlier = [] if before is None or isinstance(before, Usual) else before
        setattr(namespace, self.dest, [*earlier, *values])


class Joined(argparse.Action):
    """An option whose list is read later, as text: given again, it goes on after a comma."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before in (None, self.default) else f"{before},{values}")


class One(argparse.Action):
    """An option that takes one value; a list, and a second value, are refused."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        given_before: dict[str, list[Any]] = vars(namespace).setdefault(GIVEN, {})
        many = given_before.setdefault(self.dest, [])
        many += values if isinstance(values, list) else [values]
        if len(many) > 1:
            shown = f"{option} {','.join(map(str, many))}"
            parser.error(f"{shown} are {len(many)} values; '{parser.prog}' takes one, so accepted: one of them")
        setattr(namespace, self.dest, many[0])


class OneName(One):
    """An option that takes one name of those that other commands take a list of."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        super().__call__(parser, namespace, names(values), option)


class Gone(argparse.Action):
    """A spelling of old that means something else today: refused with what to say in its place."""

    def __init__(self, instead: str, **settings: Any) -> None:
        super().__init__(**settings, help=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs="?")
        self.instead = instead

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        shown = option if values is None else f"{option} {values}"
        parser.error(f"{shown} is spelt another way; accepted: {self.instead}")


def add_names(
    group: Any, spelling: str, of_old: Sequence[str] = (), *, usual: str | None, several: bool, metavar: str = "NAME",
    help: str,
) -> None:  # fmt: skip
    """An option that takes a list of names, or one name of those that other commands take a list of; its value is None
    where there is no default."""
    settings: dict[str, Any] = {"action": OneName, "metavar": metavar, "help": help}
    if several:
        settings |= {"action": Several, "type": names, "metavar": f"{metavar},..."}
    group.add_argument(spelling, default=Usual(usual.split(",")) if several and usual else usual, **settings)
    add_spellings(group, spelling, of_old, **settings)


def add_spellings(group: Any, spelling: str, of_old: Sequence[str], **settings: Any) -> None:
    """Spellings that are understood and not shown: they set what `spelling` sets."""
    dest = settings.pop("dest", spelling.removeprefix("--").replace("-", "_"))
    if of_old:
        settings |= {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS, "dest": dest}
        group.add_argument(*of_old, **settings)


def add(
    group: Any, table: Mapping[str, About], names: Iterable[str] | None = None, *, several: Iterable[str] = (),
    **usual: Any,
) -> None:  # fmt: skip
    """Options of the fields in `table`, or of those among `names`; `usual` are defaults in place of the fields' own."""
    with_lists = set(several)
    for name in table if names is None else names:
        field = table[name]
        if field.option is not None:
            _add_one(group, field, usual.get(name, field.usual), name in with_lists)


def without_defaults(table: Mapping[str, About], *names: str) -> dict[str, About]:
    return {name: replace(table[name], default=None, default_text="", usual=None) for name in names}


def _add_one(group: Any, field: About, usual: Any, several: bool) -> None:
    default = field.default if usual is None else usual
    text = field.text(usual) if usual is not None else default_text(field) * (field.kind is not Kind.FLAG)
    unsaid = [word for word in field.words if word not in field.help]
    told = field.help + (f": {', '.join(field.words)}" if unsaid else "")
    told = spelled(f"{told} (default: {text})" if text else told, _option)
    settings: dict[str, Any] = {"dest": field.name, "help": told.replace("%", "%%")}
    if field.kind is Kind.FLAG and str(field.option).startswith("--no-"):
        settings |= {"action": "store_false", "help": f"without {field.help}"}
    elif field.kind is Kind.FLAG:
        settings["action"] = "store_true" if field.default is False else argparse.BooleanOptionalAction
    elif field.kind in (Kind.NAMES, Kind.NUMBERS):
        default = Usual(default) if default else None
        settings |= {"action": Several, "type": names, "metavar": field.metavar}
    elif field.kind is Kind.SIZES:
        settings |= {"action": Joined, "metavar": field.metavar}
    elif several:
        default = None if default is None else Usual([default])
        settings |= {"action": Several, "type": _reader(field, True), "metavar": f"{field.metavar},..."}
    else:
        settings |= {"action": One, "type": _reader(field, False), "metavar": field.metavar}
        if field.kind is Kind.WORD and field.normal is About.normal:
            settings["choices"] = field.words
    if field.bare is not None:
        settings |= {"nargs": "?", "const": field.bare}
    short = [spelling for spelling in field.spellings if not spelling.startswith("--")]
    group.add_argument(field.option, *short, default=default, **settings)
    add_spellings(group, str(field.option), [one for one in field.spellings if one not in short], **settings)


def _reader(field: About, several: bool) -> Callable[[str], Any]:
    """argparse type for a field's value, or for a list of them."""

    def read(text: str) -> Any:
        try:
            if not several:
                return field.read(text, "value")
            parts = text.split(",")
            return sizes(text, "value") if field.kind is Kind.WHOLE else [field.read(p.strip(), "value") for p in parts]
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read

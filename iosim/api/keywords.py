"""Keywords of the public functions: the command line's options in Python's spelling, made of the tables of fields.

An option is the keyword of its name: --seq-len is `seq_len`; `pass`, which Python keeps for itself, is `passes`, as the
field. What else the command line accepts for an option, and the field's own name, are accepted here, too.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from numbers import Real
from typing import Any, ParamSpec, SupportsIndex, TypeVar

from iosim.base.errors import InputError, spelled
from iosim.base.fields import MAX_SIZE, About, Kind, default_text, described
from iosim.base.names import alike
from iosim.base.schema import one_line
from iosim.base.scope import out_of_scope
from iosim.kernel.conditions import CONDITIONS
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import BESIDES, FIELDS
from iosim.studies import requests
from iosim.studies.formulas.names import CHOICES, SIZES

P = ParamSpec("P")
R = TypeVar("R")


def keyword_of(about: About) -> str:
    """The keyword that stands for a field's option."""
    bare = about.option is None or about.option.startswith("--no-")
    name = about.name if bare else str(about.option)[2:].replace("-", "_")
    return about.name if iskeyword(name) else name


PROBLEM = {keyword_of(about): about for about in FIELDS.values()}
"""Keyword -> field of the problem."""
SETTINGS = {keyword_of(about): about for about in OVERRIDES.values()}
"""Keyword -> setting over a kernel's own choice."""
SHORT = dict(BESIDES)
"""What says a problem besides its fields."""
FORMULA = {
    name: replace(about, default=None, usual=None, default_text="")
    if about.name in (*SIZES, "dtype", "splits", "tile", "mask") else about
    for name, about in (PROBLEM | SHORT | SETTINGS).items()
    if about.name in (*SIZES, *CHOICES, "dtype", "splits", "tile", "mask", "causal")
}  # fmt: skip
"""Keywords of a formula: sizes that are not given stay symbols."""


def by_keyword(request: Mapping[str, About], *positional: str) -> dict[str, About]:
    """Keyword -> field of what a command is asked for, but for those that a function takes by their place."""
    return {keyword_of(about): about for name, about in request.items() if name not in positional}


CONDITIONED = by_keyword(CONDITIONS)
"""Keyword -> how a call meets its GPU."""
LAYERED = by_keyword(requests.OF_MODEL)
COMPARED, TILED = by_keyword(requests.COMPARE), by_keyword(requests.TILES, "tile", "warps", "stages")
ONE_TILE = by_keyword(requests.TILES, "tile", "library", "compile", *requests.OF_MODEL)
ORDERED, CLAIMED = by_keyword(requests.ORDERS, "tile"), by_keyword(requests.CLAIM)
DECODE, LATENCY = by_keyword(requests.DECODE), by_keyword(requests.LATENCY, "stack")
RING, TRAIN = by_keyword(requests.RING, "num_gpus"), by_keyword(requests.TRAIN)
KEYWORD_OF = {about.name: name for name, about in (*PROBLEM.items(), *SETTINGS.items())} | {
    "profile": "gpu", "profiles": "gpu", "gpus": "gpu", "kernels": "kernel", "l2_start": "l2",
    "reserve_bytes": "reserve",
}  # fmt: skip
"""Name of a field or of a parameter further down -> the keyword that gives it."""
ALSO = KEYWORD_OF | {
    option[2:].replace("-", "_"): name for name, about in PROBLEM.items() for option in about.spellings
}
"""Other spelling -> keyword."""


_PUBLIC: dict[str, Sequence[str]] = {}
"""Keywords of the functions that have been loaded."""


def public(*tables: Mapping[str, About], skip: Iterable[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function with `**asked` show every keyword of `tables`, and lets its errors name keywords.

    Args:
        tables: keywords by name, whose values reach the function in `asked`.
        skip: keywords of them that the function does not take.
    """
    keywords = {name: about for table in tables for name, about in table.items() if name not in skip}

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        rest = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual(about), annotation=annotation(about))
            for name, about in keywords.items()
        ]
        whole_signature = signature.replace(parameters=[*own, *rest])
        named = [p.name for p in (*own, *rest) if p.kind is not inspect.Parameter.VAR_POSITIONAL]

        _PUBLIC[function.__name__] = named

        @functools.wraps(function)
        @in_keywords
        def called(*args: P.args, **given: P.kwargs) -> R:
            values = _by_keyword(function.__name__, given, named)
            check_types(dict(zip(named, args, strict=False)) | values, whole_signature, {p.name for p in own})
            return function(*args, **values)

        called.__signature__ = whole_signature  # type: ignore[attr-defined]
        called.__doc__ = _documented(function, keywords)
        return called

    return decorated


def in_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Lets a function's errors name keywords where what is further down names fields."""

    @functools.wraps(function)
    def called(*args: P.args, **given: P.kwargs) -> R:
        try:
            return function(*args, **given)
        except InputError as error:
            raise type(error)(spelled(error.marked, _keyword)) from None

    return called


def _functions_with(keyword: str) -> list[str]:
    """The functions that have a keyword."""
    for module in ("calls", "models"):
        importlib.import_module(f"{__package__}.{module}")
    return [name for name, keywords in _PUBLIC.items() if keyword in keywords]


def _keyword(name: str, value: str | None) -> str:
    """A marked name of a message, marked again by its keyword."""
    keyword = KEYWORD_OF.get(name, name)
    return f"`{keyword}`" if value is None else f"`{keyword}={value}`"


def _by_keyword(function: str, given: Mapping[str, Any], named: Sequence[str]) -> dict[str, Any]:
    """What a function was given, under the keywords' own names.

    Raises:
        InputError: a keyword that it does not have, or two spellings of one.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        keyword = name if name in named else ALSO.get(name, name)
        if keyword not in named:
            known = {n: n for n in named} | {other: own for other, own in ALSO.items() if own in named}
            near = ", ".join(dict.fromkeys(known[n] for n in alike(name, known)))
            others = ", ".join(f"iosim.{other}" for other in _functions_with(keyword))
            hint = (f"accepted by: {others}" if others else out_of_scope("option", name)
                    or (f"did you mean {near}?" if near else f"accepted: {', '.join(named)}"))  # fmt: skip
            raise InputError(f"{function}() has no keyword '{name}'; {hint}")
        if keyword in values:
            twice = " and ".join(n for n in given if keyword in (n, ALSO.get(n)))
            raise InputError(f"`{keyword}` is given twice, as {twice}; give one of them")
        values[keyword] = value
    return values


def check_types(values: Mapping[str, Any], signature: inspect.Signature, own: Collection[str]) -> None:
    """Refuse a value of a type that its keyword does not have, so that what is wrong is told by the keyword's name.

    Args:
        own: keywords whose default None does not stand for; None is the default of all others.

    Raises:
        InputError: one of them.
    """
    for name, value in values.items():
        parameter = signature.parameters.get(name)
        if parameter is None or (value is None and name not in own) or (value is not None and name in READ_LATER):
            continue
        kinds = str(parameter.annotation)
        if not any(_is(value, kind) for kind in re.sub(r"\[.*?\](?=$| )", "", kinds).split(" | ")):
            default = "" if value is not None else f", or without it: {parameter.default!r}"
            raise InputError(f"`{name}` {one_line(repr(value), 60)} is no value; accepted: {kinds}{default}")


READ_LATER = ("problem", "kernel", "gpu")
"""Keywords whose lists and objects have refusals of their own."""


def _is(value: object, kind: str) -> bool:
    """Whether a value has a type that an annotation names."""
    simple: dict[str, Callable[[], bool]] = {
        "None": lambda: value is None,
        "bool": lambda: isinstance(value, bool),
        "int": lambda: isinstance(value, SupportsIndex) and not isinstance(value, bool),
        "float": lambda: isinstance(value, Real) and not isinstance(value, bool),
        "str": lambda: isinstance(value, str | os.PathLike),
        "tuple": lambda: isinstance(value, tuple | list),
        "Sequence": lambda: isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping),
        "ModelLike": lambda: isinstance(value, str | os.PathLike | Mapping) or _is(value, "Model"),
    }
    return simple[kind]() if kind in simple else any(one.__name__ == kind for one in type(value).__mro__)


def usual(about: About) -> Any:
    """A keyword's default, which is the option's."""
    return about.default if about.usual is None else about.usual


TYPES = {
    Kind.WHOLE: "int | str", Kind.PROBABILITY: "float", Kind.FLAG: "bool", Kind.WORD: "str",
    Kind.SIDES: "tuple[int, int] | str", Kind.LENGTHS: "Sequence[int] | str", Kind.FILE: "str",
    Kind.OBJECT: "BlockMask", Kind.NUMBER: "float", Kind.TEXT: "str | float", Kind.NAMES: "str | Sequence[str]",
    Kind.SIZES: "int | str | Sequence[int | str]", Kind.NAME: "str", Kind.NUMBERS: "Sequence[float]",
}  # fmt: skip
LISTED = "int | str | Sequence[int | str]"
"""Type of a keyword that may hold several lengths."""


def annotation(about: About) -> str:
    """A keyword's type, as an annotation writes it."""
    if about.name == "seq_q":
        return LISTED
    either = f"int | {TYPES[about.kind]}" if about.one_for_both else TYPES[about.kind]
    return f"{either} | None" if usual(about) is None else either


def _documented(function: Callable[..., Any], keywords: Mapping[str, About]) -> str:
    """The function's docstring with a line for every keyword at the end of "Args:"."""
    text = inspect.cleandoc(function.__doc__ or "")
    rows = "\n".join(textwrap.indent(said(name, about), "    ") for name, about in keywords.items())
    head, mark, tail = text.partition("    **asked: ")
    if not mark:
        return text
    _, _, after = tail.partition("\n")
    return f"{head}{rows}\n{after}"


def said(name: str, about: About) -> str:
    """A keyword's line of a docstring: what it is, what is accepted, the default."""
    default = default_text(about, usual=True)
    any_size = about.kind is Kind.WHOLE and about.low <= 1 and about.high == MAX_SIZE
    accepted = "" if any_size or about.kind is Kind.FLAG or not about.accepted else f" ({about.accepted})"
    return f"{name}: {described(about)}{accepted}{f'; by default {default}' if default else ''}."

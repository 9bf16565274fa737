"""Keywords of the public functions: the command line's options in Python's spelling, made of the tables of fields.

An option is the keyword of its name: --seq-len is `seq_len`; `pass`, which Python keeps for itself, is `passes`, as the
field. What else the command line accepts for an option, and the field's own name, are accepted here, too.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from keyword import iskeyword
from typing import Any, ParamSpec, TypeVar

from iosim.base.errors import InputError, spelled
from iosim.base.fields import MAX_SIZE, About, Kind, default_text, described
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import FIELDS
from iosim.studies.formulas.names import CHOICES, SIZES

P = ParamSpec("P")
R = TypeVar("R")


def keyword_of(about: About) -> str:
    """The keyword that stands for a field's option."""
    name = about.name if about.option is None else about.option[2:].replace("-", "_")
    return about.name if iskeyword(name) else name


PROBLEM = {keyword_of(about): about for about in FIELDS.values()}
"""Keyword -> field of the problem."""
SETTINGS = {keyword_of(about): about for about in OVERRIDES.values()}
"""Keyword -> setting over a kernel's own choice."""
SHORT = {
    "causal": About(Kind.FLAG, "keep keys up to the query's own position", name="causal", default=False,
                    more="Short for mask 'causal'"),
    "prefix": About(Kind.WHOLE, "tokens cached before the queries: as many more keys than queries", name="prefix"),
}  # fmt: skip
"""What says a problem besides its fields."""
FORMULA = {
    name: replace(about, default=None, usual=None, default_text="")
    if about.name in (*SIZES, "dtype", "splits", "tile", "mask") else about
    for name, about in (PROBLEM | SHORT | SETTINGS).items()
    if about.name in (*SIZES, *CHOICES, "dtype", "splits", "tile", "mask", "causal")
}  # fmt: skip
"""Keywords of a formula: sizes that are not given stay symbols."""
KEYWORD_OF = {about.name: name for name, about in (*PROBLEM.items(), *SETTINGS.items())} | {
    "profile": "gpu", "profiles": "gpu", "gpus": "gpu", "kernels": "kernel", "l2_start": "l2",
    "reserve_bytes": "reserve",
}  # fmt: skip
"""Name of a field or of a parameter further down -> the keyword that gives it."""
ALSO = KEYWORD_OF | {
    option[2:].replace("-", "_"): name for name, about in PROBLEM.items() for option in about.spellings
}
"""Other spelling -> keyword."""


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

        @functools.wraps(function)
        def called(*args: P.args, **given: P.kwargs) -> R:
            try:
                return function(*args, **_by_keyword(function.__name__, given, named))
            except InputError as error:
                raise type(error)(spelled(error.marked, _keyword)) from None

        called.__signature__ = whole_signature  # type: ignore[attr-defined]
        called.__doc__ = _documented(function, keywords)
        return called

    return decorated


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
            near = get_close_matches(name, known, n=3)
            own_names = ", ".join(dict.fromkeys(known[n] for n in near))
            hint = f"did you mean {own_names}?" if near else f"accepted: {', '.join(named)}"
            raise InputError(f"{function}() has no keyword '{name}'; {hint}")
        if keyword in values:
            twice = " and ".join(n for n in given if keyword in (n, ALSO.get(n)))
            raise InputError(f"`{keyword}` is given twice, as {twice}; give one of them")
        values[keyword] = value
    return values


def usual(about: About) -> Any:
    """A keyword's default, which is the option's."""
    return about.default if about.usual is None else about.usual


TYPES = {
    Kind.WHOLE: "int | str", Kind.PROBABILITY: "float", Kind.FLAG: "bool", Kind.WORD: "str",
    Kind.SIDES: "tuple[int, int] | str", Kind.LENGTHS: "Sequence[int] | str", Kind.FILE: "str",
    Kind.OBJECT: "BlockMask",
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

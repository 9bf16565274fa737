"""From keywords to problems, settings, kernels and GPUs, each value read as the command line reads its text."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from iosim.api.keywords import PROBLEM, SETTINGS, SHORT
from iosim.base.errors import InputError
from iosim.base.fields import About, Kind
from iosim.kernel.kernel import Kernel
from iosim.kernel.overrides import Overrides
from iosim.problem.asked import problems
from iosim.problem.attention import AttentionProblem

T = TypeVar("T")
OF_PROBLEMS = PROBLEM | SHORT
"""Keywords that say a problem."""


def read(name: str, about: About, value: Any) -> Any:
    """A keyword's value, a text such as "4k" or "128x64" read as the command line would."""
    if about.kind is Kind.NAMES:
        return names(value, name)
    return about.read(value, f"`{name}`") if isinstance(value, str) and name != "seq_len" else value


def request(of: type[T], keywords: Mapping[str, About], asked: Mapping[str, Any], **more: Any) -> T:
    """What a function is asked for, of the keywords that it was given; `more` are the record's other fields."""
    return of(**given(keywords, asked), **more)


def given(keywords: Mapping[str, About], asked: Mapping[str, Any], but: Collection[str] = ()) -> dict[str, Any]:
    """What was asked by `keywords`, under the fields' names; those in `but` left out."""
    return {
        about.name: read(name, about, asked[name])
        for name, about in keywords.items()
        if asked.get(name) is not None and name not in but
    }


def problems_of(problem: object, asked: Mapping[str, Any]) -> list[AttentionProblem]:
    """The problems that a function was given, or those that its keywords ask for.

    Raises:
        InputError: values that make no sense, or keywords beside problems.
    """
    given = {name: value for name, value in asked.items() if name in OF_PROBLEMS}
    if problem is None:
        values = {OF_PROBLEMS[name].name: read(name, OF_PROBLEMS[name], v) for name, v in given.items()}
        return problems(values)
    if given:
        name = next(iter(given))
        raise InputError(f"`{name}` {given[name]!r} contradicts `problem`, which says it already; accepted: "
                         f"one of them, or problem.with_({OF_PROBLEMS[name].name}=...)")  # fmt: skip
    several: object = [problem] if isinstance(problem, AttentionProblem) else problem
    if not isinstance(several, Sequence) or not all(isinstance(one, AttentionProblem) for one in several):
        raise InputError(f"`problem` {problem!r} is no AttentionProblem; accepted: one, or keywords such as heads=32")
    return list(several)


def problem_of(problem: object, asked: Mapping[str, Any], several: str = "iosim.compare") -> AttentionProblem:
    """The one problem that a function was given or its keywords ask for; `several` is the function for more.

    Raises:
        InputError: as `problems_of` does, or there are several.
    """
    asked_for = problems_of(problem, asked)
    if len(asked_for) != 1:
        raise InputError(f"`seq_len` {asked.get('seq_len')!r} are {len(asked_for)} lengths; accepted: one, and "
                         f"{several} takes several")  # fmt: skip
    return asked_for[0]


def overrides_of(asked: Mapping[str, Any], kernel: object, overrides: Overrides | None = None) -> Overrides | None:
    """The settings that keywords ask for; None where there are none.

    Raises:
        InputError: a value out of range, or settings where there is nothing to set them over.
    """
    given = {name: read(name, SETTINGS[name], v) for name, v in asked.items() if name in SETTINGS and v is not None}
    if not given:
        return overrides
    name = next(iter(given))
    if overrides is not None:
        raise InputError(f"`{name}` contradicts `overrides`; accepted: one of them")
    if isinstance(kernel, Kernel):
        raise InputError(f"`{name}` is a setting over a catalog kernel's choice, and `kernel` is one of your own; "
                         "accepted with it: kernel.with_(...)")  # fmt: skip
    return Overrides(**{SETTINGS[name].name: value for name, value in given.items()})


def names(value: object, keyword: str) -> list[Any]:
    """One or several kernels or GPUs: an object, a text such as "naive,fa2", or a list of them."""
    several: list[Any]
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, str):
        several = [name.strip() for name in value.split(",") if name.strip()]
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        several = [name for one in value for name in names(one, keyword)]
    elif hasattr(value, "name"):
        several = [value]
    else:
        raise InputError(f"`{keyword}` {value!r} is no name; accepted: names as a list or a text, or an object of one")
    if not several:
        raise InputError(f"`{keyword}` is empty; at least one is needed")
    return several


def one(value: object, keyword: str) -> Any:
    """A single kernel or GPU.

    Raises:
        InputError: several.
    """
    several = names(value, keyword)
    if len(several) != 1:
        raise InputError(f"`{keyword}` {value!r} are {len(several)}; accepted: one, and iosim.compare takes several")
    return several[0]

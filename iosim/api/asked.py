"""From keywords to requests, problems, settings and names, each value read as the command line reads its text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from iosim.api.keywords import PROBLEM, SETTINGS, SHORT, keyword_of
from iosim.base.errors import InputError
from iosim.base.fields import About, Kind, fields_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.overrides import Overrides
from iosim.problem.asked import lengths as read_lengths
from iosim.problem.attention import AttentionProblem
from iosim.studies.requests import OfProblem

if TYPE_CHECKING:
    from iosim.studies.models.layers import Layers, Model

    ModelLike = str | os.PathLike[str] | Mapping[str, Any] | Model
    """What a model is given as."""

T = TypeVar("T")
OF_PROBLEMS = PROBLEM | SHORT
"""Keywords that say a problem."""


def read(name: str, about: About, value: Any) -> Any:
    """A keyword's value, a text such as "4k" or "128x64" read as the command line would."""
    if about.kind is Kind.NAMES:
        return names(value, name)
    return about.read(value, f"`{name}`") if isinstance(value, str) and name != "seq_len" else value


def request(of: type[T], asked: Mapping[str, Any], **more: Any) -> T:
    """What a function is asked for, of the keywords that it was given; `more` are the record's other fields."""
    read_from = {name: keyword_of(about) for name, about in fields_of(of).items() if name not in more}
    given = {name: word for name, word in read_from.items() if asked.get(word) is not None}
    return of(**{name: read(word, fields_of(of)[name], asked[word]) for name, word in given.items()}, **more)


def values_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: about for name, about in OF_PROBLEMS.items() if name in asked}
    read_values = {about.name: read(name, about, asked[name]) for name, about in given.items()}
    return {n: tuple(v) if isinstance(v, list) and n != "seq_q" else v for n, v in read_values.items()}


def loaded(model: ModelLike | None) -> Model | None:
    """The model as its file has it; None where there is none. Raises InputError: no such model."""
    if model is None:
        return None
    from iosim.integrations.models import load_model

    return load_model(model)


def of_problem(
    of: type[T], problem: object, asked: Mapping[str, Any], model: ModelLike | None = None, **more: Any
) -> T:
    """A request for the problem or problems that a function was given, or that its keywords or a model say."""
    several: object = [problem] if isinstance(problem, AttentionProblem) else problem
    if problem is not None:
        if model is not None:
            raise InputError("`problem` contradicts `model`, which says the problem of every layer; accepted: one of "
                             "them")  # fmt: skip
        for name in (name for name in asked if name in OF_PROBLEMS):
            raise InputError(f"`{name}` {asked[name]!r} contradicts `problem`, which says it already; accepted: "
                             f"one of them, or problem.with_({OF_PROBLEMS[name].name}=...)")  # fmt: skip
        if not isinstance(several, Sequence) or not all(isinstance(one, AttentionProblem) for one in several):
            raise InputError(f"`problem` {problem!r} is no AttentionProblem; accepted: one, or keywords such as "
                             "heads=32")  # fmt: skip
    return request(of, asked, problems=several, values=values_of(asked), model=loaded(model), **more)


def calls_of(of: OfProblem) -> list[tuple[Layers | None, AttentionProblem]]:
    """The problems of a function that takes several lengths, of a model those of its layers, which must be alike."""
    from iosim.studies.models.asked import asked_problems

    found = asked_problems(of)
    kinds = list(dict.fromkeys(layers.name for layers, _ in found if layers is not None))
    if len(kinds) > 1 and of.model is not None:
        raise InputError(f"`model` '{of.model.name}' has {' and '.join(kinds)} layers, which differ; accepted: a model "
                         "whose layers are alike, or a `problem` of iosim.predict(model=...).predictions")  # fmt: skip
    return found


def check_one(of: OfProblem, several: str = "iosim.compare") -> None:
    """Refuses several lengths; `several` is the function that takes them. Raises InputError: there are several."""
    lengths = of.problems if of.problems is not None else read_lengths(of.values.get("seq_q", 1), "seq_len")
    if len(lengths) != 1:
        raise InputError(f"`seq_len` {of.values.get('seq_q')!r} are {len(lengths)} lengths; accepted: one, and "
                         f"{several} takes several")  # fmt: skip


def call_of(
    problem: object, asked: Mapping[str, Any], model: ModelLike | None = None, several: str = "iosim.compare",
    **more: Any,
) -> tuple[Layers | None, AttentionProblem]:  # fmt: skip
    """The one problem of a function, and the layers of a model whose it is."""
    of = of_problem(OfProblem, problem, asked, model, **more)
    check_one(of, several)
    (call,) = calls_of(of)
    return call


def overrides_of(asked: Mapping[str, Any], kernel: object, overrides: Overrides | None = None) -> Overrides | None:
    """The settings that keywords ask for; None where there are none."""
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
    """A single kernel or GPU. Raises InputError: several."""
    several = names(value, keyword)
    if len(several) != 1:
        raise InputError(f"`{keyword}` {value!r} are {len(several)}; accepted: one, and iosim.compare takes several")
    return several[0]

"""Keywords that say a model in place of one problem: `model`, `layers` and `tensor_parallel`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from iosim.api.asked import OF_PROBLEMS, problem_of, problems_of, read
from iosim.base.errors import InputError

if TYPE_CHECKING:
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.models.layers import Layers, Model

    ModelLike = str | os.PathLike[str] | Mapping[str, Any] | Model
    """What a model is given as."""

T = TypeVar("T")


def values_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a problem that keywords gave."""
    return {
        OF_PROBLEMS[name].name: read(name, OF_PROBLEMS[name], v) for name, v in asked.items() if name in OF_PROBLEMS
    }


def loaded(model: ModelLike | None) -> Model | None:
    """The model as its file has it; None where there is none.

    Raises:
        InputError: no such model.
    """
    if model is None:
        return None
    from iosim.integrations.models import load_model

    return load_model(model)


def model_of(
    model: ModelLike | None, problem: object, asked: Mapping[str, Any], layers: int | None, tensor_parallel: int | None
) -> Model | None:
    """The model that was asked for, with what other keywords put in the place of its own numbers; None without one.

    Raises:
        InputError: no such model, or keywords that contradict it or go with one alone.
    """
    if model is not None:
        check_alone(problem, model, asked)
    from iosim.studies.models.asked import chosen

    return chosen(loaded(model), values_of(asked), layers, tensor_parallel)


def check_alone(problem: object, model: object, asked: Mapping[str, Any]) -> list[AttentionProblem] | None:
    """The problems that a function was given; None where its keywords or a model say them.

    Raises:
        InputError: problems beside a model or keywords, or none.
    """
    if problem is None:
        return None
    if model is not None:
        raise InputError("`problem` contradicts `model`, which says the problem of every layer; accepted: one of them")
    return problems_of(problem, asked)


def one_problem(
    model: ModelLike | None, problem: object, asked: Mapping[str, Any], layers: int | None, tensor_parallel: int | None,
    several: str,
) -> tuple[AttentionProblem, Layers | None]:  # fmt: skip
    """The one problem of a function: that of its keywords, or of a model whose layers are all of one kind.

    Raises:
        InputError: several lengths or kinds of layers, or as `model_of`.
    """
    chosen = model_of(model, problem, asked, layers, tensor_parallel)
    if chosen is None:
        return problem_of(problem, asked, several), None
    from iosim.studies.models.asked import calls_of
    from iosim.studies.models.layers import Layers

    calls = single(calls_of(chosen, values_of(asked)), asked)
    if len(calls) > 1:
        raise _differ(chosen, [call.kind.name for call in calls])
    return calls[0].problem, Layers(calls[0].kind.name, calls[0].kind.count, chosen.title)


def several_problems(
    model: ModelLike | None, problem: object, asked: Mapping[str, Any], layers: int | None, tensor_parallel: int | None
) -> list[AttentionProblem]:
    """The problems of a function that takes several lengths, those of a model whose layers are all of one kind.

    Raises:
        InputError: several kinds of layers, or as `model_of`.
    """
    chosen = model_of(model, problem, asked, layers, tensor_parallel)
    if chosen is None:
        return problems_of(problem, asked)
    from iosim.studies.models.asked import calls_of

    lengths = calls_of(chosen, values_of(asked))
    if len(lengths[0]) > 1:
        raise _differ(chosen, [call.kind.name for call in lengths[0]])
    return [call.problem for (call,) in lengths]


def layer_problems(
    model: ModelLike | None, problem: object, asked: Mapping[str, Any], layers: int | None, tensor_parallel: int | None
) -> tuple[list[AttentionProblem], list[float] | None]:
    """The problems of a function that takes any number, of a model one for each kind of its layers, and how many of its
    layers each stands for.

    Raises:
        InputError: as `model_of`.
    """
    chosen = model_of(model, problem, asked, layers, tensor_parallel)
    if chosen is None:
        return problems_of(problem, asked), None
    from iosim.studies.models import asked as models

    both = models.layer_problems(chosen, values_of(asked))
    return [problem for _, problem in both], [float(layers.count) for layers, _ in both if layers is not None]


def _differ(model: Model, kinds: Sequence[str]) -> InputError:
    return InputError(f"`model` '{model.name}' has {' and '.join(kinds)} layers, which differ; accepted: a model whose "
                      "layers are alike, or a `problem` of iosim.predict(model=...).predictions")  # fmt: skip


def single(results: Sequence[T], asked: Mapping[str, Any]) -> T:
    """The one result of a function that returns one.

    Raises:
        InputError: several lengths.
    """
    if len(results) != 1:
        raise InputError(f"`seq_len` {asked.get('seq_len')!r} are {len(results)} lengths; accepted: one")
    return results[0]

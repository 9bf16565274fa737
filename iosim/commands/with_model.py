"""--model, --layers and --tensor-parallel: options that say a model in place of one problem's sizes.

An option beside --model takes the place of the model's own number, in every kind of layer that has it, and the output
says so; what would make another model of it (a mask, a bias) is refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from iosim.commands import common, options
from iosim.commands.parser import COMMON
from iosim.problem.fields import FIELDS
from iosim.studies.requests import OF_MODEL

if TYPE_CHECKING:
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.models.layers import Layers, Model


def add_options(parser: argparse.ArgumentParser, *, layers: bool = True, share: bool = True) -> None:
    """--model, --tensor-parallel and, unless the command has its own, --layers."""
    told = "take the layers of a model: a name (iosim models list), a Hugging Face config.json or its directory"
    common.group(parser, COMMON).add_argument("--model", metavar="NAME|FILE", action=options.One, help=told)
    names = ["layers"] * layers + ["tensor_parallel"] * share
    if names:
        options.add(common.group(parser, "of a model"), OF_MODEL, names)


def loaded(args: argparse.Namespace) -> Model | None:
    """The model as its file has it; None without --model."""
    if args.model is None:
        return None
    from iosim.integrations.models import load_model

    return load_model(args.model)


def is_given(args: argparse.Namespace, name: str) -> bool:
    """Whether an option was typed, rather than left at its default."""
    value = getattr(args, name, None)
    if value is None or isinstance(value, options.Usual):
        return False
    if isinstance(value, bool):
        return value is not FIELDS[name].default if name in FIELDS else value
    return isinstance(value, list) or name == "seq_q" or name in vars(args).get(options.GIVEN, {})


def given(args: argparse.Namespace) -> dict[str, Any]:
    """What was typed of a problem."""
    typed = {name: getattr(args, name) for name in FIELDS if hasattr(args, name) and is_given(args, name)}
    return typed | {name: getattr(args, name, None) for name in ("prefix", "causal")}


def model(args: argparse.Namespace) -> Model | None:
    """The model that was asked for, with what was asked in place of its own numbers; None without --model. Raises
    InputError: no such model, options that contradict it, or that go with one alone."""
    from iosim.studies.models.asked import chosen

    return chosen(loaded(args), given(args), args.layers, args.tensor_parallel)


def values(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What was asked of the problem beside the model, one for every combination of lists but the query tokens'."""
    from iosim.problem.asked import check_queries
    from iosim.studies.models.asked import combinations

    asked = given(args)
    if args.seq_q is None:
        check_queries(asked)
        asked["seq_q"] = args.usual_lengths
    return combinations(asked)


def kernels(args: argparse.Namespace) -> Sequence[str]:
    """The kernels asked for, by default each GPU's own."""
    from iosim.base.words import DEFAULT

    return [DEFAULT] if args.kernel is None or isinstance(args.kernel, options.Usual) else args.kernel


def layer_problems(args: argparse.Namespace) -> list[tuple[Layers | None, AttentionProblem]]:
    """One problem for every combination of the values asked for, and with --model for every kind of its layers."""
    from iosim.studies.models.asked import layer_problems

    one = model(args)
    if one is None:
        return [(None, problem) for problem in common.problems(args)]
    return [both for asked in values(args) for both in layer_problems(one, asked)]


def problems(args: argparse.Namespace) -> list[AttentionProblem]:
    """The problems alone."""
    return [problem for _, problem in layer_problems(args)]

"""--model, --layers and --tensor-parallel: options that say a model in place of one problem's sizes.

An option beside --model takes the place of the model's own number, in every kind of layer that has it, and the output
says so; what would make another model of it (a mask, a bias) is refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.commands import common, options
from iosim.commands.parser import COMMON
from iosim.problem.fields import FIELDS

if TYPE_CHECKING:
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.models.layers import Layers, Model

OF_A_MODEL = "of a model"
LAYERS = "the first N layers of --model (default: all)"


def add_options(parser: argparse.ArgumentParser, *, layers: bool = True, share: bool = True) -> None:
    """--model, --tensor-parallel and, unless the command has its own, --layers."""
    told = "take the layers of a model: a name (iosim models list), a Hugging Face config.json or its directory"
    common.group(parser, COMMON).add_argument("--model", metavar="NAME|FILE", action=options.One, help=told)
    if layers:
        g = common.group(parser, OF_A_MODEL)
        g.add_argument("--layers", type=options.whole, metavar="N", action=options.One, help=LAYERS)
    if share:
        g = common.group(parser, OF_A_MODEL)
        told = "GPUs that share the heads of --model's layers: numbers are of each (default: 1)"
        g.add_argument("--tensor-parallel", type=options.whole, metavar="GPUS", action=options.One, help=told)


def is_given(args: argparse.Namespace, name: str) -> bool:
    """Whether an option was typed, rather than left at its default."""
    value = getattr(args, name, None)
    if value is None or isinstance(value, options.Usual):
        return False
    if isinstance(value, bool):
        return value is not FIELDS[name].default if name in FIELDS else value
    return isinstance(value, list) or name == "seq_q" or name in vars(args).get(options.GIVEN, {})


def model(args: argparse.Namespace) -> Model | None:
    """The model that was asked for, with what was asked in place of its own numbers; None without --model.

    Raises:
        InputError: no such model, options that contradict it, or that go with one alone.
    """
    if args.model is None:
        for name in ("layers", "tensor_parallel"):
            if is_given(args, name) and parser_has_none(args, name):
                raise InputError(
                    f"{options.spelling(name)} {getattr(args, name)} goes with --model, which is not given"
                )
        return None
    from iosim.integrations.models import load_model
    from iosim.studies.models.changes import changed

    layers = args.layers if is_given(args, "layers") else None
    values = {name: getattr(args, name) for name in FIELDS if hasattr(args, name) and is_given(args, name)}
    values = {name: _one(value) for name, value in values.items()} | {"causal": getattr(args, "causal", False)}
    return changed(load_model(args.model), values, layers=layers, tensor_parallel=args.tensor_parallel)


def parser_has_none(args: argparse.Namespace, name: str) -> bool:
    """Whether an option means nothing in this command without --model."""
    return name == "tensor_parallel" or args.command not in ("decode", "ring", "train-memory")


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def values(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What was asked of the problem beside the model, one for every combination of lists but the query tokens'."""
    given = {name: getattr(args, name) for name in FIELDS if hasattr(args, name) and is_given(args, name)}
    given |= {name: getattr(args, name, None) for name in ("prefix", "causal")}
    if args.seq_q is None:
        from iosim.problem.asked import check_queries

        check_queries(given)
        given["seq_q"] = args.usual_lengths
    axes = {name: value for name, value in given.items() if isinstance(value, list)}
    return [given | dict(zip(axes, one, strict=True)) for one in product(*axes.values())]


def kernels(args: argparse.Namespace) -> Sequence[str]:
    """The kernels asked for, by default each GPU's own."""
    from iosim.base.words import DEFAULT

    return [DEFAULT] if args.kernel is None or isinstance(args.kernel, options.Usual) else args.kernel


def layer_problems(args: argparse.Namespace) -> list[tuple[Layers | None, AttentionProblem]]:
    """One problem for every combination of the values asked for, and with --model for every kind of its layers."""
    from iosim.studies.models.asked import calls_of
    from iosim.studies.models.layers import Layers

    one = model(args)
    if one is None:
        return [(None, problem) for problem in common.problems(args)]
    return [
        (Layers(call.kind.name, call.kind.count, one.title), call.problem)
        for given in values(args)
        for calls in calls_of(one, given)
        for call in calls
    ]


def problems(args: argparse.Namespace) -> list[AttentionProblem]:
    """The problems alone."""
    return [problem for _, problem in layer_problems(args)]

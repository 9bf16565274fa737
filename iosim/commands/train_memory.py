"""`iosim train-memory`: memory and time of a training step on one GPU, and the map of what fits."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common, options, with_model
from iosim.commands.parser import COMMON
from iosim.problem.fields import BESIDES, FIELDS
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.studies.training import Decoder, Frontier, Setup, TrainingPrediction


USUAL_NONE = ("layers", "width", "heads", "kv_heads", "mlp_width")
"""Sizes that are None where they are not typed."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "train-memory", help="memory over time, step time and what fits, of a transformer trained on one GPU"
    )
    common.add_gpu(parser)
    with_model.add_options(parser, layers=False, share=False)
    c = common.group(parser, COMMON)
    _common_options(c)
    common.add_kernel(parser, None, "catalog kernel whose time stands for the attention (default: the attention's own)")
    options.add_spellings(c, "--kernel", ("--attention-kernel",), action=options.OneName)
    _model_options(common.group(parser, "more of the model (the defaults are those of GPT-2 small)"))
    _setup_options(common.group(parser, "training"))
    g = common.group(parser, "what is asked")
    g.add_argument("--frontier", nargs="?", const="width", metavar="AXIS",
                   help="map what fits over sequence lengths and width, batch or layers (default width), whose option "
                   "then takes a list")  # fmt: skip
    g.add_argument("--reserve", type=options.whole, default=0, metavar="BYTES",
                   help="memory that tensors cannot use, such as 512m (default: 0, they may use all)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--html", metavar="FILE", help="also write memory over time and the map there, as one page")
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def _common_options(g: Any) -> None:
    """The sizes, as lists where one of them is an axis of --frontier."""
    length: dict[str, Any] = {"dest": "seq_len", "action": options.Joined, "metavar": "N,..."}
    g.add_argument("--seq-len", help="tokens (default: 1024; with --frontier 2k:16k:2k)", **length)
    options.add_spellings(g, "--seq-len", FIELDS["seq_q"].spellings, **length)
    for name, told in (("batch", "sequences (default: 1)"), ("layers", "layers (default: 12)"),
                       ("width", "columns of the residual stream (default: 768)")):  # fmt: skip
        g.add_argument(f"--{name}", action=options.Joined, metavar="N,...", help=told)
    heads = replace(FIELDS["heads"], usual=None, default=None, default_text="width / 64")
    options.add(g, {**FIELDS, "heads": heads}, ("heads", "kv_heads"))
    g.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True, help=BESIDES["causal"].help)
    options.add_spellings(g, "--causal", ("--not-causal",), action="store_false")


def _model_options(g: Any) -> None:
    mlp = g.add_mutually_exclusive_group()
    mlp.add_argument("--mlp-ratio", type=float, metavar="R", help="columns inside the MLP over width (default: 4)")
    mlp.add_argument("--mlp-width", type=options.whole, metavar="N", help="columns inside the MLP; 0 for none")
    g.add_argument("--gated", action="store_true", help="gated MLP: three matrices")
    _words(g, "activation", "gelu", "gelu, silu or relu")
    g.add_argument("--vocabulary", type=options.whole, default=50257, metavar="N", action=options.One,
                   help="tokens; 0 for no embedding and head (default: 50257)")  # fmt: skip
    g.add_argument("--untied", action="store_true", help="the head has a matrix of its own")
    _words(g, "norm", "layer", "layer, rms or none")
    _words(g, "positions", "learned", "learned or none")
    g.add_argument("--no-linear-bias", action="store_true", help="linear layers without bias")
    options.add_spellings(g, "--no-linear-bias", ("--no-bias",), action="store_true")


def _setup_options(g: Any) -> None:
    _words(g, "attention", "flash", "naive (eager) or flash")
    _words(g, "precision", "amp-bf16", "fp32, fp16, bf16, amp-fp16 or amp-bf16")
    _words(g, "optimizer", "adamw", "none, sgd, momentum, adam, adamw or adam8bit")
    _words(g, "step", "foreach", "how the optimizer runs: foreach, loop or fused")
    _words(g, "recompute", "none", "none, full (each layer) or attention")
    _words(g, "backend", "cuda", "whose kernels' saved tensors: cuda or cpu (no times)")
    g.add_argument("--accumulate-gradients", action="store_true", help="gradients of an earlier backward are there")
    options.add_spellings(g, "--accumulate-gradients", ("--accumulate",), action="store_true")


def _words(g: Any, name: str, usual: str, told: str) -> None:
    g.add_argument(f"--{name}", default=usual, metavar="WORD", action=options.One, help=f"{told} (default: {usual})")


def run(args: argparse.Namespace) -> int:
    if args.json:
        args.format = "json"
    if args.model is not None:
        _take_model(args)
    if args.frontier is not None:
        return _run_frontier(args)
    from iosim.studies.training import predict_training

    model, setup = _asked(args)
    training = predict_training(model, setup, args.gpu, kernel=args.kernel, reserve_bytes=args.reserve)
    if args.html:
        common.emit(_page(training, None), args.html)
    common.emit(_text(training, args.format), args.out)
    return 0


def _take_model(args: argparse.Namespace) -> None:
    """Puts a model's sizes and choices where no option was given.

    Raises:
        InputError: no such model, or one whose layers are not built here.
    """
    from iosim.integrations.models import load_model
    from iosim.integrations.models.training import decoder_of

    sizes = decoder_of(load_model(args.model))
    args.no_linear_bias = args.no_linear_bias or not sizes.pop("linear_bias")
    args.causal = args.causal and sizes.pop("causal")
    if args.mlp_ratio is not None or args.width is not None:
        sizes.pop("mlp_width")
    for name, value in sizes.items():
        axis = name == args.frontier
        typed = getattr(args, name) is not None if name in USUAL_NONE else with_model.is_given(args, name)
        if not axis and not typed:
            setattr(args, name, value)


def _asked(args: argparse.Namespace, **values: int) -> tuple[Decoder, Setup]:
    """The model and the setup; `values` stand for options that hold a list."""
    from iosim.studies.training.asked import model_and_setup

    return model_and_setup(vars(args) | {"linear_bias": not args.no_linear_bias} | values)


def _run_frontier(args: argparse.Namespace) -> int:
    from iosim.base.errors import unknown_name
    from iosim.hardware.profile import load_profile
    from iosim.studies.training import frontier, predict_training
    from iosim.studies.training.asked import AXES, SEQ_LENS, several

    axis = args.frontier
    if axis not in AXES:
        raise unknown_name("--frontier", axis, AXES)
    values = several(getattr(args, axis) or AXES[axis], axis)
    seq_lens = several(args.seq_len or SEQ_LENS, "seq_len")
    model, setup = _asked(args, seq_len=seq_lens[0], **{axis: values[0]})
    gpu = load_profile(args.gpu)
    limits = frontier(
        model, setup, gpu, axis, values, seq_lens, reserve_bytes=args.reserve, progress=progress("what fits")
    )
    if args.html:
        shown = predict_training(model, setup, gpu, kernel=args.kernel, reserve_bytes=args.reserve)
        common.emit(_page(shown, limits), args.html)
    common.emit(_frontier_text(limits, args.format), args.out)
    return 0


def _text(training: TrainingPrediction, form: str) -> str:
    from iosim.studies.training.answer import answer

    if form == "json":
        return common.json_text({"schema": 1, "answer": answer(training), "training": [training.to_dict()]})
    if form == "csv":
        return Table.of(training.to_dict()["timeline"]).csv()
    from iosim.studies.training.text import as_text

    return f"{answer(training)}\n\n{as_text(training)}"


def _frontier_text(limits: Frontier, form: str) -> str:
    if form == "json":
        from iosim.studies.training.frontier_face import said

        data = {"model": limits.model.to_dict(), "setup": limits.setup.to_dict(), "profile": limits.profile.name}
        return common.json_text({"schema": 1, "answer": said(limits), **data, "frontier": limits.to_dict()})
    return Table.of(limits.cells()).csv() if form == "csv" else limits.to_text()


def _page(training: TrainingPrediction, limits: Frontier | None) -> str:
    from iosim.show.html import html
    from iosim.studies.training.page import as_page

    return html(as_page(training, limits, common.typed("train-memory")))

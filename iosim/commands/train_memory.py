"""`iosim train-memory`: memory and time of a training step on one GPU, and the map of what fits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.studies.training import Decoder, Frontier, Setup, TrainingPrediction

AXES = {"width": "1k:4k:1k", "batch": "1:64:x2", "layers": "4:24:4"}
"""Rows of the map where no list is given."""
SEQ_LENS = "2k:16k:2k"


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "train-memory", help="memory over time, step time and what fits, of a transformer trained on one GPU"
    )
    parser.add_argument("--gpu", default="l4", metavar="NAME", help="GPU or profile file (default l4)")
    _model_options(parser.add_argument_group("model (defaults: GPT-2 small)"))
    _setup_options(parser.add_argument_group("training"))
    g = parser.add_argument_group("what is asked")
    g.add_argument("--frontier", nargs="?", const="width", metavar="AXIS",
                   help="map what fits over sequence lengths and width, batch or layers (default width), whose option "
                   "then takes a list")  # fmt: skip
    g.add_argument("--reserve", type=options.whole, default=0, metavar="BYTES",
                   help="memory that tensors cannot use, such as 512m (default 0)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as --format json")
    parser.add_argument("--html", metavar="FILE", help="also write memory over time and the map there, as one page")
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def _model_options(g: Any) -> None:
    g.add_argument("--layers", default=None, metavar="N", help="(default 12)")
    g.add_argument("--width", default=None, metavar="D", help="columns of the residual stream (default 768)")
    g.add_argument("--heads", type=options.whole, metavar="N", help="query heads (default: width / 64)")
    g.add_argument("--kv-heads", type=options.whole, metavar="N", help="key/value heads (default: as many)")
    mlp = g.add_mutually_exclusive_group()
    mlp.add_argument("--mlp-ratio", type=float, metavar="R", help="columns inside the MLP over width (default 4)")
    mlp.add_argument("--mlp-width", type=options.whole, metavar="N", help="columns inside the MLP; 0 for none")
    g.add_argument("--gated", action="store_true", help="gated MLP: three matrices")
    g.add_argument("--activation", default="gelu", help="gelu, silu or relu (default gelu)")
    g.add_argument("--vocabulary", type=options.whole, default=50257, metavar="N",
                   help="tokens (default 50257); 0 for no embedding and head")  # fmt: skip
    g.add_argument("--untied", action="store_true", help="the head has a matrix of its own")
    g.add_argument("--norm", default="layer", help="layer, rms or none (default layer)")
    g.add_argument("--positions", default="learned", help="learned or none (default learned)")
    g.add_argument("--no-bias", action="store_true", help="linear layers without bias")


def _setup_options(g: Any) -> None:
    g.add_argument("--batch", default=None, metavar="N", help="sequences (default 1)")
    g.add_argument("--seq-len", default=None, metavar="N", help="tokens (default 1024; with --frontier a list)")
    g.add_argument("--attention", default="flash", help="naive (eager) or flash (default flash)")
    g.add_argument("--not-causal", action="store_true", help="every token sees every other")
    g.add_argument("--precision", default="amp-bf16", help="fp32, fp16, bf16, amp-fp16 or amp-bf16 (default)")
    g.add_argument("--optimizer", default="adamw", help="none, sgd, momentum, adam, adamw (default) or adam8bit")
    g.add_argument("--step", default="foreach", help="how the optimizer runs: foreach (default), loop or fused")
    g.add_argument("--recompute", default="none", help="none (default), full (each layer) or attention")
    g.add_argument("--backend", default="cuda", help="whose kernels' saved tensors: cuda (default) or cpu (no times)")
    g.add_argument("--accumulate", action="store_true", help="gradients of an earlier backward are there already")
    g.add_argument("--attention-kernel", metavar="NAME", help="catalog kernel whose time stands for the attention")


def run(args: argparse.Namespace) -> int:
    if args.json:
        args.format = "json"
    if args.frontier is not None:
        return _run_frontier(args)
    from iosim.studies.training import predict_training

    model, setup = _asked(args)
    training = predict_training(model, setup, args.gpu, kernel=args.attention_kernel, reserve_bytes=args.reserve)
    if args.html:
        common.emit(_page(training, None), args.html)
    common.emit(_text(training, args.format), args.out)
    return 0


def _asked(args: argparse.Namespace, **values: int) -> tuple[Decoder, Setup]:
    """The model and the setup; `values` stand for options that hold a list."""
    from iosim.base.errors import InputError
    from iosim.studies.training import Decoder, Setup

    layers, width, batch, tokens = (
        values[n] if n in values else _one(getattr(args, n), default, n)
        for n, default in (("layers", 12), ("width", 768), ("batch", 1), ("seq_len", 1024))
    )
    heads = args.heads or max(1, width // 64)
    mlp = args.mlp_width
    if args.mlp_ratio is not None:
        if not 0 <= args.mlp_ratio <= 64:
            raise InputError(f"--mlp-ratio {args.mlp_ratio} is out of range; accepted: 0 to 64")
        mlp = round(args.mlp_ratio * width)
    model = Decoder(
        layers=layers, width=width, heads=heads, kv_heads=args.kv_heads, mlp_width=mlp, gated=args.gated,
        activation=args.activation, vocabulary=args.vocabulary, tied=not args.untied, norm=args.norm,
        positions=args.positions, bias=not args.no_bias,
    )  # fmt: skip
    setup = Setup(
        batch=batch, seq_len=tokens, attention=args.attention, causal=not args.not_causal, precision=args.precision,
        optimizer=args.optimizer, step=args.step, recompute=args.recompute, backend=args.backend,
        accumulate=args.accumulate,
    )  # fmt: skip
    return model, setup


def _one(text: str | None, default: int, name: str) -> int:
    """A single value of an option that can hold a list.

    Raises:
        InputError: several, or none.
    """
    from iosim.base.errors import InputError
    from iosim.base.units import sizes

    option = f"--{name.replace('_', '-')}"
    if text is None:
        return default
    values = sizes(text, option)
    if len(values) != 1:
        raise InputError(f"{option} {text} are {len(values)} values; accepted: one, or a list on an axis of --frontier")
    return values[0]


def _run_frontier(args: argparse.Namespace) -> int:
    from iosim.base.errors import unknown_name
    from iosim.base.units import sizes
    from iosim.hardware.profile import load_profile
    from iosim.studies.training import frontier, predict_training

    axis = args.frontier
    if axis not in AXES:
        raise unknown_name("--frontier", axis, AXES)
    values = sizes(getattr(args, axis) or AXES[axis], f"--{axis}")
    seq_lens = sizes(args.seq_len or SEQ_LENS, "--seq-len")
    model, setup = _asked(args, seq_len=seq_lens[0], **{axis: values[0]})
    gpu = load_profile(args.gpu)
    limits = frontier(
        model, setup, gpu, axis, values, seq_lens, reserve_bytes=args.reserve, progress=progress("what fits")
    )
    if args.html:
        shown = predict_training(model, setup, gpu, kernel=args.attention_kernel, reserve_bytes=args.reserve)
        common.emit(_page(shown, limits), args.html)
    common.emit(_frontier_text(limits, model, setup, gpu.name, args.format), args.out)
    return 0


def _text(training: TrainingPrediction, form: str) -> str:
    if form == "json":
        return common.json_text({"schema": 1, "training": [training.to_dict()]})
    if form == "csv":
        return Table.of(training.to_dict()["timeline"]).csv()
    from iosim.studies.training.text import as_text

    return as_text(training)


def _frontier_text(limits: Frontier, model: Decoder, setup: Setup, gpu: str, form: str) -> str:
    from iosim.base.units import bytes_text

    if form == "json":
        data = {"model": model.to_dict(), "setup": setup.to_dict(), "profile": gpu, "frontier": limits.to_dict()}
        return common.json_text({"schema": 1, **data})
    if form == "csv":
        return Table.of(limits.cells()).csv()
    table = Table.of(
        {limits.axis: v} | {f"{n}": f"{p / 1e9:.2f}{'' if p <= limits.capacity_bytes else ' x'}"
                           for n, p in zip(limits.seq_lens, row, strict=True)} | {"longest": longest}
        for v, row, longest in zip(limits.values, limits.peak_bytes, limits.longest, strict=True)
    ).text()  # fmt: skip
    head = (f"Peak memory in GB on {gpu} ({bytes_text(limits.capacity_bytes)}; x does not fit), by {limits.axis} and "
            f"tokens: {setup.attention} attention, {setup.precision}, optimizer {setup.optimizer}, recompute "
            f"{setup.recompute}")  # fmt: skip
    return f"{head}\n\n{table}"


def _page(training: TrainingPrediction, limits: Frontier | None) -> str:
    from iosim.show.html import html
    from iosim.studies.training.page import as_page

    return html(as_page(training, limits, common.typed("train-memory")))

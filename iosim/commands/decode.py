"""`iosim decode`: bytes and time of attention per generated token over the context's length."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.base.words import LAUNCHED
from iosim.commands import common, options, with_model
from iosim.commands.parser import COMMON
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import FIELDS
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.studies.decode import DecodePoint

SHAPE = ("heads", "kv_heads", "head_dim", "head_dim_v", "dtype", "window", "latent_kv")
"""Fields of the problem that the model decides."""
CONTEXTS = "1k:128k:x2"
NOT_FLAT = ("problem", "notes", "kinds", "sequences")
"""Keys of a point that a row of a table has no place for."""
USUAL_SHAPE = ("heads", "kv_heads", "head_dim", "dtype")


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "decode", help="attention per generated token: bytes, time, tokens a second over the context's length"
    )
    common.add_gpus(parser)
    common.add_kernels(parser, None, "default")
    with_model.add_options(parser, layers=False)
    g = common.group(parser, COMMON)
    options.add(g, FIELDS, ("batch",))
    g.add_argument("--context", default=CONTEXTS, metavar="N,...", action=options.Joined,
                   help="tokens in the cache: 4096, 1k,8k or 1k:128k:x2 (the default)")  # fmt: skip
    g.add_argument(
        "--batch-contexts",
        metavar="N,...",
        action=options.Joined,
        help="in place of --batch and --context: sequences of these contexts in one launch, or a file",
    )
    g.add_argument(
        "--contexts",
        action=options.Gone,
        dest="gone",
        instead="--batch-contexts (one batch), or --context (each by itself)",
    )
    kv_heads = replace(FIELDS["kv_heads"], default_text="8; 1 with --latent-kv")
    options.add(g, {**FIELDS, "kv_heads": kv_heads}, USUAL_SHAPE, dtype="bf16")
    g.add_argument("--layers", type=options.whole, default=32, metavar="N", action=options.One,
                   help="attention layers (default: 32); with --model the first N of its layers")  # fmt: skip
    s = common.group(parser, "more of the model and the step (the defaults are those of Llama-3-8B)")
    options.add(s, FIELDS, (*(name for name in SHAPE if name not in USUAL_SHAPE), "page_size"))
    s.add_argument("--new-tokens", type=options.whole, default=1, metavar="N",
                   help="query tokens of a sequence in a step (default: 1)")  # fmt: skip
    options.add(s, OVERRIDES, ("append_kv", "splits"))
    options.add_list(
        s,
        "--split-rule",
        usual=None,
        metavar="NAME,...",
        help="in place of --kernel, whose rule splits the keys: fa2, fa3, vllm, sglang, flashinfer",
    )
    s.add_argument(
        "--launched",
        choices=LAUNCHED,
        default=LAUNCHED[0],
        metavar="HOW",
        help="alone (launches as a profiler times them) or graph (replayed in a CUDA graph) (default: alone)",
    )
    common.add_output_options(parser, ("table", "json", "csv", "md", "html"))
    parser.set_defaults(run=run)


def points(args: argparse.Namespace) -> Iterable[DecodePoint]:
    """A point for every GPU, kernel and context asked for."""
    from iosim.base.units import sizes
    from iosim.kernel.libraries import Overrides
    from iosim.studies.decode import ModelShape, sweep
    from iosim.studies.decode.asked import chosen_kernels
    from iosim.studies.decode.batches import sweep_batch
    from iosim.studies.decode.stack import sweep_model

    settings = {"overrides": Overrides(splits=args.splits, append_kv=args.append_kv), "launched": args.launched,
                "new_tokens": args.new_tokens}  # fmt: skip
    model = with_model.model(args)
    if model is not None:
        if args.batch_contexts is not None:
            raise InputError("--batch-contexts contradicts --model; accepted with it: --batch, --heads, --layers")
        asked = {name: getattr(args, name) for name in (*SHAPE, "page_size") if with_model.is_given(args, name)}
        for gpu in args.gpu:
            for kernel, page in chosen_kernels(gpu, args.kernel, args.split_rule, args.page_size):
                with_page = asked if page is None else {**asked, "page_size": page}
                yield from sweep_model(model, sizes(args.context, "--context"), gpu, kernel, asked=with_page,
                                       batch=args.batch, **settings)  # fmt: skip
        return
    kv_heads = args.kv_heads
    if kv_heads is None:
        kv_heads = 1 if args.latent_kv else min(8, args.heads)
    sizes_of_model = {name: getattr(args, name) for name in (*SHAPE, "layers")} | {"kv_heads": kv_heads}
    batch = _contexts(args)
    for gpu in args.gpu:
        for kernel, page in chosen_kernels(gpu, args.kernel, args.split_rule, args.page_size, batch is not None):
            shape = ModelShape(**sizes_of_model, page_size=page)
            if batch is not None:
                yield from sweep_batch(shape, batch, gpu, kernel, **settings)
            else:
                yield from sweep(shape, sizes(args.context, "--context"), gpu, kernel, batch=args.batch, **settings)


def _contexts(args: argparse.Namespace) -> list[int] | None:
    """The contexts of a batch; None where all sequences have one length.

    Raises:
        InputError: --batch or --context beside them.
    """
    from iosim.studies.decode.batches import read_contexts

    if args.batch_contexts is None:
        return None
    if args.batch != 1 or args.context != CONTEXTS:
        named = f"--batch {args.batch}" if args.batch != 1 else f"--context {args.context}"
        raise InputError(f"{named} contradicts --batch-contexts, which says the sequences; give one of them")
    return read_contexts(args.batch_contexts, "--batch-contexts")


def run(args: argparse.Namespace) -> int:
    from iosim.show.html import html
    from iosim.show.markdown import markdown
    from iosim.studies.decode.answer import answer
    from iosim.studies.decode.face import as_text
    from iosim.studies.decode.page import as_page

    decode_points = list(progress("predicting")(points(args)))
    if args.format == "json":
        text = common.json_text(
            {"schema": 1, "answer": answer(decode_points), "points": [p.to_dict() for p in decode_points]}
        )
    elif args.format == "csv":
        text = Table.of(
            {k: v for k, v in p.to_dict().items() if k not in ("problem", "notes", "kinds", "sequences")}
            for p in decode_points
        ).csv()
    elif args.format == "table":
        text = as_text(decode_points)
    else:
        page = as_page(decode_points, common.typed("decode"))
        text = html(page) if args.format == "html" else markdown(page)
    common.emit(text, args.out)
    return 0

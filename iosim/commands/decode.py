"""`iosim decode`: bytes and time of attention per generated token over the context's length."""

from __future__ import annotations

import argparse
from typing import Any

from iosim.base.progress import progress
from iosim.commands import common, options, with_model
from iosim.commands.parser import COMMON
from iosim.studies.requests import DECODE, OF_MODEL, DecodeRequest

MOST_USED = ("batch", "context", "batch_contexts", "heads", "kv_heads", "head_dim", "dtype", "layers")


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "decode", help="attention per generated token: bytes, time, tokens a second over the context's length"
    )
    common.add_gpus(parser)
    common.add_kernels(parser, None, "default")
    with_model.add_options(parser, layers=False)
    g = common.group(parser, COMMON)
    options.add(g, DECODE, MOST_USED)
    instead = "--batch-contexts (one batch), or --context (each by itself)"
    g.add_argument("--contexts", action=options.Gone, dest="gone", instead=instead)
    s = common.group(parser, "more of the model and the step (the defaults are those of Llama-3-8B)")
    options.add(s, DECODE, (name for name in DECODE if name not in (*MOST_USED, *OF_MODEL)))
    common.add_output_options(parser, ("table", "json", "csv", "md", "html"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.studies.decode import study

    asked = common.request(args, DecodeRequest, gpu=args.gpu, kernel=args.kernel, model=with_model.loaded(args))
    found = study.run(asked, progress("predicting"))
    if args.format in ("html", "md"):
        from iosim.show.html import html
        from iosim.show.markdown import markdown

        page = found.as_page(common.typed("decode"))
        text = html(page) if args.format == "html" else markdown(page)
    else:
        text = common.printed(found, args.format)
    common.emit(text, args.out)
    return 0

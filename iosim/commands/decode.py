"""`iosim decode`: bytes and time of attention per generated token over the context's length."""

from __future__ import annotations

import argparse

from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.commands.parser import COMMON, CommandParser
from iosim.studies.requests import DECODE, OF_MODEL, DecodeRequest

MOST_USED = ("batch", "context", "batch_contexts", "heads", "kv_heads", "head_dim", "dtype", "layers")


def add_options(parser: CommandParser) -> None:
    common.add_gpus(parser)
    common.add_kernels(parser, None, "default")
    common.add_model(parser, layers=False)
    g = parser.group(COMMON)
    options.add(g, DECODE, MOST_USED)
    instead = "--batch-contexts (one batch), or --context (each by itself)"
    g.add_argument("--contexts", action=options.Gone, dest="gone", instead=instead)
    s = parser.group("more of the model and the step (the defaults are those of Llama-3-8B)")
    options.add(s, DECODE, (name for name in DECODE if name not in (*MOST_USED, *OF_MODEL)))
    common.add_output_options(parser, ("table", "json", "csv", "md", "html"))


def run(args: argparse.Namespace) -> int:
    from iosim.studies.decode import study

    return common.show(args, study.run(common.request(args, DecodeRequest), progress("predicting")))

"""`iosim model`: what whole models move and take, part by part, and attention's share of it."""

from __future__ import annotations

import argparse

from iosim.base.progress import progress
from iosim.base.words import DEFAULT
from iosim.commands import common, options
from iosim.commands.parser import COMMON, CommandParser
from iosim.studies.requests import WHOLE, WholeRequest

MOST_USED = ("batch", "seq_len", "context", "training", "fused", "dtype")


def add_options(parser: CommandParser) -> None:
    told = "models side by side: names (iosim models list), Hugging Face config.jsons or their directories"
    parser.add_argument("models", metavar="NAME,...", help=told)
    common.add_gpus(parser)
    common.add_kernel(parser, DEFAULT, "kernel of the attention")
    options.add(parser.group(COMMON), WHOLE, MOST_USED)
    options.add(parser.group("of a model"), WHOLE, ("layers", "tensor_parallel"))
    common.add_output_options(parser, ("table", "json", "csv", "md", "html"))


def run(args: argparse.Namespace) -> int:
    from iosim.integrations.models import load_model
    from iosim.studies.models import whole

    models = [load_model(name) for name in options.names(args.models)]
    return common.show(args, whole.run(common.request(args, WholeRequest, models=models), progress("predicting")))

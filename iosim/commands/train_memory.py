"""`iosim train-memory`: memory and time of a training step on one GPU, and the map of what fits."""

from __future__ import annotations

import argparse

from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.commands.parser import COMMON, CommandParser
from iosim.studies.requests import TRAIN, TrainRequest

SIZES = ("seq_len", "batch", "layers", "width", "heads", "kv_heads", "causal")
OF_TRAINING = ("attention", "precision", "optimizer", "step", "recompute", "backend", "accumulate_gradients")


def add_options(parser: CommandParser) -> None:
    common.add_gpu(parser)
    common.add_model(parser, layers=False, share=False)
    c = parser.group(COMMON)
    options.add(c, TRAIN, SIZES)
    options.add_spellings(c, "--causal", ("--not-causal",), action="store_false")
    common.add_kernel(parser, None, "catalog kernel whose time stands for the attention (default: the attention's own)")
    options.add_spellings(c, "--kernel", ("--attention-kernel",), action=options.OneName)
    more = parser.group("more of the model (the defaults are those of GPT-2 small)")
    options.add(more, TRAIN, (name for name in TRAIN if name not in (*SIZES, *OF_TRAINING, "reserve")))
    options.add(parser.group("training"), TRAIN, OF_TRAINING)
    g = parser.group("what is asked")
    g.add_argument("--frontier", nargs="?", const="width", metavar="AXIS",
                   help="map what fits over sequence lengths and width, batch or layers (default width), whose option "
                   "then takes a list")  # fmt: skip
    options.add(g, TRAIN, ("reserve",))
    common.add_output_options(parser, page=True)
    parser.add_argument("--json", dest="format", action="store_const", const="json", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from iosim.studies.training import prediction

    model = common.loaded(args)
    if model is not None:
        from iosim.integrations.models.load import decoder_of
    asked = common.request(args, TrainRequest, of_model=None if model is None else decoder_of(model))
    limits = None if args.frontier is None else prediction.map_of(asked, args.frontier, progress("what fits"))
    if limits is None or args.html:
        training = prediction.run(asked, args.frontier)
    if limits is None:
        whole = {"schema": 1, "training": [training.to_dict()]}
    else:
        whole = {"schema": 1, "model": limits.model.to_dict(), "setup": limits.setup.to_dict(),
                 "profile": limits.profile.name, "frontier": limits.to_dict()}  # fmt: skip
    return common.show(args, limits or training, whole, lambda command: training.as_page(limits, command))

"""`iosim decode`, `latency`, `ring`, `model` and `train-memory`: attention in serving and in training."""

from __future__ import annotations

import argparse

from iosim.base.errors import InputError
from iosim.base.progress import announce, progress
from iosim.base.words import DEFAULT
from iosim.commands import common, options
from iosim.commands.options import COMMON, CommandParser
from iosim.show.tables import Table
from iosim.studies import requests
from iosim.studies.requests import DECODE, LATENCY, OF_MODEL, RING, TRAIN, WHOLE

OF_STEP = ("batch", "context", "batch_contexts", "heads", "kv_heads", "head_dim", "dtype", "layers")
OF_TRAINED = ("seq_len", "batch", "layers", "width", "heads", "kv_heads", "causal")
OF_TRAINING = ("attention", "precision", "optimizer", "step", "recompute", "backend", "accumulate_gradients")
LISTED = "list"
"""In place of a stack's name: all of them are listed."""


def add_decode(parser: CommandParser) -> None:
    common.add_gpu(parser, several=True)
    common.add_kernel(parser, None, several=True, default="default")
    common.add_model(parser, layers=False)
    options.add(parser.group(COMMON), DECODE, OF_STEP)
    s = parser.group("more of the model and the step (the defaults are those of Llama-3-8B)")
    options.add(s, DECODE, (name for name in DECODE if name not in (*OF_STEP, *OF_MODEL)))
    common.add_output_options(parser, ("table", "json", "csv", "md", "html"))


def run_decode(args: argparse.Namespace) -> int:
    from iosim.studies.decode import study

    return common.show(args, study.run(common.request(args, requests.DecodeRequest), progress("predicting")))


def add_latency(parser: CommandParser) -> None:
    options.add(parser.group(COMMON), LATENCY, ("stack",))
    common.add_gpu(parser, several=True)
    common.add_problem_options(parser, several=common.ALL_SIZES)
    common.add_model(parser)
    options.add(parser.group("the call"), LATENCY, ("batch_contexts", "cache_write", "calibration"))
    common.add_conditions(parser, "method")
    options.add(parser.group(common.MODEL), LATENCY, ("l2_start", "clocks", "launched"))
    common.add_output_options(parser)


def run_latency(args: argparse.Namespace) -> int:
    from iosim.studies.latency import latency as study

    common.check_place(args.out)
    if LISTED not in args.stack:
        announce("predicting")
        return common.show(args, study.run(common.request(args, requests.LatencyRequest, problems=None)))
    rows = study.stack_rows()
    table = Table.of({k: ", ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)
    answer = f"{len(rows)} stacks are known." if args.format == "json" else None
    return common.tell(args, answer, json=lambda: {"stacks": rows}, rows=lambda: table, table=table.text)


def add_ring(parser: CommandParser) -> None:
    common.add_gpu(parser)
    options.add(parser.group(COMMON), RING, ("num_gpus",))
    common.add_kernel(parser, "default", "kernel of a pair of chunks")
    common.add_model(parser, layers=False)
    common.add_problem_options(parser, several=())
    rest = (name for name in RING if name not in ("num_gpus", *OF_MODEL))
    options.add(parser.group("GPUs, links and schedules"), RING, (*rest, "layers"))
    parser.add_argument("--steps", action="store_true", help="print the chunk schedules, step by step")
    common.add_output_options(parser, page=True)


def run_ring(args: argparse.Namespace) -> int:
    from iosim.studies.distributed import ring

    request = common.request(args, requests.RingRequest, problems=None)
    if request.model is not None and args.html is not None:
        raise InputError("--html goes with no --model; accepted with it: --format table, json or csv")
    run = ring.run if request.model is None else ring.run_model
    return common.show(args, run(request, steps=args.steps, progress=progress("schedules")))


def add_model(parser: CommandParser) -> None:
    told = "models side by side: names (iosim models list), Hugging Face config.jsons or their directories"
    parser.add_argument("models", metavar="NAME,...", help=told)
    common.add_gpu(parser, several=True)
    common.add_kernel(parser, DEFAULT, "kernel of the attention")
    options.add(parser.group(COMMON), WHOLE, ("batch", "seq_len", "context", "training", "fused", "dtype"))
    options.add(parser.group("of a model"), WHOLE, ("layers", "tensor_parallel"))
    common.add_output_options(parser, ("table", "json", "csv", "md", "html"))


def run_model(args: argparse.Namespace) -> int:
    from iosim.integrations.models import load_model
    from iosim.studies.models import whole

    request = common.request(args, requests.WholeRequest, models=[load_model(n) for n in options.names(args.models)])
    return common.show(args, whole.run(request, progress("predicting")))


def add_train_memory(parser: CommandParser) -> None:
    common.add_gpu(parser)
    common.add_model(parser, layers=False, share=False)
    options.add(parser.group(COMMON), TRAIN, OF_TRAINED)
    common.add_kernel(parser, None, "catalog kernel whose time stands for the attention (default: the attention's own)")
    more = parser.group("more of the model (the defaults are those of GPT-2 small)")
    options.add(more, TRAIN, (name for name in TRAIN if name not in (*OF_TRAINED, *OF_TRAINING, "reserve")))
    options.add(parser.group("training"), TRAIN, OF_TRAINING)
    g = parser.group("what is asked")
    told = (
        "map what fits over sequence lengths and width, batch or layers (default width), whose option then takes a list"
    )
    g.add_argument("--frontier", nargs="?", const="width", metavar="AXIS", help=told)
    options.add(g, TRAIN, ("reserve",))
    common.add_output_options(parser, page=True)


def run_train_memory(args: argparse.Namespace) -> int:
    from iosim.studies.training import prediction

    model = common.loaded(args)
    if model is not None:
        from iosim.integrations.models.load import decoder_of
    request = common.request(args, requests.TrainRequest, of_model=None if model is None else decoder_of(model))
    limits = None if args.frontier is None else prediction.map_of(request, args.frontier, progress("what fits"))
    if limits is None or args.html:
        training = prediction.run(request, args.frontier)
    whole = {"training": [training.to_dict()]} if limits is None else limits.setting() | {"frontier": limits.to_dict()}
    return common.show(args, limits or training, {"schema": 1} | whole, lambda line: training.as_page(limits, line))

"""`iosim ring`: attention over several GPUs: chunk schedules, idle time, bytes on the links, time and memory."""

from __future__ import annotations

import argparse

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.commands.parser import COMMON, CommandParser
from iosim.studies.requests import OF_MODEL, RING, RingRequest


def add_options(parser: CommandParser) -> None:
    common.add_gpu(parser, of_old=("--profile", "--profiles"))
    number = parser.group(COMMON)
    options.add(number, RING, ("num_gpus",))
    number.add_argument("--gpus", action=options.Gone, dest="gone", instead="--num-gpus N, and --gpu NAME")
    common.add_kernel(parser, "default", "kernel of a pair of chunks")
    common.add_model(parser, layers=False)
    common.add_problem_options(parser, several=())
    rest = (name for name in RING if name not in ("num_gpus", *OF_MODEL))
    options.add(parser.group("GPUs, links and schedules"), RING, (*rest, "layers"))
    parser.add_argument("--steps", action="store_true", help="print the chunk schedules, step by step")
    common.add_output_options(parser, page=True)


def run(args: argparse.Namespace) -> int:
    from iosim.studies.distributed import ring

    asked = common.request(args, RingRequest, problems=None)
    if asked.model is not None:
        if args.html is not None:
            raise InputError("--html goes with no --model; accepted with it: --format table, json or csv")
        return common.show(args, ring.run_model(asked, steps=args.steps, progress=progress("schedules")))
    return common.show(args, ring.run(asked, steps=args.steps, progress=progress("schedules")))

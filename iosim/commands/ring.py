"""`iosim ring`: attention over several GPUs: chunk schedules, idle time, bytes on the links, time and memory."""

from __future__ import annotations

import argparse
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.commands import common, options, with_model
from iosim.commands.parser import COMMON
from iosim.studies.requests import OF_MODEL, RING, RingRequest


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "ring", help="attention over several GPUs: chunk schedules, idle time, link bytes, time and memory"
    )
    common.add_gpu(parser, of_old=("--profile", "--profiles"))
    number = common.group(parser, COMMON)
    options.add(number, RING, ("num_gpus",))
    number.add_argument("--gpus", action=options.Gone, dest="gone", instead="--num-gpus N, and --gpu NAME")
    common.add_kernel(parser, "default", "kernel of a pair of chunks")
    with_model.add_options(parser, layers=False)
    common.add_problem_options(parser, several=())
    rest = (name for name in RING if name not in ("num_gpus", *OF_MODEL))
    options.add(common.group(parser, "GPUs, links and schedules"), RING, (*rest, "layers"))
    parser.add_argument("--steps", action="store_true", help="print the chunk schedules, step by step")
    parser.add_argument("--html", metavar="FILE", help="also write figures there, as one HTML file")
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.studies.distributed import ring

    model, values = with_model.loaded(args), with_model.given(args)
    if model is not None and args.html is not None:
        raise InputError("--html goes with no --model; accepted with it: --format table, json or csv")
    asked = common.request(args, RingRequest, gpu=args.gpu, kernel=args.kernel, model=model, values=values)
    if model is not None:
        stack = ring.run_model(asked, steps=args.steps, progress=progress("schedules"))
        common.emit(common.printed(stack, args.format), args.out)
        return 0
    found = ring.run(asked, steps=args.steps, progress=progress("schedules"))
    if args.html is not None:
        from iosim.base.files import write_whole
        from iosim.show.html import html

        write_whole(args.html, html(found.as_page(common.typed("ring"))))
    common.emit(common.printed(found, args.format), args.out)
    return 0

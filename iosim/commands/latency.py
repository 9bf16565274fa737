"""`iosim latency`: what one attention call takes inside a serving stack, part by part."""

from __future__ import annotations

import argparse
from typing import Any

from iosim.base import words
from iosim.base.errors import InputError
from iosim.base.progress import announce
from iosim.commands import common, options, with_model
from iosim.commands.parser import COMMON
from iosim.show.tables import Table

USUAL = "vllm"
LISTED = "list"
"""In place of a stack's name: all of them are listed."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "latency", help="what an attention call takes in a serving stack: kernel, combine, cache write, gaps"
    )
    g = common.group(parser, COMMON)
    options.add_list(g, "--stack", usual=[USUAL], metavar="NAME,...",
                     help=f"vllm, sglang, flashinfer; '{LISTED}' says what each runs (default: {USUAL})")  # fmt: skip
    common.add_gpus(parser)
    common.add_problem_options(parser, several=common.ALL_SIZES)
    with_model.add_options(parser)
    s = common.group(parser, "the call")
    s.add_argument(
        "--batch-contexts",
        metavar="N,...",
        action=options.Joined,
        help="decode one token a sequence over these many keys, all in one launch: 1k,4k,32k, or a file",
    )
    s.add_argument(
        "--contexts",
        action=options.Gone,
        dest="gone",
        instead="--batch-contexts (one batch), or --seq-len 1 --seq-len-k N,... (each by itself)",
    )
    s.add_argument("--no-cache-write", action="store_true", help="without the write of new K and V to the cache")
    s.add_argument("--calibration", metavar="FILE", action=options.One,
                   help="constants that 'iosim calibrate --times' fitted")  # fmt: skip
    common.add_conditions(parser, "method")
    g = common.group(parser, common.MODEL)
    g.add_argument("--l2", choices=words.L2_STARTS, default="warm", metavar="START",
                   help="the L2 at the start: cold, or warm as the call before left it (default: warm)")  # fmt: skip
    g.add_argument("--clocks", default="boost", metavar="CLOCKS",
                   help="boost, sustained or the SMs' clock in MHz (default: boost)")  # fmt: skip
    g.add_argument("--launched", choices=words.LAUNCHED, default="graph", metavar="HOW",
                   help="graph (call after call from a CUDA graph) or alone (launches as a profiler times them) "
                   "(default: graph)")  # fmt: skip
    common.add_output_options(parser, ("table", "json", "csv"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.hardware.profile import load_profile
    from iosim.studies.latency import latencies, read_calibration
    from iosim.studies.latency.answer import answer
    from iosim.studies.latency.face import text

    common.check_place(args.out)
    if LISTED in args.stack:
        common.emit(_listing(args.format), args.out)
        return 0
    calibration = None
    if args.calibration is not None:
        if len(args.stack) != 1 or len(args.gpu) != 1:
            raise InputError("--calibration is of one stack on one GPU; accepted with it: one --stack and one --gpu")
        calibration = read_calibration(args.calibration, args.stack[0], load_profile(args.gpu[0]).name)
    announce("predicting")
    layers, problems = _layers_and_problems(args)
    found = latencies(
        problems, args.stack, args.gpu, write=False if args.no_cache_write else None, launched=args.launched,
        l2_start=args.l2, clocks=args.clocks, method=args.method, calibration=calibration,
        layers=layers,
    )  # fmt: skip
    if args.format == "json":
        out = common.json_text({"schema": 1, "answer": answer(found.points, found.models)} | found.to_dict())
    elif args.format == "csv":
        out = Table.of(found.rows()).csv()
    else:
        out = text(found)
    common.emit(out, args.out)
    return 0


def _layers_and_problems(args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Which layers of a model each problem is of, none without --model, and the problems.

    Raises:
        InputError: --batch-contexts beside --model.
    """
    if args.model is None:
        with_model.model(args)
        problems = _problems(args)
        return [None] * len(problems), problems
    if args.batch_contexts is not None:
        raise InputError("--batch-contexts contradicts --model; accepted with it: --batch, --seq-len and --seq-len-k")
    both = with_model.layer_problems(args)
    return [layers for layers, _ in both], [problem for _, problem in both]


def _problems(args: argparse.Namespace) -> list[Any]:
    """The problems asked for: causal where nothing else is said; --batch-contexts makes one of all its sequences.

    Raises:
        InputError: --batch-contexts beside other lengths.
    """
    from iosim.studies.latency.asked import as_served, of_contexts

    given = {name: value for name, value in vars(args).items() if value is not None}
    asked = {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in given.items()}
    served = as_served(asked if args.batch_contexts is None else of_contexts(args.batch_contexts, asked))
    for name in ("mask", "causal", "seq_lens", "seq_lens_k"):
        setattr(args, name, served.get(name, getattr(args, name)))
    return list(common.problems(args))


def _listing(form: str) -> str:
    """The stacks, with what each runs and assumes."""
    from iosim.studies.latency.stacks import stack_rows

    rows = stack_rows()
    if form == "json":
        return common.json_text({"schema": 1, "answer": f"{len(rows)} stacks are known.", "stacks": rows})
    table = Table.of({k: ", ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)
    return table.csv() if form == "csv" else table.text()

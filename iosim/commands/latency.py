"""`iosim latency`: what one attention call takes inside a serving stack, part by part."""

from __future__ import annotations

import argparse
from typing import Any

from iosim.base.progress import announce
from iosim.commands import common, options, with_model
from iosim.commands.parser import COMMON
from iosim.show.tables import Table
from iosim.studies.requests import LATENCY, LatencyRequest

LISTED = "list"
"""In place of a stack's name: all of them are listed."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "latency", help="what an attention call takes in a serving stack: kernel, combine, cache write, gaps"
    )
    options.add(common.group(parser, COMMON), LATENCY, ("stack",))
    common.add_gpus(parser)
    common.add_problem_options(parser, several=common.ALL_SIZES)
    with_model.add_options(parser)
    s = common.group(parser, "the call")
    options.add(s, LATENCY, ("batch_contexts", "cache_write", "calibration"))
    instead = "--batch-contexts (one batch), or --seq-len 1 --seq-len-k N,... (each by itself)"
    s.add_argument("--contexts", action=options.Gone, dest="gone", instead=instead)
    common.add_conditions(parser, "method")
    options.add(common.group(parser, common.MODEL), LATENCY, ("l2_start", "clocks", "launched"))
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.studies.latency import latency as study

    common.check_place(args.out)
    if LISTED in args.stack:
        common.emit(_listing(args.format), args.out)
        return 0
    announce("predicting")
    model, values = with_model.loaded(args), with_model.given(args)
    found = study.run(common.request(args, LatencyRequest, gpu=args.gpu, model=model, values=values))
    common.emit(common.printed(found, args.format), args.out)
    return 0


def _listing(form: str) -> str:
    """The stacks, with what each runs and assumes."""
    from iosim.studies.latency.latency import stack_rows

    rows = stack_rows()
    if form == "json":
        return common.json_text({"schema": 1, "answer": f"{len(rows)} stacks are known.", "stacks": rows})
    table = Table.of({k: ", ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)
    return table.csv() if form == "csv" else table.text()

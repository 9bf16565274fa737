"""`iosim latency`: what one attention call takes inside a serving stack, part by part."""

from __future__ import annotations

import argparse

from iosim.base.progress import announce
from iosim.commands import common, options
from iosim.commands.parser import COMMON, CommandParser
from iosim.show.tables import Table
from iosim.studies.requests import LATENCY, LatencyRequest

LISTED = "list"
"""In place of a stack's name: all of them are listed."""


def add_options(parser: CommandParser) -> None:
    options.add(parser.group(COMMON), LATENCY, ("stack",))
    common.add_gpus(parser)
    common.add_problem_options(parser, several=common.ALL_SIZES)
    common.add_model(parser)
    s = parser.group("the call")
    options.add(s, LATENCY, ("batch_contexts", "cache_write", "calibration"))
    instead = "--batch-contexts (one batch), or --seq-len 1 --seq-len-k N,... (each by itself)"
    s.add_argument("--contexts", action=options.Gone, dest="gone", instead=instead)
    common.add_conditions(parser, "method")
    options.add(parser.group(common.MODEL), LATENCY, ("l2_start", "clocks", "launched"))
    common.add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    from iosim.studies.latency import latency as study

    common.check_place(args.out)
    if LISTED in args.stack:
        return _tell_stacks(args)
    announce("predicting")
    return common.show(args, study.run(common.request(args, LatencyRequest, problems=None)))


def _tell_stacks(args: argparse.Namespace) -> int:
    from iosim.studies.latency.latency import stack_rows

    rows = stack_rows()
    table = Table.of({k: ", ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)
    answer = f"{len(rows)} stacks are known." if args.format == "json" else None
    return common.tell(args, answer, json=lambda: {"stacks": rows}, rows=lambda: table, table=table.text)

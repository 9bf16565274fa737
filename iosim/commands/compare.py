"""`iosim compare`: kernels and GPUs side by side, with ratios to a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iosim.base.progress import progress
from iosim.base.records import replace
from iosim.commands import common, options
from iosim.commands.parser import CommandParser
from iosim.show.tables import Table
from iosim.studies.requests import COMPARE, CompareRequest, OfProblem

if TYPE_CHECKING:
    from iosim.show.page import Page


def add_options(parser: CommandParser) -> None:
    common.add_gpus(parser)
    common.add_kernels(parser, "naive,default")
    options.add(parser.group("options"), COMPARE, ("baseline",))
    common.add_model(parser)
    common.add_problem_options(parser)
    common.add_conditions(parser, "l2_start", "method")
    common.add_output_options(parser, page=True)
    parser.add_argument("--json", dest="format", action="store_const", const="json", help=argparse.SUPPRESS)
    parser.add_argument("--csv", metavar="FILE", help="also write the rows there, as CSV")


def run(args: argparse.Namespace) -> int:
    from iosim.base.files import write_together
    from iosim.show.html import html
    from iosim.studies.compare import Comparison, as_page
    from iosim.studies.compare.face import answer
    from iosim.studies.compare.stack import ModelComparison, run_model
    from iosim.studies.compare.study import run as run_comparison
    from iosim.studies.models.asked import asked_model

    for option, place in (("--out", args.out), ("--csv", args.csv)):
        common.check_place(place, option)
    of = common.request(args, OfProblem, problems=None)
    model, asked = asked_model(of), common.request(args, CompareRequest, model=None)
    found: Comparison | ModelComparison
    page: Callable[[str], Page]
    if model is None:
        found = run_comparison(replace(asked, problems=common.problems(args)), progress("predicting"))
        rows, told, page = found.records(), answer(found), partial(as_page, found)
    else:
        found = run_model(asked, model, of.values, progress("predicting"))
        rows = [row | {"cannot_run": " ".join(row["cannot_run"])} for row in found.rows]
        told, page = found.answer, found.as_page
    files = {Path(args.csv): Table.of(rows).csv()} if args.csv is not None else {}
    if args.html is not None:
        files[Path(args.html)] = html(page(common.typed("compare")))
    write_together(files)
    return common.tell(args, told, json=found.to_dict, rows=lambda: rows, table=found.to_text)

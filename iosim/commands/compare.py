"""`iosim compare`: kernels and GPUs side by side, with ratios to a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.base.records import replace
from iosim.commands import common, options
from iosim.commands.parser import CommandParser
from iosim.show.tables import Table
from iosim.studies.requests import CHOICE, COMPARE, ChoiceRequest, CompareRequest, OfProblem, check_per

if TYPE_CHECKING:
    from iosim.show.page import Page


AXES = ("seq_q", "seq_k", "batch")
"""Fields whose options take lists, the last two with --per."""


def add_options(parser: CommandParser) -> None:
    common.add_gpu(parser, several=True)
    common.add_kernel(parser, None, several=True, default="naive,default; with --per default and the libraries'")
    options.add(parser.group("options"), COMPARE, ("baseline",))
    options.add(parser.group("which GPU to take"), CHOICE, ("per", "price"))
    common.add_model(parser)
    common.add_problem_options(parser, several=AXES)
    common.add_conditions(parser, "l2_start", "method")
    common.add_output_options(parser, page=True)
    parser.add_argument("--json", dest="format", action="store_const", const="json", help=argparse.SUPPRESS)
    parser.add_argument("--csv", metavar="FILE", help="also write the rows there, as CSV")


def run(args: argparse.Namespace) -> int:
    from iosim.base.files import write_together
    from iosim.show.html import html

    for option, place in (("--out", args.out), ("--csv", args.csv)):
        common.check_place(place, option)
    check_per(args.per, args.baseline, args.price)
    told, rows, found, page = _chosen(args) if args.per is not None else _compared(args)
    files = {Path(args.csv): Table.of(rows).csv()} if args.csv is not None else {}
    if args.html is not None:
        files[Path(args.html)] = html(page(common.typed("compare")))
    write_together(files)
    return common.tell(args, told, json=found.to_dict, rows=lambda: rows, table=found.to_text)


Found = tuple[str, list[dict[str, Any]], Any, "Callable[[str], Page]"]
"""The answer, the rows of the CSV, the result, and its page for a command line."""


def _chosen(args: argparse.Namespace) -> Found:
    from iosim.studies.compare import run_choice
    from iosim.studies.compare.choice_face import answer, as_page

    found = run_choice(common.request(args, ChoiceRequest, problems=None), progress("predicting"))
    return answer(found), found.records(), found, partial(as_page, found)


def _compared(args: argparse.Namespace) -> Found:
    from iosim.studies.compare import as_page
    from iosim.studies.compare.face import answer
    from iosim.studies.compare.stack import run_model
    from iosim.studies.compare.study import run as run_comparison
    from iosim.studies.models.asked import asked_model, one_of_each

    of = common.request(args, OfProblem, problems=None)
    values = one_of_each(of.values)
    model, asked = asked_model(of), common.request(args, CompareRequest, model=None)
    if model is None:
        compared = run_comparison(replace(asked, problems=common.problems(args)), progress("predicting"))
        return answer(compared), compared.records(), compared, partial(as_page, compared)
    found = run_model(asked, model, values, progress("predicting"))
    rows = [row | {"cannot_run": " ".join(row["cannot_run"])} for row in found.rows]
    return found.answer, rows, found, found.as_page

"""`iosim compare`: kernels and GPUs side by side, with ratios to a baseline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common, with_model
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.studies.compare import Comparison
    from iosim.studies.models.layers import Model


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare", help="kernels and GPUs side by side: bytes by level and tensor, time, memory, ratios to a baseline"
    )
    common.add_gpus(parser)
    common.add_kernels(parser, "naive,default")
    parser.add_argument(
        "--baseline",
        metavar="KERNEL[@GPU]",
        help="what ratios are to (default: the first kernel over N x N tensors, on each row's GPU)",
    )
    with_model.add_options(parser)
    common.add_problem_options(parser)
    common.add_conditions(parser, "l2_start", "method")
    common.add_output_options(parser)
    parser.add_argument("--json", dest="format", action="store_const", const="json", help=argparse.SUPPRESS)
    parser.add_argument("--csv", metavar="FILE", help="also write the rows there, as CSV")
    parser.add_argument("--html", metavar="FILE", help="also write a page with figures there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.base.files import write_together
    from iosim.show.html import html
    from iosim.studies.compare import as_page, compare

    for option, place in (("--out", args.out), ("--csv", args.csv), ("--html", args.html)):
        common.check_place(place, option)
    model = with_model.model(args)
    if model is not None:
        return run_model(args, model)
    comparison = compare(
        common.problems(args), args.kernel, args.gpu, baseline=args.baseline,
        method=args.method, l2_start=args.l2_start, progress=progress("predicting"),
    )  # fmt: skip
    files = {Path(args.csv): csv_of(comparison)} if args.csv is not None else {}
    if args.html is not None:
        files[Path(args.html)] = html(as_page(comparison, common.typed("compare")))
    write_together(files)
    common.emit(text_of(comparison, args.format), args.out)
    return 0


def run_model(args: argparse.Namespace, model: Model) -> int:
    """A comparison for each kind of the model's layers, and all of them together."""
    from iosim.base.files import write_together
    from iosim.show.html import html
    from iosim.studies.compare.stack import compare_model

    (values,) = with_model.values(args)
    found = compare_model(model, values, args.kernel, args.gpu, baseline=args.baseline, method=args.method,
                          l2_start=args.l2_start, progress=progress("predicting"))  # fmt: skip
    rows = Table.of(row | {"cannot_run": " ".join(row["cannot_run"])} for row in found.rows).csv()
    files = {Path(args.csv): rows} if args.csv is not None else {}
    if args.html is not None:
        files[Path(args.html)] = html(found.as_page(common.typed("compare")))
    write_together(files)
    if args.format == "json":
        whole = found.to_dict()
        text = common.json_text({"schema": whole.pop("schema"), "answer": found.answer, **whole})
    else:
        text = rows if args.format == "csv" else found.to_text()
    common.emit(text, args.out)
    return 0


def csv_of(comparison: Comparison) -> str:
    return Table.of(e.to_dict() for e in comparison.entries).csv()


def text_of(comparison: Comparison, form: str) -> str:
    """The comparison in one of the command's formats."""
    from iosim.studies.compare import as_text

    if form == "json":
        from iosim.studies.compare.face import answer

        return common.json_text({"schema": 1, "answer": answer(comparison)} | comparison.to_dict())
    return csv_of(comparison) if form == "csv" else as_text(comparison)

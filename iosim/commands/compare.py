"""`iosim compare`: kernels and GPUs side by side, with ratios to a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.studies.compare import Comparison

DEFAULT_KERNELS = ["naive", "fa2"]


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare", help="kernels and GPUs side by side: bytes by level and tensor, time, memory, ratios to a baseline"
    )
    parser.add_argument("--kernel", "--kernels", dest="kernel", action="append", metavar="NAMES",
                        help="kernels, such as naive,fa2,cudnn (repeats; default naive,fa2)")  # fmt: skip
    parser.add_argument("--gpu", "--gpus", "--profile", "--profiles", dest="gpu", action="append", metavar="NAMES",
                        help="GPUs or profile files, such as a100,h100 (repeats; default a100)")  # fmt: skip
    parser.add_argument(
        "--baseline",
        metavar="KERNEL[@GPU]",
        help="what ratios are to (default: the first kernel over N x N tensors, on each row's GPU)",
    )
    common.add_problem_options(parser)
    parser.add_argument("--l2", default="cold", help="L2 at the start: cold or warm (default cold)")
    parser.add_argument(
        "--method",
        default=None,
        help="HBM traffic by: bounds, capacity or replay (default: replay where all take seconds)",
    )
    common.add_output_options(parser)
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="as --format json")
    parser.add_argument("--csv", metavar="FILE", help="also write the rows there, as CSV")
    parser.add_argument("--html", metavar="FILE", help="also write a page with figures there")
    parser.set_defaults(run=run)


def listed(texts: Sequence[str] | None, default: list[str]) -> list[str]:
    """Names of options that repeat and take lists."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()] if texts else default


def run(args: argparse.Namespace) -> int:
    from iosim.base.files import write_together
    from iosim.show.html import html
    from iosim.studies.compare import as_page, compare

    for option, place in (("--out", args.out), ("--csv", args.csv), ("--html", args.html)):
        common.check_place(place, option)
    comparison = compare(
        common.problems(args), listed(args.kernel, DEFAULT_KERNELS), listed(args.gpu, ["a100"]), baseline=args.baseline,
        method=args.method, l2_start=args.l2, progress=progress("predicting"),
    )  # fmt: skip
    files = {Path(args.csv): csv_of(comparison)} if args.csv is not None else {}
    if args.html is not None:
        files[Path(args.html)] = html(as_page(comparison, common.typed("compare")))
    write_together(files)
    common.emit(text_of(comparison, args.format), args.out)
    return 0


def csv_of(comparison: Comparison) -> str:
    return Table.of(e.to_dict() for e in comparison.entries).csv()


def text_of(comparison: Comparison, form: str) -> str:
    """The comparison in one of the command's formats."""
    from iosim.studies.compare import as_text

    if form == "json":
        return common.json_text(comparison.to_dict())
    return csv_of(comparison) if form == "csv" else as_text(comparison)

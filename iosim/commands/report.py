"""`iosim report`: GPUs x kernels x sequence lengths as one HTML file and one Markdown file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.commands import common
from iosim.commands.parser import CommandParser
from iosim.studies.requests import OfProblem

if TYPE_CHECKING:
    from iosim.problem.attention import AttentionProblem

LARGE_BYTES = 1_000_000
"""About 400 predictions."""


def add_options(parser: CommandParser) -> None:
    common.add_gpu(parser, several=True)
    common.add_kernel(parser, "naive,default", several=True)
    common.add_model(parser)
    common.add_problem_options(parser, lengths="1k:64k:x2")
    common.add_conditions(parser, "l2_start", "method")
    g = parser.group("output")
    g.add_argument("--format", choices=("both", "html", "md"), default="both", metavar="FORMAT",
                   help="both, html or md (default: both)")  # fmt: skip
    g.add_argument("--out", "-o", metavar="PLACE",
                        help="directory that exists, or name of the .html or .md file, beside which the other is "
                        "written under the same name (default: report.html and report.md here)")  # fmt: skip
    common.add_page_options(parser, "write the page alone, there")


def run(args: argparse.Namespace) -> int:
    from iosim.studies.models.asked import asked_model, groups_of
    from iosim.studies.report import beside

    if args.html is not None and (args.out is not None or args.format == "md"):
        other = "--format md" if args.out is None else f"--out {args.out}"
        raise InputError(f"--html {args.html} contradicts {other}; give one of them")
    if args.html is not None and not args.html.lower().endswith((".html", ".htm")):
        raise InputError(f"--html '{args.html}' is no name of a page; accepted: one that ends in .html")
    args.out = "." if args.out is None else args.out
    if args.html is not None:
        args.out, args.format = args.html, "html"
    asked = common.request(args, OfProblem, problems=None)
    model = asked_model(asked)
    if model is None:
        return _write(args, tuple(common.problems(args)), args.out)
    groups = groups_of(model, asked.values)
    names = [group.kind.name.replace(" ", "-") for group in groups]
    for n, group in enumerate(groups):
        with_length = names.count(names[n]) > 1
        name = f"{names[n]}-{group.calls[0].queries}" if with_length else names[n]
        place = args.out if len(groups) == 1 else beside(args.out, name, args.format)
        common.emit(f"{group.kind.title}, {model.title}:\n\n", None)
        _write(args, group.problems, place)
    common.emit("".join(f"note: {note}\n" for note in model.all_notes), None)
    return 0


def _write(args: argparse.Namespace, problems: tuple[AttentionProblem, ...], out: str) -> int:
    from iosim.show.terminal import output
    from iosim.studies.report import ReportRequest, build, targets, write
    from iosim.studies.report.collect import baseline
    from iosim.studies.report.face import omission, verdicts

    places = targets(out, args.format).values()
    for path in places:
        common.check_own(path, args)
    before = {path for path in places if path.exists()}
    request = ReportRequest.of(
        tuple(args.gpu), tuple(args.kernel), problems, l2_start=args.l2_start, method=args.method
    )
    report = build(request, progress("predicting"))
    paths = write(report, out, args.format)
    with output(for_a_person=True):  # whatever the files' format
        told = verdicts(report.points, baseline(report.points))
        common.emit("".join(f"{verdict}\n\n" for verdict in told), None)
    for path in paths:
        print(f"{path}: {path.stat().st_size:,} bytes" + ", in place of what was there" * (path in before))
    if any(path.stat().st_size > LARGE_BYTES for path in paths):
        print("large for a mail or a web page: fewer GPUs, kernels or lengths make it smaller")
    for left_out in report.omissions:
        print(f"left out: {omission(left_out)}")
    return 0

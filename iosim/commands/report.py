"""`iosim report`: GPUs x kernels x sequence lengths as one HTML file and one Markdown file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from iosim.base.progress import progress
from iosim.commands import common
from iosim.commands.parser import CommandParser
from iosim.studies.requests import OfProblem

if TYPE_CHECKING:
    from iosim.problem.attention import AttentionProblem

LARGE_BYTES = 2_700_000
"""About 200 predictions: plotly.js takes 1.5 MB of it."""


def add_options(parser: CommandParser) -> None:
    common.add_gpus(parser)
    common.add_kernels(parser, "naive,default")
    common.add_model(parser)
    common.add_problem_options(parser, lengths="1k:64k:x2")
    common.add_conditions(parser, "l2_start", "method")
    g = parser.group("output")
    g.add_argument("--format", choices=("both", "html", "md"), default="both", metavar="FORMAT",
                   help="both, html or md (default: both)")  # fmt: skip
    g.add_argument("--out", "-o", default=".", metavar="PLACE",
                        help="directory that exists, or name of the .html or .md file, beside which the other is "
                        "written under the same name (default: report.html and report.md here)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from iosim.studies.models.asked import asked_model, groups_of
    from iosim.studies.report import beside

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

    before = {path for path in targets(out, args.format).values() if path.exists()}
    request = ReportRequest.of(
        tuple(args.gpu), tuple(args.kernel), problems, l2_start=args.l2_start, method=args.method,
    )  # fmt: skip
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

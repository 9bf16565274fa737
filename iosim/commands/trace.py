"""`iosim trace`: what happens inside a replay: hits over time, reuse distances, which CTA ran where."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.commands.parser import CommandParser
from iosim.studies.requests import TRACE, TraceRequest

if TYPE_CHECKING:
    from iosim.studies.trace.trace import TraceResult


def add_options(parser: CommandParser) -> None:
    common.add_gpu(parser)
    common.add_kernels(parser, "default")
    common.add_problem_options(parser, several=())
    common.add_kernel_options(parser)
    common.add_conditions(parser, "l2_start")
    options.add(parser.group("options"), TRACE, ("launch", "bins"))
    common.add_output_options(parser, ("table", "json", "csv", "html", "chrome"))


def run(args: argparse.Namespace) -> int:
    from iosim.base.errors import InputError
    from iosim.prediction.predictor import planned, predict
    from iosim.show import timeline
    from iosim.studies.models.prediction import requests_of
    from iosim.studies.trace import trace as views
    from iosim.studies.trace.face import answer, as_page
    from iosim.studies.trace.trace import check_bins, check_traceable, trace

    problem = common.problem(args)
    if args.format == "chrome" and len(args.kernel) > 1:
        raise InputError(f"--format chrome: {len(args.kernel)} kernels; accepted: one --kernel, a file is one timeline")
    asked = common.request(args, TraceRequest, problems=[problem], gpu=[args.gpu], method="replay")
    common.check_place(args.out)
    check_bins(asked.bins)
    calls = requests_of(asked)
    for r in calls:
        accesses = check_traceable(planned(r.problem, r.kernel, r.profile, r.overrides), asked.launch)
        common.announce_replays(f"{r.kernel} on {args.gpu}", 2 * accesses)
    traces = [
        trace(predict(r.problem, r.kernel, r.profile, l2_start=r.l2_start, method=r.method, overrides=r.overrides),
              launch=asked.launch, bins=asked.bins)
        for r in progress("tracing")(calls)
    ]  # fmt: skip
    common.tell(
        args, answer(traces), json=lambda: {"traces": [views.as_dict(t) for t in traces]},
        rows=lambda: (row for t in traces for row in views.cta_rows(t)), text=lambda _: _tables(traces),
        **common.paged(lambda: as_page(traces, common.typed("trace"))),
        chrome=lambda: timeline.text(views.chrome(traces[0])),
    )  # fmt: skip
    if args.format == "chrome":
        print(f"iosim: open {args.out or 'the file'} in {timeline.VIEWERS}", file=sys.stderr)
    return 0


def _tables(traces: Sequence[TraceResult]) -> str:
    from iosim.studies.trace.face import drift_table, reuse_table, tensor_table

    first = traces[0].prediction
    out = [
        f"Trace on {first.profile.name}: {first.problem.line}\n",
        "Bytes that SMs ask of the L2, and what of it misses\n" + tensor_table(traces).text(),
        "CTAs, and what they have in use at once (ranges between the first and the last CTA of every head)\n"
        + drift_table(traces).text(),
        "Reuse distances: distinct bytes that the partition loaded since it loaded the same line before\n"
        + reuse_table(traces).text(),
    ]
    return "\n".join(out)

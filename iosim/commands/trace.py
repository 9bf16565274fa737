"""`iosim trace`: what happens inside a replay: hits over time, reuse distances, which CTA ran where."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from iosim.base.fields import Kind
from iosim.base.progress import progress
from iosim.commands import common, options

if TYPE_CHECKING:
    from iosim.studies.trace.trace import TraceResult


TRACE = options.table(
    launch=options.value("trace this launch of the chain alone", "NAME", "all"),
    bins=options.value("time bins", "N", kind=Kind.WHOLE, default=200),
)


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "trace", help="hits over time, reuse distances and CTAs of a replay, as table, figure or Chrome trace"
    )
    common.add_gpu(parser)
    common.add_kernels(parser, "default")
    common.add_problem_options(parser, several=())
    common.add_kernel_options(parser)
    common.add_conditions(parser, "l2_start")
    options.add(common.group(parser, "options"), TRACE)
    common.add_output_options(parser, ("table", "json", "csv", "html", "chrome"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.base.errors import InputError
    from iosim.prediction.predictor import planned, predict
    from iosim.show.html import html
    from iosim.studies.trace import trace as views
    from iosim.studies.trace.face import answer, as_page
    from iosim.studies.trace.trace import check_bins, check_traceable, trace

    kernels = args.kernel
    problem = common.problem(args)
    if args.format == "chrome" and len(kernels) > 1:
        raise InputError(f"--format chrome: {len(kernels)} kernels; accepted: one --kernel, a file is one timeline")
    settings = common.overrides(args)
    common.check_place(args.out)
    check_bins(args.bins)
    for kernel in kernels:
        accesses = check_traceable(planned(problem, kernel, args.gpu, settings), args.launch)
        common.announce_replays(f"{kernel} on {args.gpu}", 2 * accesses)
    traces = [
        trace(predict(problem, kernel, args.gpu, l2_start=args.l2_start, method="replay", overrides=settings),
              launch=args.launch, bins=args.bins)
        for kernel in progress("tracing")(kernels)
    ]  # fmt: skip
    return common.tell(
        args, answer(traces), json=lambda: {"traces": [views.as_dict(t) for t in traces]},
        rows=lambda: (row for t in traces for row in views.cta_rows(t)), text=lambda _: _tables(traces),
        html=lambda: html(as_page(traces, common.typed("trace"))),
        chrome=lambda: json.dumps(views.chrome(traces[0]), separators=(",", ":"), allow_nan=False) + "\n",
    )  # fmt: skip


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

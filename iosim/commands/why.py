"""`iosim explain`, `trace` and `formula`: why a kernel moves what it moves, step by step, and in closed form."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iosim.base import fields as ask
from iosim.base.errors import InputError
from iosim.base.fields import fields_of
from iosim.base.progress import progress
from iosim.base.records import dataclass, replace
from iosim.base.units import seconds_text
from iosim.commands import common, options
from iosim.commands.options import CommandParser
from iosim.show import timeline
from iosim.show.tables import Table
from iosim.studies.requests import CHOICES, EXPLAIN, FORMULA, SIZES, TRACE, ExplainRequest, TraceRequest

if TYPE_CHECKING:
    from iosim.studies.trace.trace import TraceResult


CHANGES = 15
"""That are tried and replayed at most, alone and in pairs, about."""


def add_explain(parser: CommandParser) -> None:
    common.add_gpu(parser, several=True)
    common.add_kernel(parser, "default", several=True)
    common.add_problem_options(parser, several=common.ALL_SIZES)
    common.add_kernel_options(parser)
    common.add_conditions(parser, "l2_start", "clocks", "launched")
    options.add(parser.group("options"), EXPLAIN, ("time",))
    common.add_output_options(parser, ("table", "json", "md"))


def run_explain(args: argparse.Namespace) -> int:
    from iosim.prediction.predictor import planned
    from iosim.prediction.replays import Replays
    from iosim.studies.explain import answer, as_text, explain
    from iosim.studies.models.prediction import requests_of
    from iosim.studies.trace.trace import check_traceable
    from iosim.studies.trials import MAX_ACCESSES

    common.check_place(args.out)
    asked = common.request(args, ExplainRequest)
    if asked.time:
        return _tell_time(args, asked)
    calls = requests_of(asked)
    for r in calls:
        accesses = check_traceable(planned(r.problem, r.kernel, r.profile, r.overrides))
        tried = accesses <= MAX_ACCESSES
        common.announce_replays(
            f"{r.kernel} on {r.profile}",
            2 * accesses + (min(MAX_ACCESSES, CHANGES * accesses) if tried else 0),
            "" if tried else "; no change is tried",
        )
    replayed = (replace(r, method="replay").predict(Replays()) for r in calls)
    explanations = [explain(prediction, progress=progress("trying changes")) for prediction in replayed]
    return common.tell(
        args,
        answer(explanations),
        json=lambda: {"explanations": [e.to_dict() for e in explanations]},
        text=lambda markdown: "\n".join(as_text(e, markdown=markdown) for e in explanations),
    )


def _tell_time(args: argparse.Namespace, asked: ExplainRequest) -> int:
    from iosim.prediction.face import energy_line, line, time_table
    from iosim.prediction.many import predict_many
    from iosim.studies.models.prediction import requests_of

    predictions = list(predict_many(requests_of(asked), progress=progress("predicting")))
    answers = [
        f"{p.kernel.name} on {p.profile.name} takes {seconds_text(p.time_s)}, bound by {p.bound_by}."
        for p in predictions
    ]

    def text(markdown: bool) -> str:
        written = Table.markdown if markdown else Table.text
        return "\n\n".join(f"{line(p)}\n\n{written(time_table(p))}\n\n{energy_line(p)}" for p in predictions) + "\n"

    found = {"predictions": [p.to_dict() for p in predictions]}
    return common.tell(args, " ".join(answers), json=lambda: found, text=text)


def add_trace(parser: CommandParser) -> None:
    common.add_gpu(parser)
    common.add_kernel(parser, "default", several=True)
    common.add_problem_options(parser, several=())
    common.add_kernel_options(parser)
    common.add_conditions(parser, "l2_start")
    options.add(parser.group("options"), TRACE, ("launch", "bins"))
    common.add_output_options(parser, ("table", "json", "csv", "html", "chrome"))


def run_trace(args: argparse.Namespace) -> int:
    from iosim.prediction.predictor import planned, predict
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
        trace(
            predict(r.problem, r.kernel, r.profile, l2_start=r.l2_start, method=r.method, overrides=r.overrides),
            launch=asked.launch,
            bins=asked.bins,
        )
        for r in progress("tracing")(calls)
    ]
    common.tell(
        args,
        answer(traces),
        json=lambda: {"traces": [views.as_dict(t) for t in traces]},
        rows=lambda: (row for t in traces for row in views.cta_rows(t)),
        text=lambda _: _tables(traces),
        **common.paged(lambda: as_page(traces, common.typed("trace"))),
        chrome=lambda: timeline.text(views.chrome(traces[0])),
    )
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


@dataclass(frozen=True, kw_only=True)
class FormulaShown:
    bound: bool = ask.flag(
        "instead: bytes at both levels of the GPU beside the papers' bounds, and why M = the L2 changes them"
    )
    latex: bool = ask.flag("formulas as LaTeX, not as text")


FORMULA_OPTIONS = fields_of(FormulaShown)


def add_formula(parser: CommandParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="algorithm (flash, flash1, naive, ...) or kernel (fa2, cudnn, ...)"
    )
    rest = f"and whose fast memory M the limit is put in numbers for (default: {common.USUAL_GPU}, with M a symbol)"
    common.add_gpu(parser, None, f"GPU for which a library kernel chooses, {rest}")
    g = parser.group("sizes; those not given stay symbols")
    options.add(g, FORMULA, (*SIZES, "dtype", "splits", "tile"))
    options.add(parser.group("what is computed"), FORMULA, ("causal", "mask", *CHOICES))
    options.add(parser.group("output"), FORMULA_OPTIONS)
    common.add_output_options(parser, ("table", "json", "csv", "md"))


def run_formula(args: argparse.Namespace) -> int:
    if args.bound:
        return _run_bound(args)
    from iosim.studies.formulas.study import answer, describe, markdown, table

    description = describe(vars(args)).to_dict()

    def text(as_markdown: bool) -> str:
        written = "latex" if args.latex else "text"
        return markdown(description, args.latex) if as_markdown else table(description, written)

    return common.tell(
        args,
        answer(description),
        json=lambda: {"formula": description},
        rows=lambda: description["traffic"],
        text=text,
        code=args.latex,
    )


def _run_bound(args: argparse.Namespace) -> int:
    from iosim.studies.formulas.study import kernel_bounds

    made = kernel_bounds(vars(args))
    return common.tell(
        args,
        made.answer,
        json=lambda: {"bounds": made.to_dict()},
        rows=lambda: made.table,
        text=lambda markdown: made.table.markdown() if markdown else made.to_text(),
    )

"""`iosim explain`, `trace` and `formula`: why a kernel moves what it moves, step by step, and in closed form."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.base.records import replace
from iosim.base.units import seconds_text
from iosim.base.words import sentences
from iosim.commands import common
from iosim.prediction.confidence import basis_text, confidence, who
from iosim.prediction.face import energy_line, line, time_table
from iosim.prediction.many import predict_many
from iosim.prediction.predictor import planned
from iosim.prediction.replays import Replays
from iosim.show import timeline
from iosim.show.tables import Table
from iosim.studies import explain as explained
from iosim.studies.models.prediction import requests_of
from iosim.studies.requests import CodeRequest, ExplainRequest, TraceRequest
from iosim.studies.terms import terms_of
from iosim.studies.trace import trace as views
from iosim.studies.trace.face import as_page, drift_table, reuse_table, tensor_table, traces_answer
from iosim.studies.trace.trace import TraceResult, check_bins, check_traceable
from iosim.studies.trials import MAX_ACCESSES

CHANGES = 15
"""That are tried and replayed at most, alone and in pairs, about."""


def explain(args: argparse.Namespace) -> int:
    if args.code is not None and not common.has_problem(args):
        return _tell_code(args)
    if args.code is not None:
        args.kernel = common.with_code(args)
    request = common.request(args, ExplainRequest)
    if request.time:
        return _tell_time(args, request)
    calls = requests_of(request)
    # One replay plays the call, a second traces it; each change that is tried is one more, up to a
    # limit, above which none is.
    for r in calls:
        accesses = check_traceable(planned(r.problem, r.kernel, r.profile, r.overrides))
        tried = accesses <= MAX_ACCESSES
        played = 2 * accesses + (min(MAX_ACCESSES, CHANGES * accesses) if tried else 0)
        common.announce_replays(
            f"{r.kernel} on {r.profile}", played, "" if tried else "; no change is tried"
        )
    replayed = (replace(r, method="replay").predict(Replays()) for r in calls)
    explanations = [explained.explain(p, progress=progress("trying changes")) for p in replayed]

    def text(markdown: bool) -> str:
        return "\n".join(explained.as_text(e, markdown=markdown) for e in explanations)

    document = {"explanations": [e.to_dict() for e in explanations]}
    return common.tell(
        args, explained.explanations_answer(explanations), json=lambda: document, text=text
    )


def _tell_code(args: argparse.Namespace) -> int:
    """What a kernel that is known by its code spends its time on, on each GPU."""
    from iosim.studies import code_costs
    from iosim.studies.code_costs_face import as_dict, as_text
    from iosim.studies.code_costs_face import costs_answer as costs_answer

    costs = [
        code_costs.costs_of_code(common.request(args, CodeRequest, gpu=gpu)) for gpu in args.gpu
    ]
    return common.tell(
        args,
        " ".join(map(costs_answer, costs)),
        json=lambda: {"explanations": [as_dict(kernel_costs) for kernel_costs in costs]},
        text=lambda markdown: (
            "\n\n".join(as_text(kernel_costs, markdown=markdown) for kernel_costs in costs) + "\n"
        ),
    )


def _tell_time(args: argparse.Namespace, request: ExplainRequest) -> int:
    predictions = list(predict_many(requests_of(request), progress=progress("predicting")))
    answers = (
        sentences(
            [f"{who(p)} takes {seconds_text(p.time_s)}, bound by {p.bound_by}", confidence([p])]
        )
        for p in predictions
    )

    terms = [terms_of(p) for p in predictions] if request.terms else []

    def text(markdown: bool) -> str:
        written = Table.markdown if markdown else Table.text
        parts = []
        # Per prediction: its bounds, then a table of terms for each launch, then energy.
        for number, p in enumerate(predictions):
            parts += [line(p), written(time_table(p))]
            for launch in terms[number] if terms else ():
                parts += [launch.line, written(launch.table())]
            parts.append(energy_line(p))
        return "\n\n".join(parts) + "\n"

    document = {"predictions": [p.to_dict() for p in predictions]}
    for entry, launches in zip(document["predictions"], terms, strict=False):
        entry["terms"] = [launch.to_dict() for launch in launches]
    return common.tell(args, "\n".join(answers), json=lambda: document, text=text)


def trace(args: argparse.Namespace) -> int:
    problem = common.problem(args)
    if args.format == "chrome" and len(args.kernel) > 1:
        raise InputError(
            f"--format chrome: {len(args.kernel)} kernels; accepted: one --kernel, a file is one timeline"
        )
    request = common.request(
        args, TraceRequest, problems=[problem], gpu=[args.gpu], method="replay"
    )
    check_bins(request.bins)
    calls = requests_of(request)
    for r in calls:
        accesses = check_traceable(
            planned(r.problem, r.kernel, r.profile, r.overrides), request.launch
        )
        common.announce_replays(f"{r.kernel} on {args.gpu}", 2 * accesses)
    traces = [
        views.trace(r.predict(Replays()), launch=request.launch, bins=request.bins)
        for r in progress("tracing")(calls)
    ]
    common.tell(
        args,
        traces_answer(traces),
        json=lambda: {"traces": [views.as_dict(t) for t in traces]},
        rows=lambda: (row for t in traces for row in views.cta_rows(t)),
        text=lambda _: _tables(traces),
        **common.paged(args, lambda: as_page(traces, common.typed("trace"))),
        chrome=lambda: timeline.text(views.chrome(traces[0])),
    )
    if args.format == "chrome":
        print(f"iosim: open {args.out or 'the file'} in {timeline.VIEWERS}", file=sys.stderr)
    return 0


def _tables(traces: Sequence[TraceResult]) -> str:
    first = traces[0].prediction
    out = [
        f"Trace on {first.profile.name}: {first.problem.line}\n",
        "Bytes that SMs ask of the L2, and what of it misses\n" + tensor_table(traces).text(),
        "CTAs, and what they have in use at once (ranges between the first and the last CTA of every head)\n"
        + drift_table(traces).text(),
        "Reuse distances: distinct bytes that the partition loaded since it loaded the same line before\n"
        + reuse_table(traces).text(),
        basis_text(t.prediction for t in traces),
    ]
    return "\n".join([*out, basis_text([t.prediction for t in traces])])


def formula(args: argparse.Namespace) -> int:
    from iosim.studies.formulas.study import (
        describe,
        formula_answer,
        formula_text,
        kernel_bounds,
        markdown,
    )

    if args.bound:
        bounds = kernel_bounds(vars(args))
        document, rows = {"bounds": bounds.to_dict()}, bounds.table
        bounds_text = rows.markdown() if args.format == "md" else bounds.to_text()
        return common.tell(
            args,
            bounds.answer,
            json=lambda: document,
            rows=lambda: rows,
            text=lambda _: bounds_text,
        )
    document_of_formula = describe(vars(args)).to_dict()

    def text(as_markdown: bool) -> str:
        return (
            markdown(document_of_formula, args.latex)
            if as_markdown
            else formula_text(document_of_formula, "latex" if args.latex else "text")
        )

    rows = document_of_formula["traffic"]
    return common.tell(
        args,
        formula_answer(document_of_formula),
        json=lambda: {"formula": document_of_formula},
        rows=lambda: rows,
        text=text,
        code=args.latex,
    )

"""`iosim compare` and `report`: kernels and GPUs side by side, and as files to hand on."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import write_together
from iosim.base.progress import progress
from iosim.base.records import replace
from iosim.commands import common
from iosim.problem.attention import AttentionProblem
from iosim.show.html import html
from iosim.show.page import Page
from iosim.show.tables import Table
from iosim.show.terminal import output
from iosim.studies.compare import as_page, choice_face, face, run_choice
from iosim.studies.compare.points import baseline
from iosim.studies.compare.sentences import omission, verdicts
from iosim.studies.compare.stack import run_model
from iosim.studies.compare.study import USUAL_KERNELS
from iosim.studies.compare.study import run_comparison as run_comparison
from iosim.studies.models.asked import asked_model, groups_of, one_of_each
from iosim.studies.report import CaseGrid, beside, build, targets, write
from iosim.studies.requests import ChoiceRequest, CompareRequest, OfProblem, check_per


def compare(args: argparse.Namespace) -> int:
    check_per(args.per, args.baseline, args.price)
    if args.code is not None:
        args.kernel = common.with_code(args, USUAL_KERNELS)
    sentence, rows, result, page = _chosen(args) if args.per is not None else _compared(args)
    files = {Path(args.csv): Table.of(rows).csv()} if args.csv is not None else {}
    if args.html is not None:
        files[Path(args.html)] = html(page(common.typed("compare")), interactive=args.interactive)
    # Both files or neither: a page beside last week's CSV would be worse than none.
    write_together(files)
    common.say_written(*files)
    return common.tell(args, sentence, json=result.to_dict, rows=lambda: rows, table=result.to_text)


Found = tuple[str, list[dict[str, Any]], Any, "Callable[[str], Page]"]


def _chosen(args: argparse.Namespace) -> Found:
    choice = run_choice(common.request(args, ChoiceRequest, problems=None), progress("predicting"))
    return (
        choice_face.answer(choice),
        choice.records(),
        choice,
        partial(choice_face.as_page, choice),
    )


def _compared(args: argparse.Namespace) -> Found:
    of = common.request(args, OfProblem, problems=None)
    # A model may ask for one value of each size except the length, whose values are its columns.
    values = one_of_each(of.values)
    model, request = asked_model(of), common.request(args, CompareRequest, model=None)
    if model is None:
        compared = run_comparison(
            replace(request, problems=common.problems(args)), progress("predicting")
        )
        return face.answer(compared), compared.records(), compared, partial(as_page, compared)
    comparison = run_model(request, model, values, progress("predicting"))
    rows = [row | {"cannot_run": " ".join(row["cannot_run"])} for row in comparison.rows]
    return comparison.answer, rows, comparison, comparison.as_page


LARGE_BYTES = 1_000_000
"""About 400 predictions."""


def report(args: argparse.Namespace) -> int:
    if args.html is not None:
        if args.out is not None or args.format == "md":
            other = "--format md" if args.out is None else f"--out {args.out}"
            raise InputError(f"--html {args.html} contradicts {other}; give one of them")
        if not args.html.lower().endswith((".html", ".htm")):
            raise InputError(
                f"--html '{args.html}' is no name of a page; accepted: one that ends in .html"
            )
        args.out, args.format = args.html, "html"
    args.out = "." if args.out is None else args.out
    request = common.request(args, OfProblem, problems=None)
    model = asked_model(request)
    if model is None:
        return _write_report(args, tuple(common.problems(args)), args.out)
    groups = groups_of(model, request.values)
    names = [group.kind.name.replace(" ", "-") for group in groups]
    for n, group in enumerate(groups):
        # A kind of layer may attend otherwise at other lengths (a window that covers all of a short
        # sequence): a report for each, told apart by the length in its file's name.
        with_length = names.count(names[n]) > 1
        name = f"{names[n]}-{group.calls[0].queries}" if with_length else names[n]
        place = args.out if len(groups) == 1 else beside(args.out, name, args.format)
        common.emit(f"{group.kind.title}, {model.title}:\n\n", None)
        _write_report(args, group.problems, place)
    common.emit("".join(f"note: {note}\n" for note in model.all_notes), None)
    return 0


def _write_report(
    args: argparse.Namespace, problems: tuple[AttentionProblem, ...], out: str
) -> int:
    places = targets(out, args.format).values()
    # All refusals come before minutes of work.
    for path in places:
        common.check_own(path, args)
    before = {path for path in places if path.exists()}
    conditions = {"l2_start": args.l2_start, "method": args.method}
    request = CaseGrid.of(tuple(args.gpu), tuple(args.kernel), problems, **conditions)
    report = build(request, progress("predicting"))
    paths = write(report, out, args.format, interactive=args.interactive)
    with output(for_a_person=True):  # whatever the files' format
        sentences = verdicts(report.points, baseline(report.points))
        common.emit("".join(f"{verdict}\n\n" for verdict in sentences), None)
    for path in paths:
        replaced = ", in place of what was there" if path in before else ""
        print(f"{path}: {path.stat().st_size:,} bytes{replaced}")
    if any(path.stat().st_size > LARGE_BYTES for path in paths):
        print("large for a mail or a web page: fewer GPUs, kernels or lengths make it smaller")
    for left_out in report.omissions:
        print(f"left out: {omission(left_out)}")
    return 0

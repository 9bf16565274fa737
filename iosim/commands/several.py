"""`iosim compare`, `report` and `sweep`: kernels and GPUs side by side, as files to hand on, and rows of any number."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.fields import Kind
from iosim.base.files import write_together
from iosim.base.progress import announce, progress
from iosim.base.records import replace
from iosim.base.words import DEFAULT
from iosim.commands import common, options
from iosim.commands.options import CommandParser
from iosim.show.html import html
from iosim.show.page import Page
from iosim.show.tables import Column, Table, columns_of
from iosim.show.terminal import output
from iosim.studies.requests import (
    CHOICE,
    COMPARE,
    SWEEP,
    ChoiceRequest,
    CompareRequest,
    OfProblem,
    SweepRequest,
    check_per,
)

if TYPE_CHECKING:
    from iosim.problem.attention import AttentionProblem
    from iosim.studies.sweep.cases import Cells
    from iosim.studies.sweep.run import Summary


AXES = ("seq_q", "seq_k", "batch")
"""Fields whose options take lists, the last two with --per."""


def add_compare(parser: CommandParser) -> None:
    common.add_gpu(parser, several=True)
    common.add_kernel(parser, None, several=True, default="naive,default; with --per default and the libraries'")
    options.add(parser.group("options"), COMPARE, ("baseline",))
    options.add(parser.group("which GPU to take"), CHOICE, ("per", "price"))
    common.add_model(parser)
    common.add_problem_options(parser, several=AXES)
    common.add_conditions(parser, "l2_start", "method")
    common.add_output_options(parser, page=True)
    parser.add_argument("--csv", metavar="FILE", help="also write the rows there, as CSV")


def run_compare(args: argparse.Namespace) -> int:
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


LARGE_BYTES = 1_000_000
"""About 400 predictions."""


def add_report(parser: CommandParser) -> None:
    common.add_gpu(parser, several=True)
    common.add_kernel(parser, "naive,default", several=True)
    common.add_model(parser)
    common.add_problem_options(parser, lengths="1k:64k:x2")
    common.add_conditions(parser, "l2_start", "method")
    g = parser.group("output")
    g.add_argument("--format", choices=("both", "html", "md"), default="both", metavar="FORMAT",
                   help="both, html or md (default: both)")  # fmt: skip
    g.add_argument(
        "--out",
        "-o",
        metavar="PLACE",
        help="directory that exists, or name of the .html or .md file, beside which the other is "
        "written under the same name (default: report.html and report.md here)",
    )
    common.add_page_options(parser, "write the page alone, there")


def run_report(args: argparse.Namespace) -> int:
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
        return _write_report(args, tuple(common.problems(args)), args.out)
    groups = groups_of(model, asked.values)
    names = [group.kind.name.replace(" ", "-") for group in groups]
    for n, group in enumerate(groups):
        with_length = names.count(names[n]) > 1
        name = f"{names[n]}-{group.calls[0].queries}" if with_length else names[n]
        place = args.out if len(groups) == 1 else beside(args.out, name, args.format)
        common.emit(f"{group.kind.title}, {model.title}:\n\n", None)
        _write_report(args, group.problems, place)
    common.emit("".join(f"note: {note}\n" for note in model.all_notes), None)
    return 0


def _write_report(args: argparse.Namespace, problems: tuple[AttentionProblem, ...], out: str) -> int:
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


ONE_VALUE = (Kind.FLAG, Kind.PROBABILITY, Kind.LENGTHS, Kind.FILE)
SEVERAL = tuple(n for n, f in common.ASKED.items() if f.kind not in ONE_VALUE and f.low >= 0)
MOST_SHOWN = 1000
"""Rows that a table for a person has."""


def add_sweep(parser: CommandParser) -> None:
    common.add_gpu(parser, several=True)
    common.add_kernel(parser, "naive,default", several=True)
    common.add_model(parser)
    common.add_problem_options(parser, several=SEVERAL)
    common.add_kernel_options(parser, several=SEVERAL)
    options.add(parser.group(common.MODEL), SWEEP, ("l2_start", "method"))
    options.add(parser.group("rows and who works them out"), SWEEP, ("problems", "jobs", "dask", "fresh"))
    common.add_output_options(parser, ("table", "csv", "json"))
    parser.group("output").description = (
        "--out FILE.csv or FILE.parquet appears with the last row; what is done stands in FILE.partial until then, and "
        "the same command goes on from there."
    )


def run_sweep(args: argparse.Namespace) -> int:
    from iosim.studies.sweep.cases import NOT_SWEPT
    from iosim.studies.sweep.files import PARQUET, kind_of, written
    from iosim.studies.sweep.run import Where, asked_cases, checked, in_memory, into_file

    for name in NOT_SWEPT:
        if getattr(args, name) is not None:
            raise InputError(f"{options.spelling(name)} is no part of a sweep; accepted by: iosim predict")
    typed = {name: getattr(args, name) for name in ("gpu", "kernel", *common.ASKED) if common.is_given(args, name)}
    made = asked_cases(common.request(args, SweepRequest, values=typed))
    asked, where = checked(made, args.method, args.l2_start), Where(args.jobs, args.dask)
    kernels = made.values("kernel")
    if args.out is not None and args.format != "json":
        if args.format == "csv" and kind_of(args.out) == PARQUET:
            raise InputError(f"--format csv contradicts --out '{args.out}'; give one of them")
        try:
            summary = into_file(made, asked, where, args.out, fresh=args.fresh)
        except KeyboardInterrupt:
            announce(
                f"iosim: what is done stands in {args.out}.partial; the same command goes on from there", in_pipes=True
            )
            raise
        _tell(summary, args)
        common.emit(f"{_told(summary, kernels)}: {args.out}\n", None)
        return 0
    if args.fresh:
        raise InputError("--fresh goes with --out FILE.csv or FILE.parquet, which is begun anew")
    if args.format == "table" and len(made) > MOST_SHOWN:
        accepted = "--format csv or --out FILE.csv or FILE.parquet"
        raise InputError(f"--format table shows {MOST_SHOWN:,} rows at most, not {len(made):,}; accepted: {accepted}")
    common.check_place(args.out)
    cells, summary = in_memory(made, asked, where)
    _tell(summary, args)

    def rows() -> dict[str, Any]:
        columns = {name: column.tolist() for name, column in cells.items()}
        return {"rows": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}

    return common.tell(
        args, _told(summary, kernels), json=rows, csv=lambda: written(cells), text=lambda _: _table(cells).text()
    )


def _told(summary: Summary, kernels: Collection[str]) -> str:
    rows = f"{summary.rows:,} predictions" if summary.rows != 1 else "1 prediction"
    refused = f", {summary.refused:,} of them refused with their reason" if summary.refused else ""
    resumed = f" ({summary.resumed:,} of an earlier run)" if summary.resumed else ""
    own = "; kernel default: each GPU's own, as runs_as says" * (DEFAULT in kernels)
    return f"{rows}{refused}{resumed}{own}"


def _tell(summary: Summary, args: argparse.Namespace) -> None:
    if summary.one_by_one:
        whole = f"{summary.rows:,} rows have no closed form of --method {args.method}: each was predicted by itself"
        announce(f"iosim: {summary.one_by_one:,} of {whole}", in_pipes=True)


FOUND = ("runs_as", "l2_start", "method", "bound_by", "refused")
SHOWN = columns_of(
    "l2_read_bytes=SM<->L2 read | l2_write_bytes=written | hbm_read_bytes=HBM read | hbm_write_bytes=written | "
    "compulsory_read_bytes=compulsory"
)


def _table(cells: Cells) -> Table:
    from iosim.studies.sweep.cases import FOLLOWS, Words

    values = {name: column.tolist() for name, column in cells.items()}
    asked = [n for n, c in cells.items() if isinstance(c, Words) and n not in FOUND and len({*values[n]}) > 1]
    asked = [n for n in asked if values.get(FOLLOWS.get(n, "")) != values[n]] or ["gpu", "kernel"]
    asked += ["runs_as"] * (DEFAULT in values["kernel"])
    columns = [Column(name, name, "text" if isinstance(values[name][0], str) else "right") for name in asked]
    known = {name for name, column in values.items() if any(value is not None for value in column)}
    columns += [column for column in SHOWN if column.key in known]
    if "time_s" in cells:
        columns += columns_of("time_s=time | bound_by=bound by")
    if any(values["refused"]):
        columns.append(Column("refused"))
    rows = zip(*(values[column.key] for column in columns), strict=True)
    return Table(tuple(columns), tuple(rows))

"""`iosim sweep`: predictions of a whole grid, or of the rows of a file."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError, Terminated
from iosim.base.progress import announce
from iosim.base.units import seconds_text
from iosim.base.words import DEFAULT
from iosim.commands import common, options
from iosim.problem.fields import FIELDS
from iosim.show.tables import Column, Table
from iosim.studies.requests import Conditions, SweepRequest
from iosim.studies.sweep.cases import FOLLOWS, NOT_SWEPT, Cases, Cells, Words
from iosim.studies.sweep.files import PARQUET, kind_of, read_frame, written
from iosim.studies.sweep.page import Columns, page, plot_of
from iosim.studies.sweep.rows import columns
from iosim.studies.sweep.run import (
    Summary,
    Where,
    asked_cases,
    checked,
    in_memory,
    into_file,
    journal_of,
)

if TYPE_CHECKING:
    from iosim.studies.models.layers import Model

MOST_SHOWN = 1000
"""Rows that a table for a person has."""


def sweep(args: argparse.Namespace) -> int:
    for name in NOT_SWEPT:
        if getattr(args, name) is not None:
            raise InputError(
                f"{options.spelling(name)} is no part of a sweep; accepted by: iosim predict"
            )
    typed = {
        name: getattr(args, name)
        for name in ("gpu", "kernel", *common.ASKED)
        if common.is_given(args, name)
    }
    cases = asked_cases(common.request(args, SweepRequest, values=typed))
    conditions, where = checked(cases, args.method, args.l2_start), Where(args.jobs, args.dask)
    if args.plot and args.html is None:
        raise InputError("--plot goes with --html FILE, the page that it is drawn on")
    kernels = cases.values("kernel")
    # Into a file: parts are journaled as they are done, and an interrupted sweep goes on. Without
    # a file all rows stay in memory.
    if args.out is not None and args.format != "json":
        return _sweep_into_file(args, cases, conditions, kernels, where)
    if args.fresh:
        raise InputError("--fresh goes with --out FILE.csv or FILE.parquet, which is begun anew")
    if args.format == "table" and len(cases) > MOST_SHOWN:
        accepted = "--format csv or --out FILE.csv or FILE.parquet"
        raise InputError(
            f"--format table shows {MOST_SHOWN:,} rows at most, not {len(cases):,}; accepted: {accepted}"
        )
    cells, summary = in_memory(cases, conditions, where)
    _tell(summary, args)

    values = {name: column.tolist() for name, column in cells.items()}

    def rows() -> dict[str, Any]:
        return {
            "rows": [
                dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)
            ]
        }

    answer = _told(summary, kernels, common.loaded(args)) + _fastest(cells)
    return common.tell(
        args,
        answer,
        json=rows,
        rows=lambda: rows()["rows"],
        csv=lambda: written(cells),
        text=lambda _: _table(cells).text(),
        html=lambda: _page(args, values, _table(cells), answer),
    )


def _page(args: argparse.Namespace, values: Columns, table: Table | None, answer: str) -> str:
    from iosim.show.html import html  # its libraries are slow to load

    drawn = page(values, plot_of(values, args.plot), answer, table, common.typed(args.command))
    return html(drawn, interactive=args.interactive)


def _sweep_into_file(
    args: argparse.Namespace, cases: Cases, conditions: Conditions, kernels: Any, where: Where
) -> int:
    """Parts are journaled as they are done, and an interrupted sweep goes on."""
    if args.format == "csv" and kind_of(args.out) == PARQUET:
        raise InputError(f"--format csv contradicts --out '{args.out}'; give one of them")
    try:
        summary = into_file(cases, conditions, where, args.out, fresh=args.fresh)
    except (KeyboardInterrupt, Terminated):
        _tell_begun(args.out)
        raise
    _tell(summary, args)
    answer = _told(summary, kernels, common.loaded(args))
    if args.html is not None:
        frame = read_frame(args.out, columns(cases.names, conditions)).astype(object)
        known = frame.where(frame.notna(), None)
        values = {str(name): known[name].tolist() for name in known}
        common.emit(_page(args, values, None, answer), args.html)
    common.emit(f"{answer}: {args.out}\n", None)
    return 0


def _tell_begun(out: str) -> None:
    if journal_of(Path(out)).exists():
        announce(
            f"iosim: what is done stands in {out}.partial; the same command goes on from there",
            in_pipes=True,
        )


def _told(summary: Summary, kernels: Collection[str], model: Model | None) -> str:
    rows = f"{summary.rows:,} predictions" if summary.rows != 1 else "1 prediction"
    refused = f", {summary.refused:,} of them refused with their reason" if summary.refused else ""
    resumed = f" ({summary.resumed:,} of an earlier run)" if summary.resumed else ""
    default_note = "; kernel default: each GPU's own, as runs_as says" if DEFAULT in kernels else ""
    return f"{rows}{'' if model is None else f' of {model.title}'}{refused}{resumed}{default_note}"


def _tell(summary: Summary, args: argparse.Namespace) -> None:
    if summary.one_by_one:
        whole = f"{summary.rows:,} rows have no closed form of --method {args.method}: each was predicted by itself"
        announce(f"iosim: {summary.one_by_one:,} of {whole}", in_pipes=True)


FOUND = ("runs_as", "l2_start", "method", "bound_by", "refused")
SHOWN = (
    Column("l2_read_bytes", "SM<->L2 read"),
    Column("l2_write_bytes", "written"),
    Column("hbm_read_bytes", "HBM read"),
    Column("hbm_write_bytes", "written"),
    Column("compulsory_read_bytes", "compulsory"),
)


def _varying(cells: Cells, values: Columns) -> list[str]:
    """What differs from row to row. A column that only follows another (seq_k after seq_q) is none."""
    varying = [
        n
        for n, c in cells.items()
        if isinstance(c, Words) and n not in FOUND and len({*values[n]}) > 1
    ]
    return [n for n in varying if values.get(FOLLOWS.get(n, "")) != values[n]]


def _fastest(cells: Cells) -> str:
    """The row of the shortest time, where all rows compute the same, by what makes it differ from the others."""
    values = {name: column.tolist() for name, column in cells.items()}
    times = [t for t in values.get("time_s", ()) if t is not None]
    varying = _varying(cells, values)
    if len(times) < 2 or not varying or any(name in FIELDS for name in varying):
        return ""
    at = values["time_s"].index(min(times))
    names = ", ".join(f"{name} {values[name][at]}" for name in varying)
    return f"; fastest: {names}, {seconds_text(min(times))}, bound by {values['bound_by'][at]}"


def _table(cells: Cells) -> Table:
    values = {name: column.tolist() for name, column in cells.items()}
    varying = _varying(cells, values) or ["gpu", "kernel"]
    if DEFAULT in values["kernel"]:
        varying.append("runs_as")
    shown = [
        Column(name, name, "text" if isinstance(values[name][0], str) else "right")
        for name in varying
    ]
    known = {name for name, column in values.items() if any(value is not None for value in column)}
    shown += [column for column in SHOWN if column.key in known]
    if "time_s" in cells:
        shown += (
            Column("time_s", "time"),
            Column("bound_by", "bound by"),
        )
    if any(values["refused"]):
        shown.append(Column("refused"))
    rows = zip(*(values[column.key] for column in shown), strict=True)
    return Table(tuple(shown), tuple(rows))

"""`iosim validate`: predictions beside recorded measurements."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from iosim.commands import common

if TYPE_CHECKING:
    from iosim.validation import Comparison, Row
    from iosim.validation.residuals import Progress

PROGRESS_AFTER_S = 2.0
TABLE_WORST = 6
FORMATS = ("table", "json", "csv", "md", "html")


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "validate", help="predictions beside recorded measurements, and gates on their errors"
    )
    parser.add_argument("--measurements", metavar="FILE", help="CSV, a row a launch or a row a chain (default: the "
                        "shipped ones of library kernels and of chains)")  # fmt: skip
    parser.add_argument("--gpu", default="h200", metavar="NAME", help="GPU or profile file measured on (default h200)")
    parser.add_argument("--fail-above", action="append", default=[], metavar="QUANTITY[:STATISTIC]=LIMIT",
                        help="exit code 1 if kernels without spills err by more: hbm_read=5%% (the largest error), "
                        "hbm_read:p95=5%%, l2_read:median=0.1%% (repeats)")  # fmt: skip
    parser.add_argument("--split", action="store_true", help="odd-numbered and even-numbered calls apart, too")
    common.add_output_options(parser, FORMATS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.hardware import load_profile
    from iosim.validation import Gate, compare, default_files, read

    gates = [Gate.parse(text) for text in args.fail_above]
    profile = load_profile(args.gpu)
    files = default_files() if args.measurements is None else [args.measurements]
    comparison = compare([row for file in files for row in read(file)], profile, progress())
    common.emit(text_of(comparison, args.format, args.split), args.out)
    failed = [said for gate in gates if (said := gate.exceeded(comparison.residuals))]
    if failed:
        print(f"iosim: --fail-above: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def text_of(comparison: Comparison, form: str, split: bool) -> str:
    """The comparison in one of FORMATS."""
    from iosim.validation import summarise
    from iosim.validation.sections import INTRODUCTION, sections

    if form == "json":
        rows = [r.to_dict() for r in comparison.residuals]
        skipped = [s.to_dict() for s in comparison.skipped]
        return common.json_text({"schema": 1, "rows": rows, **summarise(comparison, split=split), "skipped": skipped})
    if form == "csv":
        return common.csv_text(flat(r.to_dict()) for r in comparison.residuals)
    if form in ("md", "html"):
        from iosim.validation import pages

        return (pages.markdown if form == "md" else pages.html)(comparison, split=split)
    shown = sections(comparison, split=split, most=TABLE_WORST)
    parts = [f"{s.title}\n{common.table_text(s.records())}" for s in shown]
    return "\n".join([*parts, INTRODUCTION + "\n"])


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """One line of the CSV: the problem's fields beside the others."""
    return {**{k: v for k, v in row.items() if k != "problem"}, **row["problem"]}


def progress() -> Progress:
    """A bar on standard error for work of more than two seconds, on a terminal only."""
    if not sys.stderr.isatty():
        return lambda calls: calls
    from tqdm import tqdm

    def bar(calls: Sequence[list[Row]]) -> Iterable[list[Row]]:
        shown: Iterable[list[Row]] = tqdm(calls, desc="predicting", delay=PROGRESS_AFTER_S, leave=False)
        return shown

    return bar

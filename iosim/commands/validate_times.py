"""`iosim validate --times`: predicted beside recorded and published times, by group."""

from __future__ import annotations

import argparse
import sys

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.commands import common

FORMATS = ("table", "json", "csv")
NOT_WITH_TIMES = ("measurements", "ncu", "report", "split", "across", "with_spills")
"""Options of byte tables, which --times refuses."""
ONLY_WITH_TIMES = ("every", "ablation", "baselines")


def check(args: argparse.Namespace) -> None:
    """Refuses options of the other comparison. Raises InputError: one of them was given."""
    for name in NOT_WITH_TIMES if args.times else ONLY_WITH_TIMES:
        if getattr(args, name):
            why = "contradicts --times; accepted: one of both" if args.times else "needs --times; accepted: both"
            raise InputError(f"--{name.replace('_', '-')} {why}")
    if args.times and args.format not in FORMATS:
        raise InputError(f"--format {args.format} contradicts --times; accepted with it: {', '.join(FORMATS)}")
    if args.every is not None and args.every < 1:
        raise InputError(f"--every {args.every} is out of range; accepted: 1 or more")


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; 1 where a gate does not hold."""
    from iosim.evidence.times.report import TimeGate, times_report

    gates = [TimeGate.parse(text) for text in args.fail_above]
    report = times_report(args.every or 1, with_worth=args.ablation, with_baselines=args.baselines,
                          show=progress("reading tables"))  # fmt: skip

    def text(_: bool) -> str:
        parts = [report.table().text()]
        if report.worth:
            parts.append(f"Each mechanism switched off: mean of the groups' errors\n{report.worth_table().text()}")
        if report.baselines:
            parts.append(f"Simpler predictions, fitted on odd rows, on the even ones\n{report.baseline_table().text()}")
        return "\n".join([*parts, *(f"{key} left out: {reason}\n" for key, reason in report.missing.items())])

    common.tell(args, report.answer, json=report.to_dict, rows=lambda: (row.record() for row in report.rows), text=text)
    failed = [message for gate in gates if (message := gate.exceeded(report))]
    if failed:
        print(f"iosim: --fail-above: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0

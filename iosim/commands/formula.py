"""`iosim formula`: bytes between SMs and L2 in closed form, and the papers' bounds."""

from __future__ import annotations

import argparse

from iosim.commands import common
from iosim.studies.formulas.study import answer, describe, kernel_bounds, markdown, table


def run(args: argparse.Namespace) -> int:
    if args.bound:
        return _run_bound(args)
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
    made = kernel_bounds(vars(args))
    return common.tell(
        args,
        made.answer,
        json=lambda: {"bounds": made.to_dict()},
        rows=lambda: made.table,
        text=lambda markdown: made.table.markdown() if markdown else made.to_text(),
    )

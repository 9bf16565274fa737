"""`iosim formula`: a kernel's SM<->L2 bytes in closed form, in symbols or with numbers put in, and their limit."""

from __future__ import annotations

import argparse

from iosim.base import fields as ask
from iosim.base.fields import fields_of
from iosim.base.records import dataclass
from iosim.commands import common, options
from iosim.commands.parser import CommandParser
from iosim.studies.requests import CHOICES, FORMULA, SIZES


@dataclass(frozen=True, kw_only=True)
class FormulaShown:
    """What is shown of a kernel's formulas."""

    bound: bool = ask.flag(
        "instead: bytes at both levels of the GPU beside the papers' bounds, and why M = the L2 changes them"
    )
    latex: bool = ask.flag("formulas as LaTeX, not as text")


FORMULA_OPTIONS = fields_of(FormulaShown)


def add_options(parser: CommandParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="algorithm (flash, flash1, naive, ...) or kernel (fa2, cudnn, ...)"
    )
    common.add_gpu(parser, None, f"GPU for which a library kernel chooses, and whose fast memory M the limit is put "
                   f"in numbers for (default: {common.USUAL_GPU}, with M a symbol)")  # fmt: skip
    g = parser.group("sizes; those not given stay symbols")
    options.add(g, FORMULA, (*SIZES, "dtype", "splits", "tile"))
    options.add(parser.group("what is computed"), FORMULA, ("causal", "mask", *CHOICES))
    options.add(parser.group("output"), FORMULA_OPTIONS)
    common.add_output_options(parser, ("table", "json", "csv", "md"))


def run(args: argparse.Namespace) -> int:
    if args.bound:
        return _run_bound(args)
    from iosim.studies.formulas.study import answer, describe, markdown, table

    description = describe(vars(args)).to_dict()

    def text(as_markdown: bool) -> str:
        written = "latex" if args.latex else "text"
        return markdown(description, args.latex) if as_markdown else table(description, written)

    return common.tell(
        args, answer(description), json=lambda: {"formula": description}, rows=lambda: description["traffic"],
        text=text, code=args.latex,
    )  # fmt: skip


def _run_bound(args: argparse.Namespace) -> int:
    from iosim.studies.formulas.study import kernel_bounds

    made = kernel_bounds(vars(args))
    return common.tell(
        args, made.answer, json=lambda: {"bounds": made.to_dict()}, rows=lambda: made.table,
        text=lambda markdown: made.table.markdown() if markdown else made.to_text(),
    )  # fmt: skip

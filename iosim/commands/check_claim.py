"""`iosim check-claim`: a number from elsewhere, and which level, direction and count it is of."""

from __future__ import annotations

import argparse

from iosim.base.errors import InputError
from iosim.commands import common, options
from iosim.commands.parser import CommandParser
from iosim.studies.requests import CLAIM, CLAIMS, ClaimRequest


def add_options(parser: CommandParser) -> None:
    options.add(parser.group("the number, as it was published"), CLAIM)
    common.add_gpu(parser)
    common.add_kernel(parser, "default")
    common.add_problem_options(parser, several=())
    common.add_kernel_options(parser)
    common.add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    from iosim.evidence.claims.check import as_text
    from iosim.evidence.claims.check import run as check

    if all(getattr(args, name) is None for name in CLAIMS):
        examples = ", ".join(f"--{name} {example}" for name, example in CLAIMS.items())
        raise InputError(f"a claim is missing; accepted: {examples}")
    checks = check(common.request(args, ClaimRequest, problem=common.problem(args)))
    return common.tell(
        args, " ".join(c.answer() for c in checks), json=lambda: {"claims": [c.to_dict() for c in checks]},
        rows=lambda: (
            {"claim": c.claim.text, "quantity": c.claim.quantity} | m.to_dict() | {"slips": "; ".join(m.reading.slips)}
            for c in checks
            for m in c.matches
        ),
        text=lambda _: "\n".join(map(as_text, checks)),
    )  # fmt: skip

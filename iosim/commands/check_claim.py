"""`iosim check-claim`: a number from elsewhere, and which level, direction and count it is of."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.commands import common, options
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.evidence.claims import Check

CLAIMS = (
    ("hbm", "4.3GB", "bytes that are said to move between HBM and the L2"),
    ("l2", "2.2GB", "bytes that are said to move between the L2 and the SMs"),
    ("time", "1.4ms", "time that a call is said to take"),
    ("flops", "137GFLOP", "operations that a call is said to take"),
)


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "check-claim", help="what a number from elsewhere counts (LLM-Viewer, a paper, a profiler), and why it is off"
    )
    g = common.group(parser, "the number, as it was published")
    for name, example, meaning in CLAIMS:
        g.add_argument(f"--{name}", action=options.One, metavar="AMOUNT", help=f"{meaning}, such as {example}")
    told = "how far a count may be from it, such as 2%% (default: 1 %%, or half a unit of its last digit up to 5 %%)"
    g.add_argument("--tolerance", action=options.One, metavar="SHARE", help=told)
    g.add_argument("--layers", type=options.whole, action=options.One, metavar="N",
                   help="layers of the model, where the number may be of all of them")  # fmt: skip
    common.add_gpu(parser)
    common.add_kernel(parser, "default")
    common.add_problem_options(parser, several=())
    common.add_kernel_options(parser)
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.evidence.claims import check, parse, share
    from iosim.evidence.claims.face import as_text

    claims = [parse(name, text) for name, _, _ in CLAIMS if (text := getattr(args, name)) is not None]
    if not claims:
        raise InputError(f"a claim is missing; accepted: {', '.join(f'--{name} {one}' for name, one, _ in CLAIMS)}")
    if args.layers is not None and args.layers < 1:
        raise InputError(f"--layers {args.layers} is out of range; accepted: 1 or more")
    problems = common.problems(args)
    if len(problems) > 1:
        raise InputError(f"--seq-len {args.seq_q} are {len(problems)} lengths; accepted: one")
    settings = common.overrides(args)
    checks = [
        check(claim, problems[0], args.kernel, args.gpu, tolerance=share(args.tolerance), layers=args.layers,
              overrides=settings)
        for claim in claims
    ]  # fmt: skip
    if args.format == "json":
        text = common.json_text({"schema": 1, "answer": answer(checks), "claims": [c.to_dict() for c in checks]})
    elif args.format == "csv":
        text = Table.of({"claim": c.claim.text, "quantity": c.claim.quantity} | m.to_dict()
                        | {"slips": "; ".join(m.reading.slips)} for c in checks for m in c.matches).csv()  # fmt: skip
    else:
        text = f"{answer(checks)}\n\n" + "\n".join(map(as_text, checks))
    common.emit(text, args.out)
    return 0


def answer(checks: list[Check]) -> str:
    """A sentence a claim."""
    return " ".join(c.answer() for c in checks)

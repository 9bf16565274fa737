"""`iosim explain`: why a kernel's HBM bytes are what they are, and which change would help most."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from iosim.base.progress import progress
from iosim.commands import common
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.studies.explain import Explanation

CHANGES = 15
"""That are tried and replayed at most, alone and in pairs, about."""


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain", help="why a kernel's HBM bytes are what they are, and what would lower them"
    )
    common.add_gpus(parser)
    common.add_kernels(parser, "fa2")
    common.add_problem_options(parser, several=common.ALL_SIZES)
    common.add_kernel_options(parser)
    common.add_l2_option(parser)
    common.add_output_options(parser, ("table", "json", "md"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from iosim.prediction.predictor import planned, predict
    from iosim.studies.explain import answer, explain
    from iosim.studies.trace.trace import check_traceable
    from iosim.studies.trials import MAX_ACCESSES

    common.check_place(args.out)
    settings = common.overrides(args)
    asked = [(problem, kernel, gpu) for gpu in args.gpu for problem in common.problems(args) for kernel in args.kernel]
    for one in asked:
        accesses = check_traceable(planned(*one, settings))
        tried = accesses <= MAX_ACCESSES
        common.announce_replays(
            f"{one[1]} on {one[2]}", 2 * accesses + (min(MAX_ACCESSES, CHANGES * accesses) if tried else 0),
            "" if tried else "; no change is tried",
        )  # fmt: skip
    explanations = [
        explain(
            predict(*one, l2_start=args.l2, method="replay", overrides=settings), progress=progress("trying changes")
        )
        for one in asked
    ]
    if args.format == "json":
        text = common.json_text(
            {"schema": 1, "answer": answer(explanations), "explanations": [e.to_dict() for e in explanations]}
        )
    else:
        parts = (as_text(e, markdown=args.format == "md") for e in explanations)
        text = "\n".join([f"{answer(explanations)}\n", *parts])
    common.emit(text, args.out)
    return 0


def as_text(e: Explanation, *, markdown: bool) -> str:
    """The explanation for a person."""
    from iosim.base.units import bytes_text, seconds_text

    p = e.prediction
    q = p.problem
    written = Table.markdown if markdown else Table.text
    head, item = ("### ", "- ") if markdown else ("", "  ")
    once = p.hbm_bounds
    read, write = p.total("hbm", "read"), p.total("hbm", "write")
    out = [
        f"{head}{p.kernel.name} on {p.profile.name}: batch {q.batch}, {q.heads} heads, {q.seq_q} x {q.seq_k} tokens, "
        f"head_dim {q.head_dim}, {q.dtype}, mask {q.mask_text}, {q.passes}; tile {p.kernel.tile}\n",
        f"HBM read {bytes_text(read)} (compulsory {bytes_text(once.compulsory_read)}), written {bytes_text(write)} "
        f"(compulsory {bytes_text(once.compulsory_write)}); time {seconds_text(p.time.total_s)}, bound by "
        f"{p.time.bound_by}\n",
    ]
    for one in e.launches:
        out.append(f"{head}Regime of launch {one.name}: {one.regime}")
        out += [f"{item}{reason}" for reason in one.reasons]
        out.append("")
    out.append("### Where the HBM bytes come from\n" if markdown else "Where the HBM bytes come from")
    out.append(written(Table.of([
        {"launch": s.launch, "tensor": s.tensor, "direction": s.direction, "HBM": bytes_text(s.hbm_bytes),
         "compulsory": bytes_text(s.once_bytes), "share": f"{100 * s.hbm_bytes / max(1, read + write):.1f} %"}
        for s in e.sources
    ])))  # fmt: skip
    out.append(f"{head}What a change would do: {e.advice}" + "\n" * markdown)
    if e.tried.trials:
        now = {"change": "(now)", "HBM": bytes_text(read + write), "against now": "",
               "time": seconds_text(p.time.total_s), "time against now": ""}  # fmt: skip
        out.append(written(Table.of([now] + [
            {"change": t.words, "HBM": bytes_text(t.hbm_bytes), "against now": _percent(t.hbm_bytes, read + write),
             "time": seconds_text(t.time_s), "time against now": _percent(t.time_s, p.time.total_s)}
            for t in e.tried.trials
        ])))  # fmt: skip
    out += [f"{item}not tried: {words}: {reason}" for words, reason in e.tried.skipped]
    return "\n".join(out) + "\n"


def _percent(then: float, now: float) -> str:
    return f"{100 * (then / now - 1):+.1f} %" if now else ""

"""`iosim orders`: in which order the tiles of a kernel should start, the best first, with the code that does it.

With `--check-constant section=50MiB` it says where a library's constant is right, and where it loses.
"""

from __future__ import annotations

import argparse
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.commands import common
from iosim.commands.asked import ORDERS_SHOWN, SHOWN_ORDERS
from iosim.evidence.claims.readings import parse
from iosim.problem.attention import AttentionProblem
from iosim.studies.orders import OrderRanking
from iosim.studies.orders.constant import check_constant
from iosim.studies.orders.entry import answer
from iosim.studies.orders.search import run as search
from iosim.studies.requests import OrdersRequest

GRID = "4k:64k:x2"
"""Lengths of the problems that a constant is checked on where none are given."""


SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "mask")


def run(args: argparse.Namespace) -> int:
    ORDERS_SHOWN["top"].check(args.top)
    if args.check_constant is not None:
        return tell_constant(args)
    rankings = ranked(args)
    if args.code is not None:
        common.emit(code_text(args, rankings), args.out, code=True)
        return 0

    def text(markdown: bool) -> str:
        return "\n".join(r.listed(args.top or SHOWN_ORDERS, markdown=markdown) for r in rankings)

    shown = [(r, entry) for r in rankings for entry in r.orders[: args.top]]
    rows = ({"profile": r.profile.name, "kernel": r.kernel} | entry.to_dict() for r, entry in shown)
    told = " ".join(map(answer, rankings)) if args.format == "json" else None
    return common.tell(args, told, json=lambda: as_json(rankings, args.top), rows=lambda: rows, text=text)


def ranked(args: argparse.Namespace) -> list[OrderRanking]:
    of_layers = common.layer_problems(args)
    counts = [float(layers.count) for layers, _ in of_layers if layers is not None]
    asked = {"problems": [problem for _, problem in of_layers], "counts": counts or None, "model": None}
    requests = [common.request(args, OrdersRequest, **asked, gpu=gpu) for gpu in args.gpu]
    return [search(one, progress("predicting orders")) for one in requests]


def as_json(rankings: list[OrderRanking], top: int | None) -> dict[str, Any]:
    plain = [r.to_dict() for r in rankings]
    keys = ("profile", "kernel", "problems", "compulsory_bytes", "own", "left_out", "notes")
    orders = [{"profile": r["profile"]} | entry for r in plain for entry in r["orders"][:top]]
    return {"orders": orders, "searches": [{key: r[key] for key in keys} for r in plain]}


def code_text(args: argparse.Namespace, rankings: list[OrderRanking]) -> str:
    codes = [(r, r.best.choice.words, r.code(args.code)) for r in rankings]
    if args.format == "json":
        keys = ("profile", "language", "words", "code")
        written = [dict(zip(keys, (r.profile.name, args.code, *of_best), strict=True)) for r, *of_best in codes]
        return common.json_text({"schema": 1, "code": written})
    mark = "//" if args.code == "cuda" else "#"
    return "\n".join(f"{mark} {r.kernel} on {r.profile.name}: {words}\n{code}" for r, words, code in codes)


def tell_constant(args: argparse.Namespace) -> int:
    size, problems = section_size(args.check_constant), grid(args)
    shown = progress("predicting sections")
    checks = [check_constant(size, problems, args.kernel, gpu, progress=shown) for gpu in args.gpu]
    found = [c.to_dict() for c in checks]
    rows = [{"profile": c.profile.name} | row for c, one in zip(checks, found, strict=True) for row in one["checks"]]
    rows = [row | {name: row["problem"][name] for name in SIZES} for row in rows]
    rows = [{name: value for name, value in row.items() if name != "problem"} for row in rows]

    def text(markdown: bool) -> str:
        return "\n".join(c.table.markdown() if markdown else c.table.text() for c in checks)

    told = " ".join(c.answer for c in checks)
    return common.tell(args, told, json=lambda: {"constants": found}, rows=lambda: rows, text=text)


def section_size(text: str) -> int:
    """Bytes of `section=50MiB`. Raises InputError: another constant, or no size."""
    name, _, size = text.partition("=")
    try:
        if name.strip() == "section":
            return round(parse("l2", size).value)
    except InputError:
        pass
    raise InputError(f"--check-constant '{text}' is not known; accepted: section=SIZE, such as section=50MiB")


def grid(args: argparse.Namespace) -> list[AttentionProblem]:
    """The problems asked for. What is not given runs over a grid: lengths and, without a model, all heads and a
    quarter of them on the keys, with and without a causal mask."""
    if args.seq_q is None:
        args.usual_lengths = GRID
    problems = common.problems(args)
    if args.model is not None:
        return problems
    if args.kv_heads is None:
        problems += [p.with_(kv_heads=p.heads // 4) for p in problems if p.heads % 4 == 0 and p.kv_heads == p.heads]
    if not args.causal and args.mask is None and args.window is None:
        problems += [p.with_(mask="causal") for p in problems]
    return problems

"""`iosim tiles` and `orders`: the tiles that fit a problem on a GPU, and the orders in which they may start, ranked.

With `--triton` a ranking of tiles is a list of `triton.Config` in Python; `--check-constant section=50MiB` says where a
library's constant is right, and where it loses.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.base.units import bytes_text, seconds_text
from iosim.commands import common
from iosim.commands.asked import ORDERS_SHOWN, SHOWN_ORDERS, SHOWN_TILES, TILES_SHOWN
from iosim.evidence.claims.readings import parse
from iosim.evidence.cuda.tile_builds import reports
from iosim.hardware.profile import load_profile
from iosim.prediction.result import legend_of, mark_of
from iosim.problem.attention import AttentionProblem
from iosim.show.tables import Table
from iosim.studies.orders import OrderRanking
from iosim.studies.orders.constant import check_constant
from iosim.studies.orders.entry import ranking_answer
from iosim.studies.orders.page import page as orders_page
from iosim.studies.orders.search import rank_orders as search
from iosim.studies.requests import OrdersRequest, TilesRequest
from iosim.studies.tiles.one import (
    TileStudy,
    beneath,
    by_reason,
    excess_text,
    study_tile,
    tiles_answer,
)
from iosim.studies.tiles.page import page as tiles_page
from iosim.studies.tiles.pick import TIED_PERCENT, TileCandidate, TileRanking, check_tiles
from iosim.studies.tiles.pick import rank_tiles as rank


def tiles(args: argparse.Namespace) -> int:
    TILES_SHOWN["top"].check(args.top)
    if args.triton is not None:
        return tell_triton(args)
    if args.tile is None and (args.warps or args.stages):
        raise InputError(
            f"--{'warps' if args.warps else 'stages'} is for one tile; accepted: with --tile QxK"
        )
    if args.code is not None:
        if common.is_given(args, "kernel"):
            raise InputError(
                f"--kernel {args.kernel} contradicts --code {args.code}; accepted: one of them"
            )
        args.kernel = common.with_code(args)[0]
    # GPU by GPU, then kind of layer by kind of layer: the order of all outputs below.
    picks = []
    for gpu in args.gpu:
        for kind, problem in common.layer_problems(args):
            request = common.request(
                args, TilesRequest, problem=problem, gpu=gpu, kind=kind, model=None
            )
            check_tiles(request, load_profile(gpu))
            # With --compile ptxas says registers and spills; without it recorded builds do, and what
            # neither knows is estimated.
            known = reports(problem, gpu, args.compile, args.matrix_unit, progress("compiling"))
            picks.append(rank(request, known, progress("replaying")))
    if args.tile is not None:
        return tell_tiles(args, picks)

    def text(markdown: bool) -> str:
        return (
            "\n".join(
                as_text(r, args.top or SHOWN_TILES, args.rejected, markdown=markdown) for r in picks
            )
            + under
        )

    under = "\n" + "".join(f"{sentence}\n" for sentence in map(beneath, picks) if sentence)
    rows = as_rows(picks, args.top, args.rejected)
    return common.tell(
        args,
        tiles_answer(picks),
        json=lambda: _tiles_json(picks, args.top),
        rows=lambda: rows,
        text=text,
        **common.html_page(args, lambda: tiles_page(picks, common.typed("tiles"))),
    )


def tell_tiles(args: argparse.Namespace, rankings: Sequence[TileRanking]) -> int:
    settings = {"matrix_unit": args.matrix_unit, "warps": args.warps, "stages": args.stages}
    studies = [(r, study_tile(r, sides, **settings)) for r in rankings for sides in args.tile]
    document = {"studies": [_asked(r) | study.to_dict() for r, study in studies]}
    rows = (row for r, study in studies for row in _study_rows(r, study))
    text = "\n".join(study_text(r, study, markdown=args.format == "md") for r, study in studies)
    sentences = (
        " ".join(study.answer + "." for _, study in studies) if args.format == "json" else None
    )
    return common.tell(
        args, sentences, json=lambda: document, rows=lambda: rows, text=lambda _: text
    )


def _study_rows(ranking: TileRanking, study: TileStudy) -> list[dict[str, Any]]:
    ranked = [
        {"rank": rank} | c.to_dict() | {"limited_by": " ".join(c.limited_by)}
        for rank, c in study.ranked
    ]
    # Rows of one CSV have the same columns: a rejected tile has those of one that fits, empty. If
    # none of these sides fits the nearest that does lends its columns.
    known = ranked[0] if ranked else {} if study.nearest is None else study.nearest[1].to_dict()
    empty: dict[str, Any] = dict.fromkeys(["rank", *known])
    rejected = [empty | r.to_dict() for r in study.rejected]
    rows = [row | {"reason": None} for row in ranked] + rejected
    return [_place(ranking) | {"fits": row["reason"] is None} | row for row in rows]


def study_text(ranking: TileRanking, study: TileStudy, *, markdown: bool) -> str:
    candidates = study.ranked or ([] if study.nearest is None else [study.nearest])
    parts: list[str | Table] = [f"{study.answer}.\n", heading(ranking)]
    if candidates and not study.ranked:
        parts.append("The nearest tile that fits")
    parts += [_listed(candidates), *_legend(c for _, c in candidates)] if candidates else []
    if study.rejected:
        rows = ((r.tile, r.reason + excess_text(r.reason)) for r in study.rejected)
        parts += [
            "Rejected",
            Table.of({"warps": t.warps, "stages": t.stages, "reason": why} for t, why in rows),
        ]
    return _written(parts, markdown)


def _listed(tiles: Iterable[tuple[int | str, TileCandidate]]) -> Table:
    return Table.of(_candidate_row(name, c) for name, c in tiles)


def _legend(tiles: Iterable[TileCandidate]) -> list[str]:
    return list(filter(None, [legend_of(c.method for c in tiles)]))


def _written(parts: Sequence[str | Table], markdown: bool) -> str:
    write = Table.markdown if markdown else Table.text
    texts = (write(part) if isinstance(part, Table) else f"{part}\n" for part in parts)
    return "### " * markdown + "\n".join(texts)


def heading(ranking: TileRanking) -> str:
    layers = "" if ranking.layers is None else f" for {ranking.layers}"
    kernel = "" if ranking.of_kernel is None else f" of {ranking.of_kernel.kernel.name}"
    return f"Tiles{kernel}{layers} on {ranking.profile.name}: {ranking.problem.line}"


def tell_triton(args: argparse.Namespace) -> int:
    from iosim.integrations.triton import compiled, kernel

    if args.format == "md" or args.rejected or args.kernel or args.matrix_unit != "mma.sync":
        option = (
            "--rejected"
            if args.rejected
            else "--kernel"
            if args.kernel
            else "--format md"
            if args.format == "md"
            else "--matrix-unit"
        )
        raise InputError(
            f"{option} does not go with --triton; accepted: --top, --format table, json or csv"
        )
    # Without --compile nothing is compiled, and the ranking rests on estimates.
    compile_configs = partial(
        compiled.compiled_configs, limit=args.compile, progress=progress("compiling")
    )
    built = None if args.compile is None else compile_configs
    lists = kernel.ranked(
        args.gpu, common.problems(args), args.top or SHOWN_TILES, args.triton, built
    )
    rows, answers = (
        [row for ranking in lists for row in ranking.rows()],
        " ".join(ranking.answer for ranking in lists),
    )
    code = partial(kernel.source, lists)
    return common.tell(
        args, answers, json=lambda: {"triton": rows}, rows=lambda: rows, table=code, code=True
    )


def _layers(ranking: TileRanking) -> dict[str, Any]:
    return (
        {}
        if ranking.layers is None
        else {"layer": ranking.layers.name, "count": ranking.layers.count}
    )


def _asked(ranking: TileRanking) -> dict[str, Any]:
    p = ranking.problem
    return _layers(ranking) | {"profile": ranking.profile.name, "seq_q": p.seq_q, "seq_k": p.seq_k}


def _place(ranking: TileRanking) -> dict[str, Any]:
    """The first columns of a row of CSV, where a GPU is called as in every other command's."""
    asked = _asked(ranking)
    return {"gpu" if key == "profile" else key: value for key, value in asked.items()}


def _tiles_json(rankings: Sequence[TileRanking], top: int | None) -> dict[str, Any]:
    def entries(kind: str, limit: int | None = None) -> list[dict[str, Any]]:
        return [_asked(r) | item.to_dict() for r in rankings for item in getattr(r, kind)[:limit]]

    return {
        "problems": [
            _layers(r)
            | {"profile": r.profile.name, "problem": r.problem.to_dict(), "ties": len(r.ties)}
            for r in rankings
        ],
        "tiles": entries("candidates", top),
        "rejected": entries("rejected"),
        "rejected_by_reason": [
            _asked(r) | {"reason": g.reason, "tiles": len(g.tiles)}
            for r in rankings
            for g in by_reason(r.rejected)
        ],
        "library": entries("library"),
    }


def as_rows(
    rankings: Sequence[TileRanking], top: int | None, rejected: bool
) -> Iterator[dict[str, Any]]:
    for r in rankings:
        if rejected:
            yield from (_place(r) | t.to_dict() for t in r.rejected)
            continue
        for kind, group in (("tile", r.candidates[:top]), ("library", r.library)):
            for c in group:
                yield (
                    _place(r)
                    | {"kind": kind}
                    | c.to_dict()
                    | {"limited_by": " ".join(c.limited_by)}
                )


def as_text(ranking: TileRanking, top: int, rejected: bool, *, markdown: bool) -> str:
    candidates = ranking.candidates[:top]
    spilled = (
        ", +N: N bytes of them spilled a thread" if any(c.spilled_bytes for c in candidates) else ""
    )
    fit = f"{len(ranking.candidates)} fit, {len(ranking.rejected)} do not; e: registers estimated{spilled}"
    ties = min(len(ranking.ties), top)
    if ties > 1:
        fit += f"; 1 to {ties} tie within {TIED_PERCENT} %"
    parts: list[str | Table] = [
        heading(ranking),
        fit,
        _listed(enumerate(candidates, 1)).winning("rank", range(1, len(ranking.ties) + 1)),
    ]
    if ranking.library:
        parts += [
            "Library kernels, with their own tiles"
            if ranking.of_kernel is None
            else "The library's own tile",
            _listed((c.kernel, c) for c in ranking.library),
        ]
    parts += _legend((*candidates, *ranking.library))
    if rejected:
        groups = by_reason(ranking.rejected)
        listed = []
        for g in groups:
            # The smallest and the largest tile of a reason stand for all of them.
            tiles = sorted(g.tiles, key=lambda t: (t.block_q * t.block_k, t.warps, t.stages))
            examples = " ".join(dict.fromkeys(map(str, (tiles[0], tiles[-1]))))
            listed.append({"tiles": len(tiles), "reason": g.reason, "such as": examples})
        hint = "--tile QxK says more of one, --format csv lists them"
        parts += [f"Rejected: {len(ranking.rejected)}; {hint}", Table.of(listed)]
    return _written(parts, markdown)


def _candidate_row(name: int | str, c: TileCandidate) -> dict[str, Any]:
    estimated = "e" if c.registers_source == "estimated" else ""
    spilled = f"+{c.spilled_bytes}" if c.spilled_bytes else ""
    return {
        "kernel" if isinstance(name, str) else "rank": name,
        "tile": str(c.tile),
        "warps": c.tile.warps,
        "stages": c.tile.stages,
        "time": seconds_text(c.time_s),
        "bound by": c.bound_by,
        "L2 read": bytes_text(c.l2_read_bytes),
        "L2 written": bytes_text(c.l2_write_bytes),
        "HBM": bytes_text(c.hbm_read_bytes + c.hbm_write_bytes) + mark_of(c.method),
        "CTAs/SM": c.ctas_per_sm,
        "occupancy": f"{c.occupancy:.0%}",
        "limited by": " ".join(c.limited_by),
        "waves": f"{c.waves:.2f}",
        "shared memory": "-" if c.shared_memory_bytes is None else f"{c.shared_memory_bytes:,}",
        "registers": f"{c.registers}{estimated}{spilled}",
    }


GRID = "4k:64k:x2"
"""Lengths of the problems that a constant is checked on where none are given."""


ASKED_SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "mask")


def orders(args: argparse.Namespace) -> int:
    ORDERS_SHOWN["top"].check(args.top)
    if args.check_constant is not None:
        return tell_constant(args)
    rankings = ranked(args)
    if args.code is not None:
        common.emit(code_text(args, rankings), args.out, code=True)
        return 0

    def text(markdown: bool) -> str:
        return "\n".join(r.listed(args.top or SHOWN_ORDERS, markdown=markdown) for r in rankings)

    entries = [(r, entry) for r in rankings for entry in r.orders[: args.top]]
    rows = ({"gpu": r.profile.name, "kernel": r.kernel} | entry.to_dict() for r, entry in entries)
    answers = " ".join(map(ranking_answer, rankings)) if args.format == "json" else None
    return common.tell(
        args,
        answers,
        json=lambda: _orders_json(rankings, args.top),
        rows=lambda: rows,
        text=text,
        **common.html_page(args, lambda: orders_page(rankings, common.typed("orders"))),
    )


def ranked(args: argparse.Namespace) -> list[OrderRanking]:
    # One search for all layers of a model: an order is good if the sum over the layers is,
    # each weighed by its count.
    of_layers = common.layer_problems(args)
    counts = [float(layers.count) for layers, _ in of_layers if layers is not None]
    title = next((layers.title for layers, _ in of_layers if layers is not None), "")
    common_fields = {
        "problems": [problem for _, problem in of_layers],
        "counts": counts or None,
        "title": title,
        "model": None,
    }
    requests = [common.request(args, OrdersRequest, **common_fields, gpu=gpu) for gpu in args.gpu]
    return [search(request, progress("predicting orders")) for request in requests]


def _orders_json(rankings: list[OrderRanking], top: int | None) -> dict[str, Any]:
    plain = [r.to_dict() for r in rankings]
    # Orders stand flat, a row each; what is common to a search stands beside them, once.
    keys = ("profile", "kernel", "problems", "compulsory_bytes", "own", "left_out", "notes")
    orders = [{"profile": r["profile"]} | entry for r in plain for entry in r["orders"][:top]]
    return {"orders": orders, "searches": [{key: r[key] for key in keys} for r in plain]}


def code_text(args: argparse.Namespace, rankings: list[OrderRanking]) -> str:
    codes = [(r, r.best.choice.words, r.code(args.code)) for r in rankings]
    if args.format == "json":
        keys = ("profile", "language", "words", "code")
        written = [
            dict(zip(keys, (r.profile.name, args.code, *of_best), strict=True))
            for r, *of_best in codes
        ]
        return common.json_text({"schema": 1, "code": written})
    mark = "//" if args.code == "cuda" else "#"
    return "\n".join(
        f"{mark} {r.kernel} on {r.profile.name}: {words}\n{code}" for r, words, code in codes
    )


def tell_constant(args: argparse.Namespace) -> int:
    size, problems = section_size(args.check_constant), grid(args)
    show_progress = progress("predicting sections")
    checks = [
        check_constant(size, problems, args.kernel, gpu, progress=show_progress) for gpu in args.gpu
    ]
    documents = [c.to_dict() for c in checks]
    rows = [
        {"gpu": c.profile.name} | row
        for c, document in zip(checks, documents, strict=True)
        for row in document["checks"]
    ]
    # CSV has no nested objects: the sizes that a check varies become columns, the rest of the
    # problem is dropped.
    rows = [row | {name: row["problem"][name] for name in ASKED_SIZES} for row in rows]
    rows = [{name: value for name, value in row.items() if name != "problem"} for row in rows]

    def text(markdown: bool) -> str:
        return "\n".join(c.table.markdown() if markdown else c.table.text() for c in checks)

    answers = " ".join(c.answer for c in checks)
    return common.tell(
        args, answers, json=lambda: {"constants": documents}, rows=lambda: rows, text=text
    )


def section_size(text: str) -> int:
    """Bytes of `section=50MiB`. Raises InputError: another constant, or no size."""
    name, _, size = text.partition("=")
    with suppress(InputError):
        if name.strip() == "section":
            return round(parse("l2", size).value)
    raise InputError(
        f"--check-constant '{text}' is not known; accepted: section=SIZE, such as section=50MiB"
    )


def grid(args: argparse.Namespace) -> list[AttentionProblem]:
    """The problems asked for. What is not given runs over a grid: lengths and, without a model, all heads and a
    quarter of them on the keys, with and without a causal mask."""
    if args.seq_q is None:
        args.usual_lengths = GRID
    problems = common.problems(args)
    if args.model is not None:
        return problems
    # Grouped heads change how much a section of heads keeps in the L2, and a causal mask how long
    # its query tiles take: a constant that is right for one need not be for the other.
    if args.kv_heads is None:
        problems += [
            p.with_(kv_heads=p.heads // 4)
            for p in problems
            if p.heads % 4 == 0 and p.kv_heads == p.heads
        ]
    if not args.causal and args.mask is None and args.window is None:
        problems += [p.with_(mask="causal") for p in problems]
    return problems

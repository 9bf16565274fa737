"""`iosim measure`: the project's kernels on this machine's GPU, under Nsight Compute or timed, as a tidy table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from iosim.base.errors import InputError
from iosim.base.progress import progress
from iosim.commands import common, options
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.evidence.measure.case import Case
    from iosim.evidence.measure.chain_case import ChainCase
    from iosim.evidence.measure.choose import Choice
    from iosim.evidence.measure.collect import Collected

DRY_RUN_CC = "9.0"
ALONE = ("kernel", "seq_len", "tile", "order", "direction", "deterministic", "bypass_l1")

CHAIN_PLAN = "chains"
NOT_OF_CHAINS = ("kernel", "kv_heads", "seq_len_k", "causal", "window", "tile", "warps", "stages", "order",
                 "direction", "heavy_first", "section_heads", "persistent", "splits", "deterministic", "bypass_l1",
                 "time", "l2")  # fmt: skip
ALONE_OF_CHAINS = ("chain", "batch", "heads", "seq_len", "head_dim", "dtype", "passes")

T = TypeVar("T")


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "measure", help="run the project's kernels on this machine's GPU, check them, and count their bytes",
        description="Runs calls of the project's kernels, holds their outputs against float64, and counts their bytes "
        "under Nsight Compute, a row a launch (or times them, --time). A table that is there already is added to, and "
        "calls that it holds are not run again. With --chain, a row is a whole call, all its launches through one L2. "
        "Needs an NVIDIA GPU, nvcc, PyTorch with CUDA, and ncu unless --time.",
    )  # fmt: skip
    parser.add_argument("--plan", action="append", metavar="NAME", help="instead of the options below: quick, full "
                        "or a part of it: lengths, shapes, decode, orders, others, tiles, backward, cliff (repeats); "
                        "or chains, a plan of --chain")  # fmt: skip
    parser.add_argument("--time", action="store_true", help="median of device events instead of counters")
    parser.add_argument("--l2", choices=("cold", "warm"), default="cold", help="L2 at each start: flushed, or as the "
                        "same launch left it (default cold)")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="list the calls and stop; needs no GPU")
    parser.add_argument("--cc", metavar="X.Y", help=f"with --dry-run: compute capability (default: the GPU's, else "
                        f"{DRY_RUN_CC})")  # fmt: skip
    parser.add_argument("--out", "-o", metavar="FILE", help="CSV to write or to add to; provenance goes beside it")
    _add_problem(parser)
    _add_knobs(parser)
    _add_chains(parser)
    parser.set_defaults(run=run, default_of=parser.get_default)


def _add_problem(parser: argparse.ArgumentParser) -> None:
    g = parser.add_argument_group("problem (lists are combined with each other)")
    g.add_argument("--kernel", action="append", metavar="NAME", help="flash_fwd, flash_bwd, naive or minimal (repeats; "
                   "default flash_fwd)")  # fmt: skip
    g.add_argument("--batch", type=options.whole, default=1, metavar="N", help="sequences (default 1)")
    g.add_argument("--heads", default="32", metavar="N", help="query heads, or a list (default 32)")
    g.add_argument("--kv-heads", type=options.whole, metavar="N", help="key/value heads (default: as query heads)")
    g.add_argument("--seq-len", "--seq", dest="seq_len", metavar="N", help="query tokens: 4096, 512,4096 or 1k:64k:x2 "
                   "(default 4096)")  # fmt: skip
    g.add_argument("--seq-len-k", type=options.whole, metavar="N", help="key tokens (default: as query tokens)")
    g.add_argument("--head-dim", default="128", metavar="D", help="64, 96, 128, 256 or a list (default 128)")
    g.add_argument("--dtype", help="fp16, bf16 or fp32 (default: bf16, fp32 for minimal)")
    g.add_argument("--causal", action="store_true", help="keep keys up to the query's own position")
    g.add_argument("--window", type=options.whole, metavar="W", help="keep keys 0 <= i - j <= W")


def _add_knobs(parser: argparse.ArgumentParser) -> None:
    g = parser.add_argument_group("knobs of flash_fwd and flash_bwd, and of naive")
    g.add_argument("--tile", metavar="QxK", help="query rows x key rows, such as 128x64 or 128x64,64x64")
    g.add_argument("--warps", type=options.whole, metavar="N", help="2, 4 or 8")
    g.add_argument("--stages", type=options.whole, metavar="N", help="key/value buffers, 1 to 4")
    g.add_argument("--order", metavar="ORDER", help="query, head or both, query,head (default: head where causal)")
    g.add_argument("--direction", metavar="DIRECTION", help="ascending, descending, alternating or a list (default "
                   "ascending)")  # fmt: skip
    g.add_argument("--heavy-first", action=argparse.BooleanOptionalAction, default=None, help="long query blocks first "
                   "(default: where causal)")  # fmt: skip
    g.add_argument("--section-heads", type=options.whole, default=0, metavar="N", help="heads a section of order head")
    g.add_argument("--persistent", action="store_true", help="as many CTAs as fit, each with a list of tiles")
    g.add_argument("--splits", type=options.whole, default=1, metavar="N", help="parts that the keys are split into")
    g.add_argument("--deterministic", action="store_true", help="flash_bwd without atomics")
    g.add_argument("--bypass-l1", action="store_true", help="naive with loads that skip L1")


def _add_chains(parser: argparse.ArgumentParser) -> None:
    g = parser.add_argument_group("whole chains, with batch, heads, seq-len, head-dim and dtype (default fp16)")
    g.add_argument("--chain", action="append", metavar="NAME", help="naive, math, flash or cudnn of PyTorch, or "
                   "iosim_naive, the three launches of --kernel naive (repeats)")  # fmt: skip
    g.add_argument("--pass", dest="passes", default="fwd", metavar="PASS", help="fwd or fwd+bwd (default fwd)")
    g.add_argument("--launches", metavar="FILE", help="a second CSV, a row for each launch of the chains by itself: "
                   "its kernel, grid, block, registers and bytes")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if args.chain or CHAIN_PLAN in (args.plan or ()):
        return _run_chains(args)
    if args.launches is not None or args.passes != "fwd":
        option = "--launches" if args.launches is not None else "--pass"
        raise InputError(f"{option} is for whole chains; accepted: with --chain or --plan {CHAIN_PLAN}")
    if not args.dry_run and args.out is None:
        raise InputError("--out is missing; accepted: a CSV file to write or to add to, or --dry-run")
    common.check_place(args.out)
    cc = _capability(args)
    cases, left = _cases(args, cc)
    if args.dry_run:
        common.emit(listing(cases, left, cc), None)
        return 0
    command = " ".join(["iosim measure", *_words(args)])
    collected = _measure(args, cases, cc, command)
    lines = [*left, *collected.left_out]
    print(f"{collected.measured} of {len(cases)} calls measured now; {args.out} holds {collected.rows} rows")
    for line in lines:
        print(f"iosim: left out: {line}", file=sys.stderr)
    return 1 if collected.left_out else 0


def _run_chains(args: argparse.Namespace) -> int:
    """Whole calls as ranges of the profiler."""
    cases = _chain_cases(args)
    if args.dry_run:
        common.emit(chain_listing(cases), None)
        return 0
    if args.out is None:
        raise InputError("--out is missing; accepted: a CSV file to write or to add to, or --dry-run")
    for place in (args.out, args.launches):
        common.check_place(place)
    from iosim.evidence.measure.chain_collect import collect_chains

    cc = _capability(args)
    launches = None if args.launches is None else Path(args.launches)
    command = " ".join(["iosim measure", *_words(args)])
    collected = collect_chains(
        Path(args.out), cases, cc, launches_out=launches, command=command, progress=progress("measuring")
    )
    print(f"{collected.measured} of {len(cases)} chains measured now; {args.out} holds {len(collected.rows)} rows")
    for line in collected.left_out:
        print(f"iosim: left out: {line}", file=sys.stderr)
    return 1 if collected.left_out else 0


def _chain_cases(args: argparse.Namespace) -> list[ChainCase]:
    from iosim.base.units import sizes
    from iosim.evidence.measure import chain_case

    refused = [name for name in NOT_OF_CHAINS if getattr(args, name) != args.default_of(name)]
    if args.plan is not None:
        refused += [name for name in ALONE_OF_CHAINS if getattr(args, name) != args.default_of(name)]
    if refused:
        option = "--" + refused[0].replace("passes", "pass").replace("_", "-")
        raise InputError(f"{option} is not for {'--plan chains' if args.plan else '--chain'}; accepted: without it")
    if args.plan is not None:
        if set(args.plan) != {CHAIN_PLAN}:
            raise InputError(f"--plan {CHAIN_PLAN} is a table of its own; accepted: without another --plan")
        return list(chain_case.planned())
    return chain_case.cases_of(
        args.chain, sizes(args.seq_len or "4096", "--seq-len"), sizes(args.heads, "--heads"),
        sizes(args.head_dim, "--head-dim"), args.batch, args.dtype or "fp16", args.passes,
    )  # fmt: skip


def chain_listing(cases: Sequence[ChainCase]) -> str:
    """The chains of a plan as a table."""
    from iosim.evidence.measure.chain_case import describe

    return Table.of([describe(case) for case in cases]).text() + f"{len(cases)} chains, a row each\n"


def _measure(args: argparse.Namespace, cases: list[Case], cc: str, command: str) -> Collected:
    if args.time:
        from iosim.evidence.measure.timing import time_plan

        return time_plan(Path(args.out), cases, cc, args.l2, command, progress("measuring"))
    from iosim.evidence.measure.collect import collect

    return collect(Path(args.out), cases, cc, warm=args.l2 == "warm", command=command, progress=progress("measuring"))


def _capability(args: argparse.Namespace) -> str:
    """Of the GPU, after all that a measurement needs was found; or what a dry run is told."""
    from iosim.evidence.cuda import driver
    from iosim.evidence.measure.machine import require

    if not args.dry_run:
        if args.cc is not None:
            raise InputError(f"--cc {args.cc} is for --dry-run; a measurement takes the GPU's own")
        return require(profiler=not args.time)
    if args.cc is not None:
        return str(args.cc)
    try:
        return driver.compute_capability()
    except InputError:
        return DRY_RUN_CC


def _cases(args: argparse.Namespace, cc: str) -> tuple[list[Case], list[str]]:
    from iosim.evidence.measure import choose, plan

    if args.plan is None:
        return choose.cases_of(_choice(args), cc), []
    options_alone = [name for name in ALONE if getattr(args, name)]
    if options_alone:
        raise InputError(f"--plan contradicts --{options_alone[0].replace('_', '-')}; give one of them")
    return choose.fitted(plan.named(args.plan), cc)


def _choice(args: argparse.Namespace) -> Choice:
    from iosim.base.units import sizes
    from iosim.evidence.measure.choose import Choice
    from iosim.kernel.kernel import Tile

    tiles = [Tile.parse(text) for text in args.tile.split(",")] if args.tile else None
    return Choice(
        kernels=args.kernel or ("flash_fwd",), seqs=sizes(args.seq_len or "4096", "--seq-len"), seq_k=args.seq_len_k,
        head_dims=sizes(args.head_dim, "--head-dim"), batch=args.batch, heads=sizes(args.heads, "--heads"),
        kv_heads=args.kv_heads, causal=args.causal, window=args.window, dtype=args.dtype,
        tiles=[(t.block_q, t.block_k) for t in tiles] if tiles else None, warps=args.warps, stages=args.stages,
        orders=args.order.split(",") if args.order else None,
        directions=args.direction.split(",") if args.direction else ("ascending",), heavy_first=args.heavy_first,
        section=args.section_heads, persistent=args.persistent, splits=args.splits, deterministic=args.deterministic,
        bypass_l1=args.bypass_l1,
    )  # fmt: skip


def listing(cases: Sequence[Case], left: Sequence[str], cc: str) -> str:
    """The calls of a plan as a table, with their sums."""
    from iosim.evidence.measure.case import describe

    shown = ("implementation", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal", "window", "dtype",
             "block_q", "block_k", "warps", "stages", "order", "heavy_first", "section", "direction", "persistent",
             "splits", "note")  # fmt: skip
    rows = [{name: row[name] for name in shown} for row in map(describe, cases)]
    sums = (
        f"{len(cases)} calls, {sum(c.launches for c in cases)} rows, {len({c.spec for c in cases})} builds for cc {cc}"
    )
    return "\n".join([Table.of(rows).text() + sums, *(f"left out: {line}" for line in left)]) + "\n"


def _words(args: argparse.Namespace) -> list[str]:
    """The options that differ from their defaults, for the provenance."""
    from shlex import quote

    words = []
    for name, value in vars(args).items():
        if name in ("run", "command", "version", "default_of") or value == args.default_of(name):
            continue
        option = "--" + name.replace("passes", "pass").replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            words += [option] if one is True else ["--no-" + option[2:]] if one is False else [option, quote(str(one))]
    return words

"""`iosim measure`: the project's kernels on this machine's GPU, under Nsight Compute or timed, as a tidy table."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iosim.base import fields as ask
from iosim.base.errors import InputError
from iosim.base.fields import Kind, fields_of, like
from iosim.base.progress import progress
from iosim.base.records import dataclass, replace
from iosim.base.units import sizes, some
from iosim.commands import common, options
from iosim.commands.options import COMMON, CommandParser
from iosim.kernel.conditions import CONDITIONS
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import BESIDES, FIELDS
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.evidence.measure.case import Case
    from iosim.evidence.measure.chain_case import ChainCase
    from iosim.evidence.measure.choose import Choice

DRY_RUN_CC = "9.0"
ALONE = ("kernel", "seq_q", "tile", "order", "direction", "deterministic", "bypass_l1")
KNOBS = ("tile", "warps", "stages", "order", "direction", "heavy_first", "section_heads", "scheduler", "splits")
KNOB_DEFAULTS = {
    "tile": "each head_dim's own", "order": "head where causal, else query", "direction": "ascending",
    "heavy_first": "where causal", "section_heads": "0", "scheduler": "static", "splits": "1",
}  # fmt: skip

CHAIN_PLAN = "chains"
LIBRARY_PLANS = ("random", "builds")
CALLS = 300
OF_LIBRARY = ("seed", "calls", "only", "minutes")
NOT_OF_CHAINS = ("kernel", "kv_heads", "seq_k", "causal", "window", "tile", "warps", "stages", "order",
                 "direction", "heavy_first", "section_heads", "scheduler", "persistent", "splits", "deterministic",
                 "bypass_l1", "time", "l2")  # fmt: skip
ALONE_OF_CHAINS = ("chain", "batch", "heads", "seq_q", "head_dim", "dtype", "passes")
LISTED = ("implementation", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal", "window", "dtype",
          "block_q", "block_k", "warps", "stages", "order", "heavy_first", "section", "direction", "persistent",
          "splits", "note")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    kernel: Sequence[str] = ask.names("flash_fwd, flash_bwd, naive, minimal", ("flash_fwd",), default_text="flash_fwd")
    seq_q: Any = like(
        FIELDS["seq_q"],
        kind=Kind.SIZES,
        help="query tokens: 4096, 512,4096 or 1k:64k:x2",
        default_text="4096",
        metavar="N,...",
    )
    plan: Sequence[str] | None = ask.names(
        "instead of a problem: quick, full, its parts lengths, shapes, decode, orders, others, tiles, backward, cliff; "
        "chains, one of --chain; of PyTorch's kernels random, drawn calls, or builds, every build at two sizes"
    )
    seed: int | None = ask.count("of --plan random: the draw", metavar="S", default_text="0", low=0)
    calls: int | None = ask.count("of --plan random: how many", default_text=str(CALLS))
    only: str | None = ask.name("of PyTorch's kernels: count those whose names match", metavar="REGEX")
    minutes: float | None = ask.number(
        "of PyTorch's kernels: start no call later than this; the same command goes on where it stopped", metavar="M"
    )
    time: bool = ask.flag("median of device events instead of counters")
    l2: str = like(
        CONDITIONS["l2_start"],
        "cold",
        help="the L2 at each start: cold (flushed) or warm, as the same launch left it",
        option="",
    )
    dry_run: bool = ask.flag("list the calls and stop; needs no GPU")
    cc: str | None = ask.name(
        "with --dry-run: compute capability", metavar="X.Y", default_text=f"the GPU's, else {DRY_RUN_CC}"
    )
    out: str | None = ask.file("CSV to write or to add to; provenance.toml goes beside it", spellings=("-o",))
    deterministic: bool = ask.flag("flash_bwd without atomics")
    bypass_l1: bool = ask.flag("naive with loads that skip L1")
    chain: Sequence[str] | None = ask.names(
        "naive, math, flash or cudnn of PyTorch, or iosim_naive, the three launches of --kernel naive"
    )
    launches: str | None = ask.file(
        "a second CSV, a row for each launch of the chains by itself: its kernel, grid, block, registers and bytes"
    )


MEASURE = fields_of(MeasureRequest)
OF_RUN = ("plan", *OF_LIBRARY, "time", "l2", "dry_run", "cc", "out")


def add_options(parser: CommandParser) -> None:
    parser.description = (
        "Runs calls of the project's kernels, holds their outputs against float64, and counts their bytes "
        "under Nsight Compute, a row a launch (or times them, --time). A table that is there already is added to, and "
        "calls that it holds are not run again. With --chain, a row is a whole call, all its launches through one L2. "
        "Needs an NVIDIA GPU, nvcc, PyTorch with CUDA, and ncu unless --time."
    )
    g = parser.group(COMMON)
    options.add(g, MEASURE, ("kernel", "seq_q"))
    dtype = replace(FIELDS["dtype"], usual=None, default=None, default_text="fp16; fp32 for minimal")
    sizes = ("batch", "heads", "kv_heads", "head_dim", "dtype")
    options.add(g, {**FIELDS, "dtype": dtype}, sizes, several=("heads", "head_dim"))
    options.add(g, BESIDES, ("causal",))
    options.add(g, FIELDS, ("passes",))
    options.add(parser.group("more of the problem"), FIELDS, ("seq_k", "window"))
    options.add(parser.group("what is measured"), MEASURE, OF_RUN)
    g = parser.group("kernel settings of flash_fwd and flash_bwd, and of naive")
    table = {**OVERRIDES, **{name: replace(OVERRIDES[name], default_text=text) for name, text in KNOB_DEFAULTS.items()}}
    options.add(g, table, KNOBS, several=("tile", "order", "direction"))
    g.add_argument("--persistent", action="store_true", help=argparse.SUPPRESS)
    options.add(g, MEASURE, ("deterministic", "bypass_l1"))
    chains = parser.group("whole chains, with batch, heads, seq-len, head-dim, dtype and pass fwd or fwd+bwd")
    options.add(chains, MEASURE, ("chain", "launches"))
    parser.set_defaults(default_of=parser.get_default)


@dataclass(frozen=True)
class Planned:
    what: str
    listing: str
    measure: Callable[..., Any]
    left: Sequence[str] = ()
    fails: bool = True
    """Whether calls that were left out make the command fail."""


def run(args: argparse.Namespace) -> int:
    plan = set(args.plan or ())
    planned = _chains if args.chain or CHAIN_PLAN in plan else _library if plan & {*LIBRARY_PLANS} else _calls
    asked = planned(args)
    if args.dry_run:
        common.emit(asked.listing, None)
        return 0
    _check_out(args)
    done = asked.measure(command=" ".join(["iosim measure", *_words(args)]), progress=progress("measuring"))
    print(f"{done.measured} of {asked.what} measured now; {args.out} holds {some(len(done.rows), 'row')}")
    for line in (*asked.left, *done.left_out):
        print(f"iosim: left out: {line}", file=sys.stderr)
    return int(asked.fails and bool(done.left_out))


def _check_out(args: argparse.Namespace) -> None:
    if args.out is None and not args.dry_run:
        raise InputError("--out is missing; accepted: a CSV file to write or to add to, or --dry-run")
    for place in (args.out, args.launches):
        common.check_place(place)


def _set(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    return [name for name in names if getattr(args, name) != args.default_of(name)]


def _calls(args: argparse.Namespace) -> Planned:
    for name in _set(args, OF_LIBRARY):
        raise InputError(f"{options.spelling(name)} is for PyTorch's kernels; accepted: with --plan random")
    if args.launches is not None or args.passes != "fwd":
        option = "--launches" if args.launches is not None else "--pass"
        raise InputError(f"{option} is for whole chains; accepted: with --chain or --plan {CHAIN_PLAN}")
    _check_out(args)
    cc = _capability(args)
    cases, left = _cases(args, cc)
    return Planned(some(len(cases), "call"), _listing(cases, left, cc), partial(_measure, args, cases, cc), left)


def _measure(args: argparse.Namespace, cases: list[Case], cc: str, **how: Any) -> Any:
    if args.time:
        from iosim.evidence.measure.timing import time_plan

        return time_plan(Path(args.out), cases, cc, args.l2, how["command"], how["progress"])
    from iosim.evidence.measure.collect import collect

    return collect(Path(args.out), cases, cc, warm=args.l2 == "warm", **how)


def _chains(args: argparse.Namespace) -> Planned:
    cases = _chain_cases(args)

    def measure(**how: Any) -> Any:
        from iosim.evidence.measure.collect import collect_chains

        launches = None if args.launches is None else Path(args.launches)
        return collect_chains(Path(args.out), cases, _capability(args), launches_out=launches, **how)

    listing = Table.of([case.columns() for case in cases]).text()
    return Planned(some(len(cases), "chain"), f"{listing}{some(len(cases), 'chain')}, a row each\n", measure)


def _library(args: argparse.Namespace) -> Planned:
    from iosim.evidence.measure import library_case

    builds = args.plan == ["builds"]
    refused = _set(args, (*ALONE_OF_CHAINS, *NOT_OF_CHAINS, *(OF_LIBRARY[:2] * builds)))
    if len(args.plan) > 1 or refused:
        what = options.spelling(refused[0]) if refused else "another --plan"
        kept = map(options.spelling, ("plan", "out", "dry_run", *OF_LIBRARY))
        raise InputError(f"{what} is not for --plan {args.plan[0]}; accepted with it: {', '.join(kept)}")
    drawn = args.seed or 0, CALLS if args.calls is None else args.calls
    cases = list(library_case.builds()) if builds else library_case.drawn(*drawn)
    if args.minutes is not None and not args.dry_run and not args.minutes > 0:
        _check_out(args)
        raise InputError(f"--minutes {args.minutes:g} is out of range; accepted: more than 0")

    def measure(**how: Any) -> Any:
        from iosim.evidence.measure.collect import collect_library

        _capability(args)
        return collect_library(
            Path(args.out), cases, kernels=args.only or "", spills=builds, minutes=args.minutes, **how
        )

    text = Table.of([{"call": n} | case.columns() for n, case in enumerate(cases, start=1)]).text()
    return Planned(f"{len(cases)} calls", f"{text}{len(cases)} calls\n", measure, fails=False)


def _chain_cases(args: argparse.Namespace) -> list[ChainCase]:
    from iosim.evidence.measure import chain_case

    refused = _set(args, (*NOT_OF_CHAINS, *(() if args.plan is None else ALONE_OF_CHAINS)))
    if refused:
        where = "--plan chains" if args.plan else "--chain"
        raise InputError(f"{options.spelling(refused[0])} is not for {where}; accepted: without it")
    if args.plan is not None:
        if set(args.plan) != {CHAIN_PLAN}:
            raise InputError(f"--plan {CHAIN_PLAN} is a table of its own; accepted: without another --plan")
        return list(chain_case.planned())
    return chain_case.cases_of(
        args.chain, sizes(args.seq_q or "4096", "--seq-len"), args.heads, args.head_dim, args.batch,
        args.dtype or "fp16", args.passes,
    )  # fmt: skip


def _capability(args: argparse.Namespace) -> str:
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
    from iosim.evidence.measure import choose

    if args.plan is None:
        return choose.cases_of(_choice(args), cc), []
    for name in _set(args, ALONE):
        raise InputError(f"--plan contradicts {options.spelling(name)}; give one of them")
    return choose.fitted(choose.named(args.plan), cc)


def _choice(args: argparse.Namespace) -> Choice:
    from iosim.evidence.measure.choose import Choice

    if args.scheduler not in (None, "static", "persistent"):
        raise InputError(f"--scheduler {args.scheduler} is not built; accepted: static, persistent")
    splits = 1 if args.splits is None else args.splits
    how = {"persistent": args.persistent or args.scheduler == "persistent", "splits": splits}
    return common.request(args, Choice, seq_q=sizes(args.seq_q or "4096", "--seq-len"), **how)


def _listing(cases: Sequence[Case], left: Sequence[str], cc: str) -> str:
    rows = [{name: row[name] for name in LISTED} for row in (case.columns() for case in cases)]
    sums = (
        f"{some(len(cases), 'call')}, {some(sum(c.launches for c in cases), 'row')}, "
        f"{some(len({c.spec for c in cases}), 'build')} for cc {cc}"
    )
    return "\n".join([Table.of(rows).text() + sums, *(f"left out: {line}" for line in left)]) + "\n"


def _words(args: argparse.Namespace) -> list[str]:
    own = ("run", "command", "version", "default_of", options.GIVEN)
    changed = {n: v for n, v in vars(args).items() if n not in own and v != args.default_of(n)}
    return list(map(shlex.quote, options.typed(changed)))

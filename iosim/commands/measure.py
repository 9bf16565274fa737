"""`iosim measure`: the project's kernels on this machine's GPU, under Nsight Compute or timed, as a tidy table."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iosim.base.errors import InputError
from iosim.base.fields import Kind
from iosim.base.progress import progress
from iosim.base.records import replace
from iosim.base.units import some
from iosim.commands import common, options
from iosim.commands.parser import COMMON, CommandParser
from iosim.kernel.conditions import CONDITIONS
from iosim.kernel.overrides import OVERRIDES
from iosim.problem.fields import BESIDES, FIELDS
from iosim.show.tables import Table

if TYPE_CHECKING:
    from iosim.evidence.measure.case import Case
    from iosim.evidence.measure.chain_case import ChainCase
    from iosim.evidence.measure.choose import Choice
    from iosim.evidence.measure.table import Table as Measured

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
NOT_OF_CHAINS = ("kernel", "kv_heads", "seq_k", "causal", "window", "tile", "warps", "stages", "order",
                 "direction", "heavy_first", "section_heads", "scheduler", "persistent", "splits", "deterministic",
                 "bypass_l1", "time", "l2")  # fmt: skip
ALONE_OF_CHAINS = ("chain", "batch", "heads", "seq_q", "head_dim", "dtype", "passes")


MEASURE = options.table(
    kernel=options.value(
        "flash_fwd, flash_bwd, naive, minimal",
        "NAME,...",
        "flash_fwd",
        kind=Kind.NAMES,
        spellings=common.KERNEL_OF_OLD,
        default=("flash_fwd",),
    ),
    seq_q=replace(
        FIELDS["seq_q"],
        kind=Kind.SIZES,
        help="query tokens: 4096, 512,4096 or 1k:64k:x2",
        default_text="4096",
        metavar="N,...",
        usual=None,
        default=None,
    ),
    plan=options.value(
        "instead of a problem: quick, full, its parts lengths, shapes, decode, orders, others, tiles, "
        "backward, cliff; chains, one of --chain; of PyTorch's kernels random, drawn calls, or builds, every "
        "build at two sizes",
        "NAME,...",
        kind=Kind.NAMES,
    ),
    seed=options.value("of --plan random: the draw", "S", "0", kind=Kind.WHOLE, low=0),
    calls=options.value("of --plan random: how many", "N", str(CALLS), kind=Kind.WHOLE),
    only=options.value("of PyTorch's kernels: count those whose names match", "REGEX"),
    minutes=options.value(
        "of PyTorch's kernels: start no call later than this; the same command goes on where it stopped",
        "M",
        kind=Kind.NUMBER,
    ),
    time=options.flag("median of device events instead of counters"),
    l2=replace(
        CONDITIONS["l2_start"],
        help="the L2 at each start: cold (flushed) or warm, as the same launch left it",
        usual=None,
        option="",
    ),
    dry_run=options.flag("list the calls and stop; needs no GPU"),
    cc=options.value("with --dry-run: compute capability", "X.Y", f"the GPU's, else {DRY_RUN_CC}"),
    out=options.value("CSV to write or to add to; provenance.toml goes beside it", "FILE", spellings=("-o",)),
    deterministic=options.flag("flash_bwd without atomics"),
    bypass_l1=options.flag("naive with loads that skip L1"),
    chain=options.value(
        "naive, math, flash or cudnn of PyTorch, or iosim_naive, the three launches of --kernel naive",
        "NAME,...",
        kind=Kind.NAMES,
    ),
    launches=options.value(
        "a second CSV, a row for each launch of the chains by itself: its kernel, grid, block, registers and bytes",
        "FILE",
    ),
)
"""What is measured, beside the fields of a problem and of a kernel."""
OF_RUN = ("plan", "seed", "calls", "only", "minutes", "time", "l2", "dry_run", "cc", "out")


def add_options(parser: CommandParser) -> None:
    parser.description = (
        "Runs calls of the project's kernels, holds their outputs against float64, and counts their bytes "
        "under Nsight Compute, a row a launch (or times them, --time). A table that is there already is added to, and "
        "calls that it holds are not run again. With --chain, a row is a whole call, all its launches through one L2. "
        "Needs an NVIDIA GPU, nvcc, PyTorch with CUDA, and ncu unless --time."
    )
    _add_problem(parser)
    g = parser.group("what is measured")
    options.add(g, MEASURE, OF_RUN)
    _add_knobs(parser)
    _add_chains(parser)
    parser.set_defaults(default_of=parser.get_default)


def _add_problem(parser: CommandParser) -> None:
    g = parser.group(COMMON)
    options.add(g, MEASURE, ("kernel", "seq_q"))
    dtype = replace(FIELDS["dtype"], usual=None, default=None, default_text="fp16; fp32 for minimal")
    sizes = ("batch", "heads", "kv_heads", "head_dim", "dtype")
    options.add(g, {**FIELDS, "dtype": dtype}, sizes, several=("heads", "head_dim"))
    options.add(g, BESIDES, ("causal",))
    options.add(g, FIELDS, ("passes",))
    options.add(parser.group("more of the problem"), FIELDS, ("seq_k", "window"))


def _add_knobs(parser: CommandParser) -> None:
    g = parser.group("kernel settings of flash_fwd and flash_bwd, and of naive")
    table = {**OVERRIDES, **{name: replace(OVERRIDES[name], default_text=text) for name, text in KNOB_DEFAULTS.items()}}
    options.add(g, table, KNOBS, several=("tile", "order", "direction"))
    g.add_argument("--persistent", action="store_true", help=argparse.SUPPRESS)
    options.add(g, MEASURE, ("deterministic", "bypass_l1"))


def _add_chains(parser: CommandParser) -> None:
    g = parser.group("whole chains, with batch, heads, seq-len, head-dim, dtype and pass fwd or fwd+bwd")
    options.add(g, MEASURE, ("chain", "launches"))


def run(args: argparse.Namespace) -> int:
    if args.chain or CHAIN_PLAN in (args.plan or ()):
        return _run_chains(args)
    if set(args.plan or ()) & set(LIBRARY_PLANS):
        return _run_library(args)
    for name in ("seed", "calls", "only", "minutes"):
        if getattr(args, name) is not None:
            raise InputError(f"{options.spelling(name)} is for PyTorch's kernels; accepted: with --plan random")
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
    measured = f"{collected.measured} of {some(len(cases), 'call')}"
    _tell(measured, args, len(collected.rows), [*left, *collected.left_out])
    return 1 if collected.left_out else 0


def _tell(measured: str, args: argparse.Namespace, rows: int, left_out: Sequence[str]) -> None:
    print(f"{measured} measured now; {args.out} holds {some(rows, 'row')}")
    for line in left_out:
        print(f"iosim: left out: {line}", file=sys.stderr)


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
    from iosim.evidence.measure.collect import collect_chains

    cc = _capability(args)
    launches = None if args.launches is None else Path(args.launches)
    command = " ".join(["iosim measure", *_words(args)])
    collected = collect_chains(
        Path(args.out), cases, cc, launches_out=launches, command=command, progress=progress("measuring")
    )
    _tell(f"{collected.measured} of {some(len(cases), 'chain')}", args, len(collected.rows), collected.left_out)
    return 1 if collected.left_out else 0


def _run_library(args: argparse.Namespace) -> int:
    """Calls of PyTorch's kernels, drawn or of every build."""
    from iosim.evidence.measure import library_case

    kept = ("plan", "out", "dry_run", "seed", "calls", "only", "minutes")
    refused = [name for name in (*ALONE_OF_CHAINS, *NOT_OF_CHAINS) if getattr(args, name) != args.default_of(name)] + [
        name for name in ("seed", "calls") if args.plan == ["builds"] and getattr(args, name) is not None
    ]
    if len(args.plan) > 1 or refused:
        what = options.spelling(refused[0]) if refused else "another --plan"
        raise InputError(f"{what} is not for --plan {args.plan[0]}; accepted with it: "
                         f"{', '.join(map(options.spelling, kept))}")  # fmt: skip
    if args.plan == ["builds"]:
        cases = list(library_case.builds())
    else:
        cases = library_case.drawn(args.seed or 0, CALLS if args.calls is None else args.calls)
    if args.dry_run:
        text = Table.of([{"call": n} | case.columns() for n, case in enumerate(cases, start=1)]).text()
        common.emit(f"{text}{len(cases)} calls\n", None)
        return 0
    if args.out is None:
        raise InputError("--out is missing; accepted: a CSV file to write or to add to, or --dry-run")
    if args.minutes is not None and not args.minutes > 0:
        raise InputError(f"--minutes {args.minutes:g} is out of range; accepted: more than 0")
    common.check_place(args.out)
    _capability(args)
    from iosim.evidence.measure.collect import collect_library

    command = " ".join(["iosim measure", *_words(args)])
    done = collect_library(
        Path(args.out), cases, kernels=args.only or "", spills=args.plan == ["builds"], minutes=args.minutes,
        command=command, progress=progress("measuring"),
    )  # fmt: skip
    _tell(f"{done.measured} of {len(cases)} calls", args, len(done.rows), done.left_out)
    return 0


def _chain_cases(args: argparse.Namespace) -> list[ChainCase]:
    from iosim.base.units import sizes
    from iosim.evidence.measure import chain_case

    refused = [name for name in NOT_OF_CHAINS if getattr(args, name) != args.default_of(name)]
    if args.plan is not None:
        refused += [name for name in ALONE_OF_CHAINS if getattr(args, name) != args.default_of(name)]
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


def chain_listing(cases: Sequence[ChainCase]) -> str:
    """The chains of a plan as a table."""
    return Table.of([case.columns() for case in cases]).text() + f"{some(len(cases), 'chain')}, a row each\n"


def _measure(args: argparse.Namespace, cases: list[Case], cc: str, command: str) -> Measured:
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
    options_alone = [name for name in ALONE if getattr(args, name) != args.default_of(name)]
    if options_alone:
        raise InputError(f"--plan contradicts {options.spelling(options_alone[0])}; give one of them")
    return choose.fitted(plan.named(args.plan), cc)


def _choice(args: argparse.Namespace) -> Choice:
    from iosim.base.units import sizes
    from iosim.evidence.measure.choose import Choice

    return Choice(
        kernels=args.kernel, seqs=sizes(args.seq_q or "4096", "--seq-len"), seq_k=args.seq_k, head_dims=args.head_dim,
        batch=args.batch, heads=args.heads, kv_heads=args.kv_heads, causal=args.causal, window=args.window,
        dtype=args.dtype, tiles=args.tile, warps=args.warps, stages=args.stages, orders=args.order,
        directions=args.direction or ("ascending",), heavy_first=args.heavy_first, section=args.section_heads or 0,
        persistent=_persistent(args), splits=1 if args.splits is None else args.splits,
        deterministic=args.deterministic, bypass_l1=args.bypass_l1,
    )  # fmt: skip


def _persistent(args: argparse.Namespace) -> bool:
    """Whether as many CTAs as fit take lists of tiles. Raises InputError: a scheduler for which no kernel is built."""
    if args.scheduler not in (None, "static", "persistent"):
        raise InputError(f"--scheduler {args.scheduler} is not built; accepted: static, persistent")
    return bool(args.persistent or args.scheduler == "persistent")


def listing(cases: Sequence[Case], left: Sequence[str], cc: str) -> str:
    """The calls of a plan as a table, with their sums."""
    shown = ("implementation", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal", "window", "dtype",
             "block_q", "block_k", "warps", "stages", "order", "heavy_first", "section", "direction", "persistent",
             "splits", "note")  # fmt: skip
    rows = [{name: row[name] for name in shown} for row in (case.columns() for case in cases)]
    sums = (
        f"{some(len(cases), 'call')}, {some(sum(c.launches for c in cases), 'row')}, "
        f"{some(len({c.spec for c in cases}), 'build')} for cc {cc}"
    )
    return "\n".join([Table.of(rows).text() + sums, *(f"left out: {line}" for line in left)]) + "\n"


def _words(args: argparse.Namespace) -> list[str]:
    """The options that differ from their defaults, for the provenance."""
    own = ("run", "command", "version", "default_of", options.GIVEN)
    changed = {n: v for n, v in vars(args).items() if n not in own and v != args.default_of(n)}
    return list(map(shlex.quote, options.typed(changed)))

"""`iosim calibrate` and `measure`: this machine's GPU as a hardware profile, with a source beside each number; the
project's kernels on it, under Nsight Compute or timed, as a tidy table."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import read_object
from iosim.base.progress import announce, counter, progress
from iosim.base.records import asdict, dataclass
from iosim.base.units import quantity_text, sizes, some
from iosim.commands import common, options
from iosim.commands.asked import CALIBRATE, CALLS, DRY_RUN_CC, OF_LIBRARY
from iosim.evidence.cuda import driver, microbench
from iosim.evidence.measure import chain_case, choose, counters, library_case
from iosim.evidence.measure.bundle import bundle, checked_name
from iosim.evidence.measure.calibrate import Entry, check_schema, derive
from iosim.evidence.measure.case import Case
from iosim.evidence.measure.chain_case import ChainCase
from iosim.evidence.measure.choose import Choice
from iosim.evidence.measure.collect import collect, collect_chains, collect_library
from iosim.evidence.measure.fit import TRIALS
from iosim.evidence.measure.machine import require
from iosim.evidence.measure.profile_text import base_profile, profile_text
from iosim.hardware.profile import load_profile
from iosim.show.tables import Table

SHOWN = (
    "sm_count",
    "l2_bytes",
    "l2_partitions",
    "l2_ways",
    "l2_effective_capacity_fraction",
    "l2_dirty_fraction",
    "launch_fetch_bytes",
    "l2_read_bandwidth_measured_bytes_per_s",
    "dram_bandwidth_measured_bytes_per_s",
    "l2_latency_near_cycles",
    "dram_latency_cycles",
    "exp_per_clock_per_sm",
)
MAX_RAW_BYTES = 4 << 20


def calibrate(args: argparse.Namespace) -> int:
    if args.times is not None:
        return _fit_times(args)
    if args.stack is not None:
        raise InputError(
            f"--stack '{args.stack}' goes with --times; accepted with it: --times FILE"
        )
    name = checked_name(args.name or Path(args.out or args.bundle or "").name or "my-gpu")
    # Raw numbers of another machine, or of an earlier run, can be fitted anywhere.
    if args.given:
        raw = read_object(
            args.given, f"--from '{args.given}'", "JSON of calibrate --raw", MAX_RAW_BYTES
        )
        check_schema(raw, f"--from '{args.given}'")
    else:
        raw = _microbenchmarks(args.profiler)
    if args.raw:
        common.write(args.raw, json.dumps(raw, indent=1) + "\n")
    left_out: list[str] = []
    # The L2's constants are fitted by trial: each trial replays the measured loads.
    with counter(TRIALS, "fitting the L2's constants") as show_trial:  # takes seconds
        tried = count(1)
        measured = derive(raw, lambda: show_trial(next(tried)), left_out)
    text = profile_text(raw, name, measured, left_out)
    if args.bundle is not None:
        common.write(args.bundle, json.dumps(bundle(raw, text), indent=1) + "\n")
    if args.out is not None or args.bundle is None:
        common.emit(text, args.out, code=True)
    if args.out is not None or args.bundle is not None:
        print(comparison(raw, measured), end="")
    for line in left_out:
        announce(f"iosim: left out: {line}", in_pipes=True)
    if not raw.get("counters"):
        why = raw.get("no_counters")
        announce(
            f"iosim: no miss counters ({why}); the L2's constants are not measured", in_pipes=True
        )
    return 0


def _fit_times(args: argparse.Namespace) -> int:
    from iosim.studies.latency.calibration import calibration_text
    from iosim.studies.latency.fit import calibrate_times, read_times

    for name in ("given", "raw", "bundle", "name"):
        if getattr(args, name) is not None:
            option = str(CALIBRATE[name].option)
            raise InputError(
                f"{option} contradicts --times, which measures nothing; give one of them"
            )
    stack, profile = args.stack or "vllm", load_profile(args.gpu)
    rows = read_times(args.times)
    announce(f"predicting {len(rows)} calls")
    calibration = calibrate_times(rows, stack, profile)
    text = calibration_text(calibration.constants, stack, profile.name, calibration.errors)
    if args.out is None:
        common.emit(text, None, code=True)
        return 0
    common.emit(text, args.out)
    constants = Table.of(
        {"constant": k, "value": v} for k, v in asdict(calibration.constants).items()
    ).text()
    use = f"iosim latency --stack {stack} --gpu {profile.name} --calibration {args.out}"
    print(f"{calibration.answer}\n\n{constants}\nwritten: {args.out}, for {use}")
    return 0


def _microbenchmarks(profiler: bool) -> dict[str, Any]:
    require(profiler=False, torch=False)
    raw = microbench.measure(lambda quantity: announce(f"measuring: {quantity}"))
    if not profiler:
        return raw | {"counters": None, "no_counters": "--no-profiler"}
    announce("measuring: miss counters")
    try:
        return raw | {"counters": counters.count(raw["l2_bytes"])}
    # Counters need a right that many machines do not give (ERR_NVGPUCTRPERM): the rest of the
    # profile is measured all the same.
    except InputError as reason:
        return raw | {"counters": None, "no_counters": str(reason)}


def comparison(raw: Mapping[str, Any], measured: Mapping[str, Entry]) -> str:
    base = base_profile(str(raw.get("gpu")))
    rows = []
    for name in (name for name in SHOWN if name in measured):
        measured_text, shipped_value = (
            quantity_text(name, measured[name].value),
            getattr(base, name, None),
        )
        shipped = "-" if shipped_value is None else quantity_text(name, shipped_value)
        rows.append({"quantity": name, "measured": measured_text, "shipped": shipped})
    return Table.of(rows).text()


ALONE = ("kernel", "seq_q", "tile", "order", "direction", "deterministic", "bypass_l1")
CHAIN_PLAN = "chains"
LIBRARY_PLANS = ("random", "builds")
NOT_OF_CHAINS = (
    "kernel",
    "kv_heads",
    "seq_k",
    "causal",
    "window",
    "tile",
    "warps",
    "stages",
    "order",
    "direction",
    "heavy_first",
    "section_heads",
    "scheduler",
    "persistent",
    "splits",
    "deterministic",
    "bypass_l1",
    "time",
    "l2",
)
ALONE_OF_CHAINS = ("chain", "batch", "heads", "seq_q", "head_dim", "dtype", "passes")
LISTED = (
    "implementation",
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "seq_k",
    "head_dim",
    "causal",
    "window",
    "dtype",
    "block_q",
    "block_k",
    "warps",
    "stages",
    "order",
    "heavy_first",
    "section",
    "direction",
    "persistent",
    "splits",
    "note",
)


@dataclass(frozen=True)
class Planned:
    title: str
    """What is measured, such as "12 calls"."""
    listing: str
    measure: Callable[..., Any]
    left_out: Sequence[str] = ()
    fails: bool = True
    """True where calls that were left out make the command fail."""


def measure(args: argparse.Namespace) -> int:
    plan = set(args.plan or ())
    # Three kinds of plans: whole chains, kernels of PyTorch, and calls of the project's kernels.
    plan_calls = (
        _chains
        if args.chain or CHAIN_PLAN in plan
        else _library
        if plan & {*LIBRARY_PLANS}
        else _calls
    )
    planned = plan_calls(args)
    if args.dry_run:
        common.emit(planned.listing, None)
        return 0
    _check_out(args)
    done = planned.measure(
        command=" ".join(["iosim measure", *_words(args)]), progress=progress("measuring")
    )
    print(
        f"{done.measured} of {planned.title} measured now; {args.out} holds {some(len(done.rows), 'row')}"
    )
    for line in (*planned.left_out, *done.left_out):
        print(f"iosim: left out: {line}", file=sys.stderr)
    return int(planned.fails and bool(done.left_out))


def _check_out(args: argparse.Namespace) -> None:
    if args.out is None and not args.dry_run:
        raise InputError(
            "--out is missing; accepted: a CSV file to write or to add to, or --dry-run"
        )


def _refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuses the first of these options that is given; `why` follows its name."""
    for name in names:
        if getattr(args, name) != args.default_of(name):
            raise InputError(f"{options.spelling(name)} {why}")


def _calls(args: argparse.Namespace) -> Planned:
    _refuse(args, OF_LIBRARY, "is for PyTorch's kernels; accepted: with --plan random")
    _refuse(
        args,
        ("launches", "passes"),
        f"is for whole chains; accepted: with --chain or --plan {CHAIN_PLAN}",
    )
    _check_out(args)
    # The tiles that fit depend on the compute capability, so it is known before the plan is.
    cc, left_out = _capability(args), list[str]()
    if args.plan is None:
        cases = choose.cases_of(_choice(args), cc)
    else:
        _refuse(args, ALONE, "contradicts --plan; give one of them")
        cases, left_out = choose.fitted(choose.named(args.plan), cc)
    return Planned(
        some(len(cases), "call"),
        _listing(cases, left_out, cc),
        partial(_measure, args, cases, cc),
        left_out,
    )


def _measure(args: argparse.Namespace, cases: list[Case], cc: str, **how: Any) -> Any:
    if args.time:
        from iosim.evidence.measure.timing import time_plan  # PyTorch is needed from here on

        return time_plan(Path(args.out), cases, cc, args.l2, how["command"], how["progress"])
    return collect(Path(args.out), cases, cc, warm=args.l2 == "warm", **how)


def _chains(args: argparse.Namespace) -> Planned:
    cases = _chain_cases(args)

    def measure(**how: Any) -> Any:
        launches = None if args.launches is None else Path(args.launches)
        return collect_chains(
            Path(args.out), cases, _capability(args), launches_out=launches, **how
        )

    listing = Table.of([case.columns() for case in cases]).text()
    return Planned(
        some(len(cases), "chain"), f"{listing}{some(len(cases), 'chain')}, a row each\n", measure
    )


def _library(args: argparse.Namespace) -> Planned:
    builds = args.plan == ["builds"]
    accepted = ", ".join(map(options.spelling, ("plan", "out", "dry_run", *OF_LIBRARY)))
    why = f"is not for --plan {args.plan[0]}; accepted with it: {accepted}"
    _refuse(args, (*ALONE_OF_CHAINS, *NOT_OF_CHAINS, *(OF_LIBRARY[:2] * builds)), why)
    if len(args.plan) > 1:
        raise InputError(f"another --plan {why}")
    drawn = args.seed or 0, CALLS if args.calls is None else args.calls
    cases = list(library_case.builds()) if builds else library_case.drawn(*drawn)
    if args.minutes is not None and not args.dry_run and not args.minutes > 0:
        _check_out(args)
        raise InputError(f"--minutes {args.minutes:g} is out of range; accepted: more than 0")

    def measure(**how: Any) -> Any:
        _capability(args)
        of_library = {"kernels": args.only or "", "spills": builds, "minutes": args.minutes}
        return collect_library(Path(args.out), cases, **of_library, **how)

    text = Table.of([{"call": n} | case.columns() for n, case in enumerate(cases, start=1)]).text()
    return Planned(f"{len(cases)} calls", f"{text}{len(cases)} calls\n", measure, fails=False)


def _chain_cases(args: argparse.Namespace) -> list[ChainCase]:
    where = "--plan chains" if args.plan else "--chain"
    # A plan says sizes itself; --chain takes a few of them.
    refused = (*NOT_OF_CHAINS, *(() if args.plan is None else ALONE_OF_CHAINS))
    _refuse(args, refused, f"is not for {where}; accepted: without it")
    if args.plan is not None:
        if set(args.plan) != {CHAIN_PLAN}:
            raise InputError(
                f"--plan {CHAIN_PLAN} is a table of its own; accepted: without another --plan"
            )
        return list(chain_case.planned())
    return chain_case.cases_of(
        args.chain,
        sizes(args.seq_q or "4096", "--seq-len"),
        args.heads,
        args.head_dim,
        args.batch,
        args.dtype or "fp16",
        args.passes,
    )


def _capability(args: argparse.Namespace) -> str:
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


def _choice(args: argparse.Namespace) -> Choice:
    if args.scheduler not in (None, "static", "persistent"):
        raise InputError(f"--scheduler {args.scheduler} is not built; accepted: static, persistent")
    splits = 1 if args.splits is None else args.splits
    how = {"persistent": args.persistent or args.scheduler == "persistent", "splits": splits}
    return common.request(args, Choice, seq_q=sizes(args.seq_q or "4096", "--seq-len"), **how)


def _listing(cases: Sequence[Case], left_out: Sequence[str], cc: str) -> str:
    rows = [{name: row[name] for name in LISTED} for row in (case.columns() for case in cases)]
    sums = (
        f"{some(len(cases), 'call')}, {some(sum(c.launches for c in cases), 'row')}, "
        f"{some(len({c.spec for c in cases}), 'build')} for cc {cc}"
    )
    return (
        "\n".join([Table.of(rows).text() + sums, *(f"left out: {line}" for line in left_out)])
        + "\n"
    )


def _words(args: argparse.Namespace) -> list[str]:
    internal = ("run", "command", "version", "default_of", options.GIVEN)
    changed = {n: v for n, v in vars(args).items() if n not in internal and v != args.default_of(n)}
    return list(map(shlex.quote, options.typed(changed)))

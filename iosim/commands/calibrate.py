"""`iosim calibrate`: microbenchmarks on this machine's GPU, as a hardware profile with a source beside each number."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.files import read_object, write_whole
from iosim.base.progress import announce, counter
from iosim.base.records import asdict
from iosim.base.units import quantity_text
from iosim.commands import common
from iosim.evidence.cuda import microbench
from iosim.evidence.measure import counters
from iosim.evidence.measure.bundle import bundle, checked_name
from iosim.evidence.measure.calibrate import Entry, check_schema, derive
from iosim.evidence.measure.fit import TRIALS
from iosim.evidence.measure.machine import require
from iosim.evidence.measure.profile_text import base_profile, profile_text
from iosim.hardware.profile import load_profile
from iosim.show.tables import Table

SHOWN = ("sm_count", "l2_bytes", "l2_partitions", "l2_ways", "l2_effective_capacity_fraction",
         "l2_dirty_fraction", "launch_fetch_bytes",
         "l2_read_bandwidth_measured_bytes_per_s", "dram_bandwidth_measured_bytes_per_s", "l2_latency_near_cycles",
         "dram_latency_cycles", "exp_per_clock_per_sm", "sustained_clock_hz")  # fmt: skip
MAX_RAW_BYTES = 4 << 20


def run(args: argparse.Namespace) -> int:
    if args.times is not None:
        return _fit_times(args)
    if args.stack is not None:
        raise InputError(f"--stack '{args.stack}' goes with --times; accepted with it: --times FILE")
    name = checked_name(args.name or Path(args.out or args.bundle or "").name or "my-gpu")
    raw = _read(args.given) if args.given else _measure(args.profiler)
    if args.raw:
        write_whole(args.raw, json.dumps(raw, indent=1) + "\n")
    left_out: list[str] = []
    measured = _derive(raw, left_out)
    text = profile_text(raw, name, measured, left_out)
    if args.bundle is not None:
        write_whole(args.bundle, json.dumps(bundle(raw, text), indent=1) + "\n")
    if args.out is not None or args.bundle is None:
        common.emit(text, args.out, code=True)
    if args.out is not None or args.bundle is not None:
        print(comparison(raw, measured), end="")
    for line in left_out:
        announce(f"iosim: left out: {line}", in_pipes=True)
    if not raw.get("counters"):
        print(
            f"iosim: no miss counters ({raw.get('no_counters')}); the L2's constants are not measured", file=sys.stderr
        )
    return 0


def _fit_times(args: argparse.Namespace) -> int:
    from iosim.studies.latency.calibration import calibration_text
    from iosim.studies.latency.fit import calibrate_times, read_times

    for option, name in (("--from", "given"), ("--raw", "raw"), ("--bundle", "bundle"), ("--name", "name")):
        if getattr(args, name) is not None:
            raise InputError(f"{option} contradicts --times, which measures nothing; give one of them")
    stack, profile = args.stack or "vllm", load_profile(args.gpu)
    rows = read_times(args.times)
    announce(f"predicting {len(rows)} calls")
    found = calibrate_times(rows, stack, profile)
    text = calibration_text(found.constants, stack, profile.name, found.errors)
    if args.out is None:
        common.emit(text, None, code=True)
        return 0
    common.emit(text, args.out)
    print(
        f"{found.answer}\n\n"
        + Table.of({"constant": k, "value": v} for k, v in asdict(found.constants).items()).text()
        + f"\nwritten: {args.out}, for iosim latency --stack {stack} --gpu {profile.name} --calibration {args.out}"
    )
    return 0


def _measure(profiler: bool) -> dict[str, Any]:
    require(profiler=False, torch=False)
    raw = microbench.measure(lambda what: announce(f"measuring: {what}"))
    if not profiler:
        return raw | {"counters": None, "no_counters": "--no-profiler"}
    announce("measuring: miss counters")
    try:
        return raw | {"counters": counters.count(raw["l2_bytes"])}
    except InputError as reason:
        return raw | {"counters": None, "no_counters": str(reason)}


def _derive(raw: Mapping[str, Any], left_out: list[str]) -> dict[str, Entry]:
    """With a bar on standard error, on a terminal only: the fit takes seconds."""
    with counter(TRIALS, "fitting the L2's constants") as shown:
        tried = count(1)
        return derive(raw, lambda: shown(next(tried)), left_out)


def _read(path: str) -> dict[str, Any]:
    raw = read_object(path, f"--from '{path}'", "JSON of calibrate --raw", MAX_RAW_BYTES)
    check_schema(raw, f"--from '{path}'")
    return raw


def comparison(raw: Mapping[str, Any], measured: Mapping[str, Entry]) -> str:
    base = base_profile(str(raw.get("gpu")))
    numbers = ((name, measured[name].value, getattr(base, name, None)) for name in SHOWN if name in measured)
    return Table.of(
        {
            "quantity": name,
            "measured": quantity_text(name, here),
            "shipped": "-" if there is None else quantity_text(name, there),
        }
        for name, here, there in numbers
    ).text()

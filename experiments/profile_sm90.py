"""What flash_fwd_sm90 moves under many orders: `python experiments/profile_sm90.py --out FILE.csv`, on a Hopper GPU.

A row is a launch, its L2 flushed before, counted by Nsight Compute. Needs PyTorch, nvcc and ncu. `--dry-run` says how
many launches; it needs no GPU. Times are bench_sm90.py's.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sm90 import Sm90Order, Sm90Spec, fastest
from sm90_columns import KNOBS, ORDER, PROBLEM

from iosim import InputError
from iosim.base.files import write_whole
from iosim.evidence.columns import METRICS
from iosim.evidence.cuda.launch import Shape
from iosim.evidence.cuda.ncu import Profiled, find_ncu, import_report, parse_raw

COUNTERS = (
    "hbm_read",
    "hbm_write",
    "l2_read",
    "l2_write",
    "l2_slice_read",
    "l2_slice_write",
    "l2_slice_miss",
    "l2_fabric",
    "seconds",
    "registers",
    "smem_bytes",
)
COLUMNS = (*PROBLEM, *KNOBS, *ORDER, "grid", *COUNTERS)

SHAPES = (
    # heads, kv_heads, tokens, head_dim
    (8, 8, 65536, 128), (8, 8, 32768, 128), (8, 8, 16384, 128), (32, 32, 4096, 128), (32, 8, 16384, 128),
    (8, 8, 65536, 64), (16, 16, 8192, 128), (32, 32, 8192, 64), (32, 8, 16384, 64), (8, 8, 32768, 64),
    (4, 4, 32768, 256), (32, 8, 8192, 128), (4, 4, 131072, 128),
)  # fmt: skip
PORTION = 3
"""Shapes that one start of the profiler takes on."""


@dataclass(frozen=True)
class Call:
    spec: Sm90Spec
    shape: Shape
    order: Sm90Order


def orders(heads: int, causal: bool) -> list[Sm90Order]:
    """Orders that differ in what they read again; without a mask the order of query blocks does not matter."""
    if not causal:
        sections = [("query", 0), ("head", 0), ("head", heads // 2)]
        return [
            Sm90Order(o, "light_first", n, d)
            for (o, n), d in itertools.product(sections, ("ascending", "alternating"))
        ]
    sections = [("query", 0), ("head", 0), ("head", heads // 2), ("head", max(heads // 4, 1))]
    several = [
        Sm90Order(o, "heavy_first", n, d)
        for (o, n), d in itertools.product(sections, ("ascending", "descending"))
    ]
    several += [Sm90Order(o, "heavy_first", 0, "alternating") for o in ("query", "head")]
    several += [
        Sm90Order(o, "light_first", 0, d)
        for o in ("query", "head")
        for d in ("ascending", "descending")
    ]
    return [*several, Sm90Order("query", "fold"), Sm90Order("head", "fold")]


def calls_of(number: int) -> list[Call]:
    """The calls of a shape: every order with the counter; other schedules and clusters for the first three shapes."""
    heads, kv_heads, seq, d = SHAPES[number]
    shape = Shape(1, heads, kv_heads, seq, seq, d)
    several = []
    for causal in (False, True):
        first = fastest(d, "causal" if causal else "none")
        several += [Call(first, shape, order) for order in orders(heads, causal)]
        if number < 3:
            few = [order for order in orders(heads, causal) if order.direction == "ascending"]
            for schedule in ("one_tile", "static"):
                several += [Call(replace(first, schedule=schedule), shape, order) for order in few]
            several += [Call(replace(first, cluster=2), shape, order) for order in few]
    return several


def launch_all(numbers: list[int]) -> None:
    """Every call of these shapes once: what the profiler watches."""
    import torch
    from bench_sm90 import own_call, tensors

    for number in numbers:
        t = tensors(calls_of(number)[0].shape, "bf16")
        for call in calls_of(number):
            own_call(call.spec, call.shape, t, call.order)()
        torch.cuda.synchronize()


def check_against_cudnn(numbers: list[int]) -> None:
    """The first call of each mask must agree with cuDNN.

    Raises:
        InputError: it does not.
    """
    import torch
    from bench_sm90 import library_call, own_call, tensors

    for number in numbers:
        calls = calls_of(number)
        t = tensors(calls[0].shape, "bf16")
        for call in {call.spec.mask: call for call in reversed(calls)}.values():
            own_call(call.spec, call.shape, t, call.order)()
            want = library_call("cudnn", call.shape, call.spec.mask == "causal", t)()
            error = (
                torch.linalg.norm(t["o"] - want, dtype=torch.float32)
                / torch.linalg.norm(want.float())
            ).item()
            if not error < 1e-2:
                raise InputError(f"{call} differs from cuDNN by {error:.1e}")


def profile(script: str, kernels: str, numbers: list[int]) -> list[Profiled]:
    """The launches of kernels of these names that `script --launch` starts, in their order."""
    metrics = ",".join(METRICS[name][0] for name in COUNTERS)
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "sm90.ncu-rep"
        options = [
            "--cache-control",
            "all",
            "--clock-control",
            "none",
            "-k",
            f"regex:{kernels}",
            "--metrics",
            metrics,
        ]
        command = [sys.executable, script, "--launch", *map(str, numbers)]
        subprocess.run(
            [str(find_ncu()), *options, "-o", str(report), *command],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        launches, _ = parse_raw(import_report(report))
    return launches


def counted(profiled: Profiled) -> list[object]:
    values = {name: profiled.column(name) for name in COUNTERS}
    return [
        "" if x is None else f"{x:.9g}" if n == "seconds" else round(x) for n, x in values.items()
    ]


def row(call: Call, profiled: Profiled) -> str:
    s = call.shape
    causal = int(call.spec.mask == "causal")
    problem = [
        "flash_fwd_sm90",
        s.batch,
        s.heads,
        s.kv_heads,
        s.seq_q,
        s.seq_k,
        s.head_dim,
        causal,
        call.spec.dtype,
    ]
    knobs = [getattr(call.spec, knob) for knob in KNOBS] + [
        getattr(call.order, knob) for knob in ORDER
    ]
    return ",".join(map(str, [*problem, *knobs, profiled.grid[0], *counted(profiled)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument("--dry-run", action="store_true", help="say how many launches")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="start no further portion after so long"
    )
    parser.add_argument("--launch", type=int, nargs="+", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.launch:
        launch_all(a.launch)
        return 0
    if a.dry_run:
        print(sum(len(calls_of(n)) for n in range(len(SHAPES))), "launches")
        return 0
    if a.out is None:
        parser.error("--out FILE.csv is needed")
    from watch import prebuild

    from iosim.evidence.measure.machine import facts, profiler_version, write_provenance

    prebuild([call.spec for n in range(len(SHAPES)) for call in calls_of(n)])
    start = time.monotonic()
    rows = [",".join(COLUMNS)]
    for first in range(0, len(SHAPES), PORTION):
        if time.monotonic() - start > a.seconds:
            print(f"stopped after {first} of {len(SHAPES)} shapes")
            break
        numbers = list(range(first, min(first + PORTION, len(SHAPES))))
        check_against_cudnn(numbers)
        calls, profiled = (
            [call for n in numbers for call in calls_of(n)],
            profile(__file__, "flash_fwd_sm90", numbers),
        )
        if len(profiled) != len(calls):
            print(
                f"the report has {len(profiled)} of {len(calls)} launches of shapes {numbers}; they are left out"
            )
            continue
        rows += [row(*x) for x in zip(calls, profiled, strict=True)]
        write_whole(a.out, "\n".join(rows) + "\n")
        print(f"{len(rows) - 1} rows after {time.monotonic() - start:.0f} s", flush=True)
    write_provenance(
        a.out,
        facts()
        | {
            "profiler": profiler_version(),
            "command": f"python experiments/profile_sm90.py --out {a.out.name}",
            "l2_start": "cold: flushed before every launch and every replay pass",
            "inputs": "random normal",
            "check": "the first launch of each shape and mask against cuDNN, within 1e-2 in the Frobenius norm",
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What flash_bwd_sm90 moves: `python experiments/profile_bwd_sm90.py --out FILE.csv`, on a Hopper GPU.

A row is one of a call's three launches, its L2 flushed before, counted by Nsight Compute. Needs PyTorch, nvcc and ncu.
`--dry-run` says how many launches; it needs no GPU. Times are bench_bwd_sm90.py's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from profile_sm90 import COUNTERS, ORDER, PROBLEM, counted, profile
from sm90 import Sm90Order
from sm90_bwd import Sm90BwdSpec, fastest_backward

from iosim.base.files import write_whole
from iosim.evidence.cuda.launch import Shape
from iosim.evidence.cuda.ncu import Profiled

KNOBS = ("block_q", "stages", "score_stages", "sums", "overlap")
COLUMNS = ("call", "launch", *PROBLEM, *KNOBS, *ORDER, "window", "kernel", "grid", *COUNTERS)

SHAPES = (
    # heads, kv_heads, queries, keys, head_dim
    (32, 32, 4096, 4096, 128), (8, 8, 16384, 16384, 128), (32, 32, 4096, 4096, 64), (8, 8, 16384, 16384, 64),
    (32, 8, 8192, 8192, 128), (32, 8, 8192, 8192, 64), (16, 16, 2048, 8192, 128), (24, 8, 3000, 5001, 64),
    (4, 4, 32768, 32768, 128),
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    spec: Sm90BwdSpec
    shape: Shape
    order: Sm90Order


def calls_of(number: int) -> Iterator[Call]:
    """A shape under every mask, added in every way, under orders that differ in what they read again."""
    heads, kv_heads, seq_q, seq_k, d = SHAPES[number]
    for mask in ("none", "causal", "window"):
        shape = Shape(1, heads, kv_heads, seq_q, seq_k, d, 1024 if mask == "window" else None)
        first = fastest_backward(d, mask)
        for sums in ("copied", "added") if number < 4 else ("copied",):
            yield Call(replace(first, sums=sums), shape, Sm90Order("query"))
            yield Call(replace(first, sums=sums), shape, Sm90Order("head"))
        if number < 4:
            yield Call(replace(first, sums="ordered"), shape, Sm90Order("head"))
        if mask == "causal":
            yield Call(first, shape, Sm90Order("query", direction="descending"))
            yield Call(first, shape, Sm90Order("head", "light_first"))
            yield Call(first, shape, Sm90Order("head", section_heads=max(kv_heads // 4, 1)))


def launch_all(numbers: list[int]) -> None:
    """Every call of these shapes once: what the profiler watches."""
    import torch
    from bench_bwd_sm90 import own_call, random_tensors

    for number in numbers:
        for call in calls_of(number):
            t = random_tensors(call.shape, call.spec.dtype)
            own_call(call.spec, call.shape, t, call.order)()
            torch.cuda.synchronize()


def row(number: int, call: Call, profiled: Profiled) -> str:
    """A launch of a call; `number` counts the launches of all calls from 0."""
    s, spec = call.shape, call.spec
    causal = int(spec.mask == "causal")
    problem = [
        "flash_bwd_sm90",
        s.batch,
        s.heads,
        s.kv_heads,
        s.seq_q,
        s.seq_k,
        s.head_dim,
        causal,
        spec.dtype,
    ]
    knobs = [getattr(spec, knob) for knob in KNOBS] + [getattr(call.order, knob) for knob in ORDER]
    place = [s.window or "", profiled.kernel.split("(")[0], "x".join(map(str, profiled.grid))]
    return ",".join(
        map(str, [number // 3 + 1, number % 3 + 1, *problem, *knobs, *place, *counted(profiled)])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument("--dry-run", action="store_true", help="say how many launches")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="start no further shape after so long"
    )
    parser.add_argument("--launch", type=int, nargs="+", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.launch:
        launch_all(a.launch)
        return 0
    if a.dry_run:
        print(3 * sum(len(list(calls_of(n))) for n in range(len(SHAPES))), "launches")
        return 0
    if a.out is None:
        parser.error("--out FILE.csv is needed")
    from watch import prebuild

    from iosim.evidence.measure.machine import facts, profiler_version, write_provenance

    prebuild([call.spec for n in range(len(SHAPES)) for call in calls_of(n)])
    start = time.monotonic()
    rows = [",".join(COLUMNS)]
    for number in range(len(SHAPES)):
        if time.monotonic() - start > a.seconds:
            print(f"stopped after {number} of {len(SHAPES)} shapes")
            break
        calls = [call for call in calls_of(number) for _ in range(3)]
        profiled = profile(__file__, "flash_bwd_sm90", [number])
        if len(profiled) != len(calls):
            print(
                f"the report has {len(profiled)} of {len(calls)} launches of shape {number}; they are left out"
            )
            continue
        rows += [
            row(len(rows) - 1 + n, *x) for n, x in enumerate(zip(calls, profiled, strict=True))
        ]
        write_whole(a.out, "\n".join(rows) + "\n")
        print(f"{len(rows) - 1} rows after {time.monotonic() - start:.0f} s", flush=True)
    write_provenance(
        a.out,
        facts()
        | {
            "profiler": profiler_version(),
            "command": f"python experiments/profile_bwd_sm90.py --out {a.out.name}",
            "l2_start": "cold: flushed before every launch and every replay pass",
            "inputs": "random normal",
            "check": "these instantiations against float64: bench_bwd_sm90.py check, in the same run",
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

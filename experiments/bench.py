"""Checks the project's kernels against float64, and times them beside PyTorch's, on the GPU of this machine.

    python experiments/bench.py check                       # every instantiation of the plan against float64
    python experiments/bench.py time --out times.csv        # beside PyTorch's backends, without the profiler

Counters are collected by `iosim measure --plan full`. Needs PyTorch with CUDA, and nvcc.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_time import chains, library

from iosim import InputError
from iosim.evidence.columns import PROBLEM
from iosim.evidence.cuda.launch import Order, Shape
from iosim.evidence.cuda.spec import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec
from iosim.evidence.measure.case import Case, flops
from iosim.evidence.measure.choose import BWD_TILES, HEAVY, TILES, named, parts
from iosim.evidence.measure.harness import trusted
from iosim.evidence.measure.machine import prebuild, require
from iosim.evidence.measure.timing import case_ms


def small(spec: object) -> Iterator[tuple[Case, dict[str, float]]]:
    """Small problems that reach the edges of an instantiation: ragged, grouped, empty rows, large scores."""
    d, mask = spec.head_dim, getattr(spec, "mask", "none")  # type: ignore[attr-defined]
    causal, window = mask == "causal", 37 if mask == "window" else None
    if not isinstance(spec, FwdSpec | BwdSpec):
        yield Case(spec, Shape(2, 4, 4, 256, 256, d)), {}  # type: ignore[arg-type]
        return
    order = Order(splits=3 if getattr(spec, "split", False) else 1)
    yield Case(spec, Shape(2, 4, 2, 333, 410, d, window), order, causal), {}
    yield Case(spec, Shape(1, 2, 1, 500, 200, d, window), order, causal), {}
    yield Case(spec, Shape(3, 2, 2, 1, 777, d, window), order, causal), {}
    if isinstance(spec, FwdSpec):
        yield Case(spec, Shape(1, 2, 1, 300, 400, d, window), order, causal), {"magnitude": 30.0}
        for other in (
            Order("head", heavy_first=True),
            Order("head", True, 3, "descending"),
            Order("query", True, 0, "alternating"),
        ):
            yield (
                Case(
                    spec,
                    Shape(2, 4, 2, 333, 410, d, window),
                    replace(other, splits=order.splits),
                    causal,
                ),
                {},
            )


def run_check(groups: list[str], quick: bool) -> int:
    """Every instantiation of the groups on small problems with fresh random inputs."""
    specs: list[Any] = list(dict.fromkeys(case.spec for case in named(groups)))
    specs += [replace(TILES[d], mask="window") for d in TILES]
    specs += [replace(TILES[d], mask=m, dtype="fp16") for d in TILES for m in ("none", "causal")]
    narrow = {"q_in_registers": True, "block_k": 32, "min_ctas": 1}
    specs += [
        replace(TILES[d], mask=m, **narrow) for d in (64, 96, 128) for m in ("none", "causal")
    ]
    for tile in BWD_TILES.values():
        for m, deterministic in itertools.product(("none", "causal", "window"), (False, True)):
            specs += [
                replace(tile, mask=m, dtype=dtype, deterministic=deterministic)
                for dtype in ("fp16", "bf16")
            ]
    specs = list(dict.fromkeys(specs))[:: 7 if quick else 1]
    prebuild(specs, require(profiler=False))
    seed = int.from_bytes(os.urandom(3), "little")
    failed = 0
    worst = {}
    for spec in specs:
        for n, (case, extremes) in enumerate(small(spec)):
            good, errors = trusted(case, seed + n, **extremes)
            failed += not good
            key = f"{case.implementation} {case.dtype}"
            worst[key] = {
                name: max(e, worst.get(key, {}).get(name, 0.0)) for name, e in errors.items()
            }
            if not good:
                print(f"WRONG {case} {extremes}: {errors}")
    print(f"seed {seed}: {len(specs)} instantiations, {failed} wrong; largest errors:")
    for key, errors in worst.items():
        print(f"  {key}: " + ", ".join(f"{name} {error:.2e}" for name, error in errors.items()))
    return 1 if failed else 0


def timing_cases(which: str) -> Iterator[Case]:
    """What a pass times; `chain` is the minimal kernel and the naive one at 512 tokens in fp32."""
    if which == "chain":
        for batch, heads in ((1, 8), (1, 12), (4, 12), (16, 12), (64, 12)):
            for spec in (MinimalSpec(64), NaiveSpec(64, "fp32")):
                yield Case(spec, Shape(batch, heads, heads, 512, 512, 64))
        return
    for dtype, head_dim, (seq, heads), causal in itertools.product(
        ("bf16", "fp16"), (64, 128), ((4096, 32), (16384, 8)), (False, True)
    ):
        mask = "causal" if causal else "none"
        shape = Shape(1, heads, heads, seq, seq, head_dim)
        if which == "bwd":
            yield Case(replace(BWD_TILES[head_dim], mask=mask, dtype=dtype), shape, causal=causal)
        else:
            yield Case(
                replace(TILES[head_dim], mask=mask, dtype=dtype),
                shape,
                HEAVY if causal else Order(),
                causal,
            )


def run_time(out: Path, passes: list[str]) -> int:
    """Median times beside PyTorch's backends, warm and with the L2 flushed before each call."""
    cases = [case for name in passes for case in timing_cases(name)]
    prebuild((case.spec for case in cases), require(profiler=False))
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*PROBLEM, "block_q", "block_k", "warps", "l2_start", "ms", "tflops"))
        for case in cases:
            row = case.columns()
            for l2_start in ("warm", "cold"):
                others = chains if case.implementation in ("naive", "minimal") else library
                times = {case.implementation: case_ms(case, l2_start == "cold")} | others(
                    case, l2_start == "cold"
                )
                for name, ms in times.items():
                    is_own = name == case.implementation
                    tile = [row[x] if is_own else "" for x in ("block_q", "block_k", "warps")]
                    name_of = (
                        name
                        if is_own
                        else name + ("_bwd" if case.implementation == "flash_bwd" else "")
                    )
                    rate = flops(case) / ms / 1e9
                    problem = [name_of, *(row[x] for x in PROBLEM[1:])]
                    writer.writerow((*problem, *tile, l2_start, f"{ms:.4f}", f"{rate:.1f}"))
                file.flush()
                rounded = {name: round(ms, 4) for name, ms in times.items()}
                print(" ".join(row[x] for x in PROBLEM), l2_start, rounded, flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("check", "time"))
    parser.add_argument("--out", type=Path, help="CSV to write (time)")
    parser.add_argument(
        "--groups", nargs="+", choices=parts(), default=list(parts()), help="parts of the plan"
    )
    parser.add_argument(
        "--passes",
        nargs="+",
        choices=("fwd", "bwd", "chain"),
        default=["fwd", "bwd", "chain"],
        help="what to time",
    )
    parser.add_argument(
        "--quick", action="store_true", help="check a seventh of the instantiations"
    )
    a = parser.parse_args()
    try:
        if a.what == "check":
            return run_check(a.groups, a.quick)
        if a.out is None:
            raise InputError("time needs --out FILE.csv")
        return run_time(a.out, a.passes)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

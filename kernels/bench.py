"""Checks, times and profiles the project's kernels on the GPU of this machine.

    python kernels/bench.py check                       # every instantiation of the plan against float64
    python kernels/bench.py time --out times.csv        # beside PyTorch's backends, without the profiler
    python kernels/bench.py collect --out rows.csv      # the plan under Nsight Compute, one row a launch
    python kernels/bench.py collect --out rows.csv --groups orders tiles

`collect` checks each call against the float64 reference before it is profiled, works through the plan in portions,
writes the table after each, and continues where an interrupted run stopped. Needs PyTorch with CUDA, nvcc, and ncu for
`collect`.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from bench_time import chains, flops, library, ours
from harness import DTYPE_NAMES, TOLERANCE, Case, check, inputs, launches, loaded, workspace
from plan import BWD_TILES, GROUPS, HEAVY, TILES

from iosim.errors import InputError
from iosim.kernelbuild import BwdSpec, FwdSpec, MinimalSpec, NaiveSpec, build
from iosim.kernelbuild.compiler import cache_key, compiler_version, find_nvcc
from iosim.kernelbuild.driver import compute_capability
from iosim.kernelbuild.launch import Order, Shape
from iosim.kernelbuild.ncu import METRICS, find_ncu, import_report, parse_raw

PROBLEM = ("implementation", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal", "dtype")
KNOBS = ("order", "heavy_first", "section", "direction", "persistent", "window", "splits", "min_ctas")
COUNTED = (
    "hbm_read", "hbm_write", "l2_read", "l2_write", "l2_slice_read", "l2_slice_write", "l2_slice_miss", "l2_fabric",
)  # fmt: skip
COLUMNS = (
    "call", "launch", *PROBLEM, "block_q", "block_k", "warps", "stages", "note", "kernel", "grid", "block", "registers",
    "smem_bytes", *COUNTED, "seconds", "local_read", "local_write", "smem_wavefronts", "sm_clock_hz", *KNOBS,
    "spill_store_bytes", "sources",
)  # fmt: skip
LSE_TOLERANCE = 2e-3
PORTION = 100


def describe(case: Case) -> dict[str, str]:
    """The columns of a row that the call decides."""
    s, spec = case.shape, case.spec
    row = {
        "implementation": case.implementation, "batch": s.batch, "heads": s.heads, "kv_heads": s.kv_heads,
        "seq_q": s.seq_q, "seq_k": s.seq_k, "head_dim": s.head_dim, "causal": int(case.causal),
        "dtype": DTYPE_NAMES[case.dtype], "window": "" if s.window is None else s.window,
        "note": ("deterministic" if getattr(spec, "deterministic", False) else "") or case.note,
    }  # fmt: skip
    for name in ("block_q", "block_k", "warps", "stages", "min_ctas"):
        row[name] = getattr(spec, name, "")
    if isinstance(spec, FwdSpec):
        o = case.order
        row |= {"order": o.order, "heavy_first": int(o.heavy_first), "section": o.section_heads}
        row |= {"direction": o.direction, "persistent": int(spec.persistent), "splits": o.splits}
    return {name: str(value) for name, value in row.items()}


def trusted(case: Case, seed: int, **extremes: float) -> tuple[bool, dict[str, float]]:
    """Whether a call's outputs agree with the float64 reference, and its errors."""
    errors = check(case, seed, **extremes)
    limit = LSE_TOLERANCE * (50 if extremes else 1)
    good = all(error <= (limit if name == "lse" else TOLERANCE[case.dtype]) for name, error in errors.items())
    return good, errors


def prebuild(cases: Iterable[Case]) -> None:
    """Compiles all that the cases need, in parallel."""
    cc = compute_capability()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda spec: build(spec, cc), {case.spec: None for case in cases}))


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
        for other in (HEAVY, Order("head", True, 3, "descending"), Order("query", True, 0, "alternating")):
            yield Case(spec, Shape(2, 4, 2, 333, 410, d, window), replace(other, splits=order.splits), causal), {}


def run_check(groups: list[str], quick: bool) -> int:
    """Every instantiation of the groups on small problems with fresh random inputs."""
    cases = [case for name in groups for case in GROUPS[name]()]
    specs = list({case.spec: None for case in cases})
    specs += [replace(TILES[d], mask="window") for d in TILES]
    specs += [replace(TILES[d], mask=m, dtype="fp16") for d in TILES for m in ("none", "causal")]
    narrow = {"q_in_registers": True, "block_k": 32, "min_ctas": 1}
    specs += [replace(TILES[d], mask=m, **narrow) for d in (64, 96, 128) for m in ("none", "causal")]
    for tile in BWD_TILES.values():
        for m, deterministic in itertools.product(("none", "causal", "window"), (False, True)):
            specs += [replace(tile, mask=m, dtype=dtype, deterministic=deterministic) for dtype in ("fp16", "bf16")]
    specs = list(dict.fromkeys(specs))[:: 7 if quick else 1]
    prebuild(case for spec in specs for case, _ in small(spec))
    seed, failed, worst = int.from_bytes(os.urandom(3), "little"), 0, {}
    for spec in specs:
        for n, (case, extremes) in enumerate(small(spec)):
            good, errors = trusted(case, seed + n, **extremes)
            failed += not good
            key = f"{case.implementation} {case.dtype}"
            worst[key] = {name: max(e, worst.get(key, {}).get(name, 0.0)) for name, e in errors.items()}
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
        mask, shape = "causal" if causal else "none", Shape(1, heads, heads, seq, seq, head_dim)
        if which == "bwd":
            yield Case(replace(BWD_TILES[head_dim], mask=mask, dtype=dtype), shape, causal=causal)
        else:
            yield Case(replace(TILES[head_dim], mask=mask, dtype=dtype), shape, HEAVY if causal else Order(), causal)


def run_time(out: Path, passes: list[str]) -> int:
    """Median times beside PyTorch's backends, warm and with the L2 flushed before each call."""
    cases = [case for name in passes for case in timing_cases(name)]
    prebuild(cases)
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*PROBLEM, "block_q", "block_k", "warps", "l2_start", "ms", "tflops"))
        for case in cases:
            row = describe(case)
            for l2_start in ("warm", "cold"):
                others = chains if case.implementation in ("naive", "minimal") else library
                times = {case.implementation: ours(case, l2_start == "cold")} | others(case, l2_start == "cold")
                for name, ms in times.items():
                    own = name == case.implementation
                    tile = [row[x] if own else "" for x in ("block_q", "block_k", "warps")]
                    name_of = name if own else name + ("_bwd" if case.implementation == "flash_bwd" else "")
                    rate = flops(case) / ms / 1e9
                    problem = [name_of, *(row[x] for x in PROBLEM[1:])]
                    writer.writerow((*problem, *tile, l2_start, f"{ms:.4f}", f"{rate:.1f}"))
                file.flush()
                shown = {name: round(ms, 4) for name, ms in times.items()}
                print(" ".join(row[x] for x in PROBLEM), l2_start, shown, flush=True)
    return 0


def numbered(groups: list[str]) -> list[tuple[int, Case]]:
    """Calls of some groups, each with its number in the whole plan."""
    whole = [(name, case) for name, group in GROUPS.items() for case in group()]
    return [(number, case) for number, (name, case) in enumerate(whole, start=1) if name in groups]


def run_profiled(groups: list[str], first: int, last: int, expected: Path) -> int:
    """What runs under the profiler: calls [first, last) of the plan, checked, then launched with the profiler on."""
    runtime = torch.cuda.cudart()
    with expected.open("w") as file:
        for number, case in numbered(groups)[first:last]:
            good, errors = trusted(case, seed=int.from_bytes(os.urandom(3), "little"))
            torch.cuda.empty_cache()
            if not good:
                print(f"WRONG, not profiled: {case}: {errors}", flush=True)
                continue
            t = inputs(case, seed=number)
            w = workspace(case, t)
            torch.cuda.synchronize()
            built = loaded(case.spec).built
            sources = cache_key(case.spec, built.cc, built.compiler)[:12]
            for index, launch in enumerate(launches(case, t | w), start=1):
                runtime.cudaProfilerStart()
                launch.run()
                torch.cuda.synchronize()
                runtime.cudaProfilerStop()
                spill = str(built.resources[launch.function.name].spill_store_bytes)
                row = describe(case) | {"call": str(number), "launch": str(index), "kernel": launch.function.name}
                row |= {"grid": str(launch.grid), "spill_store_bytes": spill, "sources": sources}
                file.write(json.dumps(row) + "\n")
            file.flush()
            del t, w
            torch.cuda.empty_cache()
    return 0


def joined(expected: Path, report_text: str) -> list[dict[str, str]]:
    """Rows of the table: what was launched, in order, with what the profiler counted for it."""
    planned = [json.loads(line) for line in expected.read_text().splitlines()]
    profiled, notes = parse_raw(report_text)
    for note in notes:
        print(note)
    if len(profiled) < len(planned):
        print(f"the profiler has {len(profiled)} of {len(planned)} launches; the rest is left out")
    rows = []
    for row, launch in zip(planned, profiled, strict=False):
        if row["kernel"] != launch.kernel or row["grid"] != str(launch.grid):
            raise InputError(f"launch {row['kernel']} {row['grid']} meets {launch.kernel} {launch.grid} in the report")
        row["block"] = str(launch.block)
        for name in METRICS:
            value = launch.column(name)
            row[name] = "" if value is None else f"{value:.9g}" if name == "seconds" else str(round(value))
        rows.append(row)
    return rows


def provenance(out: Path, groups: list[str], command: list[str]) -> None:
    """Writes what measured the table, beside it."""
    query = "name,driver_version,vbios_version,clocks.max.sm,clocks.max.mem"
    gpu = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False
    ).stdout.strip()
    profiler = subprocess.run([find_ncu(), "--version"], capture_output=True, text=True, check=False).stdout
    values = {
        "gpu": gpu, "gpu_query": query, "cuda_compiler": compiler_version(find_nvcc()), "pytorch": torch.__version__,
        "profiler": profiler.strip().splitlines()[-1], "date": datetime.date.today().isoformat(),
        "groups": " ".join(groups),
        "inputs": "random normal; fresh for the check, seeded by the call's number for profiling",
        "l2_start": "cold: flushed before every launch and every replay pass",
        "command": f"python kernels/bench.py collect --out {out.name} --groups {' '.join(groups)}",
        "profiler_command": " ".join(command),
        "check": "every call against float64 before it was profiled",
        "largest_relative_error": json.dumps(TOLERANCE),
    }  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    out.with_suffix(".provenance.toml").write_text("\n".join(["schema = 1", *lines]) + "\n")


def run_collect(out: Path, groups: list[str]) -> int:
    """The groups of the plan under Nsight Compute, in portions; appends to `out` and skips the calls that it holds."""
    calls = numbered(groups)
    prebuild(case for _, case in calls)
    held: list[dict[str, str]] = []
    if out.is_file():
        with out.open(newline="") as file:
            held = list(csv.DictReader(file))
    done = {int(row["call"]) for row in held}
    metrics = ",".join(metric for metric, _ in METRICS.values())
    options = ["--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off", "--metrics", metrics]
    for first in range(0, len(calls), PORTION):
        last = min(first + PORTION, len(calls))
        portion = {number for number, _ in calls[first:last]}
        if portion <= done:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            report, expected = Path(scratch) / "portion", Path(scratch) / "expected.jsonl"
            own = [sys.executable, __file__, "profiled", "--first", str(first), "--last", str(last)]
            own += ["--expected", str(expected), "--groups", *groups]
            command = [str(find_ncu()), *options, "-f", "-o", str(report)]
            run = subprocess.run([*command, *own], capture_output=True, text=True, check=False)
            print("\n".join(line for line in run.stdout.splitlines() if "WRONG" in line))
            if run.returncode != 0:
                print(f"calls {min(portion)} to {max(portion)} failed: {(run.stdout + run.stderr)[-1500:]}")
            if not report.with_suffix(".ncu-rep").is_file():
                continue
            fresh = joined(expected, import_report(report.with_suffix(".ncu-rep")))
        held = [row for row in held if int(row["call"]) not in portion] + fresh
        held.sort(key=lambda row: (int(row["call"]), int(row["launch"])))
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(held)
        provenance(out, groups, [*command[:-1], "REPORT", "COMMAND"])
        now = f"{datetime.datetime.now():%H:%M:%S}"
        print(f"{last} of {len(calls)} calls: {len(held)} rows, {now}", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("check", "time", "collect", "profiled"))
    parser.add_argument("--out", type=Path, help="CSV to write (time, collect)")
    parser.add_argument("--groups", nargs="+", choices=tuple(GROUPS), default=list(GROUPS), help="parts of the plan")
    parser.add_argument(
        "--passes", nargs="+", choices=("fwd", "bwd", "chain"), default=["fwd", "bwd", "chain"], help="what to time"
    )
    parser.add_argument("--quick", action="store_true", help="check a seventh of the instantiations")
    for name in ("--first", "--last"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--expected", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    try:
        if a.what == "check":
            return run_check(a.groups, a.quick)
        if a.what == "profiled":
            return run_profiled(a.groups, a.first, a.last, a.expected)
        if a.out is None:
            raise InputError(f"{a.what} needs --out FILE.csv")
        return run_time(a.out, a.passes) if a.what == "time" else run_collect(a.out, a.groups)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

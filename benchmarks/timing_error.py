"""Predicted against measured times, by kernel and regime: the fit half (odd-numbered calls) and the held-out one.

    python benchmarks/timing_error.py            the tables of docs/generated/timing-errors.md
    python benchmarks/timing_error.py --fit      fits the fitted constants again, on the odd-numbered calls alone

Rows whose kernel spills registers are never fitted on; they are in regimes of their own.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace

from recorders import measurements

from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.algorithms import plan
from iosim.kernel.kernel import Kernel, MatrixUnit, Tile
from iosim.kernel.launch import Chain
from iosim.kernel.libraries import Overrides, resolve
from iosim.kernel.libraries.triton import unit_of
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.kernel.traffic import Traffic
from iosim.prediction.call import Call
from iosim.prediction.predictor import default_method, hbm_traffic
from iosim.prediction.replays import Replays
from iosim.problem.attention import AttentionProblem
from iosim.readers.count import count
from iosim.readers.timing import step_time

SHORT_S = 30e-6
"""Launches shorter than this are a regime of their own: latency and first loads decide them."""

TYPES = {"bfloat16": "bf16", "float16": "fp16"}
PUBLISHED_GPUS = {"a100_sxm": ("a100-sxm-80gb", "fa2"), "l40s": ("l40s", "fa2"), "h100_sxm": ("h100-sxm", "fa3"),
                  "h200_sxm": ("h200-sxm", "fa3")}  # fmt: skip


class Tried(SimpleNamespace):
    """Values of the profile that a fit tries, over those of its file."""

    step_load_cycles: float
    step_sync_cycles: float
    step_single_buffer_cycles: float
    product_step_cycles: float
    spill_access_cycles: float
    tile_cycles: float


TRIED = Tried(**{name: load_profile("h200-sxm").need(name) for name in Tried.__annotations__})
FITTED: tuple[tuple[object, str, float], ...] = (
    (step_time, "FP32_OPERATIONS_PER_SCORE", 0.1),
    (step_time, "UNHIDDEN_SPECIALISED", 0.01),
    (TRIED, "step_load_cycles", 10.0),
    (step_time, "UNHIDDEN_FRAGMENTS", 0.01),
    (TRIED, "step_sync_cycles", 10.0),
    (TRIED, "step_single_buffer_cycles", 10.0),
    (TRIED, "product_step_cycles", 10.0),
    (TRIED, "tile_cycles", 100.0),
)
"""Fitted constants, of the model and of the H200's profile, and the step in which they are rounded."""


@dataclass(frozen=True)
class Case:
    """One call: its launches in the model, and their measured seconds (one for the whole chain where `whole`)."""

    kernel_name: str
    regime: str
    call: int
    problem: AttentionProblem
    profile: HardwareProfile
    kernel: Kernel
    chain: Chain
    traffic: Traffic
    seconds: tuple[float, ...]
    whole: bool = False
    fits: bool = False
    launched: str = "alone"
    warm: bool = False

    @cached_property
    def worked_out(self) -> Call:
        return Call.of(self.problem, self.kernel, self.profile, self.chain)

    def errors(self) -> Iterator[tuple[str, float]]:
        """(launch, predicted / measured) of each launch."""
        call = replace(self.worked_out, profile=replace(self.profile, **vars(TRIED)))
        found = call.time(self.traffic, launched=self.launched, warm=self.warm)
        if self.whole:
            yield "", found.total_s / self.seconds[0]
            return
        for launch, seconds in zip(found.launches, self.seconds, strict=True):
            yield launch.name, launch.total_s / seconds


def moved(call: Call, flushed: bool = False) -> Traffic:
    """Bytes at both levels, those of HBM by the capacity rule.

    Args:
        flushed: each launch starts from an empty L2, as under the profiler.
    """
    if not flushed:
        return call.counted + call.capacity()
    traffic = call.counted
    for launch in call.chain.launches:
        chain = replace(call.chain, launches=(launch,))
        traffic = traffic + Call.of(call.problem, call.kernel, call.profile, chain).capacity()
    return traffic


def rows(name: str) -> list[dict[str, str]]:
    with measurements(name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def as_triton(kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
    """The kernel with the unit that Triton computes its products with."""
    unit = unit_of(kernel.tile, problem, profile)
    return kernel.with_(matrix_unit=unit)


def library_cases() -> Iterator[Case]:
    """The launches of h200_library_kernels.csv; masks that no interval describes (flex) are left out."""
    gpu, calls = load_profile("h200-sxm"), dict[int, list[dict[str, str]]]()
    for row in rows("h200_library_kernels.csv"):
        calls.setdefault(int(row["call"]), []).append(row)
    for call, launches in calls.items():
        r = launches[0]
        name = r["implementation"]
        if name == "pytorch_flex":
            continue
        dtype = {"bfloat16": "bf16", "float32": "fp32"}[r["dtype"]]
        problem = AttentionProblem(
            batch=int(r["batch"]), heads=int(r["heads"]), kv_heads=int(r["kv_heads"]), seq_q=int(r["seq_q"]),
            seq_k=int(r["seq_k"]), head_dim=int(r["head_dim"]), dtype=dtype,
            mask="causal" if r["causal"] == "1" else "none", passes="bwd" if "backward" in name else "fwd",
        )  # fmt: skip
        over = Overrides()
        if name == "triton_plain":
            over = Overrides(
                tile=(int(r["block_q"]), int(r["block_k"])), warps=int(r["warps"]), stages=int(r["stages"]),
                registers=int(r["registers"]), shared_memory_bytes=int(r["smem_bytes"]) - 1024,
            )  # fmt: skip
        kernel = resolve(name, problem, gpu, over)
        kernel = as_triton(kernel, problem, gpu) if name == "triton_plain" else kernel
        chain = plan(problem, kernel)
        seconds = tuple(float(x["seconds"]) for x in launches)
        spills = name.startswith("pytorch_flash") or (
            name == "triton_plain" and r["block_q"] == "256" and r["warps"] == "4"
        )
        spills = spills or (name == "pytorch_mem_efficient" and (r["head_dim"] == "256" or r["dtype"] == "float32"))
        regime = "backward" if problem.passes == "bwd" else "decode" if problem.seq_q == 1 else (
            "short" if sum(seconds) < SHORT_S else "long"
        )  # fmt: skip
        yield Case(name, regime + (", spills" if spills else ""), call, problem, gpu, kernel, chain,
                   moved(Call.of(problem, kernel, gpu, chain), flushed=True), seconds,
                   fits=not spills and regime in ("short", "long"))  # fmt: skip


def own_cases() -> Iterator[Case]:
    """The forward launches of iosim's own kernel (h200_iosim_kernels.csv) without splits and windows."""
    gpu = load_profile("h200-sxm")
    for r in rows("h200_iosim_kernels.csv"):
        if r["kernel"] != "flash_fwd" or r["splits"] != "1" or r["window"]:
            continue
        problem = AttentionProblem(
            batch=int(r["batch"]), heads=int(r["heads"]), kv_heads=int(r["kv_heads"]), seq_q=int(r["seq_q"]),
            seq_k=int(r["seq_k"]), head_dim=int(r["head_dim"]), dtype="bf16",
            mask="causal" if r["causal"] == "1" else "none",
        )  # fmt: skip
        persistent = r["persistent"] == "1"
        schedule = Schedule(
            Order(r["order"]), Start.HEAVY_FIRST if r["heavy_first"] == "1" else Start.LIGHT_FIRST,
            int(r["section"]), Direction(r["direction"]),
            Scheduler.PERSISTENT if persistent else Scheduler.STATIC,
        )  # fmt: skip
        tile = Tile(*(int(r[n]) for n in ("block_q", "block_k", "warps", "stages")))
        kernel = Kernel(
            "flash", "flash", tile, schedule=schedule, registers=int(r["registers"]),
            shared_memory_bytes=int(r["smem_bytes"]) - 1024, matrix_unit=MatrixUnit.MMA_SYNC,
            persistent_ctas=int(r["grid"].strip("()").split(",")[0]) if persistent else None,
        )  # fmt: skip
        chain, seconds, spills = plan(problem, kernel), float(r["seconds"]), r["spill_store_bytes"] not in ("", "0")
        regime = "decode" if problem.seq_q < step_time.MMA_ROWS else "short" if seconds < SHORT_S else (
            "tile sweep" if r["note"] == "sweep" else "long"
        )  # fmt: skip
        yield Case("iosim flash_fwd", regime + (", spills" if spills else ""), int(r["call"]), problem, gpu, kernel,
                   chain, moved(Call.of(problem, kernel, gpu, chain)), (seconds,), fits=not spills)  # fmt: skip


def call_cases() -> Iterator[Case]:
    """Calls timed outside the profiler (h200_iosim_times.csv), forward, numbered as they stand: never fitted on."""
    gpu = load_profile("h200-sxm")
    for call, r in enumerate(rows("h200_iosim_times.csv"), 1):
        name = r["implementation"]
        if name not in ("flash_fwd", "cudnn", "pytorch_flash", "pytorch_mem_efficient"):
            continue
        causal = r["causal"] == "1"
        problem = AttentionProblem(
            batch=int(r["batch"]), heads=int(r["heads"]), kv_heads=int(r["kv_heads"]), seq_q=int(r["seq_q"]),
            seq_k=int(r["seq_k"]), head_dim=int(r["head_dim"]), dtype=TYPES[r["dtype"]],
            mask="causal" if causal else "none",
        )  # fmt: skip
        if name == "flash_fwd":
            tile = Tile(int(r["block_q"]), int(r["block_k"]), int(r["warps"]), stages=2)
            schedule = Schedule(Order.HEAD, Start.HEAVY_FIRST) if causal else Schedule()
            kernel = Kernel("flash", "flash", tile, schedule=schedule, registers=255,
                            matrix_unit=MatrixUnit.MMA_SYNC)  # fmt: skip
        else:
            kernel = resolve(name, problem, gpu)
        chain = plan(problem, kernel)
        traffic = moved(Call.of(problem, kernel, gpu, chain))
        shown, spills = f"iosim {name}" if name == "flash_fwd" else name, ", spills" if name == "pytorch_flash" else ""
        yield Case(shown, f"call, not profiled{spills}", call, problem, gpu, kernel, chain, traffic,
                   (float(r["ms"]) / 1e3,), whole=True)  # fmt: skip


def triton_cases() -> Iterator[Case]:
    """The tiles of triton_tiles_d64_time.csv, numbered as they stand; inputs are warm in L2, so no HBM bytes."""
    gpu = load_profile("h200-sxm")
    problem = AttentionProblem(heads=32, seq_q=4096, head_dim=64, dtype="bf16")
    for call, r in enumerate(rows("triton_tiles_d64_time.csv"), 1):
        if not r["BM"]:
            continue
        tile = Tile(*(int(float(r[n])) for n in ("BM", "BN", "warps", "stages")))
        kernel = Kernel("triton", "flash", tile, registers=int(float(r["regs"])),
                        shared_memory_bytes=int(float(r["smem"])))  # fmt: skip
        kernel, spills = as_triton(kernel, problem, gpu), float(r["spills"]) > 0
        chain = plan(problem, kernel)
        yield Case("triton tiles, head_dim 64", "warm, spills" if spills else "warm", call, problem, gpu, kernel, chain,
                   count(chain), (float(r["ms"]) / 1e3,), fits=not spills)  # fmt: skip


def graph_cases() -> Iterator[Case]:
    """Calls replayed in a CUDA graph (h200_graph_latency.csv), numbered as they stand: two constants fitted on odd
    ones."""
    gpu = load_profile("h200-sxm")
    for call, r in enumerate(rows("h200_graph_latency.csv"), 1):
        problem = AttentionProblem(
            batch=int(r["batch"]), heads=int(r["heads"]), kv_heads=int(r["kv_heads"]), seq_q=int(r["seq_q"]),
            seq_k=int(r["seq_k"]), head_dim=int(r["head_dim"]), dtype=TYPES[r["dtype"]],
            mask="causal" if r["causal"] == "1" else "none",
        )  # fmt: skip
        kernel = resolve(r["implementation"], problem, gpu)
        chain, seconds = plan(problem, kernel), float(r["graph_ms"]) / 1e3
        made = Call.of(problem, kernel, gpu, chain)
        warm, _, _ = hbm_traffic(made, default_method(chain, "warm")[0], "warm", Replays())
        regime = ("decode" if problem.seq_q == 1 else "prefill") + (", under 30 us" if seconds < SHORT_S else "")
        yield Case(f"{r['implementation']} in a graph", regime, call, problem, gpu, kernel, chain, made.counted + warm,
                   (seconds,), whole=True, launched="graph", warm=True)  # fmt: skip


def published_cases() -> Iterator[Case]:
    """Latencies of serving stacks (published_latency.csv): never fitted on."""
    for call, r in enumerate(rows("published_latency.csv"), 1):
        gpu_name, kernel_name = PUBLISHED_GPUS[r["gpu"]]
        gpu, prefill = load_profile(gpu_name), r["phase"] == "prefill"
        problem = AttentionProblem(
            batch=int(r["batch_size"]), heads=int(r["num_heads"]), kv_heads=int(r["num_key_value_heads"]),
            seq_q=int(r["seq"]) if prefill else 1, seq_k=int(r["seq"]), head_dim=int(r["head_dim"]), dtype="bf16",
            mask="causal" if prefill else "none",
        )  # fmt: skip
        kernel = resolve(kernel_name, problem, gpu)
        chain = plan(problem, kernel)
        seconds = float(r["latency"]) / 1e3
        regime = "decode" if not prefill else "prefill under 0.2 ms" if seconds < 2e-4 else "prefill"
        yield Case(f"{kernel_name} on {gpu_name}, serving", regime, call, problem, gpu, kernel, chain,
                   moved(Call.of(problem, kernel, gpu, chain)), (seconds,), whole=True)  # fmt: skip


def loss(cases: list[Case]) -> float:
    """Mean |log(predicted / measured)| of the attention launches of the fit half."""
    found = [
        abs(math.log(ratio)) for c in cases if c.fits and c.call % 2 for name, ratio in c.errors() if name == "main"
    ]
    return statistics.fmean(found)


def fit(cases: list[Case]) -> None:
    """Coordinate descent over the fitted constants, from their present values; sets and prints them."""
    chosen = [c for c in cases if c.fits and c.call % 2]
    best, factor = loss(chosen), 1.3
    while factor > 1.01:
        improved = False
        for module, name, _ in FITTED:
            for change in (factor, 1 / factor):
                before = getattr(module, name)
                setattr(module, name, before * change)
                found = loss(chosen)
                if found < best - 1e-6:
                    best, improved = found, True
                else:
                    setattr(module, name, before)
        factor = factor if improved else math.sqrt(factor)
    for module, name, step in FITTED:
        setattr(module, name, round(getattr(module, name) / step) * step)
        print(f"{name} = {getattr(module, name):.6g}")
    print(f"mean |log error| on {len(chosen)} calls: {loss(chosen):.4f}\n")


def table(cases: list[Case]) -> str:
    """Mean absolute error of both halves, and the median of predicted / measured - 1, by kernel, launch and regime."""
    groups: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for case in cases:
        for launch, ratio in case.errors():
            part = "" if launch in ("", "main") else f" {launch}"
            halves = groups.setdefault((case.kernel_name + part, case.regime), ([], []))
            halves[0 if case.call % 2 else 1].append(ratio - 1)
    lines = [
        "| kernel | regime | odd calls | mean error | even calls | mean error | median, all |",
        "|---|---|---|---|---|---|---|",
    ]

    def mean(values: list[float]) -> str:
        return f"{statistics.fmean(map(abs, values)):.1%}" if values else "-"

    for (name, regime), (odd, even) in groups.items():
        middle = statistics.median(odd + even)
        lines.append(f"| {name} | {regime} | {len(odd)} | {mean(odd)} | {len(even)} | {mean(even)} | {middle:+.1%} |")
    return "\n".join(lines)


def rankings(cases: list[Case]) -> str:
    """Rank correlation of the times of all tiles of a problem, and how good the predicted best tile is."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        if case.fits and case.regime in ("warm", "tile sweep"):
            p = case.problem
            shape = f"{p.heads} heads, {p.seq_q} tokens, head_dim {p.head_dim}, mask {p.mask}"
            groups.setdefault(f"{case.kernel_name.split(',')[0]}, {shape}", []).append(case)
    lines = [
        "| tiles without spills | n | Spearman | predicted best | measured above the best |",
        "|---|---|---|---|---|",
    ]
    for name, tiles in groups.items():
        measured = [c.seconds[0] for c in tiles]
        predicted = [next(c.errors())[1] * c.seconds[0] for c in tiles]
        choice = tiles[predicted.index(min(predicted))]
        t = choice.kernel.tile
        best, loss_of_choice = f"{t}, {t.warps} warps, {t.stages} stages", choice.seconds[0] / min(measured) - 1
        lines.append(f"| {name} | {len(tiles)} | {spearman(predicted, measured):.3f} | {best} | {loss_of_choice:.1%} |")
    return "\n".join(lines)


def spearman(a: list[float], b: list[float]) -> float:
    """Correlation of ranks; ties keep their order."""

    def ranks(values: list[float]) -> list[int]:
        key: Callable[[int], float] = values.__getitem__
        out = [0] * len(values)
        for rank, index in enumerate(sorted(range(len(values)), key=key)):
            out[index] = rank
        return out

    return statistics.correlation(ranks(a), ranks(b))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit the constants on the odd-numbered calls first")
    args = parser.parse_args()
    cases = [*library_cases(), *own_cases(), *triton_cases()]
    if args.fit:
        fit(cases)
    cases += [*call_cases(), *graph_cases(), *published_cases()]
    print(table(cases))
    print(f"\n{rankings(cases)}")


if __name__ == "__main__":
    main()

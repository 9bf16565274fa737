"""Does the H200 confirm the order that `iosim orders` picks? Predictions first, then measurements, then the tables.

    python experiments/orders_proof.py predict                        # no GPU: written before the run
    python experiments/orders_proof.py measure --out h200_orders.csv  # on a Hopper GPU
    python experiments/orders_proof.py table                          # the tables; no GPU

flash_fwd_sm90 runs in the orders that it has for each problem, a Triton flash forward has its program_id remapped by
the lines that iosim prints, and cuDNN and FlashAttention-2 run as they are. Times are medians of device events, the L2
as the call before left it; bytes are counted by Nsight Compute from a flushed L2. Needs PyTorch, Triton, nvcc and ncu.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iosim.base.files import write_whole
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start

HERE = Path(__file__).resolve().parent
PREDICTED = HERE / "measurements" / "orders_predicted.csv"
MEASURED = HERE / "measurements" / "h200_orders.csv"
GPU = "h200"
OWN, TRITON = "flash-sm90", "triton"
LIBRARIES = ("cudnn", "pytorch_flash")

PROBLEMS = (
    # heads, kv_heads, tokens, head_dim, causal; none of them among those that the models were tried on
    (24, 24, 4096, 128, True), (40, 8, 8192, 128, True), (16, 16, 12288, 128, True), (16, 2, 24576, 128, True),
    (12, 12, 20480, 128, True), (6, 6, 65536, 128, True), (4, 1, 131072, 128, True), (24, 24, 6144, 64, True),
    (24, 8, 16384, 64, True), (10, 10, 49152, 64, True), (24, 24, 8192, 128, False), (12, 4, 32768, 128, False),
    (6, 6, 65536, 128, False), (16, 16, 16384, 64, False), (4, 4, 131072, 64, False),
)  # fmt: skip
README = ((8, 8, 32768, 128, True), (32, 32, 4096, 128, False), (32, 32, 8192, 128, True))
"""Heads, tokens, width and mask of three problems of the README."""
TRITON_PROBLEMS = (
    (16, 16, 8192, 128, True), (16, 16, 16384, 128, True), (16, 16, 32768, 128, True), (16, 4, 16384, 128, True),
    (16, 16, 16384, 128, False),
)  # fmt: skip
TRITON_TILE = (128, 64, 8, 3)
"""Query rows, key rows, warps and stages: the catalog's at head_dim 128."""
ORDER = ("order", "section_heads", "start", "direction", "scheduler")
PROBLEM = ("kernel", "heads", "kv_heads", "tokens", "head_dim", "causal")
Shape = tuple[int, int, int, int, bool]


@dataclass(frozen=True)
class Case:
    """One kernel under one order on one problem; without an order a library as it is."""

    kernel: str
    shape: Shape
    schedule: Schedule | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Its cells in the tables."""
        heads, kv_heads, tokens, head_dim, causal = self.shape
        s = self.schedule
        order = (
            [""] * len(ORDER)
            if s is None
            else [s.order, s.section_heads, s.start, s.direction, s.scheduler]
        )
        return tuple(
            map(str, [self.kernel, heads, kv_heads, tokens, head_dim, int(causal), *order])
        )

    @classmethod
    def of(cls, row: dict[str, str]) -> Case:
        """The case of a table's row."""
        heads, kv_heads, tokens, head_dim, causal = (int(row[name]) for name in PROBLEM[1:])
        schedule = None
        if row["order"]:
            schedule = Schedule(
                Order(row["order"]),
                Start(row["start"]),
                int(row["section_heads"]),
                Direction(row["direction"]),
                Scheduler(row["scheduler"]),
            )
        return cls(row["kernel"], (heads, kv_heads, tokens, head_dim, bool(causal)), schedule)


def sections(shape: Shape) -> list[tuple[Order, int]]:
    """Queries fastest, heads fastest, and sections of a power of two of groups."""
    heads, kv_heads = shape[:2]
    several = [(Order.QUERY, 0), (Order.HEAD, 0)]
    section = heads // kv_heads
    while section < heads:
        if section > 1:
            several.append((Order.HEAD, section))
        section *= 2
    return several


def own_schedules(shape: Shape) -> Iterator[Schedule]:
    """Orders that flash_fwd_sm90 runs in: under a mask the heavy blocks first, and some of the others."""
    up = Direction.ASCENDING
    down = Direction.DESCENDING
    turns = Direction.ALTERNATING
    one_tile = Scheduler.STATIC
    queue = Scheduler.DYNAMIC
    lists = Scheduler.PERSISTENT
    several = sections(shape)
    if not shape[-1]:
        for (order, section), way, how in product(several, (up, turns), (one_tile, queue)):
            yield Schedule(order, Start.LIGHT_FIRST, section, way, how)
        for order, section in several[:2]:
            yield Schedule(order, Start.LIGHT_FIRST, section, up, lists)
        return
    for (order, section), way, how in product(several, (up, down), (one_tile, queue)):
        yield Schedule(order, Start.HEAVY_FIRST, section, way, how)
    for order, section in several:
        yield Schedule(order, Start.HEAVY_FIRST, section, turns, queue)
        yield Schedule(order, Start.HEAVY_FIRST, section, up, lists)
    for (order, section), start, how in product(
        several[:2], (Start.FOLD, Start.LIGHT_FIRST), (one_tile, queue)
    ):
        yield Schedule(order, start, section, up, how)


def triton_schedules(shape: Shape) -> Iterator[Schedule]:
    """Orders of the Triton kernel: a program a tile."""
    starts = (Start.HEAVY_FIRST, Start.LIGHT_FIRST) if shape[-1] else (Start.LIGHT_FIRST,)
    for order, section in ((Order.QUERY, 0), (Order.HEAD, 0), (Order.HEAD, 4), (Order.HEAD, 8)):
        for start in starts:
            yield Schedule(order, start, section)
    yield Schedule(Order.HEAD, starts[0], 0, Direction.ALTERNATING)
    if shape[-1]:
        yield Schedule(Order.HEAD, Start.FOLD)


def cases() -> list[Case]:
    """Every case with an order."""
    own_cases = [
        Case(OWN, shape, s) for shape in (*PROBLEMS, *README) for s in own_schedules(shape)
    ]
    return own_cases + [
        Case(TRITON, shape, s) for shape in TRITON_PROBLEMS for s in triton_schedules(shape)
    ]


# ---- Predictions


def predict(out: Path) -> None:
    """Predicts every case, and marks the one that `iosim orders` puts first among them."""
    import iosim
    from iosim import AttentionProblem, load_profile, resolve
    from iosim.studies.orders.entry import OrderEntry, OrderPart, ranked
    from iosim.studies.orders.space import OrderChoice, applied

    gpu, listed = load_profile(GPU), cases()
    calls, owns = [], {}
    for case in listed:
        heads, kv_heads, tokens, head_dim, causal = case.shape
        problem = AttentionProblem(
            heads=heads,
            kv_heads=kv_heads,
            seq_q=tokens,
            head_dim=head_dim,
            dtype="bf16",
            mask="causal" if causal else "none",
        )
        kernel = resolve(case.kernel, problem, gpu)
        owns[case.kernel, case.shape] = OrderChoice.of(kernel, problem)
        assert case.schedule is not None
        choice = OrderChoice.of(kernel.with_(schedule=case.schedule), problem)
        calls.append((choice, problem, applied(choice, kernel, problem, gpu)))
    entries: dict[tuple[str, Shape], list[tuple[Case, OrderEntry]]] = {}
    for case, (choice, problem, kernel) in zip(listed, calls, strict=True):
        prediction = iosim.predict(problem, kernel, gpu)
        entry = OrderEntry.of(choice, [OrderPart.of(prediction)], [1.0])
        entries.setdefault((case.kernel, case.shape), []).append((case, entry))
    lines = [",".join((*PROBLEM, *ORDER, "rank", "hbm_read", "hbm_write", "compulsory", "seconds"))]
    for key, several in entries.items():
        order = [e.choice for e in ranked([entry for _, entry in several], owns[key])]
        for case, e in several:
            values = [
                order.index(e.choice) + 1,
                e.hbm_read_bytes,
                e.hbm_write_bytes,
                e.compulsory_bytes,
            ]
            lines.append(",".join([*case.key, *map(str, values), f"{e.time_s:.6g}"]))
    write_whole(out, "\n".join(lines) + "\n")
    print(len(lines) - 1, "predictions")


# ---- Measurements

TRITON_SOURCE = """
import triton
import triton.language as tl


@triton.jit
def flash_remapped(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, heads, group, seq, blocks, scale2,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr,
):
    # remap
    row = block * M + tl.arange(0, M)
    column = tl.arange(0, D)
    at_q = head.to(tl.int64) * seq * D + row[:, None] * D + column[None, :]
    keys = (head // group).to(tl.int64) * seq * D
    q = tl.load(q_ptr + at_q, mask=row[:, None] < seq, other=0.0)
    acc = tl.zeros([M, D], dtype=tl.float32)
    top = tl.full([M], -float("inf"), dtype=tl.float32)
    total = tl.zeros([M], dtype=tl.float32)
    first_key = 0
    last_key = tl.cdiv(seq, N)
    if CAUSAL:
        last_key = tl.minimum(last_key, tl.cdiv((block + 1) * M, N))
    for t in range(0, last_key - first_key):
        key_block = KEY_BLOCK
        key = key_block * N + tl.arange(0, N)
        k = tl.load(k_ptr + keys + key[None, :] * D + column[:, None], mask=key[None, :] < seq, other=0.0)
        s = tl.dot(q, k) * scale2
        if CAUSAL:
            s = tl.where(row[:, None] >= key[None, :], s, -1e30)
        s = tl.where(key[None, :] < seq, s, -1e30)
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new_top[:, None])
        behind = tl.exp2(top - new_top)
        total = total * behind + tl.sum(p, 1)
        v = tl.load(v_ptr + keys + key[:, None] * D + column[None, :], mask=key[:, None] < seq, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * behind[:, None])
        top = new_top
    tl.store(lse_ptr + head * seq + row, top + tl.log2(total), mask=row < seq)
    tl.store(o_ptr + at_q, (acc / total[:, None]).to(o_ptr.dtype.element_ty), mask=row[:, None] < seq)
"""


def triton_source(schedule: Schedule) -> str:
    """The kernel with the printed lines of an order in it, untouched."""
    from iosim.studies.orders.code import LANGUAGES, code, key_block

    remap = "\n".join(f"    {line}".rstrip() for line in code(schedule, "triton").splitlines())
    return TRITON_SOURCE.replace("    # remap", remap).replace(
        "KEY_BLOCK", key_block(schedule, LANGUAGES["triton"])
    )


class TritonKernels:
    """Compiled sources by order."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.modules: dict[Schedule, Any] = {}

    def module(self, schedule: Schedule) -> Any:
        if schedule not in self.modules:
            name = f"order_{len(self.modules)}"
            path = self.place / f"{name}.py"
            path.write_text(triton_source(schedule))
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            self.modules[schedule] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.modules[schedule])
        return self.modules[schedule]

    def call(self, case: Case, t: dict[str, Any]) -> Callable[[], Any]:
        """One launch."""
        import torch

        assert case.schedule is not None
        heads, kv_heads, tokens, head_dim, causal = case.shape
        rows, keys, warps, stages = TRITON_TILE
        blocks = -(-tokens // rows)
        kernel = self.module(case.schedule).flash_remapped
        lse = torch.empty(heads * tokens, dtype=torch.float32, device=t["q"].device)
        scale2 = head_dim**-0.5 * math.log2(math.e)
        return lambda: kernel[(blocks * heads,)](
            t["q"],
            t["k"],
            t["v"],
            t["o"],
            lse,
            heads,
            heads // kv_heads,
            tokens,
            blocks,
            scale2,
            head_dim,
            rows,
            keys,
            causal,
            num_warps=warps,
            num_stages=stages,
        )


ROUNDS = 5
PAUSE = 0.75
"""The GPU idles before each pair of calls, this share of a call's time and 2 ms: busy for seconds on end, the power
limit would lower its clock, of whatever order is timed last."""
LAST: dict[str, Any] = {}
"""The output tensor of the problem whose calls are made."""
STARTS = {Start.LIGHT_FIRST: "light_first", Start.HEAVY_FIRST: "heavy_first", Start.FOLD: "fold"}
SCHEDULES = {
    Scheduler.STATIC: "one_tile",
    Scheduler.PERSISTENT: "static",
    Scheduler.DYNAMIC: "dynamic",
}


def calls_of(
    shape: Shape, several: Sequence[Case], kernels: TritonKernels
) -> Iterator[tuple[Case, Callable[[], Any]]]:
    """The calls of one problem's cases; libraries take their own outputs."""
    from bench_sm90 import library_call, own_call, tensors
    from sm90 import Sm90Order, fastest

    from iosim.evidence.cuda.launch import Shape as CudaShape

    heads, kv_heads, tokens, head_dim, causal = shape
    s = CudaShape(1, heads, kv_heads, tokens, tokens, head_dim)
    t = tensors(s, "bf16")
    LAST["o"] = t["o"]
    for case in several:
        if case.schedule is None:
            yield case, library_call(case.kernel, s, causal, t)
        elif case.kernel == TRITON:
            yield case, kernels.call(case, t)
        else:
            o = case.schedule
            spec = replace(
                fastest(head_dim, "causal" if causal else "none"), schedule=SCHEDULES[o.scheduler]
            )
            order = Sm90Order(str(o.order), STARTS[o.start], o.section_heads, str(o.direction))
            yield case, own_call(spec, s, t, order)


def by_problem(several: Sequence[Case]) -> dict[Shape, list[Case]]:
    grouped: dict[Shape, list[Case]] = {}
    for case in several:
        grouped.setdefault(case.shape, []).append(case)
    for shape, cases in grouped.items():
        if cases[0].kernel == OWN:
            cases += [Case(name, shape) for name in LIBRARIES]
    return grouped


def time_all(grouped: dict[Shape, list[Case]]) -> dict[tuple[str, ...], float]:
    """Milliseconds of every case, outputs checked against cuDNN's."""
    import torch
    from bench_sm90 import library_call, tensors

    from iosim.evidence.cuda.launch import Shape as CudaShape

    kernels, times = TritonKernels(), {}
    for shape, several in grouped.items():
        heads, kv_heads, tokens, head_dim, causal = shape
        s = CudaShape(1, heads, kv_heads, tokens, tokens, head_dim)
        want = library_call("cudnn", s, causal, tensors(s, "bf16"))()
        begun = time.monotonic()
        calls = list(calls_of(shape, several, kernels))
        for case, call in calls:
            call()
            if case.schedule is not None:
                check(case, want)
        times |= in_turns(calls)
        del want
        torch.cuda.empty_cache()
        print(shape, len(several), f"{time.monotonic() - begun:.1f} s", flush=True)
    return times


def in_turns(calls: Sequence[tuple[Case, Callable[[], Any]]]) -> dict[tuple[str, ...], float]:
    """Median milliseconds of each call, timed in turns, in another sequence in every round; each after itself."""
    import random

    import torch

    sequence = list(range(len(calls)))
    times_by_key = {case.key: [] for case, _ in calls}
    for turn in range(ROUNDS):
        random.Random(turn).shuffle(sequence)
        for n in sequence:
            case, call = calls[n]
            before = times_by_key[case.key][-1] if times_by_key[case.key] else 5.0
            time.sleep(0.002 + PAUSE * before / 1e3)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()
            start.record()
            call()
            end.record()
            end.synchronize()
            times_by_key[case.key].append(start.elapsed_time(end))
    return {key: statistics.median(several) for key, several in times_by_key.items()}


def check(case: Case, want: Any) -> None:
    """The output of the call that ran last against cuDNN's.

    Raises:
        SystemExit: it differs.
    """
    import torch

    o = LAST["o"]
    error = (torch.linalg.norm((o - want).float()) / torch.linalg.norm(want.float())).item()
    if not error < 1e-2:
        raise SystemExit(f"{case} differs from cuDNN by {error:.1e}")


def launch_all(cases_of: Sequence[Case]) -> None:
    """Every case with an order once, under the profiler."""
    import torch

    kernels = TritonKernels()
    for shape, several in by_problem(cases_of).items():
        with_order = [case for case in several if case.schedule is not None]
        for _, call in calls_of(shape, with_order, kernels):
            call()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def profile(
    predicted: Path, grouped: dict[Shape, list[Case]]
) -> dict[tuple[str, ...], tuple[int, int]]:
    """HBM bytes (read, written) of every case with an order."""
    from iosim.evidence.columns import METRICS
    from iosim.evidence.cuda.ncu import find_ncu, import_report, parse_raw

    metrics = ",".join(METRICS[name][0] for name in ("hbm_read", "hbm_write"))
    listed = [case for several in grouped.values() for case in several if case.schedule is not None]
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "orders.ncu-rep"
        options = [
            "--cache-control",
            "all",
            "--clock-control",
            "none",
            "-k",
            "regex:flash_fwd_sm90|flash_remapped",
        ]
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "launch",
            "--predicted",
            str(predicted),
        ]
        subprocess.run(
            [str(find_ncu()), *options, "--metrics", metrics, "-o", str(report), *command],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        launches, _ = parse_raw(import_report(report))
    if len(launches) != len(listed):
        raise SystemExit(f"the report has {len(launches)} of {len(listed)} launches")
    pairs = (
        (round(x.column("hbm_read") or 0), round(x.column("hbm_write") or 0)) for x in launches
    )
    return {case.key: pair for case, pair in zip(listed, pairs, strict=True)}


def measure(predicted: Path, out: Path) -> None:
    """Times and bytes of the predicted cases, and times of the libraries."""
    from bench_sm90 import prebuild
    from sm90 import fastest

    from iosim.evidence.measure.machine import facts, profiler_version, write_provenance

    several = [Case.of(row) for row in rows_of(predicted)]
    grouped = by_problem(several)
    begun = time.monotonic()
    prebuild(
        [
            replace(fastest(head_dim, mask), schedule=schedule)
            for head_dim in (64, 128)
            for mask in ("none", "causal")
            for schedule in SCHEDULES.values()
        ]
    )
    print(f"built after {time.monotonic() - begun:.0f} s", flush=True)
    times = time_all(grouped)
    print(f"timed after {time.monotonic() - begun:.0f} s", flush=True)

    def write(counted: dict[tuple[str, ...], tuple[int, int]]) -> None:
        lines = [",".join((*PROBLEM, *ORDER, "ms", "hbm_read", "hbm_write"))]
        for key, ms in times.items():
            lines.append(",".join([*key, f"{ms:.4f}", *map(str, counted.get(key, ("", "")))]))
        write_whole(out, "\n".join(lines) + "\n")

    write({})
    write(profile(predicted, grouped))
    print(f"profiled after {time.monotonic() - begun:.0f} s", flush=True)
    write_provenance(
        out,
        facts()
        | {
            "profiler": profiler_version(),
            "command": f"python experiments/orders_proof.py measure --predicted {predicted.name} --out {out.name}",
            "timing": f"device events around a call right after itself, median of {ROUNDS} rounds in which all orders of a "
            f"problem take turns in random sequence, the GPU idle before each for {PAUSE} of the call's time",
            "bytes": "dram__bytes_read.sum and dram__bytes_write.sum, the L2 flushed before every launch",
            "inputs": "random normal",
            "check": "every case's output against cuDNN's, within 1e-2 in the Frobenius norm",
        },
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("predict", "measure", "launch", "table"))
    parser.add_argument("--predicted", type=Path, default=PREDICTED, help="predictions, CSV")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="measurements, CSV (table)")
    parser.add_argument("--out", type=Path, help="CSV to write (predict, measure)")
    a = parser.parse_args()
    if a.what == "predict":
        predict(a.out or PREDICTED)
    elif a.what == "measure":
        measure(a.predicted.resolve(), (a.out or MEASURED).resolve())
    elif a.what == "launch":
        launch_all([Case.of(row) for row in rows_of(a.predicted)])
    else:
        from orders_table import tables

        print(*tables(rows_of(a.predicted), rows_of(a.measured)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

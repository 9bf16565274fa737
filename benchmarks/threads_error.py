"""Times that public threads report, beside predictions: `python benchmarks/threads_error.py FILE ...`.

A file is a CSV with a row per time: source, kernel_reported, gpu, pass, batch, heads, kv_heads, seq_q, seq_k, head_dim,
head_dim_v, causal, window, dtype, measured_us, note. Each is predicted under the clock, and from the L2, that its
thread's way of measuring leaves. Rows of kernels that the catalog does not have, and of more than a kernel, are left
out; the last line says how many.

    python benchmarks/threads_error.py threads_*.csv                 errors by kernel, GPU and pass, and over all
    python benchmarks/threads_error.py --rows threads_*.csv          every row
    python benchmarks/threads_error.py --split threads_*.csv         odd and even rows of each file apart
    python benchmarks/threads_error.py --clocks boost threads_*.csv  all rows under one clock
    python benchmarks/threads_error.py --pairs threads_*.csv         every pair of kernels, and which was faster

A file with a column of `SPEEDS` states how many times as fast as another a kernel was: each row is such a pair.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iosim
from iosim import load_profile

BSHD = {"layout": "bshd"}
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "flash-attn FA2": ("flash-attn", BSHD),
    "flash_v2": ("flash-attn", BSHD),
    "flash-attn": ("flash-attn", BSHD),
    "flash-attn kvcache": ("flash-attn", BSHD),
    "flash_attn_with_kvcache": ("flash-attn", BSHD),
    "FA2 on sm_80 at ~1": ("flash-attn", BSHD),
    "FA2 paged": ("fa2", BSHD | {"page_size": 256}),
    "SDPA flash": ("fa2", {}),
    "SDPA (flash)": ("fa2", {}),
    "SDPA flash on an L4": ("fa2", {}),
    "flash_v3": ("fa3", BSHD),
    "FA3 fp8": ("fa3", BSHD | {"clocks": 1500}),
    "FA4": ("fa4", BSHD),
    "FlexAttention": ("flex", {}),
    "SDPA EA": ("cutlass", {}),
    "xformers CUTLASS (2022)": ("cutlass", {}),
    "xformers CUTLASS main (2022)": ("cutlass", {}),
    "fMHA v3": ("cutlass", {}),
    "math": ("math", {}),
    "Triton fused-attention (plain)": ("triton", {}),
    "FlashInfer": ("flashinfer", {"page_size": 16}),
    "FlashMLA in vLLM's layer": ("flashmla", {"latent_kv": True, "page_size": 64}),
    "AITER on MI350": ("aiter", {}),
}
"""What a thread calls a kernel, up to the first comma -> the catalog's name, and what the call has beside its sizes."""
GPUS = {"L20": "l20"}
"""What a kernel's name says of its GPU -> the profile, where the row's own column has another for want of one."""
LOOP = {"clocks": "sustained", "l2_start": "warm"}
DO_BENCH = {"clocks": "sustained", "l2_start": "flushed"}
NVBENCH = {"clocks": "boost", "l2_start": "flushed"}
REPEATS = {"clocks": "boost", "l2_start": "warm"}
METHODS: dict[str, dict[str, Any]] = {
    "Dao-AILab/flash-attention#2688": REPEATS,
    "Dao-AILab/flash-attention#1589": REPEATS,
    "Dao-AILab/flash-attention#2605": NVBENCH,
    "Dao-AILab/flash-attention#2869": DO_BENCH | {"clocks": 1800},
    "meta-pytorch/tritonbench": DO_BENCH,
    "facebookexperimental/triton": DO_BENCH,
    "pytorch/benchmark": DO_BENCH,
    "apache/tvm": DO_BENCH,
    "gau-nernst/learn-cuda": DO_BENCH,
    "microsoft/onnxruntime": NVBENCH,
    "flashinfer-ai/flashinfer": NVBENCH,
    "GOATnote-Inc/periodicdent42": {"clocks": "boost", "l2_start": "cold"},
}
"""How a thread begins -> how its calls met the GPU: in a loop for a second or two, which most do (torch.utils.benchmark);
Triton's do_bench and nvbench, which flush the L2 between calls, nvbench with pauses; FlashAttention's own benchmark, 30
calls after a pause of a second, and FlashAttention-4's, which has do_bench in its place (@0251105a,
benchmarks/benchmark_attn.py). That thread says that it locks clocks, and not at what for its B200."""
LEFT_OUT = {
    "no such kernel": "another kernel would have to stand for it",
    "iosim has no": "another kernel would have to stand for it",
    "ambiguous": "which kernel it is is not known",
    "more than the kernel": "more than the kernel was timed",
    "whole envelope": "more than the kernel was timed",
    "floor of": "more than the kernel was timed",
    "window not in": "the window is not known",
}
"""Words in a row's note -> why it is left out."""
UNKNOWN = "the catalog has no such kernel"
ADDED_UP = ("meta-pytorch/tritonbench", "facebookresearch/xformers", "NVIDIA/cutlass#992")
"""Threads whose backward adds each gradient to the one before. What tritonbench sets to None between calls is a detached
copy of each input (@592d65f and @02c1ae28, operators/flash_attention/operator.py, get_bwd_fn and unpack_inputs); xFormers,
whose benchmark CUTLASS's thread runs, sets nothing to None (@bac8718d, @2cc77ae,
xformers/benchmarks/benchmark_mem_eff_attention.py). Two loads and a store of each."""
REORDERING_OPERATIONS = 125
"""Instructions on a value of such a sum where heads lie between a gradient's rows and not between the sum's, as
tritonbench has it for kernels of that layout; nearly all for offsets: rows add-strided of h200_timers.csv, 118 to 130
where they are long. A sum in one order takes its bytes."""
EVENTS_S = 1.2e-6
"""What two events add to a call that stands alone between them: with a kernel of one value in h200_timers.csv 3.4 us, of
which the model gives such a launch 2.1."""


@dataclass(frozen=True)
class Row:
    """A published time with its prediction."""

    number: int
    source: str
    kernel: str
    gpu: str
    kind: str
    call: dict[str, Any]
    measured_us: float
    predicted_us: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_us / self.measured_us - 1


SPEEDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "measured_speedup": ("fa-turing", "cutlass", LOOP),
    "measured_fa4_speed_over_fa2": (
        "fa4-sm120",
        "fa2",
        LOOP | BSHD | {"gpu": "rtx-5090", "heads": 32, "mask": "causal", "dtype": "bf16"},
    ),
}
"""Column of a file -> the kernel that it times, that which it is held against, and what its rows do not say."""
APART = 1.1
"""How many times as long as the other a kernel of a pair takes at least."""


@dataclass(frozen=True)
class Pair:
    """Two kernels on one call: what the second takes over what the first takes, measured and predicted."""

    text: str
    measured: float
    predicted: float

    @property
    def counts(self) -> bool:
        """True where the two were far enough apart."""
        return max(self.measured, 1 / self.measured) > APART

    @property
    def right(self) -> bool:
        """True where the faster one is predicted to be it."""
        return (self.measured > 1) == (self.predicted > 1)


def why_left_out(row: dict[str, str]) -> str:
    """Why a row has no prediction; empty where it has one."""
    reasons = [why for words, why in LEFT_OUT.items() if words in row["note"]]
    if reasons:
        return reasons[0]
    return "" if reported(row) in KERNELS else UNKNOWN


def reported(row: dict[str, str]) -> str:
    """What the thread calls the kernel, without its remarks."""
    return row["kernel_reported"].split(",")[0]


def gpu_of(row: dict[str, str]) -> str:
    """The profile of a row's GPU."""
    words = row["kernel_reported"].replace(",", " ").split()
    return next((gpu for name, gpu in GPUS.items() if name in words), row["gpu"])


def call_of(row: dict[str, str]) -> dict[str, Any]:
    """Keywords of a row's attention call."""
    names = ("batch", "heads", "head_dim")
    call: dict[str, Any] = {name: int(row[name]) for name in names} | {"dtype": row["dtype"]}
    call |= {"seq_len": int(row["seq_q"]), "seq_len_k": int(row["seq_k"])}
    for name in ("kv_heads", "head_dim_v", "window"):
        if row[name]:
            call[name] = int(float(row[name]))
    if row["window"]:
        call["mask"] = "window"
    elif row["causal"] == "1":
        call["mask"] = "causal"
    return call | {"passes": row["pass"]}


def method_of(source: str) -> dict[str, Any]:
    """Clock and L2 of a thread's calls."""
    return next((how for name, how in METHODS.items() if source.startswith(name)), LOOP)


def added_up_s(row: dict[str, str], call: dict[str, Any]) -> float:
    """Seconds in which a thread's backward adds gradients up: by HBM's bandwidth or, out of another order, by the
    instructions for offsets; and the start of each launch."""
    if not row["source"].startswith(ADDED_UP) or row["pass"] != "bwd":
        return 0.0
    kv_heads = call.get("kv_heads", call["heads"])
    columns = call["batch"] * call["head_dim"]
    queries = call["heads"] * call["seq_len"]
    keys = kv_heads * call["seq_len_k"]
    values = columns * (queries + 2 * keys)
    profile = load_profile(gpu_of(row))
    read_s, write_s, turning_s = profile.hbm_seconds_per_byte() or (0.0, 0.0, 0.0)
    seconds = 2 * values * (2 * read_s + write_s + turning_s)
    launches = 1  # of the one tensor that queries, keys and values are parts of
    if row["source"].startswith("meta-pytorch/tritonbench"):
        launches = 3
        if KERNELS[reported(row)][1].get("layout") == "bshd":
            lanes_per_s = profile.need("fp32_flops_per_s") / 2
            seconds = max(seconds, values * REORDERING_OPERATIONS / lanes_per_s)
    return seconds + launches * profile.need("launch_latency_s")


def rows(paths: Iterable[Path], clocks: str | None = None) -> Iterator[Row]:
    """Every row that is not left out, with its prediction; `clocks` in place of each thread's own."""
    for path in paths:
        for number, row in read(path):
            if why_left_out(row):
                continue
            kernel, more = KERNELS[reported(row)]
            call = call_of(row)
            how = method_of(row["source"]) | more | ({"clocks": clocks} if clocks else {})
            gpu = gpu_of(row)
            predicted_s = iosim.predict(kernel=kernel, gpu=gpu, **call, **how).time_s
            predicted_s += added_up_s(row, call)
            if how["l2_start"] == "flushed":
                predicted_s += EVENTS_S
            yield Row(
                number=number,
                source=row["source"],
                kernel=kernel,
                gpu=gpu,
                kind="decode" if call["seq_len"] == 1 else row["pass"],
                call=call,
                measured_us=float(row["measured_us"]),
                predicted_us=1e6 * predicted_s,
            )


def read(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Rows of a file with their numbers, from 1."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(enumerate(csv.DictReader(file), 1))


def left_out(paths: Iterable[Path]) -> str:
    """How many rows are left out, by why."""
    why = Counter(why_left_out(row) for path in paths for _, row in read(path))
    texts = [f"{count} ({reason})" for reason, count in sorted(why.items()) if reason]
    return f"Left out: {', '.join(texts) or 'none'}."


def summary(errors: list[float]) -> str:
    """Cells of a group: rows, median size, mean size, median with its sign, least and most."""
    sizes = [abs(error) for error in errors]
    return (
        f"{len(errors)} | {statistics.median(sizes):.1%} | {statistics.fmean(sizes):.1%} | "
        f"{statistics.median(errors):+.1%} | {min(errors):+.0%} to {max(errors):+.0%}"
    )


def table(predicted: list[Row]) -> str:
    """Errors by kernel, GPU and pass, and of each pass over all."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in predicted:
        groups[row.kind, row.kernel, row.gpu].append(row.error)
        groups[row.kind, "all", ""].append(row.error)
    lines = [
        "| pass | kernel | GPU | rows | median size | mean size | median | range |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {' | '.join(key)} | {summary(errors)} |" for key, errors in sorted(groups.items())
    ]
    return "\n".join(lines)


def pairs(predicted: list[Row]) -> Iterator[Pair]:
    """Pairs of kernels that a thread timed on one call."""
    calls: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in predicted:
        calls[row.source, row.gpu, repr(row.call)].append(row)
    for members in calls.values():
        for n, first in enumerate(members):
            for second in members[n + 1 :]:
                yield Pair(
                    f"{first.kernel}, {second.kernel} {first.gpu} {sizes(first.call)} {first.source}",
                    second.measured_us / first.measured_us,
                    second.predicted_us / first.predicted_us,
                )


def stated_pairs(paths: Iterable[Path]) -> Iterator[Pair]:
    """Pairs of files that state how many times as fast as another a kernel was."""
    for path in paths:
        for _, row in read(path):
            for column in SPEEDS.keys() & row.keys():
                first, second, call = SPEEDS[column]
                call = call | {"seq_len": int(row["seq"]), "head_dim": int(row["head_dim"])}
                call |= {name: int(row[name]) for name in ("batch", "heads") if row.get(name)}
                call |= {name: row[name].lower() for name in ("gpu", "dtype") if row.get(name)}
                seconds = [
                    iosim.predict(kernel=kernel, **call).time_s for kernel in (second, first)
                ]
                text = f"{first}, {second} {sizes(call)} {row['source']}"
                yield Pair(text, float(row[column]), seconds[0] / seconds[1])


def sizes(call: dict[str, Any]) -> str:
    """A call's sizes, as a line of text."""
    return " ".join(f"{name}={value}" for name, value in call.items())


def times_of(path: Path) -> bool:
    """True of a file of times, not of speeds over another's."""
    return any("measured_us" in row for _, row in read(path))


def told_apart(counted_pairs: list[Pair]) -> str:
    """How often the faster of two kernels is predicted to be it."""
    counted = [pair for pair in counted_pairs if pair.counts]
    right = sum(pair.right for pair in counted)
    return (
        f"Which of two is faster, where they differ by more than 10 %: right in {right} of "
        f"{len(counted)} pairs."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="CSV of times")
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--split", action="store_true", help="odd and even rows apart")
    parser.add_argument("--pairs", action="store_true", help="every pair of kernels")
    parser.add_argument("--clocks", help="one clock for all rows: boost, sustained or MHz")
    args = parser.parse_args()
    absent = [str(path) for path in args.files if not path.is_file()]
    if absent:
        parser.exit(
            2, f"threads_error.py: no such file: {', '.join(absent)}; a CSV of times is accepted\n"
        )
    files = [path for path in args.files if times_of(path)]
    predicted = list(rows(files, args.clocks))
    all_pairs = [*pairs(predicted), *stated_pairs(args.files)]
    if args.rows:
        for row in predicted:
            print(
                f"{row.error:+6.1%} {row.predicted_us:10.1f} {row.measured_us:10.1f} us  "
                f"{row.kernel} {row.gpu} {sizes(row.call)}  {row.source}"
            )
        print()
    if args.pairs:
        for pair in filter(lambda pair: pair.counts, all_pairs):
            verdict = "right" if pair.right else "wrong"
            print(f"{verdict} {pair.measured:5.2f} {pair.predicted:5.2f}  {pair.text}")
        print()
    if args.split:
        for side, name in ((1, "Odd rows"), (0, "Even rows")):
            print(f"{name}\n\n{table([row for row in predicted if row.number % 2 == side])}\n")
    print(f"{table(predicted)}\n\n{told_apart(all_pairs)}\n{left_out(files)}")


if __name__ == "__main__":
    main()

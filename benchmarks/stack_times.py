"""Times of serving stacks' attention calls that others measured on nine GPUs, beside predictions.

    python benchmarks/stack_times.py                 errors by GPU and stack, on the rows that nothing has seen
    python benchmarks/stack_times.py --cells         kernels and types apart
    python benchmarks/stack_times.py --open          the other half, on which constants were fitted
    python benchmarks/stack_times.py --draw FOLDER   draws the rows anew out of AIConfigurator's tables

The rows: experiments/measurements/published_stacks.csv. Of each table, GPU, framework, kernel and type at most 60, in
the order of a hash of their shape; every other one is held out. A row is one call, replayed from a CUDA graph with a
warm L2; those of prefill and decode hold the append of K and V, the attention, its combine, and what the stack launches
beside them (iosim/catalog/serving/stacks.toml).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from recorders import measurements
from serving_error import predicted

from iosim import AttentionProblem, InputError, load_profile
from iosim.base.files import write_whole
from iosim.catalog.serving import read_stack
from iosim.evidence.published.judge import BOOST_S
from iosim.prediction.replays import Replays
from iosim.studies.latency.latency import latency_of

TABLE, LEFT_OUT = "published_stacks.csv", "published_left_out.csv"
CELL = ("table", "gpu", "framework", "version", "kernel", "attn_dtype", "kv_cache_dtype")
SHAPE = (
    "batch",
    "new_tokens_per_seq",
    "cached_tokens",
    "heads",
    "kv_heads",
    "head_dim",
    "window_size",
)
COLUMNS = (*CELL, *SHAPE, "latency_ms")
TABLES = {
    "context": "aic_attention_context.csv",
    "generation": "aic_attention_generation.csv",
    "encoder": "aic_encoder_attention.csv",
}
GPUS = {
    "a100_sxm": "a100-sxm-80gb",
    "l40s": "l40s",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
    "b200_sxm": "b200",
    "gb200": "gb200",
    "b300_sxm": "b300",
    "gb300": "gb300",
}
"""The tables' name of a GPU -> its profile."""
KERNELS = {
    ("vllm", "vllm_flash_attn"): ("vllm", "vllm-fa2", 64),
    ("vllm", "vllm_flash_attn_fa2"): ("vllm", "vllm-fa2", 64),
    ("vllm", "vllm_flash_attn_fa3"): ("vllm", "vllm-fa3", 64),
    ("vllm", "vllm_triton_attn"): ("vllm", "vllm-triton", 64),
    ("vllm", "vllm_flashinfer_fiprefill"): ("flashinfer", "flashinfer", 64),
    ("vllm", "vllm_flashinfer_fidecode"): ("flashinfer", "flashinfer", 64),
    ("sglang", "flash_attention"): ("sglang", "fa3-sm80", 64),
    ("sglang", "fa3"): ("sglang", "sglang-fa3", 64),
    ("sglang", "flashinfer"): ("sglang-flashinfer", "flashinfer", 1),
    ("trtllm", "torch_flow"): ("trtllm", "xqa", 64),
    ("sglang", "flash_attention_v3"): ("sglang", "sglang-fa3", None),
    ("vllm", "vllm_vit_flash_attn_fa3"): ("sglang", "vllm-fa3", None),
    ("sglang", "flash_attention_v4"): (None, "fa4-varlen", None),
    ("vllm", "vllm_vit_flash_attn_fa4"): (None, "fa4-varlen", None),
    ("vllm", "vllm_vit_flash_attn_fa2"): ("vllm", "vllm-fa2", None),
}
"""(framework, the tables' kernel) -> whose launches stand beside it, the catalog's kernel, tokens of a page. Encoders'
calls of FlashAttention-3 are SGLang's of its prefill, those of the other two the library's alone."""
DRAWN = 60
LONG_S = 3e-4
"""From which a call counts as long."""
TURN_S = 2.05e-6
"""On Blackwell a replay of a graph begins at whole turns of this after the one before, whatever there was to wait for
between them. Fitted on open rows under 30 us: R = 0.62 to 0.89 by GPU and stack."""
IDLE_S = 1.2e-6
"""Of the gap between calls, what such a wait takes the place of. Fitted there."""
ALONE_S = 4.0e-6
REPLAYS = {"sglang": 20, "vllm": 6, "trtllm": 6}
"""What events around so many replays hold beside them, once (collector/helper.py, benchmark_with_power). Fitted
there."""
WARM_UPS = 3
GRACE_GAP_S = 2.2e-6
"""More from call to call in vLLM where the host is a Grace CPU. Fitted on 120 open rows of its Triton kernel on a GB200
and a GB300; on a B200 and a B300 they need none."""
GRACE = ("gb200", "gb300")
CUDA_CORES_BELOW = 4
"""Heads of a group from which SGLang decodes on tensor cores, where its cache has 16 bits (should_use_tensor_core)."""
DATA_CENTRE_BLACKWELL = range(100, 110)
"""Where SGLang's FlashInfer backend takes CUTLASS's kernel for prefill, TensorRT-LLM its own for decoding."""
HOPPER, XQA_HOPPER, ROTATED = 90, "xqa-sm90", 128
"""Whose XQA of a cache in fp8 rotates and appends inside, where heads have as many columns as the collector has rotated
(decoderXQAImplJIT/kernelUtils.cpp, appliesRoPEInXqaKernel; collect_attn.py, RopeParams)."""
WIDEST_GROUP = 32
"""Of TensorRT-LLM's rows of XQA: wider ones take ten times as long, by another kernel."""


@dataclass(frozen=True)
class Row:
    """A published time."""

    values: dict[str, str]
    held_out: bool

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    @property
    def measured_s(self) -> float:
        return float(self["latency_ms"]) * 1e-3

    @property
    def ragged(self) -> bool:
        """Whether it is SGLang's prefill by FlashInfer, which without a prefix reads the new tokens themselves."""
        return self["table"] == "context" and self["kernel"] == "flashinfer"

    @property
    def problem(self) -> AttentionProblem:
        batch, new, cached, heads, kv_heads, head_dim, window = (int(self[name]) for name in SHAPE)
        mask: dict[str, Any] = (
            {"mask": "window", "window": window - 1} if window else {"mask": "causal"}
        )
        narrow = self["kv_cache_dtype"] == "fp8"
        whole = narrow and (
            self["attn_dtype"] == "fp8" or self.kernel in ("vllm-fa3", "sglang-fa3", XQA_HOPPER)
        )
        return AttentionProblem(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            seq_q=new,
            seq_k=new + cached,
            head_dim=head_dim,
            dtype="fp8" if whole else "bf16",
            cache_dtype="fp8" if narrow and not whole and not self.ragged else None,
            page_size=None if self.ragged else KERNELS[self["framework"], self["kernel"]][2],
            **({"mask": "none"} if self["table"] == "encoder" else mask),
        )

    @property
    def missing(self) -> str:
        """Why no kernel of the catalog is the row's; empty where one is."""
        if (self["framework"], self["kernel"]) not in KERNELS:
            return "not in the catalog"
        decodes = self["table"] == "generation"
        group = int(self["heads"]) // int(self["kv_heads"])
        blackwell = load_profile(GPUS[self["gpu"]]).cc in DATA_CENTRE_BLACKWELL
        if self["kernel"] == "flashinfer" and blackwell and not decodes:
            return "CUTLASS's kernel for Blackwell, not in the catalog"
        if self["kernel"] == "flashinfer" and decodes and int(self["window_size"]):
            return "only the keys of a window are handed over"
        if self["kernel"] == "torch_flow" and self["gpu"] == "a100_sxm" and decodes:
            return "times of a cache of keys alone (SELFKONLY)"
        if self["kernel"] == "torch_flow" and (
            blackwell or not decodes or not 1 < group <= WIDEST_GROUP
        ):
            return "not XQA"
        return ""

    @property
    def kernel(self) -> str:
        """The catalog's kernel that a row is of."""
        group = int(self["heads"]) // int(self["kv_heads"])
        on_cuda_cores = group < CUDA_CORES_BELOW and self["kv_cache_dtype"] == "bfloat16"
        if self["table"] == "generation" and self["kernel"] == "flashinfer" and on_cuda_cores:
            return "flashinfer-decode"
        kernel = KERNELS[self["framework"], self["kernel"]][1]
        on_hopper = (
            kernel == "xqa"
            and self["kv_cache_dtype"] == "fp8"
            and load_profile(GPUS[self["gpu"]]).cc == HOPPER
        )
        return XQA_HOPPER if on_hopper else kernel

    def predicted_s(self) -> float:
        """Seconds of the call, in the mean of its replays. Raises InputError: the kernel does not run it."""
        seconds = self._seconds("boost")
        count = REPLAYS[self["framework"]]
        if seconds * (WARM_UPS + count) <= BOOST_S:
            return seconds
        boosted = max(0.0, BOOST_S / seconds - WARM_UPS) / count
        return boosted * seconds + (1 - boosted) * self._seconds("sustained")

    def _seconds(self, clocks: str) -> float:
        appends = self["table"] != "encoder" and (
            self.kernel != XQA_HOPPER or self.problem.head_dim < ROTATED
        )
        prediction = predicted(
            self.problem, self.kernel, GPUS[self["gpu"]], appends, Replays(), clocks
        )
        stack = KERNELS[self["framework"], self["kernel"]][0]
        parts = latency_of(read_stack(stack), prediction, appends).parts if stack else ()
        casts = self["attn_dtype"] != "fp8"  # else they were made before the call
        left_out = () if casts else ("cast of K", "cast of V", "cast of Q")
        turns = load_profile(GPUS[self["gpu"]]).cc >= min(DATA_CENTRE_BLACKWELL)
        seconds = (
            sum(p.seconds for p in parts if p.name not in left_out)
            if stack
            else float(prediction.time_s)
        )
        if not turns:
            return seconds
        seconds += GRACE_GAP_S * (self["framework"] == "vllm" and self["gpu"] in GRACE) - IDLE_S
        return TURN_S * math.ceil(seconds / TURN_S) + ALONE_S / REPLAYS[self["framework"]]


def shape_hash(values: dict[str, str]) -> str:
    """A hash of all but the time."""
    return hashlib.sha256(",".join(values[name] for name in COLUMNS[:-1]).encode()).hexdigest()


def published(folder: Path) -> Iterator[Row]:
    """The rows of AIConfigurator's three tables, under the names of `COLUMNS`."""
    for table, file_name in TABLES.items():
        with open(folder / file_name, encoding="utf-8", newline="") as file:
            for values in csv.DictReader(file):
                if table == "encoder":
                    values |= {
                        "batch": values["batch_size"],
                        "new_tokens_per_seq": values["seq_len"],
                        "cached_tokens": "0",
                        "heads": values["num_heads"],
                        "kv_heads": values["num_heads"],
                        "window_size": "0",
                        "kv_cache_dtype": values["attn_dtype"],
                    }
                yield Row(
                    {"table": table} | {name: values[name] for name in COLUMNS[1:]}, held_out=False
                )


def draw(folder: Path) -> None:
    """Writes the rows that are kept, and how many of which kernel are left out and why."""
    cells: dict[tuple[str, ...], list[dict[str, str]]] = {}
    left_out: Counter[tuple[str, str, str]] = Counter()
    for row in published(folder):
        if row.missing:
            left_out[
                TABLES[row["table"]],
                row["gpu"],
                f"{row['framework']}, {row['kernel']}: {row.missing}",
            ] += 1
        else:
            cells.setdefault(tuple(row[name] for name in CELL), []).append(row.values)
    judged_rows = [
        values
        for _, rows in sorted(cells.items())
        for values in sorted(rows, key=shape_hash)[:DRAWN]
    ]
    lines = [
        ",".join(COLUMNS),
        *(",".join(values[name] for name in COLUMNS) for values in judged_rows),
    ]
    write_whole(measurements(TABLE), "\n".join(lines) + "\n")
    others = [
        line
        for line in measurements(LEFT_OUT).read_text().splitlines()
        if not line.startswith("aic_")
    ]
    mine = [f'{file},{gpu},"{reason}",{n}' for (file, gpu, reason), n in sorted(left_out.items())]
    write_whole(measurements(LEFT_OUT), "\n".join([*others, *mine]) + "\n")


def rows(held_out: bool = True) -> list[Row]:
    """The recorded rows; of each cell, in the order of the table, every other one is held out."""
    seen: Counter[tuple[str, ...]] = Counter()
    rows_read = []
    with open(measurements(TABLE), encoding="utf-8", newline="") as file:
        for values in csv.DictReader(file):
            cell = tuple(values[name] for name in CELL)
            seen[cell] += 1
            if (seen[cell] % 2 == 0) == held_out:
                rows_read.append(Row(values, held_out))
    return rows_read


def _error(row: Row) -> float | str:
    """Predicted over measured less one; or why the kernel does not run it."""
    try:
        return row.predicted_s() / row.measured_s - 1
    except InputError as error:
        return str(error)


Judged = Sequence[tuple[Row, float]]


def judged(which: Sequence[Row]) -> tuple[Judged, Counter[str]]:
    """The rows with their errors, and how many are refused and why."""
    with Pool() as pool:
        errors = pool.map(_error, which, chunksize=16)
    judged_rows = [
        (row, error) for row, error in zip(which, errors, strict=True) if not isinstance(error, str)
    ]
    return judged_rows, Counter(error for error in errors if isinstance(error, str))


def told(pairs: Judged) -> str:
    """Median, median of sizes, the same of calls from 0.3 ms on, rows."""
    if not pairs:
        return "-"
    errors = [error for _, error in pairs]
    long = [abs(error) for row, error in pairs if row.measured_s >= LONG_S]
    sizes = f"{100 * statistics.median(map(abs, errors)):.0f} %"
    return (
        f"{100 * statistics.median(errors):+.0f} %, {sizes}, "
        f"{f'{100 * statistics.median(long):.0f} %' if long else '-'}, {len(errors)}"
    )


def by(
    pairs: Judged, key: Callable[[Row], tuple[str, ...]]
) -> dict[tuple[str, ...], list[tuple[Row, float]]]:
    groups: dict[tuple[str, ...], list[tuple[Row, float]]] = {}
    for row, error in pairs:
        groups.setdefault(key(row), []).append((row, error))
    return groups


def cells(pairs: Judged) -> list[str]:
    """A line a table, GPU, framework, kernel and types."""
    names = tuple(name for name in CELL if name != "version")
    lines = [
        f"| {' | '.join(names)} | median, of sizes, from 0.3 ms, rows |",
        "|---" * (len(names) + 1) + "|",
    ]
    groups = by(pairs, lambda row: tuple(row[name] for name in names))
    return lines + [
        f"| {' | '.join(key)} | {told(errors)} |" for key, errors in sorted(groups.items())
    ]


def matrix(pairs: Judged) -> list[str]:
    """A line a GPU and framework, a column a table."""
    lines = ["| GPU | stack | prefill | decode | encoder |", "| --- | --- | --- | --- | --- |"]
    groups = by(pairs, lambda row: (row["gpu"], row["framework"], row["table"]))
    for gpu in GPUS:
        for framework in sorted({stack for gpu_name, stack, _ in groups if gpu_name == gpu}):
            cells = (told(groups.get((gpu, framework, table), ())) for table in TABLES)
            lines.append(f"| {gpu} | {framework} | {' | '.join(cells)} |")
    all_rows = by(pairs, lambda row: (row["table"],))
    return [
        *lines,
        f"| all | all | {' | '.join(told(all_rows.get((table,), ())) for table in TABLES)} |",
    ]


UNEXPLAINED = (
    "On Blackwell a replay begins at whole turns of 2.05 us after the one before: predictions are rounded up likewise.",
    "Loads of 60 ms and more hold a board to its power, others to what it may draw after a pause.",
    "Few decoding calls take 0.3 ms: one of vLLM's on an H100 (2,048 sequences of 128 keys, 15 % too slow) and one on",
    "a GB200 (131,072 keys in fp8, 18 % too fast).",
    "XQA divides a sequence by TensorRT-LLM's rule, not FlashInfer's; in fp8 before Hopper, as times say, not at all.",
    "Not explained: XQA with groups of 16 heads and more over short sequences (a third to two thirds of the time),",
    "steps that widen a cache in fp8 (half), and up to 30 % of Triton's calls on an L40S. Nor are 2 to 6 us more of",
    "SGLang's prefill by FlashInfer, 7 us more of its FlashAttention-3 at head_dim 192, 3 us of vLLM's calls through",
    "FlashInfer, and a turn more on a Grace host. From 0.3 ms on FlashAttention-3 at head_dim 128 is 8 % too slow in 16 bits,",
    "14 % too fast in vLLM's fp8. FlashInfer's prefill is 7 % too fast on an L40S, 9 % too slow on an RTX PRO 6000.",
    "TensorRT-LLM's rows of an A100 are of a cache of keys alone. The catalog lacks TensorRT-LLM's prefill and its",
    "kernels for Blackwell, SGLang's Triton kernels, CUTLASS's for Blackwell, and FlashAttention-4 at head_dim 512.",
)
"""Of the held-out and of the open rows alike."""


def section() -> list[str]:
    """The section of docs/validation-others.md, of the held-out rows."""
    pairs, refused = judged(rows())
    with open(measurements(LEFT_OUT), encoding="utf-8", newline="") as file:
        lacking = sum(
            int(row["rows"]) for row in csv.DictReader(file) if row["file"] in TABLES.values()
        )
    return [
        "",
        "## Serving stacks",
        "",
        "Attention calls of vLLM, SGLang and TensorRT-LLM on nine GPUs (AIConfigurator's tables,",
        f"`experiments/measurements/{TABLE}`): a CUDA graph of one call, with what the stack launches beside the",
        "attention. Constants were fitted on every other drawn row; these are the others. Of each cell: median,",
        "median of sizes, that from 0.3 ms on, rows. `python benchmarks/stack_times.py --cells` tells kernels apart.",
        f"{sum(refused.values()) or 'No'} rows are refused; {lacking:,} of the tables are of kernels that "
        "the catalog lacks",
        "or that the tables do not tell (published_left_out.csv).",
        "",
        *matrix(pairs),
        "",
        *UNEXPLAINED,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--open", action="store_true", help="the half on which constants were fitted"
    )
    parser.add_argument("--cells", action="store_true", help="kernels and types apart")
    parser.add_argument("--rows", action="store_true", help="every row, too")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw the rows anew")
    options = parser.parse_args()
    if options.draw:
        draw(options.draw)
        return
    pairs, refused = judged(rows(held_out=not options.open))
    for row, error in sorted(pairs, key=lambda pair: pair[1]) if options.rows else ():
        print(f"{1 + error:6.2f} {row.measured_s * 1e6:10.1f} us", *row.values.values())
    print("\n".join((cells if options.cells else matrix)(pairs)))
    for why, count in refused.items():
        print(f"refused: {count} rows: {why}")


if __name__ == "__main__":
    main()

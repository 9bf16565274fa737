"""Times of serving kernels that others published, beside predictions: the median ratio by GPU, kernel and phase.

    python benchmarks/serving_kernels.py FILE.csv... [--every 7] [--kernel NAME] [--rows]

The files are AIConfigurator's tables of one attention call (Apache-2.0), with a header of gpu, kernel, attn_dtype,
kv_cache_dtype, batch, new_tokens_per_seq, cached_tokens, heads, kv_heads, head_dim, window_size, latency_ms. A row
holds the append of K and V, the attention and its combine, replayed from a CUDA graph of one call with the L2 warm.
Nothing is fitted; the gap between two graphs is vLLM's (iosim/kernel/serving/stacks.toml).
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from serving_error import PLAYED

from iosim.base.errors import InputError
from iosim.hardware.profile import load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.libraries import Overrides, resolve
from iosim.kernel.serving import read_stack
from iosim.prediction.call import Call
from iosim.prediction.predictor import default_method, hbm_traffic
from iosim.prediction.replays import Replays
from iosim.problem.attention import AttentionProblem

GPUS = {"a100_sxm": "a100-sxm-80gb", "l40s": "l40s", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm",
        "b200_sxm": "b200", "b300_sxm": "b300", "gb200": "gb200"}  # fmt: skip
KERNELS = {
    "vllm_triton_attn": ("vllm-triton", 64),
    "flashinfer": ("flashinfer", 1),
    "vllm_flashinfer_fidecode": ("flashinfer", 64),
    "vllm_flashinfer_fiprefill": ("flashinfer", 64),
    "torch_flow": ("xqa", 64),
}
"""The table's name of a kernel -> the catalog's, and the tokens of a page that its rows have."""


LONG_MS = 0.05
"""From which the gap between two graphs counts for little."""


def problem_of(row: dict[str, str], page: int) -> AttentionProblem:
    new, window = int(row["new_tokens_per_seq"]), int(row["window_size"])
    mask = {"mask": "window", "window": window - 1} if window else {"mask": "causal"}
    return AttentionProblem(
        batch=int(row["batch"]), heads=int(row["heads"]), kv_heads=int(row["kv_heads"]), seq_q=new,
        seq_k=new + int(row["cached_tokens"]), head_dim=int(row["head_dim"]), dtype="bf16", page_size=page,
        cache_dtype="fp8" if row["kv_cache_dtype"] == "fp8" else None, **mask,
    )  # fmt: skip


CUDA_CORES_BELOW = 4
"""Heads of a group from which SGLang decodes on tensor cores, where its cache has 16 bits (should_use_tensor_core)."""
BLACKWELL = 100
"""Compute capability from which SGLang's FlashInfer backend takes CUTLASS's kernel for prefill, TensorRT-LLM its own
for decoding."""
WIDEST_GROUP = 32
"""Of TensorRT-LLM's rows of XQA: wider ones take ten times as long, by another kernel."""


def kernel_of(row: dict[str, str]) -> str | None:
    """The catalog's kernel that a row is of; None where it is of none."""
    name, _ = KERNELS[row["kernel"]]
    decodes, group = int(row["new_tokens_per_seq"]) == 1, int(row["heads"]) // int(row["kv_heads"])
    blackwell = load_profile(GPUS[row["gpu"]]).cc >= BLACKWELL
    if row["kernel"] == "flashinfer" and (int(row["window_size"]) if decodes else blackwell):
        return None  # SGLang hands over the keys of a window alone
    if row["kernel"] == "flashinfer" and decodes and group < CUDA_CORES_BELOW and row["kv_cache_dtype"] == "bfloat16":
        return "flashinfer-decode"
    return None if name == "xqa" and (blackwell or not decodes or not 1 < group <= WIDEST_GROUP) else name


def seconds(row: dict[str, str], name: str, page: int, replays: Replays) -> float:
    """The predicted time of a row's call. Raises InputError: the kernel does not run it."""
    profile, problem = load_profile(GPUS[row["gpu"]]), problem_of(row, page)
    kernel = resolve(name, problem, profile, Overrides(append_kv=True))
    call = Call.of(problem, kernel, profile)
    size = sum(tensor.bytes for tensor in call.chain.tensors.values())
    if min(size, call.counted.total("l2")) <= PLAYED * profile.need("l2_bytes"):
        hbm, _, _ = hbm_traffic(call, default_method(call.chain)[0], "warm", replays)
    else:
        hbm = call.capacity("warm")
    time = call.time(call.counted + hbm, Conditions(l2_start="warm", launched="graph"))
    return float(time.total_s + read_stack("vllm").call_gap_s)


def rows(files: list[Path], every: int, only: str | None) -> Iterator[dict[str, str]]:
    """Every so many-th row of each kernel and GPU."""
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for path in files:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = row["gpu"], row["kernel"]
                known = row["gpu"] in GPUS and row["kernel"] in KERNELS and row["attn_dtype"] == "bfloat16"
                if not known or only not in (None, KERNELS[row["kernel"]][0], row["kernel"]):
                    continue
                seen[key] += 1
                if seen[key] % every == 1 % every:
                    yield row


def long_calls(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({len(ratios)})" if ratios else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--every", type=int, default=7, help="take every n-th row of a kernel and GPU")
    parser.add_argument("--kernel", help="one kernel alone, by the table's name or the catalog's")
    parser.add_argument("--rows", action="store_true", help="print every row, too")
    args = parser.parse_args()
    ratios: dict[tuple[str, ...], list[float]] = defaultdict(list)
    longer: dict[tuple[str, ...], list[float]] = defaultdict(list)
    left_out: dict[tuple[str, str, str], int] = defaultdict(int)
    replays = Replays()
    for row in rows(args.files, args.every, args.kernel):
        name, page = kernel_of(row), KERNELS[row["kernel"]][1]
        if name is None:
            continue
        try:
            predicted = seconds(row, name, page, replays)
        except InputError as error:
            left_out[row["gpu"], row["kernel"], str(error)] += 1
            continue
        phase = "decode" if int(row["new_tokens_per_seq"]) == 1 else "prefill"
        ratio = predicted / (float(row["latency_ms"]) * 1e-3)
        mask = "window" if int(row["window_size"]) else "causal"
        key = name, row["gpu"], row["kv_cache_dtype"], phase, mask
        ratios[key].append(ratio)
        if float(row["latency_ms"]) >= LONG_MS:
            longer[key].append(ratio)
        if args.rows:
            print(f"{ratio:6.2f} {predicted * 1e6:10.1f} us", *row.values())
    print("| kernel | GPU | cache | phase | mask | rows | median predicted / measured | median error | from 50 us |")
    print("|---|---|---|---|---|---:|---:|---:|---:|")
    for key, found in sorted(ratios.items()):
        error = statistics.median(abs(ratio - 1) for ratio in found)
        said = f"{len(found)} | {statistics.median(found):.2f} | {error:.0%} | {long_calls(longer[key])}"
        print(f"| {' | '.join(key)} | {said} |")
    for (gpu, kernel, why), count in left_out.items():
        print(f"left out: {count} rows of {kernel} on {gpu}: {why}")


if __name__ == "__main__":
    main()

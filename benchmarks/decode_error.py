"""Decode times against published latencies of serving stacks: `python benchmarks/decode_error.py`.

The latencies (`experiments/measurements/published_latency.csv`, from NVIDIA AIConfigurator's data, Apache-2.0) are of
one attention call inside vLLM or SGLang: one query token, a paged cache, and what the stack puts around the kernel.
Nothing is fitted to them. The table gives, by GPU and stack, the relative error of the predicted kernel time, and the
same for the rows that run at least 50 us, where launches and bookkeeping weigh less.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from recorders import measurements

from iosim import AttentionProblem, predict
from iosim.base.errors import InputError

GPUS = {"a100_sxm": "a100-sxm-80gb", "l40s": "l40s", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm"}
KERNELS = {"flash_attention": "fa2", "vllm_flash_attn": "fa2", "vllm_flash_attn_fa2": "fa2",
           "vllm_flash_attn_fa3": "fa3", "fa3": "fa3"}  # fmt: skip
LONG_S = 50e-6
Key = tuple[str, str, str]


def rows() -> Iterator[tuple[Key, float, float]]:
    """((gpu, stack, kernel), measured seconds, predicted seconds) of every decode row a catalog kernel stands for."""
    path = measurements("published_latency.csv")
    with open(path, encoding="utf-8", newline="") as file:
        for r in csv.DictReader(file):
            if r["phase"] != "decode":
                continue
            problem = AttentionProblem(
                batch=int(r["batch_size"]), heads=int(r["num_heads"]), kv_heads=int(r["num_key_value_heads"]), seq_q=1,
                seq_k=int(r["seq"]), head_dim=int(r["head_dim"]), dtype="bf16",
            )  # fmt: skip
            kernel = KERNELS[r["kernel_source"]]
            try:
                made = predict(problem, kernel, GPUS[r["gpu"]], method="capacity")
            except InputError as error:
                print(f"left out: {error}")
                continue
            yield (GPUS[r["gpu"]], r["source"], kernel), float(r["latency"]) * 1e-3, made.time.total_s


def summary(pairs: list[tuple[float, float]]) -> str:
    """Rows, median and 90th percentile of |error|, and the median of predicted over measured."""
    if not pairs:
        return f"{0:4d}"
    errors = sorted(abs(p - m) / m for m, p in pairs)
    ratio = median(p / m for m, p in pairs)
    return f"{len(pairs):4d} {median(errors):7.1%} {errors[int(0.9 * (len(errors) - 1))]:7.1%} {ratio:6.2f}"


def main() -> None:
    """Print the table."""
    found: dict[Key, list[tuple[float, float]]] = defaultdict(list)
    for key, measured, made in rows():
        found[key].append((measured, made))
    print(f"{'GPU':<14} {'stack':<14} {'kernel':<6} {'all: rows, median, p90, ratio':<30} from 50 us on")
    for key in sorted(found):
        pairs = found[key]
        long = [(m, p) for m, p in pairs if m >= LONG_S]
        print(f"{key[0]:<14} {key[1]:<14} {key[2]:<6} {summary(pairs):<30} {summary(long)}")


if __name__ == "__main__":
    main()

"""Kernels and times of PyTorch's math path with few queries, by PyTorch's profiler.

    python experiments/few_queries.py OUT.csv     on the GPU: the launches of one call of each case, the last of three

Products in fp32 with few rows have kernels of their own (gemvx, gemmSN), which the catalog does not describe.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

CASES = [
    (16, 16, 1, 4096, 64),
    (4, 16, 1, 16384, 64),
    (64, 16, 1, 1024, 64),
    (16, 16, 1, 4096, 128),
    (2, 16, 7, 4096, 64),
    (8, 16, 2, 8192, 64),
]
"""Sequences, heads, queries, keys and columns, in bf16."""
COLUMNS = [
    "batch",
    "heads",
    "seq_q",
    "seq_k",
    "head_dim",
    "launch",
    "kernel",
    "grid",
    "block",
    "registers",
    "smem_bytes",
    "seconds",
]
CALLS = 3


def launches(call: Callable[[], torch.Tensor]) -> Iterator[tuple[object, ...]]:
    """Number, name, grid, block, registers, shared memory and seconds of the launches of the last of a few calls."""
    call()
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    for number, event in enumerate(kernels[-len(kernels) // CALLS :], 1):
        args = event["args"]
        yield (
            number,
            event["name"][:160],
            args["grid"],
            args["block"],
            args["registers per thread"],
            args["shared memory"],
            event["dur"] / 1e6,
        )


def main() -> None:
    with open(sys.argv[1], "w", encoding="utf-8", newline="") as file, torch.no_grad():
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for batch, heads, queries, keys, columns in CASES:
            sizes = {"device": "cuda", "dtype": torch.bfloat16}
            q = torch.randn(batch, heads, queries, columns, **sizes)
            k, v = (torch.randn(batch, heads, keys, columns, **sizes) for _ in range(2))
            with sdpa_kernel(SDPBackend.MATH):
                of_call = launches(lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v))
                for launch in of_call:
                    table.writerow((batch, heads, queries, keys, columns, *launch))


if __name__ == "__main__":
    main()

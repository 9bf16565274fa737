"""Nodes of the CUDA graph of one attention call, and what a memset costs beside kernels:
`python experiments/nodes.py --out FILE.csv`, on a GPU with PyTorch.

The profiler lists kernels alone; a call may also clear memory. A row is a call: its kernels, memsets and copies as
nodes of the graph that it is captured in. Two last rows have the seconds from one kernel to the next in a graph of
kernels of one CTA, and of such kernels with a memset of four bytes before each.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd
from experiment import record, replayed, run_script
from streams import BACKENDS

SHAPES = (
    # heads, kv_heads, seq_q, seq_k, head_dim, causal, backward
    (64, 64, 128, 16, 64, False, False),
    (64, 64, 128, 128, 128, True, False),
    (8, 8, 1024, 1024, 128, False, False),
    (8, 8, 1024, 1024, 128, True, False),
    (32, 8, 512, 512, 64, True, False),
    (64, 64, 1, 16, 128, False, False),
    (32, 8, 1, 4096, 128, False, False),
    (8, 8, 1024, 1024, 64, True, True),
    (32, 8, 512, 512, 128, True, True),
)
KINDS = ("Kernel", "Memset", "Memcpy")
NODES, REPLAYS = 20, 50


def call(
    heads: int, kv_heads: int, seq_q: int, seq_k: int, head_dim: int, causal: bool, backward: bool
) -> Callable[[], Any]:
    """A function that makes the call."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    def made(heads: int, tokens: int) -> Any:
        return torch.randn(
            1, heads, tokens, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=backward
        )

    q = made(heads, seq_q)
    k = made(kv_heads, seq_k)
    v = made(kv_heads, seq_k)
    out = torch.randn(1, heads, seq_q, head_dim, device="cuda", dtype=torch.bfloat16)

    def run() -> Any:
        output = scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=heads != kv_heads
        )
        return torch.autograd.grad(output, (q, k, v), out) if backward else output

    return run


def counted(run: Callable[[], Any]) -> dict[str, int]:
    """How many nodes of each kind the graph of a call has."""
    import torch
    from cuda.bindings import runtime

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        run()
    raw = runtime.cudaGraph_t(init_value=graph.raw_cuda_graph())
    _, _, number = runtime.cudaGraphGetNodes(raw)
    _, nodes, _ = runtime.cudaGraphGetNodes(raw, number)
    kinds = [runtime.cudaGraphNodeGetType(node)[1].name for node in nodes[:number]]
    return {kind: kinds.count(f"cudaGraphNodeType{kind}") for kind in KINDS}


def gap(with_memset: bool) -> float:
    """Seconds a kernel of one CTA in a graph of several, the memset before it with it."""
    import torch

    x = torch.zeros(32, device="cuda")
    word = torch.zeros(1, device="cuda")

    def run() -> None:
        for _ in range(NODES):
            if with_memset:
                word.zero_()
            x.add_(1.0)

    return replayed(run, REPLAYS) / NODES


def measure(_: Path) -> pd.DataFrame:
    """A row a backend and shape, and the two gaps."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    rows = []
    for backend, shape in itertools.product(BACKENDS, SHAPES):
        try:
            with sdpa_kernel(getattr(SDPBackend, BACKENDS[backend])):
                counts = counted(call(*shape))
        except RuntimeError as error:
            print(f"{backend} {shape}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
            continue
        rows.append((backend, *(int(x) for x in shape), *counts.values(), ""))
    for name, with_memset in (("kernel", False), ("memset and kernel", True)):
        rows.append((name, *[""] * 7, *[""] * 3, f"{gap(with_memset):.9f}"))
    names = [
        "implementation",
        "heads",
        "kv_heads",
        "seq_q",
        "seq_k",
        "head_dim",
        "causal",
        "backward",
    ]
    return pd.DataFrame(
        rows, columns=[*names, *(f"{kind.lower()}_nodes" for kind in KINDS), "seconds"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    record(out, measure, f"python experiments/nodes.py --out {out.name}", ())


if __name__ == "__main__":
    run_script(main)

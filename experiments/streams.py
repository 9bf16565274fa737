"""Times of attention whose keys the L2 holds, and of the same work whose keys come from HBM:
`python experiments/streams.py --out FILE.csv`, on a GPU with PyTorch.

Each head has one block of queries, so that nothing is read twice. `keys_lie` says where K and V are: "shared" is one
head's for all (stride 0: every load hits), "heads" each head's rows one after the other, "tokens" each token's heads
one after the other, as projections leave them. Calls run in a CUDA graph; a row is the median of several replays, each
of `CALLS` calls, with the clock that NVML names right after.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd
from experiment import record, replayed, run_script

BACKENDS = {
    "pytorch_flash": "FLASH_ATTENTION",
    "pytorch_mem_efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
PLACES = ("shared", "heads", "tokens")
HEADS = (64, 132, 264, 528, 1056)
KEYS = (16, 64, 256, 512, 1024, 2048, 4096)
QUERIES = (1, 128)
HEAD_DIMS = (64, 128)
CALLS, REPLAYS = 10, 7
MOST_BYTES = 12 << 30


def tensors(place: str, heads: int, queries: int, keys: int, head_dim: int) -> tuple[Any, Any, Any]:
    """Q, K and V of `heads` heads in bf16."""
    import torch

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    q = made(1, heads, queries, head_dim)
    if place == "shared":
        k, v = (made(1, 1, keys, head_dim).expand(1, heads, keys, head_dim) for _ in range(2))
    elif place == "heads":
        k = made(1, heads, keys, head_dim)
        v = made(1, heads, keys, head_dim)
    else:
        k, v = (made(1, keys, heads, head_dim).transpose(1, 2) for _ in range(2))
    return q, k, v


def seconds(backend: str, q: Any, k: Any, v: Any) -> float:
    """Of one call, in a CUDA graph of several."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def run() -> None:
        for _ in range(CALLS):
            scaled_dot_product_attention(q, k, v)

    with sdpa_kernel(getattr(SDPBackend, BACKENDS[backend])):
        return replayed(run, REPLAYS) / CALLS


def measure(_: Path) -> pd.DataFrame:
    """A row a kernel, place and shape."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    board = pynvml.nvmlDeviceGetHandleByIndex(0)
    torch.manual_seed(0)
    rows = []
    for head_dim, queries, heads, keys, place in itertools.product(
        HEAD_DIMS, QUERIES, HEADS, KEYS, PLACES
    ):
        if place != "shared" and 4 * heads * keys * head_dim > MOST_BYTES:
            continue
        q, k, v = tensors(place, heads, queries, keys, head_dim)
        for backend in BACKENDS:
            try:
                taken = seconds(backend, q, k, v)
            except RuntimeError as error:
                print(
                    f"{backend} {place} {heads} x {keys}: {str(error).splitlines()[0][:100]}",
                    file=sys.stderr,
                )
                continue
            clock = pynvml.nvmlDeviceGetClockInfo(board, pynvml.NVML_CLOCK_SM)
            rows.append((backend, place, heads, queries, keys, head_dim, f"{taken:.9f}", clock))
    names = (
        "implementation",
        "keys_lie",
        "heads",
        "seq_q",
        "seq_k",
        "head_dim",
        "seconds",
        "nvml_sm_mhz",
    )
    return pd.DataFrame(rows, columns=list(names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    record(out, measure, f"python experiments/streams.py --out {out.name}", ())


if __name__ == "__main__":
    run_script(main)

"""Times of PyTorch's attention kernels in series of calls that differ in one thing: `python experiments/series.py --out
FILE.csv`, on a GPU with PyTorch.

A row is a call behind itself (its data in the L2 where it fits): the median time of its longest kernel and of all of
its kernels, as PyTorch's profiler has them. Heads share K and V (stride 0) where `keys_lie` says "shared". `pitch` is
how many columns apart rows lie.

    narrow    the memory-efficient forward, heads narrower than the build, rows dense or as far apart as whole ones
    split     the same in fp32, whose products are three of tf32
    queries   its backward: few queries over many keys, whose CTAs share sums of dQ under locks
    tiles     cuDNN: tiles of one to four blocks of keys, many rounds
    rounds    cuDNN and FlashAttention-2: causal calls of a tile an SM, two, ...
    flex      FlexAttention: lengths that are whole blocks and others, by mask
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd
from experiment import record, run_script

REPEATS = 7
FLASH, EFFICIENT, CUDNN, FLEX = "pytorch_flash", "pytorch_mem_efficient", "cudnn", "pytorch_flex"
BACKENDS = {FLASH: "FLASH_ATTENTION", EFFICIENT: "EFFICIENT_ATTENTION", CUDNN: "CUDNN_ATTENTION"}
WIDTHS = (
    24,
    32,
    40,
    48,
    56,
    64,
    72,
    80,
    88,
    96,
    104,
    112,
    120,
    128,
    136,
    152,
    160,
    192,
    200,
    224,
    248,
    256,
)
SMS = 132


class Call(NamedTuple):
    series: str
    implementation: str
    batch: int
    heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    mask: str = "none"
    dtype: str = "bfloat16"
    keys_lie: str = "heads"
    pitch: int = 0


def calls() -> Iterator[Call]:
    """The calls, in order."""
    for d in WIDTHS:
        whole = 64 if d <= 64 else 128 if d <= 128 else 256
        for pitch in sorted({d, whole}):
            yield Call("narrow", EFFICIENT, 1, 4 * SMS, 64, 4096, d, keys_lie="shared", pitch=pitch)
    for d, heads in itertools.product((32, 64, 128, 192), (SMS, 2 * SMS, 4 * SMS)):
        yield Call("split", EFFICIENT, 1, heads, 64, 2048, d, dtype="float32", keys_lie="shared")
    for d, heads, queries, keys in itertools.product(
        (64, 128), (1, 8), (16, 64, 128, 256, 512, 1024), (1024, 8192, 65536)
    ):
        yield Call("queries", f"{EFFICIENT}_backward", 1, heads, queries, keys, d)
    for d, keys, rounds in itertools.product((64, 128), (128, 256, 384, 512), (2, 4, 8, 32)):
        yield Call("tiles", CUDNN, 1, SMS, 128 * rounds, keys, d)
    for name, d, (heads, n) in itertools.product(
        (CUDNN, FLASH), (64, 128), itertools.product((4, 8, 16, 32), (1024, 2048, 4096))
    ):
        for mask in ("none", "causal"):
            yield Call("rounds", name, 1, heads, n, n, d, mask)
    for d, heads, n, mask in itertools.product(
        (64, 128), (33, 66, 264), (512, 500, 2048, 2040), ("none", "causal", "window")
    ):
        yield Call("flex", FLEX, 1, heads, n, n, d, mask)


def prepared(call: Call) -> Callable[[], object]:
    """What runs a call."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    kind = getattr(torch, call.dtype)
    pitch = call.pitch or call.head_dim

    def made(tokens: int, heads: int) -> Any:
        return torch.randn(call.batch, heads, tokens, pitch, device="cuda", dtype=kind)[
            ..., : call.head_dim
        ]

    shared = call.keys_lie == "shared"
    q = made(call.seq_q, call.heads)
    k, v = (made(call.seq_k, 1 if shared else call.heads) for _ in range(2))
    if shared:
        k, v = (x.expand(-1, call.heads, -1, -1) for x in (k, v))
    causal = call.mask == "causal"
    if call.implementation.endswith("_backward"):
        aten = torch.ops.aten
        out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal
        )
        grad = torch.randn_like(out)
        return lambda: aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, None, out, lse, seed, offset, 0.0, [True, True, True, False], causal
        )
    if call.implementation == FLEX:
        return flex(call, q, k, v)

    def run() -> object:
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[call.implementation])):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def flex(call: Call, q: Any, k: Any, v: Any) -> Callable[[], object]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    conditions = {
        "causal": lambda b, h, i, j: i >= j,
        "window": lambda b, h, i, j: (i >= j) & (i - j <= 256),
    }
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    if call.mask == "none":
        return lambda: compiled(q, k, v)
    blocks = create_block_mask(
        conditions[call.mask], None, None, call.seq_q, call.seq_k, device="cuda"
    )
    return lambda: compiled(q, k, v, block_mask=blocks)


def kernels(run: Callable[[], object]) -> list[tuple[str, float, float]]:
    """(longest kernel, its seconds, those of all) of each repeat."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    kernels_run = []
    for _ in range(REPEATS):
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            run()
            torch.cuda.synchronize()
        launched = [
            (e.name, e.device_time_total * 1e-6) for e in seen.events() if e.device_time_total > 0
        ]
        name, longest = max(launched, key=lambda launch: launch[1])
        kernels_run.append((name, longest, sum(s for _, s in launched)))
    return kernels_run


def measure(_: Path, only: str) -> pd.DataFrame:
    import torch

    torch.manual_seed(0)
    rows = []
    for call in calls():
        if only and call.series not in only.split(","):
            continue
        try:
            runs = kernels(prepared(call))
        except RuntimeError as error:
            print(f"{call}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
            continue
        longest, every = (statistics.median(run[n] for run in runs) for n in (1, 2))
        rows.append((*call, runs[-1][0][:90], f"{longest:.9f}", f"{every:.9f}"))
        torch.cuda.empty_cache()
    return pd.DataFrame(rows, columns=[*Call._fields, "kernel", "seconds", "all_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="series, with commas")
    parser.add_argument("--dry-run", action="store_true", help="list the calls")
    options = parser.parse_args()
    if options.dry_run:
        print(*calls(), sep="\n")
        return
    command = f"python experiments/series.py --out {options.out.name}"
    record(options.out, lambda place: measure(place, options.only), command, ())


if __name__ == "__main__":
    run_script(main)

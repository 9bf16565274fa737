"""Times without the profiler: device events, median, L2 flushed or warm; ours beside PyTorch's backends."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch
from harness import TORCH_DTYPES, Case, inputs, launches, workspace
from torch import autograd
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "pytorch_flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "pytorch_mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
}


QUEUE_CYCLES = 400_000
"""The GPU idles this long before each timed call, so that short calls are queued before they start, not meanwhile."""


def median_ms(call: Callable[[], object], flush: bool, repeats: int = 15) -> float:
    """Median device time of `call`; with `flush` the L2 is overwritten before each."""
    scratch = torch.empty(1 << 28, dtype=torch.uint8, device="cuda") if flush else None
    for _ in range(3):
        call()
    pairs = []
    for _ in range(repeats):
        if scratch is not None:
            scratch.zero_()
        torch.cuda._sleep(QUEUE_CYCLES)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def flops(case: Case) -> float:
    """Multiply-adds counted twice, over the kept pairs; the backward counts five products for the forward's two."""
    s = case.shape
    pairs = float(s.seq_q * s.seq_k)
    if case.causal:
        pairs = sum(max(0, min(s.seq_k, i + s.seq_k - s.seq_q + 1)) for i in range(s.seq_q))
    return 4.0 * s.all_heads * pairs * s.head_dim * (2.5 if case.implementation == "flash_bwd" else 1.0)


def ours(case: Case, flush: bool, only: str | None = None) -> float:
    """Median ms of a call with its memset where it needs one (or of its launches of kernel `only`)."""
    t = inputs(case, seed=7)
    tensors = t | workspace(case, t)
    stream = torch.cuda.current_stream().cuda_stream
    calls = [launch for launch in launches(case, tensors) if only is None or launch.function.name == only]

    def call() -> None:
        if "dq_sum" in tensors:
            tensors["dq_sum"].zero_()
        for launch in calls:
            launch.run(stream)

    return median_ms(call, flush)


def chains(case: Case, flush: bool) -> dict[str, float]:
    """Median ms of PyTorch's eager chain (two products around a softmax) and of its math path, same inputs."""
    t = inputs(case, seed=7)
    q, k, v, scale = t["q"], t["k"], t["v"], case.shape.head_dim**-0.5

    def eager() -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v

    with sdpa_kernel(SDPBackend.MATH):
        math_path = median_ms(lambda: scaled_dot_product_attention(q, k, v), flush)
    return {"pytorch_eager": median_ms(eager, flush), "pytorch_math": math_path}


def library(case: Case, flush: bool) -> dict[str, float]:
    """Median ms of PyTorch's backends on the same problem; a backend that refuses it is left out."""
    t = inputs(case, seed=7)
    s, group = case.shape, case.shape.heads // case.shape.kv_heads
    backward = case.implementation == "flash_bwd"
    q = t["q"].requires_grad_(backward)
    k, v = (t[x].repeat_interleave(group, dim=1).requires_grad_(backward) for x in "kv")
    d_o = torch.randn_like(q, dtype=torch.float32).to(TORCH_DTYPES[case.dtype])
    times = {}
    for name, backend in BACKENDS.items():
        with sdpa_kernel(backend):
            try:
                if backward:
                    o = scaled_dot_product_attention(q, k, v, is_causal=case.causal)
                    times[name] = median_ms(partial(autograd.grad, o, (q, k, v), d_o, retain_graph=True), flush)
                else:
                    times[name] = median_ms(lambda: scaled_dot_product_attention(q, k, v, is_causal=case.causal), flush)
            except RuntimeError as refusal:
                print(f"{name} refuses {s}: {str(refusal).splitlines()[0]}")
    return times

"""Times of PyTorch's backends and chains on the problem of one of our calls, by device events."""

from __future__ import annotations

from functools import partial

import torch
from torch import autograd
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from iosim.evidence.measure.case import Case
from iosim.evidence.measure.harness import TORCH_DTYPES, inputs
from iosim.evidence.measure.timing import median_ms

BACKENDS = {
    "pytorch_flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "pytorch_mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
}


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
    s = case.shape
    group = case.shape.heads // case.shape.kv_heads
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
                    times[name] = median_ms(
                        partial(autograd.grad, o, (q, k, v), d_o, retain_graph=True), flush
                    )
                else:
                    times[name] = median_ms(
                        lambda: scaled_dot_product_attention(q, k, v, is_causal=case.causal), flush
                    )
            except RuntimeError as refusal:
                print(f"{name} refuses {s}: {str(refusal).splitlines()[0]}")
    return times

"""Runs PyTorch's calls for `run`: once without the profiler, for what is compiled or chosen at a first call, and once
more with it, in an NVTX range that has the call's number.

Where the plan says so, calls are made without the profiler alone: such processes, side by side, fill the caches of
compiled kernels. From the plan's `end` on, in seconds of the epoch, no call is begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from iosim.evidence.measure.chain_run import profiled
from iosim.evidence.measure.harness import TORCH_DTYPES
from iosim.evidence.measure.library_case import LibraryCase

RANGE = "iosim call"
CAUSAL_LOWER_RIGHT = 2
"""Of the memory-efficient kernel's `custom_mask_type`."""

aten: Any = torch.ops.aten


def prepared(case: LibraryCase, seed: int) -> Callable[[], Any]:
    """The call over random normal inputs, of one seed; of a backward, the gradient alone."""
    torch.manual_seed(seed)
    backward = case.passes == "bwd"
    shapes = [(case.heads, case.seq_q), (case.kv_heads, case.seq_k), (case.kv_heads, case.seq_k)]
    dtype = TORCH_DTYPES[case.dtype]
    if case.seq_lens:
        q, k, v = (torch.randn(rows, heads, case.head_dim, device="cuda", dtype=dtype) for heads, rows in shapes)
        return _packed(case, q, k, v)
    leaves = [
        torch.randn(case.batch, heads, rows, case.head_dim, device="cuda", dtype=dtype, requires_grad=backward)
        for heads, rows in shapes
    ]
    forward = FORWARDS[case.backend](case, *leaves)
    if not backward:
        return forward
    out = forward()
    d_out = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True)


def _flash(case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any]:
    causal = case.mask == "causal"
    return lambda: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]


def _cudnn(case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
    causal, trains = case.mask == "causal", case.passes == "bwd"
    return lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, None, trains, 0.0, causal)[0]


def _efficient(case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any]:
    """As scaled_dot_product_attention calls it; with lengths that differ, as torch.nn.attention.bias does."""
    causal, trains = case.mask == "causal", case.passes == "bwd"
    if not causal or case.seq_q == case.seq_k:
        return lambda: aten._scaled_dot_product_efficient_attention(q, k, v, None, trains, 0.0, causal)[0]

    def run() -> Any:
        made = aten._efficient_attention_forward(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, None, None, None, None, 0.0,
            CAUSAL_LOWER_RIGHT, trains,
        )  # fmt: skip
        return made[0].transpose(1, 2)

    return run


def _packed(case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any]:
    ends = torch.tensor([0, *case.seq_lens], device="cuda").cumsum(0, dtype=torch.int32)
    longest, causal = max(case.seq_lens), case.mask == "causal"
    if case.backend == "flash":
        return lambda: aten._flash_attention_forward(q, k, v, ends, ends, longest, longest, 0.0, causal, False)
    q, k, v = q[None], k[None], v[None]
    kind = CAUSAL_LOWER_RIGHT if causal else 0
    return lambda: aten._efficient_attention_forward(q, k, v, None, ends, ends, longest, longest, 0.0, kind, False)


def _flex(case: LibraryCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    window = case.window

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    def windowed(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (i - j <= window)

    blocks = None
    if case.mask != "none":
        keeps = causal if case.mask == "causal" else windowed
        blocks = create_block_mask(keeps, None, None, case.seq_q, case.seq_k, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=blocks, enable_gqa=case.heads != case.kv_heads)


FORWARDS: dict[str, Callable[..., Callable[[], Any]]] = {
    "flash": _flash, "efficient": _efficient, "cudnn": _cudnn, "flex": _flex,
}  # fmt: skip


def run(calls: list[dict[str, Any]], *, profile: bool, end: float | None = None) -> Iterator[dict[str, Any]]:
    """Makes the calls of a plan, `{"call", "case"}` each; gives a line each."""
    torch.autograd.set_multithreading_enabled(False)  # a range holds what its own thread launches
    for planned in calls:
        if end is not None and time.time() > end:
            break
        answer: dict[str, Any] = {"call": planned["call"]}
        try:
            call = prepared(LibraryCase.from_dict(planned["case"]), planned["call"])
            call()
            torch.cuda.synchronize()
            if profile:
                with profiled(), torch.cuda.nvtx.range(f"{RANGE} {planned['call']}"):
                    call()
                    torch.cuda.synchronize()
            del call
        except Exception as error:  # whatever a backend or a compiler has against the call is its reason
            answer["left_out"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        yield answer

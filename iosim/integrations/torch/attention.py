"""Attention as it runs on a GPU: which kernel PyTorch would take there, recorded in place of what it takes here.

On a CPU, and on meta or fake tensors, scaled_dot_product_attention takes a CPU kernel or falls apart into products and
a softmax. So the call is caught before PyTorch chooses; what stands in for the GPU's kernel has its inputs, outputs,
saved tensors and memory layouts. Values are computed where the tensors have any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.attention.flex_attention as flex_module
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import plan
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.libraries.sdpa import BACKENDS, TITLES, choose, order
from iosim.hardware.profile import HardwareProfile
from iosim.integrations.torch import values
from iosim.integrations.torch.formulas import Pass
from iosim.integrations.torch.recorder import Recorder, dtype_name, is_real
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.blocks import BlockMask, ranges
from iosim.studies.program.operators import attending

CUDNN_OF_TORCH = {(2, 9): 91002, (2, 10): 91002, (2, 11): 91900, (2, 12): 92000}
"""cuDNN that PyTorch's default wheels of a version ask for (their package metadata); the last serves later ones."""
SDPA_BACKENDS = {
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "efficient",
    "MATH": "math",
    "CUDNN_ATTENTION": "cudnn",
}
DEPRIORITIZED = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
NO_MASK_BLOCK = 1 << 30
"""FlexAttention's block size of no mask."""

FUSED = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
}
FUSED |= {f"{name}_backward": backend for name, backend in FUSED.items()}
"""Operators that are one backend's attention, where a program calls them itself."""

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]


def default_cudnn() -> int:
    """The version of cuDNN that this PyTorch would run with: its own, or that of its wheels for GPUs."""
    installed = torch.backends.cudnn.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    if installed:
        return int(installed)
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    known = [version for key, version in sorted(CUDNN_OF_TORCH.items()) if key <= (major, minor)]
    return known[-1] if known else min(CUDNN_OF_TORCH.values())


def backends_now(profile: HardwareProfile, cudnn: int | None) -> tuple[str, ...]:
    """The backends that are allowed here and now (torch.nn.attention.sdpa_kernel), in PyTorch's order on that GPU."""
    allowed = {
        SDPA_BACKENDS[b.name]
        for b in torch.nn.attention._cur_sdpa_kernel_backends()
        if b.name in SDPA_BACKENDS
    }
    priority = _priority()
    if priority == _INITIAL:
        priority = tuple(order(profile, None if os.environ.get(DEPRIORITIZED) == "1" else cudnn))
    return tuple(name for name in priority if name in allowed)


def _priority() -> tuple[str, ...]:
    numbers = {int(getattr(SDPBackend, name)): ours for name, ours in SDPA_BACKENDS.items()}
    return tuple(numbers[n] for n in torch._C._get_sdp_priority_order() if n in numbers)


_INITIAL = _priority()
"""PyTorch's order before anybody changed it."""


@dataclass(frozen=True)
class Attended:
    """A call of attention: its problem, the kernel that PyTorch takes, and what to say of that."""

    problem: AttentionProblem
    kernel: str
    backend: str
    notes: tuple[str, ...] = ()


def attend(
    recorder: Recorder,
    cudnn: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention, recorded as the GPU's kernel."""
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    chosen = _choose(recorder, cudnn, (query, key, value), attn_mask, dropout_p, is_causal, trained)
    if chosen is None or chosen.backend == "math":
        recorder.decomposes_attention = True
        try:
            out: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )[0]
            return out
        finally:
            recorder.decomposes_attention = False
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _additive(recorder, attn_mask, query)

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(
            [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        ):  # what a CPU has, whatever is allowed of a GPU
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )

    return _Attention.apply(recorder, chosen, compute, query, key, value, attn_mask)  # type: ignore[no-any-return, no-untyped-call]


def flex(
    recorder: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Sequence[Any],
    compute: Compute,
) -> Tensor:
    mask = block_mask_of(recorder, block_mask, query.shape[-2], key.shape[-2])
    fields: dict[str, Any] = {} if mask is None else {"mask": "blocks", "mask_blocks": mask}
    chosen = Attended(_problem(query, key, value, **fields), "flex", "flex")
    return _Attention.apply(recorder, chosen, compute, query, key, value, None)  # type: ignore[no-any-return, no-untyped-call]


def block_mask_of(
    recorder: Recorder, mask: Sequence[Any], seq_q: int, seq_k: int
) -> BlockMask | None:
    """The blocks of a FlexAttention mask, as its operator takes it; None where it keeps all.

    Lists of blocks without values are known where they follow from constants made inside the mode; else the mask's own
    function is asked which blocks it keeps. Raises InputError: neither tells, or heads or sequences have masks of
    their own.
    """
    counts, indices, full_counts, full_indices = mask[2:6]
    sides = int(mask[-3]), int(mask[-2])
    if min(sides) >= NO_MASK_BLOCK:
        return None
    if counts.shape[0] > 1 or counts.shape[1] > 1:
        raise InputError(
            f"flex_attention's block_mask has {counts.shape[0]} sequences and {counts.shape[1]} heads; "
            "accepted: one mask for all (B=None, H=None)"
        )
    rows, cols = [], []
    for count, index in ((counts, indices), (full_counts, full_indices)):
        if count is None:
            continue
        counted, listed = (
            t if is_real(t) else values.known_values(recorder, t) for t in (count, index)
        )
        if counted is None or listed is None:
            return _evaluated_blocks(mask[-1], seq_q, seq_k, sides, full_counts is not None)
        # A row of blocks lists its columns up to its count; pairs of (row, column) are made of both.
        taken = np.asarray(counted[0, 0], dtype=np.int64)
        step, row = ranges(np.zeros_like(taken), taken)
        rows.append(row)
        cols.append(np.asarray(listed[0, 0], dtype=np.int64)[row, step])
    return BlockMask.of_pairs(seq_q, seq_k, *sides, np.concatenate(rows), np.concatenate(cols))


def _evaluated_blocks(
    mask_mod: Any, seq_q: int, seq_k: int, sides: tuple[int, int], of_function: bool
) -> BlockMask:
    """The blocks that a mask's function keeps a score of, a row of blocks at a time. `of_function`: whether the lists
    were made of the function, as create_block_mask does, and not given beside it."""
    refused = (
        "flex_attention's block_mask is on the meta device or a fake tensor, and which blocks it keeps hangs on values "
        "that do not exist; accepted: a mask_mod that needs none of those, or a BlockMask of CPU tensors"
    )
    if mask_mod is None or (mask_mod is flex_module.noop_mask and not of_function):
        raise InputError(refused)
    # The mask's function takes single numbers: mapped over keys first and queries second, it gives
    # a rectangle at a time, of which a column of blocks is kept where any element is.
    keeps = torch.vmap(
        torch.vmap(mask_mod, in_dims=(None, None, None, 0)), in_dims=(None, None, 0, None)
    )
    rows, cols = [], []
    with _disable_current_modes(), torch.device("cpu"):
        none, keys = torch.zeros((), dtype=torch.int64), torch.arange(seq_k)
        for row, first in enumerate(range(0, seq_q, sides[0])):
            queries = torch.arange(first, min(seq_q, first + sides[0]))
            try:
                visible = keeps(none, none, queries, keys).any(0)
            except (RuntimeError, NotImplementedError) as error:
                raise InputError(f"{refused} ({str(error).splitlines()[0][:120]})") from None
            if not is_real(visible):
                raise InputError(refused)
            cols.append(np.unique(visible.nonzero().flatten().numpy() // sides[1]))
            rows.append(np.full(len(cols[-1]), row))
    return BlockMask.of_pairs(seq_q, seq_k, *sides, np.concatenate(rows), np.concatenate(cols))


def _choose(
    recorder: Recorder,
    cudnn: int | None,
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    trained: bool,
) -> Attended | None:
    """The kernel that PyTorch takes; None where only the math path takes tensors of such shapes."""
    query, key, value = qkv
    if (
        any(t.dim() != 4 for t in qkv)
        or key.shape[0] != query.shape[0]
        or query.shape[1] % key.shape[1]
    ):
        return None
    fields: dict[str, Any] = {"dropout": dropout}
    if causal:
        fields |= {"mask": "causal"} | ({"offset": 0} if query.shape[-2] != key.shape[-2] else {})
    if mask is not None:
        fields |= {"bias": "full", "bias_shared": _shared(mask)}
    problem = _problem(query, key, value, **fields)
    requested = problem.with_(passes="fwd+bwd") if trained else problem
    backends = backends_now(recorder.profile, cudnn)
    # Fused kernels want neighbours along the last axis next to each other (sdp_utils_cpp.h); one
    # input that is not sends the whole call to the math path.
    strided = [
        name
        for name, t in (("query", query), ("key", key), ("value", value), ("mask", mask))
        if _strided(t)
    ]
    if strided:
        backends = tuple(name for name in backends if name == "math")
    backend, reason = choose(requested, recorder.profile, backends, cudnn)
    if strided:
        reason = f"since fused kernels take no {strided[0]} whose last axis is strided"
    if not backend:
        raise InputError(
            f"no kernel of scaled_dot_product_attention that sdpa_kernel allows takes this call: {reason}"
        )
    note = (
        f"attention on {recorder.profile.name}: {TITLES[backend]}{f', {reason}' if reason else ''}"
    )
    return Attended(problem, BACKENDS[backend], backend, (note,))


def _problem(query: Tensor, key: Tensor, value: Tensor, **fields: Any) -> AttentionProblem:
    batch, heads, seq_q, head_dim = query.shape
    layout = "bshd" if heads > 1 and query.stride(1) < query.stride(2) else "bhsd"
    return AttentionProblem(
        batch=batch,
        heads=heads,
        kv_heads=key.shape[1],
        seq_q=seq_q,
        seq_k=key.shape[2],
        head_dim=head_dim,
        head_dim_v=value.shape[-1],
        dtype=dtype_name(query),
        layout=layout,
        **fields,
    )


def _strided(tensor: Tensor | None) -> bool:
    """True where neighbours along the last axis are no neighbours in memory (check_last_dim_stride of sdp_utils_cpp.h), as
    in T5, whose bias is an embedding of heads transposed."""
    return tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1


def _shared(mask: Tensor) -> str:
    shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if shape[0] == 1:
        return "both" if shape[1] == 1 else "batch"
    return "heads" if shape[1] == 1 else "none"


def _additive(recorder: Recorder, mask: Tensor, query: Tensor) -> Tensor:
    """A mask of booleans made one that is added, as PyTorch does first (transformers/attention.cpp: where)."""
    with recorder.pause():
        added = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(
            mask.logical_not(), float("-inf")
        )
    recorder.seen([mask], [added])
    recorder.pieces("convert_mask", [Pass([mask], [added])])
    return added


def planned(
    recorder: Recorder, chosen: Attended, passes: str, wants_lse: bool
) -> tuple[AttentionProblem, Kernel, str]:
    """(problem, kernel, note) of one pass: the chosen kernel, or one that stands in for it."""
    problem = chosen.problem.with_(passes=passes)
    kernel, note = attending(problem, chosen.kernel, recorder.profile, wants_lse=wants_lse)
    if isinstance(kernel.options, FlashOptions):  # what fills lists are operators of their own here
        kernel = kernel.with_(options=replace(kernel.options, fills_lists=False))
    return problem, kernel, note


def _record_forward(
    recorder: Recorder,
    chosen: Attended,
    inputs: Sequence[Tensor | None],
    out: Tensor,
    lse: Tensor,
    trained: bool,
) -> None:
    bound = {n: t for n, t in zip(("Q", "K", "V", "bias"), inputs, strict=True) if t is not None}
    recorder.seen(bound.values(), [out, lse])
    problem, kernel, note = planned(recorder, chosen, "fwd", trained)
    bound |= {"O": out, "LSE": lse}
    recorder.kernel(
        "attention",
        problem,
        kernel,
        plan(problem, kernel),
        bound,
        (*chosen.notes, *([note] if note else ())),
    )


def _record_backward(
    recorder: Recorder,
    chosen: Attended,
    saved: Sequence[Tensor | None],
    grad: Tensor,
    grads: Sequence[Tensor],
) -> None:
    bound = {
        n: t
        for n, t in zip(("Q", "K", "V", "bias", "O", "LSE"), saved, strict=True)
        if t is not None
    }
    recorder.seen([*bound.values(), grad], grads)
    problem, kernel, note = planned(recorder, chosen, "bwd", False)
    kernel = kernel.copying(*_copied(grad, bound["O"]))
    bound |= {"dO": grad, "dQ": grads[0], "dK": grads[1], "dV": grads[2]}
    recorder.kernel(
        "attention_backward", problem, kernel, plan(problem, kernel), bound, (note,) if note else ()
    )


def _copied(grad: Tensor, out: Tensor) -> tuple[str, ...]:
    """Which of dO and O flash's backward makes contiguous, in its own layout [batch, tokens, heads, head_dim]."""
    # Flash's backward takes dO and O as [batch, tokens, heads, head_dim]: O's strides decide, and a
    # gradient that came in others is copied.
    if not out.transpose(1, 2).is_contiguous():
        return "dO", "O"
    return () if grad.transpose(1, 2).is_contiguous() else ("dO",)


def fused(recorder: Recorder, name: str, arguments: dict[str, Any], out: Sequence[Any]) -> None:
    """An operator that is one backend's attention, forward or backward; `given` are its arguments by name."""
    q, k, v, bias = (
        arguments["query"],
        arguments["key"],
        arguments["value"],
        arguments.get("attn_bias"),
    )
    fields: dict[str, Any] = {"dropout": arguments["dropout_p"]} | (
        {"mask": "causal"} if arguments["is_causal"] else {}
    )
    if bias is not None and bias.numel():
        fields |= {"bias": "full", "bias_shared": _shared(bias)}
    else:
        bias = None
    backend = FUSED[name]
    chosen = Attended(_problem(q, k, v, **fields), BACKENDS[backend], backend)
    if name.endswith("_backward"):
        grad = arguments["grad_out"] if "grad_out" in arguments else arguments["grad_out_"]
        _record_backward(
            recorder,
            chosen,
            (q, k, v, bias, arguments["out"], arguments["logsumexp"]),
            grad,
            out[:3],
        )
    else:
        _record_forward(
            recorder, chosen, (q, k, v, bias), out[0], out[1], trained=out[1].numel() > 0
        )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        recorder: Recorder,
        chosen: Attended,
        compute: Compute,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """O lies in memory as Q does, but for the memory-efficient kernel's, which lies [batch, tokens, heads,
        head_dim]."""
        with recorder.pause():
            shape = (*q.shape[:-1], v.shape[-1])
            if chosen.backend == "efficient" or chosen.problem.layout == "bshd":
                out = q.new_empty((shape[0], shape[2], shape[1], shape[3])).transpose(1, 2)
            else:
                out = q.new_empty(shape)
            lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
            # A CPU tensor gets its values by a CPU kernel, which is not recorded.
            if is_real(q):
                out.copy_(compute(q, k, v))
        _record_forward(recorder, chosen, (q, k, v, mask), out, lse, any(ctx.needs_input_grad[3:6]))
        ctx.call = recorder, chosen, compute
        ctx.save_for_backward(q, k, v, mask, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads_out: Tensor) -> Any:
        recorder, chosen, compute = ctx.call
        saved = ctx.saved_tensors
        with recorder.pause():
            grads = [torch.empty_like(t) for t in saved[:3]]
            if is_real(saved[0]):
                leaves = [t.detach().requires_grad_() for t in saved[:3]]
                with torch.enable_grad():
                    result = compute(*leaves)
                for mine, theirs in zip(
                    grads, torch.autograd.grad(result, leaves, grads_out[0]), strict=True
                ):
                    mine.copy_(theirs)
        _record_backward(recorder, chosen, saved, grads_out[0], grads)
        return None, None, None, *grads, None

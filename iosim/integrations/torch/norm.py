"""RMS norm as it runs on a GPU: one launch forward and two backward, where a CPU makes it of powers and means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from iosim.integrations.torch.formulas import rms_norm_backward
from iosim.integrations.torch.pieces import Pass
from iosim.integrations.torch.recorder import Recorder, is_real


def rms_norm(
    recorder: Recorder, input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """torch.rms_norm, recorded as the GPU's kernel; with a weight of another type PyTorch has none (layer_norm.cpp)."""
    if weight is not None and weight.dtype != input.dtype:
        return torch.rms_norm(input, list(normalized_shape), weight, eps)
    return _RmsNorm.apply(recorder, input, tuple(normalized_shape), weight, eps)  # type: ignore[no-any-return, no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    """What stands in for the GPU's kernel."""

    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, x: torch.Tensor, shape: tuple[int, ...], weight: torch.Tensor | None,
        eps: float | None,
    ) -> torch.Tensor:  # fmt: skip
        with recorder.pause():
            out = torch.rms_norm(x, list(shape), weight, eps) if is_real(x) else torch.empty_like(x)
            rows = x.shape[: x.dim() - len(shape)]
            rstd = x.new_empty((*rows, *(1 for _ in shape)), dtype=torch.float32)
        scale = [] if weight is None else [weight]
        recorder.seen([x, *scale], [out, rstd])
        recorder.pieces("_fused_rms_norm", [Pass([x, *scale], [out, rstd])])
        ctx.call = recorder, shape, eps
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, *grads_out: torch.Tensor) -> Any:
        (grad,) = grads_out
        recorder, shape, eps = ctx.call
        x, weight, rstd = ctx.saved_tensors
        with recorder.pause():
            leaves = [t for t in (x, weight) if t is not None]
            if is_real(x):
                detached = [t.detach().requires_grad_() for t in leaves]
                with torch.enable_grad():
                    result = torch.rms_norm(detached[0], list(shape), detached[1] if weight is not None else None, eps)
                grads = torch.autograd.grad(result, detached, grad)
            else:
                grads = tuple(torch.empty_like(t) for t in leaves)
        recorder.seen([grad, x, rstd], grads)
        of_weight = grads[1] if weight is not None else None
        pieces = rms_norm_backward(grad, x, None, rstd, weight, out=[grads[0], of_weight])
        recorder.pieces("_fused_rms_norm_backward", pieces)
        return None, grads[0], None, of_weight, None

"""`sdpa`: which kernel torch.nn.functional.scaled_dot_product_attention takes on a GPU.

PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
"""

from __future__ import annotations

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.libraries.choice import chooses
from iosim.kernel.libraries.support import SCORE_TENSORS
from iosim.problem.attention import AttentionProblem


@chooses("sdpa", "pytorch", "scaled-dot-product-attention")
def sdpa(problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, str]:
    """(kernel, reason)."""
    half = problem.dtype in ("fp16", "bf16")
    asked = ", ".join(field for term, field in problem.terms.items() if term in SCORE_TENSORS)
    if asked and (half or problem.dtype in ("fp32", "tf32")) and (problem.dtype != "bf16" or profile.cc >= 80):
        return "cutlass", f"sdpa: memory-efficient, since flash takes no mask or bias tensor ({asked})"
    if half and profile.cc >= 80 and problem.head_dim == problem.head_dim_v <= 256:
        hopper = " (cuDNN may come first on Hopper with a recent cuDNN)" if profile.cc == 90 else ""
        return "fa2", f"sdpa: flash, which needs cc 8.0 and fp16 or bf16{hopper}"
    if problem.dtype == "bf16" and profile.cc < 80:
        return "math", f"sdpa: the math path, since {profile.name} (cc {profile.cc / 10:.1f}) has no bf16 kernels"
    if problem.dtype in ("fp16", "bf16", "fp32", "tf32"):
        why = "fp32 inputs" if not half else f"cc {profile.cc / 10:.1f} has no flash" if profile.cc < 80 else "head_dim"
        return "cutlass", f"sdpa: memory-efficient ({why})"
    return "math", f"sdpa: the math path, since no fused kernel takes {problem.dtype}"

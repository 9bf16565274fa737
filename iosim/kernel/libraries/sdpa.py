"""`sdpa`: which kernel torch.nn.functional.scaled_dot_product_attention takes on a GPU.

pytorch/pytorch @001f694a (2026), aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: the first backend of an order
whose checks all hold. The order is flash, memory-efficient, math; on cc 9.0 and 10.x, with cuDNN after 9.15.0, cuDNN
comes before them. iosim answers for the order without cuDNN, and says where it may differ.
"""

from __future__ import annotations

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.libraries.choice import chooses
from iosim.kernel.libraries.support import SCORE_TENSORS
from iosim.problem.attention import AttentionProblem

VERSION = "PyTorch @001f694a"
FLASH_CC = 80
FLASH_HEAD_DIM = 256
SMALL_SHARED_MEMORY = (86, 89, 120, 121)
"""Compute capabilities on which flash does not train wide heads: there its backward's tiles do not fit."""
TRAINED_HEAD_DIM = 192
TRAINED_AGAIN_ABOVE = 224


@chooses("sdpa", "pytorch", "scaled-dot-product-attention")
def sdpa(problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, str]:
    """(kernel, reason)."""
    kernel, why = _choice(problem, profile)
    title = {"fa2": "flash", "cutlass": "memory-efficient", "math": "the math path"}[kernel]
    return kernel, f"sdpa ({VERSION}): {title}, {why}"


def _choice(problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, str]:
    no_flash = _why_not_flash(problem, profile)
    if not no_flash:
        hopper = " (cuDNN comes first with cuDNN later than 9.15.0)" if profile.cc // 10 in (9, 10) else ""
        return "fa2", f"which takes fp16 and bf16 from cc 8.0 on{hopper}"
    no_efficient = _why_not_efficient(problem, profile)
    if not no_efficient:
        return "cutlass", f"since {no_flash}"
    return "math", f"since {no_efficient}"


def _why_not_flash(problem: AttentionProblem, profile: HardwareProfile) -> str:
    """The check that keeps flash away; empty where none does."""
    head_dim, cc = problem.head_dim, profile.cc
    asked = ", ".join(field for term, field in problem.terms.items() if term in SCORE_TENSORS)
    if asked:
        return f"flash takes no mask or bias tensor ({asked})"
    if problem.dtype not in ("fp16", "bf16"):
        return f"{'fp32' if problem.dtype == 'tf32' else problem.dtype} inputs are not flash's"
    if cc < FLASH_CC:
        return f"cc {cc / 10:.1f} has no flash"
    if head_dim != problem.head_dim_v or head_dim > FLASH_HEAD_DIM:
        return f"flash takes one head_dim, up to {FLASH_HEAD_DIM}"
    trains_wide = problem.backward and cc in SMALL_SHARED_MEMORY and head_dim > TRAINED_HEAD_DIM
    if trains_wide and (head_dim <= TRAINED_AGAIN_ABOVE or problem.dropout > 0):
        return f"flash does not train head_dim {head_dim}{' with dropout' * (problem.dropout > 0)} on cc {cc / 10:.1f}"
    return ""


def _why_not_efficient(problem: AttentionProblem, profile: HardwareProfile) -> str:
    """The check that keeps the memory-efficient kernel away; empty where none does."""
    dtype, cc = problem.dtype, profile.cc
    if dtype == "bf16" and cc < FLASH_CC:
        return f"{profile.name} (cc {cc / 10:.1f}) has no bf16 kernels"
    if dtype not in ("fp16", "bf16", "fp32", "tf32"):
        return f"no fused kernel takes {dtype}"
    multiple = 8 if dtype in ("fp16", "bf16") else 4 if cc >= FLASH_CC else 1  # minimum_gemm_alignment
    if problem.head_dim % multiple or problem.head_dim_v % multiple:
        return f"the memory-efficient kernel takes head_dim in multiples of {multiple}"
    return ""

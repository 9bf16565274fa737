"""`sdpa`: which kernel torch.nn.functional.scaled_dot_product_attention takes on a GPU.

pytorch/pytorch @001f694a (2026), aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: the first backend of an order
whose checks all hold. The order is flash, memory-efficient, math; on cc 9.0 and 10.x, with cuDNN after 9.15.0, cuDNN
comes before them. The name `sdpa` answers for the order without cuDNN, and says where it may differ; `choose` takes an
order and a version of cuDNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from iosim.base.errors import InputError
from iosim.catalog.libraries.loader import chooses
from iosim.catalog.libraries.support import SCORE_TENSORS
from iosim.hardware.profile import HardwareProfile, cc_text
from iosim.problem.attention import AttentionProblem

VERSION = "PyTorch @001f694a"
FLASH_CC = 80
FLASH_HEAD_DIM = 256
SMALL_SHARED_MEMORY = (86, 89, 120, 121)
"""Compute capabilities on which flash does not train wide heads: there its backward's tiles do not fit."""
TRAINED_HEAD_DIM = 192
TRAINED_AGAIN_ABOVE = 224


TURING_CC = 75
TURING_COLUMNS = 128
"""Widest head of flash-attention-turing but for its kernel of 256 columns, which is causal alone."""
BACKENDS = {"cudnn": "cudnn", "flash": "fa2", "efficient": "cutlass", "math": "math"}
"""PyTorch's names of the backends -> the catalog's kernels."""
TITLES = {
    "cudnn": "cuDNN",
    "flash": "flash",
    "efficient": "memory-efficient",
    "math": "the math path",
}
ORDER = ("flash", "efficient", "math", "cudnn")
"""PyTorch's order where cuDNN does not come first."""
CUDNN_FIRST = 91500
"""cuDNN's version, as 10000 x major + 100 x minor + patch, after which it comes first on cc 9.0 and 10.x."""
CUDNN_HEAD_DIM = 128
CUDNN_WIDE = (91000, 90, 256)
"""cuDNN's version from which a GPU of this compute capability takes head dimensions up to the last number."""
CUDNN_DROPOUT_STEPS = 16
"""cuDNN drops out with probabilities that are multiples of 1/16."""


def order(profile: HardwareProfile, cudnn_version: int | None) -> tuple[str, ...]:
    """The backends as PyTorch tries them by default; `cudnn_version` is None where there is no cuDNN."""
    if cudnn_version is not None and cudnn_version > CUDNN_FIRST and profile.cc // 10 in (9, 10):
        return ("cudnn", *(name for name in ORDER if name != "cudnn"))
    return ORDER


def choose(
    problem: AttentionProblem,
    profile: HardwareProfile,
    backends: Sequence[str],
    cudnn_version: int | None,
) -> tuple[str, str]:
    """(backend, reason) of the first of `backends` whose checks hold; an empty backend where none's do.

    Args:
        problem: with `passes` "fwd+bwd" where gradients are asked for.
        backends: keys of `BACKENDS` in the order in which they are tried.
    """
    # The first backend without a reason against it; the last reason explains the choice.
    checks = {"flash": why_not_flash, "efficient": why_not_efficient}
    checks["cudnn"] = partial(why_not_cudnn, version=cudnn_version)
    refused = ""
    for backend in backends:
        why = (
            checks[backend](problem, profile) if backend in checks else ""
        )  # nothing keeps the math path away
        if not why:
            return backend, refused and f"since {refused}"
        refused = why
    return "", refused


@chooses("sdpa", "pytorch", "scaled-dot-product-attention")
def sdpa(problem: AttentionProblem, profile: HardwareProfile) -> tuple[str, str]:
    if profile.is_amd:
        hint = f"accepted on {profile.name}: default, or a kernel by its name"
        raise InputError(
            f"`kernel` sdpa: PyTorch's choice is described on NVIDIA's GPUs alone; {hint}"
        )
    backend, why = choose(problem, profile, ORDER[:-1], None)
    if backend == "flash":
        hopper = (
            " (cuDNN comes first with cuDNN later than 9.15.0)"
            if profile.cc // 10 in (9, 10)
            else ""
        )
        why = f"which takes fp16 and bf16 from cc 8.0 on{hopper}"
    if profile.cc == TURING_CC and backend == "efficient" and problem.dtype == "fp16":
        wide = problem.head_dim > TURING_COLUMNS
        name = "fa-turing-256" if wide else "fa-turing"
        why += f"; flash-attention-turing, which PyTorch does not have, takes half its time: kernel {name}"
    return BACKENDS[backend], f"sdpa ({VERSION}): {TITLES[backend]}, {why}"


def why_not_flash(problem: AttentionProblem, profile: HardwareProfile) -> str:
    """The check that keeps flash away; empty where none does."""
    head_dim, cc = problem.head_dim, profile.cc
    fields_text = ", ".join(field for term, field in problem.terms.items() if term in SCORE_TENSORS)
    if fields_text:
        return f"flash takes no mask or bias tensor ({fields_text})"
    if problem.dtype not in ("fp16", "bf16"):
        return f"{'fp32' if problem.dtype == 'tf32' else problem.dtype} inputs are not flash's"
    if cc < FLASH_CC:
        return f"cc {cc_text(cc)} has no flash"
    if head_dim != problem.head_dim_v or head_dim > FLASH_HEAD_DIM:
        return f"flash takes one head_dim, up to {FLASH_HEAD_DIM}"
    if problem.mask == "causal" and problem.offset == 0 and problem.seq_q != problem.seq_k:
        return "flash takes no causal mask from the first token on where there are more keys or more queries"
    trains_wide = problem.backward and cc in SMALL_SHARED_MEMORY and head_dim > TRAINED_HEAD_DIM
    if trains_wide and (head_dim <= TRAINED_AGAIN_ABOVE or problem.dropout > 0):
        dropout = " with dropout" if problem.dropout > 0 else ""
        return f"flash does not train head_dim {head_dim}{dropout} on cc {cc_text(cc)}"
    return ""


def why_not_efficient(problem: AttentionProblem, profile: HardwareProfile) -> str:
    dtype, cc = problem.dtype, profile.cc
    if dtype == "bf16" and cc < FLASH_CC:
        return f"{profile.name} (cc {cc_text(cc)}) has no bf16 kernels"
    if dtype not in ("fp16", "bf16", "fp32", "tf32"):
        return f"no fused kernel takes {dtype}"
    multiple = (
        8 if dtype in ("fp16", "bf16") else 4 if cc >= FLASH_CC else 1
    )  # minimum_gemm_alignment
    if problem.head_dim % multiple or problem.head_dim_v % multiple:
        return f"the memory-efficient kernel takes head_dim in multiples of {multiple}"
    return ""


def why_not_cudnn(problem: AttentionProblem, profile: HardwareProfile, version: int | None) -> str:
    widths = (problem.head_dim, problem.head_dim_v)
    if version is None:
        return "there is no cuDNN"
    if profile.cc < FLASH_CC:
        return f"cc {cc_text(profile.cc)} has no fused attention in cuDNN"
    if problem.dtype not in ("fp16", "bf16"):
        return f"{'fp32' if problem.dtype == 'tf32' else problem.dtype} inputs are not cuDNN's"
    if (problem.dropout * CUDNN_DROPOUT_STEPS) % 1:
        return f"cuDNN drops out with multiples of 1/{CUDNN_DROPOUT_STEPS}"
    from_version, wide_cc, wide = CUDNN_WIDE
    widest = wide if version >= from_version and profile.cc == wide_cc else CUDNN_HEAD_DIM
    if max(widths) > widest and not (widths == (192, 128) and profile.cc // 10 in (9, 10)):
        return f"cuDNN takes head_dim up to {widest}"
    if any(width % 8 for width in widths):
        return "cuDNN takes head_dim in multiples of 8"
    if problem.seq_k == 1:
        return "cuDNN takes no single key"
    return ""

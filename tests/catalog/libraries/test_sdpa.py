"""Which backend PyTorch's scaled_dot_product_attention would take, and why."""

from __future__ import annotations

import pytest
from chosen import chosen

from iosim.catalog.libraries import sdpa
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem

SDPA = (
    ("t4", "fp16", "cutlass", "cc 7.5 has no flash"),
    ("t4", "fp32", "cutlass", "fp32"),
    ("t4", "bf16", "math", "no bf16"),
    ("v100", "fp16", "cutlass", "cc 7.0 has no flash"),
    ("a100", "fp16", "fa2", "cc 8.0"),
    ("a100", "bf16", "fa2", "flash"),
    ("a100", "fp32", "cutlass", "fp32"),
    ("l4", "fp16", "fa2", "flash"),
    ("rtx-3090", "bf16", "fa2", "flash"),
    ("a30", "bf16", "fa2", "flash"),
    ("a40", "fp32", "cutlass", "fp32"),
    ("l40", "bf16", "fa2", "flash"),
    ("rtx-5090", "bf16", "fa2", "flash"),
    ("h100", "fp16", "fa2", "cuDNN comes first with cuDNN later than 9.15.0"),
    ("h200", "tf32", "cutlass", "fp32"),
    ("b200", "bf16", "fa2", "flash"),
)


@pytest.mark.parametrize(("gpu", "dtype", "name", "why"), SDPA)
def test_sdpa_says_what_pytorch_would_take_and_why(
    gpu: str, dtype: str, name: str, why: str
) -> None:
    kernel = chosen("sdpa", gpu, dtype=dtype)
    assert kernel.name == name
    assert why in kernel.notes[0]


def test_sdpa_leaves_flash_for_wide_or_unequal_heads() -> None:
    assert chosen("sdpa", "a100", head_dim=264).name == "cutlass"
    assert chosen("sdpa", "a100", head_dim=64, head_dim_v=128).name == "cutlass"


@pytest.mark.parametrize(
    ("gpu", "head_dim", "passes", "dropout", "name"),
    [
        # sdp_utils.cpp, check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120
        ("l4", 192, "fwd+bwd", 0.0, "fa2"),
        ("l4", 200, "fwd+bwd", 0.0, "cutlass"),
        ("rtx-3090", 224, "fwd+bwd", 0.0, "cutlass"),
        ("rtx-5090", 208, "fwd+bwd", 0.0, "cutlass"),
        ("l4", 256, "fwd+bwd", 0.1, "cutlass"),
        ("l4", 200, "fwd", 0.0, "fa2"),
        ("a100", 200, "fwd+bwd", 0.0, "fa2"),
        ("h100", 256, "fwd+bwd", 0.1, "fa2"),
        # check_head_dim_size_mem_efficient: 128 bits a row's step for half types, 4 elements for fp32 from cc 8.0 on
        ("t4", 60, "fwd", 0.0, "math"),
        ("t4", 64, "fwd", 0.0, "cutlass"),
    ],
)
def test_sdpa_by_width_of_heads(
    gpu: str, head_dim: int, passes: str, dropout: float, name: str
) -> None:
    problem = AttentionProblem(head_dim=head_dim, dtype="fp16", passes=passes, dropout=dropout)
    kernel, why = sdpa.sdpa(problem, load_profile(gpu))
    assert kernel == name, why
    assert "PyTorch @" in why

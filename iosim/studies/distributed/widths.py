"""Bytes that one token takes of each tensor that lives on a GPU or crosses a link."""

from __future__ import annotations

from iosim.problem.attention import AttentionProblem

FP32_BYTES = 4
STATISTICS = 2
"""Row maximum and row sum, sent with a partial output."""


def token_bytes(problem: AttentionProblem) -> dict[str, int]:
    """Tensor -> bytes a token, over all heads and sequences.

    Partial outputs and gradients travel in the output's type, row statistics in fp32, as DistFlashAttn's code does.
    """
    p = problem
    heads, kv_heads = p.batch * p.heads, p.batch * p.kv_heads
    e, out = p.input_type.bytes, p.output_type.bytes
    return {
        "Q": heads * p.head_dim * e, "K": kv_heads * p.head_dim * e, "V": kv_heads * p.head_dim_v * e,
        "O": heads * p.head_dim_v * out, "dO": heads * p.head_dim_v * out, "O_part": heads * p.head_dim_v * out,
        "LSE": heads * FP32_BYTES, "stats": heads * STATISTICS * FP32_BYTES,
        "dQ": heads * p.head_dim * out, "dK": kv_heads * p.head_dim * out, "dV": kv_heads * p.head_dim_v * out,
    }  # fmt: skip


def sequence_width_bytes(problem: AttentionProblem) -> int:
    """Bytes of one N x d tensor, d the width of all query heads: the unit "Nd" of arXiv 2310.03294, appendix D."""
    return problem.batch * problem.seq_q * problem.heads * problem.head_dim * problem.input_type.bytes

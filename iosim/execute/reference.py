"""Attention and its gradients, dense and in float64, written without launches or tiles.

O = (softmax(Q K^T / sqrt(d)) o Z) V with Z the dropout factor; the gradients are the derivatives of sum(O o dO)
(arXiv 2205.14135, appendix B.2 and B.4).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from iosim.execute.dropout import kept_weights
from iosim.execute.rounding import Array, round_to
from iosim.problem import AttentionProblem


def random_arrays(problem: AttentionProblem, seed: int = 0) -> dict[str, Array]:
    """Normal Q, K, V (and dO for a backward), [batch, heads, rows, cols], rounded to their formats."""
    p, generator = problem, np.random.default_rng(seed)
    shapes = {
        "Q": (p.batch, p.heads, p.seq_q, p.head_dim),
        "K": (p.batch, p.n_kv_heads, p.n_seq_k, p.head_dim),
        "V": (p.batch, p.n_kv_heads, p.n_seq_k, p.d_v),
    }
    made = {name: round_to(generator.standard_normal(shape), p.dtype) for name, shape in shapes.items()}
    if p.backward:
        gradient = generator.standard_normal((p.batch, p.heads, p.seq_q, p.d_v))
        made["dO"] = round_to(gradient, p.output_type.name)
    return made


def dense_mask(problem: AttentionProblem) -> npt.NDArray[np.bool_]:
    """Boolean [seq_q, seq_k] of the pairs the problem keeps, from its own words."""
    p = problem
    diagonal = p.n_seq_k - p.seq_q if p.offset is None else p.offset
    i, j = np.mgrid[: p.seq_q, : p.n_seq_k]
    kept = np.ones(i.shape, dtype=np.bool_)
    if p.mask in ("causal", "window"):
        kept &= j <= i + diagonal
    if p.mask == "window" and p.window is not None:
        kept &= i + diagonal - j <= p.window
    return kept


def dropout_factor(problem: AttentionProblem, seed: int) -> Array:
    """[batch, heads, seq_q, seq_k]: 0 or 1 / (1 - dropout)."""
    p = problem
    heads, i, j = np.ogrid[: p.heads, : p.seq_q, : p.n_seq_k]
    kept = np.stack([kept_weights(seed, b, heads, i, j, p.dropout) for b in range(p.batch)])
    return np.asarray(kept / (1 - p.dropout), dtype=np.float64)


def reference(problem: AttentionProblem, arrays: Mapping[str, npt.ArrayLike], seed: int = 0) -> dict[str, Array]:
    """O and LSE, and dQ, dK, dV where the problem has a backward.

    Args:
        arrays: Q, K, V [batch, heads, rows, cols], and dO for a backward.
        seed: of the dropout mask.

    Returns:
        Arrays by name; rows that keep no key have O = 0 and LSE = -inf. LSE is [batch, heads, seq_q].
    """
    q, k, v = (np.asarray(arrays[name], dtype=np.float64) for name in "QKV")
    k, v = (np.repeat(x, problem.group, axis=1) for x in (k, v))
    scale = 1 / np.sqrt(problem.head_dim)
    scores = np.where(dense_mask(problem), np.einsum("bhid,bhjd->bhij", q, k) * scale, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1)
    weights = np.exp(scores - np.where(np.isneginf(lse), 0.0, lse)[..., None])
    factor = dropout_factor(problem, seed) if problem.dropout else np.ones_like(weights)
    out = {"O": np.einsum("bhij,bhjd->bhid", weights * factor, v), "LSE": lse}
    if not problem.backward:
        return out
    do = np.asarray(arrays["dO"], dtype=np.float64)
    d_weights = np.einsum("bhid,bhjd->bhij", do, v) * factor
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True)) * scale

    def summed(gradient: Array) -> Array:
        b, _, rows, cols = gradient.shape
        return np.asarray(gradient.reshape(b, problem.n_kv_heads, problem.group, rows, cols).sum(axis=2))

    return {
        **out,
        "dQ": np.einsum("bhij,bhjd->bhid", d_scores, k),
        "dK": summed(np.einsum("bhij,bhid->bhjd", d_scores, q)),
        "dV": summed(np.einsum("bhij,bhid->bhjd", weights * factor, do)),
    }

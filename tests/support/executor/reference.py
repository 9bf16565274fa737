"""Attention and its gradients, dense and in float64, written without launches or tiles.

O = (softmax(Q K^T / sqrt(d)) o Z) V with Z the dropout factor; the gradients are the derivatives of sum(O o dO)
(arXiv 2205.14135, appendix B.2 and B.4).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from executor.body import Array
from executor.numerics import kept_weights, round_to
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.blocks import BlockMask
from iosim.problem.masks.mask import Mask


def random_arrays(problem: AttentionProblem, seed: int = 0) -> dict[str, Array]:
    """Normal Q, K, V (and dO for a backward), [batch, heads, rows, cols], rounded to their formats; no V where it is
    part of K."""
    p, generator = problem, np.random.default_rng(seed)
    shapes = {
        "Q": (p.batch, p.heads, p.seq_q, p.head_dim),
        "K": (p.batch, p.kv_heads, p.seq_k, p.head_dim),
        "V": (p.batch, p.kv_heads, p.seq_k, p.head_dim_v),
    }
    if p.latent_kv:
        del shapes["V"]
    formats = {"Q": p.dtype, "K": p.cache_type.name, "V": p.cache_type.name}
    random_by_name = {
        name: round_to(generator.standard_normal(shape), formats[name])
        for name, shape in shapes.items()
    }
    if p.backward:
        gradient = generator.standard_normal((p.batch, p.heads, p.seq_q, p.head_dim_v))
        random_by_name["dO"] = round_to(gradient, p.output_type.name)
    return random_by_name | _random_terms(problem, generator)


def _random_terms(p: AttentionProblem, generator: np.random.Generator) -> dict[str, Array]:
    """Normal bias [bias_batch, bias_heads, seq_q, seq_k], ALiBi's slopes 2^(-8 h / heads), h from 1, as its paper has
    them, and a key-padding mask of 1 and 0 that drops a quarter of the keys, [batch, 1, seq_k, 1]."""
    terms: dict[str, Array] = {}
    if p.bias == "full":
        shape = (p.bias_batch, p.bias_heads, p.seq_q, p.seq_k)
        terms["bias"] = round_to(generator.standard_normal(shape), p.bias_type.name)
    if p.bias == "alibi":
        by_head = 2.0 ** (-8 * np.arange(1, p.heads + 1) / p.heads)
        terms["slopes"] = round_to(
            np.tile(by_head, p.bias_batch).reshape(p.bias_batch, p.heads, 1, 1), "fp32"
        )
    if p.sinks:
        terms["sinks"] = round_to(generator.standard_normal((1, p.heads, 1, 1)), "bf16")
    if p.key_padding:
        terms["padding"] = (generator.random((p.batch, 1, p.seq_k, 1)) >= 0.25).astype(np.float64)
    return terms


def dense_mask(problem: AttentionProblem) -> npt.NDArray[np.bool_]:
    """Boolean [seq_q, seq_k] of the pairs the problem keeps, from its own words."""
    p = problem
    if p.seq_lens is None or p.seq_lens_k is None:
        return _one_mask(p, p.seq_q, p.seq_k)
    kept_pairs = np.zeros((p.seq_q, p.seq_k), dtype=np.bool_)
    i = j = 0
    for q, k in zip(p.seq_lens, p.seq_lens_k, strict=True):
        kept_pairs[i : i + q, j : j + k] = _one_mask(p, q, k)
        i, j = i + q, j + k
    return kept_pairs


def _one_mask(p: AttentionProblem, seq_q: int, seq_k: int) -> npt.NDArray[np.bool_]:
    diagonal = seq_k - seq_q if p.offset is None else p.offset
    i, j = np.mgrid[:seq_q, :seq_k]
    kept_pairs = np.ones(i.shape, dtype=np.bool_)
    ahead = 0 if p.mask == "causal" else (p.window_right or 0) if p.mask == "window" else None
    if ahead is not None and ahead >= 0:
        kept_pairs &= j - (i + diagonal) <= ahead
    if p.mask == "window" and p.window is not None:
        kept_pairs &= i + diagonal - j <= p.window
    if isinstance(p.pair_mask, BlockMask):
        kept_pairs &= _kept_blocks(p, p.pair_mask)[
            i // p.pair_mask.block_q, j // p.pair_mask.block_k
        ]
    return kept_pairs


def _kept_blocks(p: AttentionProblem, mask: BlockMask) -> npt.NDArray[np.bool_]:
    """Boolean [block rows, block columns] by each pattern's definition (`iosim.problem.masks.words`)."""
    a, b = np.ogrid[: mask.shape[0], : mask.shape[1]]
    block = mask.block_q
    if p.mask == "butterfly":
        apart = a ^ b
        far = apart > (p.mask_stride or apart.max())
        return np.asarray((apart & (apart - 1) == 0) & ~far, dtype=np.bool_)
    if p.mask == "strided":
        stride = p.mask_stride or int(np.ceil(np.sqrt(mask.shape[0])))
        return np.asarray((a >= b) & ((a - b < stride) | ((a - b) % stride == 0)), dtype=np.bool_)
    if p.mask in ("window+global", "window+first"):
        nearest = np.maximum((np.abs(a - b) - 1) * block + 1, 0)
        near = (a == b) | (nearest <= (p.window or 0))
        causal = p.mask == "window+first"
        first = (b if causal else np.minimum(a, b)) * block < (p.global_tokens or 0)
        return np.asarray((near | first) & ((a >= b) | (not causal)), dtype=np.bool_)
    return dense_blocks(mask)


def dense(mask: Mask, seq_q: int, seq_k: int) -> npt.NDArray[np.bool_]:
    """Boolean [seq_q, seq_k], True where kept, as the mask says itself."""
    return mask.keeps(
        np.arange(seq_q, dtype=np.int64)[:, None], np.arange(seq_k, dtype=np.int64)[None, :]
    )


def dense_blocks(mask: BlockMask) -> npt.NDArray[np.bool_]:
    """Boolean [block rows, block columns] of the kept blocks."""
    dense = np.zeros(mask.shape, dtype=np.bool_)
    dense[mask.rows, mask.indices] = True
    return dense


def added_terms(problem: AttentionProblem, arrays: Mapping[str, npt.ArrayLike]) -> Array:
    """What is added to the scaled scores besides the mask, broadcastable to [batch, heads, seq_q, seq_k]."""
    p = problem
    added = np.zeros((1, 1, 1, 1))
    if p.bias == "full":
        added = added + np.asarray(arrays["bias"], dtype=np.float64)
    if p.bias == "alibi":
        diagonal = p.seq_k - p.seq_q if p.offset is None else p.offset
        i, j = np.mgrid[: p.seq_q, : p.seq_k]
        added = added - np.asarray(arrays["slopes"], dtype=np.float64) * np.abs(i + diagonal - j)
    if p.key_padding:
        kept_keys = np.asarray(arrays["padding"]).reshape(p.batch, 1, 1, p.seq_k) > 0
        added = np.where(kept_keys, added, -np.inf)
    return added


def dropout_factor(problem: AttentionProblem, seed: int) -> Array:
    """[batch, heads, seq_q, seq_k]: 0 or 1 / (1 - dropout)."""
    p = problem
    heads, i, j = np.ogrid[: p.heads, : p.seq_q, : p.seq_k]
    weights = np.stack([kept_weights(seed, b, heads, i, j, p.dropout) for b in range(p.batch)])
    return np.asarray(weights / (1 - p.dropout), dtype=np.float64)


def reference(
    problem: AttentionProblem, arrays: Mapping[str, npt.ArrayLike], seed: int = 0
) -> dict[str, Array]:
    """O and LSE, and dQ, dK, dV where the problem has a backward.

    Args:
        arrays: Q, K, V [batch, heads, rows, cols], dO for a backward, and what else the problem has (`random_arrays`).
            Where Q, K or V has fewer heads than the problem, each serves as many neighbours.
        seed: of the dropout mask.

    Returns:
        Arrays by name; rows that keep no key have O = 0 and LSE = -inf. LSE is [batch, heads, seq_q], with one head
        where Q and K have one. Gradients have the heads of what they are the gradient of.
    """
    q, k = (np.asarray(arrays[name], dtype=np.float64) for name in "QK")
    v = (
        k[..., : problem.head_dim_v]
        if problem.latent_kv
        else np.asarray(arrays["V"], dtype=np.float64)
    )
    heads = {"Q": q.shape[1], "K": k.shape[1], "V": v.shape[1]}
    q, k, v = (np.repeat(x, problem.heads // x.shape[1], axis=1) for x in (q, k, v))
    scale = 1 / np.sqrt(problem.head_dim)
    scores = np.einsum("bhid,bhjd->bhij", q, k) * scale + added_terms(problem, arrays)
    scores = np.where(dense_mask(problem), scores, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1)
    if problem.sinks:
        lse = np.logaddexp(lse, np.asarray(arrays["sinks"]).reshape(1, -1, 1))
    weights = np.exp(scores - np.where(np.isneginf(lse), 0.0, lse)[..., None])
    factor = dropout_factor(problem, seed) if problem.dropout else np.ones_like(weights)
    scored = max(heads["Q"], heads["K"])
    out = {
        "O": np.einsum("bhij,bhjd->bhid", weights * factor, v),
        "LSE": lse[:, :: problem.heads // scored],
    }
    if not problem.backward:
        return out
    do = np.asarray(arrays["dO"], dtype=np.float64)
    d_weights = np.einsum("bhid,bhjd->bhij", do, v) * factor
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    if problem.bias_grad:
        shared = tuple(
            n for n, size in enumerate((problem.bias_batch, problem.bias_heads)) if size == 1
        )
        out["dBias"] = d_scores.sum(axis=shared, keepdims=True)
    d_scores = d_scores * scale

    def summed(gradient: Array, name: str) -> Array:
        b, _, rows, cols = gradient.shape
        return np.asarray(gradient.reshape(b, heads[name], -1, rows, cols).sum(axis=2))

    return {
        **out,
        "dQ": summed(np.einsum("bhij,bhjd->bhid", d_scores, k), "Q"),
        "dK": summed(np.einsum("bhij,bhid->bhjd", d_scores, q), "K"),
        "dV": summed(np.einsum("bhij,bhid->bhjd", weights * factor, do), "V"),
    }

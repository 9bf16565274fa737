"""A prediction's bytes by what the tensors are for, so that a bias, a mask or dropout can be seen apart."""

from __future__ import annotations

from iosim.kernel.launch import Chain, Rows
from iosim.prediction.result import Prediction

MAIN = ("Q", "K", "V", "O", "dO", "dQ", "dK", "dV")
NAMED = {
    **dict.fromkeys(MAIN, "Q, K, V, O"),
    **dict.fromkeys(("bias", "slopes", "dBias", "dBias_heads", "S_biased"), "bias"),
    **dict.fromkeys(("mask", "mask_added", "padding", "S_masked", "S_padded", "dS_masked", "dS_padded"), "masks"),
    **dict.fromkeys(("dropout_mask", "rng_state", "P_dropped", "dP_dropped"), "dropout"),
}
GROUPS = ("Q, K, V, O", "row statistics", "scores", "bias", "masks", "dropout", "copies", "other")
"""Gradients stand with their tensors. Each further pass over the scores stands with the term that asks for it: its
result, where another launch reads it, too. "copies" are casts, partial results and sums; "other" follows no tensor."""


def group_of(chain: Chain, tensor: str) -> str:
    """The group of a tensor of a chain, by its name, its shape and how launches cut it."""
    if tensor in NAMED:
        return NAMED[tensor]
    if tensor not in chain.tensors:
        return "other"
    if chain.tensors[tensor].is_vector:
        return "row statistics"
    cut_both_ways = any(a.tensor == tensor and a.rows is Rows.PAIR for x in chain.launches for a in x.accesses)
    return "scores" if cut_both_ways else "copies"


def by_group(p: Prediction, level: str) -> dict[str, int]:
    """Bytes at "l2" or "hbm", read and written together, by group; groups without any are left out."""
    sums: dict[str, int] = {}
    for row in p.traffic:
        if row.level == level and row.bytes:
            group = group_of(p.chain, row.tensor)
            sums[group] = sums.get(group, 0) + int(row.bytes)
    return {group: sums[group] for group in GROUPS if group in sums}

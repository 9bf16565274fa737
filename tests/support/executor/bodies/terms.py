"""What several algorithms compute: scores with their bias and mask, a pair's gradients, sums over heads."""

from __future__ import annotations

import numpy as np

from executor.body import Array, Body, Place
from iosim.catalog.algorithms.registry import options_of
from iosim.catalog.algorithms.terms import TermOptions


def masked_scores(at: Place) -> Array:
    """scale x Q K^T of the tile with its bias, -inf where the mask or the key padding drops the pair."""
    p = at.problem
    scores = at["Q"] @ at["K"].T * at.scale
    if p.bias == "full":
        scores = scores + at["bias"]
    if p.bias == "alibi":
        scores = scores - at["slopes"][0, 0] * at.distance
    if p.key_padding:
        scores = np.where(at["padding"].T > 0, scores, -np.inf)
    if p.mask_storage == "implicit":
        return np.where(at.kept, scores, -np.inf)
    if p.mask_storage == "bool" and not options_of(at.kernel, TermOptions).converts_mask:
        return np.where(at["mask"] > 0, scores, -np.inf)
    added: Array = scores + at["mask" if p.mask_storage == "additive" else "mask_added"]
    return added


class PairGradients:
    """What a (query block, key block) pair adds to each gradient, its dropped weights made again (arXiv 2307.08691,
    Algorithm 2, lines 11 to 17)."""

    def __init__(self, at: Place, weights: Array, dot: Array, d_o: Array) -> None:
        factor = at.dropout_factor_again
        ds = weights * ((d_o @ at["V"].T) * factor - dot)
        if at.problem.bias_grad:
            at.put("dBias_heads" if at.writes("dBias_heads") else "dBias", ds)
        ds = ds * at.scale
        self.dq: Array = ds @ at["K"]
        self.dk: Array = ds.T @ at["Q"]
        self.dv: Array = (weights * factor).T @ d_o


class KeyGradients(Body):
    """dK and dV of a key block, added up on chip."""

    def begin(self, at: Place) -> None:
        self.sums: dict[str, Array] = {
            "dK": np.zeros((at.keys.size, at.problem.head_dim)),
            "dV": np.zeros((at.keys.size, at.problem.head_dim_v)),
        }

    def add(self, more: PairGradients) -> None:
        """One more block of queries."""
        self.sums["dK"] += more.dk
        self.sums["dV"] += more.dv

    def end(self, at: Place) -> None:
        for name, total in self.sums.items():
            at.put(head_gradient(at, name), total)


def save_random_state(at: Place) -> None:
    """The seed and offset that a backward starts from, where the launch keeps them."""
    if at.writes("rng_state"):
        at.put("rng_state", at.random_state)


def make_mask_additive(at: Place) -> None:
    at.put("mask_added", np.where(at["mask"] > 0, 0.0, -np.inf))


def write_alibi(at: Place) -> None:
    at.put("bias", -at["slopes"][0, 0] * at.distance)


def zero_bias_gradient(at: Place) -> None:
    at.put(
        "dBias_heads" if at.writes("dBias_heads") else "dBias", np.zeros((at.q.size, at.keys.size))
    )


def add_bias_gradients(at: Place) -> None:
    """dBias: the gradients of the scores that share it, summed."""
    gradients = at[
        next((a.tensor for a in at.launch.accesses if a.tensor != "dBias"), "dBias_heads")
    ]
    at.put("dBias", gradients if gradients.ndim == 2 else gradients.sum(axis=0))


def head_gradient(at: Place, name: str) -> str:
    """Where a work tile's dK or dV goes: to the tensor itself, or to be summed over the group."""
    return next(n for n in (name, f"{name}_heads", f"{name}_acc") if at.writes(n))


def add_group_gradients(at: Place) -> None:
    """dK and dV of a key/value head, or the one that the launch is for: its query heads' sums."""
    for name in ("dK", "dV"):
        if at.writes(name):
            at.put(name, at[f"{name}_heads"].sum(axis=0))

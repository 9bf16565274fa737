"""Softmax pieces that bodies share; rows that keep no key are zero, not NaN."""

from __future__ import annotations

import numpy as np

from iosim.readers.execute.place import Place
from iosim.readers.execute.rounding import Array


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
    if p.mask_storage == "bool" and not at.kernel.option("converts_mask"):
        return np.where(at["mask"] > 0, scores, -np.inf)
    added: Array = scores + at["mask" if p.mask_storage == "additive" else "mask_added"]
    return added


def save_random_state(at: Place) -> None:
    """The seed and offset that a backward starts from, where the launch keeps them."""
    if at.writes("rng_state"):
        at.put("rng_state", at.random_state)


def convert_mask(at: Place) -> None:
    """Bytes to 0 and -inf."""
    at.put("mask_added", np.where(at["mask"] > 0, 0.0, -np.inf))


def materialise_bias(at: Place) -> None:
    """ALiBi's bias of a head as a tensor."""
    at.put("bias", -at["slopes"][0, 0] * at.distance)


def fill_bias(at: Place) -> None:
    """dBias = 0, of the bias's shape or of every head."""
    at.put("dBias_heads" if at.writes("dBias_heads") else "dBias", np.zeros((at.q.size, at.keys.size)))


def sum_bias(at: Place) -> None:
    """dBias: the gradients of the scores that share it, summed."""
    given = at[next((a.tensor for a in at.launch.accesses if a.tensor != "dBias"), "dBias_heads")]
    at.put("dBias", given if given.ndim == 2 else given.sum(axis=0))


def exp_less(scores: Array, maximum: Array) -> Array:
    """exp(scores - maximum), 0 where the score is -inf, rows whose maximum is -inf included."""
    return np.exp(scores - np.where(np.isneginf(maximum), 0.0, maximum))


def divided(sums: Array, by: Array) -> Array:
    """sums / by, 0 where `by` is 0."""
    return np.divide(sums, by, out=np.zeros_like(sums), where=by > 0)


def log_sum_exp(maximum: Array, total: Array) -> Array:
    """maximum + log(total), -inf where no key was kept."""
    return np.where(total > 0, maximum + np.log(np.where(total > 0, total, 1.0)), -np.inf)


class OnlineSoftmax:
    """Running max, sum and unnormalised output of a tile's rows (arXiv 2307.08691, Algorithm 1, lines 8 to 10)."""

    def __init__(self, rows: int, cols: int) -> None:
        self.maximum: Array = np.full((rows, 1), -np.inf)
        self.total: Array = np.zeros((rows, 1))
        self.sums: Array = np.zeros((rows, cols))

    def add(self, scores: Array, values: Array, factor: Array) -> None:
        """One more block of keys; `factor` multiplies the weights of the output, not their sum (dropout)."""
        maximum = np.maximum(self.maximum, scores.max(axis=1, keepdims=True))
        weights = exp_less(scores, maximum)
        shrink = exp_less(self.maximum, maximum)
        self.total = shrink * self.total + weights.sum(axis=1, keepdims=True)
        self.sums = shrink * self.sums + (weights * factor) @ values
        self.maximum = maximum

    @property
    def output(self) -> Array:
        return divided(self.sums, self.total)

    @property
    def lse(self) -> Array:
        return log_sum_exp(self.maximum, self.total)


def head_gradient(at: Place, name: str) -> str:
    """Where a query head's dK or dV goes: to the tensor itself, or to be summed over the group."""
    return f"{name}_heads" if at.problem.group > 1 else name


def sum_groups(at: Place) -> None:
    """dK and dV of a key/value head: its query heads' sums."""
    for name in ("dK", "dV"):
        at.put(name, at[f"{name}_heads"].sum(axis=0))

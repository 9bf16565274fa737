"""Softmax pieces that bodies share; rows that keep no key are zero, not NaN."""

from __future__ import annotations

import numpy as np

from executor.body import Array


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

    def join(self, logits: Array) -> None:
        """A logit a row, [rows, 1], that has no value."""
        self.add(logits, np.zeros((1, self.sums.shape[1])), np.ones((1, 1)))

    @property
    def output(self) -> Array:
        return divided(self.sums, self.total)

    @property
    def lse(self) -> Array:
        return log_sum_exp(self.maximum, self.total)

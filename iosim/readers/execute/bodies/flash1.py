"""Bodies of `flash1` (arXiv 2205.14135, Algorithms 1 and 4; with dropout 2): O, l, m (and dQ) live in memory."""

from __future__ import annotations

import numpy as np

from iosim.readers.execute.bodies.common import (
    divided,
    exp_less,
    head_gradient,
    masked_scores,
    save_random_state,
    sum_groups,
)
from iosim.readers.execute.place import Place
from iosim.readers.execute.registry import Body, body
from iosim.readers.execute.rounding import Array


def running_output(at: Place, scores: Array, running: str) -> tuple[Array, Array, Array]:
    """Lines 10 to 12 of Algorithm 1: the new normalised O, l and m of a tile's rows."""
    d_v = at.problem.d_v
    old_max, old_sum = at.resume("m", -np.inf), at.resume("l", 0.0)
    maximum = np.maximum(old_max, scores.max(axis=1, keepdims=True))
    weights = exp_less(scores, maximum)
    kept_sum = exp_less(old_max, maximum) * old_sum
    total = kept_sum + weights.sum(axis=1, keepdims=True)
    sums = kept_sum * at.resume(running, 0.0, d_v) + (weights * at.dropout_factor) @ at["V"]
    return divided(sums, total), total, maximum


@body("flash1", "fill")
def fill(at: Place) -> None:
    """Line 2: O = 0, l = 0, m = -inf."""
    at.put("O_acc" if at.writes("O_acc") else "O", np.zeros((at.q.size, at.problem.d_v)))
    at.put("l", np.zeros((at.q.size, 1)))
    at.put("m", np.full((at.q.size, 1), -np.inf))


@body("flash1", "main")
class Forward(Body):
    """A head: keys outside, queries inside."""

    def __init__(self) -> None:
        self.output: Array | None = None

    def launch(self, at: Place) -> None:
        save_random_state(at)

    def pair(self, at: Place) -> None:
        running = "O_acc" if at.writes("O_acc") else "O"
        self.output, total, maximum = running_output(at, masked_scores(at), running)
        at.put(running, self.output)
        at.put("l", total)
        at.put("m", maximum)

    def finish_query(self, at: Place) -> None:
        if at.writes("O_acc"):
            at.put("O", np.zeros((at.q.size, at.problem.d_v)) if self.output is None else self.output)

    def end(self, at: Place) -> None:
        self.output = None


@body("flash1", "bwd.fill")
def backward_fill(at: Place) -> None:
    """Line 4 of Algorithm 4: dQ = 0."""
    at.put("dQ_acc" if at.writes("dQ_acc") else "dQ", np.zeros((at.q.size, at.problem.head_dim)))


@body("flash1", "bwd.main")
class Backward(Body):
    """Algorithm 4: P again from l and m, D = rowsum(dO o O) at every pair, dQ through memory."""

    def __init__(self) -> None:
        self.dq: Array | None = None

    def begin(self, at: Place) -> None:
        self.dk = np.zeros((at.keys.size, at.problem.head_dim))
        self.dv = np.zeros((at.keys.size, at.problem.d_v))

    def pair(self, at: Place) -> None:
        running = "dQ_acc" if at.writes("dQ_acc") else "dQ"
        factor = at.dropout_factor_again
        weights = divided(exp_less(masked_scores(at), at["m"]), np.broadcast_to(at["l"], (at.q.size, at.keys.size)))
        self.dv += (weights * factor).T @ at["dO"]
        dot = (at["dO"] * at["O"]).sum(axis=1, keepdims=True)
        ds = weights * ((at["dO"] @ at["V"].T) * factor - dot) * at.scale
        self.dq = at.resume(running, 0.0, at.problem.head_dim) + ds @ at["K"]
        at.put(running, self.dq)
        self.dk += ds.T @ at["Q"]

    def finish_query(self, at: Place) -> None:
        if at.writes("dQ_acc"):
            at.put("dQ", np.zeros((at.q.size, at.problem.head_dim)) if self.dq is None else self.dq)

    def end(self, at: Place) -> None:
        at.put(head_gradient(at, "dK"), self.dk)
        at.put(head_gradient(at, "dV"), self.dv)
        self.dq = None


body("flash1", "bwd.sum_groups")(sum_groups)

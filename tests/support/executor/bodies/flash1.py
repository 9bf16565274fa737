"""`flash1` and `minimal`."""

from __future__ import annotations

import numpy as np

from executor.bodies.softmax import divided, exp_less
from executor.bodies.terms import (
    KeyGradients,
    PairGradients,
    add_group_gradients,
    masked_scores,
    save_random_state,
)
from executor.body import Array, Body, Place, body


def running_output(at: Place, scores: Array, running: str) -> tuple[Array, Array, Array]:
    """Lines 10 to 12 of Algorithm 1: the new normalised O, l and m of a tile's rows."""
    d_v = at.problem.head_dim_v
    old_max = at.resume("m", -np.inf)
    old_sum = at.resume("l", 0.0)
    maximum = np.maximum(old_max, scores.max(axis=1, keepdims=True))
    weights = exp_less(scores, maximum)
    kept_sum = exp_less(old_max, maximum) * old_sum
    total = kept_sum + weights.sum(axis=1, keepdims=True)
    sums = kept_sum * at.resume(running, 0.0, d_v) + (weights * at.dropout_factor) @ at["V"]
    return divided(sums, total), total, maximum


@body("flash1", "fill")
def fill(at: Place) -> None:
    at.put("O_acc" if at.writes("O_acc") else "O", np.zeros((at.q.size, at.problem.head_dim_v)))
    at.put("l", np.zeros((at.q.size, 1)))
    at.put("m", np.full((at.q.size, 1), -np.inf))


@body("flash1", "main")
class Forward(Body):
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
            at.put(
                "O",
                np.zeros((at.q.size, at.problem.head_dim_v))
                if self.output is None
                else self.output,
            )

    def end(self, at: Place) -> None:
        self.output = None


@body("flash1", "bwd.fill")
def backward_fill(at: Place) -> None:
    at.put("dQ_acc" if at.writes("dQ_acc") else "dQ", np.zeros((at.q.size, at.problem.head_dim)))


@body("flash1", "bwd.main")
class Backward(KeyGradients):
    """Algorithm 4: P again from l and m, D = rowsum(dO o O) at every pair, dQ through memory."""

    def __init__(self) -> None:
        self.dq: Array | None = None

    def pair(self, at: Place) -> None:
        running = "dQ_acc" if at.writes("dQ_acc") else "dQ"
        weights = divided(
            exp_less(masked_scores(at), at["m"]),
            np.broadcast_to(at["l"], (at.q.size, at.keys.size)),
        )
        more = PairGradients(at, weights, (at["dO"] * at["O"]).sum(axis=1, keepdims=True), at["dO"])
        self.dq = at.resume(running, 0.0, at.problem.head_dim) + more.dq
        at.put(running, self.dq)
        self.add(more)

    def finish_query(self, at: Place) -> None:
        if at.writes("dQ_acc"):
            at.put("dQ", np.zeros((at.q.size, at.problem.head_dim)) if self.dq is None else self.dq)

    def end(self, at: Place) -> None:
        super().end(at)
        self.dq = None


body("flash1", "bwd.sum_groups")(add_group_gradients)


body("minimal", "fill")(fill)


@body("minimal", "main")
class Minimal(Body):
    def pair(self, at: Place) -> None:
        output, total, maximum = running_output(at, masked_scores(at), "O")
        at.put("O", output)
        at.put("l", total)
        at.put("m", maximum)

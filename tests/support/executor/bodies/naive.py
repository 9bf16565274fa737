"""`naive`. A step that is no launch of its own is folded into a neighbour: the scale into the products, the mask into
the softmax, dropout (recomputed) into the products with V and dO.

NB: scores stored in fp8 have no -inf: a mask pass in fp8 is right only for rows that keep a key.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from executor.bodies.softmax import divided, exp_less
from executor.bodies.terms import (
    add_bias_gradients,
    add_group_gradients,
    write_alibi,
)
from executor.body import Array, Body, Place, body
from iosim.catalog.algorithms.naive import NaiveOptions, Pass, passes
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.launch import Mode, Outer

BESIDE = ("bias", "mask", "mask_added", "padding", "dropout_mask", "P")
"""What a pass reads beside the tensor that it goes over; P as well, where it is not that."""


def _operands(at: Place) -> list[str]:
    return [a.tensor for a in at.launch.accesses if a.mode is Mode.LOAD]


def source(at: Place) -> Array:
    """What a pass goes over."""
    read = _operands(at)
    return at[next((n for n in read if n not in BESIDE), "P")]


def put(at: Place, value: Array) -> None:
    (target,) = (a.tensor for a in at.launch.accesses if a.mode is Mode.STORE)
    at.put(target, value)


def step(
    compute: Callable[[Place], Array], *launches: str, algorithms: tuple[str, ...] = ("naive",)
) -> None:
    """Register what launches with one result compute at a tile."""
    for name in algorithms:
        body(name, *launches)(lambda at: put(at, compute(at)))


def _runs(at: Place, name: Pass) -> bool:
    return name in passes(at.problem, at.kernel)


def _scale_share(at: Place) -> float:
    """Factor of each of the passes that scale: they share the scale where there are two."""
    return float(at.scale ** (1 / max(1, _runs(at, Pass.SCALE) + _runs(at, Pass.SCALE_Q))))


def _scores(at: Place) -> Array:
    left, right = _operands(at)
    folded = 1.0 if _runs(at, Pass.SCALE) or _runs(at, Pass.SCALE_Q) else at.scale
    return at[left] @ at[right].T * folded


def masked(at: Place, scores: Array) -> Array:
    """Scores with the mask's tensor: added, or -inf where its bytes are 0."""
    return (
        scores + at["mask"]
        if at.problem.mask_storage == "additive"
        else np.where(at["mask"] > 0, scores, -np.inf)
    )


def _softmax(at: Place) -> Array:
    scores = source(at) if _runs(at, Pass.MASK) else np.where(at.kept, source(at), -np.inf)
    weights = exp_less(scores, scores.max(axis=1, keepdims=True))
    return divided(weights, np.broadcast_to(weights.sum(axis=1, keepdims=True), weights.shape))


@body("naive", "dropout")
@body("math", "dropout")
def dropout(at: Place) -> None:
    at.put("P_dropped", at["P"] * at.dropout_factor)
    at.put("dropout_mask", at.survivors)


def _kept(at: Place, name: str) -> str:
    """The tensor called so, or its fp32 copy where the launch reads that."""
    return next((n for n in _operands(at) if n == f"{name}_fp32"), name)


def _weight_gradient(at: Place) -> Array:
    if "dP_fp32" in _operands(at):
        return at["dP_fp32"] * (1 if _runs(at, Pass.DROPOUT) else at.dropout_factor)
    return at["dP_dropped"] if _runs(at, Pass.DROPOUT) else at["dP"] * at.dropout_factor


def _softmax_gradient(at: Place) -> Array:
    whole = options_of(at.kernel, NaiveOptions).softmax_backward_product
    weights = at[_kept(at, "P")]
    product = at["PdP"] if whole else weights * _weight_gradient(at)
    return np.asarray(product - weights * product.sum(axis=1, keepdims=True))


def _scale_left(at: Place) -> float:
    """The part of the scale that no pass over the scores has applied."""
    return at.scale / _scale_share(at) if _runs(at, Pass.SCALE) else at.scale


class Summed(Body):
    """A product with a matrix over one axis of an N x N tensor, scaled by a part of `factor`'s; P without its dropout
    is dropped here."""

    def begin(self, at: Place) -> None:
        self.sums: Array = np.zeros(())

    def pair(self, at: Place) -> None:
        left, right = _operands(at)
        weights = at[left] * at.dropout_factor if left == "P" else at[left]
        self.sums = self.sums + (weights.T if at.launch.outer is Outer.KEY else weights) @ at[right]

    def factor(self, at: Place) -> float:
        """What the sums are multiplied by: the scale, for dQ and dK."""
        scales = at.launch.name == "bwd.dk" or (at.launch.name == "bwd.dq" and at.writes("dQ"))
        return _scale_left(at) if scales else 1.0

    def end(self, at: Place) -> None:
        put(at, self.sums * self.factor(at))


body("naive", "values", "bwd.dv", "bwd.dq", "bwd.dk")(Summed)
body("math", "values")(Summed)
step(lambda at: source(at) * _scale_share(at), "scale_q", "scale", "bwd.scale")
step(_scores, "scores")
step(lambda at: source(at) + at["bias"], "bias", algorithms=("naive", "math"))
step(
    lambda at: np.where(at["padding"].T > 0, source(at), -np.inf),
    "padding",
    algorithms=("naive", "math"),
)
step(lambda at: masked(at, source(at)), "mask")
step(_softmax, "softmax")
step(lambda at: at["dO"] @ at["V"].T, "bwd.dp")
step(lambda at: source(at) * at["dropout_mask"] / (1 - at.problem.dropout), "bwd.dropout")
step(lambda at: at[_kept(at, "P")] * _weight_gradient(at), "bwd.product")
step(source, "cast_S", "cast_P", "mask_copy", "bwd.cast_S", "bwd.cast_P", "bwd.mask_copy")
step(_softmax_gradient, "bwd.softmax")
step(lambda at: source(at) * at["mask"], "bwd.mask")
step(lambda at: source(at) * at["padding"].T, "bwd.padding")
step(lambda at: source(at) * _scale_left(at), "bwd.scale_q")
body("naive", "bwd.sum_groups")(add_group_gradients)
body("naive", "bwd.sum_bias")(add_bias_gradients)
body("naive", "alibi")(write_alibi)

"""Bodies of `naive` (arXiv 2205.14135, Algorithms 0 and 3): every N x N step a launch.

A step that is no launch of its own is folded into a neighbour: the scale into the products, the mask into the softmax,
dropout (recomputed) into the products with V and dO.

NB: scores stored in fp8 have no -inf: a mask pass in fp8 is right only for rows that keep a key.
"""

from __future__ import annotations

import numpy as np

from iosim.kernel.algorithms.body import Array, Body, Place, body
from iosim.kernel.algorithms.common import add_group_gradients, head_gradient
from iosim.kernel.algorithms.naive.plan import NaiveOptions, Pass, passes
from iosim.kernel.algorithms.registry import options_of
from iosim.kernel.algorithms.softmax import divided, exp_less
from iosim.kernel.algorithms.terms import add_bias_gradients, write_alibi


def _runs(at: Place, name: Pass) -> bool:
    return name in passes(at.problem, at.kernel)


def _scale_share(at: Place) -> float:
    """Factor of each of the passes that scale: they share the scale where there are two."""
    return float(at.scale ** (1 / max(1, _runs(at, Pass.SCALE) + _runs(at, Pass.SCALE_Q))))


@body("naive", "scale_q")
def scale_q(at: Place) -> None:
    at.put("Q_scaled", at["Q"] * _scale_share(at))


@body("naive", "scores")
def scores(at: Place) -> None:
    query = at["Q_scaled" if _runs(at, Pass.SCALE_Q) else "Q"]
    folded = 1.0 if _runs(at, Pass.SCALE) or _runs(at, Pass.SCALE_Q) else at.scale
    at.put("S", query @ at["K"].T * folded)


@body("naive", "scale")
def scale(at: Place) -> None:
    at.put("S_scaled", at["S"] * _scale_share(at))


def _biased(at: Place) -> str:
    """The scores once scale and bias are in."""
    return "S_biased" if at.problem.bias != "none" else "S_scaled" if _runs(at, Pass.SCALE) else "S"


def _unmasked(at: Place) -> str:
    """The scores before the mask's pass."""
    return "S_padded" if at.problem.key_padding else _biased(at)


@body("naive", "bias")
def bias(at: Place) -> None:
    at.put("S_biased", at["S_scaled" if _runs(at, Pass.SCALE) else "S"] + at["bias"])


@body("naive", "padding")
def padding(at: Place) -> None:
    at.put("S_padded", np.where(at["padding"].T > 0, at[_biased(at)], -np.inf))


def masked(at: Place, scores: Array, name: str = "mask") -> Array:
    """Scores with a mask tensor: added, or -inf where its bytes are 0."""
    return scores + at[name] if at.problem.mask_storage == "additive" else np.where(at[name] > 0, scores, -np.inf)


@body("naive", "mask")
def mask(at: Place) -> None:
    at.put("S_masked", masked(at, at[_unmasked(at)]))


@body("naive", "softmax")
def softmax(at: Place) -> None:
    scores = at["S_masked"] if _runs(at, Pass.MASK) else np.where(at.kept, at[_unmasked(at)], -np.inf)
    weights = exp_less(scores, scores.max(axis=1, keepdims=True))
    at.put("P", divided(weights, np.broadcast_to(weights.sum(axis=1, keepdims=True), weights.shape)))


@body("naive", "dropout")
def dropout(at: Place) -> None:
    at.put("P_dropped", at["P"] * at.dropout_factor)
    at.put("dropout_mask", at.survivors)


def _output_weights(at: Place) -> Array:
    """The weights that multiply V."""
    return at["P_dropped"] if _runs(at, Pass.DROPOUT) else at["P"] * at.dropout_factor


@body("naive", "values")
class Values(Body):
    """O, a query block at a time."""

    def begin(self, at: Place) -> None:
        self.sums = np.zeros((at.q.size, at.problem.head_dim_v))

    def pair(self, at: Place) -> None:
        self.sums += _output_weights(at) @ at["V"]

    def end(self, at: Place) -> None:
        at.put("O", self.sums)


@body("naive", "bwd.dv")
class ValueGradient(Body):
    """dV = P^T dO, a key block at a time."""

    def begin(self, at: Place) -> None:
        self.sums = np.zeros((at.keys.size, at.problem.head_dim_v))

    def pair(self, at: Place) -> None:
        self.sums += _output_weights(at).T @ at["dO"]

    def end(self, at: Place) -> None:
        at.put(head_gradient(at, "dV"), self.sums)


@body("naive", "bwd.dp")
def weight_gradient(at: Place) -> None:
    at.put("dP", at["dO"] @ at["V"].T)


@body("naive", "bwd.dropout")
def dropout_gradient(at: Place) -> None:
    at.put("dP_dropped", at["dP"] * at["dropout_mask"] / (1 - at.problem.dropout))


def _dp(at: Place) -> Array:
    """The gradient of the weights before dropout."""
    return at["dP_dropped"] if _runs(at, Pass.DROPOUT) else at["dP"] * at.dropout_factor


@body("naive", "bwd.product")
def product_gradient(at: Place) -> None:
    at.put("PdP", at["P"] * _dp(at))


@body("naive", "bwd.softmax")
def softmax_gradient(at: Place) -> None:
    product = at["PdP"] if options_of(at.kernel, NaiveOptions).softmax_backward_product else at["P"] * _dp(at)
    at.put("dS", product - at["P"] * product.sum(axis=1, keepdims=True))


@body("naive", "bwd.mask")
def mask_gradient(at: Place) -> None:
    at.put("dS_masked", at["dS"] * at["mask"])


def _masked_gradient(at: Place) -> str:
    masks = _runs(at, Pass.MASK) and at.problem.mask_storage != "additive"
    return "dS_masked" if masks else "dS"


@body("naive", "bwd.padding")
def padding_gradient(at: Place) -> None:
    at.put("dS_padded", at[_masked_gradient(at)] * at["padding"].T)


@body("naive", "bwd.scale")
def scale_gradient(at: Place) -> None:
    at.put("dS_scaled", at["dS_padded" if at.problem.key_padding else _masked_gradient(at)] * _scale_share(at))


def _score_gradient(at: Place) -> Array:
    """The gradient of the scores, after the passes over it."""
    if _runs(at, Pass.SCALE):
        return at["dS_scaled"]
    return at["dS_padded" if at.problem.key_padding else _masked_gradient(at)]


def _scale_left(at: Place) -> float:
    """The part of the scale that no pass over the scores has applied."""
    return at.scale / _scale_share(at) if _runs(at, Pass.SCALE) else at.scale


@body("naive", "bwd.dq")
class QueryGradient(Body):
    """dQ = dS K, a query block at a time; scaled here unless a pass does it."""

    def begin(self, at: Place) -> None:
        self.sums = np.zeros((at.q.size, at.problem.head_dim))

    def pair(self, at: Place) -> None:
        self.sums += _score_gradient(at) @ at["K"]

    def end(self, at: Place) -> None:
        if _runs(at, Pass.SCALE_Q):
            at.put("dQ_scaled", self.sums)
        else:
            at.put("dQ", self.sums * _scale_left(at))


@body("naive", "bwd.scale_q")
def scale_query_gradient(at: Place) -> None:
    at.put("dQ", at["dQ_scaled"] * _scale_left(at))


@body("naive", "bwd.dk")
class KeyGradient(Body):
    """dK = dS^T Q, a key block at a time, scaled."""

    def begin(self, at: Place) -> None:
        self.sums = np.zeros((at.keys.size, at.problem.head_dim))

    def pair(self, at: Place) -> None:
        self.sums += _score_gradient(at).T @ at["Q"]

    def end(self, at: Place) -> None:
        at.put(head_gradient(at, "dK"), self.sums * _scale_left(at))


body("naive", "bwd.sum_groups")(add_group_gradients)
body("naive", "bwd.sum_bias")(add_bias_gradients)
body("naive", "alibi")(write_alibi)

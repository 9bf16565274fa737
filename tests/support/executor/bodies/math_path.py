"""`math`, where it is not as `naive`."""

from __future__ import annotations

import numpy as np

from executor.bodies.naive import masked, source, step
from executor.bodies.terms import (
    make_mask_additive,
)
from executor.body import Array, Body, Place, body


def _mask_added(at: Place) -> Array:
    return (
        source(at) + at["mask_added"]
        if at.problem.mask_storage == "bool"
        else masked(at, source(at))
    )


def _softmax(at: Place) -> Array:
    scores = source(at)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@body("math", "zero")
class Zero(Body):
    """The scalar that fills fully masked rows."""

    def launch(self, at: Place) -> None:
        at.put("zero", np.zeros((1, 1)))


for compute, launches in (
    (source, ("cast_Q", "cast_K", "cast_V", "cast_O", "cast_P")),
    (lambda at: source(at) * np.sqrt(at.scale), ("scale_Q", "scale_K")),
    (lambda at: at["Q_scaled"] @ at["K_scaled"].T, ("scores",)),
    (_mask_added, ("mask",)),
    (_softmax, ("softmax",)),
    (lambda at: np.isneginf(source(at)).astype(np.float64), ("is_masked",)),
    (lambda at: np.asarray(source(at).min(axis=1, keepdims=True)), ("all_masked",)),
    (
        lambda at: np.where(at["masked_rows"] > 0, at["zero"], np.nan_to_num(at["P"], nan=0.0)),
        ("select",),
    ),
):
    step(compute, *launches, algorithms=("math",))
body("math", "convert_mask")(make_mask_additive)

"""Bodies of `math`: PyTorch's fall-back path, in fp32 between its casts."""

from __future__ import annotations

import numpy as np

from iosim.readers.execute.bodies.common import convert_mask
from iosim.readers.execute.bodies.naive import dropout, masked
from iosim.readers.execute.place import Place
from iosim.readers.execute.registry import Body, body


def _current(at: Place, name: str) -> str:
    """The tensor that holds Q, K or V once casts are done."""
    return f"{name}_fp32" if at.problem.input_type.bytes < 4 else name


def _biased(at: Place) -> str:
    return "S_biased" if at.problem.bias == "full" else "S"


def _unmasked(at: Place) -> str:
    return "S_padded" if at.problem.key_padding else _biased(at)


def _masked(at: Place) -> str:
    return _unmasked(at) if at.problem.mask == "none" else "S_masked"


def _weights(at: Place) -> str:
    return "P_dropped" if at.problem.dropout else "P"


@body("math", "cast_Q", "cast_K", "cast_V")
def cast(at: Place) -> None:
    name = at.launch.name[-1]
    at.put(f"{name}_fp32", at[name])


@body("math", "scale_Q", "scale_K")
def scale(at: Place) -> None:
    name = at.launch.name[-1]
    at.put(f"{name}_scaled", at[_current(at, name)] * np.sqrt(at.scale))


@body("math", "scores")
def scores(at: Place) -> None:
    at.put("S", at["Q_scaled"] @ at["K_scaled"].T)


@body("math", "bias")
def bias(at: Place) -> None:
    at.put("S_biased", at["S"] + at["bias"])


@body("math", "padding")
def padding(at: Place) -> None:
    at.put("S_padded", np.where(at["padding"].T > 0, at[_biased(at)], -np.inf))


@body("math", "mask")
def mask(at: Place) -> None:
    scores = at[_unmasked(at)]
    at.put("S_masked", scores + at["mask_added"] if at.problem.mask_storage == "bool" else masked(at, scores))


@body("math", "softmax")
def softmax(at: Place) -> None:
    given = at[_masked(at)]
    with np.errstate(invalid="ignore"):
        weights = np.exp(given - given.max(axis=1, keepdims=True))
    at.put("P", weights / weights.sum(axis=1, keepdims=True))


@body("math", "is_masked")
def is_masked(at: Place) -> None:
    at.put("is_masked", np.isneginf(at[_masked(at)]).astype(np.float64))


@body("math", "all_masked")
def all_masked(at: Place) -> None:
    at.put("masked_rows", np.asarray(at["is_masked"].min(axis=1, keepdims=True)))


@body("math", "zero")
class Zero(Body):
    """The scalar that fills fully masked rows."""

    def launch(self, at: Place) -> None:
        at.put("zero", np.zeros((1, 1)))


@body("math", "select")
def select(at: Place) -> None:
    at.put("P", np.where(at["masked_rows"] > 0, at["zero"], np.nan_to_num(at["P"], nan=0.0)))


body("math", "dropout")(dropout)
body("math", "convert_mask")(convert_mask)


@body("math", "values")
class Values(Body):
    """O in fp32, a query block at a time."""

    def begin(self, at: Place) -> None:
        self.sums = np.zeros((at.q.size, at.problem.d_v))

    def pair(self, at: Place) -> None:
        self.sums += at[_weights(at)] @ at[_current(at, "V")]

    def end(self, at: Place) -> None:
        at.put("O_fp32" if at.problem.input_type.bytes < 4 else "O", self.sums)


@body("math", "cast_O")
def cast_output(at: Place) -> None:
    at.put("O", at["O_fp32"])


@body("math", "cast_P")
def cast_weights(at: Place) -> None:
    at.put("P_out", at[_weights(at)])

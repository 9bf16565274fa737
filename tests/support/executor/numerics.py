"""What an execution does to numbers: rounding to a storage format, and dropout by counter.

Whether a weight is kept is a hash of (seed, batch, head, query, key), so that a kernel which computes the scores again
finds the mask that the forward used, as FlashAttention does with its Philox counter; a stored mask is the same mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from executor.body import Array
from iosim.problem.dtypes import dtype

_SMALLEST_NORMAL_EXPONENT = {"bf16": -126, "tf32": -126, "fp8": -6}
"""IEEE 754 binary32's for bf16 and tf32; OCP 8-bit floating point specification, E4M3, for fp8."""
_SIGNIFICAND_BITS = {"bf16": 8, "tf32": 11, "fp8": 4}
"""With the hidden bit."""
_MAX_FINITE = {"bf16": 3.3895313892515355e38, "tf32": 3.4028234663852886e38, "fp8": 448.0}
_STEP = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def round_to(values: npt.ArrayLike, name: str) -> Array:
    """`values` rounded to the format `name`, as float64.

    Beyond the largest finite value the result is infinite, but in fp8 (E4M3, which has no infinity) it saturates at
    448, as CUDA's saturating conversion does. NaN stays NaN.
    """
    exact = np.asarray(values, dtype=np.float64)
    kind = dtype(name)
    if kind.name == "fp64":
        return exact.copy()
    if kind.name in ("fp32", "fp16"):
        narrow: type[np.floating[Any]] = np.float32 if kind.name == "fp32" else np.float16
        with np.errstate(over="ignore", under="ignore"):
            return exact.astype(narrow).astype(np.float64)
    smallest = _SMALLEST_NORMAL_EXPONENT[kind.name] + 1
    exponent = np.maximum(np.frexp(exact)[1], smallest)
    unit = np.ldexp(1.0, exponent - _SIGNIFICAND_BITS[kind.name])
    rounded = np.rint(exact / unit) * unit
    limit = _MAX_FINITE[kind.name]
    beyond = np.copysign(limit if kind.name == "fp8" else np.inf, rounded)
    return np.asarray(np.where(np.abs(rounded) > limit, beyond, rounded), dtype=np.float64)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014, figure 15)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def kept_weights(
    seed: int,
    batch: int,
    heads: npt.ArrayLike,
    queries: npt.ArrayLike,
    keys: npt.ArrayLike,
    dropout: float,
) -> npt.NDArray[np.bool_]:
    """Which weights survive. `heads`, `queries` and `keys` broadcast against each other; so does the result."""
    state = np.array([seed * _STEP & _MASK64], dtype=np.uint64)
    for counter in (np.asarray([batch]), np.asarray(heads), np.asarray(queries), np.asarray(keys)):
        state = _mix(state + (counter.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP))
    uniform = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.asarray(uniform >= dropout, dtype=np.bool_)

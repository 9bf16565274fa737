"""Rounding of float64 arrays to a storage format, to nearest with ties to even. NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iosim.problem.dtypes import dtype

Array = npt.NDArray[np.float64]

_SMALLEST_NORMAL_EXPONENT = {"bf16": -126, "tf32": -126, "fp8": -6}
"""IEEE 754 binary32's for bf16 and tf32; OCP 8-bit floating point specification, E4M3, for fp8."""


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
    unit = np.ldexp(1.0, exponent - kind.significand_bits)
    rounded = np.rint(exact / unit) * unit
    limit = kind.max_finite
    beyond = np.copysign(limit if kind.name == "fp8" else np.inf, rounded)
    return np.asarray(np.where(np.abs(rounded) > limit, beyond, rounded), dtype=np.float64)

"""NumPy where a pointer has 32 bits, as in a browser: what it asks to be as wide as one is made so here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def repeated(
    values: npt.NDArray[Any], times: int | npt.NDArray[np.integer[Any]], axis: int | None = None
) -> npt.NDArray[Any]:
    """Each of the values, or of what lies along `axis`, as often as its own number in `times` says. NumPy takes no 64-bit
    numbers of times where a pointer is narrower."""
    return np.repeat(values, np.asarray(times).astype(np.intp, copy=False), axis=axis)


def tallied(
    numbers: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None, minlength: int = 0
) -> npt.NDArray[Any]:
    """How often each number from 0 on is among these, or the sum of its weights; as `repeated` of 64-bit numbers."""
    return np.bincount(numbers.astype(np.intp, copy=False), weights, minlength)

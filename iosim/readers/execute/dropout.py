"""Dropout by counter: whether a weight is kept is a hash of (seed, batch, head, query, key).

So a kernel that recomputes the scores finds the mask that the forward used, as FlashAttention does with its Philox
counter, and a stored mask is the same mask.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_STEP = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014, figure 15)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def kept_weights(
    seed: int, batch: int, heads: npt.ArrayLike, queries: npt.ArrayLike, keys: npt.ArrayLike, dropout: float
) -> npt.NDArray[np.bool_]:
    """Which weights survive. `heads`, `queries` and `keys` broadcast against each other; so does the result."""
    state = np.array([seed * _STEP & _MASK64], dtype=np.uint64)
    for counter in (np.asarray([batch]), np.asarray(heads), np.asarray(queries), np.asarray(keys)):
        state = _mix(state + (counter.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP))
    uniform = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.asarray(uniform >= dropout, dtype=np.bool_)

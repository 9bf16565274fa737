"""Sums of floors along a line, in O(log m) instead of O(n): what ragged blocks under a causal diagonal add up to.

    floor_sum(n, m, a, b)              = sum over 0 <= i < n of  floor((a i + b) / m)
    clipped_floor_sum(n, m, a, b, hi)  = sum over 0 <= i < n of  min(hi, max(0, floor((a i + b) / m)))

Each takes Python ints (exact, any size) or broadcastable NumPy int64 arrays (exact while the sums stay below 2^63).
The reduction is Euclid's algorithm on (m, a): Graham, Knuth, Patashnik, "Concrete Mathematics", section 3.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from iosim.problem.masks.mask import IntArray


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Sum of floor((a i + b) / m) over 0 <= i < n, for any integers a and b. Raises ValueError: n is negative, or m is
    not positive."""
    if n < 0 or m < 1:
        raise ValueError(f"floor_sum needs n >= 0 and m >= 1, not n = {n}, m = {m}")
    total = 0
    while n:
        slope, a = divmod(a, m)
        constant, b = divmod(b, m)
        total += slope * (n * (n - 1) // 2) + constant * n
        # The points left under the line lie in floor((a n + b) / m) rows: count those rows from their far end.
        n, b = divmod(a * n + b, m)
        m, a = a, m
    return total


def clipped_floor_sum(n: int, m: int, a: int, b: int, hi: int) -> int:
    """Sum of min(hi, max(0, floor((a i + b) / m))) over 0 <= i < n, for a line that rises. Raises ValueError: n or hi
    is negative, or a or m is not positive."""
    if n < 0 or m < 1 or a < 1 or hi < 0:
        raise ValueError(
            f"clipped_floor_sum needs n, hi >= 0 and a, m >= 1, not n = {n}, m = {m}, a = {a}, hi = {hi}"
        )
    # The line rises: below `start` it is at most 0, from `stop` on at least `hi`.
    start = min(n, max(0, -(b // a)))
    stop = min(n, max(start, -((b - hi * m) // a)))
    return floor_sum(stop - start, m, a, b + a * start) + hi * (n - stop)


def floor_sum_array(n: Any, m: Any, a: Any, b: Any) -> IntArray:
    """`floor_sum` elementwise over broadcast int64 arrays or ints. Arguments are not checked."""
    shape = np.broadcast_shapes(np.shape(n), np.shape(m), np.shape(a), np.shape(b))
    total = np.zeros(shape, dtype=np.int64)
    flat = total.reshape(-1)
    n, m, a, b = (
        np.broadcast_to(np.asarray(x, dtype=np.int64), shape).reshape(-1) for x in (n, m, a, b)
    )
    at: IntArray | None = None
    while n.size:
        slope = a // m
        constant = b // m
        a = a - slope * m
        b = b - constant * m
        part = slope * (n * (n - 1) >> 1) + constant * n
        if at is None:
            flat += part
        else:
            flat[at] += part
        top = a * n + b
        # Elements whose reduction is over drop out; `at` says where the others stand in the result.
        going = np.flatnonzero(top >= m)
        if not going.size:
            break
        at = going if at is None else at[going]
        top, old = top[going], m[going]
        n, m, a = top // old, a[going], old
        b = top - n * old
    return total


def clipped_floor_sum_array(n: Any, m: Any, a: Any, b: Any, hi: Any) -> IntArray:
    """`clipped_floor_sum` elementwise over broadcast int64 arrays or ints. Arguments are not checked."""
    n, m, a, b, hi = (np.asarray(x, dtype=np.int64) for x in (n, m, a, b, hi))
    start = np.minimum(n, np.maximum(0, -(b // a)))
    stop = np.minimum(n, np.maximum(start, -((b - hi * m) // a)))
    return np.asarray(
        floor_sum_array(stop - start, m, a, b + a * start) + hi * (n - stop), dtype=np.int64
    )

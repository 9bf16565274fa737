"""Floor sums against the sums themselves, in Python ints, NumPy arrays and SymPy."""

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from iosim.readers.formula.floor_sums import (
    clipped_floor_sum,
    clipped_floor_sum_array,
    floor_sum,
    floor_sum_array,
)
from iosim.readers.formula.symbolic import ClippedFloorSum

whole = st.integers(-400, 400)
count = st.integers(0, 60)
step = st.integers(1, 90)


def brute(n, m, a, b):
    return sum((a * i + b) // m for i in range(n))


def brute_clipped(n, m, a, b, hi):
    return sum(min(hi, max(0, (a * i + b) // m)) for i in range(n))


def test_by_hand():
    # floor(0/3) + floor(2/3) + floor(4/3) + floor(6/3) = 0 + 0 + 1 + 2
    assert floor_sum(4, 3, 2, 0) == 3
    # floor((2i - 3)/3) = -1, -1, 0, 1, 1 -> cut to [0, 1]: 0, 0, 0, 1, 1
    assert clipped_floor_sum(5, 3, 2, -3, 1) == 2


@settings(deadline=None)
@given(count, step, whole, whole)
def test_floor_sum(n, m, a, b):
    assert floor_sum(n, m, a, b) == brute(n, m, a, b)


@settings(deadline=None)
@given(count, step, step, whole, count)
def test_clipped(n, m, a, b, hi):
    expected = brute_clipped(n, m, a, b, hi)
    assert clipped_floor_sum(n, m, a, b, hi) == expected
    assert ClippedFloorSum(n, m, a, b, hi) == expected


def test_arrays():
    rng = np.random.default_rng(1)
    n = rng.integers(0, 60, 3000)
    hi = rng.integers(0, 60, 3000)
    m = rng.integers(1, 90, 3000)
    a = rng.integers(1, 90, 3000)
    b = rng.integers(-400, 400, 3000)
    plain = floor_sum_array(n, m, a, b)
    clipped = clipped_floor_sum_array(n, m, a, b, hi)
    assert plain.dtype == clipped.dtype == np.int64
    rows = np.stack((n, m, a, b, hi), axis=1).tolist()
    assert plain.tolist() == [brute(*row[:4]) for row in rows]
    assert clipped.tolist() == [brute_clipped(*row) for row in rows]


def test_arrays_broadcast():
    m = np.arange(1, 6)[:, None]
    a = np.arange(1, 8)[None, :]
    sums = clipped_floor_sum_array(9, m, a, 2, 5)
    assert sums.shape == (5, 7)
    assert sums[3, 4] == brute_clipped(9, 4, 5, 2, 5)
    assert floor_sum_array(np.zeros(0, dtype=np.int64), 3, 2, 1).shape == (0,)


def test_large():
    # (10^9 i) / 7 over 10^9 terms: an O(n) sum would not end. Exact by the reciprocity of the two orders of summation:
    # the sum over i of floor(a i / m) for coprime a, m and n = m terms is (a - 1)(m - 1) / 2.
    a, m = 10**9 + 7, 10**9 + 9
    assert floor_sum(m, m, a, 0) == (a - 1) * (m - 1) // 2
    assert floor_sum_array(m, m, a, 0) == (a - 1) * (m - 1) // 2


@pytest.mark.parametrize("bad", [(-1, 3, 2, 0), (4, 0, 2, 0)])
def test_floor_sum_refuses(bad):
    with pytest.raises(ValueError, match="floor_sum needs"):
        floor_sum(*bad)


@pytest.mark.parametrize(
    "bad", [(-1, 3, 2, 0, 1), (4, 0, 2, 0, 1), (4, 3, 0, 0, 1), (4, 3, 2, 0, -1)]
)
def test_clipped_refuses(bad):
    with pytest.raises(ValueError, match="clipped_floor_sum needs"):
        clipped_floor_sum(*bad)


def test_latex_is_a_sum():
    n, m, a, b, hi = sp.symbols("n m a b h", integer=True)
    assert sp.latex(ClippedFloorSum(n, m, a, b, hi)).startswith(r"\sum_{i=0}^{n - 1}")
    assert r"\min\left(h" in sp.latex(ClippedFloorSum(n, m, a, b, hi))


def test_a_clipped_sum_in_latex() -> None:
    n, m, a, b, hi = sp.symbols("n m a b h", positive=True, integer=True)
    assert sp.latex(ClippedFloorSum(n, m, a, b, hi)) == (
        r"\sum_{i=0}^{n - 1} \min\left(h, \max\left(0, "
        r"\left\lfloor{\frac{a i + b}{m}}\right\rfloor\right)\right)"
    )

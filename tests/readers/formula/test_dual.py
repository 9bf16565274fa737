"""Whole numbers with arrays beside them compute what each of the array's numbers would alone, where branches agree."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from iosim.readers.formula import dual
from iosim.readers.formula.dual import (
    ArrayKind,
    Dual,
    Real,
    ceil_div,
    clip,
    lifted,
    maximum,
    minimum,
)

VALUES = (7, 1, 2, 3, 7, 8, 15, 16, 17, 64)
"""The representative, and so many problems: itself among them."""
OTHERS = (3, 2, 5, 1, 3, 9, 4, 16, 2, 7)


def dual_of(values: tuple[int, ...], kind: ArrayKind) -> Dual:
    return Dual(values[0], np.array(values), kind)


def assert_alike(result: Any, operation: Any, *numbers: Any) -> None:
    """The result's value and companions are those of plain numbers, one problem at a time."""
    columns = [n if isinstance(n, tuple) else (n,) * len(VALUES) for n in numbers]
    right = [operation(*row) for row in zip(*columns, strict=True)]
    exact = float if isinstance(result, Real) else int
    assert exact.__eq__(exact(dual._value(result)), exact(right[0])) is True
    assert np.broadcast_to(lifted(result), len(right)).tolist() == pytest.approx(right)


ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "truediv")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_of_duals_and_ints(name: str) -> None:
    operation = getattr(operator, name)
    a, b = (dual_of(v, ArrayKind()) for v in (VALUES, OTHERS))
    assert_alike(operation(a, b), operation, VALUES, OTHERS)
    assert_alike(operation(a, 3), operation, VALUES, 3)
    assert_alike(operation(30, a), operation, 30, VALUES)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
def test_arithmetic_with_floats_makes_reals(name: str) -> None:
    operation = getattr(operator, name)
    a = dual_of(VALUES, ArrayKind())
    for result, numbers in (
        (operation(a, 2.5), (VALUES, 2.5)),
        (operation(a / 4, dual_of(OTHERS, a.kind)), (tuple(v / 4 for v in VALUES), OTHERS)),  # type: ignore[arg-type]
        (operation(2.5, a / 4), (2.5, tuple(v / 4 for v in VALUES))),
    ):
        assert isinstance(result, Real)
        assert_alike(result, operation, *numbers)
    assert_alike(-(a / 4), lambda v: -v / 4, VALUES)


def test_functions_without_a_branch() -> None:
    kind = ArrayKind()
    a, b = dual_of(VALUES, kind), dual_of(OTHERS, kind)
    assert_alike(ceil_div(a, b), lambda x, y: -(-x // y), VALUES, OTHERS)
    assert_alike(ceil_div(a, 4), lambda x: -(-x // 4), VALUES)
    assert_alike(minimum(a, b), min, VALUES, OTHERS)
    assert_alike(maximum(a, b), max, VALUES, OTHERS)
    assert_alike(clip(a, 3, 16), lambda x: min(max(x, 3), 16), VALUES)
    assert_alike(-a, operator.neg, VALUES)
    assert_alike(
        dual.clipped_floor_sum(a, 3, b, 2, 9),
        lambda n, step: sum(min(max((step * i + 2) // 3, 0), 9) for i in range(n)),
        VALUES,
        OTHERS,
    )
    assert kind.holds is True
    assert (ceil_div(7, 2), minimum(2, 3), maximum(2, 3)) == (4, 2, 3)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize("other", [1, 7, 8, 2.5])
def test_a_branch_holds_where_it_comes_out_alike(name: str, other: float) -> None:
    compare, kind = getattr(operator, name), ArrayKind()
    outcome = compare(dual_of(VALUES, kind), other)
    assert outcome is compare(VALUES[0], other)
    assert kind.holds.tolist() == [compare(v, other) is outcome for v in VALUES]


def holding(apply: Any) -> tuple[Any, list[int]]:
    """What comes out, and the problems for which it holds."""
    kind = ArrayKind()
    result = apply(dual_of(VALUES, kind))
    return result, [
        v
        for v, holds in zip(VALUES, np.broadcast_to(kind.holds, len(VALUES)), strict=True)
        if holds
    ]


@pytest.mark.parametrize(
    ("apply", "value", "holds"),
    [
        (int, 7, [7, 7]),
        (float, 7.0, [7, 7]),
        (hash, hash(7), [7, 7]),
        (lambda d: {7: "seven"}[d], "seven", [7, 7]),
        (lambda d: 1 << d, 128, [7, 7]),
        (lambda d: d << 1, 14, [7, 7]),
        (lambda d: d >> 1, 3, [7, 7]),
        (lambda d: d & 3, 3, [7, 7]),
        (lambda d: d**2, 49, [7, 7]),
        (bool, True, [*VALUES]),
        (lambda d: d == "7", False, [*VALUES]),
        (lambda d: round(d) is d, True, [*VALUES]),
        (lambda d: d.bit_length(), 3, [7, 7]),  # of 4 to 7
        (lambda d: (d + 1).bit_length(), 4, [7, 7, 8]),  # of 8 to 15: 8, 8, 9
        (lambda d: (0 * d).bit_length(), 0, [*VALUES]),
        (lambda d: divmod(d, 4)[1] == 3, True, [7, 3, 7, 15]),
        (lambda d: (d / 2) // 2, 1.0, [7, 7]),
        (lambda d: (d / 2) % 2, 1.5, [7, 7]),
        (lambda d: int(d / 2), 3, [7, 7]),
    ],
)
def test_what_goes_by_the_value_alone(apply: Any, value: Any, holds: list[int]) -> None:
    result, held_values = holding(apply)
    assert result == value
    assert held_values == holds


def test_reals_are_rounded_to_duals() -> None:
    result, held_values = holding(lambda d: round(d / 4))
    assert held_values == [*VALUES]
    assert_alike(result, lambda v: round(v / 4), VALUES)
    rounded, held_values = holding(lambda d: round(d / 3, 1))
    assert (rounded, held_values) == (2.3, [7, 7])


def test_texts_hold_for_their_numbers() -> None:
    kind = ArrayKind()
    d = dual_of(VALUES, kind)
    assert (f"{d}", f"{d:>3}", str(d), repr(d)) == ("7", "  7", "7", "7")
    assert kind.holds is True
    assert kind.says_the_same.tolist() == [v == 7 for v in VALUES]
    assert d < 16
    assert kind.says_the_same.tolist() == [v == 7 for v in VALUES]
    other = ArrayKind()
    assert dual_of(VALUES, other) < 16
    assert other.says_the_same.tolist() == [v < 16 for v in VALUES]


def test_functions_of_numbers_one_problem_at_a_time() -> None:
    kind = ArrayKind()
    a, b, calls = dual_of(VALUES, kind), dual_of(OTHERS, kind), []
    assert a > 2  # elsewhere the function may not have been meant

    def function(x: int, y: int) -> int:
        calls.append((x, y))
        return 100 * x + y

    result = a.pointwise(function, (a, b))
    assert int.__index__(result) == 703
    right = [100 * x + y if x > 2 else 703 for x, y in zip(VALUES, OTHERS, strict=True)]
    assert lifted(result).tolist() == right
    # once for the representative, and once for each pair: (7, 3) stands for two problems
    assert len(calls) == 1 + len({(x, y) for x, y in zip(VALUES, OTHERS, strict=True) if x > 2})

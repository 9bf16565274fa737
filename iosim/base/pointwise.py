"""Functions of whole numbers that no arithmetic describes: a search, a loop, a table.

A number may stand for many, as those of a sweep do; such a number knows by its method `pointwise` how a function is
taken of each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

Function = Callable[..., int]


def pointwise(function: Function) -> Function:
    """`function`, taken of each combination of numbers by itself where an argument stands for many."""

    @wraps(function)
    def taken(*numbers: int) -> int:
        for number in numbers:
            of_many: Callable[[Function, tuple[int, ...]], int] | None = getattr(
                number, "pointwise", None
            )
            if of_many is not None:
                return of_many(function, numbers)
        return function(*numbers)

    return taken

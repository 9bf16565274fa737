"""Whole numbers that carry a companion: how one description of a kernel serves numbers, symbols and arrays.

A `Dual` is an int (the value in one representative problem) with a `lifted` companion that every operation is applied
to as well: a SymPy expression, or a NumPy array of the same quantity in a million problems. Planners run on duals as
they run on ints. Where they branch, the value decides, and the kind is told the companion's side of the condition: the
result then holds wherever all those conditions come out alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from iosim.readers.formula import floor_sums

Compare = Callable[[Any, Any], Any]


class Kind(Protocol):
    """The operations of companions that `+`, `-` and `*` do not cover, and what becomes of a branch's condition."""

    def floordiv(self, a: Any, b: Any) -> Any: ...
    def ceildiv(self, a: Any, b: Any) -> Any: ...
    def mod(self, a: Any, b: Any) -> Any: ...
    def minimum(self, a: Any, b: Any) -> Any: ...
    def maximum(self, a: Any, b: Any) -> Any: ...
    def clipped_floor_sum(self, n: Any, m: Any, a: Any, b: Any, hi: Any) -> Any: ...
    def compared(self, compare: Compare, a: Any, b: Any, outcome: bool) -> None:
        """A branch was taken because `compare(a, b)` came out as `outcome` for the values."""


def lifted(x: Any) -> Any:
    """The companion of a dual; anything else as it is."""
    return x.lifted if isinstance(x, Dual) else x


class Dual(int):
    """An int with a companion of some `kind`. See the module's text."""

    lifted: Any
    kind: Kind

    def __new__(cls, value: int, companion: Any, kind: Kind) -> Dual:
        dual = super().__new__(cls, value)
        dual.lifted = companion
        dual.kind = kind
        return dual

    def _make(self, value: int, companion: Any) -> Dual:
        return Dual(value, companion, self.kind)

    def __add__(self, other: int) -> Dual:
        return self._make(int.__add__(self, other), self.lifted + lifted(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> Dual:
        return self._make(int.__sub__(self, other), self.lifted - lifted(other))

    def __rsub__(self, other: int) -> Dual:
        return self._make(int.__rsub__(self, other), lifted(other) - self.lifted)

    def __mul__(self, other: int) -> Dual:
        return self._make(int.__mul__(self, other), self.lifted * lifted(other))

    __rmul__ = __mul__

    def __neg__(self) -> Dual:
        return self._make(int.__neg__(self), -self.lifted)

    def __floordiv__(self, other: int) -> Dual:
        return self._make(int.__floordiv__(self, other), self.kind.floordiv(self.lifted, lifted(other)))

    def __rfloordiv__(self, other: int) -> Dual:
        return self._make(int.__rfloordiv__(self, other), self.kind.floordiv(lifted(other), self.lifted))

    def __mod__(self, other: int) -> Dual:
        return self._make(int.__mod__(self, other), self.kind.mod(self.lifted, lifted(other)))

    def __truediv__(self, other: object) -> Any:
        raise TypeError("a description of a kernel divides whole numbers with //")

    __rtruediv__ = __truediv__

    def _compare(self, compare: Compare, plain: Callable[[int, Any], bool], other: Any) -> bool:
        outcome = plain(self, other)
        if outcome is NotImplemented:  # a float
            outcome = compare(int.__index__(self), other)
        self.kind.compared(compare, self.lifted, lifted(other), outcome)
        return outcome

    def __lt__(self, other: int) -> bool:
        return self._compare(operator.lt, int.__lt__, other)

    def __le__(self, other: int) -> bool:
        return self._compare(operator.le, int.__le__, other)

    def __gt__(self, other: int) -> bool:
        return self._compare(operator.gt, int.__gt__, other)

    def __ge__(self, other: int) -> bool:
        return self._compare(operator.ge, int.__ge__, other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float):
            return False
        return self._compare(operator.eq, int.__eq__, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __bool__(self) -> bool:
        return self != 0

    def __int__(self) -> int:
        """The value alone; from here on the result holds for this value only, and the kind is told so."""
        value = int.__index__(self)
        self.kind.compared(operator.eq, self.lifted, value, True)
        return value


def _dual_kind(*values: int) -> Kind | None:
    return next((v.kind for v in values if isinstance(v, Dual)), None)


def _value(x: int) -> int:
    return int.__index__(x)


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, on ints and duals."""
    kind = _dual_kind(a, b)
    value = -(-_value(a) // _value(b))
    return value if kind is None else Dual(value, kind.ceildiv(lifted(a), lifted(b)), kind)


def minimum(a: int, b: int) -> int:
    """The smaller, on ints and duals; unlike `min`, no branch."""
    kind = _dual_kind(a, b)
    value = min(_value(a), _value(b))
    return value if kind is None else Dual(value, kind.minimum(lifted(a), lifted(b)), kind)


def maximum(a: int, b: int) -> int:
    """The larger, on ints and duals; unlike `max`, no branch."""
    kind = _dual_kind(a, b)
    value = max(_value(a), _value(b))
    return value if kind is None else Dual(value, kind.maximum(lifted(a), lifted(b)), kind)


def clip(x: int, low: int, high: int) -> int:
    """x cut to [low, high], where low <= high."""
    return minimum(maximum(x, low), high)


def clipped_floor_sum(n: int, m: int, a: int, b: int, hi: int) -> int:
    """`floor_sums.clipped_floor_sum` on ints and duals."""
    kind = _dual_kind(n, m, a, b, hi)
    value = floor_sums.clipped_floor_sum(*map(_value, (n, m, a, b, hi)))
    if kind is None:
        return value
    return Dual(value, kind.clipped_floor_sum(*map(lifted, (n, m, a, b, hi))), kind)


class ArrayKind:
    """Companions are broadcastable int64 arrays. `holds` is where every branch so far came out as for the value."""

    def __init__(self) -> None:
        self.holds: Any = True

    def floordiv(self, a: Any, b: Any) -> Any:
        return a // b

    def ceildiv(self, a: Any, b: Any) -> Any:
        return -(-a // b)

    def mod(self, a: Any, b: Any) -> Any:
        return a % b

    def minimum(self, a: Any, b: Any) -> Any:
        return np.minimum(a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return np.maximum(a, b)

    def clipped_floor_sum(self, n: Any, m: Any, a: Any, b: Any, hi: Any) -> Any:
        return floor_sums.clipped_floor_sum_array(n, m, a, b, hi)

    def compared(self, compare: Compare, a: Any, b: Any, outcome: bool) -> None:
        if a is not b:
            self.holds = self.holds & (compare(a, b) == outcome)

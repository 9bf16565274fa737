"""Whole numbers that carry a companion: how one description of a kernel serves numbers, symbols and arrays.

A `Dual` is an int (the value in one representative problem) with a `lifted` companion that every operation is applied
to as well: a SymPy expression, or a NumPy array of the same quantity in a million problems. Planners run on duals as
they run on ints. Where they branch, the value decides, and the kind is told the companion's side of the condition: the
result then holds wherever all those conditions come out alike. What has no companion's side (a shift, a hash) goes by
the value alone, and the kind is told that, too.

Quotients of arrays are `Real`s: floats with an array beside them. Symbols have none.
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

    def real(self, value: float, companion: Any) -> Real:
        """A float with its companion.

        Raises:
            TypeError: the kind has none.
        """

    def pointwise(self, function: Callable[..., int], numbers: tuple[int, ...]) -> int:
        """`function` of numbers some of which are duals of this kind."""

    def looked_up(self, a: Any, value: int) -> None:
        """A table was asked for the value: what it gave holds for that value alone."""

    def written(self, a: Any, value: float) -> None:
        """The value went into a text, which holds for that value alone."""


def lifted(x: Any) -> Any:
    """The companion of a dual or a real; anything else as it is."""
    return x.lifted if isinstance(x, Dual | Real) else x


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

    def _real(self) -> Real:
        return self.kind.real(float(_value(self)), self.lifted)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, float):
            return self._real() + other
        return self._make(int.__add__(self, other), self.lifted + lifted(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, float):
            return self._real() - other
        return self._make(int.__sub__(self, other), self.lifted - lifted(other))

    def __rsub__(self, other: Any) -> Any:
        if isinstance(other, float):
            return other - self._real()
        return self._make(int.__rsub__(self, other), lifted(other) - self.lifted)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, float):
            return self._real() * other
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

    def __rmod__(self, other: int) -> Dual:
        return self._make(int.__rmod__(self, other), self.kind.mod(lifted(other), self.lifted))

    def __truediv__(self, other: Any) -> Any:
        return self._real() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self._real()

    def _compare(self, compare: Compare, plain: Callable[[int, Any], bool], other: Any) -> bool:
        outcome = plain(self, other)
        if outcome is NotImplemented:  # a float
            outcome = compare(_value(self), float.__float__(other))
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
        self.kind.looked_up(self.lifted, _value(self))
        return int.__hash__(self)

    def __bool__(self) -> bool:
        return self != 0

    def __int__(self) -> int:
        """The value alone; from here on the result holds for this value only, and the kind is told so."""
        value = _value(self)
        self.kind.compared(operator.eq, self.lifted, value, True)
        return value

    def __float__(self) -> float:
        return float(int(self))

    def __round__(self, digits: Any = None) -> Dual:
        return self

    def __lshift__(self, other: int) -> int:
        return int(self) << int(other)

    def __rlshift__(self, other: int) -> int:
        return int(other) << int(self)

    def __rshift__(self, other: int) -> int:
        return int(self) >> int(other)

    def __and__(self, other: int) -> int:
        return int(self) & int(other)

    __rand__ = __and__

    def __pow__(self, other: int, mod: Any = None) -> Any:
        return pow(int(self), int(other), mod)

    def __divmod__(self, other: int) -> tuple[Dual, Dual]:
        return self // other, self % other

    def pointwise(self, function: Callable[..., int], numbers: tuple[int, ...]) -> int:
        """As `iosim.base.pointwise.pointwise` wants it."""
        return self.kind.pointwise(function, numbers)

    def bit_length(self) -> int:
        bits = _value(self).bit_length()
        if self < 0 or self >= 1 << bits or 2 * self < 1 << bits:
            return int(self).bit_length()
        return bits

    def __format__(self, how: str) -> str:
        self.kind.written(self.lifted, _value(self))
        return format(_value(self), how)

    def __str__(self) -> str:
        return format(self)

    __repr__ = __str__


class Real(float):
    """A float with an array of the same quantity in many problems: what a quotient of duals is."""

    lifted: Any
    kind: Kind

    def __new__(cls, value: float, companion: Any, kind: Kind) -> Real:
        real = super().__new__(cls, value)
        real.lifted = companion
        real.kind = kind
        return real

    def _with(self, operation: Compare, a: Any, b: Any) -> Real:
        value = operation(*(float.__float__(x) if isinstance(x, float) else _value(x) for x in (a, b)))
        return Real(value, operation(lifted(a), lifted(b)), self.kind)

    def __add__(self, other: Any) -> Real:
        return self._with(operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Real:
        return self._with(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Real:
        return self._with(operator.sub, other, self)

    def __mul__(self, other: Any) -> Real:
        return self._with(operator.mul, self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Real:
        return self._with(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Real:
        return self._with(operator.truediv, other, self)

    def __neg__(self) -> Real:
        return 0.0 - self

    def _compare(self, compare: Compare, other: Any) -> bool:
        outcome: bool = compare(float.__float__(self), float.__float__(other) if isinstance(other, float) else
                                _value(other))  # fmt: skip
        self.kind.compared(compare, self.lifted, lifted(other), outcome)
        return outcome

    def __lt__(self, other: Any) -> bool:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._compare(operator.ge, other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self._compare(operator.eq, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    def __float__(self) -> float:
        value = float.__float__(self)
        self.kind.compared(operator.eq, self.lifted, value, True)
        return value

    def __hash__(self) -> int:
        return hash(float(self))

    def __int__(self) -> int:
        return int(float(self))

    def __floordiv__(self, other: Any) -> float:
        return float(self) // float(other)

    def __mod__(self, other: Any) -> float:
        return float(self) % float(other)

    def __round__(self, digits: Any = None) -> Any:
        if digits is not None:
            return round(float(self), digits)
        value = round(float.__float__(self))
        return Dual(value, np.rint(self.lifted).astype(np.int64), self.kind)

    def __format__(self, how: str) -> str:
        self.kind.written(self.lifted, float.__float__(self))
        return format(float.__float__(self), how)

    def __str__(self) -> str:
        return format(self)

    __repr__ = __str__


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
    """Companions are broadcastable arrays. `holds` is where every branch so far came out as for the value; `texts`
    are the companions and values that went into texts."""

    def __init__(self) -> None:
        self.holds: Any = True
        self.texts: list[tuple[Any, float]] = []

    @property
    def says_the_same(self) -> Any:
        """Where, besides, every text so far has the same numbers in it."""
        same = self.holds
        for companion, value in self.texts:
            same = same & (companion == value)
        return same

    def real(self, value: float, companion: Any) -> Real:
        return Real(value, companion, self)

    def pointwise(self, function: Callable[..., int], numbers: tuple[int, ...]) -> int:
        own = function(*map(_value, numbers))
        *companions, holds = np.broadcast_arrays(*map(lifted, numbers), self.holds)
        values = np.full(holds.shape, own, dtype=np.int64)
        code = np.zeros(int(holds.sum()), dtype=np.int64)
        wanted = [companion[holds] for companion in companions]  # elsewhere the function may never have been meant
        for companion in wanted:
            distinct, codes = np.unique(companion, return_inverse=True)
            code = code * distinct.size + codes
        _, first, at = np.unique(code, return_index=True, return_inverse=True)
        each = [function(*(int(companion[n]) for companion in wanted)) for n in first.tolist()]
        values[holds] = np.array(each, dtype=np.int64)[at]
        return Dual(own, values, self)

    def looked_up(self, a: Any, value: int) -> None:
        self.compared(operator.eq, a, value, True)

    def written(self, a: Any, value: float) -> None:
        self.texts.append((a, value))

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

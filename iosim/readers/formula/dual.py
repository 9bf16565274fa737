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
from typing import Any, Protocol, Self

import numpy as np

from iosim.readers.formula import floor_sums

Compare = Callable[[Any, Any], Any]


class Kind(Protocol):
    """The operations of companions that `+`, `-` and `*` do not cover, and what becomes of a branch's condition."""

    def floordiv(self, a: Any, b: Any, /) -> Any: ...
    def ceildiv(self, a: Any, b: Any, /) -> Any: ...
    def mod(self, a: Any, b: Any, /) -> Any: ...
    def minimum(self, a: Any, b: Any, /) -> Any: ...
    def maximum(self, a: Any, b: Any, /) -> Any: ...
    def clipped_floor_sum(self, n: Any, m: Any, a: Any, b: Any, hi: Any, /) -> Any: ...
    def compared(self, compare: Compare, a: Any, b: Any, outcome: bool) -> None:
        """A branch was taken because `compare(a, b)` came out as `outcome` for the values."""

    def real(self, value: float, companion: Any) -> Real:
        """A float with its companion. Raises TypeError: the kind has none."""

    def pointwise(self, function: Callable[..., int], numbers: tuple[int, ...]) -> int:
        """`function` of numbers some of which are duals of this kind; by default of their values in the representative,
        as are tables and texts."""
        return function(*numbers)

    def looked_up(self, a: Any, value: int) -> None:
        """A table was asked for the value: what it gave holds for that value alone."""
        return

    def written(self, a: Any, value: float) -> None:
        """The value went into a text, which holds for that value alone."""
        return


def lifted(x: Any) -> Any:
    """The companion of a dual or a real; anything else as it is."""
    return x.lifted if isinstance(x, Dual | Real) else x


def _value(x: Any) -> Any:
    return float.__float__(x) if isinstance(x, float) else int.__index__(x)


def _operator(name: str, *, swapped: bool = False) -> Any:
    """An operator of duals: companions as their kind does it, and with floats, or divided, as their reals do it."""
    plain = getattr(operator, name)

    def apply(self: Dual, other: Any) -> Any:
        if name == "truediv" or isinstance(other, float):
            real = self.kind.real(float(_value(self)), self.lifted)
            return plain(other, real) if swapped else plain(real, other)
        a, b = (other, self) if swapped else (self, other)
        companion = getattr(self.kind, name, plain)(lifted(a), lifted(b))
        return Dual(plain(_value(a), _value(b)), companion, self.kind)

    return apply


def _operator_of_reals(operation: Compare, *, swapped: bool = False) -> Any:
    def apply(self: Real, other: Any) -> Real:
        a, b = (other, self) if swapped else (self, other)
        return Real(operation(_value(a), _value(b)), operation(lifted(a), lifted(b)), self.kind)

    return apply


def _by_value(name: str) -> Any:
    return lambda *numbers: getattr(operator, name)(*map(int, numbers))


def _comparison(compare: Compare) -> Any:
    return lambda self, other: self._compare(compare, other)


class _WithCompanion:
    """A number with a companion of some `kind`: its comparisons, and its texts."""

    lifted: Any
    kind: Kind

    def __new__(cls, value: Any, companion: Any, kind: Kind) -> Self:
        number: Self = super().__new__(cls, value)  # type: ignore[call-arg]  # of an int or a float
        number.lifted, number.kind = companion, kind
        return number

    def _compare(self, compare: Compare, other: Any) -> bool:
        outcome: bool = compare(_value(self), _value(other))
        # A branch on a dual goes by the value; the kind notes the condition under which others agree.
        self.kind.compared(compare, self.lifted, lifted(other), outcome)
        return outcome

    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self._compare(operator.eq, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    def __format__(self, how: str) -> str:
        self.kind.written(self.lifted, _value(self))
        return format(_value(self), how)

    def __str__(self) -> str:
        return format(self)

    __repr__ = __str__


class Dual(_WithCompanion, int):
    """An int with a companion of some `kind`. See the module's text."""

    __add__ = __radd__ = _operator("add")
    __mul__ = __rmul__ = _operator("mul")
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __floordiv__, __rfloordiv__ = _operator("floordiv"), _operator("floordiv", swapped=True)
    __mod__, __rmod__ = _operator("mod"), _operator("mod", swapped=True)
    __truediv__, __rtruediv__ = _operator("truediv"), _operator("truediv", swapped=True)
    __lshift__ = _by_value("lshift")
    __rshift__ = _by_value("rshift")
    __and__ = __rand__ = _by_value("and_")

    def __neg__(self) -> Dual:
        return Dual(-_value(self), -self.lifted, self.kind)

    def __hash__(self) -> int:
        self.kind.looked_up(self.lifted, _value(self))
        return int.__hash__(self)

    def __int__(self) -> int:
        """The value alone; from here on the result holds for this value only, and the kind is told so."""
        value: int = _value(self)
        self.kind.compared(operator.eq, self.lifted, value, True)
        return value

    def __float__(self) -> float:
        return float(int(self))

    def __round__(self, digits: Any = None) -> Dual:
        return self

    def __rlshift__(self, other: int) -> int:
        return int(other) << int(self)

    def __pow__(self, other: int, mod: Any = None) -> Any:
        return pow(int(self), int(other), mod)

    def __divmod__(self, other: int) -> tuple[Any, Any]:
        return self // other, self % other

    def pointwise(self, function: Callable[..., int], numbers: tuple[int, ...]) -> int:
        return self.kind.pointwise(function, numbers)

    def bit_length(self) -> int:
        # 2^(bits - 1) <= x < 2^bits, asked as comparisons: problems with as many bits agree.
        bits: int = _value(self).bit_length()
        if self < 0 or self >= 1 << bits or 2 * self < 1 << bits:
            return int(self).bit_length()
        return bits


class Real(_WithCompanion, float):
    """A float with an array of the same quantity in many problems: what a quotient of duals is."""

    __add__ = __radd__ = _operator_of_reals(operator.add)
    __mul__ = __rmul__ = _operator_of_reals(operator.mul)
    __sub__, __rsub__ = (
        _operator_of_reals(operator.sub),
        _operator_of_reals(operator.sub, swapped=True),
    )
    __truediv__ = _operator_of_reals(operator.truediv)
    __rtruediv__ = _operator_of_reals(operator.truediv, swapped=True)

    def __neg__(self) -> Any:
        return 0.0 - self

    def __hash__(self) -> int:
        return hash(float(self))

    def __float__(self) -> float:
        value: float = _value(self)
        self.kind.compared(operator.eq, self.lifted, value, True)
        return value

    def __int__(self) -> int:
        return int(float(self))

    def __floordiv__(self, other: Any) -> float:
        return float(self) // float(other)

    def __mod__(self, other: Any) -> float:
        return float(self) % float(other)

    def __round__(self, digits: Any = None) -> Any:
        if digits is not None:
            return round(float(self), digits)
        return Dual(round(_value(self)), np.rint(self.lifted).astype(np.int64), self.kind)


def _of_numbers(name: str, plain: Callable[..., int], *numbers: int) -> int:
    """A function of ints and duals: of values, and of companions as their kind calls it."""
    kind = next((number.kind for number in numbers if isinstance(number, Dual)), None)
    value = plain(*map(_value, numbers))
    return value if kind is None else Dual(value, getattr(kind, name)(*map(lifted, numbers)), kind)


def ceil_div(a: int, b: int) -> int:
    return _of_numbers("ceildiv", lambda x, y: -(-x // y), a, b)


def minimum(a: int, b: int) -> int:
    """The smaller, on ints and duals; unlike `min`, no branch."""
    return _of_numbers("minimum", min, a, b)


def maximum(a: int, b: int) -> int:
    return _of_numbers("maximum", max, a, b)


def clip(x: int, low: int, high: int) -> int:
    return minimum(maximum(x, low), high)


def clipped_floor_sum(n: int, m: int, a: int, b: int, hi: int) -> int:
    return _of_numbers("clipped_floor_sum", floor_sums.clipped_floor_sum, n, m, a, b, hi)


class ArrayKind(Kind):
    """Companions are broadcastable arrays. `holds` is where every branch so far came out as for the value; `texts`
    are the companions and values that went into texts."""

    floordiv = staticmethod(operator.floordiv)
    mod = staticmethod(operator.mod)
    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    clipped_floor_sum = staticmethod(floor_sums.clipped_floor_sum_array)

    def __init__(self) -> None:
        self.holds: Any = True
        self.texts: list[tuple[Any, float]] = []

    @staticmethod
    def ceildiv(a: Any, b: Any) -> Any:
        return -(-a // b)

    @property
    def says_the_same(self) -> Any:
        """Problems for which every branch came out alike and every text so far has the same numbers in it."""
        same = self.holds
        for companion, value in self.texts:
            same = same & (companion == value)
        return same

    def real(self, value: float, companion: Any) -> Real:
        return Real(value, companion, self)

    def pointwise(self, function: Callable[..., int], numbers: tuple[int, ...]) -> int:
        value = function(*map(_value, numbers))
        *companions, holds = np.broadcast_arrays(*map(lifted, numbers), self.holds)
        values = np.full(holds.shape, value, dtype=np.int64)
        # Equal tuples of arguments get one code, so that the function is called once for each.
        code = np.zeros(int(holds.sum()), dtype=np.int64)
        wanted = [
            companion[holds] for companion in companions
        ]  # elsewhere the function may never have been meant
        for companion in wanted:
            distinct, codes = np.unique(companion, return_inverse=True)
            code = code * distinct.size + codes
        _, first, at = np.unique(code, return_index=True, return_inverse=True)
        computed = [function(*(int(companion[n]) for companion in wanted)) for n in first.tolist()]
        values[holds] = np.array(computed, dtype=np.int64)[at]
        return Dual(value, values, self)

    def looked_up(self, a: Any, value: int) -> None:
        self.compared(operator.eq, a, value, True)

    def written(self, a: Any, value: float) -> None:
        self.texts.append((a, value))

    def compared(self, compare: Compare, a: Any, b: Any, outcome: bool) -> None:
        if a is not b:
            self.holds = self.holds & (compare(a, b) == outcome)

"""Leading terms of formulas: floors dropped, sums of floors integrated, long sequences taken.

    >>> made = derive(AttentionProblem(heads=32, seq_q=4096, head_dim=128), Kernel("flash", "flash", Tile(128, 64)))
    >>> print(leading(made.total()))
    2*B*H*N**2*d*e/B_q

A leading term's ratio to a paper's Theta term (`iosim.readers.formula.theory`) is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy as sp

from iosim.readers.formula.symbolic import ClippedFloorSum, symbol

LONG = ("seq", "seq_q", "seq_k", "window", "window_right", "offset")
"""Sizes that grow together in the limit: tokens, windows and offsets; heads, columns and tiles stay."""

_T = sp.Symbol("t", positive=True)
_MORE = sp.Symbol("more", positive=True)


def _powers(expression: Any) -> dict[Any, Any]:
    coefficients: dict[Any, Any] = {}
    for term in sp.Add.make_args(sp.expand(expression)):
        coefficient, degree = term.as_coeff_exponent(_T)
        coefficients[degree] = coefficients.get(degree, 0) + coefficient
    return {degree: c for degree, c in coefficients.items() if sp.expand(c) != 0}


class _Smoother:
    """Takes floors, rounding and sums out of expressions in which long sizes carry a factor t; `values` decide what is
    open without them."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = {symbol(name): value for name, value in values.items()}

    def sign(self, coefficient: Any) -> int | None:
        """The sign of an expression: by `values`, else a window is taken shorter than the sequence; None if open."""
        window = symbol("window")
        longer = (coefficient.subs(symbol(n), window + _MORE) for n in ("seq", "seq_q", "seq_k"))
        for form in (coefficient, coefficient.subs(self.values), *map(sp.expand, longer)):
            if form.is_nonnegative:
                return 1
            if form.is_nonpositive:
                return -1
        return None

    def larger(self, a: Any, b: Any, sign: int) -> Any:
        """max(a, b) for sign 1, min(a, b) for sign -1, as t grows; to the power of t that decides where it is open."""
        difference = _powers(a - b)
        if not difference:
            return a
        degree = max(difference)
        sign_of_degree = self.sign(difference[degree])
        if sign_of_degree is not None:
            return a if sign_of_degree == sign else b
        in_a, in_b = _powers(a), _powers(b)
        common = sum(c * _T**n for n, c in in_a.items() if n > degree)
        choose = sp.Max if sign > 0 else sp.Min
        return common + _T**degree * choose(in_a.get(degree, 0), in_b.get(degree, 0))

    def integral(self, n: Any, m: Any, a: Any, b: Any, hi: Any) -> Any:
        """Integral over 0 <= x <= n of min(hi, max(0, (a x + b) / m))."""

        def below(y: Any) -> Any:
            cut = self.larger(hi, self.larger(sp.Integer(0), y, 1), -1)
            return cut**2 / 2 + hi * self.larger(sp.Integer(0), y - hi, 1)

        return m / a * (below((a * n + b) / m) - below(b / m))

    def __call__(self, e: Any) -> Any:
        if not e.args:
            return e
        arguments = [self(x) for x in e.args]
        if isinstance(e, sp.floor | sp.ceiling):
            return sp.expand(arguments[0])
        if isinstance(e, sp.Mod):
            return sp.Integer(0)
        if isinstance(e, sp.Max | sp.Min):
            largest = arguments[0]
            for other in arguments[1:]:
                largest = self.larger(largest, other, 1 if isinstance(e, sp.Max) else -1)
            return largest
        if isinstance(e, ClippedFloorSum):
            return sp.expand(self.integral(*arguments))
        return e.func(*arguments)


def leading(expression: Any, values: Mapping[str, int] | None = None) -> Any:
    """The terms of the highest power of the sequence length, windows and offsets growing along with it, without floors,
    rounding or sums: x for floor(x) and ceiling(x), integrals for sums of floors. Where a minimum or maximum depends on
    the sizes, long sequences decide it. What that leaves open (whether there are more keys than queries) `values`
    decide (sizes by their names in `iosim.readers.formula.symbolic.SYMBOLS`): the result then holds for sizes in the
    same order. Without them a window is taken shorter than the sequence, the rest stays open."""
    long = {symbol(name): symbol(name) * _T for name in LONG}
    powers = _powers(_Smoother(values or {})(sp.sympify(expression).subs(long, simultaneous=True)))
    return sp.factor_terms(sp.expand(powers[max(powers)])) if powers else sp.Integer(0)

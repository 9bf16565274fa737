"""Formulas in symbols: the closed form of a kernel's traffic as SymPy expressions, and its leading term.

    >>> kernel = Kernel("flash", "flash", Tile(128, 64), writes_lse=False)
    >>> made = derive(AttentionProblem(heads=32, seq_q=4096, head_dim=128), kernel)
    >>> print(made.total("write"))
    B*H*N*d*e

`leading` gives the leading term: floors dropped, sums of floors integrated, long sequences taken.

    >>> print(leading(made.total()))
    2*B*H*N**2*d*e/B_q

Its ratio to a paper's Theta term (`iosim.readers.formula.theory`) is a constant. This module imports SymPy; the closed
form itself does not.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy as sp

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.base.words import Way
from iosim.kernel.kernel import Kernel
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula import floor_sums
from iosim.readers.formula.closed_form import closed_form
from iosim.readers.formula.dual import Compare, Kind, Real, lifted
from iosim.readers.formula.lifting import LISTS, lifted_chain
from iosim.readers.formula.sums import NAMES as SUMS


class ClippedFloorSum(sp.Function):  # type: ignore[misc]  # SymPy has no types
    """ClippedFloorSum(n, m, a, b, hi) = sum over 0 <= i < n of min(hi, max(0, floor((a i + b) / m))), for a > 0."""

    nargs = 5
    is_integer = True

    @classmethod
    def eval(cls, n: Any, m: Any, a: Any, b: Any, hi: Any) -> Any:
        if n == 0 or hi == 0:
            return sp.Integer(0)
        known = [sp.sympify(x) for x in (n, m, a, b, hi)]
        if not all(x.is_Integer for x in known):
            return None
        return sp.Integer(floor_sums.clipped_floor_sum(*map(int, known)))

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        n, m, a, b, hi = self.args
        i = sp.Symbol("i", integer=True)
        term = printer.doprint(sp.floor((a * i + b) / m, evaluate=False))
        text = (
            rf"\sum_{{i=0}}^{{{printer.doprint(n - 1)}}} "
            rf"\min\left({printer.doprint(hi)}, \max\left(0, {term}\right)\right)"
        )
        return text if exp is None else rf"\left({text}\right)^{{{exp}}}"


class SymbolKind(Kind):
    """Companions are SymPy expressions; `conditions` are the branches taken that are not always so."""

    mod = staticmethod(sp.Mod)
    maximum = staticmethod(sp.Max)
    clipped_floor_sum = staticmethod(ClippedFloorSum)

    def __init__(self) -> None:
        self.conditions: list[Any] = []

    def floordiv(self, a: Any, b: Any) -> Any:
        a, b = sp.sympify(a), sp.sympify(b)
        if a.as_coeff_Mul()[0].is_negative:
            return -sp.ceiling(-a / b)
        return sp.floor(a / b)

    def ceildiv(self, a: Any, b: Any) -> Any:
        return sp.ceiling(sp.sympify(a) / b)

    def minimum(self, a: Any, b: Any) -> Any:
        if _at_least_one(a) and b == 1:
            return b
        if _at_least_one(b) and a == 1:
            return a
        return sp.Min(a, b)

    def compared(self, compare: Compare, a: Any, b: Any, outcome: bool) -> None:
        a, b = sp.sympify(a), sp.sympify(b)
        relation = sp.Eq(a, b) if compare is operator.eq else compare(a, b)
        relation = relation if outcome else sp.Not(relation)
        if relation in (True, sp.true) or relation in self.conditions:
            return
        if isinstance(relation, sp.Ge | sp.Le) and _at_least_one(relation.gts - relation.lts + 1):
            return
        self.conditions.append(relation)

    def real(self, value: float, companion: Any) -> Real:
        raise TypeError("a description of a kernel divides whole numbers with //")


def _at_least_one(x: Any) -> bool:
    """True where a whole-number expression is known to be 1 or more."""
    x = sp.sympify(x)
    return bool(x.is_integer and x.is_positive)


SYMBOLS: dict[str, tuple[str, str]] = {
    "batch": ("B", "sequences"),
    "heads": ("H", "query heads"),
    "kv_heads": ("H_k", "key/value heads"),
    "group": ("G", "query heads that share a key/value head"),
    "seq": ("N", "query and key tokens"),
    "seq_q": ("N_q", "query tokens"),
    "seq_k": ("N_k", "key tokens"),
    "head_dim": ("d", "columns of Q and K"),
    "head_dim_v": ("d_v", "columns of V and O"),
    "window": ("W", "keys kept before the diagonal"),
    "window_right": ("W_r", "keys kept after the diagonal"),
    "offset": ("Delta", "key that faces query 0"),
    "block_q": ("B_q", "query rows of a tile"),
    "block_k": ("B_k", "key rows of a tile"),
    "backward_block_q": ("C_q", "query rows of a tile of the backward pass"),
    "backward_block_k": ("C_k", "key rows of a tile of the backward pass"),
    "splits": ("S", "parts that the keys are split into"),
    "element_bytes": ("e", "bytes of an input element"),
    "output_bytes": ("e_o", "bytes of an output element"),
    **SUMS,
    **{
        f"backward_{n}": (s.replace("Z", "Y"), f"{t}, in the backward's tiles")
        for n, (s, t) in SUMS.items()
    },
}
"""Name -> (symbol, meaning)."""
TIED = {
    "kv_heads": "heads",
    "seq_k": "seq_q",
    "head_dim_v": "head_dim",
    "output_bytes": "element_bytes",
}
"""Sizes that may share the symbol of another one, where they are equal."""


def symbol(name: str) -> sp.Symbol:
    """The SymPy symbol of a size: a positive whole number, but for `window` (0 or more) and `offset` (any). Raises
    InputError: no size of that name."""
    if name not in SYMBOLS:
        raise InputError(f"'{name}' is no size of a formula; accepted: {', '.join(SYMBOLS)}")
    none = name.removeprefix("backward_") in SUMS
    assumed = {"window": {"nonnegative": True}, "offset": {}}.get(
        name, {"nonnegative" if none else "positive": True}
    )
    return sp.Symbol(SYMBOLS[name][0], integer=True, **assumed)


def _companions(problem: AttentionProblem, kernel: Kernel) -> tuple[dict[str, Any], dict[str, int]]:
    """(companion of each size, value of each symbol used). Equal sizes share a symbol."""
    names = (
        "batch",
        "heads",
        "kv_heads",
        "seq_q",
        "seq_k",
        "head_dim",
        "head_dim_v",
        "window",
        "offset",
    )
    known = {size: value for size in names if (value := getattr(problem, size)) is not None}
    if (problem.window_right or 0) > 0:
        known["window_right"] = problem.window_right
    known |= {"element_bytes": problem.input_type.bytes, "output_bytes": problem.output_type.bytes}
    known |= {"block_q": kernel.tile.block_q, "block_k": kernel.tile.block_k}
    if problem.backward and (back := kernel.backward.tile):
        known |= {"backward_block_q": back.block_q, "backward_block_k": back.block_k}
    if kernel.splits > 1:
        known["splits"] = kernel.splits
    tied = {size: leader for size, leader in TIED.items() if known[size] == known[leader]}
    values = {size: value for size, value in known.items() if size not in tied}
    companions: dict[str, Any] = {}
    if "seq_k" in tied:
        values = {"seq" if size == "seq_q" else size: value for size, value in values.items()}
        companions["seq_q"] = symbol("seq")
    if "kv_heads" not in tied:
        values["group"] = problem.group
        del values["heads"]
        companions["heads"] = symbol("group") * symbol("kv_heads")
    companions |= {size: symbol(size) for size in values if size in known}
    companions |= {size: companions[leader] for size, leader in tied.items()}

    def of_list(name: str, value: int, backward: bool) -> Any:
        name = f"backward_{name}" if backward else name
        values[name] = value
        return symbol(name)

    return {**companions, LISTS: of_list}, values


@dataclass(frozen=True)
class Formula:
    """A kernel's SM<->L2 bytes in symbols. `traffic` holds one SymPy expression per launch, tensor and direction; it
    holds for every problem for which `conditions` (SymPy relations) are true, and for `values`, the numbers it was
    derived from, in any case."""

    traffic: Traffic
    values: Mapping[str, int]
    """Name of each symbol used (a key of `SYMBOLS`) -> its value in the problem the formula was derived from."""
    conditions: tuple[Any, ...]

    @property
    def fixed(self) -> dict[str, int]:
        """Symbols for which the description of the kernel takes the number alone; the number stands in the formula."""
        pinned = {c.lhs: int(c.rhs) for c in self.conditions if _fixes(c)}
        return {name: pinned[symbol(name)] for name in self.values if symbol(name) in pinned}

    def total(
        self, direction: Way | None = None, *, launch: str | None = None, tensor: str | None = None
    ) -> Any:
        return sp.sympify(self.traffic.total("l2", direction, launch=launch, tensor=tensor))

    def substitute(self, values: Mapping[str, Any]) -> Formula:
        """The formula with some symbols, named by `SYMBOLS`, replaced by numbers or expressions."""
        by_symbol = {symbol(name): sp.sympify(value) for name, value in values.items()}
        conditions = (condition.subs(by_symbol) for condition in self.conditions)
        return replace(
            self,
            traffic=Traffic(
                tuple(replace(r, bytes=sp.sympify(r.bytes).subs(by_symbol)) for r in self.traffic)
            ),
            conditions=tuple(c for c in conditions if c != sp.true),
        )

    def numbers(self) -> Traffic:
        """The bytes for the problem that the formula was derived from."""
        substituted = self.substitute(self.values)
        return Traffic(tuple(replace(r, bytes=int(r.bytes)) for r in substituted.traffic))


def _fixes(condition: Any) -> bool:
    return isinstance(condition, sp.Eq) and condition.lhs.is_Symbol and condition.rhs.is_Integer


def _short(expression: Any) -> Any:
    return min(expression, sp.factor_terms(sp.expand(expression)), key=sp.count_ops)


def derive(problem: AttentionProblem, kernel: Kernel) -> Formula:
    """The formula of `kernel`'s traffic, for problems like `problem`: sizes that are equal there (seq_q and seq_k,
    head_dim and head_dim_v, ...) share one symbol."""
    for name in ("seq_lens", "shared_prefix"):
        if getattr(problem, name) is not None:
            raise InputError(
                f"`{name}`: a formula in symbols is of sequences of one length; accepted: seq_q and batch"
            )
    kind = SymbolKind()
    companions, values = _companions(problem, kernel)
    lifted_traffic = closed_form(lifted_chain(problem, kernel, companions, kind))
    fixed = {c.lhs: c.rhs for c in kind.conditions if _fixes(c)}
    rows = tuple(
        replace(row, bytes=_short(sp.sympify(lifted(row.bytes)).subs(fixed)))
        for row in lifted_traffic
    )
    return Formula(Traffic(rows), values, tuple(kind.conditions))


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

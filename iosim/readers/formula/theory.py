"""The papers' two-level IO bounds: elements moved between a fast memory of M elements and everything else.

Two sources: [A] Dao et al., "FlashAttention", arXiv 2205.14135: Theorem 2 (standard and FlashAttention, forward),
Theorem 5 (backward), Proposition 3 (no algorithm is better for every M in [d, N d]), Proposition 4 (block-sparse).
[B] Saha and Ye, "The I/O Complexity of Attention", arXiv 2402.07443: the tight bound for every M.

A Theta term fixes no constant: `Bound.elements` is the term itself with constant 1, and `times_above` divides bytes by
it. All terms are of one head of one sequence with N queries and N keys of d columns, and for d <= M <= N d: a larger
M is cut to N d, where a whole head fits and the compulsory N d remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from iosim.base.errors import InputError


@dataclass(frozen=True)
class Bound:
    """One Theta term.

    `term(seq, head_dim, fast_elements, kept)` is the term in elements; `text` and `latex` say it in the symbols
    N, d, M and s; `least` is the size of fast memory from which the source states it.
    """

    name: str
    title: str
    source: str
    text: str
    latex: str
    term: Callable[[int, int, int, float], float]

    def elements(self, seq: int, head_dim: int, fast_elements: int, kept: float = 1.0) -> float:
        """The term's value in elements, for one head.

        Args:
            seq: N, tokens.
            head_dim: d.
            fast_elements: M, elements that the fast memory holds.
            kept: s, the fraction of blocks that a block-sparse mask keeps.

        Raises:
            InputError: a size below 1, a fraction outside (0, 1], or M below d, for which the papers state nothing.
        """
        for what, value in (("seq", seq), ("head_dim", head_dim), ("fast_elements", fast_elements)):
            if value < 1:
                raise InputError(f"{what} {value} is out of range; accepted: 1 or more")
        if not 0 < kept <= 1:
            raise InputError(f"kept {kept} is out of range; accepted: above 0 up to 1")
        if fast_elements < head_dim:
            raise InputError(f"fast_elements {fast_elements} is out of range; accepted: head_dim {head_dim} or more")
        return self.term(seq, head_dim, min(fast_elements, seq * head_dim), kept)

    def times_above(
        self, moved_bytes: float, element_bytes: int, seq: int, head_dim: int, fast_elements: int,
        *, heads: int = 1, kept: float = 1.0,
    ) -> float:  # fmt: skip
        """`moved_bytes` of `heads` heads (over all sequences) in multiples of the term."""
        return moved_bytes / (element_bytes * heads * self.elements(seq, head_dim, fast_elements, kept))

    def expression(self) -> Any:
        """A SymPy expression in N, d (those of `iosim.readers.formula.symbolic`), M and s. Imports SymPy."""
        import sympy as sp

        n, d = (sp.Symbol(name, integer=True, positive=True) for name in ("N", "d"))
        m, s = (sp.Symbol(name, positive=True) for name in ("M", "s"))
        return sp.sympify(self.text.replace("^", "**"), locals={"N": n, "d": d, "M": m, "s": s, "min": sp.Min})


def _tight(n: int, d: int, m: int, _: float) -> float:
    return min(n * n * d * d / m, n * n * d / math.sqrt(m))


BOUNDS: dict[str, Bound] = {
    b.name: b
    for b in (
        Bound(
            "standard", "standard attention, forward", "arXiv 2205.14135, Theorem 2",
            "N*d + N^2", r"\Theta(N d + N^2)", lambda n, d, m, s: n * d + n * n,
        ),
        Bound(
            "flash", "FlashAttention, forward", "arXiv 2205.14135, Theorem 2",
            "N^2*d^2/M", r"\Theta\left(\frac{N^2 d^2}{M}\right)", lambda n, d, m, s: n * n * d * d / m,
        ),
        Bound(
            "standard_backward", "standard attention, backward", "arXiv 2205.14135, Theorem 5",
            "N*d + N^2", r"\Theta(N d + N^2)", lambda n, d, m, s: n * d + n * n,
        ),
        Bound(
            "flash_backward", "FlashAttention, backward", "arXiv 2205.14135, Theorem 5",
            "N^2*d^2/M", r"\Theta\left(\frac{N^2 d^2}{M}\right)", lambda n, d, m, s: n * n * d * d / m,
        ),
        Bound(
            "lower", "no exact algorithm moves less for every M in [d, N d]", "arXiv 2205.14135, Proposition 3",
            "N^2*d^2/M", r"\Omega\left(\frac{N^2 d^2}{M}\right)", lambda n, d, m, s: n * n * d * d / m,
        ),
        Bound(
            "block_sparse", "block-sparse FlashAttention, a fraction s of blocks kept",
            "arXiv 2205.14135, Proposition 4",
            "N*d + N^2*d^2*s/M", r"\Theta\left(N d + \frac{N^2 d^2}{M} s\right)",
            lambda n, d, m, s: n * d + n * n * d * d * s / m,
        ),
        Bound(
            "tight", "any algorithm that multiplies matrices the standard way", "arXiv 2402.07443",
            "min(N^2*d^2/M, N^2*d/sqrt(M))",
            r"\Theta\left(\min\left(\frac{N^2 d^2}{M}, \frac{N^2 d}{\sqrt{M}}\right)\right)", _tight,
        ),
    )
}  # fmt: skip
"""Name -> bound."""


def bound(name: str) -> Bound:
    """The bound called `name`.

    Raises:
        InputError: there is none.
    """
    if name not in BOUNDS:
        raise InputError(f"bound '{name}' is not known; accepted: {', '.join(BOUNDS)}")
    return BOUNDS[name]


def flash_is_optimal(head_dim: int, fast_elements: int) -> bool:
    """Whether N^2 d^2 / M is the smaller of the two terms of the tight bound: from M = d^2 on (arXiv 2402.07443)."""
    return fast_elements >= head_dim * head_dim

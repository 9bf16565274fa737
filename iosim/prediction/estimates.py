"""Which HBM bytes are estimates: their cells carry a mark, and one line below says what the marks mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iosim.base.words import Method
from iosim.show.tables import Marked

if TYPE_CHECKING:
    from iosim.prediction.result import Prediction

MARKS = {"sampled": "~", "capacity": "*"}
"""Method -> the mark of what it gives."""
MEANINGS = {
    "sampled": "replayed in part, off by some percent",
    "capacity": "by the capacity rule, which knows no order of CTAs and may be off by many times",
}


def mark_of(method: str) -> str:
    """The mark of a method's HBM bytes; empty for a replay of all."""
    return MARKS.get(method, "")


def marked(value: float | None, *predictions: Prediction) -> float | None:
    """A number that follows from the HBM bytes of predictions, with the marks of those that estimate them."""
    marks = "".join(dict.fromkeys(mark_of(p.method) for p in predictions))
    return value if value is None or not marks else Marked.of(value, marks)


def legend(predictions: Iterable[Prediction]) -> str | None:
    """One line with the marks that these predictions carry; None where they carry none."""
    return legend_of(p.method for p in predictions)


def legend_of(methods: Iterable[str]) -> str | None:
    used = set(methods)
    meanings = [f"{mark} {MEANINGS[method]}" for method, mark in MARKS.items() if method in used]
    return f"HBM bytes: {'; '.join(meanings)}" if meanings else None


def method_of(methods: Iterable[Method]) -> Method:
    """The method of a sum: the least exact of its parts'."""
    used = set(methods)
    return next((method for method in ("bounds", "capacity", "sampled") if method in used), "replay")

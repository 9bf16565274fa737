"""One published number beside what iosim computes for it, and what many of them amount to."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from iosim.base.records import dataclass

AGREES, NEAR = 0.01, 0.2
"""How far a ratio may be from 1 to agree, and to be near."""


class Verdict(Enum):
    AGREES = "agrees"
    NEAR = "near"
    OFF = "off"
    MISTAKE = "mistake"
    OPEN = "open"


@dataclass(frozen=True)
class Row:
    """A claim, the number it states, the number iosim computes, and the arithmetic between them.

    `claimed` is None where the source states none for this row (a prediction printed beside a claim), `computed` is
    None where no model of iosim gives the number; `note` then says why.

    `mistake` says what is wrong with a claim that iosim computes as its source makes it: a ratio of 1 then says that
    the mistake was understood, not that the claim is right.
    """

    section: str
    claim: str
    claimed: float | None
    computed: float | None
    unit: str
    arithmetic: str
    note: str = ""
    mistake: str = ""

    @property
    def ratio(self) -> float | None:
        """Computed over claimed; None where there is nothing to divide."""
        if self.claimed is None or self.computed is None or self.claimed == 0:
            return None
        return self.computed / self.claimed

    @property
    def verdict(self) -> Verdict:
        if self.mistake:
            return Verdict.MISTAKE
        if self.ratio is None:
            return Verdict.OPEN
        off = round(abs(self.ratio - 1), 9)
        return Verdict.AGREES if off <= AGREES else Verdict.NEAR if off <= NEAR else Verdict.OFF

    def to_dict(self) -> dict[str, Any]:
        return {
            "section": self.section, "claim": self.claim, "claimed": self.claimed, "computed": self.computed,
            "unit": self.unit, "ratio": self.ratio, "arithmetic": self.arithmetic, "note": self.note,
            "mistake": self.mistake or None, "verdict": self.verdict.value,
        }  # fmt: skip


WORDS = {
    Verdict.AGREES: "within 1 % of the published number", Verdict.NEAR: "within 20 %", Verdict.OFF: "further off",
    Verdict.MISTAKE: "a mistake of the source, computed as it makes it",
    Verdict.OPEN: "without a number on one of the sides",
}  # fmt: skip


def answer(rows: Sequence[Row]) -> str:
    """One sentence; an agreement with a mistake is counted as the mistake."""
    counts = {verdict: sum(r.verdict is verdict for r in rows) for verdict in Verdict}
    said = ", ".join(f"{n} {WORDS[verdict]}" for verdict, n in counts.items() if n)
    sections = sorted({r.section for r in rows})
    where = f"section{'s' * (len(sections) > 1)} {', '.join(sections)}"
    wrong = [r for r in rows if r.verdict is Verdict.MISTAKE]
    first = f"; the first mistake: {wrong[0].claim}: {wrong[0].mistake}" if wrong else ""
    return f"Of {len(rows)} rows of {where} {said}{first}."

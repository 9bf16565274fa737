"""One published number beside what iosim computes for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """A claim, the number it states, the number iosim computes, and the arithmetic between them.

    `claimed` is None where the source states none for this row (a prediction printed beside a claim), `computed` is
    None where no model of iosim gives the number; `note` then says why.
    """

    section: str
    claim: str
    claimed: float | None
    computed: float | None
    unit: str
    arithmetic: str
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Computed over claimed; None where there is nothing to divide."""
        if self.claimed is None or self.computed is None or self.claimed == 0:
            return None
        return self.computed / self.claimed

    def to_dict(self) -> dict[str, Any]:
        return {
            "section": self.section, "claim": self.claim, "claimed": self.claimed, "computed": self.computed,
            "unit": self.unit, "ratio": self.ratio, "arithmetic": self.arithmetic, "note": self.note,
        }  # fmt: skip

"""What a comparison with measurements amounts to, in one sentence: errors without spills and with, and what is left
out."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.evidence.validate.residuals import Comparison, Residual
from iosim.evidence.validate.sections import NAMES, name_text, percent, worst
from iosim.evidence.validate.summary import by_quantity, clean

EXACT = 1e-3
"""SM<->L2 bytes within this share of the measured ones count as such."""


def answer(comparison: Comparison) -> str:
    """One sentence."""
    every = comparison.residuals
    spilling = [r for r in every if r.spills]
    parts = [
        *_reads("without spills", clean(every)),
        *_reads("with spills", spilling),
        *_between(every),
    ]
    if comparison.skipped:
        parts.append(f"{len(comparison.skipped)} rows that no model covers are left out")
    return f"{'; '.join(parts) or 'No row was compared'}."


def _reads(kind: str, residuals: Sequence[Residual]) -> list[str]:
    """Errors of HBM reads."""
    s = by_quantity(residuals).get("hbm_read")
    if s is None or not s.n:
        return []
    largest = worst(residuals, "hbm_read", 1)[0]
    return [f"{NAMES['hbm_read']}s of {s.n} rows {kind} are off by {percent(s.median)} at the median, {percent(s.p95)} "
            f"at p95 and {percent(s.max)} at most ({name_text(largest)})"]  # fmt: skip


def _between(residuals: Sequence[Residual]) -> list[str]:
    """How many rows have SM<->L2 bytes within 0.1 %, and what the others have in common."""
    rows = [r for r in residuals if r.quantity in ("l2_read", "l2_write") and r.error is not None]
    if not rows:
        return []
    beyond = [r for r in rows if (r.error or 0) > EXACT]
    text = f"SM<->L2 bytes are within 0.1 % in {len(rows) - len(beyond)} of {len(rows)}"
    if beyond:
        names = ", ".join(sorted({r.row.implementation for r in beyond}))
        text += f", the others of {names}, {sum(r.spills for r in beyond)} of them with spills"
    return [text]

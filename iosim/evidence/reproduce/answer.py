"""What the rows amount to, in one sentence: how many numbers come out, and which are mistakes all the same."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.evidence.reproduce.row import Row, Verdict

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

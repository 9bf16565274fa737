"""A comparison as text: one table a sequence length, the bytes by tensor below it, and what cannot run."""

from __future__ import annotations

from iosim.studies.compare.answer import answer
from iosim.studies.compare.study import Comparison, Entry
from iosim.studies.compare.tables import summary, tensors
from iosim.studies.report.assemble import ALWAYS_SAID
from iosim.studies.report.words import subject


def as_text(comparison: Comparison) -> str:
    """The whole text."""
    parts = [answer(comparison), subject(comparison.request), ratios(comparison)]
    for n in comparison.request.lengths:
        mine = [e for e in comparison.entries if e.seq_len == n]
        parts += [f"N = {n:,}", summary(mine).without("seq_len", "reason").text().rstrip()]
        for level, name in (("l2", "SM<->L2"), ("hbm", "HBM")):
            by_tensor = tensors(mine, level)
            if by_tensor.rows:
                parts.append(f"{name} bytes by tensor\n{by_tensor.text().rstrip()}")
    parts += [comparison.legend] if comparison.legend else []
    cannot = missing(comparison)
    parts += ["\n".join(["Cannot run:", *(f"  {line}" for line in cannot)])] if cannot else []
    below = notes(comparison)
    parts += ["\n".join(f"note: {n}" for n in below)] if below else []
    return "\n\n".join(parts) + "\n"


def ratios(comparison: Comparison) -> str:
    """What the ratios are of."""
    return f"Ratios: {comparison.baseline} over the row's; above 1 the row needs less."


def notes(comparison: Comparison) -> list[str]:
    """What a reader of the text should know."""
    return [n for n in comparison.notes if ALWAYS_SAID not in n]


def missing(comparison: Comparison) -> list[str]:
    """What cannot run, and why, a line each."""
    return list(dict.fromkeys(_missing(e, comparison) for e in comparison.missing))


def _missing(e: Entry, comparison: Comparison) -> str:
    at = f" at N = {e.seq_len:,}" if len(comparison.request.lengths) > 1 else ""
    return f"{e.kernel} on {e.gpu}{at}: {e.reason}"

"""A serving call's answer: its time in each stack, and what most of it is."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import seconds_text
from iosim.prediction.answer import trust
from iosim.studies.latency.latency import Latency


def answer(points: Sequence[Latency]) -> str:
    """One sentence, a clause a stack, GPU and problem; of many, of the longest call alone."""
    longest = max(points, key=lambda p: p.total_s).prediction.problem
    here = [p for p in points if p.prediction.problem.sequences == longest.sequences]
    clauses = [_clause(p) for p in here]
    return f"An attention call takes {'; '.join((', '.join(clauses), trust([p.prediction for p in here])))}."


def _clause(p: Latency) -> str:
    most = max(p.parts, key=lambda part: part.seconds)
    share = 100 * most.seconds / p.total_s
    return f"{seconds_text(p.total_s)} in {p.stack.name} on {p.prediction.profile.name} ({share:.0f} % {most.name})"

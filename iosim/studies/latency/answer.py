"""A serving call's answer: its time in each stack, and what most of it is."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import seconds_text, some
from iosim.prediction.answer import trust
from iosim.studies.latency.latency import AllLayers, Latency


def answer(points: Sequence[Latency], models: Sequence[AllLayers] = ()) -> str:
    """One sentence, a clause a stack, GPU and problem; of many, of the longest call alone, or of all layers of a model
    at the length that takes longest."""
    if models:
        most = max(models, key=lambda step: step.total_s)
        size = most.to_dict()
        alike = [m for m in models if m.to_dict()["seq_k"] == size["seq_k"] and m.to_dict()["batch"] == size["batch"]]
        told = ", ".join(f"{seconds_text(m.total_s)} in {m.points[0].stack.name} on "
                         f"{m.points[0].prediction.profile.name}" for m in alike)  # fmt: skip
        checked = trust([p.prediction for m in alike for p in m.points])
        return f"The attention of all {some(most.count, 'layer')} of {most.title} takes {told}; {checked}."
    longest = max(points, key=lambda p: p.total_s).prediction.problem
    here = [p for p in points if p.prediction.problem.sequences == longest.sequences]
    clauses = [_clause(p) for p in here]
    return f"An attention call takes {'; '.join((', '.join(clauses), trust([p.prediction for p in here])))}."


def _clause(p: Latency) -> str:
    most = max(p.parts, key=lambda part: part.seconds)
    share = 100 * most.seconds / p.total_s
    return f"{seconds_text(p.total_s)} in {p.stack.name} on {p.prediction.profile.name} ({share:.0f} % {most.name})"

"""A model's calls in groups that differ in their length alone, as comparisons and reports take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import FIELDS
from iosim.studies.models.asked import LayerCall, calls_of
from iosim.studies.models.layers import LayerKind, Model


@dataclass(frozen=True)
class LayerGroup:
    """One kind of layers at lengths at which it attends alike: a window that is longer than a sequence is none."""

    kind: LayerKind
    calls: tuple[LayerCall, ...]

    @property
    def problems(self) -> tuple[AttentionProblem, ...]:
        """A problem a length."""
        return tuple(call.problem for call in self.calls)

    @property
    def lengths(self) -> dict[int, int]:
        """Query tokens of a problem -> of one sequence."""
        return {call.problem.seq_q: call.queries for call in self.calls}


def groups_of(model: Model, values: Mapping[str, Any]) -> list[LayerGroup]:
    """The groups of a model's calls, in the order of its layers."""
    found: dict[Any, list[LayerCall]] = {}
    for calls in calls_of(model, values):
        for call in calls:
            found.setdefault((model.kinds.index(call.kind), _but_length(call.problem)), []).append(call)
    return [LayerGroup(calls[0].kind, tuple(calls)) for _, calls in sorted(found.items(), key=lambda one: one[0][0])]


def _but_length(problem: AttentionProblem) -> tuple[Any, ...]:
    return tuple(getattr(problem, name) for name in FIELDS if name not in ("seq_q", "seq_k"))

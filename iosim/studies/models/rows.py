"""A model's calls as rows of values, for sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.problem.fields import FIELDS
from iosim.studies.models.asked import calls_of
from iosim.studies.models.layers import Model

ALWAYS = ("heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "dtype", "batch", "passes", "mask", "window")


def rows_of(model: Model, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each kind of layers and length: the model, the kind, its count and the fields of its problem.

    Raises:
        InputError: a call of several packed sequences, which a row cannot hold, or as `calls_of`.
    """
    rows = []
    for calls in calls_of(model, values):
        for call in calls:
            if call.problem.seq_lens is not None:
                raise InputError(f"`model` '{model.name}': {call.kind.name} layers over more than one chunk are "
                                 "sequences of "
                                 "several lengths, which no sweep takes; accepted: `iosim predict`, or fewer "
                                 "tokens")  # fmt: skip
            fields = {name: getattr(call.problem, name) for name, about in FIELDS.items()
                      if name in ALWAYS or getattr(call.problem, name) != about.resolve(call.problem)}  # fmt: skip
            rows.append({"model": model.name, "layer": call.kind.name, "count": call.kind.count, **fields})
    return rows

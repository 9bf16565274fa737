"""The calls that a model makes for the lengths asked for: a problem for every kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iosim.base.errors import InputError
from iosim.problem.asked import check_queries, lengths, usual
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import FIELDS
from iosim.studies.models.layers import LayerKind, Model

OF_MODEL = ("heads", "kv_heads", "head_dim", "head_dim_v", "window", "mask", "window_right", "mask_block",
            "mask_stride", "global_tokens", "mask_file", "mask_blocks", "bias", "offset", "latent_kv")  # fmt: skip
"""Fields that a model's layers decide."""
OF_LENGTH = ("seq_q", "seq_k", "prefix", "causal", "seq_lens", "seq_lens_k")


@dataclass(frozen=True)
class LayerCall:
    """One layer's call, of all layers of its kind, at one length."""

    kind: LayerKind
    queries: int
    keys: int
    """Tokens of a sequence so far, the queries' own among them."""
    problem: AttentionProblem


def calls_of(model: Model, values: Mapping[str, Any]) -> list[tuple[LayerCall, ...]]:
    """The calls of all kinds of layers, for every number of query tokens asked for.

    Args:
        values: as `iosim.problem.asked.problems` takes them; what the model decides is taken from it (`changed` has put
            in what was asked in its place), and so is the type of the inputs where none is given.

    Raises:
        InputError: values that make no sense, or lengths that a model's layers cannot have.
    """
    for name in ("seq_lens", "seq_lens_k"):
        if values.get(name) is not None:
            raise InputError(f"`{name}` goes with no `model`; accepted with one: `batch`, `seq_q` and `seq_k`")
    check_queries(values)
    given = {name: value for name, value in values.items() if value is not None}
    fields = {name: value for name, value in given.items() if name in FIELDS and name not in (*OF_MODEL, *OF_LENGTH)}
    fields["dtype"] = given.get("dtype") or model.dtype or usual("dtype")
    prefix, keys = given.get("prefix"), given.get("seq_k")
    if prefix is not None and keys is not None:
        raise InputError(
            f"`prefix` {prefix} contradicts `seq_k` {keys}: both say how many keys there are; give one of them"
        )
    latent = bool(given.get("latent_kv"))
    if latent and any(kind.latent is None for kind in model.kinds):
        raise InputError(f"`latent_kv=True` contradicts `model` '{model.name}', whose layers have no latent cache; "
                         "accepted: "
                         "without it")  # fmt: skip
    asked = []
    for queries in map(FIELDS["seq_q"].check, lengths(given.get("seq_q", usual("seq_q")), "seq_q")):
        total = FIELDS["seq_k"].check(keys if keys is not None else queries + (prefix or 0))
        if total < queries and model.causal:
            raise InputError(f"`seq_k` {total} is out of range; accepted: {queries} or more, as the layers of `model` "
                             f"'{model.name}' are causal")  # fmt: skip
        asked.append(tuple(
            LayerCall(kind, queries, total, kind.problem(queries, total, latent_kv=latent, **fields))
            for kind in model.kinds
        ))  # fmt: skip
    return asked

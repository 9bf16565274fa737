"""A model with what options ask for in place of its own numbers: fewer layers, other heads, a part of the heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from iosim.base.errors import InputError
from iosim.base.fields import whole
from iosim.base.units import some
from iosim.problem.fields import MAX_TOKENS
from iosim.studies.models.layers import LayerKind, Model

SHAPE = ("heads", "kv_heads", "head_dim", "head_dim_v", "window")
"""Fields that a model says and an option may say in its place."""
FIXED = (
    "mask",
    "window_right",
    "mask_block",
    "mask_stride",
    "global_tokens",
    "mask_file",
    "mask_blocks",
    "offset",
    "bias",
)
"""Fields that a model says and no option may: another mask is another model."""
MAX_GPUS = 1024


def changed(
    model: Model, values: Mapping[str, Any], *, layers: int | None = None, tensor_parallel: int | None = None
) -> Model:
    """The model with the values that were asked for beside it, each said in its notes.

    Args:
        values: fields of a problem that were given; of `SHAPE`, they take the place of the model's own in every kind of
            layer that has them. A window goes to the layers that have one, to all where none has.
        layers: the first so many of its layers.
        tensor_parallel: GPUs that share the heads of each layer.

    Raises:
        InputError: a value that contradicts the model.
    """
    for name in FIXED:
        if values.get(name) is not None:
            raise InputError(f"`{name}` contradicts `model` '{model.name}', which says what its tokens see; accepted "
                             f"with a model: {', '.join(f'`{one}`' for one in SHAPE)}")  # fmt: skip
    if values.get("causal") and not model.causal:
        raise InputError(f"`causal=True` contradicts `model` '{model.name}', whose tokens see all others; accepted: "
                         "without it")  # fmt: skip
    if layers is not None:
        model = _first(model, layers)
    for name in SHAPE:
        if values.get(name) is not None:
            model = _with(model, name, values[name])
    if tensor_parallel is not None:
        gpus = whole("tensor_parallel", tensor_parallel, 1, MAX_GPUS)
        on_several = any(kind.latent is None and kind.kv_heads < gpus for kind in model.kinds)
        kinds = tuple(kind.split(gpus) for kind in model.kinds)
        model = replace(model, kinds=kinds, tensor_parallel=gpus)
        if gpus > 1:
            more = "; key/value heads fewer than GPUs are on several" if on_several else ""
            note = f"each of {some(gpus, 'GPU')}: its share of the heads{more}; what GPUs exchange is not counted"
            model = _noted(model, note)
    return model


def _noted(model: Model, note: str) -> Model:
    return replace(model, notes=(*model.notes, note))


def _with(model: Model, name: str, value: Any) -> Model:
    """The model with another number of one of `SHAPE`."""
    if isinstance(value, list | tuple):
        several = ",".join(map(str, value))
        raise InputError(f"`{name}` {several} are {len(value)} values; accepted beside `model`: one of them")
    if name == "window":
        value = whole("window", value, 0, MAX_TOKENS) + 1  # the query itself counts
    windows = any(kind.window is not None for kind in model.kinds)
    kinds: list[LayerKind] = []
    before: dict[Any, None] = {}
    for kind in model.kinds:
        if name == "window" and windows and kind.window is None:
            kinds.append(kind)
            continue
        if kind.latent is not None and name != "heads":
            raise InputError(f"`{name}` {value} contradicts `model` '{model.name}', whose {kind.name} layers make "
                             "keys and "
                             "values of one latent vector; accepted: `heads`")  # fmt: skip
        before[getattr(kind, name)] = None
        kinds.append(_kind_with(kind, name, value))
    if list(before) == [value]:
        return model
    said = " and ".join("none" if old is None else str(old) for old in before)
    note = f"{name} {value} in place of the model's {said}"
    if name == "window":
        note = f"window of {some(value, 'token')}, the query's own among them, in place of the model's {said}"
    return _noted(replace(model, kinds=tuple(kinds)), note)


def _kind_with(kind: LayerKind, name: str, value: int) -> LayerKind:
    changes: dict[str, Any] = {name: value}
    if name == "heads" and kind.kv_heads == kind.heads:
        changes["kv_heads"] = value
    if name == "head_dim" and kind.head_dim_v == kind.head_dim:
        changes["head_dim_v"] = value
    if name == "window" and kind.name == "full":
        changes["name"] = "sliding"
    return replace(kind, **changes)


def _first(model: Model, layers: int) -> Model:
    """The model's first layers."""
    if isinstance(layers, bool) or not 1 <= layers <= len(model.order):
        raise InputError(f"`layers` {layers} is out of range; accepted: 1 to {len(model.order)}, the layers of "
                         f"'{model.name}'")  # fmt: skip
    order = model.order[:layers]
    kinds = tuple(replace(kind, count=count) for kind in model.kinds if (count := order.count(kind.name)))
    if not kinds:
        raise InputError(f"`layers` {layers}: none of the first {layers} layers of '{model.name}' attends; accepted: "
                         f"more")  # fmt: skip
    if layers == len(model.order):
        return model
    return _noted(replace(model, order=order, kinds=kinds), f"the first {layers} of {some(len(model.order), 'layer')}")

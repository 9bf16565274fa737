"""A model as it is asked for, with what options put in place of its own numbers, and its calls at given lengths."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, product
from typing import Any

from iosim.base.errors import InputError
from iosim.base.fields import whole
from iosim.base.records import dataclass, replace
from iosim.base.units import some
from iosim.catalog.libraries import Overrides, in_model, with_sinks
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.prediction.many import Request
from iosim.problem.asked import check_queries, lengths, problems
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import FIELDS, MAX_TOKENS
from iosim.show.tables import grouped
from iosim.studies.models.layers import LayerKind, Layers, Model
from iosim.studies.requests import OfProblem

SHAPE = ("heads", "kv_heads", "head_dim", "head_dim_v", "window")
"""Fields that a model says and an option may say in its place."""
OTHER_MASKS = ("mask_block", "mask_stride", "global_tokens", "mask_file", "mask_blocks")
FIXED = ("mask", "window_right", *OTHER_MASKS, "offset", "bias")
"""Fields that a model says and no option may: another mask is another model."""
MAX_GPUS = 1024
Gpu = str | HardwareProfile
OF_MODEL = (*SHAPE, *FIXED, "latent_kv")
"""Fields that a model's layers decide."""
OF_LENGTH = ("seq_q", "seq_k", "prefix", "causal", "seq_lens", "seq_lens_k")
LENGTHS = ("seq_q", "seq_lens", "seq_lens_k")
"""Fields whose lists are one value."""
ALWAYS = (
    "heads",
    "kv_heads",
    "seq_q",
    "seq_k",
    "head_dim",
    "head_dim_v",
    "dtype",
    "batch",
    "passes",
    "mask",
    "window",
)


def chosen(
    model: Model | None,
    values: Mapping[str, Any],
    layers: int | None = None,
    tensor_parallel: int | None = None,
) -> Model | None:
    """`changed` of the model that was asked for; None without one. Raises InputError: what goes with a model without
    one, or as `changed`."""
    if model is not None:
        # A list of one value is that value; longer ones are refused by `_with`, or read as lengths.
        single = {
            name: v[0] if isinstance(v, list) and len(v) == 1 else v for name, v in values.items()
        }
        return changed(model, single, layers=layers, tensor_parallel=tensor_parallel)
    for name, value in (("layers", layers), ("tensor_parallel", tensor_parallel)):
        if value is not None:
            raise InputError(f"`{name}` {value} goes with `model`, which is not given")
    return None


def combinations(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The values of one problem for every combination of lists, but for those of lengths, which `problems` reads."""
    axes = {
        name: value
        for name, value in values.items()
        if isinstance(value, list) and name not in LENGTHS
    }
    return [
        {**values, **dict(zip(axes, chosen_values, strict=True))}
        for chosen_values in product(*axes.values())
    ]


def one_of_each(values: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        if isinstance(value, list) and name not in LENGTHS and len(value) > 1:
            several = ",".join(map(str, value))
            raise InputError(
                f"`{name}` {several} are {len(value)} values; accepted without `per`: one of them; `iosim sweep` takes several"
            )
    return combinations(values)[0]


def layer_problems(
    model: Model | None, values: Mapping[str, Any]
) -> list[tuple[Layers | None, AttentionProblem]]:
    """A problem for every combination of the values asked for, and with a model for every kind of its layers. Raises
    InputError: values that make no sense, or as `calls_of`."""
    if model is None:
        return [
            (None, problem)
            for combination in combinations(values)
            for problem in problems(combination)
        ]
    called = (
        call
        for combination in combinations(values)
        for calls in calls_of(model, combination)
        for call in calls
    )
    return [
        (Layers(x.kind.name, x.kind.count, model.title, x.kind.sinks), x.problem) for x in called
    ]


def asked_model(request: OfProblem) -> Model | None:
    return chosen(request.model, request.values, request.layers, request.tensor_parallel)


def asked_problems(request: OfProblem) -> list[tuple[Layers | None, AttentionProblem]]:
    if request.problems is not None:
        return [(None, problem) for problem in request.problems]
    return layer_problems(asked_model(request), request.values)


def changed(
    model: Model,
    values: Mapping[str, Any],
    *,
    layers: int | None = None,
    tensor_parallel: int | None = None,
) -> Model:
    """The model with the values that were asked for beside it, each said in its notes. Raises InputError: a value that
    contradicts the model. `values`: fields of a problem that were given; of `SHAPE`, they take the place of the model's
    own in every kind of layer that has them. A window goes to the layers that have one, to all where none has.
    `layers`: the first so many of its layers. `tensor_parallel`: GPUs that share the heads of each layer."""
    for name in FIXED:
        if values.get(name) is not None:
            hint = f"accepted with a model: {', '.join(f'`{field}`' for field in SHAPE)}"
            raise InputError(
                f"`{name}` contradicts `model` '{model.name}', which says what its tokens see; {hint}"
            )
    # A causal model says so already; only the contradiction is refused.
    if values.get("causal") and not model.causal:
        more = "whose tokens see all others; accepted: without it"
        raise InputError(f"`causal=True` contradicts `model` '{model.name}', {more}")
    if layers is not None:
        model = _first(model, layers)
    for name in SHAPE:
        if values.get(name) is not None:
            model = _with(model, name, values[name])
    if tensor_parallel is not None:
        gpus = whole("tensor_parallel", tensor_parallel, 1, MAX_GPUS)
        # Fewer key/value heads than GPUs: each head lies on several GPUs, and its cache with it.
        on_several = any(kind.latent is None and kind.kv_heads < gpus for kind in model.kinds)
        kinds = tuple(kind.split(gpus) for kind in model.kinds)
        model = replace(
            model,
            kinds=kinds,
            states=tuple(state.split(gpus) for state in model.states),
            tensor_parallel=gpus,
        )
        if gpus > 1:
            more = "; key/value heads fewer than GPUs are on several" if on_several else ""
            note = f"each of {some(gpus, 'GPU')}: its share of the heads{more}; what GPUs exchange is not counted"
            model = _noted(model, note)
    return model


def _noted(model: Model, note: str) -> Model:
    return replace(model, notes=(*model.notes, note))


def _with(model: Model, name: str, value: Any) -> Model:
    if isinstance(value, list | tuple):
        several = ",".join(map(str, value))
        raise InputError(
            f"`{name}` {several} are {len(value)} values; accepted beside `model`: one of them"
        )
    if name == "window":
        value = whole("window", value, 0, MAX_TOKENS) + 1  # the query itself counts
    windows = any(kind.window is not None for kind in model.kinds)
    kinds: list[LayerKind] = []
    before: dict[Any, None] = {}
    for kind in model.kinds:
        # Layers with full attention keep it: a window takes the place of windows, where there are any.
        if name == "window" and windows and kind.window is None:
            kinds.append(kind)
            continue
        if kind.latent is not None and name != "heads":
            more = f"whose {kind.name} layers make keys and values of one latent vector; accepted: `heads`"
            raise InputError(f"`{name}` {value} contradicts `model` '{model.name}', {more}")
        before[getattr(kind, name)] = None
        kinds.append(_kind_with(kind, name, value))
    # The model's own value was asked for: nothing changed, nothing to note.
    if list(before) == [value]:
        return model
    previous = " and ".join("none" if old is None else str(old) for old in before)
    note = f"{name} {value} in place of the model's {previous}"
    if name == "window":
        note = f"window of {some(value, 'token')}, the query's own among them, in place of the model's {previous}"
    title = f"{model.title} with {name.replace('_', ' ')} {value}"
    return _noted(replace(model, kinds=tuple(kinds), title=title), note)


def _kind_with(kind: LayerKind, name: str, value: int) -> LayerKind:
    changes: dict[str, Any] = {name: value}
    # Tied sizes stay tied: multi-head attention stays so, and V keeps as many columns as K.
    if name == "heads" and kind.kv_heads == kind.heads:
        changes["kv_heads"] = value
    if name == "head_dim" and kind.head_dim_v == kind.head_dim:
        changes["head_dim_v"] = value
    if name == "window" and kind.name == "full":
        changes["name"] = "sliding"
    return replace(kind, **changes)


def _first(model: Model, layers: int) -> Model:
    order, all_layers = model.order[:layers], len(model.order)
    if isinstance(layers, bool) or not 1 <= layers <= all_layers:
        raise InputError(
            f"`layers` {layers} is out of range; accepted: 1 to {all_layers}, the layers of '{model.name}'"
        )
    # Kinds keep their order and lose layers; a kind without any left is dropped.
    kinds, states = (
        tuple(replace(kind, count=n) for kind in some_kinds if (n := order.count(kind.name)))
        for some_kinds in (model.kinds, model.states)
    )
    if not kinds and model.kinds:
        none = f"none of the first {layers} layers of '{model.name}' attends"
        raise InputError(f"`layers` {layers}: {none}; accepted: more")
    if layers == all_layers:
        return model
    first = replace(model, order=order, kinds=kinds, states=states)
    return _noted(first, f"the first {layers} of {some(all_layers, 'layer')}")


@dataclass(frozen=True)
class LayerCall:
    """One layer's call, of all layers of its kind, at one length."""

    kind: LayerKind
    queries: int
    keys: int
    """Tokens of a sequence so far, the queries' own among them."""
    problem: AttentionProblem

    def on(self, kernel: str | Kernel) -> AttentionProblem:
        """The problem as a kernel runs it, with the layer's learned sinks where it has a place for them."""
        return with_sinks(self.problem, kernel) if self.kind.sinks else self.problem

    def request(
        self, kernel: str | Kernel, gpu: Gpu, changed: Overrides | None, **how: Any
    ) -> Request:
        """Its prediction with a kernel, as the model's library runs it, or with the one that alone runs such layers, as
        it is."""
        state_kernel = self.kind.state_kernel
        run = in_model(kernel) if isinstance(kernel, str) else kernel
        return Request(
            self.on(kernel), state_kernel or run, gpu, None if state_kernel else changed, **how
        )


def calls_of(
    model: Model, values: Mapping[str, Any], *, states: bool = False
) -> list[tuple[LayerCall, ...]]:
    """The calls of all kinds of layers, with `states` of those that keep one, too, for every number of query tokens
    asked for. Raises InputError: values that make no sense, or lengths that a model's layers cannot have. `values`: as
    `iosim.problem.asked.problems` takes them; what the model decides is taken from it (`changed` has put in what was
    asked in its place), and so is the type of the inputs where none is given."""
    _check_of_model(values)
    check_queries(values)
    stated = {name: value for name, value in values.items() if value is not None}
    fields = {
        name: value
        for name, value in stated.items()
        if name in FIELDS and name not in (*OF_MODEL, *OF_LENGTH)
    }
    fields["dtype"] = stated.get("dtype") or model.dtype or FIELDS["dtype"].asked
    prefix, keys = stated.get("prefix"), stated.get("seq_k")
    if prefix is not None and keys is not None:
        raise InputError(
            f"`prefix` {prefix} contradicts `seq_k` {keys}: both say how many keys there are; give one of them"
        )
    latent = bool(stated.get("latent_kv"))
    if latent and any(kind.latent is None for kind in model.kinds):
        more = "whose layers have no latent cache; accepted: without it"
        raise InputError(f"`latent_kv=True` contradicts `model` '{model.name}', {more}")
    by_length, kinds = [], model.all_kinds if states else model.kinds
    _check_has_attention(kinds, model)
    # A default length is cut to the model's positions; a length that was asked for is not.
    default_queries = (
        model.usual_tokens(FIELDS["seq_q"].asked)
        if prefix is None and keys is None
        else FIELDS["seq_q"].asked
    )
    for queries in map(
        FIELDS["seq_q"].check, lengths(stated.get("seq_q", default_queries), "seq_q")
    ):
        # Keys: those given, or the prefix and the queries, or the queries alone.
        total = FIELDS["seq_k"].check(keys if keys is not None else queries + (prefix or 0))
        if total < queries and model.causal:
            accepted = f"{queries} or more, as the layers of `model` '{model.name}' are causal"
            raise InputError(f"`seq_k` {total} is out of range; accepted: {accepted}")
        layer_problems_of_length = (
            (kind, kind.problem(queries, total, latent_kv=latent, **fields)) for kind in kinds
        )
        by_length.append(
            tuple(
                LayerCall(kind, queries, total, problem)
                for kind, problem in layer_problems_of_length
            )
        )
    return by_length


def _check_has_attention(kinds: tuple[LayerKind, ...], model: Model) -> None:
    """Raises InputError: a model without softmax attention."""
    if not kinds:
        accepted = (
            "accepted: a model with attention; `iosim predict` and `iosim decode` take this one"
        )
        raise InputError(
            f"`model` '{model.name}' has no softmax attention, its layers keep a state; {accepted}"
        )


def _check_of_model(values: Mapping[str, Any]) -> None:
    """Raises InputError: values that a model's layers cannot have."""
    for name in ("seq_lens", "seq_lens_k"):
        if values.get(name) is not None:
            raise InputError(
                f"`{name}` goes with no `model`; accepted with one: `batch`, `seq_q` and `seq_k`"
            )


@dataclass(frozen=True)
class LayerGroup:
    """One kind of layers at lengths at which it attends alike: a window that is longer than a sequence is none."""

    kind: LayerKind
    calls: tuple[LayerCall, ...]

    @property
    def problems(self) -> tuple[AttentionProblem, ...]:
        return tuple(call.problem for call in self.calls)

    @property
    def lengths(self) -> dict[int, int]:
        """Query tokens of a problem -> of one sequence."""
        return {call.problem.seq_q: call.queries for call in self.calls}


def groups_of(model: Model, values: Mapping[str, Any]) -> list[LayerGroup]:
    def alike(call: LayerCall) -> tuple[Any, ...]:
        # Calls that differ in nothing but their lengths stand in one table.
        fields = (getattr(call.problem, name) for name in FIELDS if name not in ("seq_q", "seq_k"))
        return model.kinds.index(call.kind), *fields

    groups = grouped(chain.from_iterable(calls_of(model, values)), alike)
    return [
        LayerGroup(calls[0].kind, tuple(calls))
        for _, calls in sorted(groups.items(), key=lambda item: item[0][0])
    ]


def rows_of(model: Model, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each kind of layers and length: the model, the kind, its count and the fields of its problem. Raises
    InputError: a call of several packed sequences, which a row cannot hold, or as `calls_of`."""
    rows = []
    for calls in calls_of(model, values):
        for call in calls:
            if call.problem.seq_lens is not None:
                layers = f"{call.kind.name} layers over more than one chunk are sequences of several lengths"
                accepted = "accepted: `iosim predict`, or fewer tokens"
                raise InputError(
                    f"`model` '{model.name}': {layers}, which no sweep takes; {accepted}"
                )
            its = {name: getattr(call.problem, name) for name in FIELDS}
            # A row holds the columns that every row shows, and those that differ from their defaults.
            defaults = {name: about.resolve(call.problem) for name, about in FIELDS.items()}
            fields = {
                name: value
                for name, value in its.items()
                if name in ALWAYS or value != defaults[name]
            }
            rows.append(
                {"model": model.name, "layer": call.kind.name, "count": call.kind.count, **fields}
            )
    return rows

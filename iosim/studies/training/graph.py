"""A training step as data: the nodes that autograd records, the storages they make and what is kept for the backward.

A node is one recorded operation (PyTorch's `grad_fn`). Values are what flows between nodes; a value lies in a storage,
and views share one. Readers: `saved_storages` adds up what autograd keeps, `timeline` plays allocations, `step_time`
adds seconds. `Builder` collects the operations of a decoder as nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from iosim.base.records import cached_property, dataclass, replace
from iosim.studies.training.model import STATISTIC_BYTES, Decoder, Parameter, Setup

__all__ = ["STATISTIC_BYTES"]
_LAYER = re.compile(r"^layer(\d+)\.")


def layer_of(name: str) -> int | None:
    """The layer of a node or a parameter by its name; None outside of layers."""
    match = _LAYER.match(name)
    return int(match[1]) if match else None


class Kind(StrEnum):
    """What a storage holds; memory is reported by these."""

    PARAMETER = "parameters"
    MASTER = "fp32 master weights"
    GATHERED = "gathered parameters"
    GRADIENT = "gradients"
    OPTIMIZER = "optimizer states"
    INPUT = "inputs"
    CAST_WEIGHT = "half copies of weights"
    RESIDUAL = "residual stream"
    NORM = "norms"
    QKV = "queries, keys, values"
    SCORES = "scores (N x N)"
    ATTENTION = "attention output"
    MLP = "mlp"
    LOGITS = "logits and loss"
    FLOWING = "flowing gradients"
    WORKSPACE = "workspace"


class Part(StrEnum):
    """Where a node belongs in the report of times."""

    ATTENTION = "attention"
    PRODUCTS = "matrix products"
    ELEMENTWISE = "elementwise"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Storage:
    """`bytes` of device memory. `cached`: autocast keeps it until the forward ends, even where nothing reads it any
    more."""

    name: str
    kind: Kind
    bytes: int
    cached: bool = False


@dataclass(frozen=True)
class Gradient:
    """What a node's backward sends to `to`, a value or a parameter: a new storage of `bytes`, or with None the incoming
    gradient itself (or a view of it). `fitted`: made by the engine, which sums or casts what the node gave until it
    fits its receiver. `transposed`: a view, to which the engine adds no other gradient in place."""

    to: str
    bytes: int | None = None
    fitted: bool = False
    transposed: bool = False


@dataclass(frozen=True)
class Node:
    """One recorded operation.

    Args:
        values: the values it gives. Each lies in `makes[0]`, or where it makes nothing, in its input's storage.
        makes: storages it allocates, the output's first.
        reads: storages its forward needs.
        saved: storages autograd keeps for its backward, parameters left out.
        saves_weight: whether it keeps a parameter, too, which is no storage of its own.
        saves_output: whether one of them is its own result, which exists only once its kernel has run.
        held: storages that the calling function's variables still name while it runs.
        gradients: what its backward gives, in order.
        parameters: those that it reads, trained or not.
        backward_scratch: bytes that live within its backward alone.
        flops: of its forward's matrix product; its backward does twice as many.
        kernel: False for a view, which runs nothing.
        segment: the checkpointed segment it belongs to, if any.
    """

    name: str
    part: Part
    values: tuple[str, ...]
    makes: tuple[Storage, ...] = ()
    reads: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    saves_weight: bool = False
    saves_output: bool = False
    held: tuple[str, ...] = ()
    gradients: tuple[Gradient, ...] = ()
    parameters: tuple[str, ...] = ()
    backward_scratch: int = 0
    flops: int = 0
    kernel: bool = True
    segment: str | None = None

    @property
    def keeps(self) -> bool:
        """True where its backward needs what a checkpointed segment has to run again for."""
        return bool(self.saved) or self.saves_weight


@dataclass(frozen=True)
class Graph:
    """A step: parameters, what the caller holds throughout (`inputs`), the nodes in order, and the first gradient.
    `storages` has every storage by name, `lies_in` the storage of every value. `segments` names the storages that a
    checkpointed segment is given and keeps. `seed` is the storage of the gradient that the backward starts from;
    `seed_held` says that the caller keeps it."""

    model: Decoder
    setup: Setup
    parameters: tuple[Parameter, ...]
    inputs: tuple[Storage, ...]
    nodes: tuple[Node, ...]
    storages: Mapping[str, Storage]
    lies_in: Mapping[str, str]
    segments: Mapping[str, tuple[str, ...]]
    seed: Storage
    seed_held: bool

    def parameters_of(self, node: Node) -> tuple[Parameter, ...]:
        return tuple(self._named[name] for name in node.parameters)

    @cached_property
    def _named(self) -> dict[str, Parameter]:
        return {p.name: p for p in self.parameters}

    @property
    def parameter_elements(self) -> int:
        return sum(p.elements for p in self.parameters)

    @property
    def trained_elements(self) -> int:
        return sum(p.elements for p in self.trained)

    @cached_property
    def trained(self) -> tuple[Parameter, ...]:
        """Parameters that get gradients and states of an optimizer."""
        return tuple(p for p in self.parameters if p.trained)


def saved_storages(graph: Graph) -> tuple[Storage, ...]:
    """Every storage that some node keeps for its backward, once each, parameters left out. A checkpointed segment
    keeps what it is given; a saved half copy of a weight counts, as it is a storage of its own."""
    names: dict[str, None] = {}
    for segment in graph.segments.values():
        names |= dict.fromkeys(segment)
    for node in graph.nodes:
        if node.segment is None:
            names |= dict.fromkeys(node.saved)
    return tuple(graph.storages[n] for n in names)


def by_kind(storages: tuple[Storage, ...]) -> dict[Kind, int]:
    total: Counter[Kind] = Counter()
    for s in storages:
        total[s.kind] += s.bytes
    return dict(total.most_common())


class Builder:
    """Collects nodes and storages of one step, under one precision and backend. Values are named after their nodes.
    What each node saves follows PyTorch's derivatives.yaml (addmm and bmm their operands, softmax and relu their
    result, gelu and silu their input, layer norm its input and two statistics a row), what it copies the rules of
    `reshape` and `matmul`, and what autocast casts its lists of operations. tests/studies/training/test_graph.py
    compares each with PyTorch."""

    def __init__(self, model: Decoder, setup: Setup) -> None:
        self.model = model
        self.setup = setup
        self.number = setup.number
        self.rows = setup.batch * setup.seq_len
        self.nodes: list[Node] = []
        self.storages: dict[str, Storage] = {}
        self.lies_in: dict[str, str] = {}
        self.inputs: list[Storage] = []
        self.segments: dict[str, tuple[str, ...]] = {}
        self.segment: str | None = None
        self.elements: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.parameters: list[Parameter] = []
        self.frozen = bool(setup.lora_rank)
        """Parameters to come are not trained."""
        self.wanting: set[str] = set()
        """Trained parameters, and values that depend on one: what gradients are computed for."""

    # Values and storages

    def storage(self, name: str, kind: Kind, size: int) -> Storage:
        # Autocast's cache holds half copies of parameters that want a gradient
        # (aten/src/ATen/autocast_mode.cpp, cached_cast).
        cached = kind is Kind.CAST_WEIGHT and not self.frozen
        self.storages[name] = new = Storage(name, kind, size, cached)
        return new

    def parameter(self, name: str, elements: int, *, embedding: bool = False) -> str:
        """A tensor of the model; of one that is used twice, at its first use."""
        if name not in self.elements:
            self.parameters.append(Parameter(name, elements, embedding, not self.frozen))
            self.elements[name] = elements
            if not self.frozen:
                self.wanting.add(name)
        return name

    def given(self, name: str, kind: Kind, elements: int, element_bytes: int) -> str:
        self.inputs.append(self.storage(name, kind, elements * element_bytes))
        self._value(name, name, elements, element_bytes)
        return name

    def _value(self, name: str, storage: str, elements: int, element_bytes: int) -> None:
        self.lies_in[name] = storage
        self.elements[name] = elements
        self.sizes[name] = element_bytes

    def bytes_of(self, value: str) -> int:
        return self.elements[value] * self.sizes[value]

    def add(self, node: Node) -> None:
        """Record a node. It sends no gradients to what wants none; if nobody wants one, it keeps nothing."""
        parameters = tuple(g.to for g in node.gradients if g.to not in self.lies_in)
        # As autograd: an operation is recorded if any input wants a gradient, and then keeps what its
        # backward needs.
        gradients = tuple(g for g in node.gradients if g.to in self.wanting)
        if gradients:
            self.wanting.update(node.values)
        saved = node.saved if gradients else ()
        self.nodes.append(replace(node, gradients=gradients, saved=saved, parameters=parameters))

    # Nodes of general use

    def view(
        self, name: str, values: dict[str, int], source: str, gradient: int | None = None
    ) -> None:
        """Views of `source`, each with its number of elements; their gradient is one new storage of `gradient` bytes
        (parts put together) or a view."""
        for value, elements in values.items():
            self._value(value, self.lies_in[source], elements, self.sizes[source])
        self.add(
            Node(
                name,
                Part.ELEMENTWISE,
                tuple(values),
                gradients=(Gradient(source, gradient),),
                kernel=gradient is not None,
                segment=self.segment,
            )
        )

    def pointwise(
        self,
        name: str,
        sources: Iterable[str],
        kind: Kind,
        size: tuple[int, int] | None = None,
        *,
        saved: Sequence[str | Storage] = (),
        gradients: Iterable[Gradient] | None = None,
        parameters: tuple[str, ...] = (),
    ) -> str:
        """A node that reads `sources` and makes one tensor of a size (elements, bytes of each; by default the first
        source's). It saves values, of which its own result may be one, and storages that it makes for that. Unless
        `gradients` says otherwise each source gets a new gradient of its own size."""
        # The result is named before it exists, so that a node may save its own output.
        of, saves_output = tuple(sources), name in saved
        elements, element_bytes = size or (self.elements[of[0]], self.sizes[of[0]])
        new = self.storage(name, kind, elements * element_bytes)
        self._value(name, name, elements, element_bytes)
        if gradients is None:
            gradients = tuple(Gradient(s, self.bytes_of(s)) for s in of)
        gradients = (*gradients, *(Gradient(p, self.parameter_bytes(p)) for p in parameters))
        extra = tuple(s for s in saved if isinstance(s, Storage))
        others = (s.name if isinstance(s, Storage) else self.lies_in[s] for s in saved if s != name)
        saved_names = (*others, *(name,) * saves_output)
        self.add(
            Node(
                name,
                Part.ELEMENTWISE,
                (name,),
                (new, *extra),
                tuple(self.lies_in[s] for s in of),
                saved_names,
                saves_output=saves_output or bool(extra),
                gradients=gradients,
                segment=self.segment,
            )
        )
        return name

    def parameter_bytes(self, name: str) -> int:
        return self.elements[name] * self.number.parameter_bytes

    def cast(self, name: str, source: str, element_bytes: int, kind: Kind) -> str:
        """A copy of `source`, a value or a parameter, in another type, as autocast makes it."""
        value = source in self.sizes
        back = Gradient(source, self.bytes_of(source) if value else self.parameter_bytes(source))
        return self.pointwise(
            name, [source] * value, kind, (self.elements[source], element_bytes), gradients=[back]
        )

    def copy(self, name: str, source: str, kind: Kind) -> str:
        return self.pointwise(name, [source], kind, gradients=[Gradient(source)])

    def to_compute(self, source: str, name: str, kind: Kind) -> str:
        """`source` as the products read it: itself, or autocast's half copy."""
        if self.sizes[source] == self.number.compute_bytes:
            return source
        return self.cast(name, source, self.number.compute_bytes, kind)

    def hold(self, *values: str) -> None:
        """The last node runs while the caller's variables still name `values`."""
        self.amend(
            held=tuple(dict.fromkeys((*self.nodes[-1].held, *(self.lies_in[v] for v in values))))
        )

    def amend(self, **changes: Any) -> None:
        self.nodes[-1] = replace(self.nodes[-1], **changes)

    def factors(self, first: str, second: str) -> list[str]:
        """Which operands a product keeps: each for the other's gradient, if that is wanted."""
        other = {first: second, second: first}
        return [value for value in other if other[value] in self.wanting]

    # Layers of a network

    def linear(
        self, name: str, source: str, out: int, kind: Kind, *, weight: str | None = None, bias: bool
    ) -> str:
        """source [rows, columns] times a weight [out, columns], transposed, plus a bias."""
        n, columns = self.number, self.elements[source] // self.rows
        w = self.parameter(weight or f"{name}.weight", out * columns)
        b = self.parameter(f"{name}.bias", out) if bias else ""
        # Half copies are made once per forward and cached until its end, each a storage of its own.
        if n.autocast:  # the arguments are cast last to first
            b = self.cast(f"{name}.bias.half", b, n.compute_bytes, Kind.CAST_WEIGHT) if bias else b
            w = self.cast(f"{name}.weight.half", w, n.compute_bytes, Kind.CAST_WEIGHT)
        x = self.to_compute(source, f"{name}.input", self.storages[self.lies_in[source]].kind)
        gradients = [Gradient(b, out * n.compute_bytes, fitted=True)] if bias else []
        gradients += [
            Gradient(x, self.bytes_of(x)),
            Gradient(w, out * columns * n.compute_bytes, transposed=True),
        ]
        reads = (x, w) if n.autocast else (x,)
        # The weight is kept for the input's gradient, the input for the weight's. Parameters are no
        # storages of their own.
        saved = [v for v in self.factors(x, w) if v in reads]
        size = (self.rows * out, n.compute_bytes)
        self.pointwise(name, reads, kind, size, saved=saved, gradients=gradients)
        self.amend(
            part=Part.PRODUCTS,
            flops=2 * self.rows * out * columns,
            saves_weight=x in self.wanting and w not in reads,
        )
        self.hold(source, *([b] if bias and n.autocast else []))
        return name

    def norm(self, name: str, source: str) -> str:
        """Layer or RMS norm over the columns, in the type of `source`; statistics a row are kept."""
        if self.model.norm == "none":
            return source
        layer, cpu = self.model.norm == "layer", self.setup.backend == "cpu"
        # Statistics per row: mean and 1 / std for LayerNorm, 1 / rms for RMSNorm.
        a_row = self.rows * (self.number.parameter_bytes if layer and cpu else STATISTIC_BYTES)
        in_fp32 = self.elements[source] * STATISTIC_BYTES
        statistics, saved = {"mean": a_row, "rstd": a_row} if layer else {"rstd": a_row}, [source]
        if (
            cpu and not layer and source not in self.wanting
        ):  # of elementary operations; only the weight's is recorded
            statistics, saved = {"normalized": in_fp32}, []
        elif cpu and not layer:
            # Kept for the weight's gradient; what it is made of, for the source's.
            if not self.frozen:
                statistics["normalized"] = in_fp32
            if self.sizes[source] < STATISTIC_BYTES:
                statistics["fp32"], saved = in_fp32, []
        extra = [self.storage(f"{name}.{s}", Kind.NORM, size) for s, size in statistics.items()]
        columns, trained = (
            self.elements[source] // self.rows,
            ("weight", "bias") if layer else ("weight",),
        )
        weights = tuple(self.parameter(f"{name}.{w}", columns) for w in trained)
        return self.pointwise(name, [source], Kind.NORM, saved=[*saved, *extra], parameters=weights)

    def activation(self, name: str, source: str, kind: Kind) -> str:
        return self.pointwise(
            name, [source], kind, saved=[name if self.model.activation == "relu" else source]
        )

    def residual(self, name: str, stream: str, branch: str) -> str:
        """stream + branch. The stream's gradient is the incoming one; so is the branch's, unless its type differs."""
        same = self.sizes[stream] == self.sizes[branch]
        to_branch = Gradient(branch, None if same else self.bytes_of(branch), fitted=True)
        return self.pointwise(
            name, [stream, branch], Kind.RESIDUAL, gradients=[Gradient(stream), to_branch]
        )

    @contextmanager
    def checkpointed(self, recompute: str, name: str, *values: str) -> Iterator[None]:
        """Under this kind of recomputation what runs inside is a segment that keeps `values` alone, and runs again in
        the backward."""
        before = self.segment
        if self.setup.recompute == recompute:
            kept = dict.fromkeys(self.lies_in[value] for value in values)
            self.segment, self.segments[name] = name, tuple(kept)
        yield
        self.segment = before

    def graph(self, seed: Storage, seed_held: bool) -> Graph:
        return Graph(
            self.model,
            self.setup,
            tuple(self.parameters),
            tuple(self.inputs),
            tuple(self.nodes),
            self.storages,
            self.lies_in,
            self.segments,
            seed,
            seed_held,
        )

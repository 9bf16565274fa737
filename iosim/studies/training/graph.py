"""A training step as data: the nodes that autograd records, the storages they make and what is kept for the backward.

A node is one recorded operation (PyTorch's `grad_fn`). Values are what flows between nodes; a value lies in a storage,
and views share one. Readers: `saved_storages` adds up what autograd keeps, `timeline` plays allocations, `step_time`
adds seconds. `Builder` collects the operations of a decoder as nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from iosim.base.records import cached_property, dataclass, replace
from iosim.studies.program.derivatives import OUT, derivatives, kept
from iosim.studies.training.model import STATISTIC_BYTES, Decoder, Parameter, Setup

__all__ = ["STATISTIC_BYTES"]
STATISTICS = {"layer": ("mean", "rstd"), "rms": ("rstd",)}
"""What a norm keeps of each row."""
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
    What each node saves and sends follows `derivatives.toml`, what it copies the rules of `reshape` and `matmul`, and
    what autocast casts its lists of operations. tests/studies/training/test_graph.py compares each with PyTorch."""

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

    def made(self, name: str, kind: Kind, size: int) -> str:
        """A storage that the next node makes beside its result."""
        return self.storage(name, kind, size).name

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

    def operator(
        self,
        operator: str,
        name: str,
        reads: Mapping[str, str],
        kind: Kind,
        size: tuple[int, int] | None = None,
        *,
        beside: Mapping[str, str] | None = None,
        fitted: Mapping[str, int | None] | None = None,
    ) -> str:
        """A node of an operator of `derivatives.toml`, which makes one tensor of a size (elements, bytes of each; by
        default the first operand's). `reads` are the operands that are gone through; `beside` the others: parameters,
        numbers of rows, a mask, and storages that the node makes, as a norm its statistics. What it keeps and whose
        gradients it gives is said by the operator's rows. `fitted`: operands to which the engine fits the gradient that
        is handed on, and the bytes that this makes, None where it is as large."""
        operands = {**reads, **(beside or {}), OUT: name}
        elements, element_bytes = size or self._size_of(next(iter(reads.values())))
        new = self.storage(name, kind, elements * element_bytes)
        self._value(name, name, elements, element_bytes)
        # Storages that nobody gave are the node's own, made beside its result.
        own = [s for s in operands.values() if s not in self.elements]
        saved = self._saved(operator, operands)
        parameters = {place for place in operands.values() if self._is_parameter(place)}
        self.add(
            Node(
                name,
                Part.ELEMENTWISE,
                (name,),
                (new, *(self.storages[s] for s in own)),
                tuple(self.lies_in[s] for s in reads.values() if s not in parameters),
                tuple(self.lies_in.get(s, s) for s in saved if s not in parameters),
                saves_weight=any(s in parameters for s in saved),
                saves_output=name in saved or any(s in own for s in saved),
                gradients=tuple(self._gradients(operator, operands, fitted or {})),
                segment=self.segment,
            )
        )
        return name

    def _is_parameter(self, place: str) -> bool:
        return place in self.elements and place not in self.sizes

    def _size_of(self, value: str) -> tuple[int, int]:
        return self.elements[value], self.sizes[value]

    def _saved(self, operator: str, operands: Mapping[str, str]) -> list[str]:
        """What an operator keeps of its operands; the result last, as it is there last."""
        wanting = [operand for operand, place in operands.items() if place in self.wanting]
        names = [name for name in kept(operator, wanting) if name in operands]
        return [operands[name] for name in sorted(names, key=lambda name: name == OUT)]

    def _gradients(
        self,
        operator: str,
        operands: Mapping[str, str],
        fitted: Mapping[str, int | None],
    ) -> Iterator[Gradient]:
        """What an operator's backward gives, in order: a launch makes a new storage, without one the gradient that
        comes in is handed on."""
        step_of = {operand: step for step in derivatives()[operator] for operand in step.gives}
        # NB: in the order of the operands; PyTorch's is that of the launches.
        for operand, place in operands.items():
            if operand in step_of:
                step = step_of[operand]
                made = self.gradient_bytes(place) if step.launch else fitted.get(operand)
                yield Gradient(place, made, operand in fitted, step.transposed)

    def gradient_bytes(self, place: str) -> int:
        """Bytes of the gradient of a value or a parameter, as large as that."""
        size = self.number.parameter_bytes if self._is_parameter(place) else self.sizes[place]
        return self.elements[place] * size

    def cast(self, name: str, source: str, element_bytes: int, kind: Kind) -> str:
        """A copy of `source`, a value or a parameter, in another type, as autocast makes it."""
        size = (self.elements[source], element_bytes)
        return self.operator("_to_copy", name, {"x": source}, kind, size)

    def copy(self, name: str, source: str, kind: Kind) -> str:
        return self.operator("clone", name, {"x": source}, kind)

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
        self.operator(
            "addmm" if bias else "mm",
            name,
            {"x": x, "weight": w},
            kind,
            (self.rows * out, n.compute_bytes),
            beside={"bias": b} if bias else None,
            fitted={"bias": out * n.compute_bytes},
        )
        self.amend(part=Part.PRODUCTS, flops=2 * self.rows * out * columns)
        self.hold(source, *([b] if bias and n.autocast else []))
        return name

    def norm(self, name: str, source: str) -> str:
        """Layer or RMS norm over the columns, in the type of `source`; statistics a row are kept."""
        if self.model.norm == "none":
            return source
        layer, cpu = self.model.norm == "layer", self.setup.backend == "cpu"
        columns = self.elements[source] // self.rows
        weights = {"scale": self.parameter(f"{name}.weight", columns)}
        if layer:
            weights["shift"] = self.parameter(f"{name}.bias", columns)
        if cpu and not layer:
            return self._norm_of_parts(name, source, weights)
        # Statistics per row: mean and 1 / std for LayerNorm, 1 / rms for RMSNorm.
        a_row = self.rows * (self.number.parameter_bytes if cpu else STATISTIC_BYTES)
        made = {s: self.made(f"{name}.{s}", Kind.NORM, a_row) for s in STATISTICS[self.model.norm]}
        return self.operator("norm", name, {"x": source}, Kind.NORM, beside={**made, **weights})

    def _norm_of_parts(self, name: str, source: str, weights: Mapping[str, str]) -> str:
        """The RMS norm as the CPU composes it, in fp32: what its operations keep, as one node."""
        in_fp32 = self.elements[source] * STATISTIC_BYTES
        made, x = dict[str, str](), source
        if source in self.wanting:
            made["rstd"] = self.made(f"{name}.rstd", Kind.NORM, self.rows * STATISTIC_BYTES)
        # Kept for the weight's gradient; what it is made of, for the source's.
        if source not in self.wanting or not self.frozen:
            made["normalized"] = self.made(f"{name}.normalized", Kind.NORM, in_fp32)
        if source in self.wanting and self.sizes[source] < STATISTIC_BYTES:
            x = self.made(f"{name}.fp32", Kind.NORM, in_fp32)
        return self.operator(
            "norm_of_parts",
            name,
            {"x": source},
            Kind.NORM,
            beside={**made, "x_in_fp32": x, **weights},
        )

    def activation(self, name: str, source: str, kind: Kind) -> str:
        return self.operator(self.model.activation, name, {"x": source}, kind)

    def residual(self, name: str, stream: str, branch: str) -> str:
        """stream + branch. The stream's gradient is the incoming one; so is the branch's, unless its type differs."""
        same = self.sizes[stream] == self.sizes[branch]
        fitted = {"other": None if same else self.bytes_of(branch)}
        return self.operator(
            "add", name, {"x": stream, "other": branch}, Kind.RESIDUAL, fitted=fitted
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

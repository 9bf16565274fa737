"""A training step as data: the nodes that autograd records, the storages they make and what is kept for the backward.

A node is one recorded operation (PyTorch's `grad_fn`). Values are what flows between nodes; a value lies in a storage,
and views share one. Readers: `saved` adds up what autograd keeps, `timeline` plays allocations, `step_time` adds
seconds. Nothing here knows a model, a GPU or an allocator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Kind(StrEnum):
    """What a storage holds; memory is reported by these."""

    PARAMETER = "parameters"
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
    """`bytes` of device memory; `cached` is kept until the forward ends even where nothing reads it any more."""

    name: str
    kind: Kind
    bytes: int
    cached: bool = False


@dataclass(frozen=True)
class Parameter:
    """A trained tensor of `elements`. `embedding`: read by row number."""

    name: str
    elements: int
    embedding: bool = False


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
        saves_output: whether one of them is its own result, which exists only once its kernel has run.
        held: storages that the calling function's variables still name while it runs.
        gradients: what its backward gives, in order.
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
    saves_output: bool = False
    held: tuple[str, ...] = ()
    gradients: tuple[Gradient, ...] = ()
    backward_scratch: int = 0
    flops: int = 0
    kernel: bool = True
    segment: str | None = None


@dataclass(frozen=True)
class Graph:
    """A step: parameters, what the caller holds throughout (`inputs`), the nodes in order, and the first gradient.

    `storages` has every storage by name, `lies_in` the storage of every value. `segments` names the storages that a
    checkpointed segment is given and keeps. `seed` is the storage of the gradient that the backward starts from;
    `seed_held` says that the caller keeps it.
    """

    parameters: tuple[Parameter, ...]
    inputs: tuple[Storage, ...]
    nodes: tuple[Node, ...]
    storages: Mapping[str, Storage]
    lies_in: Mapping[str, str]
    segments: Mapping[str, tuple[str, ...]]
    seed: Storage
    seed_held: bool

    def parameters_of(self, node: Node) -> tuple[Parameter, ...]:
        """The parameters that a node reads."""
        return tuple(self._named[g.to] for g in node.gradients if g.to in self._named)

    @cached_property
    def _named(self) -> dict[str, Parameter]:
        return {p.name: p for p in self.parameters}

    @property
    def parameter_elements(self) -> int:
        return sum(p.elements for p in self.parameters)


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


def saved_bytes(graph: Graph) -> int:
    """Bytes of `saved_storages`."""
    return sum(s.bytes for s in saved_storages(graph))


def by_kind(storages: tuple[Storage, ...]) -> dict[Kind, int]:
    """Bytes by what the storages hold, largest first."""
    total: dict[Kind, int] = {}
    for s in storages:
        total[s.kind] = total.get(s.kind, 0) + s.bytes
    return dict(sorted(total.items(), key=lambda item: -item[1]))

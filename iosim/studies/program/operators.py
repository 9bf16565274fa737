"""A program: storages that come and go, and operators that run in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain
from iosim.problem.attention import AttentionProblem


@dataclass(frozen=True)
class View:
    """Elements of a storage: `offset` and `strides` in elements, as PyTorch counts them."""

    storage: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int

    @cached_property
    def bytes(self) -> int:
        """Bytes of the elements, each once: an expanded axis costs nothing, and windows that overlap no more than what
        they span."""
        distinct, span = 1, 1
        for size, stride in zip(self.sizes, self.strides, strict=True):
            if size == 0:
                return 0
            if stride:
                distinct *= size
                span += (size - 1) * abs(stride)
        return min(distinct, span) * self.element_bytes

    @cached_property
    def band(self) -> tuple[int, int, int]:
        """(elements of a row's piece, elements of a row, elements before the piece in its row) where the view takes one
        piece of every row of a wider matrix, as Q does of a fused projection; else the piece is the whole row."""
        dense = 1
        axes = sorted(
            (stride, size) for size, stride in zip(self.sizes, self.strides, strict=True) if stride and size > 1
        )
        for stride, size in axes:
            if stride > dense:
                return dense, stride, self.offset % stride
            dense *= size
        return dense, dense, 0


@dataclass(frozen=True)
class Operator:
    """One operator as it runs: `chain` holds its launches, `views` says where tensors of the chain lie; the others are
    made inside it.

    `is_kernel`: its launches loop over tiles, so that what it reads again is found by a replay of its own. `known`:
    there is a rule for it, rather than its inputs read and its outputs written once. `product_flops`: operations of a
    matrix product, whose tiles may reach over its edges.
    """

    name: str
    module: tuple[str, ...]
    phase: str
    problem: AttentionProblem
    kernel: Kernel
    chain: Chain
    views: Mapping[str, View] = field(hash=False)
    is_kernel: bool = False
    is_attention: bool = False
    known: bool = True
    product_flops: int = 0
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """Operations of its matrix products; of attention those over kept pairs."""
        return self.product_flops or (self.problem.matmul_flops() if self.is_kernel else 0)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of its inputs and outputs, each once."""
        return sum(view.bytes for view in self.views.values())


@dataclass(frozen=True)
class Storage:
    """A piece of memory: `made` and `freed` are the numbers of operators that had run by then; None for what was there
    before the first and for what stays."""

    bytes: int
    made: int | None = None
    freed: int | None = None


@dataclass(frozen=True)
class Program:
    """Operators in order, and the storages by number."""

    storages: tuple[Storage, ...]
    operators: tuple[Operator, ...]

    @classmethod
    def of_one(cls, operator: Operator) -> Program:
        """An operator with nothing before it, its storages as large as what it touches of them."""
        ends: dict[int, int] = {}
        for view in operator.views.values():
            last = view.offset + sum((n - 1) * s for n, s in zip(view.sizes, view.strides, strict=True) if n)
            ends[view.storage] = max(ends.get(view.storage, 0), (last + 1) * view.element_bytes)
        count = max(ends, default=-1) + 1
        return cls(tuple(Storage(ends.get(n, 0)) for n in range(count)), (operator,))

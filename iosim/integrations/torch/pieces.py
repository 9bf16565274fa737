"""What a formula says of an operator: the launches that it makes, over PyTorch's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.base.registry import Registry


@dataclass(frozen=True)
class Scratch:
    """Memory that an operator takes for itself."""

    bytes: int


@dataclass(frozen=True)
class Part:
    """`elements` of a tensor, where an operator does not touch all of it: the rows that are looked up in a table."""

    tensor: Tensor
    elements: int


Place = Tensor | Part | Scratch


@dataclass(frozen=True)
class Pass:
    """One kernel launch that reads each of `reads` and writes each of `writes` once.

    `rows`: a CTA takes one of so many rows; it goes through those of `again` so often.
    """

    reads: Sequence[Place]
    writes: Sequence[Place]
    name: str = ""
    rows: int | None = None
    again: Sequence[tuple[Tensor, int]] = ()


@dataclass(frozen=True)
class Product:
    """One matrix product, c = a b: [batch, rows, inner] by [batch, inner, cols]; `bias` is read by its epilogue."""

    a: Tensor
    b: Tensor
    c: Tensor
    bias: Tensor | None = None
    name: str = ""
    sizes: tuple[int, int, int, int] | None = None
    """(batch, rows, cols, inner) where the tensors' shapes do not say it: a convolution's."""

    @property
    def extent(self) -> tuple[int, int, int, int]:
        """(batch, rows, cols, inner); a vector counts as one row or column."""
        if self.sizes is not None:
            return self.sizes
        left, right = tuple(self.a.shape), tuple(self.b.shape)
        rows = left[-2] if len(left) > 1 else 1
        cols = right[-1] if len(right) > 1 else 1
        return max(math.prod(left[:-2]), math.prod(right[:-2])), rows, cols, left[-1]


Piece = Pass | Product
Formula = Callable[..., Iterable[Piece]]
"""Called with the operator's arguments and, as the keyword `out`, with what it gave."""

REGISTRY: Registry[Any, Formula] = Registry("operator")


def register_traffic_formula(operator: Any, *more: Any, override: bool = False) -> Callable[[Formula], Formula]:
    """Say what launches an operator makes.

        @register_traffic_formula(torch.ops.mylib.scale_rows)
        def scale_rows(x, scales, *, out):
            return [Pass(reads=[x, scales], writes=[out])]

    Args:
        operator: an operator of torch.ops, with or without its overload; `more` of them share the formula.
        override: replace a formula that there is.

    Raises:
        InputError: what is no operator, or has a formula already.
    """
    packets = [_packet(one) for one in (operator, *more)]

    def register(formula: Formula) -> Formula:
        for packet in packets:
            REGISTRY.put(packet, formula, override)
        return formula

    return register


def _packet(operator: Any) -> Any:
    if isinstance(operator, torch._ops.OpOverload):
        return operator.overloadpacket
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return operator
    custom = getattr(operator, "_opoverload", None)  # of torch.library.custom_op
    if custom is not None:
        return custom.overloadpacket
    raise InputError(f"operator {operator!r} is no operator of PyTorch; accepted: torch.ops.LIBRARY.NAME")

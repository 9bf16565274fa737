"""Planning on duals: a kernel's chain whose every size carries its companion (`iosim.dual`)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from iosim.algorithms import plan
from iosim.dtypes import DType
from iosim.dual import Dual, Kind
from iosim.kernel import Kernel, Tile
from iosim.launch import Chain
from iosim.problem import AttentionProblem


class _LiftedProblem(AttentionProblem):
    """A problem whose sizes are duals; its checks were made on the representative."""

    element_bytes: int
    output_bytes: int

    @property
    def input_type(self) -> DType:
        return replace(super().input_type, bytes=self.element_bytes)

    @property
    def output_type(self) -> DType:
        return replace(super().output_type, bytes=self.output_bytes)


def lifted_chain(problem: AttentionProblem, kernel: Kernel, companions: Mapping[str, Any], kind: Kind) -> Chain:
    """The chain of `kernel` on `problem`, planned on duals.

    `companions` are those of the problem's sizes (batch, heads, kv_heads, seq_q, seq_k, head_dim, head_dim_v, window,
    offset, element_bytes, output_bytes) and the kernel's (block_q, block_k, backward_block_q, backward_block_k,
    splits); what is not among them stays an int. The offset follows seq_k - seq_q where the problem sets none.
    """

    def lift(name: str, value: int) -> int:
        return Dual(value, companions[name], kind) if name in companions else value

    def lift_tile(tile: Tile, prefix: str = "") -> Tile:
        made = copy.copy(tile)
        for name in ("block_q", "block_k"):
            object.__setattr__(made, name, lift(prefix + name, getattr(tile, name)))
        return made

    made = object.__new__(_LiftedProblem)
    put = object.__setattr__
    for f in fields(problem):
        value = getattr(problem, f.name)
        put(made, f.name, lift(f.name, value) if type(value) is int else value)
    put(made, "element_bytes", lift("element_bytes", problem.input_type.bytes))
    put(made, "output_bytes", lift("output_bytes", problem.output_type.bytes))
    mask = problem.interval_mask
    if not mask.is_full:
        offset = made.n_seq_k - made.seq_q if made.offset is None else made.offset
        put(made, "interval_mask", replace(mask, offset=offset, left=made.window if mask.left is not None else None))
    back = kernel.backward_tile
    return plan(
        made,
        replace(
            kernel,
            tile=lift_tile(kernel.tile),
            backward_tile=None if back is None else lift_tile(back, "backward_"),
            splits=lift("splits", kernel.splits),
            compiled_head_dim=None,  # counts the products of padded columns, moves no byte
        ),
    )

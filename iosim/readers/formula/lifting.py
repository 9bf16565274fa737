"""Planning on duals: a kernel's chain whose every size carries its companion (`iosim.readers.formula.dual`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import fields, replace
from iosim.catalog.algorithms import algorithm_of, plan
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Domain
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import DType
from iosim.problem.masks.blocks import BlockMask
from iosim.problem.masks.mask import IntervalMask, Mask
from iosim.readers.formula.dual import Dual, Kind
from iosim.readers.formula.sums import BlockSums


class _LiftedProblem(AttentionProblem):
    element_bytes: int
    output_bytes: int

    def with_(self, **changes: Any) -> AttentionProblem:
        """A copy with some values changed, of which none brings another mask than none."""
        if changes.get("mask", "none") != "none":
            raise TypeError("a lifted problem takes no other mask")
        changed = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        if "mask" in changes:
            object.__setattr__(changed, "pair_mask", IntervalMask())
        return changed

    @property
    def input_type(self) -> DType:
        return replace(super().input_type, bytes=self.element_bytes)

    @property
    def output_type(self) -> DType:
        return replace(super().output_type, bytes=self.output_bytes)


LISTS = "lists"
"""A list of blocks' companion: from a name of `sums.NAMES`, its value and whether the tile is the backward's, to the
sum's."""


class _LiftedInterval(IntervalMask):
    __slots__ = ()

    def kept_pairs(self, seq_q: int, seq_k: int) -> int:
        """As of ints: the visits of tiles of one row and one key."""
        return BlockSums(Domain(1, 1, seq_q, seq_k, 1, 1, self)).visits.total


class _LiftedBlocks(BlockMask):
    lift: Callable[[Domain, str, int], int]


def _lifted_mask(
    problem: AttentionProblem, symbols: Callable[[str, int, bool], Any] | None, kind: Kind
) -> Mask:
    """The mask of a lifted problem, its offset and window, or its sums, duals."""
    mask = problem.pair_mask
    if isinstance(mask, IntervalMask):
        window_left = problem.window if mask.left is not None else None
        right = (
            problem.window_right if mask.right else mask.right
        )  # 0 and no bound are of the mask's form
        offset = 0 if mask.is_full else problem.offset
        if problem.compress_ratio is not None:
            right = problem.shown_tokens * mask.ratio
        return _LiftedInterval(
            window_left,
            right,
            problem.seq_k - problem.seq_q if offset is None else offset,
            mask.ratio,
        )
    if not isinstance(mask, BlockMask) or symbols is None:
        return mask
    tiles: list[tuple[int, int]] = []

    def lift(domain: Domain, name: str, value: int) -> int:
        tile = int.__index__(domain.block_q), int.__index__(domain.block_k)
        if tile not in tiles:
            tiles.append(tile)
        return Dual(value, symbols(name, value, tiles.index(tile) > 0), kind)

    lifted = object.__new__(_LiftedBlocks)
    for name, value in vars(mask).items():
        object.__setattr__(lifted, name, value)
    object.__setattr__(lifted, "lift", lift)
    return lifted


def _lift(companions: Mapping[str, Any], kind: Kind, name: str, value: int) -> int:
    return Dual(value, companions[name], kind) if name in companions else value


def lifted_problem(
    problem: AttentionProblem, companions: Mapping[str, Any], kind: Kind
) -> AttentionProblem:
    lift = partial(_lift, companions, kind)
    # The problem was checked when it was made: its fields are set past the checks, as duals.
    lifted = object.__new__(_LiftedProblem)
    put = object.__setattr__
    for f in fields(problem):
        value = getattr(problem, f.name)
        put(lifted, f.name, lift(f.name, value) if type(value) is int else value)
    put(lifted, "element_bytes", lift("element_bytes", problem.input_type.bytes))
    put(lifted, "output_bytes", lift("output_bytes", problem.output_type.bytes))
    put(lifted, "pair_mask", _lifted_mask(lifted, companions.get(LISTS), kind))
    return lifted


def lifted_chain(
    problem: AttentionProblem, kernel: Kernel, companions: Mapping[str, Any], kind: Kind
) -> Chain:
    """The chain of `kernel` on `problem`, planned on duals.

    `companions` are those of the problem's sizes (batch, heads, kv_heads, seq_q, seq_k, head_dim, head_dim_v, window,
    window_right, offset, element_bytes, output_bytes) and the kernel's (block_q, block_k, backward_block_q,
    backward_block_k, splits); what is not among them stays an int. The offset follows seq_k - seq_q where the problem
    sets none. Raises InputError: an algorithm that has no formula in symbols.
    """
    if not algorithm_of(kernel.algorithm).symbolic:
        raise InputError(
            f"`kernel` {kernel.name}: its launches go by the number of blocks, which no formula has"
        )

    lift = partial(_lift, companions, kind)

    def lift_tile(tile: Tile, prefix: str = "") -> Tile:
        lifted = copy.copy(tile)
        for name in ("block_q", "block_k"):
            object.__setattr__(lifted, name, lift(prefix + name, getattr(tile, name)))
        return lifted

    back = kernel.backward.tile
    return plan(
        lifted_problem(problem, companions, kind),
        replace(
            kernel,
            tile=lift_tile(kernel.tile),
            backward=replace(
                kernel.backward, tile=None if back is None else lift_tile(back, "backward_")
            ),
            splits=lift("splits", kernel.splits),
            compiled_head_dim=None,  # counts the products of padded columns, moves no byte
        ),
    )

"""Which tiles a kernel can run: whole fragments of the tensor cores' instructions for each warp, and buffers that load
by themselves. Limits of registers and shared memory need the planned launch (`iosim.kernel.residency`)."""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.base.units import some
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.overrides import Overrides
from iosim.kernel.unit import MMA_ROWS, WARPS_PER_GROUP, WGMMA_ROWS, MatrixUnit
from iosim.problem.attention import AttentionProblem

ASYNC_COPY_CC = 80
"""Compute capability from which loads go to shared memory by themselves (cp.async; CUDA C++ Programming Guide)."""

WHOLE_ROWS = "whole-rows"
"""Warps own whole rows of the score tile, as in FlashAttention-2's forward."""
TRITON = "triton"
"""Triton lays out the warps; its blocks have sides of powers of two (tl.arange) of 16 or more (tl.dot)."""


def rows_misfit(tile: Tile, unit: MatrixUnit, backward: bool) -> str:
    """Why warps cannot own whole rows of the score tile, of queries in the forward and of keys in the backward pass;
    empty when they can."""
    if unit is MatrixUnit.FP32:
        return ""
    name, block = ("block_k", tile.block_k) if backward else ("block_q", tile.block_q)
    if unit is MatrixUnit.MMA_SYNC:
        # Warps (warpgroups) own whole rows of the tile, so a block must give each whole instructions.
        teams, rows, who, needs = tile.warps, MMA_ROWS, "warp", "mma"
    else:
        if tile.warps % WARPS_PER_GROUP:
            return f"{some(tile.warps, 'warp')}: wgmma needs whole groups of {WARPS_PER_GROUP}"
        teams, rows, who, needs = tile.warps // WARPS_PER_GROUP, WGMMA_ROWS, "warpgroup", "wgmma"
    if block % (teams * rows) == 0:
        return ""
    rows_per_team = block / teams
    few = "only " if rows_per_team < rows else ""
    unit_rows = f"{rows}" if rows_per_team < rows else f"multiples of {rows}"
    return f"{name} {block} gives {some(teams, who)} {few}{rows_per_team:g} rows each: {needs} needs {unit_rows}"


def stages_misfit(tile: Tile, profile: HardwareProfile) -> str:
    if tile.stages == 1 or profile.cc >= ASYNC_COPY_CC:
        return ""
    return f"{tile.stages} stages need asynchronous copies (cp.async), which {profile.target} does not have"


def triton_misfit(tile: Tile) -> str:
    for name, number in (
        ("block_q", tile.block_q),
        ("block_k", tile.block_k),
        ("warps", tile.warps),
    ):
        if number & (number - 1):
            return f"{name} {number} is no power of two, which Triton needs"
    for name, number in (("block_q", tile.block_q), ("block_k", tile.block_k)):
        if number < MMA_ROWS:
            return f"{name} {number}: tl.dot needs {MMA_ROWS} rows and columns"
    return ""


def backward_shared_bytes(problem: AttentionProblem, tile: Tile, width_v: int | None = None) -> int:
    """Shared memory of a backward CTA: Q in `stages` buffers, dO, K, V, P and dS, in the inputs' type.
    FlashAttention-2's layout; its 128x128 tile at head_dim 64 with two buffers takes 147,456 bytes, as recorded.

    Args:
        width_v: columns of V and dO in a tile where they are not one head's.
    """
    d, dv = problem.head_dim, width_v or problem.head_dim_v
    elements = (
        tile.block_q * (tile.stages * d + dv)
        + tile.block_k * (d + dv)
        + 2 * tile.block_q * tile.block_k
    )
    return elements * problem.input_type.bytes


def retiled(kernel: Kernel, problem: AttentionProblem, tile: Tile, backward: bool) -> Kernel:
    """A kernel with another tile in one pass, of which no source says what it takes: its registers and shared memory
    are estimated, and no spills are known."""
    if backward:
        # Nothing is known of the compiler's choice for another tile: the forward's is estimated from its
        # layout later, the backward's here.
        shared = backward_shared_bytes(problem, tile)
        settings = replace(
            kernel.backward, tile=tile, registers=None, spill=None, shared_memory_bytes=shared
        )
        return replace(kernel, backward=settings)
    threads = kernel.threads if tile.warps == kernel.tile.warps else None
    return replace(
        kernel, tile=tile, shared_memory_bytes=None, registers=None, spill=None, threads=threads
    )


def refuse_tile(
    rule: str | None,
    kernel: Kernel,
    problem: AttentionProblem,
    profile: HardwareProfile,
    overrides: Overrides,
) -> None:
    """Refuse a tile by hand that the kernel cannot run; `rule` is the catalog's `tile_rule`, None for a kernel of which
    none is known, and `overrides` what was asked. Where the queries fill one fragment at most, as in decoding, warps
    may share its rows and divide the keys. Raises InputError: says why."""
    if rule is None:
        return
    tile = kernel.tile
    # As few rows as one instruction takes: warps divide the keys, whatever the rows of a tile.
    rows = problem.seq_q * (problem.group if kernel.packs_group else 1)
    unit = MatrixUnit.FP32 if problem.dtype == "fp32" else MatrixUnit.MMA_SYNC
    reasons = [(stages_misfit(tile, profile), "1 stage")]
    if rule == TRITON:
        reasons.append((triton_misfit(tile), "powers of two, sides from 16"))
    elif rows > MMA_ROWS:
        if problem.forward:
            reasons.append(
                (
                    rows_misfit(tile, unit, backward=False),
                    f"block_q a multiple of {MMA_ROWS * tile.warps}",
                )
            )
        if problem.backward:
            reasons.append(
                (
                    rows_misfit(tile, unit, backward=True),
                    f"block_k a multiple of {MMA_ROWS * tile.warps}",
                )
            )
    for reason, accepted in reasons:
        if reason:
            subject = overrides.blamed(str(tile), kernel.name)
            raise InputError(
                f"{subject} with {some(tile.warps, 'warp')}: {reason}; accepted: {accepted}"
            )

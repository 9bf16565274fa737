"""How rows of a flash kernel move: the columns that its products compute with, and bytes beside the operands, where boxes
are wider than heads or rows leave piece by piece."""

from __future__ import annotations

from collections.abc import Callable

from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    COLUMNS_OUTSIDE,
    SECTOR_BYTES,
    Fetch,
    Mode,
    Overhead,
)
from iosim.kernel.work import Layout
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntArray

DEPTH = 32


def stored(kernel: Kernel) -> Fetch:
    """How results leave: row by row from boxes, and from fragments that are not gathered in whole tiles first."""
    by_row = kernel.fetch in (Fetch.BOXES, Fetch.WIDE_BOXES) or (
        kernel.fetch is Fetch.LANES and not by_chunk(kernel)
    )
    return Fetch.BOXES if by_row else Fetch.BYTES


def by_chunk(kernel: Kernel) -> bool:
    """True where the kernel's layout moves rows piece by piece: a property of its description."""
    return kernel.fragments is not None and kernel.fragments.layout is Layout.CHUNKS


def product_columns(problem: AttentionProblem, kernel: Kernel) -> tuple[int, int]:
    d, dv, compiled = problem.head_dim, problem.head_dim_v, kernel.compiled_head_dim or 0
    if options_of(kernel, FlashOptions).columns_by_keys:
        return -(-d // DEPTH) * DEPTH, -(-dv // kernel.tile.block_k) * kernel.tile.block_k
    # Columns that products compute with: the build's, which may be wider than the heads.
    own_v = dv != d  # a build for two widths pads each to its own
    return max(d, compiled), dv if own_v else max(dv, compiled)


def narrow_stores(
    problem: AttentionProblem,
    kernel: Kernel,
    rows_of: Callable[[], IntArray],
    merged: float,
    *,
    apart: bool,
    tensors: int = 1,
) -> tuple[Overhead, ...]:
    """Bytes that stores of a tile's rows of `tensors` take beyond their own, where the layout moves rows piece by piece
    and every second row begins inside a sector. A piece has 64 columns, or 32 where the build's width is no multiple
    of 64 (flash_fwd_kernel.h: kBlockKGmem).

    Args:
        rows_of: gives those of every tile; tiles without any, past the end of a packed sequence, store nothing.
        merged: the part of these packets that stays where neighbouring rows leave together; all of it where rows lie
            `apart`, with heads or, in packed sequences, other heads' rows between them.
    """
    row, width = problem.head_dim_v * problem.output_type.bytes, kernel.compiled_head_dim or 0
    if (
        not by_chunk(kernel)
        or kernel.fetch is not Fetch.LANES
        or row % SECTOR_BYTES != SECTOR_BYTES // 2
        or not width
    ):
        return ()
    # A row that begins at a sector takes `aligned` packets, one that begins inside takes one more for
    # each piece. Every second row does: the mean over both, less the row's own bytes.
    piece = (64 if width % 64 == 0 else 32) * problem.output_type.bytes
    if row <= piece and not apart:
        return ()
    aligned = -(-row // SECTOR_BYTES)
    inside = row // piece * (piece // SECTOR_BYTES + 1) + -(
        -(row % piece + SECTOR_BYTES // 2) // SECTOR_BYTES
    )
    more = (aligned + inside) * SECTOR_BYTES / 2 - row
    rows = rows_of()
    per_tile = round(more * tensors * float(rows[rows > 0].mean()) * (1.0 if apart else merged))
    source = "experiments/measurements/h100_library_builds.csv"
    return (Overhead("split_sectors", Mode.STORE, per_tile=per_tile, inferred_from=source),)


def columns_outside(
    problem: AttentionProblem, kernel: Kernel, keys_outer: bool = False
) -> tuple[Overhead, ...]:
    """What a loop fetches beside the columns of Q, K and V, and of dO, where boxes are as wide as the build: of a
    tile's own rows once, of those it walks at every step. It costs the SM its bytes and comes from no memory."""
    compiled = kernel.compiled_head_dim or 0
    beyond_qk, beyond_v = (max(0, compiled - d) for d in (problem.head_dim, problem.head_dim_v))
    if kernel.fetch is not Fetch.WIDE_BOXES or not beyond_qk + beyond_v:
        return ()
    both = (beyond_qk + beyond_v) * problem.input_type.bytes
    once, walked = (
        kernel.tile.block_q * beyond_qk * problem.input_type.bytes,
        kernel.tile.block_k * both,
    )
    if keys_outer:
        once, walked = kernel.tile_backward.block_k * both, kernel.tile_backward.block_q * both
    source = "experiments/measurements/h200_boxes.csv"
    return (
        Overhead(COLUMNS_OUTSIDE, Mode.LOAD, per_tile=once, per_pair=walked, inferred_from=source),
    )

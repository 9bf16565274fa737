"""Launches of operators that are no attention: passes that stream their tensors, and matrix products.

A product's CTAs take tiles of the result (`iosim.kernel.algorithms.matrix_tiles`); tiles along the side that has fewer
of them start first, as CUTLASS's raster heuristic has it (NVIDIA/cutlass,
include/cutlass/gemm/kernel/tile_scheduler_params.h). NB: which tile, split or stream-K a library takes is not
published, so that re-reads of operands that outgrow the L2 are an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping

from iosim.kernel.algorithms.common import load, store
from iosim.kernel.algorithms.matrix_tiles import fp32_tile, half_tile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Domain, Launch, Outer, Per, Resources, Role, Rows, Tensor, tensors
from iosim.kernel.schedule import Order, Schedule

CTA_THREADS = 256
INNER_ROWS = 128
"""Of the axis that a product sums over, what a CTA takes in a step."""
ROW_THREADS = 1024
VALUES = 4
"""Values that a thread of an elementwise pass takes, for its grid."""


def streamed(
    name: str, element_bytes: int, reads: Mapping[str, int], writes: Mapping[str, int], *, rows: int | None = None,
    times: Mapping[str, int] | None = None,
) -> Launch:  # fmt: skip
    """A pass that reads and writes tensors of so many elements, by name.

    Args:
        rows: CTAs of `ROW_THREADS` threads take a row each, in place of a piece of all elements.
        times: how often a CTA goes through its row of a tensor, where that is more than once.
    """
    elements = max((*reads.values(), *writes.values()), default=1)
    threads = CTA_THREADS if rows is None else ROW_THREADS
    blocks = max(1, -(-elements // (CTA_THREADS * VALUES)) if rows is None else rows)
    accesses = (
        *(load(n, Rows.OWN, Per.LAUNCH, times=(times or {}).get(n, 1)) for n in reads),
        *(store(n, Rows.OWN, Per.LAUNCH) for n in writes),
    )
    return Launch(name, Domain(1, 1, blocks, 1, 1, 1), Outer.FLAT, accesses, resources=Resources(threads),
                  tensor_cores=False, values_per_thread=max(1, 16 // element_bytes))  # fmt: skip


def flat(name: str, elements: int, element_bytes: int, role: Role) -> Tensor:
    """A tensor that launches stream whole."""
    return Tensor(name, 1, 1, 1, max(1, elements), element_bytes, role)


def product(
    name: str, batch: int, rows: int, cols: int, inner: int, element_bytes: int, sm_count: int, *,
    beside: tuple[Tensor, ...] = (), output_bytes: int | None = None,
) -> Chain:  # fmt: skip
    """C [batch, rows, cols] = A [batch, rows, inner] B [batch, inner, cols].

    A CTA takes a tile of C and walks `inner`. Tiles of C side by side are the launch's heads: they share A.

    Args:
        beside: what the epilogue reads: a bias.
    """
    size = output_bytes or element_bytes
    if element_bytes > 2:
        taken = fp32_tile(rows, cols, batch, narrow=False)
    else:
        taken = half_tile(rows, cols, batch, sm_count, narrow=False)
    across = -(-cols // taken.cols)
    order = Order.QUERY if -(-rows // taken.rows) <= across else Order.HEAD
    launch = Launch(
        name, Domain(batch, across, rows, inner, taken.rows, INNER_ROWS), Outer.QUERY,
        (load("A", Rows.PAIR, Per.PAIR), load("B", Rows.KEY, Per.PAIR),
         *(load(t.name, Rows.OWN, Per.LAUNCH) for t in beside), store("C", Rows.QUERY, Per.QUERY)),
        schedule=Schedule(order), resources=Resources(CTA_THREADS), flops_per_pair=2 * taken.cols, stages=3,
    )  # fmt: skip
    operands = (
        Tensor("A", batch, 1, rows, inner, element_bytes, Role.INPUT),
        Tensor("B", batch, across, inner, taken.cols, element_bytes, Role.INPUT),
        Tensor("C", batch, across, rows, taken.cols, size, Role.OUTPUT),
    )
    return Chain(tensors((*operands, *beside)), (launch,))


def nothing_special(name: str) -> Kernel:
    """The kernel of an operator that is no attention: its launches say all."""
    return Kernel(name, "naive", Tile(128, 128))

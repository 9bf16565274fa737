"""Launches of operators that are no attention: passes that stream their tensors, and matrix products.

A product's CTAs take tiles of the result (`iosim.kernel.algorithms.matrix_tiles`) along its longer side, up to eight
side by side: so most of cuBLAS's kernels do in experiments/measurements/h200_torch_kernels.csv, by their names ("h" and
"v") and by what a language model's head reads (441 MB, where 43 tiles of rows, eight at a time, go through weights of
77 MB). NB: which tile, order, split or stream-K a library takes is not published, so that re-reads of operands that
outgrow the L2 are an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping

from iosim.kernel.algorithms.common import load, store
from iosim.kernel.algorithms.matrix_tiles import fp32_tile, half_tile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Domain, Launch, Outer, Per, Resources, Role, Rows, Tensor, tensors
from iosim.kernel.schedule import Schedule

CTA_THREADS = 256
RASTER_TILES = 8
"""Tiles of a product's shorter side that are walked side by side along the longer one."""
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

    A CTA takes a tile of C and walks `inner`. Tiles along the shorter side of C are the launch's heads, which share the
    other side's operand.

    Args:
        beside: what the epilogue reads: a bias.
    """
    size = output_bytes or element_bytes
    if element_bytes > 2:
        taken = fp32_tile(rows, cols, batch, narrow=False)
    else:
        taken = half_tile(rows, cols, batch, sm_count, narrow=False)
    sides = [("A", rows, taken.rows), ("B", cols, taken.cols)]
    sides.sort(key=lambda side: side[1] / side[2])
    (short, short_rows, width), (long, long_rows, block) = sides
    heads = -(-short_rows // width)
    launch = Launch(
        name, Domain(batch, heads, long_rows, inner, block, INNER_ROWS), Outer.QUERY,
        (load(long, Rows.PAIR, Per.PAIR), load(short, Rows.KEY, Per.PAIR),
         *(load(t.name, Rows.OWN, Per.LAUNCH) for t in beside), store("C", Rows.QUERY, Per.QUERY)),
        schedule=Schedule(section_heads=RASTER_TILES), resources=Resources(CTA_THREADS), flops_per_pair=2 * width,
        stages=3,
    )  # fmt: skip
    operands = (
        Tensor(long, batch, 1, long_rows, inner, element_bytes, Role.INPUT),
        Tensor(short, batch, heads, inner, width, element_bytes, Role.INPUT),
        Tensor("C", batch, heads, long_rows, width, size, Role.OUTPUT),
    )
    return Chain(tensors((*operands, *beside)), (launch,))


def nothing_special(name: str) -> Kernel:
    """The kernel of an operator that is no attention: its launches say all."""
    return Kernel(name, "naive", Tile(128, 128))

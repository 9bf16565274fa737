"""Tiles of a matrix library's batched products: what PyTorch's products through N x N tensors run with.

Source: the launches of PyTorch 2.11 on an H200, listed by the profiler
(experiments/measurements/h200_chain_launches.csv). Tiles stand in the kernels' names; which one is taken is not
published. Listed, with their tile, as heads x tokens:

    half precision   S = Q K^T      8x512 128x128; 8x1024, 8x4096 (head_dim 64) and 32x2048 (128) 256x128
                     O = P V        8x512 48x64 in clusters of 4; 8x1024 64x64; 8x4096 256x64; 32x2048 (128) 256x128
                     the backward   32x2048 (128): 256x128, all five
    fp32             S = Q K^T      8x512 64x128; 8x1024 64x64; 8x2048, 8x4096, 1024x1024 128x128
                     O = P V        8x512 32x32; 8x1024, 8x2048 64x64; 8x4096, 1024x1024 128x64

with head_dim 64 where nothing is said. The tile 512x64 of 1024x1024 in half precision is not listed: it follows from
the bytes of that chain (h200_chains.csv), reads and writes, to a kilobyte.

Sizes between: a half-precision product takes the largest tile that still gives a CTA to 95 % of the SMs, which holds
for all of the above; an fp32 product takes the tile of the largest listed size that has no more CTAs of the largest
tile. NB: beside these sizes, and on other GPUs, both are guesses.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class ProductTile(NamedTuple):
    """`rows` x `cols` of a product's result. `cluster` CTAs along the rows start together: those past the last row
    fetch their tiles like the others, and so do the rows past the end."""

    rows: int
    cols: int
    cluster: int = 1


HALF_TILES = ((256, 128), (128, 128), (64, 128), (64, 64))
"""Tiles of half-precision products, largest first."""
HALF_TALL = (512, 64)
"""Comes before them where the result has no more columns than that."""
HALF_SMALLEST = ProductTile(48, 64, cluster=4)
"""Where all of them leave SMs without a CTA, and the result has no more columns than that."""
FILL_FRACTION = 0.95
FP32_SQUARE = ((2048, (128, 128)), (512, (64, 64)), (0, (64, 128)))
"""(least number of 128x128 tiles of the result, tile) of fp32 products with an N x N result."""
FP32_NARROW = ((256, (128, 64)), (64, (64, 64)), (0, (32, 32)))
"""(least number of 128x64 tiles of the result, tile) of fp32 products with an N x head_dim result."""


FP32_SIDE_CC8 = 128
"""Rows and columns of fp32 products on cc 8.x where they give nearly every SM a CTA: every one listed there from 20
tokens a head on is ampere_sgemm_128x128, on an A100 at head_dim 32 and 64 in 16 to 16,384 CTAs, on an L4 of 384 heads
of 64 tokens (kernels/measurements/published). Columns past the result's are multiplied as well."""


def _narrowed(tile: tuple[int, int], cols: int) -> tuple[int, int]:
    return tile[0], min(tile[1], max(16, cols))


def _ctas(tile: tuple[int, int], rows: int, cols: int, products: int) -> int:
    return -(-rows // tile[0]) * -(-cols // tile[1]) * products


def half_tile(rows: int, cols: int, products: int, sm_count: int, *, narrow: bool) -> ProductTile:
    """Tile of `products` half-precision products of `rows` x `cols`; `narrow`: the columns are a head's."""
    # The largest tile that still gives nearly every SM a CTA; where none does, the smallest.
    tall = (HALF_TALL,) if narrow and cols <= HALF_TALL[1] else ()
    for listed in (*tall, *HALF_TILES):
        tile = _narrowed(listed, cols)
        if _ctas(tile, rows, cols, products) >= FILL_FRACTION * sm_count:
            return ProductTile(*tile)
    if narrow and cols <= HALF_SMALLEST.cols:
        return HALF_SMALLEST._replace(cols=_narrowed(HALF_SMALLEST[:2], cols)[1])
    return ProductTile(*_narrowed(HALF_TILES[-1], cols))


WAVE_TILES = (
    (48, 64),
    (64, 64),
    (64, 96),
    (128, 64),
    (128, 128),
    (128, 192),
    (160, 128),
    (192, 128),
    (192, 192),
    (128, 256),
    (256, 128),
    (128, 320),
    (256, 64),
    (512, 64),
)
"""Tiles, rows by columns, that cuBLAS's kernels for Hopper were seen with; their names (nvjet) say columns first."""
SIDE_COST = 15
"""What a row or a column of a tile costs, where a value costs one. With 15 to 20 the tiles of all but 2 of 26 products
come out, those of experiments/measurements/h200_torch_kernels.csv and of those above: by names, not by bytes."""

UNALIGNED_TILE = ProductTile(128, 128)
"""Tile of the older kernels that cuBLAS takes where rows of the result begin at odd places: of a Whisper's head of 51,865
words, cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1, which goes through all rows of eight tiles of columns
(experiments/measurements/h100_transformers_kernels.csv)."""


def wave_tile(rows: int, cols: int, products: int, sm_count: int) -> ProductTile:
    """Tile of `products` half-precision products of `rows` x `cols`: the one whose waves, a CTA to an SM, take least
    time in all; of equals that with fewer CTAs, and with more columns."""

    def cost(tile: tuple[int, int]) -> tuple[int, int, int]:
        ctas = _ctas(tile, rows, cols, products)
        # Waves x cost of a tile: its values, and its sides, which are loaded.
        return -(-ctas // sm_count) * (math.prod(tile) + SIDE_COST * sum(tile)), ctas, -tile[1]

    return ProductTile(*min(WAVE_TILES, key=cost))


def fp32_tile(
    rows: int,
    cols: int,
    products: int,
    *,
    narrow: bool,
    side: int | None = None,
    sm_count: int = 0,
) -> ProductTile:
    """Tile of `products` fp32 products of `rows` x `cols`; `narrow`: the columns are a head's; `side`: of the
    tile that the library takes there as it fills `sm_count` SMs."""
    if side and _ctas((side, side), rows, cols, products) >= FILL_FRACTION * sm_count:
        return ProductTile(side, side)
    table = FP32_NARROW if narrow else FP32_SQUARE
    ctas = _ctas(table[0][1], rows, cols, products)
    return ProductTile(*_narrowed(next(tile for least, tile in table if ctas >= least), cols))

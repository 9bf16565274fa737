"""Triton's flash forward: what computes its products, the shared memory it allocates, and what the tutorial tunes over.

A launch decides nothing else by rule: its configuration is the caller's, or the file's tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.libraries.loader import entry
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.kernel.unit import WARPS_PER_GROUP, WGMMA_ROWS, MatrixUnit
from iosim.problem.attention import AttentionProblem


@rule_book("triton")
class TritonRules(Rules):
    """On cc 9.0 the compiler's choice of a unit goes by the tile; of other GPUs nothing was measured, and the file's
    stands."""

    def matrix_unit(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> MatrixUnit | None:
        return unit_of(kernel.tile, problem, profile) if profile.cc == 90 else kernel.matrix_unit


def unit_of(tile: Tile, problem: AttentionProblem, profile: HardwareProfile) -> MatrixUnit:
    """What Triton computes the products with: wgmma on cc 9.0 from 64 query rows and a warpgroup, else mma.sync.

    Seen in experiments/measurements/triton_tiles_d64_time.csv: tiles of 32 rows run at mma.sync's speed.
    """
    if problem.dtype == "fp32":
        return MatrixUnit.FP32
    whole_group = tile.block_q >= WGMMA_ROWS and tile.warps >= WARPS_PER_GROUP
    return MatrixUnit.WGMMA if profile.cc == 90 and whole_group else MatrixUnit.MMA_SYNC


def shared_bytes(tile: Tile, problem: AttentionProblem, unit: MatrixUnit) -> int:
    """Shared memory that Triton allocates, without the driver's kilobyte.

    wgmma: Q, and K and V once a stage; with one stage K and V take turns. mma.sync: one stage less of K and V, and P,
    whose layout is converted through shared memory. Meets every row of
    experiments/measurements/triton_tiles_d64_time.csv.
    """
    size, stages = problem.input_type.bytes, tile.stages
    q = tile.block_q * problem.head_dim * size
    k, v = tile.block_k * problem.head_dim * size, tile.block_k * problem.head_dim_v * size
    if unit is MatrixUnit.WGMMA:
        return q + (stages * (k + v) if stages > 1 else max(k, v))
    p = tile.block_q * tile.block_k * size
    return q + p + ((stages - 1) * (k + v) if stages > 1 else max(k, v))


def tutorial_tiles() -> Iterator[Tile]:
    listed = entry("triton")["configurations"]
    for block_q, block_k, warps, stages in product(
        listed["block_q"], listed["block_k"], listed["warps"], listed["stages"]
    ):
        if warps < 8 or block_q * block_k >= listed["eight_warps_from"]:
            yield Tile(block_q, block_k, warps, stages)

"""The space of tiles: every block_q x block_k x warps x stages, and what rules a tile out before anything is counted.

Limits of registers and shared memory need the planned launch and stand in `iosim.studies.tiles.pick`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from iosim.base.units import some
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import MatrixUnit, Tile
from iosim.kernel.tile_rules import rows_misfit, stages_misfit
from iosim.problem.attention import AttentionProblem

BLOCK_Q = (16, 32, 64, 128, 192, 256)
BLOCK_K = (16, 32, 48, 64, 96, 128, 192, 256)
WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3)


def tile_space() -> Iterator[Tile]:
    """All tiles that are tried, 576 of them."""
    for block_q, block_k, warps, stages in product(BLOCK_Q, BLOCK_K, WARPS, STAGES):
        yield Tile(block_q, block_k, warps, stages)


def rejection(tile: Tile, problem: AttentionProblem, profile: HardwareProfile, unit: MatrixUnit) -> str:
    """Why a tile makes no sense for the problem on that GPU, before resources are counted; empty when it does."""
    return (
        _too_large("block_q", tile.block_q, BLOCK_Q, problem.seq_q, "query row")
        or _too_large("block_k", tile.block_k, BLOCK_K, problem.seq_k, "key row")
        or rows_misfit(tile, unit, problem.backward)
        or stages_misfit(tile, profile)
    )


def _too_large(name: str, block: int, choices: tuple[int, ...], rows: int, what: str) -> str:
    enough = next((c for c in choices if c >= rows), choices[-1])
    if block <= enough:
        return ""
    return f"{name} {block} is larger than the problem: {enough} covers its {some(rows, what)}"

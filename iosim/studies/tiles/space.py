"""The space of tiles: every block_q x block_k x warps x stages, and what rules a tile out before anything is counted.

Limits of registers and shared memory need the planned launch and stand in `iosim.studies.tiles.pick`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import MatrixUnit, Tile
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.step_time import ASYNC_COPY_CC, MMA_ROWS, WARPS_PER_GROUP, WGMMA_ROWS

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
        _too_large("block_q", tile.block_q, BLOCK_Q, problem.seq_q, "query rows")
        or _too_large("block_k", tile.block_k, BLOCK_K, problem.seq_k, "key rows")
        or _rows(tile, unit, problem.backward)
        or _stages(tile, profile)
    )


def _too_large(name: str, block: int, choices: tuple[int, ...], rows: int, what: str) -> str:
    enough = next((c for c in choices if c >= rows), choices[-1])
    if block <= enough:
        return ""
    return f"{name} {block} is larger than the problem: {enough} covers its {rows:,} {what}"


def _rows(tile: Tile, unit: MatrixUnit, backward: bool) -> str:
    """Warps own whole rows of the score tile, of queries in the forward and of keys in the backward pass."""
    if unit is MatrixUnit.FP32:
        return ""
    name, block = ("block_k", tile.block_k) if backward else ("block_q", tile.block_q)
    if unit is MatrixUnit.MMA_SYNC:
        teams, rows, who, needs = tile.warps, MMA_ROWS, "warp", "mma"
    else:
        if tile.warps % WARPS_PER_GROUP:
            return f"{_warps(tile.warps)}: wgmma needs whole groups of {WARPS_PER_GROUP}"
        teams, rows, who, needs = tile.warps // WARPS_PER_GROUP, WGMMA_ROWS, "warpgroup", "wgmma"
    if block % (teams * rows) == 0:
        return ""
    each = block / teams
    few = "only " if each < rows else ""
    unit_rows = f"{rows}" if each < rows else f"multiples of {rows}"
    shown = _warps(teams) if who == "warp" else f"{teams} {who}{'s' if teams > 1 else ''}"
    return f"{name} {block} gives {shown} {few}{each:g} rows each: {needs} needs {unit_rows}"


def _warps(n: int) -> str:
    return f"{n} warp{'s' if n > 1 else ''}"


def _stages(tile: Tile, profile: HardwareProfile) -> str:
    if tile.stages == 1 or profile.cc >= ASYNC_COPY_CC:
        return ""
    return f"{tile.stages} stages need asynchronous copies (cp.async), which sm_{profile.cc} does not have: 1 stage"

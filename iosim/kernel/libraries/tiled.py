"""Kernels that take any tile (`flash`): the file's, halved until it fits."""

from __future__ import annotations

from dataclasses import replace

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.problem.attention import AttentionProblem


@rule_book("tiled")
class TiledRules(Rules):
    """The larger side halved while the operands do not fit."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        return replace(kernel, tile=fitting(kernel.tile, problem, profile))


def fitting(tile: Tile, problem: AttentionProblem, profile: HardwareProfile) -> Tile:
    """`tile`, its larger side halved (down to 16) while its operands need more shared memory than a CTA may have."""
    allowed = profile.shared_memory_per_block_optin_bytes
    block_q, block_k = tile.block_q, tile.block_k
    while allowed is not None and max(block_q, block_k) > 16:
        key_columns = problem.head_dim + (0 if problem.latent_kv else problem.head_dim_v)
        rows = block_q * problem.head_dim + tile.stages * block_k * key_columns
        rows += block_q * block_k if problem.latent_kv else 0
        if rows * problem.input_type.bytes <= allowed:
            break
        if block_k >= block_q:
            block_k //= 2
        else:
            block_q //= 2
    return Tile(block_q, block_k, min(tile.warps, max(1, block_q // 16)), tile.stages)

"""Kernels that take any tile (`flash`): the file's, halved until it fits."""

from __future__ import annotations

from dataclasses import replace

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.kernel.residency import loop_registers
from iosim.kernel.resource_table import build_report
from iosim.problem.attention import AttentionProblem


@rule_book("tiled")
class TiledRules(Rules):
    """The larger side halved while the operands do not fit."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        return replace(kernel, tile=fitting(kernel.tile, problem, profile))

    def built(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """With the recorded build of kernels/flash_fwd.cu where that spills, or was to be thought to. NB: where neither
        holds, registers are estimated, as they are for a tile without a build."""
        report = build_report(problem, kernel.tile, profile) if problem.forward else None
        if report is None:
            return kernel
        tile, width = kernel.tile, problem.head_dim
        wanted = loop_registers(tile.block_q * (tile.block_k + width), kernel.cta_threads)
        if report.spill is None and wanted <= profile.need_int("max_registers_per_thread"):
            return kernel
        shared = report.shared_memory_bytes
        return replace(kernel, registers=report.registers, shared_memory_bytes=shared, spill=report.spill)


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

"""Tiles found by rule: the file's, halved until it fits (`flash`); Algorithm 1's (`flash1`); as many heads' values as a
CTA holds (`uniform`, UniForm's Reuse Attention)."""

from __future__ import annotations

from iosim.base.records import replace
from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.flash1 import algorithm1_blocks
from iosim.catalog.algorithms.uniform import UniformOptions
from iosim.catalog.libraries.rules import Rules, rule_book
from iosim.catalog.resource_table import build_report
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.overrides import MAX_BLOCK
from iosim.kernel.residency import loop_registers
from iosim.kernel.tile_rules import backward_shared_bytes, retiled
from iosim.problem.attention import AttentionProblem


@rule_book("tiled")
class TiledRules(Rules):
    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        kernel = replace(kernel, tile=fitting(kernel.tile, problem, profile))
        allowed = profile.shared_memory_per_block_optin_bytes
        if (
            not problem.backward
            or allowed is None
            or backward_shared_bytes(problem, kernel.tile) <= allowed
        ):
            return kernel
        return retiled(
            kernel, problem, fitting_backward(kernel.tile, problem, allowed), backward=True
        )

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
        return replace(
            kernel, registers=report.registers, shared_memory_bytes=shared, spill=report.spill
        )


def fitting(tile: Tile, problem: AttentionProblem, profile: HardwareProfile) -> Tile:
    """`tile`, its larger side halved (down to 16) while its operands need more shared memory than a CTA may have."""
    allowed = profile.shared_memory_per_block_optin_bytes
    block_q, block_k = tile.block_q, tile.block_k
    # Q's rows, and `stages` buffers of K and V (a latent cache: of one tensor, and P) must fit.
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


def fitting_backward(tile: Tile, problem: AttentionProblem, allowed: int) -> Tile:
    """The forward's tile, its larger side halved (down to 16) while what a backward's CTA holds, which is more, does
    not fit in the shared memory that it is allowed: on GPUs where that is 64 or 99 KB."""
    while backward_shared_bytes(problem, tile) > allowed and max(tile.block_q, tile.block_k) > 16:
        block_q, block_k = tile.block_q, tile.block_k
        block_q, block_k = (
            (block_q, block_k // 2) if block_k >= block_q else (block_q // 2, block_k)
        )
        tile = Tile(block_q, block_k, min(tile.warps, max(1, block_k // 16)), tile.stages)
    return tile


@rule_book("flash1")
class Flash1Rules(Rules):
    """Line 1 of the listing, M being the shared memory that a CTA may have."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        elements = (
            int(profile.need("shared_memory_per_block_optin_bytes")) // problem.input_type.bytes
        )
        block_k = min(
            max(1, algorithm1_blocks(problem.head_dim, elements)[1]), problem.seq_k, MAX_BLOCK
        )
        block_q = min(block_k, problem.head_dim)
        note = f"Algorithm 1 with M = {elements} elements: block_k = ceil(M / 4d) = {block_k}, block_q = {block_q}"
        tile = Tile(block_q, block_k, kernel.tile.warps, kernel.tile.stages)
        return replace(kernel, tile=tile, notes=(*kernel.notes, note))


ACCUMULATORS_PER_THREAD = 128
"""fp32 values of O that a thread keeps: half of its 255 registers."""
VALUE_TILES = ((128, 64, 8), (64, 64, 4), (64, 32, 4), (32, 32, 2), (16, 16, 1))
"""block_q, block_k, warps; the largest first, since K and V are read once a query block."""


@rule_book("uniform")
class UniformRules(Rules):
    """The largest tile that fits, with as many heads' values as fit."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """With the first tile that fits, and as many value heads in it as fit. A backward takes all value heads, and so
        the first tile that holds them; the last one where none does."""
        tiles = [Tile(*sides, kernel.tile.stages) for sides in VALUE_TILES]
        # The largest tile first, and in each the most heads that divide all: keys are read once a tile.
        for tile in tiles:
            for per_tile in range(int(problem.heads), 0, -1):
                if problem.heads % per_tile or (problem.backward and per_tile < problem.heads):
                    continue
                if _fits(tile, per_tile, problem, profile):
                    return _with(kernel, problem, tile, per_tile)
        return _with(kernel, problem, tiles[-1], int(problem.heads) if problem.backward else 1)

    def leading(
        self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile
    ) -> Kernel:
        """All value heads in a tile, which alone writes the log-sum-exp of its rows, as in the backward."""
        alone, kernel = kernel, super().leading(kernel, problem, profile)
        per_tile = options_of(alone, UniformOptions).value_heads_per_tile
        if per_tile == problem.heads:
            return kernel
        other = f"it takes {per_tile} value heads in a tile of {alone.tile}"
        note = f"{kernel.name}: so that one tile writes it, the forward takes all value heads in a tile; alone {other}"
        kernel = replace(kernel, notes=tuple(n for n in kernel.notes if n not in alone.notes[-1:]))
        whole = self.finish(kernel, problem.with_(passes="bwd"), profile)
        return replace(whole, notes=(*whole.notes, note))


def _with(kernel: Kernel, problem: AttentionProblem, tile: Tile, per_tile: int) -> Kernel:
    options = replace(options_of(kernel, UniformOptions), value_heads_per_tile=per_tile)
    if problem.backward:
        held = backward_shared_bytes(problem, tile, per_tile * problem.head_dim_v)
        kernel = replace(kernel, backward=replace(kernel.backward, shared_memory_bytes=held))
    note = (
        f"{kernel.name}: heads are value heads that share one Q and K; {per_tile} of them in a tile"
    )
    return replace(kernel, tile=tile, options=options, notes=(*kernel.notes, note))


def _fits(tile: Tile, per_tile: int, problem: AttentionProblem, profile: HardwareProfile) -> bool:
    width = per_tile * problem.head_dim_v
    rows = tile.block_q * problem.head_dim + tile.block_k * (problem.head_dim + width)
    held = rows * problem.input_type.bytes
    if problem.backward:
        held = backward_shared_bytes(problem, tile, width)
    allowed = profile.shared_memory_per_block_optin_bytes
    if allowed is not None and held > allowed:
        return False
    return tile.block_q * width <= ACCUMULATORS_PER_THREAD * 32 * tile.warps

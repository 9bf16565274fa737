"""`flash1`: the tile that FlashAttention's Algorithm 1 takes of a CTA's shared memory."""

from __future__ import annotations

from dataclasses import replace

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.algorithms.flash1 import algorithm1_blocks
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.kernel.overrides import MAX_BLOCK
from iosim.problem.attention import AttentionProblem


@rule_book("flash1")
class Flash1Rules(Rules):
    """Line 1 of the listing, M being the shared memory that a CTA may have."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        elements = int(profile.need("shared_memory_per_block_optin_bytes")) // problem.input_type.bytes
        block_k = min(max(1, algorithm1_blocks(problem.head_dim, elements)[1]), problem.seq_k, MAX_BLOCK)
        block_q = min(block_k, problem.head_dim)
        note = f"Algorithm 1 with M = {elements} elements: block_k = ceil(M / 4d) = {block_k}, block_q = {block_q}"
        tile = Tile(block_q, block_k, kernel.tile.warps, kernel.tile.stages)
        return replace(kernel, tile=tile, notes=(*kernel.notes, note))

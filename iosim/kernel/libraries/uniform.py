"""UniForm's Reuse Attention: how many query rows and heads' values a CTA's registers and shared memory take."""

from __future__ import annotations

from dataclasses import replace

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.algorithms import options_of
from iosim.kernel.algorithms.uniform import UniformOptions
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.problem.attention import AttentionProblem

ACCUMULATORS_PER_THREAD = 128
"""fp32 values of O that a thread keeps: half of its 255 registers."""
TILES = ((128, 64, 8), (64, 64, 4), (64, 32, 4), (32, 32, 2), (16, 16, 1))
"""block_q, block_k, warps; the largest first, since K and V are read once a query block."""


@rule_book("uniform")
class UniformRules(Rules):
    """The largest tile that fits, with as many heads' values as fit."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        return fitting(kernel, problem, profile)

    def leading(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """All value heads in a tile, which alone writes the log-sum-exp of its rows, as in the backward."""
        alone, kernel = kernel, super().leading(kernel, problem, profile)
        per_tile = options_of(alone, UniformOptions).value_heads_per_tile
        if per_tile == problem.heads:
            return kernel
        other = f"it takes {per_tile} value heads in a tile of {alone.tile}"
        note = f"{kernel.name}: so that one tile writes it, the forward takes all value heads in a tile; alone {other}"
        kernel = replace(kernel, notes=tuple(n for n in kernel.notes if n not in alone.notes[-1:]))
        whole = fitting(kernel, problem.with_(passes="bwd"), profile)
        return replace(whole, notes=(*whole.notes, note))


def fitting(kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
    """The kernel with the first tile that fits, and as many value heads in it as fit.

    A backward takes all value heads, and so the first tile that holds them; the last one where none does.
    """
    for block_q, block_k, warps in TILES:
        for per_tile in range(int(problem.heads), 0, -1):
            if problem.heads % per_tile or (problem.backward and per_tile < problem.heads):
                continue
            if _fits(block_q, block_k, warps, per_tile, problem, profile):
                return _with(kernel, Tile(block_q, block_k, warps, kernel.tile.stages), per_tile)
    block_q, block_k, warps = TILES[-1]
    heads = int(problem.heads) if problem.backward else 1
    return _with(kernel, Tile(block_q, block_k, warps, kernel.tile.stages), heads)


def _with(kernel: Kernel, tile: Tile, per_tile: int) -> Kernel:
    options = replace(options_of(kernel, UniformOptions), value_heads_per_tile=per_tile)
    note = f"{kernel.name}: heads are value heads that share one Q and K; {per_tile} of them in a tile"
    return replace(kernel, tile=tile, options=options, notes=(*kernel.notes, note))


def _fits(
    block_q: int, block_k: int, warps: int, per_tile: int, problem: AttentionProblem, profile: HardwareProfile
) -> bool:
    width = per_tile * problem.head_dim_v
    rows = block_q * problem.head_dim + block_k * (problem.head_dim + width)
    allowed = profile.shared_memory_per_block_optin_bytes
    if allowed is not None and rows * problem.input_type.bytes > allowed:
        return False
    return block_q * width <= ACCUMULATORS_PER_THREAD * 32 * warps

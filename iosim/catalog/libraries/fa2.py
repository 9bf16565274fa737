"""FlashAttention-2: splits, packed rows, and the causal mask that one query token drops.

Source: Dao-AILab/flash-attention @0251105a, csrc/flash_attn/flash_api.cpp.
"""

from __future__ import annotations

from iosim.base.records import replace
from iosim.catalog.algorithms import options_of
from iosim.catalog.libraries.resolver import resolve
from iosim.catalog.libraries.rules import Rules, SplitGrid, fewest_efficient, rule_book
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import NO_BOUND

FEW_TILES = 0.8


@rule_book("fa2")
class Fa2Rules(Rules):
    """The split kernel where tiles are few, and wherever the cache has pages (force_split_kernel)."""

    splits_alike = True

    def as_launched(self, problem: AttentionProblem) -> AttentionProblem:
        return drops_mask(drops_window(problem))

    def split_kernel(self, problem: AttentionProblem, grid: SplitGrid) -> tuple[int, bool]:
        splits = fa2_splits(grid.tiles, grid.key_blocks, 2 * grid.sms)
        return splits, splits > 1 or problem.page_size is not None

    def packs_group(
        self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int
    ) -> bool:
        """seqlenq_ngroups_swapped: one query token, no window, head_dim a multiple of 8."""
        return (
            stated and problem.seq_q == 1 and problem.mask != "window" and problem.head_dim % 8 == 0
        )


def drops_mask(problem: AttentionProblem) -> AttentionProblem:
    """The problem without the causal mask of one query token, which keeps every key."""
    if problem.seq_q != 1 or problem.mask != "causal" or problem.offset is not None:
        return problem
    return problem.with_(mask="none")


def drops_window(problem: AttentionProblem) -> AttentionProblem:
    """The problem without a side of its window that is at least as wide as the keys are many: causal where the other
    side is 0, none where it is as wide."""
    # A left side as wide as the keys is none; then the right side decides: 0 is causal, unbounded none.
    if problem.mask != "window" or not _unbounded(problem.window, problem.seq_k):
        return problem
    ahead = problem.window_right or 0
    unmasked = _unbounded(ahead, problem.seq_k)
    if unmasked and problem.offset is None:
        return problem.with_(mask="none", window=None, window_right=None)
    return problem if ahead else problem.with_(mask="causal", window=None, window_right=None)


def _unbounded(side: int | None, keys: int) -> bool:
    return side is None or side == NO_BOUND or side >= keys


def fa2_splits(tiles: int, key_blocks: int, machine_width: int) -> int:
    """FlashAttention-2's number of KV splits (csrc/flash_attn/flash_api.cpp, num_splits_heuristic).

    1 when the tiles nearly fill the machine; else the fewest splits within 85 % of the best wave efficiency, among
    those that change the number of key blocks a split gets.
    """
    if tiles >= FEW_TILES * machine_width:
        return 1
    return fewest_efficient(tiles, key_blocks, machine_width, True)


@rule_book("moba")
class MobaRules(Rules):
    """Both calls are FlashAttention-2's, of sequences of different lengths."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        from iosim.catalog.algorithms.mixture import MobaOptions, levels

        self_kernel, *picked = (
            resolve("fa2", level, profile)
            for level in levels(problem, options_of(kernel, MobaOptions))
            if level
        )
        options = replace(
            options_of(kernel, MobaOptions),
            own_tile=(self_kernel.tile.block_q, self_kernel.tile.block_k),
        )
        return replace(
            (*picked, self_kernel)[0],
            name=kernel.name,
            algorithm="moba",
            options=options,
            notes=kernel.notes,
        )

"""FlashAttention as serving stacks call it: sequences of different lengths, keys and values in pages.

Sources: vllm-project/flash-attention, csrc/flash_attn/flash_api.cpp @04325b67 (mha_varlen_fwd), hopper/flash_api.cpp
@01ed8aa9 (mha_fwd, get_num_splits), hopper/flash_prepare_scheduler.cu @35756f58; Dao-AILab/flash-attention,
hopper/tile_size.h @07602adc.
"""

from __future__ import annotations

import math

from iosim.base.records import replace
from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.libraries.fa2 import Fa2Rules, fa2_splits
from iosim.catalog.libraries.fa3 import ONE_WARPGROUP, Fa3Rules, fa3_splits, has_cache
from iosim.catalog.libraries.loader import entry
from iosim.catalog.libraries.rules import SplitGrid, rule_book, rules_of
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.schedule import Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem

PREPARED_SEQUENCES = 992
"""Sequences for which FlashAttention-3's first launch chooses splits (31 a warp, 32 warps); more are not split."""
SPARE_BLOCKS = 1.1
"""Over an even share of the key blocks, what that launch gives an SM."""
SECTION_BYTES = 8 << 20
MOST_SECTION_HEADS = 16
VLLM_MAX_SPLITS = 32
"""vLLM's bound where a CUDA graph may hold the call (AttentionConfig.flash_attn_max_num_splits_for_cuda_graph)."""
GRAPH_TOKENS = 512
"""New tokens up to which that bound holds: of the largest graph that vLLM captures by default."""
TILE_WAITS = {False: 10, True: 4}
"""Loads that a tile waits for, one behind the other, before its first keys: its number, its sequence's place and
lengths, its pages. Of tiles of several warpgroups, and of one. Fitted on 240 open rows of published_stacks.csv,
FlashAttention-3 in 16 bits on an H100 and an H200."""
WIDE_COLUMNS = 128
"""Width of a build from which fp8 costs more than products: narrower ones have their values in place."""
FP8_OPERATIONS = 5.0
"""Operations a score more in fp8, in wide builds, than the paper's kernel takes, whose keys lie in no pages. Fitted on
60 open rows of SGLang's prefill in published_stacks.csv."""
ALONE_OPERATIONS = 20.0
"""Operations a score more in fp8, in wide builds, where one warpgroup computes, with no other's products beside its
softmax. Fitted on 120 open rows of both stacks' decoding in published_stacks.csv."""
PROMOTED_OPERATIONS = {64: 1.6, 128: 1.3, 192: 7.4}
"""Instructions a score more in fp8 in vLLM's build, by its width, over those of a build without: it adds each step's
product to sums of its own (two-level accumulation), in smaller tiles, and spills at 128 and 192 columns. Counted in a
turn of the loop over keys of both, FlashAttention-3 @0251105a with the tiles and the product of
vllm-project/flash-attention @617264c1, compiled by nvcc 13.0 for cc 9.0 (10.0 to 17.1 against 8.4 to 9.8)."""
WIDEST_OPERATIONS = 50.0
"""Operations a score more in fp8 in vLLM's build of 256 columns, whose softmax does not overlap its products. Fitted on
open rows of its prefill in published_stacks.csv; its instructions alone are 5.5 more."""
SEQUENCES_AT_ONCE = 31
"""Among which a warp looks for that of its CTA's next tile (hopper/tile_scheduler.hpp,
VarlenDynamicPersistentTileScheduler): till it goes on to as many more it waits for a load."""


@rule_book("vllm-fa2")
class VllmFa2Rules(Fa2Rules):
    """Pages always run the split kernel's tiles; only the packed rows of one query token a sequence are split."""

    splits_packed = True

    def split_kernel(self, problem: AttentionProblem, grid: SplitGrid) -> tuple[int, bool]:
        packed = problem.longest_q == 1 and problem.group > 1 and problem.mask != "window"
        splits = fa2_splits(grid.tiles, grid.key_blocks, 2 * grid.sms) if packed else 1
        return splits, splits > 1 or problem.page_size is not None

    def packs_group(
        self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int
    ) -> bool:
        one_token = problem.longest_q == 1 and problem.mask != "window"
        return stated and one_token and problem.group > 1 and problem.head_dim % 8 == 0


def most_splits(problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
    """The bound on splits that the host sets, as if the batch were its longest sequence alone (get_num_splits)."""
    keys = max(k for _, k in problem.sequences)
    longest = problem.with_(
        batch=1, seq_lens=None, seq_lens_k=None, seq_q=problem.longest_q, seq_k=keys
    )
    return fa3_splits(longest, sms, block_q, block_k)


def varlen_splits(
    problem: AttentionProblem, sms: int, block_q: int, block_k: int, max_splits: int
) -> tuple[int, ...]:
    """Splits of every sequence, as prepare_varlen_num_blocks finds them on the GPU: an SM gets its even share of all
    key blocks and a tenth more, and a sequence as many SMs as it has such shares, up to `max_splits`."""
    sequences = problem.sequences
    if max_splits <= 1 or len(sequences) > PREPARED_SEQUENCES:
        return (1,) * len(sequences)
    # As the GPU's first launch counts: query blocks x key blocks of all sequences, a tenth more for each
    # SM than its share.
    blocks = [-(-k // block_k) for _, k in sequences]
    total = sum(
        -(-q * problem.group // block_q) * n for (q, _), n in zip(sequences, blocks, strict=True)
    )
    share = max(1, math.ceil(total * SPARE_BLOCKS * problem.kv_heads / sms))
    return tuple(max(1, min(-(-n // share), max_splits)) for n in blocks)


def heads_in_section(
    problem: AttentionProblem, packed: bool, budget_bytes: int = SECTION_BYTES
) -> int:
    """Grid heads of a sequence that go together: as many key/value heads as fit `budget_bytes`, up to 16 and by powers
    of two (flash_prepare_scheduler.cu, get_nheads_in_l2); all heads of a sequence at most, so that sequences follow
    one another."""
    keys = max(k for _, k in problem.sequences)
    head_bytes = keys * (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
    fits = max(1, min(MOST_SECTION_HEADS, budget_bytes // head_bytes))
    heads = min(1 << (fits.bit_length() - 1), problem.kv_heads)
    return heads if packed else heads * problem.group


@rule_book("fa3-varlen")
class Fa3VarlenRules(Fa3Rules):
    """Splits by sequence, chosen on the GPU; a persistent grid with a queue, whether it splits or not."""

    splits_packed = True

    def most_splits(self, problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
        return most_splits(problem, sms, block_q, block_k) if has_cache(problem) else 1

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        max_splits = self.most_splits(problem, sms, block_q, block_k)
        return max(varlen_splits(problem, sms, block_q, block_k, max_splits))

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        queued = replace(stated, scheduler=Scheduler.DYNAMIC)
        if problem.mask == "none" or splits > 1:
            return queued
        section = heads_in_section(problem, packed)
        return replace(queued, order=Order.HEAD, start=Start.HEAVY_FIRST, section_heads=section)

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """With what its tiles wait for, and what fp8 costs beyond the paper's kernel."""
        finished = super().finish(kernel, problem, profile)
        alone, fp8, loop = (
            finished.tile.warps == ONE_WARPGROUP,
            problem.dtype == "fp8",
            finished.loop,
        )
        if fp8:
            more = self.fp8_operations(finished.compiled_head_dim or problem.head_dim, alone)
            loop = replace(loop, score_operations=loop.score_operations + more)
        waits = TILE_WAITS[alone] + searches(problem, finished, int(profile.need("sm_count")))
        options = replace(options_of(finished, FlashOptions), tile_waits=waits)
        return replace(
            finished, schedule=replace(finished.schedule, cluster=1), options=options, loop=loop
        )

    def fp8_operations(self, width: int, alone: bool) -> float:
        """Operations a score more in fp8, in a build of `width` columns; `alone`: of one warpgroup."""
        if width < WIDE_COLUMNS:
            return 0.0
        return ALONE_OPERATIONS if alone else FP8_OPERATIONS


def searches(problem: AttentionProblem, kernel: Kernel, sms: int) -> int:
    """Further groups of sequences that a CTA goes over between two of its tiles, or before its one tile."""
    rows = problem.longest_q * (problem.group if kernel.packs_group else 1)
    heads = problem.kv_heads if kernel.packs_group else problem.heads
    # A CTA goes over groups of 31 sequences as its tiles advance: divided among its tiles.
    tiles = problem.sequence_count * heads * -(-rows // kernel.tile.block_q) * kernel.splits
    groups = -(-problem.sequence_count // SEQUENCES_AT_ONCE)
    return -(-(groups - 1) // max(1, -(-tiles // sms)))


def combines_nothing(kernel: Kernel, problem: AttentionProblem, sms: int) -> bool:
    """True where FlashAttention-3 launches its combine though no sequence is split: the host knows its bound alone."""
    rules = rules_of(entry(kernel.name).get("rules"))
    if kernel.splits > 1 or not isinstance(rules, Fa3VarlenRules):
        return False
    return rules.most_splits(problem, sms, kernel.tile.block_q, kernel.tile.block_k) > 1


@rule_book("vllm-fa3")
class VllmFa3Rules(Fa3VarlenRules):
    """With vLLM's bound on splits while decoding. Its flash_attn_varlen_func, the one call for all, leaves the number
    to the library (vllm_flash_attn/flash_attn_interface.py @03ef28b3: num_splits = 0)."""

    def fp8_operations(self, width: int, alone: bool) -> float:
        """As of all, and those of sums of its own where several warpgroups compute."""
        if width > max(PROMOTED_OPERATIONS):
            return WIDEST_OPERATIONS if not alone else super().fp8_operations(width, alone)
        more = 0.0 if alone else PROMOTED_OPERATIONS.get(width, 0.0)
        return super().fp8_operations(width, alone) + more

    def most_splits(self, problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
        tokens = sum(q for q, _ in problem.sequences)
        return (
            VLLM_MAX_SPLITS
            if tokens <= GRAPH_TOKENS
            else most_splits(problem, sms, block_q, block_k)
        )


@rule_book("fa3-sm80")
class Fa3Sm80Rules(Fa3VarlenRules):
    """Ampere's kernel: heads of a group always share a tile; with splits the tiles are others, in a persistent grid."""

    def split_kernel(self, problem: AttentionProblem, grid: SplitGrid) -> tuple[int, bool]:
        max_splits = self.most_splits(problem, grid.sms, grid.block_q, grid.block_k)
        return max(
            varlen_splits(problem, grid.sms, grid.block_q, grid.block_k, max_splits)
        ), max_splits > 1

    def packs_group(
        self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int
    ) -> bool:
        return problem.group > 1

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        return replace(stated, scheduler=Scheduler.DYNAMIC) if splits > 1 else stated

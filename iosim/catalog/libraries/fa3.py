"""FlashAttention-3: splits, packed rows, clusters, sections of heads, and the backward's registers and schedule.

Sources: Dao-AILab/flash-attention, hopper/flash_api.cpp, hopper/heuristics.h @13d0fd9c,
hopper/flash_fwd_launch_template.h (run_mha_fwd_), hopper/flash_bwd_launch_template.h (Scheduler),
hopper/tile_scheduler.hpp (SingleTileBwdLPTScheduler) and hopper/flash_attn_interface.py (num_splits).
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.libraries.fa2 import drops_mask
from iosim.catalog.libraries.rules import MAX_SPLITS, Rules, fewest_efficient, rule_book
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.schedule import Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import NO_BOUND

CLUSTER_HEAD_DIM = 128
"""16-bit kernels of this head dimension and above multicast K and V to the CTAs of a cluster; in fp8 only 192 does."""
CLUSTER_HEAD_DIM_FP8 = 192
SECTION_BYTES = 32 << 20
BACKWARD_SECTION_BYTES = 40 << 20
REGISTERS_PER_CTA = 65_536
REGISTER_STEP = 8
"""One CTA fills an SM: its threads share all registers (launch bounds of one CTA per SM), in steps of eight."""
FEW_KEY_BLOCKS = 4
ONE_WARPGROUP = 4
"""Warps that compute where a tile has 64 rows."""
L2_BYTES = 50 << 20
FULL_SHARE = 0.8
PACKED_GAIN = 0.9


@rule_book("fa3")
class Fa3Rules(Rules):
    """Persistent without a mask; under one, a queue of the longest first in sections of heads that fit the L2; a CTA a
    tile with splits."""

    def as_launched(self, problem: AttentionProblem) -> AttentionProblem:
        """The problem without the causal mask of one query token, but for pages at head_dim 65 to 128."""
        if problem.page_size is not None and 64 < problem.head_dim <= 128:
            return problem
        return drops_mask(problem)

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        return fa3_splits(problem, sms, block_q, block_k) if has_cache(problem) else 1

    def packs_group(
        self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int
    ) -> bool:
        return fa3_packs_group(problem, splits, block_q, block_k)

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        """hopper/flash_fwd_launch_template.h, UsePersistentScheduler."""
        if splits > 1:
            return replace(stated, scheduler=Scheduler.STATIC)
        if problem.mask == "none":
            return stated
        return replace(
            stated,
            order=Order.HEAD,
            start=Start.HEAVY_FIRST,
            scheduler=Scheduler.DYNAMIC,
            section_heads=fa3_section_heads(problem, packed=packed),
        )

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """The kernel with its cluster, and the backward's heads in sections under a mask. Raises InputError: a backward
        in fp8, which the library does not have."""
        if problem.dtype == "fp8" and problem.backward:
            raise InputError(
                f"`passes` {problem.passes}: kernel {kernel.name} has no backward in fp8; accepted: fwd"
            )
        width = kernel.compiled_head_dim or max(problem.head_dim, problem.head_dim_v)
        # Three things that the launch template decides: clusters, where P waits, the backward's registers.
        together = cluster(problem, kernel.tile.block_q, width, kernel.splits)
        loop = replace(kernel.loop, p_in_shared=p_in_shared(problem, width, kernel.tile.warps))
        kernel = replace(kernel, schedule=replace(kernel.schedule, cluster=together), loop=loop)
        backward = kernel.backward
        if backward.tile is None:
            return kernel
        registers = REGISTERS_PER_CTA // (32 * backward.tile.warps) // REGISTER_STEP * REGISTER_STEP
        if problem.mask == "none":
            return replace(kernel, backward=replace(backward, registers=registers))
        section = fa3_section_heads(problem, BACKWARD_SECTION_BYTES)
        schedule = replace(backward.schedule, order=Order.HEAD, section_heads=section)
        return replace(kernel, backward=replace(backward, registers=registers, schedule=schedule))


def cluster(problem: AttentionProblem, block_q: int, head_dim: int, splits: int) -> int:
    """CTAs that share their loads of K and V: 2 without a mask and with an even number of query blocks, else 1."""
    wide = (
        head_dim == CLUSTER_HEAD_DIM_FP8 if problem.dtype == "fp8" else head_dim >= CLUSTER_HEAD_DIM
    )
    even = -(-problem.seq_q // block_q) % 2 == 0
    return 2 if wide and even and problem.mask == "none" and splits == 1 else 1


def p_in_shared(problem: AttentionProblem, width: int, warps: int) -> bool:
    """True where P waits for its product in shared memory: in 16 bits at widths of 96, and at 64 without a mask where
    three warpgroups compute (hopper/tile_size.h, MmaPV_is_RS)."""
    if problem.dtype == "fp8" or warps == ONE_WARPGROUP:
        return False
    return 64 < width <= 96 or (width <= 64 and problem.mask == "none")


def fa3_section_heads(
    problem: AttentionProblem, budget_bytes: int = SECTION_BYTES, packed: bool = False
) -> int:
    """Heads of the grid per section: 2^floor(log2(budget / bytes of one head's K and V)), at least one, times the group
    unless tiles pack it.

    FlashAttention-3, hopper/tile_scheduler.hpp 218-314: 32 MiB forward, 40 MiB backward.
    """
    head_bytes = problem.seq_k * (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
    fits = max(1, budget_bytes // head_bytes)
    return int(1 << (fits.bit_length() - 1)) * (1 if packed else problem.group)


def has_cache(problem: AttentionProblem) -> bool:
    """True where keys lie in a cache: in pages, or more of them than queries, whose earlier tokens are there.

    `flash_attn_with_kvcache` leaves the number of splits to the library (num_splits=0); `flash_attn_func` and
    `flash_attn_varlen_func` do not split (num_splits=1). NB: cross-attention by a plain call does not, either.
    """
    if problem.page_size is not None or problem.seq_lens is None:
        return problem.page_size is not None or problem.seq_q < problem.seq_k
    return any(q < k for q, k in problem.sequences)


def fa3_splits(problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
    """FlashAttention-3's number of KV splits (hopper/heuristics.h @13d0fd9c, num_splits_heuristic, as called by
    get_num_splits of hopper/flash_api.cpp).

    Rows are counted as packed. With tiles for 80 % of the SMs: 1, unless a head's K and V outgrow 50 MiB and two rounds
    of query blocks go over them. With up to 4 key blocks: 1. Else the fewest within 85 % of the best wave efficiency.
    """
    query_blocks = -(-problem.seq_q * problem.group // block_q)
    tiles = problem.batch * problem.kv_heads * query_blocks
    keys = min(problem.seq_k, window_keys(problem) + block_q)
    key_blocks = -(-keys // block_k)
    # Nearly enough tiles: split only where a head's keys outgrow the L2 and are walked again.
    if tiles >= FULL_SHARE * sms:
        head_bytes = (
            problem.seq_k * (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
        )
        again = head_bytes > L2_BYTES and query_blocks >= 2 * sms and problem.mask == "none"
        return min(-(-head_bytes // L2_BYTES), MAX_SPLITS) if again else 1
    if key_blocks <= FEW_KEY_BLOCKS:
        return 1
    return fewest_efficient(tiles, key_blocks, sms)


def window_keys(problem: AttentionProblem) -> int:
    """Keys of a query's window, whatever the sequence's ends cut off; all of them without one.

    hopper/flash_api.cpp, seqlen_k_loaded but for the rows of a tile: a side without a bound is as long as the sequence.
    """
    if problem.mask != "window":
        return problem.seq_k
    keys_before = problem.seq_k - 1 if problem.window is None else problem.window
    right = problem.seq_q - 1 if problem.window_right == NO_BOUND else problem.window_right or 0
    return keys_before + right + 1


def fa3_packs_group(problem: AttentionProblem, splits: int, block_q: int, block_k: int) -> bool:
    """FlashAttention-3's PackGQA: with splits, with pages that TMA does not fetch, or where packing fills tiles better
    (hopper/flash_api.cpp, get_pack_gqa and get_pagedkv_tma; hopper/heuristics.h @13d0fd9c, should_pack_gqa)."""
    if problem.group == 1:
        return False
    if splits > 1:
        return True
    packed = problem.seq_q * problem.group
    if problem.page_size is not None and not (
        problem.page_size % block_k == 0 and packed > block_q
    ):
        return True

    def filled(rows: int) -> float:
        return rows / (-(-rows // block_q) * block_q)

    return filled(problem.seq_q) < PACKED_GAIN * filled(packed)

"""FlashAttention-4: splits, packed rows, pairs of CTAs, the order of tiles, and exponentials in software.

Source: Dao-AILab/flash-attention @0251105a, flash_attn/cute/interface.py (_validate_head_dims, num_splits_heuristic,
_flash_attn_fwd, _flash_attn_bwd), tile_scheduler.py (SingleTileScheduler, SingleTileLPTScheduler,
SingleTileVarlenScheduler, StaticPersistentTileScheduler, SingleTileLPTBwdScheduler), flash_fwd_sm100.py
(_TUNING_CONFIG) and softmax.py (apply_exp2_convert).
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.libraries.fa3 import fa3_section_heads, window_keys
from iosim.catalog.libraries.rules import MAX_SPLITS, Rules, rule_book
from iosim.catalog.libraries.varlen import heads_in_section
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.schedule import Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem

SECTION_BYTES = 50 << 20
TILE_ROWS = 128
"""Rows of a query stage."""
FEW_KEY_BLOCKS = 4
OWN_WIDTH = 256
"""A head dimension with a kernel of its own on cc 10."""
WIDTHS = "up to 128, 192 beside values of 128"
PAIR_WIDTHS = (128, 192)
NATIVE_EXP_CC = 103
"""Compute capability whose exponentials are fast enough to need no polynomials."""
SOFTWARE_EVERY = {
    (True, False, 128): 10,
    (False, True, 128): 16,
    (True, False, 192): 16,
    (False, True, 192): 32,
    (True, False, 256): 14,
    (True, True, 256): 14,
}
"""(pairs, causal, width) -> values of a fragment after which polynomials begin again; others: 16 up to width 128, none
above."""
FRAGMENT, FRAGMENTS = 32, 4
"""Values of a fragment of a row's scores, and fragments of a row of 128 keys."""


@rule_book("fa4-one-tile")
class Fa4Rules(Rules):
    """A CTA a tile, the longest first under a mask, in sections of heads whose K and V take 50 MiB. The query heads of
    a group share rows, and no call asks for splits (num_splits=1)."""

    splits_packed = packs_groups = True

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        if problem.mask == "none":
            varies = splits > 1 or problem.seq_lens is not None or problem.head_dim > TILE_ROWS
            return replace(stated, scheduler=Scheduler.STATIC) if varies else stated
        if problem.seq_lens is None:
            section = fa3_section_heads(problem, SECTION_BYTES, packed)
        else:
            section = heads_in_section(problem, packed, SECTION_BYTES)
        return replace(
            stated,
            order=Order.HEAD,
            start=Start.HEAVY_FIRST,
            scheduler=Scheduler.STATIC,
            section_heads=section,
        )

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """Raises InputError: it is to split its keys."""
        if kernel.splits > 1:
            why = f"kernel {kernel.name} splits none at `head_dim` {problem.head_dim}; accepted: 1"
            raise InputError(f"`splits` {kernel.splits}: {why}")
        return kernel


@rule_book("fa4-sm90")
class Fa4Sm90Rules(Fa4Rules):
    """Tiles of Hopper's kernel: the file's, but for narrow values beside wide keys, which take 128 keys and no wider
    buffers."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        kernel = super().finish(kernel, problem, profile)
        if (
            not problem.head_dim_v <= TILE_ROWS < problem.head_dim <= 192
            or problem.mask == "window"
        ):
            return kernel
        width, width_v = (
            -(-columns // 16) * 16 for columns in (problem.head_dim, problem.head_dim_v)
        )
        rows = kernel.tile.block_q * width + kernel.tile.stages * TILE_ROWS * (width + width_v)
        return replace(
            kernel,
            tile=replace(kernel.tile, block_k=TILE_ROWS),
            shared_memory_bytes=rows * problem.input_type.bytes,
        )


@rule_book("fa4")
class Fa4Sm100Rules(Fa4Rules):
    """On cc 10 a static persistent stride without a mask, and pairs of CTAs that fetch half of K and V each."""

    def packs_group(
        self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int
    ) -> bool:
        return problem.group > 1 and problem.head_dim != OWN_WIDTH

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """With pairs and the share of polynomials. Raises InputError: widths without a kernel, or not to be split."""
        widths, width = (problem.head_dim, problem.head_dim_v), -(-problem.head_dim // 16) * 16
        if max(widths) > TILE_ROWS and widths not in ((192, TILE_ROWS), (OWN_WIDTH, OWN_WIDTH)):
            why = f"not made for kernel {kernel.name}; accepted: {WIDTHS}"
            raise InputError(f"`head_dim` {widths[0]}, `head_dim_v` {widths[1]}: {why}")
        if max(widths) > TILE_ROWS:
            kernel = super().finish(kernel, problem, profile)
        pairs = width == OWN_WIDTH or pairs_of_ctas(problem, kernel.splits)
        software = (
            0.0
            if profile.cc >= NATIVE_EXP_CC
            else software_exps(problem, width, pairs, kernel.packs_group)
        )
        more = NARROW_OPERATIONS.get(width, 0.0) if software else 0.0
        operations = kernel.loop.score_operations + more
        return replace(
            kernel,
            schedule=replace(kernel.schedule, cluster=2 if pairs else 1),
            loop=replace(kernel.loop, software_exps=software, score_operations=operations),
        )


NARROW_OPERATIONS = {64: 4.2, 80: 8.4}
"""Padded head dimension -> operations a score more than cuDNN's kernel, with which `fa4` was compared at 128 columns, on
cc 10.0. Fitted on 120 open rows of published_stacks.csv, encoders' calls of packed sequences on a B200 and a GB200;
other calls have the same loop (flash_fwd_sm100.py). Where exponentials are fast, packed sequences of 80 columns take no
more than those of 64, and calls of one length none (B300, others' times)."""
NARROWEST = min(NARROW_OPERATIONS)


@rule_book("fa4-varlen")
class Fa4VarlenRules(Fa4Sm100Rules):
    """A CTA a tile, without pairs, whatever the mask: as sequences of different lengths are run."""

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        return replace(
            super().schedule(problem, stated, splits, packed), scheduler=Scheduler.STATIC
        )

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        kernel, width = super().finish(kernel, problem, profile), -(-problem.head_dim // 16) * 16
        more = 0.0
        if profile.cc >= NATIVE_EXP_CC and width in NARROW_OPERATIONS:
            more = NARROW_OPERATIONS[NARROWEST]
        loop = replace(kernel.loop, score_operations=kernel.loop.score_operations + more)
        return replace(kernel, schedule=replace(kernel.schedule, cluster=1), loop=loop)


def pairs_of_ctas(problem: AttentionProblem, splits: int) -> bool:
    """True where two CTAs compute products together (use_2cta_instrs): neither under a mask nor with splits, pages of
    another size than a tile's keys, or packed sequences."""
    rows, width_v = problem.seq_q * problem.group, -(-problem.head_dim_v // 16) * 16
    plain = problem.mask == "none" and splits == 1 and problem.seq_lens is None
    fits = (
        -(-problem.head_dim // 16) * 16 in PAIR_WIDTHS
        and width_v == 128
        and TILE_ROWS % problem.group == 0
    )
    return plain and fits and problem.page_size in (None, TILE_ROWS) and rows > 2 * TILE_ROWS


def software_exps(problem: AttentionProblem, width: int, pairs: bool, packed: bool) -> float:
    """Share of the exponentials of a step without a mask that are polynomials (softmax.py, apply_exp2_convert): of each
    fragment but the first and the last, the pairs at the end of every so many values."""
    causal, plain = problem.mask == "causal", problem.mask == "none"
    # Of every `every` values of a fragment the last `tail` are polynomials; the first fragment of a row
    # (at some widths) and the last are computed in hardware.
    every = SOFTWARE_EVERY.get((pairs, causal, width), 16 if width <= TILE_ROWS else 0)
    if every and packed and plain and 64 < width != OWN_WIDTH:
        every = (
            32 if problem.seq_lens is not None else SOFTWARE_EVERY.get((pairs, causal, width), 10)
        )
    if not every:
        return 0.0
    tail, first = (6, 0) if width == OWN_WIDTH else (4, 0 if (pairs, width) == (True, 192) else 1)
    share = sum(value % every >= every - tail for value in range(0, FRAGMENT, 2)) / (FRAGMENT // 2)
    return share * (FRAGMENTS - 1 - first) / FRAGMENTS


def fa4_splits(problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
    """FlashAttention-4's number of splits where a caller leaves it open (num_splits < 1)."""
    tiles = (
        problem.sequence_count * problem.kv_heads * -(-problem.longest_q * problem.group // block_q)
    )
    key_blocks = -(-min(problem.longest_k, window_keys(problem) + TILE_ROWS) // block_k)
    return 1 if key_blocks <= FEW_KEY_BLOCKS else max(1, min(sms // tiles, MAX_SPLITS, key_blocks))


@rule_book("fa4-splits")
class Fa4SplitRules(Fa4Sm100Rules):
    """Splits as the library chooses them for a caller with num_splits=0."""

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        return fa4_splits(problem, sms, block_q, block_k) if problem.head_dim <= TILE_ROWS else 1


@rule_book("fa4-stealing")
class Fa4StealingRules(Fa4Sm100Rules):
    """With FA_CLC=1: under a mask CTAs take tiles from a queue of the hardware, a head's blocks one after the other,
    the last first; packed sequences without groups, and widths above 128, as before."""

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        schedule = super().schedule(problem, stated, splits, packed)
        steals = problem.mask != "none" and (problem.seq_lens is None or problem.group > 1)
        steals = steals and problem.head_dim <= TILE_ROWS
        return (
            replace(schedule, scheduler=Scheduler.DYNAMIC, order=Order.QUERY, section_heads=0)
            if steals
            else schedule
        )


@rule_book("fa4-deterministic")
class Fa4DeterministicRules(Fa4Sm100Rules):
    """With deterministic=True: the backward's heads in sections whose Q, dO and fp32 dQ take 50 MiB, under a mask the
    last keys first."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        kernel = super().finish(kernel, problem, profile)
        widths = problem.head_dim + problem.head_dim_v
        head_bytes = problem.seq_q * (widths * problem.input_type.bytes + 4 * problem.head_dim)
        section = 1 << (max(1, SECTION_BYTES // head_bytes).bit_length() - 1)
        start = Start.LIGHT_FIRST if problem.mask == "none" else Start.HEAVY_FIRST
        schedule = replace(
            kernel.backward.schedule, order=Order.HEAD, section_heads=section, start=start
        )
        return replace(kernel, backward=replace(kernel.backward, schedule=schedule))

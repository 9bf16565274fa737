"""Triton's flash forward: what computes its products, the shared memory it allocates, and what the tutorial tunes over;
vLLM's unified attention: rows of a tile and segments of the keys.

The tutorial's launch decides by rule which of its two forwards runs; its configuration is the caller's, or the file's
tile.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import ClassVar

from iosim.base.records import replace
from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.common import resources
from iosim.catalog.algorithms.flash_options import FlashOptions, mask_limits
from iosim.catalog.libraries.loader import entry, overheads
from iosim.catalog.libraries.rules import Rules, SplitGrid, rule_book
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, Spill, Tile
from iosim.kernel.launch import Overhead
from iosim.kernel.schedule import Order
from iosim.kernel.tile_rules import backward_shared_bytes
from iosim.kernel.unit import MMA_ROWS, WARPS_PER_GROUP, WGMMA_CC, WGMMA_ROWS, MatrixUnit
from iosim.problem.attention import AttentionProblem


@rule_book("triton")
class TritonRules(Rules):
    """On cc 9.0 the compiler's choice of a unit goes by the tile; of other GPUs nothing was measured, and the file's
    stands. With mma.sync the warps of a tile with fewer rows than the output has columns divide its keys (Triton 3.6's
    layouts of 16 tiles, cc 8.0 and 9.0)."""

    def compiled(
        self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile
    ) -> Kernel:
        # The compiler lays warps along the rows; where there are fewer rows than output columns it lays them
        # along the keys.
        unit, tile = kernel.matrix_unit, kernel.tile
        if profile.cc == WGMMA_CC:
            unit = unit_of(tile, problem, profile)
        by_warps = unit is MatrixUnit.MMA_SYNC or (
            profile.cc < WGMMA_CC and problem.dtype != "fp32"
        )
        if kernel.loop.copy_waits and by_warps and tile.block_q < problem.head_dim_v:
            kernel = replace(kernel, loop=replace(kernel.loop, key_warps=tile.warps))
        return replace(kernel, matrix_unit=unit)

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        if not problem.backward or kernel.backward.tile is None:
            return kernel
        least = backward_buffer_bytes(kernel.backward.tile, self.walked_rows(kernel), problem)
        return replace(kernel, backward=replace(kernel.backward, shared_memory_bytes=least))

    def walked_rows(self, kernel: Kernel) -> int:
        """Rows of a step of the backward's longer-stepping loop: one over queries makes dK and dV, another over keys
        makes dQ, with the same two sides."""
        return max(kernel.tile_backward.block_q, kernel.tile_backward.block_k)


DESCRIPTOR_CC = 90
"""Compute capability from which the tutorial takes its kernel by tensor descriptors (supports_tma)."""


@rule_book("triton-tutorial")
class TutorialRules(TritonRules):
    """The tutorial has two forwards. The one by tensor descriptors (_attn_fwd_tma) ends at the causal diagonal. The one
    by pointers (_attn_fwd), which runs on older GPUs, on AMD's, and on cc 9.0 for fp8 (float8_e5m2), walks all keys
    and masks those past it: its loop goes from 0 to N_CTX."""

    def walked_rows(self, kernel: Kernel) -> int:
        """32 in both loops, the sides of the second being those of the first the other way round."""
        return kernel.tile_backward.block_q

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        kernel = super().finish(kernel, problem, profile)
        if problem.mask == "none" or not problem.forward:
            return kernel
        older = profile.is_amd or profile.cc < DESCRIPTOR_CC
        by_pointers = older or (profile.cc == DESCRIPTOR_CC and problem.dtype == "fp8")
        return replace(
            kernel, options=replace(options_of(kernel, FlashOptions), walks_all_keys=by_pointers)
        )


FLEX_SHORT = 128
"""Query tokens from which FlexAttention's main kernel runs, and the rows of a group that its decoding takes at most:
those of the mask's blocks."""


ONE_LAUNCH, UNROLLED = 2, 4
"""Splits up to which Inductor combines in one launch, and up to which it keeps weights of splits in memory rather than
maxima and sums of rows: seen in calls drawn at random, with 1, 2, 4, 6 and 8 to 88 splits."""
AT_ONCE = {"combine_waits": 0, "combine_loads_at_once": 1024}
"""No load of its reductions waits for another."""
COMBINED = 512
"""Values of O that a CTA of the combine makes where splits are few; else it has a row or a part of one."""


COMPILED_CC = (80, 86, 89, 120)
"""Compute capabilities of which builds told what Triton allocates for products by mma.sync."""

FLEX_LOOPS = Path(__file__).with_name("flex-loops.csv")


FAR_STRIDE = 1 << 21
"""Elements between two sequences from which the compiler holds their number otherwise: experiments/flex_builds.py."""


@cache
def _flex_loops() -> dict[tuple[int, str, str], dict[str, str]]:
    """What loops of FlexAttention's builds take beside the plain loop, by head dimension, mask and ends of lengths."""
    with FLEX_LOOPS.open(encoding="utf-8", newline="") as file:
        return {
            (int(row["head_dim"]), row["mask"], row["ends"]): row for row in csv.DictReader(file)
        }


def flex_ends(tokens: int, block: int) -> str:
    """Which build a length is compiled to: of whole blocks, of multiples of eight, or of any other length."""
    if tokens % block == 0:
        return "whole"
    return "eighths" if tokens % 8 == 0 else "odd"


def _as_compiled(kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
    """The forward with the instructions and the spilled registers of its loops, counted in machine code for cc 9.0
    (experiments/flex_loops.py) and taken for other GPUs and for masks of one's own: these have two limits. How long its
    code is holds for the tile of cc 9.0 alone."""
    loops = _flex_loops()
    width = min((d for d, _, _ in loops if d >= problem.head_dim), default=max(loops)[0])
    mask = problem.mask if problem.mask in ("none", "causal") else "window"
    order, options = ("whole", "eighths", "odd"), options_of(kernel, FlashOptions)
    block = options.mask_block or kernel.tile.block_k
    lengths = (flex_ends(tokens, block) for tokens in (problem.seq_q, problem.seq_k))
    ends = max(lengths, key=order.index)
    # Builds without a mask may differ by the strides of their heads, too.
    far = problem.heads * problem.seq_q * problem.head_dim >= FAR_STRIDE
    alone = problem.heads == 1 and problem.seq_q % 2 == 1
    place = "one head" if alone else "far" if far else ""
    row = loops.get((width, mask, f"{ends}, {place}"), loops[width, mask, ends])
    options = replace(
        options,
        step_operations=float(row["step_operations"]),
        end_operations=float(row["end_operations"]),
    )
    spill = kernel.spill or Spill()
    if spill.accesses_per_pair:
        end_steps = mask_limits(problem.mask) * block / kernel.tile.block_k
        spill = replace(
            spill,
            accesses_per_pair=float(row["step_spills"]),
            accesses_per_tile=max(0.0, float(row["end_spills"]) * end_steps),
        )
    if profile.cc == WGMMA_CC:
        spill = replace(spill, code=tuple(map(int, row["code"].split())))
    return replace(kernel, options=options, spill=spill)


def _as_allocated(kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
    """The forward with the shared memory that the compiler allocates where mma.sync multiplies, unless it is stated."""
    by_mma = profile.cc in COMPILED_CC and problem.input_type.bytes == 2
    if not by_mma or kernel.splits > 1 or kernel.shared_memory_bytes is not None:
        return kernel
    width = kernel.compiled_head_dim or 0
    padded = problem.with_(
        head_dim=max(width, problem.head_dim), head_dim_v=max(width, problem.head_dim_v)
    )
    held = shared_bytes(kernel.tile, padded, MatrixUnit.MMA_SYNC)
    return replace(kernel, shared_memory_bytes=held)


@rule_book("flex")
class FlexRules(TritonRules):
    """Short queries of groups of 2^n heads: all rows of a group in one tile, two CTAs per SM. A forward whose buffers
    do not fit is compiled again with one stage (github.com/pytorch/pytorch/pull/184310: cc 8.9, head_dim 128;
    github.com/pytorch/pytorch/issues/198224: cc 12.1, head_dim 160 to 256)."""

    split_options: ClassVar = {
        **AT_ONCE,
        "statistics_per_row": 2,
        "combines_one": True,
        "empty_splits": True,
        "undivided": True,
    }

    def split_kernel(self, problem: AttentionProblem, grid: SplitGrid) -> tuple[int, bool]:
        rows = problem.seq_q * problem.group
        if problem.seq_q >= FLEX_SHORT or rows > FLEX_SHORT or problem.group & (problem.group - 1):
            return 1, False
        return max(1, grid.sms // (problem.batch * problem.kv_heads) * 2), True

    def packs_group(
        self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int
    ) -> bool:
        return (
            problem.group > 1
            and self.split_kernel(problem, SplitGrid(1, 1, 1, block_q, block_k))[1]
        )

    def split_overheads(self, problem: AttentionProblem, block_q: int) -> tuple[Overhead, ...]:
        return overheads(entry("flex"), "overhead")

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        if problem.backward:
            fits = min(
                backward_shared_bytes(problem, kernel.tile_backward),
                profile.need_int("shared_memory_per_block_optin_bytes"),
            )
            return replace(kernel, backward=replace(kernel.backward, shared_memory_bytes=fits))
        shared_limit = profile.need_int("shared_memory_per_block_optin_bytes")
        allocated = _as_allocated(kernel, problem, profile)
        if (resources(problem, allocated).shared_memory_bytes or 0) > shared_limit:
            kernel = replace(kernel, tile=replace(kernel.tile, stages=1))
            allocated = _as_allocated(kernel, problem, profile)
        kernel = allocated
        options = options_of(kernel, FlashOptions)
        if not options.combines_one:
            return _as_compiled(kernel, problem, profile)
        # Inductor's three ways to combine, by the number of splits.
        launches = 1 if kernel.splits <= ONE_LAUNCH else 3 if kernel.splits <= UNROLLED else 2
        taken = max(1, COMBINED // problem.head_dim_v) if kernel.splits <= UNROLLED else 1
        options = replace(options, combine_launches=launches, combine_rows=taken)
        # The grid: heads, sequences, then splits.
        schedule = replace(kernel.schedule, order=Order.HEAD)
        kernel = replace(kernel, options=options, writes_lse=False, schedule=schedule)
        rows = problem.seq_q * (problem.group if kernel.packs_group else 1)
        block_q = min(
            max(MMA_ROWS, 1 << (rows - 1).bit_length()), FLEX_SHORT
        )  # more with splits by hand alone
        loop = replace(
            kernel.loop, loads_ahead=False
        )  # SASS of Triton 3.6, sm_90: no loop copies by cp.async
        return replace(kernel, tile=replace(kernel.tile, block_q=block_q), loop=loop)


SEGMENTS = 16
FEW_CTAS = 128
"""CTAs without segments (sequences x key/value heads) up to which keys are divided (MIN_LAUNCH_GRID_SIZE_2D)."""
GEMMA_3 = (1023, (128, 256), 32)
"""Window, head dimensions, and the keys of a block that they get in decoding, too (_is_gemma3_attention)."""


@rule_book("vllm-triton")
class UnifiedRules(TritonRules):
    """Tiles of 16 rows, or the group's next power of two, of whole tokens; 16 segments where few sequences decode.

    NB: with CUDA graphs the bound on sequences is that of the nearest captured batch, here taken as it is.
    """

    splits_alike = splits_packed = packs_groups = True
    split_options: ClassVar = {"combines_one": True}

    def split_kernel(self, problem: AttentionProblem, grid: SplitGrid) -> tuple[int, bool]:
        if problem.longest_q > 1 or problem.sequence_count * problem.kv_heads > FEW_CTAS:
            return 1, False
        return -(-grid.key_blocks // -(-grid.key_blocks // SEGMENTS)), True

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        pack = problem.group if kernel.packs_group else 1
        rows = max(MMA_ROWS, 1 << (pack - 1).bit_length())
        window, widths, keys = GEMMA_3
        block_k = (
            keys if problem.window == window and problem.head_dim in widths else kernel.tile.block_k
        )
        whole = replace(kernel.tile, block_q=rows, block_k=block_k)
        width = kernel.compiled_head_dim or problem.head_dim
        # Triton pads head dimensions to the next power of two: shared memory holds the padded rows.
        padded = problem.with_(head_dim=width, head_dim_v=width)
        shared = shared_bytes(whole, padded, unit_of(whole, problem, profile))
        if problem.widens:  # keys and values as they came lie beside the widened ones
            shared += block_k * 2 * width * problem.cache_type.bytes
        waits = (
            problem.sequence_count.bit_length() + 1
        )  # the search for a token's sequence, and its length
        return replace(
            kernel,
            tile=replace(whole, block_q=rows // pack * pack),
            shared_memory_bytes=shared,
            options=replace(options_of(kernel, FlashOptions), combine_waits=waits),
        )


def unit_of(tile: Tile, problem: AttentionProblem, profile: HardwareProfile) -> MatrixUnit:
    """What Triton computes the products with: wgmma on cc 9.0 from 64 query rows and a warpgroup, else mma.sync.

    Seen in experiments/measurements/triton_tiles_d64_time.csv: tiles of 32 rows run at mma.sync's speed.
    """
    if problem.dtype == "fp32":
        return MatrixUnit.FP32
    whole_group = tile.block_q >= WGMMA_ROWS and tile.warps >= WARPS_PER_GROUP
    return MatrixUnit.WGMMA if profile.cc == 90 and whole_group else MatrixUnit.MMA_SYNC


def shared_bytes(tile: Tile, problem: AttentionProblem, unit: MatrixUnit) -> int:
    """Shared memory that Triton allocates, without the driver's kilobyte.

    wgmma: Q, and K and V once a stage; with one stage K and V take turns. mma.sync: one stage less of K and V, and P
    where warps lie along the columns of a product, so that its layout is converted through shared memory: they do where
    it has more columns than rows. Meets every row of experiments/measurements/triton_tiles_d64_time.csv, and to 12 bytes
    what Triton 3.6 allocates for 12 tiles of cc 8.0, 8.6, 8.9 and 12.0.
    """
    size, stages = problem.input_type.bytes, tile.stages
    q = tile.block_q * problem.head_dim * size
    k, v = tile.block_k * problem.head_dim * size, tile.block_k * problem.head_dim_v * size
    if unit is MatrixUnit.WGMMA:
        return q + (stages * (k + v) if stages > 1 else max(k, v))
    by_rows = tile.block_q >= max(tile.block_k, problem.head_dim_v)
    p = 0 if by_rows else tile.block_q * tile.block_k * size
    return q + p + ((stages - 1) * (k + v) if stages > 1 else max(k, v))


def backward_buffer_bytes(tile: Tile, rows: int, problem: AttentionProblem) -> int:
    """Shared memory that a backward CTA takes at least: `rows` of two operands in as many buffers as loads run ahead,
    one less than the stages (Q with dO where dK and dV are made, K with V where dQ is), and P or dS on its way from one
    product's layout to the next's. What stays for the whole loop may lie in registers and is left out."""
    width = problem.head_dim + problem.head_dim_v
    walked = max(1, tile.stages - 1) * rows * width
    return (walked + tile.block_q * tile.block_k) * problem.input_type.bytes


def tutorial_tiles() -> Iterator[Tile]:
    listed = entry("triton")["configurations"]
    for block_q, block_k, warps, stages in product(
        listed["block_q"], listed["block_k"], listed["warps"], listed["stages"]
    ):
        if warps < 8 or block_q * block_k >= listed["eight_warps_from"]:
            yield Tile(block_q, block_k, warps, stages)

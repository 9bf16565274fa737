"""cuDNN's fused attention on Hopper: splits, grid and reads of its decode kernel. Inferred, not published."""

from __future__ import annotations

from typing import ClassVar

from iosim.base.errors import InputError
from iosim.base.pointwise import pointwise
from iosim.base.records import replace
from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.flash_options import Adds, FlashOptions
from iosim.catalog.libraries.rules import Rules, SplitGrid, rule_book
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, PassSettings, Tile
from iosim.kernel.launch import SECTOR_BYTES, Mode, Overhead
from iosim.kernel.schedule import Order, Schedule, Scheduler, Start
from iosim.kernel.work import Fragments, Layout
from iosim.problem.attention import AttentionProblem

MOST_SPLITS = 64
FEWEST_SPLITS = 4
WIDE_HEAD_DIM = 128
"""Above it the build of 256 columns runs."""
LPT_KEYS = (1024, 16384)
L2_BUDGET_BYTES, NARROW = 16 << 20, 128
"""K and V of the heads that start together, and the widest heads for which it is so much (api_sm80.py); else half."""
BACKWARD_BUDGET_BYTES = 32 << 20
"""Q, dO and dQ's sums of the heads that start together in a causal backward: the forward's default (config_sm80.py), since
the backward's own is not in the sources that were read."""
STAGED_COLUMNS = 128
"""Widest heads for which dQ's additions are put in order in shared memory (bprop_f16_sm80.py, dq_smem_coalesce)."""
NARROW_TILE, NARROW_WIDTH, NARROW_SHARED_BYTES = Tile(64, 128, 8, 2), 64, 98_304
"""Tile and shared memory of the backward for whole tiles of 64 columns (bprop_d64_f16.py)."""
NARROW_FRAGMENTS = Fragments(Layout.GRADIENTS, warps_along=(4, 8, 4))
"""Warps along the queries of scores and dQ, along the keys of dK and dV (there)."""
WHOLE_KEYS = 256
"""Keys up to which kernels of 64 query rows run, which do not split them."""


class CudnnDecodeRules(Rules):
    """One query token has a kernel of its own: splits, a CTA a split, a max and a sum a row between them."""

    split_options: ClassVar = {
        "statistics_per_row": 2,
        "combine_rows": 1,
        "combine_threads": 256,
        "bound_operations": 0,
    }

    def split_kernel(self, problem: AttentionProblem, grid: SplitGrid) -> tuple[int, bool]:
        if problem.seq_q != 1:
            return 1, False
        if problem.longest_k <= WHOLE_KEYS:
            return 1, True
        return cudnn_splits(grid.tiles, grid.key_blocks, 2 * grid.sms), True

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        decodes = problem.seq_q == 1 and problem.passes == "fwd"  # as recorded grids say
        return replace(stated, scheduler=Scheduler.STATIC) if decodes else stated

    def split_overheads(self, problem: AttentionProblem, block_q: int) -> tuple[Overhead, ...]:
        return neighbours_of_q(problem, block_q)


@rule_book("cudnn")
class CudnnRules(CudnnDecodeRules):
    """The closed kernels for Hopper."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """What is spilled with a bias is the widest build's alone; a row of the file holds for narrower ones, too."""
        wide = max(problem.head_dim, problem.head_dim_v) > WIDE_HEAD_DIM
        return kernel if wide else replace(kernel, spill=None)


@rule_book("cudnn-sm80")
class CudnnAmpereRules(CudnnDecodeRules):
    """Several query tokens have the kernels of a prefill, a head a tile, however few they are: decoding 8 or 16 tokens
    computes whole tiles."""


@rule_book("cudnn-oss-sm80")
class CudnnOpenRules(Rules):
    """Under a causal mask the blocks of as many heads as fit a part of the L2 start together, those with most keys
    first (SCHED_LPT_L2); else blocks run fastest, but for a window over middling lengths (heuristics.py)."""

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        if problem.mask == "window" and LPT_KEYS[0] <= problem.longest_k <= LPT_KEYS[1]:
            return replace(stated, order=Order.HEAD, start=Start.HEAVY_FIRST)
        if problem.mask != "causal":
            return stated
        width = max(problem.head_dim, problem.head_dim_v)
        # Heads that start together: as many key/value heads as fit the budget, with their group.
        budget = L2_BUDGET_BYTES if width <= NARROW else L2_BUDGET_BYTES // 2
        a_head = (
            problem.longest_k * (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
        )
        together = max(1, budget // a_head) * problem.group
        return replace(stated, order=Order.HEAD, start=Start.HEAVY_FIRST, section_heads=together)

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """The backward's order, tile and additions. Raises InputError: heads that the host pads first."""
        if not problem.backward:
            return kernel
        width = max(problem.head_dim, problem.head_dim_v)
        if min(problem.head_dim, problem.head_dim_v) < (kernel.compiled_head_dim or width):
            why = "copies pad other widths before its backward, which are not described"
            widths = f"`head_dim` {problem.head_dim}, `head_dim_v` {problem.head_dim_v}"
            raise InputError(
                f"{widths}: kernel {kernel.name}: {why}; accepted: 64, 128 or 256 both"
            )
        if runs_narrow_backward(problem):
            return replace(kernel, backward=narrow_backward(kernel.backward))
        options = options_of(kernel, FlashOptions)
        if width > STAGED_COLUMNS:
            # Each lane adds where its fragment lies: eight rows of 32 bytes a request.
            options = replace(options, adds=Adds.PACKETS)
        schedule = kernel.backward.schedule
        if problem.mask != "none":
            schedule = replace(
                schedule, order=Order.HEAD, section_heads=backward_heads_together(problem)
            )
        return replace(
            kernel, options=options, backward=replace(kernel.backward, schedule=schedule)
        )


def runs_narrow_backward(problem: AttentionProblem) -> bool:
    """True where the backward for 64 columns alone runs: no mask, as many key heads as heads, whole tiles
    (_sm80_d64_fast_path_eligible)."""
    return (
        problem.head_dim == problem.head_dim_v == NARROW_WIDTH
        and problem.mask == "none"
        and problem.group == 1
        and problem.seq_q % NARROW_TILE.block_q == 0
        and problem.seq_k % NARROW_TILE.block_k == 0
    )


def narrow_backward(stated: PassSettings) -> PassSettings:
    """The backward for 64 columns: its own tile, blocks of keys fastest, then heads."""
    return replace(
        stated,
        tile=NARROW_TILE,
        shared_memory_bytes=NARROW_SHARED_BYTES,
        fragments=NARROW_FRAGMENTS,
    )


def backward_heads_together(problem: AttentionProblem) -> int:
    """Query heads whose blocks of keys start together, the first blocks of all of them before the second: groups whose
    Q, dO and sums of dQ fit `BACKWARD_BUDGET_BYTES`, one at least (SCHED_LPT_L2)."""
    row_bytes = (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
    row_bytes += problem.head_dim * 4
    a_group = problem.longest_q * problem.group * row_bytes
    return max(1, BACKWARD_BUDGET_BYTES // a_group) * problem.group


@pointwise
def cudnn_splits(tiles: int, key_blocks: int, slots: int) -> int:
    """cuDNN's splits for one query token: the largest power of two from 4 to 64 whose CTAs fit the machine at two an
    SM, and that there are key blocks for; else 1.

    Inferred from 60 recorded calls, not published: 2 and 4 tiles have 64 splits, 8 have 32, 32 have 8, 64 have 4; 78
    and 80 tiles have 1, as 17 with three key blocks.
    """
    n = 1
    while 2 * n * tiles <= slots and 2 * n <= min(key_blocks, MOST_SPLITS):
        n *= 2
    return n if n >= FEWEST_SPLITS else 1


def neighbours_of_q(problem: AttentionProblem, block_q: int) -> tuple[Overhead, ...]:
    """What the split kernel reads besides its tensors: cuDNN's CTAs fetch `block_q` rows of Q from their group's first
    head on, as far as there are heads, and use their group's. The mean over the groups, in whole bytes.

    Inferred from 60 recorded calls (experiments/measurements/h200_decode.csv, h200_library_kernels.csv, h100_random.csv
    and its like), which it meets to the byte; not published.
    """
    if problem.seq_q != 1:
        return ()
    # Rows of other heads beside the group's own, up to whole boxes of block_q rows.
    row_bytes: float = problem.head_dim * problem.input_type.bytes
    if (
        row_bytes % SECTOR_BYTES
    ):  # every second row begins inside a sector, where each lane takes one (Fetch.LANES)
        row_bytes = SECTOR_BYTES * (3 * row_bytes / 16 + 1) / 4
    per_tile = round(
        _rows_beyond(problem.heads, problem.group, block_q) * row_bytes / problem.kv_heads
    )
    source = "experiments/measurements/h200_decode.csv"
    overhead = Overhead("neighbours_of_Q", Mode.LOAD, per_tile=per_tile, inferred_from=source)
    return (overhead,) if per_tile else ()


@pointwise
def _rows_beyond(heads: int, group: int, block_q: int) -> int:
    """Rows of Q beyond their own group's that the CTAs of all groups fetch."""
    box = -(-group // block_q) * block_q
    return sum(min(box, heads - first) - group for first in range(0, heads, group))

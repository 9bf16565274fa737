"""What FlashAttention-3 decides at launch besides its tiles: clusters, the backward's registers and schedule.

Sources: Dao-AILab/flash-attention, hopper/flash_fwd_launch_template.h (run_mha_fwd_),
hopper/flash_bwd_launch_template.h (Scheduler) and hopper/tile_scheduler.hpp (SingleTileBwdLPTScheduler).
"""

from __future__ import annotations

from dataclasses import replace

from iosim.base.errors import InputError
from iosim.kernel.kernel import Kernel
from iosim.kernel.schedule import Order
from iosim.problem.attention import AttentionProblem

CLUSTER_HEAD_DIM = 128
"""16-bit kernels of this head dimension and above multicast K and V to the CTAs of a cluster; in fp8 only 192 does."""
CLUSTER_HEAD_DIM_FP8 = 192
BACKWARD_SECTION_BYTES = 40 << 20
REGISTERS_PER_CTA = 65_536
REGISTER_STEP = 8
"""One CTA fills an SM: its threads share all registers (launch bounds of one CTA an SM), in steps of eight."""


def cluster(problem: AttentionProblem, block_q: int, head_dim: int, splits: int) -> int:
    """CTAs that share their loads of K and V: 2 without a mask and with an even number of query blocks, else 1."""
    wide = head_dim == CLUSTER_HEAD_DIM_FP8 if problem.dtype == "fp8" else head_dim >= CLUSTER_HEAD_DIM
    even = -(-problem.seq_q // block_q) % 2 == 0
    return 2 if wide and even and problem.mask == "none" and splits == 1 else 1


def at_launch(kernel: Kernel, problem: AttentionProblem, section_heads: int) -> Kernel:
    """The kernel with its cluster, and the backward's heads in sections of `section_heads` under a mask.

    Raises:
        InputError: a backward in fp8, which the library does not have.
    """
    if problem.dtype == "fp8" and problem.backward:
        raise InputError(f"`passes` {problem.passes}: kernel {kernel.name} has no backward in fp8; accepted: fwd")
    width = kernel.compiled_head_dim or max(problem.head_dim, problem.head_dim_v)
    made = cluster(problem, kernel.tile.block_q, width, kernel.splits)
    kernel = replace(kernel, cluster=made)
    if kernel.backward_tile is None:
        return kernel
    registers = REGISTERS_PER_CTA // (32 * kernel.backward_tile.warps) // REGISTER_STEP * REGISTER_STEP
    kernel = replace(kernel, backward_registers=registers)
    if problem.mask == "none":
        return kernel
    schedule = replace(kernel.backward_schedule, order=Order.HEAD, section_heads=section_heads)
    return replace(kernel, backward_schedule=schedule)

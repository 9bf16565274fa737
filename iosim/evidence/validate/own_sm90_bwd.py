"""`flash_bwd_sm90` as a row of its table describes it: the catalog's kernel with the row's tile and order."""

from __future__ import annotations

from dataclasses import replace

from iosim.base.errors import InputError
from iosim.evidence.validate.own_sm90 import order_of
from iosim.evidence.validate.rows import OPTION, Row
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Mode, Overhead
from iosim.kernel.libraries import resolve
from iosim.kernel.schedule import Direction, Order, Schedule, Start
from iosim.problem.attention import AttentionProblem

NAME = "flash_bwd_sm90"
CATALOG = "flash-sm90"
STARTS = {"heavy_first": Start.LIGHT_FIRST, "light_first": Start.HEAVY_FIRST}
"""Key blocks in ascending order: under a causal mask the first one has most queries."""
TURNS_BYTES = 2 * 32
"""What the two warpgroups' counters take of a pair of blocks whose share of dQ waits for its turn: a packet each."""


def kernel_of(row: Row, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
    """The kernel of a row.

    Raises:
        InputError: an order that is not modelled.
    """
    order = order_of(row)
    if order.blocks not in STARTS:
        raise InputError(f"{OPTION}: {NAME} with blocks {order.blocks}; accepted: {', '.join(STARTS)}")
    kernel = resolve(CATALOG, problem, profile)
    schedule = Schedule(
        order=Order(order.order), start=STARTS[order.blocks], direction=Direction(order.direction),
        section_heads=order.section_heads if order.order == "head" else 0,
    )  # fmt: skip
    tile = replace(kernel.tile_backward, block_q=row.number("block_q") or kernel.tile_backward.block_q)
    overheads: tuple[Overhead, ...] = ()
    if row.facts.get("sums") == "ordered":
        overheads = (Overhead("turns", Mode.STORE, per_pair=TURNS_BYTES, inferred_from="kernels/flash_bwd_sm90.cuh"),)
    return kernel.with_(backward=replace(kernel.backward, tile=tile, schedule=schedule, overheads=overheads))


def variant(row: Row) -> str:
    """The knobs and the order of a row, in words."""
    order = order_of(row)
    words = [f"{row.facts.get('block_q')}x128", f"{row.facts.get('sums')} sums", order.order]
    words += [f"sections of {order.section_heads}"] if order.order == "head" and order.section_heads else []
    return ", ".join([*words, order.blocks.replace("_", " "), order.direction])

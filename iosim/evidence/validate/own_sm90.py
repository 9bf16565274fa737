"""`flash_fwd_sm90` as a row of its table describes it: the kernel and its launch, as `kernels/flash_fwd_sm90.cuh` has
them."""

from __future__ import annotations

from dataclasses import fields, replace

from iosim.base.errors import InputError
from iosim.evidence.cuda.sm90 import CC, Sm90Order, Sm90Spec
from iosim.evidence.validate.rows import OPTION, Row
from iosim.kernel.algorithms import plan
from iosim.kernel.kernel import Kernel, MatrixUnit, Tile
from iosim.kernel.launch import Chain, Edge, Mode, Overhead, Per
from iosim.kernel.schedule import Direction, Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem

NAME = "flash_fwd_sm90"
STARTS = {"light_first": Start.LIGHT_FIRST, "heavy_first": Start.HEAVY_FIRST, "fold": Start.FOLD}
SCHEDULERS = {"one_tile": Scheduler.STATIC, "static": Scheduler.PERSISTENT, "dynamic": Scheduler.DYNAMIC}
REGISTERS = {2: 168, 3: 128, 4: 96}
"""Of a thread as it starts, by how many warpgroups compute; setmaxnreg then moves them from the one that loads."""
PACKET_BYTES = 32
"""What an atomic add on the tile counter reads, and writes; and what a word takes on its way to another SM."""

SM_SPREAD = 0.008
"""Fitted on the odd-numbered rows of experiments/measurements/h200_sm90_orders_bytes.csv."""

SMS_ALIKE = 16
"""SMs of a cluster, which get CTAs one after the other: what CTAs take longer in every wave is alike in runs of 16
(experiments/measurements/h200_iosim_steps.npz, benchmarks/drift.py)."""
STEP_SPREAD = 0.115
"""Steps vary by a standard deviation of 6.6 %, each by itself (likewise, of flash_fwd)."""

HBM_SHARE = 0.82
"""Fitted on odd-numbered rows of h200_sm90_orders_bytes.csv where most loads miss: 3.8 TB/s for tiles here and there;
no launch of that table draws more than 3.64 TB/s."""


def spec_of(row: Row) -> Sm90Spec:
    """The instantiation that a row names.

    Raises:
        InputError: there is none with these knobs.
    """
    knobs: dict[str, object] = {"head_dim": row.number("head_dim"), "mask": "causal" if row.flag("causal") else "none"}
    for knob in fields(Sm90Spec):
        if row.facts.get(knob.name) and knob.name not in ("head_dim", "dtype"):
            knobs[knob.name] = row.number(knob.name) if isinstance(knob.default, int) else row.facts[knob.name]
    spec = Sm90Spec(**knobs)  # type: ignore[arg-type]
    spec.check(CC)
    return spec


def order_of(row: Row) -> Sm90Order:
    """The order of a row's tiles; what it does not say is the launcher's choice."""
    said = {name: row.facts[name] for name in ("order", "blocks", "direction") if row.facts.get(name)}
    return Sm90Order(**said, section_heads=row.number("section_heads") or 0)


def kernel_of(row: Row, problem: AttentionProblem, sms: int) -> Kernel:
    """The kernel of a row. A tile's rows are those of a whole cluster, whose CTAs walk the same keys.

    Raises:
        InputError: knobs or an order that the kernel does not have.
    """
    spec, order = spec_of(row), order_of(row)
    if problem.mask not in ("none", "causal") or problem.passes != "fwd":
        asked = f"mask {problem.mask}, pass {problem.passes}"
        raise InputError(f"{OPTION}: {NAME} with {asked}; accepted: mask none or causal, pass fwd")
    schedule = Schedule(
        order=Order(order.order), start=STARTS[order.blocks], direction=Direction(order.direction),
        section_heads=order.section_heads if order.order == "head" else 0, scheduler=SCHEDULERS[spec.schedule],
        claims_ahead=spec.schedule == "dynamic",
    )  # fmt: skip
    tile = Tile(spec.cluster * spec.block_q, spec.block_k, spec.threads // 32, spec.stages)
    return Kernel(
        name=NAME, algorithm="flash", tile=tile, schedule=schedule, writes_lse=False, edge_q=Edge.WHOLE,
        edge_k=Edge.WHOLE, threads=spec.threads, registers=REGISTERS[spec.consumers],
        shared_memory_bytes=spec.dynamic_shared_bytes,
        persistent_ctas=None if spec.schedule == "one_tile" else sms // spec.cluster,
        overheads=_counter(spec), matrix_unit=MatrixUnit.SPECIALISED, sm_spread=SM_SPREAD,
        sms_alike=SMS_ALIKE, step_spread=STEP_SPREAD, hbm_share=HBM_SHARE,
    )  # fmt: skip


def _counter(spec: Sm90Spec) -> tuple[Overhead, ...]:
    """Every tile asks the counter for another one; in a cluster one CTA asks and tells the other, a packet, too."""
    if spec.schedule != "dynamic":
        return ()
    source = "kernels/flash_fwd_sm90.cuh"
    asks = tuple(
        Overhead("tile_counter", mode, per_tile=PACKET_BYTES, inferred_from=source) for mode in (Mode.REDUCE, Mode.LOAD)
    )
    tells = Overhead("tile_number", Mode.STORE, per_tile=PACKET_BYTES, inferred_from=source)
    return (*asks, tells) if spec.cluster > 1 else asks


def chain_of(row: Row, problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launch. In a cluster each CTA fetches its part of a key block for all: the SMs get all of it, each."""
    chain = plan(problem, kernel)
    (main,) = chain.launches
    cluster = spec_of(row).cluster
    if cluster > 1:
        accesses = tuple(replace(a, times=cluster) if a.per is Per.PAIR else a for a in main.accesses)
        main = replace(main, tile_ctas=cluster, accesses=accesses)
    return replace(chain, launches=(main,))


def variant(row: Row) -> str:
    """The knobs and the order of a row, in words."""
    spec, order = spec_of(row), order_of(row)
    words = [f"{spec.block_q}x{spec.block_k}", f"{spec.stages} stages", order.order, order.blocks.replace("_", " ")]
    words += [f"sections of {order.section_heads}"] if order.order == "head" and order.section_heads else []
    words += [order.direction, spec.schedule.replace("_", " ")]
    words += [f"clusters of {spec.cluster}"] if spec.cluster > 1 else []
    return ", ".join(words)

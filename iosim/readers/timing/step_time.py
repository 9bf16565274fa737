"""Time of one step of a kernel's key loop on one SM: what each unit of the SM needs, and what overlaps.

A step is one visited (query block, key block) pair of one CTA. Its work for the tensor cores, the exponential and fp32
units, shared memory and the L2 is counted in SM cycles; `step_cycles` combines them for the CTAs that share the SM. It
knows nothing of grids, waves or HBM (`iosim.readers.timing.chain_time`). Constants carry their source; fitted ones were
fitted on the odd-numbered calls of `kernels/measurements` by `benchmarks/timing_error.py`, and docs/timing.md has their
errors.
"""

from __future__ import annotations

import numpy as np

from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Launch, Outer
from iosim.kernel.shared_memory import DEPTH, estimate
from iosim.kernel.tile_rules import ASYNC_COPY_CC
from iosim.kernel.unit import UNITS, WARPS_PER_GROUP, MatrixUnit, Overlap, UnitModel
from iosim.readers.timing.makespan import steps_per_tile
from iosim.readers.timing.overlap import L2_OVERLAP_NORM, beside

FP32_OPERATIONS_PER_SCORE = 3.5
"""fp32 operations a score besides its exponential: scale and subtract, maximum, sum, conversion of P (half an
instruction), masks and moves. Fitted; counting instructions gives 3.5 to 6."""
BACKWARD_OPERATIONS_PER_SCORE = 3.0
"""Further operations in the backward pass: dP - D, times P, and the conversion of dS."""
WIDENING_OPERATIONS = 4.0
"""Instructions on each value of a cache in fp8: to 16 bits in pairs, to fp32, times the scale, and to the inputs' type
in pairs, conversions at half the rate of the others (PTX of Triton 3.6 and 3.9 for cc 8.9 and 10.0; CUDA C++
Programming Guide, arithmetic instructions). Warps that do not divide the keys widen all of them."""
SLOW_WIDENING_CC = range(100, 110)
SLOW_WIDENING_OPERATIONS = 9.5
"""The same on the compute capabilities above, whose conversions are slower. Fitted on 240 open rows of
published_stacks.csv, FlashInfer and vLLM's Triton kernel on B200, B300, GB200 and GB300."""
POLYNOMIAL_OPERATIONS = 6.0
"""Of an exponential in software: a maximum, three additions and three steps of a polynomial, two values an instruction,
a shift and an addition (FlashAttention-4, flash_attn/cute/utils.py, ex2_emulation_2)."""
SPECIALISED_NORM = 1.7
"""How a step's products and its softmax overlap (`beside`) where two warpgroups take turns at the softmax, each behind
its own products (NVIDIA/cudnn-frontend, sdpa/sm90/prefill). Fitted, as the best of 1.65 to 1.8 on odd drawn calls of
cuDNN's forward; without a mask, in eleven rounds and more, a step takes 1,940 cycles at head_dim 64, 2,700 at 128."""
CTA_START_CYCLES = 850.0
"""What of `tile_cycles` a CTA that stays takes once. Fitted on cuDNN's forward in draws 1 to 9, all in sight."""
UNHIDDEN_FRAGMENTS = 0.32
"""Part of a warp's fragment loads from shared memory that its own mma.sync does not hide. Fitted; other warps hide
it."""
UNHIDDEN_MEETING = 0.16
"""Part of the shorter of a step's products and their fragments that warps which meet in every step do not hide: all
begin a product with its first fragments, and end it with its last mma.sync. Fitted on FlashAttention-2's backward, the
odd calls of h100_random.csv, h200_random.csv and their later draws; not where mma.sync runs at the specified rate: an
A100's published calls take less than predicted."""
UNHIDDEN_TURN = 0.5
"""The same of a product with a pipeline of its own, whose warps meet at every turn of `DEPTH` columns: two mma.sync.
Fitted, as the better of 0.4 and 0.5 on odd drawn calls."""
MEETING_CC = range(90, 100)
EXPOSED_LOADS = 2
"""K and V, each waited for once a step, where nothing loads ahead: without cp.async, and in Triton's kernels of one
stage. Of two stages one is waited for: wgmma reads from shared memory, so that a buffer is free only when its product
is done (H200, experiments/measurements/h200_triton_autotune.csv). FlashAttention-2 and iosim's kernel load V behind
QK^T, and the next K behind PV, with one buffer of each."""
STAGED_LOADS_PER_PRODUCT = 3.8
"""Fill and drain of a threadblock product's own pipeline (kernels that fetch Q again for every key block, and the
backward whose products do). Fitted: odd drawn calls of the backward ask for 3.6, calls in loops for 4."""
LOCKED_LOADS = 4.5
"""Accesses, one behind the other, for which a CTA holds the lock of a block of dQ's sums, beside the sums' bytes.
Fitted by hand to calls of one head (experiments/measurements/h100_series.csv), and the best of 4, 4.5 and 5 on all
backwards of draws 1 to 9; pytorch, mem_eff_attention/kernel_backward.h has the lock, a counter, the sums, a fence, the
counter and the lock again."""
L2_BYTES_PER_CYCLE, L2_STORED_PER_CYCLE = 44, 32
"""That an SM alone loads from the L2, where all 132 of an H100 load 29 each, and stores, where all store 16."""
EXCHANGE_TURNS = 7 / 2
"""What a step waits while warps that divide its keys hand one another maxima, sums and P, over the turn of any step:
nine barriers in place of two (PTX of Triton 3.6, cc 8.0 and 9.0)."""
DEEP_STAGES = 3
"""Buffers of keys from which a loop asks for a step's keys so long before that what the L2 is late holds nobody up
(seen on tiles of experiments/measurements/triton_tiles_d64_time.csv and of iosim's own kernel)."""
SPILLED_BESIDE_SPLITS = 0.55
"""Of what a load or store of a spilled register costs, the part that shows beside the instructions that split operands.
Fitted by hand to all 20 fp32 forwards of draws 1 to 9 that spill; of the odd ones alone 0.5 is the best."""
SCHEDULERS = 4
"""Warp instructions that an SM issues in a cycle."""
INSTRUCTION_BYTES = 16
CODE_AHEAD_BYTES = 70_000
"""Of a kernel's code, which come as fast as an SM alone loads; others as they are reached. Fitted, as the rates."""
CODE_BEHIND_PER_CYCLE, CODE_BYTES_PER_CYCLE, CODE_AGAIN_PER_CYCLE = 2.8, 18, 71
"""Bytes of code that an SM fetches in a cycle: what lies behind from HBM, or from the L2, as do CTAs at different
places of a kernel; and what a later tile runs outside of its loop. Fitted."""
COPIED_BYTES = 16 * 32
"""Of a warp's copy into shared memory."""
BESIDE_A_COPY = 2
"""Instructions of a copy that is asked for by itself, over its loads and stores at shared memory (counted: an H100's
FlashAttention-2 at head_dims of 56, 88, 120 and 200)."""


def unit_model(launch: Launch, profile: HardwareProfile, dtype: str, kernel: Kernel) -> UnitModel:
    """How the unit computes that a launch's products run on: the kernel's `matrix_unit` on cc 9.0 and later, mma.sync
    before and where it states none, mfma on AMD's GPUs, the fp32 units for fp32 and where the kernel uses no tensor
    cores. A launch may have a unit of its own."""
    own = MatrixUnit(launch.work.unit or kernel.unit_of(launch.is_backward) or MatrixUnit.MMA_SYNC)
    splits = UNITS[own].splits_to and UNITS[own].is_on(profile.cc, profile.is_amd)
    plain = not launch.work.tensor_cores or (dtype == "fp32" and not splits)
    wanted = [MatrixUnit.FP32] * plain + [own, MatrixUnit.MFMA, MatrixUnit.MMA_SYNC]
    model = next(unit for unit in map(UNITS.__getitem__, wanted) if unit.is_on(profile.cc, profile.is_amd))
    return UNITS[model.backward] if model.backward and launch.outer is Outer.KEY else model


@dataclass(frozen=True)
class Waits:
    """SM cycles in which a step waits, by what it waits for. Of the profile, where their sources stand.

    Attributes:
        load: an exposed load from L2 into shared memory with its barrier.
        product_step: a k-step of a threadblock product with a pipeline of its own.
        sync: barriers and pipeline turns of a step whose loads run ahead.
        single_buffer: what a step of a loop with one buffer waits more than one that loads a whole step ahead.
        add_packet: a packet of an atomic add to several rows, during which the CTA's warps do nothing else: they add
            between two barriers.
        spill_access: a load or store of a spilled register.
    """

    load: float
    sync: float
    single_buffer: float
    add_packet: float
    product_step: float
    spill_access: float

    @classmethod
    def of(cls, profile: HardwareProfile, clock: float) -> Waits:
        """Those of a GPU at a clock, over the one they hold at: loads from the L2 take their time at any clock of the
        SMs. Raises InputError: the profile does not know one."""
        cycles = ("step_load_cycles", "step_sync_cycles", "step_single_buffer_cycles", "add_packet_cycles",
                  "product_step_cycles", "spill_access_cycles")  # fmt: skip
        at_l2 = ("step_load_cycles", "product_step_cycles")
        return cls(*(profile.need(name) * clock ** (name in at_l2) for name in cycles))


@dataclass(frozen=True)
class SmRates:
    """What one SM does in a cycle; infinite where the profile does not know, so that it costs nothing. `waits` are the
    cycles in which it waits."""

    waits: Waits
    clock_hz: float
    tensor_flops: float
    fp32_lanes: float
    exps: float
    shared_bytes: float
    l2_bytes: float


@dataclass(frozen=True)
class StepCost:
    """SM cycles that one CTA's step takes of each unit, `streams` warpgroups' worth of computing warps in the CTA, and
    the `exposed` cycles in which it waits. A unit whose rate is unknown costs 0."""

    tensor: float
    softmax: float
    smem: float
    l2: float
    exposed: float
    streams: float
    overlap: Overlap
    warps_meet: bool = False
    fragments: float = 0.0
    """Of `smem`, what a warp fetches for products of its own."""
    unhidden: float = 0.0
    norm: float = 1.0
    """Of `tensor` and `softmax`, where warpgroups overlap the two inside a CTA."""
    hides_l2: bool = False
    split: float = 0.0
    """Cycles of sectors that copies fetch once more, on top of all else."""
    drain: float = 0.0
    """Cycles of a work tile in which one warpgroup waits for the other's first scores: both begin it together."""
    further: float = 0.0
    """Of `softmax`, what each CTA beyond the second adds: with so many warps an SM's units work side by side."""
    chain: float = 0.0
    """Cycles from the scores to P, one operation behind the other; `softmax` is less where its units work side by
    side."""

    @property
    def busiest(self) -> float:
        return max(self.tensor, self.softmax, self.smem)

    def least(self, ctas: int) -> float:
        """Cycles of the busiest unit for a step of each of `ctas` CTAs."""
        return min(ctas, 2) * self.busiest + max(0, ctas - 2) * max(self.tensor, self.further, self.smem)


def edge_share(launch: Launch) -> float:
    """Steps in which a tile's rows meet the end of what they may see, of all steps."""
    d, mask = launch.domain, launch.work.mask
    steps = np.asarray(d.visited.count)
    at_ends = np.full(len(steps), -(-(mask.edge_keys or d.block_q) // d.block_k))
    at_ends[len(steps) - -(-mask.edge_rows // d.block_q) :] = steps.max(initial=0)
    return float(np.minimum(steps, at_ends).sum()) / max(1.0, float(steps.sum()))


def row_padding(block_q: int, warps: int, unit: UnitModel, key_warps: int = 1) -> float:
    """Work done over work needed, where warps own whole rows: idle rows of an instruction, or warps that repeat the
    rows of others because there are too few. 64 rows for eight warps of wgmma cost 2.0. Of `key_warps` that divide a
    tile's keys all have the same rows."""
    rows = unit.rows_at_once(warps // key_warps)
    return -(-block_q // rows) * rows / block_q


def step_cost(
    launch: Launch, unit: UnitModel, rates: SmRates, l2_bytes: float, element_bytes: float, cc: int,
    shared_bytes: float | None = None,
) -> StepCost:  # fmt: skip
    """What a step of an attention loop costs.

    Args:
        l2_bytes: bytes between SM and L2 in an average step.
        element_bytes: of the operands.
        cc: compute capability as one number; below 80 no load runs ahead.
        shared_bytes: bytes of a step at shared memory; None where they are not known, and so estimated.
    """
    d, work = launch.domain, launch.work
    backward = launch.is_backward
    warps = max(1, launch.resources.threads // 32)
    apart = work.scores_per_pair
    whole = backward or launch.rereads_q or apart > 1
    padding = 1.0 if whole else row_padding(d.block_q, warps, unit, work.loop.key_warps)
    scores = d.block_q * d.block_k * apart * padding
    width = work.flops_per_pair / 4
    operations = work.mask.every_step + work.loop.score_operations + POLYNOMIAL_OPERATIONS * work.loop.software_exps
    operations += work.loop.widened * (SLOW_WIDENING_OPERATIONS if cc in SLOW_WIDENING_CC else WIDENING_OPERATIONS)
    of_softmax = FP32_OPERATIONS_PER_SCORE + width / d.block_k + BACKWARD_OPERATIONS_PER_SCORE * backward
    operations += of_softmax * (work.exps_per_pair > 0)
    operations += work.mask.edge_steps * edge_share(launch)
    exps = scores * work.exps_per_pair * (1 - work.loop.software_exps) / rates.exps
    others = scores * operations / rates.fp32_lanes
    copies = d.block_k * width * 2 * element_bytes / COPIED_BYTES
    if work.fragments is not None:
        others += work.fragments.step * BESIDE_A_COPY * warps / SCHEDULERS
    if shared_bytes is None:
        shared_bytes = estimate(launch, unit, scores, warps, element_bytes)
    others += shared_bytes / element_bytes * unit.operand_operations / rates.fp32_lanes
    if cc < ASYNC_COPY_CC:  # what is loaded passes the same data path into registers, and from there once more
        shared_bytes += l2_bytes
    softmax = max(exps, others) + min(exps, others) * (not unit.softmax_side_by_side)
    over_keys, turns = bool(work.pipelines and work.pipelines.over_keys), d.block_k // DEPTH
    kept = 1 - over_keys * (turns - key_turns(launch)) / max(1, turns) / 2  # of two products, one ends with the keys
    smem = shared_bytes / rates.shared_bytes * kept
    meet = work.loop.warps_meet and (unit.warps_may_meet or not work.exps_per_pair)
    waits_together = waited_loads(launch, unit, cc) > 0 or work.loop.copy_waits > 1
    meets_at_copies = work.loop.copy_waits > 0 and (unit.warps_may_meet or waits_together)
    tensor = scores * work.flops_per_pair / apart / rates.tensor_flops * kept
    return StepCost(
        tensor=tensor,
        drain=tensor / 2 * unit.takes_turns,
        softmax=softmax,
        smem=smem,
        l2=l2_bytes / rates.l2_bytes,
        exposed=_exposed(launch, unit, cc, rates.waits)
        + work.loop.list_cycles
        + copies * work.loop.copy_instructions / SCHEDULERS
        + d.block_q * (work.add_packets_per_row or work.add_requests_per_row) * rates.waits.add_packet
        + work.spill.step * rates.waits.spill_access * SPILLED_BESIDE_SPLITS ** bool(unit.splits_to),
        streams=computing_groups(warps, unit, work.loop.producer_warps),
        warps_meet=meet or meets_at_copies,
        overlap=unit.overlap,
        fragments=smem * unit.issued_by_warps,
        unhidden=(UNHIDDEN_TURN if work.pipelines else UNHIDDEN_MEETING) * (meet and cc in MEETING_CC),
        norm=(SPECIALISED_NORM, 1.0)[backward],
        further=softmax if unit.issued_by_warps else max(exps, others),
        chain=exps + others,
        hides_l2=unit.hides_l2 or work.stages >= DEEP_STAGES,
    )


def computing_groups(warps: int, unit: UnitModel, producers: int | None = None) -> float:
    """Warpgroups' worth of warps that compute: all but `producers`, warps that load, or as many as kernels of the unit
    have besides where no number is stated."""
    groups = warps / WARPS_PER_GROUP
    helpers = unit.helper_groups if producers is None else producers / WARPS_PER_GROUP
    return max(min(1.0, groups), groups - helpers)


def waited_loads(launch: Launch, unit: UnitModel, cc: int) -> int:
    """Loads of a step of keys, one behind the other, that a CTA waits for; 0 where they run ahead."""
    work, ahead = launch.work, launch.work.loop.loads_ahead
    none_ahead = ahead is False or (ahead is None and cc < ASYNC_COPY_CC)
    held = ahead is None and (unit.holds_buffers or work.loop.copy_waits > 0)
    waited = max(EXPOSED_LOADS * none_ahead, held * (EXPOSED_LOADS + 1 - work.stages)) * (not unit.loads_apart)
    return max(EXPOSED_LOADS * launch.rereads_q, waited)  # of products with pipelines of their own, the first tiles


def key_turns(launch: Launch) -> float:
    """Turns of `DEPTH` that a product over the keys of a step takes, in the mean: as many as it has keys."""
    visited, block = launch.domain.visited, launch.domain.block_k
    missing = np.where(visited.count > 0, (visited.end * block - visited.end_row) // DEPTH, 0)
    return float((visited.count * (block // DEPTH) - missing).sum()) / max(1, int(visited.count.sum()))


def _exposed(launch: Launch, unit: UnitModel, cc: int, waits: Waits) -> float:
    work = launch.work
    if work.pipelines:
        steps = work.pipelines.products * STAGED_LOADS_PER_PRODUCT + work.pipelines.depth / DEPTH
        steps += work.pipelines.over_keys * key_turns(launch)
        return waits.product_step * steps + waits.load * work.pipelines.exposed_loads
    waited = waited_loads(launch, unit, cc)
    meets = not (waited or unit.loads_apart)
    exchanges = EXCHANGE_TURNS * (work.loop.copy_waits > 0 and work.loop.key_warps > 1)
    return waits.load * waited + waits.sync * (meets + exchanges) + waits.single_buffer * (meets and work.stages == 1)


def lock_cycles(launch: Launch, rates: SmRates) -> float:
    """SM cycles for which a CTA holds the lock of a block of dQ's sums, that others of its head wait for: the product
    that is added, with its loads, and the sums on their way from the L2 and back. 0 where nothing is locked."""
    pipelines, d = launch.work.pipelines, launch.domain
    if pipelines is None or not pipelines.locked_flops:
        return 0.0
    product = rates.waits.product_step * (STAGED_LOADS_PER_PRODUCT + d.block_k / DEPTH)
    sums = 4 * d.block_q * d.block_k * (1 / L2_BYTES_PER_CYCLE + 1 / L2_STORED_PER_CYCLE)
    product += (1 + UNHIDDEN_TURN) * pipelines.locked_flops / rates.tensor_flops
    return LOCKED_LOADS * rates.waits.load + product + sums


def fetched_cycles(launch: Launch, ctas: int, slots: int, warm: bool = False, behind_itself: bool = False) -> float:
    """SM cycles in which a work tile waits for code, in the mean. Tiles of the first round begin together and wait for
    all that they run, from the L2 if `warm`; each of an SM's `ctas` issues what is outside of its steps after the
    others, meanwhile unless the call is `behind_itself`. Later ones find the loop's; where tiles differ in their steps,
    each CTA fetches its masked steps anew. Products with pipelines of their own wait for operands while code comes."""
    most = int((steps := steps_per_tile(launch.domain, launch.outer)).max(initial=0))
    *begins, after, end = (INSTRUCTION_BYTES * instructions for instructions in launch.work.code)
    masked, loops = min(most, len(begins) - 1), most >= len(begins)
    parts = ((0, begins[masked]), (after, end), (begins[-1], after))[: 2 + loops]
    far = sum(max(0, last - max(first, CODE_AHEAD_BYTES)) for first, last in parts)
    ahead, outside = (sum(last - first for first, last in some) for some in (parts, parts[:2]))
    once = (ahead - far) / L2_BYTES_PER_CYCLE + far / (CODE_BEHIND_PER_CYCLE, CODE_BYTES_PER_CYCLE)[warm]
    alike = float(np.square(np.unique(steps, return_counts=True)[1] / len(steps)).sum())
    unlike = ctas * (begins[masked] - begins[0]) * (1 - alike) / CODE_BYTES_PER_CYCLE
    once, again = (cycles * (not launch.rereads_q) for cycles in (once, outside / CODE_AGAIN_PER_CYCLE + unlike))
    each = (begins[0] + end - after) / INSTRUCTION_BYTES * launch.resources.threads / 32 / SCHEDULERS
    once += (ctas - 1) * each - min(once, (ctas - 1) * each) * (not behind_itself)
    first_round = min(1.0, slots / max(1, launch.tiles_with_rows))
    return float(first_round * once + (1 - first_round) * again)


def step_cycles(cost: StepCost, ctas: int) -> float:
    """SM cycles in which each of `ctas` CTAs on one SM does one step.

    Warp-specialised kernels overlap products and softmax in part. In all others every stream of warps goes from product
    to softmax to product; streams take turns at the busiest unit, as in a closed queueing network: the first pays its
    whole path and the waiting, each further one the busiest unit's part, past two CTAs of wgmma the longer of
    exponentials and fp32 work. Of n ping-pong warpgroups the step so takes the longer of tensor and softmax work and
    1/n of the shorter. With tcgen05 the n tiles of a CTA run in a fixed turn, so that one takes its products and its
    softmax in the time of a step. With mma.sync the fragments' shared memory is such a unit. Streams whose warps meet
    in every step take no turns: all are at the products, where one's fragments are fetched during another's, and then
    all at the softmax. Throughput of each unit is a floor. What the L2 moves meanwhile overlaps in part, unless the
    unit hides it.
    """
    if cost.warps_meet and cost.streams > 1:
        products = max(cost.tensor, cost.smem) + cost.unhidden * min(cost.tensor, cost.fragments)
        path = products + cost.softmax + (ctas - 1) * cost.busiest
    else:
        path = _PATHS[cost.overlap](cost, ctas)
    units, l2 = max(cost.exposed + path, cost.least(ctas)), ctas * cost.l2
    together = max(units, l2) if cost.hides_l2 else beside(units, l2, norm=L2_OVERLAP_NORM)
    return together + ctas * cost.split


def _queue(cost: StepCost, ctas: int) -> float:
    alone = cost.tensor + cost.softmax + UNHIDDEN_FRAGMENTS * cost.fragments
    others = max(0.0, min(ctas, 2) * cost.streams - 1) * max(cost.tensor, cost.softmax, cost.fragments)
    return (alone + others) / cost.streams + max(0, ctas - 2) * max(cost.tensor, cost.further, cost.fragments)


def _inside(cost: StepCost, ctas: int) -> float:
    return ctas * beside(cost.tensor, cost.softmax, norm=cost.norm)


def _fixed_turn(cost: StepCost, ctas: int) -> float:
    return ctas * (cost.tensor + cost.chain) / cost.streams


_PATHS = {Overlap.QUEUE: _queue, Overlap.INSIDE: _inside, Overlap.FIXED_TURN: _fixed_turn}

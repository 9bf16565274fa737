"""Terms of one step of a kernel's key loop, in SM cycles: what each unit of the SM needs, and what the CTA waits for.

A step is one visited (query block, key block) pair of one CTA. `step_time` combines these terms for the CTAs that share
an SM. Constants carry their source; where fitted ones were fitted says `iosim/base/fitted.toml`.
"""

from __future__ import annotations

import math

import numpy as np

from iosim.base.records import cached_property, dataclass
from iosim.kernel.launch import Launch
from iosim.kernel.shared_memory import DEPTH, estimate
from iosim.kernel.tile_rules import ASYNC_COPY_CC
from iosim.kernel.unit import UnitModel
from iosim.readers.timing.rates import SmRates
from iosim.readers.timing.terms import Scope, term

FP32_OPERATIONS_PER_SCORE = 3.5
"""fp32 operations per score besides its exponential: scale and subtract, maximum, sum, conversion of P (half an
instruction), masks and moves. Fitted; counting instructions gives 3.5 to 6."""
BACKWARD_PRODUCTS = 5
"""Products of a step of a backward: QK^T, dO V^T, dV, dK and dQ."""
BACKWARD_OPERATIONS_PER_SCORE = 3.0
"""Further operations in the backward pass: dP - D, times P, and the conversion of dS."""
WIDENING_OPERATIONS = 4.0
"""Instructions on each value of a cache in fp8: to 16 bits in pairs, to fp32, times the scale, and to the inputs' type
in pairs, conversions at half the rate of the others (PTX of Triton 3.6 and 3.9 for cc 8.9 and 10.0; CUDA C++
Programming Guide, arithmetic instructions). Warps that do not divide the keys widen all of them."""
SLOW_WIDENING_CC = range(100, 110)
SLOW_WIDENING_OPERATIONS = 9.5
"""Instructions per value on the compute capabilities above, whose conversions are slower. Fitted on 240 open rows of
published_stacks.csv, FlashInfer and vLLM's Triton kernel on B200, B300, GB200 and GB300."""
POLYNOMIAL_OPERATIONS = 6.0
"""Operations of an exponential in software: a maximum, three additions and three steps of a polynomial, two values an
instruction, a shift and an addition (FlashAttention-4, flash_attn/cute/utils.py, ex2_emulation_2)."""
UNHIDDEN_FRAGMENTS = 0.32
"""Part of what a warp waits for, one access behind the other, that its own instructions do not hide: fragments from
shared memory beside mma.sync, spilled registers beside the splitting of operands, sectors fetched twice. Fitted; other
warps hide it."""
MMA_DEPTH = 16
"""Columns that an mma.sync multiplies (PTX ISA, mma.m16n8k16)."""
UNHIDDEN_TURN = MMA_DEPTH / DEPTH
"""Part that is not hidden of a product with its own pipeline, whose warps meet at every turn of `DEPTH` columns: its
first mma.sync, which waits for its fragments."""
MEETING_CC = range(90, 100)
"""Where warps that meet hold one another up: not where mma.sync runs at the specified rate, since an A100's published
calls take less than predicted."""
PIPELINED_CC = range(ASYNC_COPY_CC, 200)
"""Where products with a pipeline of their own wait at each turn: wherever their copies run ahead."""
EXPOSED_LOADS = 2
"""K and V, each waited for once a step, where nothing loads ahead: without cp.async, and in Triton's kernels of one
stage. Of two stages one is waited for: wgmma reads from shared memory, so that a buffer is free only when its product
is done (H200, experiments/measurements/h200_triton_autotune.csv). FlashAttention-2 and iosim's kernel load V behind
QK^T, and the next K behind PV, with one buffer of each."""
STAGED_LOADS_PER_PRODUCT = 3.8
"""Loads' worth of fill and drain of a threadblock product's own pipeline (kernels that fetch Q again for every key
block, and the backward whose products do). Fitted: odd drawn calls of the backward ask for 3.6, calls in loops for
4."""
EXCHANGE_TURNS = 7 / 2
"""What a step waits while warps that divide its keys hand one another maxima, sums and P, over the turn of any step:
nine barriers in place of two (PTX of Triton 3.6, cc 8.0 and 9.0)."""
SCHEDULERS = 4
"""Warp instructions that an SM issues per cycle."""
DEPENDENT_CYCLES = 4
"""Cycles from an fp32 instruction of a warp to the next one that needs its result, on cc 7.0 (NVIDIA, Tuning CUDA
Applications for Volta, 1.4.1.1 Instruction Scheduling); taken for integers and for later GPUs."""
BESIDE_A_COPY = 2
"""Instructions of a copy that is requested by itself, over its loads and stores at shared memory (counted: an H100's
FlashAttention-2 at head_dims of 56, 88, 120 and 200)."""


@dataclass(frozen=True)
class Step:
    """A step of a launch's loop on an SM. Everything that its terms read.

    Attributes:
        l2_bytes: bytes between SM and L2 in an average step.
        twice_bytes: bytes of sectors that its copies fetch once more.
        element_bytes: bytes of an operand's element.
        cc: compute capability as one number; below 80 no load runs ahead.
        ctas_per_sm: CTAs that an SM holds at once.
        counted_shared_bytes: bytes of a step at shared memory; None where they are not known, and so estimated.
        frames_past_l1: share of its stack frames that an SM does not hold.
    """

    launch: Launch
    unit: UnitModel
    rates: SmRates
    l2_bytes: float
    twice_bytes: float
    element_bytes: float
    cc: int
    ctas_per_sm: int
    counted_shared_bytes: float | None = None
    frames_past_l1: float = 0.0

    @cached_property
    def warps(self) -> int:
        """Warps of a CTA."""
        return max(1, self.launch.resources.threads // 32)

    @cached_property
    def scores(self) -> float:
        """Scores that the CTA computes in a step, those of idle and repeated rows with them."""
        domain, work = self.launch.domain, self.launch.work
        return domain.block_q * domain.block_k * work.scores_per_pair * self._padding

    @property
    def _padding(self) -> float:
        launch = self.launch
        if launch.is_backward or launch.rereads_q or launch.work.scores_per_pair > 1:
            return 1.0
        return row_padding(launch.domain.block_q, self.warps, self.unit, launch.work.loop.key_warps)

    @property
    def width(self) -> float:
        """Columns of Q and V that a pair's FLOPs stand for: two products of two FLOPs a column."""
        return self.launch.work.flops_per_pair / 4

    @cached_property
    def filled(self) -> float:
        """Share of the products that has keys: of two products, one ends with the keys where its pipeline does."""
        pipelines = self.launch.work.pipelines
        if pipelines is None or not pipelines.over_keys:
            return 1.0
        turns = self.launch.domain.block_k // DEPTH
        return 1 - (turns - key_turns(self.launch)) / max(1, turns) / 2

    @cached_property
    def shared_bytes(self) -> float:
        """Bytes between shared memory and registers or the unit."""
        if self.counted_shared_bytes is not None:
            return self.counted_shared_bytes
        return float(estimate(self.launch, self.unit, self.scores, self.warps, self.element_bytes))

    @cached_property
    def waited_loads(self) -> int:
        """Loads, one behind the other, that the CTA waits for."""
        return waited_loads(self.launch, self.unit, self.cc)

    @property
    def warps_meet(self) -> bool:
        """True where warps that divide a tile both ways wait for one another in every step."""
        work = self.launch.work
        return bool(work.loop.warps_meet and (self.unit.warps_may_meet or not work.exps_per_pair))

    @property
    def meets_at_barriers(self) -> bool:
        """True where the warps that compute also load, ahead: one barrier a turn tells them that the loads are in."""
        return not (self.waited_loads or self.unit.loads_apart)


def row_padding(block_q: int, warps: int, unit: UnitModel, key_warps: int = 1) -> float:
    """Work done over work needed, where warps hold whole rows: idle rows of an instruction, or warps that repeat the
    rows of others because there are too few. 64 rows for eight warps of wgmma cost 2.0. The `key_warps` that divide a
    tile's keys all have the same rows."""
    rows = unit.rows_at_once(warps // key_warps)
    return -(-block_q // rows) * rows / block_q


def edge_share(launch: Launch) -> float:
    """Share of the steps in which a tile's rows meet the end of what they may see."""
    domain, mask = launch.domain, launch.work.mask
    steps = np.asarray(domain.visited.count)
    # Steps of each query block that compare positions: those over the last edge_keys keys (the
    # diagonal), and all steps of the last edge_rows rows.
    at_ends = np.full(len(steps), -(-(mask.edge_keys or domain.block_q) // domain.block_k))
    at_ends[len(steps) - -(-mask.edge_rows // domain.block_q) :] = steps.max(initial=0)
    return float(np.minimum(steps, at_ends).sum()) / max(1.0, float(steps.sum()))


def key_turns(launch: Launch) -> float:
    """Turns of `DEPTH` that a product over the keys of a step takes, in the mean: as many as it has keys."""
    visited, block = launch.domain.visited, launch.domain.block_k
    missing = np.where(visited.count > 0, (visited.end * block - visited.end_row) // DEPTH, 0)
    return float((visited.count * (block // DEPTH) - missing).sum()) / max(
        1, int(visited.count.sum())
    )


def waited_loads(launch: Launch, unit: UnitModel, cc: int) -> int:
    """Loads of a step of keys, one behind the other, that a CTA waits for; 0 where they run ahead."""
    work, ahead = launch.work, launch.work.loop.loads_ahead
    if launch.rereads_q:  # of products with pipelines of their own, the first tiles
        return EXPOSED_LOADS
    if unit.loads_apart:
        return 0
    # Without cp.async a warp loads through registers: it waits for K, then for V.
    if ahead is False or (ahead is None and cc < ASYNC_COPY_CC):
        return EXPOSED_LOADS
    if ahead is None and (unit.holds_buffers or work.loop.copy_waits > 0):
        return max(0, EXPOSED_LOADS + 1 - work.stages)
    return 0


@term(
    "products",
    Scope.STEP,
    "scores x FLOPs per score x share with keys / FLOPs of the tensor cores per cycle",
    zero="launches without products",
    constants=("tensor_flops_per_s", "mma_sync_tensor_fraction", "tensor_clock_fraction"),
    unit="tensor",
)
def product_cycles(step: Step) -> float:
    """Cycles of the matrix products on the tensor cores, or on the fp32 units where the kernel uses those."""
    work = step.launch.work
    return (
        step.scores
        * work.flops_per_pair
        / work.scores_per_pair
        / step.rates.tensor_flops
        * step.filled
    )


@term(
    "exponentials",
    Scope.STEP,
    "scores x exponentials per score x (1 - share in software) / exponentials per cycle",
    zero="loops without a softmax",
    constants=("exp_per_clock_per_sm",),
    unit="exp",
)
def exponential_cycles(step: Step) -> float:
    """Cycles of the exponentials in the special function units (16 per SM and cycle since Volta)."""
    work = step.launch.work
    return step.scores * work.exps_per_pair * (1 - work.loop.software_exps) / step.rates.exps


@term(
    "fp32 work of the softmax",
    Scope.STEP,
    "scores x (FP32_OPERATIONS_PER_SCORE + width / block_k, in a backward + BACKWARD_OPERATIONS_PER_SCORE) "
    "/ fp32 lanes",
    zero="loops without a softmax",
    constants=("FP32_OPERATIONS_PER_SCORE", "BACKWARD_OPERATIONS_PER_SCORE", "fp32_flops_per_s"),
    unit="exp",
)
def softmax_cycles(step: Step) -> float:
    """Cycles of scale, maximum, sum, conversion and the rescaling of O (width / block_k operations per score)."""
    if step.launch.work.exps_per_pair == 0:
        return 0.0
    operations = FP32_OPERATIONS_PER_SCORE + step.width / step.launch.domain.block_k
    if step.launch.is_backward:
        operations += BACKWARD_OPERATIONS_PER_SCORE
    return step.scores * operations / step.rates.fp32_lanes


@term(
    "score functions",
    Scope.STEP,
    "scores x (operations of the score function + POLYNOMIAL_OPERATIONS x share of exponentials in "
    "software) / fp32 lanes",
    zero="plain scores and exponentials in hardware",
    constants=("POLYNOMIAL_OPERATIONS",),
    unit="exp",
)
def score_function_cycles(step: Step) -> float:
    """Cycles of what a kernel does with each score beside the softmax (FlexAttention's score_mod, soft caps, bias)."""
    loop = step.launch.work.loop
    operations = loop.score_operations + POLYNOMIAL_OPERATIONS * loop.software_exps
    return step.scores * operations / step.rates.fp32_lanes


@term(
    "mask",
    Scope.STEP,
    "scores x (operations in every step + operations at an end x share of steps there) "
    "/ fp32 lanes, times the cycles between instructions that wait for one another, over the "
    "warps per scheduler, where these were counted in a compiled loop and the warps are fewer",
    zero="calls without a mask whose lengths are whole blocks",
    constants=("DEPENDENT_CYCLES", "SCHEDULERS"),
    unit="exp",
)
def mask_cycles(step: Step) -> float:
    """Cycles of comparing positions and replacing scores outside the mask, as the kernel's rule book counts them."""
    mask = step.launch.work.mask
    operations = float(mask.every_step)
    if mask.edge_steps:
        operations += mask.edge_steps * edge_share(step.launch)
    cycles = step.scores * operations / step.rates.fp32_lanes
    if mask.in_order:
        cycles *= max(1.0, DEPENDENT_CYCLES * SCHEDULERS / (step.warps * step.ctas_per_sm))
    return cycles


@term(
    "widening of an fp8 cache",
    Scope.STEP,
    "scores x values per score x WIDENING_OPERATIONS (SLOW_WIDENING_OPERATIONS on cc 10.x) / fp32 lanes",
    zero="caches of the inputs' type",
    constants=("WIDENING_OPERATIONS", "SLOW_WIDENING_OPERATIONS"),
    unit="exp",
)
def widening_cycles(step: Step) -> float:
    """Cycles of converting K and V out of a narrower cache."""
    per_value = SLOW_WIDENING_OPERATIONS if step.cc in SLOW_WIDENING_CC else WIDENING_OPERATIONS
    return step.scores * step.launch.work.loop.widened * per_value / step.rates.fp32_lanes


@term(
    "copies of narrow heads",
    Scope.STEP,
    "copies per step x BESIDE_A_COPY x warps / instructions per cycle",
    zero="builds as wide as the heads",
    constants=("BESIDE_A_COPY", "SCHEDULERS"),
    unit="exp",
)
def narrow_copy_cycles(step: Step) -> float:
    """Cycles of the instructions around copies that are requested one by one, in a build wider than the heads."""
    fragments = step.launch.work.fragments
    if fragments is None:
        return 0.0
    return fragments.step * BESIDE_A_COPY * step.warps / SCHEDULERS


@term(
    "splitting of operands",
    Scope.STEP,
    "operands fetched x operations per operand / fp32 lanes",
    zero="units other than mma.sync on operands in three products of tf32",
    unit="exp",
)
def operand_cycles(step: Step) -> float:
    """Cycles in which warps split each fp32 operand that they fetched in two parts of tf32."""
    return (
        step.shared_bytes
        / step.element_bytes
        * step.unit.operand_operations
        / step.rates.fp32_lanes
    )


@term(
    "shared memory",
    Scope.STEP,
    "(bytes at shared memory, before cc 8.0 + bytes loaded from the L2) x share with keys / bytes per cycle",
    zero="kernels that keep their operands in registers",
    constants=("shared_memory_bytes_per_clock_per_sm",),
    unit="smem",
)
def shared_cycles(step: Step) -> float:
    """Cycles of operands between shared memory and registers or tensor cores, bank conflicts with them. Without
    cp.async what is loaded passes the same data path into registers, and from there once more."""
    bytes_ = step.shared_bytes
    if step.cc < ASYNC_COPY_CC:
        bytes_ += step.l2_bytes
    return bytes_ / step.rates.shared_bytes * step.filled


@term(
    "fragments that show",
    Scope.STEP,
    "UNHIDDEN_FRAGMENTS x cycles of fragments at shared memory, at most what a root of the squares of products and "
    "fragments has over the products",
    zero="units that fetch their operands themselves; warps that meet in every step",
    constants=("UNHIDDEN_FRAGMENTS",),
)
def shown_fragment_cycles(step: Step) -> float:
    """Cycles of a warp's fragment loads that its own mma.sync does not hide: a part of them, and less where products last
    far longer than their fragments, as on tensor cores that add in fp32 at half the rate."""
    if not step.unit.issued_by_warps:
        return 0.0
    products, fragments = product_cycles(step), shared_cycles(step)
    independent = math.hypot(products, fragments) - products
    return min(UNHIDDEN_FRAGMENTS * fragments, independent)


@term(
    "meetings of warps",
    Scope.STEP,
    "the shorter of products and fragments x MMA_DEPTH / depth of a product, in the mean; UNHIDDEN_TURN where "
    "products have pipelines of their own",
    zero="warps that hold whole rows; one pipeline for all products on GPUs other than cc 9.x",
    constants=("MMA_DEPTH", "UNHIDDEN_TURN"),
)
def meeting_cycles(step: Step) -> float:
    """Cycles at the begin and the end of each product in which all warps of a CTA do the same."""
    shows_on = PIPELINED_CC if step.launch.work.pipelines else MEETING_CC
    if not step.warps_meet or step.cc not in shows_on or not step.unit.issued_by_warps:
        return 0.0
    unhidden = UNHIDDEN_TURN if step.launch.work.pipelines else first_share(step)
    return unhidden * min(product_cycles(step), shared_cycles(step))


def first_share(step: Step) -> float:
    """Share of a product that its first mma.sync is, in the mean over a step's products: all warps begin with its
    fragments, and with nothing beside them. QK^T and dP go over the head's columns; PV over the keys; dV and dK over
    the queries, and dQ over the keys."""
    domain = step.launch.domain
    depths = [step.width, domain.block_k]
    if step.launch.is_backward:
        columns = 2 * step.width / BACKWARD_PRODUCTS
        depths = [columns, columns, domain.block_q, domain.block_q, domain.block_k]
    return math.fsum(MMA_DEPTH / depth for depth in depths) / len(depths)


@term(
    "L2",
    Scope.STEP,
    "bytes of a step at the L2 / bytes per cycle of an SM's share",
    zero="steps whose operands are in the SM",
    constants=("l2_read_bandwidth_measured_bytes_per_s", "l2_write_fraction"),
    unit="l2",
)
def l2_cycles(step: Step) -> float:
    """Cycles of a step's bytes between SM and L2 at an even share of the bandwidth of hits."""
    return step.l2_bytes / step.rates.l2_bytes


@term(
    "sectors fetched twice",
    Scope.STEP,
    "UNHIDDEN_FRAGMENTS x bytes fetched twice / bytes per cycle at the L2",
    zero="kernels that fetch Q once; rows that begin with a sector",
    constants=("UNHIDDEN_FRAGMENTS",),
)
def twice_fetched_cycles(step: Step) -> float:
    """Cycles of sectors that two rows share and that are fetched for each, where k-steps wait for their copies."""
    if not step.launch.rereads_q:
        return 0.0
    return UNHIDDEN_FRAGMENTS * step.twice_bytes / step.rates.l2_bytes


@term(
    "loads that nothing hides",
    Scope.STEP,
    "step_load_cycles x loads waited for, one behind the other",
    zero="loops whose loads run ahead",
    constants=("EXPOSED_LOADS", "step_load_cycles"),
)
def exposed_load_cycles(step: Step) -> float:
    """Cycles in which the CTA waits for K and V of the step itself: no cp.async, one stage, or buffers still in use."""
    pipelines = step.launch.work.pipelines
    if pipelines:
        return step.rates.waits.load * pipelines.exposed_loads
    return step.rates.waits.load * step.waited_loads


@term(
    "pipelines of products",
    Scope.STEP,
    "product_step_cycles x (products x STAGED_LOADS_PER_PRODUCT + turns of `DEPTH` columns)",
    zero="kernels whose products share one pipeline",
    constants=("STAGED_LOADS_PER_PRODUCT", "product_step_cycles"),
)
def pipeline_cycles(step: Step) -> float:
    """Cycles in which products with pipelines of their own wait for their operands, k-step by k-step."""
    pipelines = step.launch.work.pipelines
    if not pipelines:
        return 0.0
    turns = pipelines.products * STAGED_LOADS_PER_PRODUCT + pipelines.depth / DEPTH
    if pipelines.over_keys:
        turns += pipelines.over_keys * key_turns(step.launch)
    return step.rates.waits.product_step * turns


@term(
    "barriers",
    Scope.STEP,
    "step_sync_cycles x (1, and EXCHANGE_TURNS where warps that divide the keys hand on P)",
    zero="warps of their own load; loads are waited for",
    constants=("EXCHANGE_TURNS", "step_sync_cycles"),
)
def barrier_cycles(step: Step) -> float:
    """Cycles of barriers and pipeline turns of a step whose loads run ahead."""
    work = step.launch.work
    if work.pipelines:
        return 0.0
    turns = 0.0
    if step.meets_at_barriers:
        turns += 1
    if work.loop.copy_waits > 0 and work.loop.key_warps > 1:
        turns += EXCHANGE_TURNS
    return step.rates.waits.sync * turns


@term(
    "one buffer of keys",
    Scope.STEP,
    "step_single_buffer_cycles",
    zero="two buffers and more",
    constants=("step_single_buffer_cycles",),
)
def single_buffer_cycles(step: Step) -> float:
    """Cycles that a loop with one buffer waits more than one that loads a whole step ahead."""
    work = step.launch.work
    if work.pipelines or work.stages != 1 or not step.meets_at_barriers:
        return 0.0
    return step.rates.waits.single_buffer


@term(
    "lists of blocks",
    Scope.STEP,
    "cycles that the rule book counts for a step's entry of the list",
    zero="loops over an interval of keys",
)
def list_cycles(step: Step) -> float:
    """Cycles in which a step waits for the number of its block."""
    return step.launch.work.loop.list_cycles


@term(
    "atomic adds",
    Scope.STEP,
    "rows of the query block x packets per row x add_packet_cycles",
    zero="kernels that add nothing, or whose warps do not wait for it",
    constants=("add_packet_cycles",),
)
def add_cycles(step: Step) -> float:
    """Cycles in which a CTA's warps add their part of dQ between two barriers."""
    work = step.launch.work
    packets = work.add_packets_per_row or work.add_requests_per_row
    return step.launch.domain.block_q * packets * step.rates.waits.add_packet


@term(
    "spilled registers",
    Scope.STEP,
    "loads and stores of a step x share of frames that L1 holds x spill_access_cycles (x UNHIDDEN_FRAGMENTS beside "
    "operands that are split)",
    zero="builds that spill nothing in their loop",
    constants=("UNHIDDEN_FRAGMENTS", "spill_access_cycles"),
)
def spill_cycles(step: Step) -> float:
    """Cycles of loads and stores of a thread's frame inside the loop."""
    accesses = step.launch.work.spill.step * (1 - step.frames_past_l1)
    cycles = accesses * step.rates.waits.spill_access
    if step.unit.splits_to:
        cycles *= UNHIDDEN_FRAGMENTS
    return cycles


@term(
    "spilled registers past L1",
    Scope.STEP,
    "warps x loads and stores of a step x share of frames past L1 x spill_access_cycles",
    zero="stack frames that an SM holds",
    constants=("spill_access_cycles",),
)
def queued_spill_cycles(step: Step) -> float:
    """Cycles of loads and stores of frames that go to the L2, one warp's behind the other's, whatever CTA is theirs."""
    accesses = step.launch.work.spill.step * step.frames_past_l1
    return step.warps * accesses * step.rates.waits.spill_access

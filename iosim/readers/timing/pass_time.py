"""What a launch without an attention loop does on the SMs, HBM aside: products, passes, combines, walks of a state."""

from __future__ import annotations

import math

from iosim.base.records import replace
from iosim.kernel.launch import Outer
from iosim.kernel.work import Dependent
from iosim.readers.timing.loop_time import Computing
from iosim.readers.timing.makespan import makespan
from iosim.readers.timing.overlap import beside_others
from iosim.readers.timing.running import Running, executed_pairs
from iosim.readers.timing.step_terms import SCHEDULERS
from iosim.readers.timing.terms import Scope, term

PRODUCT_CYCLES = 900.0
"""Cycles of a product that waits for the one before and hands its result on through shared memory, beside its
operations, as Triton compiles it. Fitted on every other row of published_linear_attention.csv: on an L40S, an H100 and
an H200."""
TCGEN05_CC = range(100, 120)
"""Where results of products lie in tensor memory: a barrier says that they are there, before they are handed on."""
OPERAND_ISSUES = 1.5
"""Instructions that a thread issues beside its multiply-adds for each value of the two operands that it takes out of
shared memory. Fitted with the next one on the sixteen products in fp32 of h200_chain_launches.csv, by hand, all in sight."""
LONE_WARP_ISSUES = 1.7
"""How much longer a scheduler takes that has a single warp: nothing is issued while its multiply-adds wait. Fitted
on the same rows."""
PRODUCT_THREADS = 128
"""Threads of a matrix library's CTA of products in fp32, the most of the kernels of h200_chain_launches.csv."""
VALUES_OF_A_THREAD = 16
"""Fewest values of a result that a thread of such a product has: 4 x 4."""
ISSUED_LANES = 128
"""Multiply-adds of an SM's four schedulers, of 32 lanes each, if every one issues in every cycle."""
LAST_OLD_PRODUCTS = 89
"""Compute capability up to which a matrix library's CTA ends with its tile; later ones stay and store beside the
products of their next tile."""


@term(
    "products of a launch without a loop",
    Scope.LAUNCH,
    "pairs x FLOPs per pair x columns of tiles over the result's / rate x rounds filled up",
    zero="passes",
    constants=("tensor_flops_per_s",),
    unit="tensor",
)
def product_seconds(running: Running) -> float:
    """Seconds of the products of a launch without a loop, in whole waves of its CTAs; without waves where steps wait
    for one another, since their rounds are counted there."""
    work = running.launch.work
    if not work.flops_per_pair:
        return 0.0
    return (
        executed_pairs(running.launch)
        * max(work.flops_per_pair, 2 * work.product_columns)
        / running.rates.tensor(running.dtype, running.unit)
    )


def product_values(running: Running) -> float:
    """Values of the result that a CTA of a product has."""
    launch = running.launch
    tile, columns = launch.domain, max(launch.work.product_columns, launch.work.flops_per_pair / 2)
    if launch.outer is Outer.PAIR:
        return tile.block_q * tile.block_k
    rows = tile.block_q if launch.outer is Outer.QUERY else tile.block_k
    return max(1.0, rows * columns / launch.work.product_ctas)


def product_issue_share(running: Running, ctas: int) -> float:
    """Time of a product on the fp32 units over that of its multiply-adds at all lanes: schedulers with 32 lanes issue
    the loads of operands in turn with multiply-adds, those with 16 lanes (cc 7.x, 8.0) between them."""
    profile = running.rates.profile
    lanes = running.rates.fp32_lanes() / profile.sm_count
    if math.isinf(lanes):
        return 1.0
    # A thread's values are a rectangle: as many values are fetched for each step of the sum as it has
    # rows and columns, twice the root where it is square.
    values = product_values(running)
    threads = min(PRODUCT_THREADS, values / VALUES_OF_A_THREAD)
    issued = 1.0 + OPERAND_ISSUES * 2.0 / math.sqrt(values / threads)
    warps = -(-ctas // profile.sm_count) * threads / 32
    if warps <= SCHEDULERS:
        issued *= LONE_WARP_ISSUES
    return max(1.0, issued * lanes / ISSUED_LANES)


@term(
    "instructions beside a product's multiply-adds",
    Scope.LAUNCH,
    "(1 + OPERAND_ISSUES x operands / values of a thread; x LONE_WARP_ISSUES of one warp) x lanes / 128 - 1, at least 0, "
    "x seconds of the products",
    zero="tensor cores; GPUs with 64 lanes an SM",
    constants=("OPERAND_ISSUES", "LONE_WARP_ISSUES", "fp32_flops_per_s"),
    unit="tensor",
)
def product_issue_seconds(running: Running) -> float:
    """Seconds by which products on the fp32 units take longer than their multiply-adds."""
    if running.unit.tensor_cores or running.launch.work.dependent is not None:
        return 0.0
    ctas = running.launch.work_tiles * running.launch.work.product_ctas
    return product_seconds(running) * (product_issue_share(running, ctas) - 1.0)


@term(
    "stores of a product's tiles",
    Scope.LAUNCH,
    "bytes stored at the L2 / its bandwidth of stores",
    zero="tensor cores of cc 9.0 and later",
    constants=("l2_read_bandwidth_measured_bytes_per_s", "l2_write_fraction"),
)
def product_store_seconds(running: Running) -> float:
    """Seconds in which a product's CTAs, which end together, store their tiles, and nothing is multiplied."""
    work, profile = running.launch.work, running.rates.profile
    stays = running.unit.tensor_cores and (profile.cc > LAST_OLD_PRODUCTS or profile.is_amd)
    if stays or not work.flops_per_pair or work.dependent is not None:
        return 0.0
    return running.stored() / profile.need("l2_write_fraction") / running.rates.l2()


@term(
    "L2 of a launch without a loop",
    Scope.LAUNCH,
    "bytes at the L2 / its bandwidth",
    zero="fills",
    constants=("l2_read_bandwidth_measured_bytes_per_s", "l2_write_fraction"),
    unit="l2",
)
def l2_seconds(running: Running) -> float:
    """Seconds of the bytes between SMs and L2."""
    return running.l2_loads() / running.rates.l2()


@term(
    "shared memory of a launch without a loop",
    Scope.LAUNCH,
    "bytes at shared memory of the busiest SM / bytes per cycle / clock",
    zero="launches that state none",
    constants=("shared_memory_bytes_per_clock_per_sm",),
    unit="smem",
)
def shared_seconds(running: Running) -> float:
    """Seconds of operands between shared memory and registers on the busiest SM."""
    profile, work = running.rates.profile, running.launch.work
    ctas = running.launch.work_tiles * work.product_ctas
    busiest_pairs = executed_pairs(running.launch) * -(-ctas // profile.sm_count) / ctas
    rate = (profile.shared_memory_bytes_per_clock_per_sm or math.inf) * (
        running.rates.clock_hz or math.inf
    )
    return busiest_pairs * work.shared_bytes_per_pair / rate


@term(
    "exponentials of a launch without a loop",
    Scope.LAUNCH,
    "pairs x exponentials per pair / rate",
    zero="launches without a softmax",
    constants=("exp_per_clock_per_sm",),
    unit="exp",
)
def exponential_seconds(running: Running) -> float:
    """Seconds of the exponentials."""
    profile, clock = running.rates.profile, running.rates.clock_hz or math.inf
    rate = (profile.exp_per_clock_per_sm or math.inf) * clock * profile.sm_count
    return executed_pairs(running.launch) * running.launch.work.exps_per_pair / rate


@term(
    "instructions of a pass",
    Scope.LAUNCH,
    "values loaded x operations per value / fp32 lanes / clock",
    zero="passes that their bytes bound",
    constants=("fp32_flops_per_s",),
)
def pass_instruction_seconds(running: Running) -> float:
    """Seconds of a pass that its instructions bound: offsets of a strided copy."""
    values = running.moved("l2", "read") / running.element_bytes
    rate = running.rates.fp32_lanes() * (running.rates.clock_hz or math.inf)
    return float(values * running.launch.work.operations_per_value / rate)


@term(
    "instructions issued by a pass",
    Scope.LAUNCH,
    "values x instructions per value / 128 lanes / SMs / clock",
    zero="passes whose instructions were not counted; AMD",
)
def issued_seconds(running: Running) -> float:
    """Seconds in which the schedulers issue the instructions of a pass, beside which its bytes flow."""
    launch, rates = running.launch, running.rates
    if not launch.work.issued_per_value or rates.profile.is_amd:
        return 0.0
    first = launch.accesses[0].tensor
    values = running.moved("l2", "read", first) / running.chain.tensors[first].element_bytes
    lanes = ISSUED_LANES * rates.profile.sm_count * (rates.clock_hz or math.inf)
    return values * launch.work.issued_per_value / lanes


@term(
    "loads of dependent steps",
    Scope.STEP,
    "loads x latency (HBM, or the L2 where the launch before left them there)",
    zero="steps that do not wait for the one before",
    constants=("dram_latency_cycles", "l2_latency_near_cycles"),
)
def dependent_load_cycles(running: Running, dependent: Dependent) -> float:
    """Cycles in which a step waits for its own loads, one behind the other."""
    latency_s = running.rates.load_latency_s(from_dram=not running.finds_in_l2)
    return dependent.loads * latency_s * (running.rates.clock_hz or 0.0)


@term(
    "dependent products",
    Scope.STEP,
    "products x (PRODUCT_CYCLES, and step_sync_cycles on cc 10 and 11)",
    zero="steps that do not wait for the one before",
    constants=("PRODUCT_CYCLES", "step_sync_cycles"),
)
def dependent_product_cycles(running: Running, dependent: Dependent) -> float:
    """Cycles in which a product waits for the one before and hands its result on."""
    cycles, profile = PRODUCT_CYCLES, running.rates.profile
    if profile.cc in TCGEN05_CC:
        cycles += float(profile.need("step_sync_cycles"))
    return dependent.products * cycles


@term(
    "rows of a triangular system",
    Scope.STEP,
    "rows x (latency of the L2 + LOAD_CYCLES)",
    zero="kernels that solve none",
    constants=("l2_latency_near_cycles",),
)
def solved_row_cycles(running: Running, dependent: Dependent) -> float:
    """Cycles of the rows that a step solves, of which it has as many as the launch has tokens at most. Each is loaded,
    once the one before is done (vllm, fla/ops/solve_tril.py @15ec37e4); where rows stay in registers, picking one out
    and summing over the CTA's threads is taken to last as long."""
    rows = min(dependent.rows, running.launch.domain.rows)
    return rows * running.rates.load_cycles(from_dram=False)


@term(
    "instructions issued in turn",
    Scope.STEP,
    "instructions of a step / SCHEDULERS",
    zero="launches whose instructions were not counted",
    constants=("SCHEDULERS",),
    unit="issue",
)
def issue_cycles(dependent: Dependent) -> float:
    """Cycles in which an SM issues the warp instructions of one CTA's step."""
    return dependent.instructions / SCHEDULERS


@term(
    "loads of a step that is issued in turn",
    Scope.STEP,
    "loads x latency (HBM, or the L2)",
    zero="launches whose instructions were not counted",
    constants=("dram_latency_cycles", "l2_latency_near_cycles"),
)
def turn_load_seconds(running: Running, dependent: Dependent) -> float:
    """Seconds in which a CTA's step waits for its loads. CTAs of a product's tile read the same rows at the same time,
    so that all of them wait for HBM."""
    work = running.launch.work
    from_hbm = 2 * running.moved("hbm", "read")
    if work.flops_per_pair > 0:
        from_hbm *= work.product_ctas
    return dependent.loads * running.rates.load_latency_s(from_hbm >= running.moved("l2", "read"))


def pass_computing(running: Running) -> Computing:
    """A launch without an attention loop: the longest of its units, or the sum of what its steps wait for."""
    launch, resident = running.launch, running.resident
    dependent = launch.work.dependent
    if dependent is not None and not dependent.instructions:
        return _dependent_steps(running, dependent)
    seconds = _unit_seconds(running)
    # A product's CTAs multiply, then store: the two add up.
    total = max(
        pass_instruction_seconds(running),
        seconds.get("tensor", 0.0) + product_store_seconds(running),
    )
    rounds = -(-launch.work_tiles // resident.slots)
    ctas_per_sm = -(-resident.slots // running.rates.profile.sm_count)
    step_s = 0.0
    if running.steps and launch.outer is not Outer.FLAT:
        busiest = rounds * ctas_per_sm * running.steps / max(1, launch.work_tiles)
        step_s = max(total, *seconds.values(), 0.0) / busiest
    if dependent is not None:
        total = _issued_in_turn(running, dependent, seconds)
    return Computing(
        seconds, resident.waves, total, step_s=tuple(n * step_s for n in range(1, ctas_per_sm + 1))
    )


def _unit_seconds(running: Running) -> dict[str, float]:
    """Products with whole waves of tiles, operands from shared memory, exponentials, L2 bytes."""
    ctas, slots = (
        running.launch.work_tiles * running.launch.work.product_ctas,
        running.resident.slots,
    )
    # The last round takes as long as a full one, however few CTAs it has. On the fp32 units the CTAs of
    # an SM share its lanes: the busiest SM decides.
    if not running.unit.tensor_cores and running.launch.work.dependent is None:
        slots = running.rates.profile.sm_count
    whole_rounds = -(-ctas // slots) * slots / ctas
    multiplied = product_seconds(running) + product_issue_seconds(running)
    seconds = {
        "l2": l2_seconds(running),
        "tensor": multiplied * whole_rounds,
        "smem": shared_seconds(running),
        "exp": exponential_seconds(running),
    }
    return {unit: needed for unit, needed in seconds.items() if needed or unit == "l2"}


def _dependent_steps(running: Running, dependent: Dependent) -> Computing:
    """A launch whose steps wait for one another. A step alone takes its waits and its own products; each further CTA on
    the SM adds what a step takes of the unit that is busiest. "sequence" is a CTA's steps alone, in every round."""
    launch, resident, profile = running.launch, running.resident, running.rates.profile
    clock, ctas = running.rates.clock_hz, launch.work.product_ctas
    seconds = {name: needed for name, needed in _unit_seconds(running).items() if name != "tensor"}
    steps = running.steps * ctas
    if not clock or not steps:
        return Computing(seconds, resident.waves)
    products = product_seconds(running)
    seconds["tensor"] = products
    cycles_per_step = (
        clock * profile.sm_count / steps
    )  # of an SM for a step, per second of the whole GPU
    # One CTA: its products and waits one after the other. Beside others the busiest unit's part of
    # a step is added for each.
    alone = (
        products * cycles_per_step
        + dependent_load_cycles(running, dependent)
        + dependent_product_cycles(running, dependent)
        + solved_row_cycles(running, dependent)
    )
    busiest = max(products, seconds.get("l2", 0.0)) * cycles_per_step

    def step(beside: int) -> float:
        return alone + (beside - 1) * busiest

    grid = replace(launch, domain=replace(launch.domain, heads=launch.domain.heads * ctas))
    span = makespan(grid, profile.sm_count, running.ctas_per_sm, step, 0.0)
    steps_per_cta = steps / (launch.work_tiles * ctas)
    return Computing(
        seconds | {"sequence": span.rounds * steps_per_cta * alone / clock},
        resident.waves,
        span.cycles / clock,
        step_s=tuple(step(n) / clock for n in range(1, running.ctas_per_sm + 1)),
    )


def _issued_in_turn(running: Running, dependent: Dependent, seconds: dict[str, float]) -> float:
    """Seconds of a launch whose CTA waits in a step for loads, then for operands from shared memory, then multiplies,
    while the SM's other CTAs issue their instructions ("issue" in `seconds`): the two overlap in part."""
    launch, slots, sms = running.launch, running.resident.slots, running.rates.profile.sm_count
    tiles = launch.work_tiles
    ctas, steps = tiles * launch.work.product_ctas, running.steps / tiles
    full, rest = divmod(ctas, slots)
    ctas_of_busiest = -(-ctas // sms)
    # Seconds of one CTA: those of the whole GPU, for a CTA on an SM.
    multiplied = seconds.get("tensor", 0.0) * sms / (-(-ctas // slots) * slots)
    waiting = steps * turn_load_seconds(running, dependent)
    alone = multiplied + seconds.get("smem", 0.0) / ctas_of_busiest + waiting
    issued = steps * issue_cycles(dependent) / (running.rates.clock_hz or math.inf)
    seconds["issue"] = ctas_of_busiest * issued
    total = full * beside_others(alone, running.ctas_per_sm * issued)
    if rest:
        total += beside_others(alone, -(-rest // sms) * issued)
    return total

"""`minimal`; and `flash-cu`, `naive-cu`, `minimal-cu`: what kernels/flash_fwd.cu, flash_bwd.cu, naive.cu and minimal.cu
launch, where that differs from the algorithms of their names.

`minimal` is the public minimal CUDA re-implementation of FlashAttention's forward: fp32, 32 x 32 tiles, one thread a
row, keys outside, one CTA per head; O, l and m are read and written at every key block and zero-filled by the host. A
warp touches 32 rows at once and uses 4 bytes of each sector: of loads L1 serves the rest, stores pass as whole sectors.

flash_fwd.cuh starts to load its query tile before it looks whether a key is kept. flash_bwd.cuh makes row sums beside
the log-sum-exp, walks the queries of all heads that share its keys one head after the other, so that nothing is summed
afterwards, and adds up dQ in memory, or computes it anew where it is to be deterministic. The products of naive.cu are
fp32 multiply-adds out of shared memory, whatever the tensors' type.
"""

from __future__ import annotations

from collections.abc import Mapping

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import flash, flash_backward, flash_options
from iosim.catalog.algorithms.common import row_domain
from iosim.catalog.algorithms.flash1 import plan_flash1
from iosim.catalog.algorithms.naive import NaiveOptions, plan_naive
from iosim.catalog.algorithms.registry import Packs, algorithm, options_of
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import SECTOR_BYTES, Chain, Launch, Mode, Outer, Overhead, Resources, Role
from iosim.kernel.work import Dependent, Fragments, Layout, Loop, Work
from iosim.problem.attention import AttentionProblem

NAIVE_SHARED_EIGHTHS = 8 * 8 * 128 // (32 * 16) + 8 * 128 * 128 // (64 * 64 * 32)
"""Eighths of a byte between shared memory and registers for each multiply-add of kernels/naive.cu: a warp makes 8
loads, a wavefront each, for the 16 products of every thread, and what a tile of 64 x 64 x 32 products takes is stored
there in 128 wavefronts before."""
FLASH_FRAGMENTS = {
    "main": Fragments(Layout.WHOLE_ROWS, step=18, tile=24, skips_masked=True),
    "bwd.main": Fragments(Layout.KEYS_OUTSIDE, step=12, tile=19),
    "bwd.dq": Fragments(Layout.QUERIES_OUTSIDE, step=3, tile=9),
    "bwd.fill": Fragments(Layout.NOTHING),
    "bwd.dot": Fragments(Layout.NOTHING, tile=1 + 5),
    "bwd.convert": Fragments(Layout.NOTHING, step=8 * 32),
    "combine": Fragments(Layout.NOTHING, tile=1),
}
"""Launch -> its layout, with the wavefronts that hold no operand: words of shared memory that a warp reads to know its
blocks, idle loads before copies, shuffles of a row's sum; one of every warp that has no other. Counted in the code
compiled for sm_90 (nvcc 13.0)."""
NAIVE_FRAGMENTS = {
    "scores": Fragments(Layout.MULTIPLY_ADDS),
    "values": Fragments(Layout.MULTIPLY_ADDS),
    "softmax": Fragments(Layout.ROWS_OF_SCORES, tile=1 + 2 * (5 + 1 + 2 * 2)),
}
"""Launch -> its layout. In a row of the softmax a warp makes two reductions: five shuffles, a store and two fetches of
16 bytes, two wavefronts each."""
NAIVE_WARPS, NAIVE_DEPTH, NAIVE_LOADS, SOFTMAX_LOADS = 8, 32, 8, 16
"""Warps of a CTA, depth of a product's step, its loads one behind the other (each pair of operands takes the registers
of the one before), and scores that a thread of the softmax loads at once."""
INSTRUCTIONS = {
    "scores": (385, 1170),
    "softmax": (220, 18),
    "values": (266, 1290),
    "bwd.dot": (28, 36),
}
"""Instructions of a warp of naive.cu and flash_bwd_rows: (in a tile, in each step of a product), or (in a row, for each
score of it that a thread has, or each 64 columns). Counted, as the loads, in the code compiled for sm_90 (nvcc
13.0)."""
MINIMAL_SOURCE = (
    "tspeterkim/flash-attention-minimal, flash.cu: O[...] = ... of each thread's own row"
)
MINIMAL_UNROLLED, MINIMAL_TURN_CYCLES = 16, 370
"""Multiply-adds of a turn of its products, as nvcc 13.0 unrolls them for sm_90, and SM cycles of a turn in which one
warp waits for what it asked of shared memory, beside the wavefronts: its machine code as played."""
OPERATION_CYCLES = 4
"""From a multiply-add to the next one that takes its result, since Volta (NVIDIA, Volta Tuning Guide, 1.4.1.1)."""
NAIVE_RESOURCES = {"scores": (80, 16640), "softmax": (32, 64), "values": (64, 16640)}
"""Registers a thread and static shared memory of the launches of kernels/naive.cu (nvcc 13.0, sm_90); softmax holds a
row of scores beside."""


@dataclass(frozen=True)
class CudaOptions(flash_options.FlashOptions):
    """`deterministic`: dQ is computed by a launch that owns queries, not added up."""

    deterministic: bool = False


@algorithm("flash-cu", options=CudaOptions, splits=True, packs=Packs.WHERE_ASKED)
def plan_flash_cu(problem: AttentionProblem, kernel: Kernel) -> Chain:
    chain = flash.forward(problem, kernel) if problem.forward else _backward(problem, kernel)
    # The kernel asks for Q before it knows whether a key is left to it.
    unasked = (
        replace(n, accesses=tuple(replace(a, visited_only=False) for a in n.accesses))
        for n in chain.launches
    )
    return replace(chain, launches=tuple(_stated(n, FLASH_FRAGMENTS) for n in unasked))


def _stated(launch: Launch, fragments: Mapping[str, Fragments]) -> Launch:
    """The launch with what is known of its shared memory; as results of a split leave, they are not staged."""
    known = fragments.get(launch.name)
    if known is not None and launch.outer is Outer.SPLIT:
        known = replace(known, stages_output=False)
    return replace(launch, work=replace(launch.work, fragments=known))


def _backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The passes and main launch of `flash`, whose warps own keys each; where it is deterministic, nothing is added to
    dQ, and one more launch, flash_bwd_query, computes it."""
    options = options_of(kernel, CudaOptions)
    if options.deterministic:
        kernel = replace(kernel, options=replace(options, adds=flash_options.Adds.OWNERS))
    chain = flash_backward.backward(problem, kernel)
    rest = (replace(n, work=replace(n.work, loop=Loop())) for n in chain.launches)
    launches = (_row_sums(n, problem.head_dim) if n.name == "bwd.dot" else n for n in rest)
    return replace(chain, launches=tuple(launches))


def _row_sums(launch: Launch, head_dim: int) -> Launch:
    """flash_bwd_rows, where a warp has a row, and loads O with dO, then the log-sum-exp."""
    warps, (once, per_element) = launch.resources.threads // 32, INSTRUCTIONS[launch.name]
    row = Dependent(loads=2, instructions=warps * (once + -(-per_element * head_dim // 64)))
    return replace(
        launch,
        work=replace(launch.work, product_ctas=-(-launch.domain.block_q // warps), dependent=row),
    )


@algorithm("naive-cu", options=NaiveOptions, standard=True)
def plan_naive_cu(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The three launches of kernels/naive.cu, whose mask and scale are no passes of their own."""
    chain = plan_naive(problem, kernel)
    return replace(
        chain,
        launches=tuple(
            _stated(_multiply_adds(n, problem), NAIVE_FRAGMENTS) for n in chain.launches
        ),
    )


def _multiply_adds(launch: Launch, problem: AttentionProblem) -> Launch:
    fetched = launch.work.flops_per_pair // 2 * NAIVE_SHARED_EIGHTHS // 8
    launch = replace(
        launch, work=replace(launch.work, tensor_cores=False, shared_bytes_per_pair=fetched)
    )
    if launch.name not in NAIVE_RESOURCES:
        return launch
    registers, shared = NAIVE_RESOURCES[launch.name]
    row = 4 * problem.seq_k if launch.name == "softmax" else 0
    reported = Resources(32 * NAIVE_WARPS, registers, shared + row)
    return replace(launch, resources=reported, work=_in_steps(launch, problem))


def _in_steps(launch: Launch, problem: AttentionProblem) -> Work:
    """Work with what a CTA waits for and issues in a row of scores, or in a visited pair of blocks."""
    (once, per_element), domain = INSTRUCTIONS[launch.name], launch.domain
    if launch.name == "softmax":
        # A CTA per row: scores of a thread, loaded SOFTMAX_LOADS at a time.
        scores = -(-problem.seq_k // (32 * NAIVE_WARPS))
        row = Dependent(
            -(-scores // SOFTMAX_LOADS), instructions=NAIVE_WARPS * (once + per_element * scores)
        )
        return replace(launch.work, product_ctas=domain.block_q, dependent=row)
    depth, pairs = (
        (domain.block_k, domain.key_blocks_total)
        if launch.name == "values"
        else (problem.head_dim, 1)
    )
    steps = -(-depth // NAIVE_DEPTH)
    of_warp = -(-once // pairs) + per_element * steps
    return replace(
        launch.work, dependent=Dependent(NAIVE_LOADS * steps, instructions=NAIVE_WARPS * of_warp)
    )


@algorithm("minimal", keys_outside=True, dtypes=("fp32", "tf32"), example_tile=Tile(32, 32))
def plan_minimal(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launches of `flash1` to the letter. Raises InputError: a backward pass, a mask, dropout, another type than
    fp32, grouped heads, or a length that is not a multiple of the tile: the kernel has none of these."""
    for field, accepted, lacks in (
        ("passes", ("fwd",), ": it has a forward only"),
        ("mask", ("none",), ": it has no mask"),
        ("dropout", (0.0,), ": it has none"),
        ("dtype", ("fp32", "tf32"), "; accepted: fp32"),
        ("kv_heads", (problem.heads,), ": it has no grouped heads"),
        (
            "seq_q",
            range(0, problem.seq_q + 1, kernel.tile.block_q),
            f": not a multiple of {kernel.tile.block_q}",
        ),
        (
            "seq_k",
            range(0, problem.seq_k + 1, kernel.tile.block_k),
            f": not a multiple of {kernel.tile.block_k}",
        ),
    ):
        if (value := getattr(problem, field)) not in accepted:
            raise InputError(f"`{field}` {value!r} is not possible with kernel 'minimal'{lacks}")
    # The published kernel is Algorithm 1 to the letter: only its shapes, and what it stores, differ.
    chain = plan_flash1(problem, replace(kernel, options=None, overheads=()))
    fill, main = chain.launches
    fill = replace(fill, domain=row_domain(problem, kernel.tile.block_q))
    # A thread stores its row of O 4 bytes at a time, each a sector; of what it loads so, L1 serves the rest.
    more = kernel.tile.block_q * problem.head_dim_v * (SECTOR_BYTES - 4)
    packets = Overhead("store packets", Mode.STORE, per_pair=more, inferred_from=MINIMAL_SOURCE)
    turns = kernel.tile.block_k * (problem.head_dim + problem.head_dim_v) // MINIMAL_UNROLLED
    work = Work(
        2 * (problem.head_dim + problem.head_dim_v),
        exps_per_pair=1,
        tensor_cores=False,
        loop=Loop(loads_ahead=False, serial_cycles=turns * MINIMAL_TURN_CYCLES),
    )
    held = {
        name: replace(t, role=Role.TEMP) if name in ("l", "m") else t
        for name, t in chain.tensors.items()
    }
    main = replace(main, overheads=(*main.overheads, packets), work=work)
    known = {"fill": Fragments(Layout.NOTHING), "main": Fragments(Layout.THREAD_ROWS)}
    return Chain(held, tuple(_stated(n, known) for n in (fill, main)), kernel.notes)


@algorithm("minimal-cu", keys_outside=True, dtypes=("fp32", "tf32"), example_tile=Tile(32, 32))
def plan_minimal_cu(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The host's fill and minimal.cu's launch, where a thread stores its row of O 4 bytes at a time, a packet each, and
    loads each value after it has stored the one before: the compiler cannot tell them apart. Products of P V run
    meanwhile; those of a score are one chain."""
    chain = plan_minimal(problem, kernel)
    filled, main = chain.launches
    main = replace(main, overheads=())
    more = kernel.tile.block_q * problem.head_dim_v * (SECTOR_BYTES - 4)
    packets = Overhead(
        "store packets", Mode.STORE, per_pair=more, inferred_from="kernels/minimal.cu"
    )
    chained = kernel.tile.block_k * (problem.head_dim * (OPERATION_CYCLES - 1) - problem.head_dim_v)
    loop = Loop(loads_ahead=False, serial_loads=problem.head_dim_v, serial_cycles=chained)
    main = replace(main, overheads=(*main.overheads, packets), work=replace(main.work, loop=loop))
    known = {"fill": Fragments(Layout.NOTHING), "main": Fragments(Layout.ONE_WARP)}
    return replace(chain, launches=tuple(_stated(n, known) for n in (filled, main)))

"""`flash-cu`, `naive-cu`, `minimal-cu`: what kernels/flash_fwd.cu, flash_bwd.cu, naive.cu and minimal.cu launch, where
that differs from the algorithms of their names.

flash_fwd.cuh starts to load its query tile before it looks whether a key is kept. flash_bwd.cuh makes row sums beside
the log-sum-exp, walks the queries of all heads that share its keys one head after the other, so that nothing is summed
afterwards, and adds up dQ in memory, or computes it anew where it is to be deterministic. The products of naive.cu are
fp32 multiply-adds out of shared memory, whatever the tensors' type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from iosim.kernel.algorithms import flash
from iosim.kernel.algorithms.body import Body, Place, body, share_bodies
from iosim.kernel.algorithms.common import attention_domain, heads_in_turn, load, row_domain, row_vector, store
from iosim.kernel.algorithms.minimal import plan_minimal
from iosim.kernel.algorithms.naive import NaiveOptions, plan_naive
from iosim.kernel.algorithms.registry import Packs, algorithm, options_of
from iosim.kernel.algorithms.softmax import exp_less
from iosim.kernel.algorithms.terms import masked_scores
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Domain, Launch, Mode, Outer, Overhead, Per, Resources, Role, Rows
from iosim.problem.attention import AttentionProblem

PACKET_BYTES = 32
"""What the smallest store moves from an SM to L2."""
ROWS_OF_SUMS = 4
"""Query rows of a CTA of `flash_bwd_rows`, a warp each."""
SUMS = "LSE_copy"
"""The log-sum-exp in the backward's own memory, beside the row sums."""
NAIVE_SHARED_EIGHTHS = 8 * 8 * 128 // (32 * 16) + 8 * 128 * 128 // (64 * 64 * 32)
"""Eighths of a byte between shared memory and registers for each multiply-add of kernels/naive.cu: a warp makes 8
loads, a wavefront each, for the 16 products of every thread, and what a tile of 64 x 64 x 32 products takes is stored
there in 128 wavefronts before."""
NAIVE_RESOURCES = {"scores": (80, 16640), "softmax": (32, 64), "values": (64, 16640)}
"""Registers a thread and static shared memory of the launches of kernels/naive.cu (nvcc 13.0, sm_90); softmax holds a
row of scores beside."""


@dataclass(frozen=True)
class CudaOptions(flash.FlashOptions):
    """`deterministic`: dQ is computed by a launch that owns queries, not added up. `combines_one`: with one split, too,
    the partial result goes through memory."""

    deterministic: bool = False
    combines_one: bool = False


@algorithm("flash-cu", options=CudaOptions, splits=True, packs=Packs.WHERE_ASKED)
def plan_flash_cu(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Chain of the forward or the backward."""
    return _forward(problem, kernel) if problem.forward else _backward(problem, kernel)


def _forward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    alone = kernel.splits == 1 and options_of(kernel, CudaOptions).combines_one
    chain = flash.forward(problem, replace(kernel, splits=2) if alone else kernel)
    chain = _one_split(chain) if alone else chain
    main = chain.launches[0]
    accesses = tuple(replace(a, visited_only=False) if a.tensor == "Q" else a for a in main.accesses)
    return replace(chain, launches=(replace(main, accesses=accesses), *chain.launches[1:]))


def _one_split(chain: Chain) -> Chain:
    """A chain planned for two splits with one: the combination reads one partial result."""
    main, combine = chain.launches
    tensors_left = {n: replace(t, copies=1) if n.endswith("_partial") else t for n, t in chain.tensors.items()}
    whole = replace(main.domain, splits=1)
    accesses = tuple(replace(a, per=Per.QUERY) if a.per is Per.SPLIT else a for a in main.accesses)
    rows = combine.domain
    single = Domain(rows.batch, rows.heads, rows.rows, 1, rows.block_q, 1)
    return replace(
        chain,
        tensors=tensors_left,
        launches=(replace(main, domain=whole, outer=Outer.QUERY, accesses=accesses), replace(combine, domain=single)),
    )


def _backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The host's zeroes, row sums, dK and dV, and dQ.

    Raises:
        InputError: grouped heads whose last query block is ragged.
    """
    deterministic = options_of(kernel, CudaOptions).deterministic
    chain = flash.backward(problem, kernel)
    dot, main, convert = chain.launches[:3]
    held = {n: t for n, t in chain.tensors.items() if not n.endswith("_heads")} | {
        SUMS: row_vector(problem, SUMS, Role.TEMP)
    }
    zeroes = Launch(
        "bwd.fill",
        row_domain(problem, flash.DOT_ROWS),
        Outer.FLAT,
        (store("dQ_acc", Rows.QUERY, Per.QUERY),),
        tensor_cores=False,
    )
    both = (_row_sums(dot), _keys(problem, kernel, main, deterministic))
    if deterministic:
        del held["dQ_acc"]
        return replace(chain, tensors=held, launches=(*both, _queries(problem, kernel, main)))
    return replace(chain, tensors=held, launches=(zeroes, *both, convert))


def _row_sums(launch: Launch) -> Launch:
    """flash_bwd_rows: the row's sum beside its log-sum-exp, which it reads a CTA of ROWS_OF_SUMS rows at a time."""
    kept = [a for a in launch.accesses if a.tensor != "dQ_acc"]
    read = next(a for a in kept if a.tensor == "O")
    written = next(a for a in kept if a.tensor == "D")
    lse = (replace(read, tensor="LSE", packet_rows=ROWS_OF_SUMS), replace(written, tensor=SUMS))
    return replace(launch, accesses=(*kept, *lse))


def _keys(problem: AttentionProblem, kernel: Kernel, main: Launch, deterministic: bool) -> Launch:
    """flash_bwd: K and V of its block whatever is kept, the query blocks of all heads that share them, dK and dV. Four
    lanes of a warp add 32 bytes to a row of dQ."""
    names = {"LSE": SUMS, "dK_heads": "dK", "dV_heads": "dV"}
    accesses = tuple(
        replace(a, tensor=names.get(a.tensor, a.tensor), visited_only=False)
        for a in main.accesses
        if not (deterministic and a.tensor == "dQ_acc")
    )
    flops = 4 * (problem.head_dim + problem.head_dim_v) if deterministic else main.flops_per_pair
    packets = 0 if deterministic else problem.head_dim * 4 // PACKET_BYTES
    domain = heads_in_turn(problem, kernel.tile_backward)
    return replace(main, domain=domain, accesses=accesses, flops_per_pair=flops, add_packets_per_row=packets)


def _queries(problem: AttentionProblem, kernel: Kernel, main: Launch) -> Launch:
    """flash_bwd_query, deterministic: a CTA owns as many queries as flash_bwd owns keys, and walks blocks of keys as
    long as flash_bwd's of queries. Scores and dP again, then dQ: three products."""
    tile = kernel.tile_backward
    turned = Tile(tile.block_k, tile.block_q, tile.warps, tile.stages)
    return Launch(
        "bwd.dq",
        attention_domain(problem, turned),
        Outer.QUERY,
        (
            *(load(name, Rows.QUERY, Per.QUERY) for name in ("Q", "dO", SUMS, "D")),
            load("K", Rows.KEY, Per.PAIR),
            load("V", Rows.KEY, Per.PAIR),
            store("dQ", Rows.QUERY, Per.QUERY),
        ),
        resources=main.resources,
        flops_per_pair=2 * (2 * problem.head_dim + problem.head_dim_v),
        exps_per_pair=1,
        stages=tile.stages,
    )


@algorithm("naive-cu", options=NaiveOptions, standard=True)
def plan_naive_cu(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The three launches of kernels/naive.cu, whose mask and scale are no passes of their own."""
    chain = plan_naive(problem, kernel)
    return replace(chain, launches=tuple(_multiply_adds(n, problem) for n in chain.launches))


def _multiply_adds(launch: Launch, problem: AttentionProblem) -> Launch:
    """A launch of naive.cu with the compiler's report of it."""
    fetched = launch.flops_per_pair // 2 * NAIVE_SHARED_EIGHTHS // 8
    launch = replace(launch, tensor_cores=False, shared_bytes_per_pair=fetched)
    if launch.name not in NAIVE_RESOURCES:
        return launch
    registers, shared = NAIVE_RESOURCES[launch.name]
    row = 4 * problem.seq_k if launch.name == "softmax" else 0
    return replace(launch, resources=Resources(256, registers, shared + row, "the compiler's report of naive.cu"))


@algorithm("minimal-cu", keys_outside=True, dtypes=("fp32", "tf32"), example_tile=Tile(32, 32))
def plan_minimal_cu(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The host's fill and minimal.cu's launch, where a thread stores its row of O 4 bytes at a time, a packet each."""
    chain = plan_minimal(problem, kernel)
    filled, main = chain.launches
    more = kernel.tile.block_q * problem.head_dim_v * (PACKET_BYTES - 4)
    packets = Overhead("store packets", Mode.STORE, per_pair=more, inferred_from="kernels/minimal.cu")
    return replace(chain, launches=(filled, replace(main, overheads=(*main.overheads, packets))))


# What the launches compute.

share_bodies("flash-cu", "flash")
share_bodies("naive-cu", "naive")
share_bodies("minimal-cu", "minimal")


@body("flash-cu", "bwd.fill")
def zero_dq(at: Place) -> None:
    """What the host's fill leaves."""
    at.put("dQ_acc", np.zeros((at.q.size, at.problem.head_dim)))


@body("flash-cu", "bwd.dq")
class QueryGradient(Body):
    """dQ of a query block: the sum over its keys of dS K."""

    def begin(self, at: Place) -> None:
        self.dq = np.zeros((at.q.size, at.problem.head_dim))

    def pair(self, at: Place) -> None:
        weights = exp_less(masked_scores(at), at[SUMS])
        self.dq += weights * (at["dO"] @ at["V"].T - at["D"]) @ at["K"] * at.scale

    def end(self, at: Place) -> None:
        at.put("dQ", self.dq)

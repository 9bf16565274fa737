"""The launches of the kernels in `kernels/` where they differ from the catalog's of the same algorithm.

Each function takes launches of a plan and gives them as the CUDA source has them; the source is named.
"""

from __future__ import annotations

from dataclasses import replace

from iosim.kernel.algorithms import options_of
from iosim.kernel.algorithms.common import attention_domain, heads_in_turn, load, store
from iosim.kernel.algorithms.naive import NaiveOptions
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import Chain, Domain, Launch, Mode, Outer, Overhead, Per, Resources, Rows
from iosim.kernel.libraries import Overrides
from iosim.problem.attention import AttentionProblem

NAIVE_TILE = (64, 64)
NAIVE_BUILD = Overrides(tile=NAIVE_TILE, warps=8)
NAIVE_RESOURCES = {"scores": (80, 16640), "softmax": (32, 64), "values": (64, 16640)}
"""Registers a thread and static shared memory of the launches of kernels/naive.cu (nvcc 13.0, sm_90); softmax holds a
row of scores beside."""
NAIVE_SHARED_BYTES = 8 * 128 / (32 * 16) + 128 * 128 / (64 * 64 * 32)
"""2.125 bytes between shared memory and registers for each multiply-add of kernels/naive.cu."""
PACKET_BYTES = 32
"""What the smallest store moves from an SM to L2."""
ROWS_OF_SUMS = 4
"""Query rows of a CTA of `flash_bwd_rows`, a warp each."""


def naive_as_launched(kernel: Kernel) -> Kernel:
    """The naive kernel with the tiles of kernels/naive.cu, whose mask and scale are no passes of their own."""
    return kernel.with_(options=replace(options_of(kernel, NaiveOptions), gemm_tile=NAIVE_TILE, passes=()))


def naive(chain: Chain) -> Chain:
    """The launches of kernels/naive.cu. Products are fp32 multiply-adds, whatever the type of the tensors: a warp makes
    8 loads from shared memory, a wavefront each, for the 16 products of every thread, and what a tile of 64 x 64 x 32
    products takes is stored there in 128 wavefronts before. That is NAIVE_SHARED_BYTES a multiply-add."""
    return replace(chain, launches=tuple(map(_fp32_products, chain.launches)))


def _fp32_products(launch: Launch) -> Launch:
    fetched = int(launch.flops_per_pair // 2 * NAIVE_SHARED_BYTES)
    return replace(launch, tensor_cores=False, shared_bytes_per_pair=fetched)


def naive_resources(launch: Launch, problem: AttentionProblem) -> Launch:
    """A launch of kernels/naive.cu with the compiler's report for it, which the row of a chain does not hold."""
    registers, shared = NAIVE_RESOURCES[launch.name]
    row = 4 * problem.seq_k if launch.name == "softmax" else 0
    return replace(launch, resources=Resources(256, registers, shared + row, "the compiler's report of naive.cu"))


def stores_elements(launch: Launch, problem: AttentionProblem, kernel: Kernel) -> Launch:
    """minimal's launch with what its stores add: a thread stores its row of O 4 bytes at a time, a packet each."""
    more = kernel.tile.block_q * problem.head_dim_v * (PACKET_BYTES - 4)
    packets = Overhead("store packets", Mode.STORE, per_pair=more, inferred_from="kernels/minimal.cu")
    return replace(launch, overheads=(*launch.overheads, packets))


def forward(chain: Chain) -> Chain:
    """flash_fwd.cuh starts to load its query tile before it looks whether a key is kept."""
    main = chain.launches[0]
    accesses = tuple(replace(a, visited_only=False) if a.tensor == "Q" else a for a in main.accesses)
    return replace(chain, launches=(replace(main, accesses=accesses), *chain.launches[1:]))


def one_split(chain: Chain) -> Chain:
    """A chain planned for two splits as flash_fwd.cuh runs it with one: the partial result still goes through memory in
    fp32, and the combination reads that one."""
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


def backward(problem: AttentionProblem, kernel: Kernel, chain: Chain, *, deterministic: bool) -> Chain:
    """The launches of flash_bwd.cuh: row sums; dK and dV, with dQ by atomics unless `deterministic`; then dQ, converted
    or, where deterministic, computed anew.

    With grouped heads a CTA owns keys of a key/value head and walks the queries of its query heads, one head after the
    other, so that nothing is summed afterwards.

    Raises:
        InputError: grouped heads whose last query block is ragged.
    """
    dot, main, convert = chain.launches[:3]
    tensors_left = {
        n: t for n, t in chain.tensors.items() if not n.endswith("_heads") and not (deterministic and n == "dQ_acc")
    }
    keys = _keys(problem, kernel, main, deterministic=deterministic)
    last = _queries(problem, kernel, main) if deterministic else convert
    return replace(chain, tensors=tensors_left, launches=(_row_sums(dot), keys, last))


def _row_sums(launch: Launch) -> Launch:
    """The model's first backward launch as flash_bwd_rows is: it zeroes no dQ, and writes the row's sum beside its
    log-sum-exp, which it reads a CTA of ROWS_OF_SUMS rows at a time."""
    kept = [a for a in launch.accesses if a.tensor != "dQ_acc"]
    read = next(a for a in kept if a.tensor == "O")
    written = next(a for a in kept if a.tensor == "D")
    lse = (replace(read, tensor="LSE", packet_rows=ROWS_OF_SUMS), replace(written, tensor="LSE"))
    return replace(launch, accesses=(*kept, *lse))


def _keys(problem: AttentionProblem, kernel: Kernel, main: Launch, *, deterministic: bool) -> Launch:
    """flash_bwd: K and V of its block whatever is kept, the query blocks of all heads that share them, dK and dV. Four
    lanes of a warp add 32 bytes to a row of dQ."""
    accesses = tuple(
        replace(a, tensor=a.tensor.removesuffix("_heads"), visited_only=False)
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
            *(load(name, Rows.QUERY, Per.QUERY) for name in ("Q", "dO", "LSE", "D")),
            load("K", Rows.KEY, Per.PAIR),
            load("V", Rows.KEY, Per.PAIR),
            store("dQ", Rows.QUERY, Per.QUERY),
        ),
        resources=main.resources,
        flops_per_pair=2 * (2 * problem.head_dim + problem.head_dim_v),
        exps_per_pair=1,
        stages=tile.stages,
    )

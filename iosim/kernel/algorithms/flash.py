"""`flash`: queries outside, keys inside, O written once (FlashAttention-2, arXiv 2307.08691, Algorithms 1 and 2).

Forward reads Q once a query block (or again at every key block where the kernel does so), K and V once a visited
(query block, key block) pair, and writes O and one fp32 log-sum-exp a row. With `splits` > 1 the keys of a head are
divided among CTAs, partial O and LSE in fp32 pass through memory, and a second launch combines them.
Backward turns the loops: keys outside, dQ by fp32 atomic adds, between a launch for rowsum(dO o O) and one that
converts dQ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from iosim.base.errors import InputError
from iosim.kernel.algorithms.body import Array, Body, Place, body
from iosim.kernel.algorithms.cache import (
    CacheOptions,
    append,
    append_launch,
    append_tensors,
    check_append,
    in_cache,
    page_notes,
    table_access,
    table_tensor,
)
from iosim.kernel.algorithms.common import (
    add_group_gradients,
    attention_domain,
    head_gradient,
    head_gradients,
    heads_in_turn,
    load,
    matrix,
    resources,
    row_domain,
    row_vector,
    store,
    sum_groups,
)
from iosim.kernel.algorithms.registry import Packs, algorithm, options_of
from iosim.kernel.algorithms.softmax import OnlineSoftmax, divided, exp_less, log_sum_exp
from iosim.kernel.algorithms.terms import (
    TermOptions,
    add_bias_gradients,
    backward_terms,
    forward_terms,
    make_mask_additive,
    masked_scores,
    save_random_state,
    zero_bias_gradient,
)
from iosim.kernel.kernel import Kernel, MatrixUnit, Spill
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Access,
    Chain,
    Domain,
    Edge,
    Fetch,
    Launch,
    Mode,
    Outer,
    Overhead,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.kernel.options import number
from iosim.kernel.schedule import Scheduler
from iosim.problem.attention import AttentionProblem

MAX_COMBINE_BLOCKS = 1 << 26
RUNNING = ("O_acc", "O")
"""An output that is added up in memory: apart, or in its own place where that is fp32."""
COPIED = ("dO", "O")
"""What PyTorch makes contiguous before the backward (aten/src/ATen/native/transformers/cuda/attention_backward.cu)."""
COPY_VALUES, CONVERT_VALUES = 4, 32
"""Values that a thread of PyTorch's copies takes, and one of FlashAttention-2's passes before and after the backward's
main launch: their grids in h200_chain_launches.csv."""
COPY_OPERATIONS = 79
"""Lane cycles a value of PyTorch's strided copy, nearly all of them for its offsets: fitted on the copies of dO and O
in the odd calls of h200_library_kernels.csv; those of its even call take 87."""
QUERY_THREADS = 256
"""Of a CTA of the launches before and after the main one in kernels/flash_bwd_sm90.cuh."""
SUM_VALUE_OPERATIONS, SUM_OPERATIONS = 34, 74
"""The same of PyTorch's reduction of dK or dV over a group's query heads, for each value that it loads and each that it
stores: fitted on three calls of h100_random.csv, where groups of 4 take 52 lane cycles a value and groups of 8 43."""
SUMS_PER_LINE = 32
"""fp32 values of dQ in a line of the L2, which an atomic add takes as one request where lanes add to neighbours."""
TILE_NUMBERS = (Overhead("tile_number", Mode.STORE, per_tile=SECTOR_BYTES, inferred_from="kernels/flash_fwd_sm90.cuh"),)
"""What the CTA of a cluster that asks for a tile tells the others, a packet."""
DOT_ROWS = 128
"""Rows a CTA of the preprocessing and conversion launches takes, where they are not those of the main launch."""
DEPTH = 32
"""Columns of Q and K that a product of CUTLASS takes at a time (ThreadK of gemm_kernel_utils.h)."""
NARROW_STORES, NARROW_GRADIENTS = 0.7, 0.88
"""Of the packets more that rows of O, or of dK and dV, take which begin inside a sector, those that do not merge on
their way: fitted on the builds of head_dim 88, 120, 184 and 248 in h100_library_builds.csv, where they are 0.36 to 0.95
and 0.71 to 0.98."""


@dataclass(frozen=True)
class SplitOptions(CacheOptions):
    """How splits of the keys are combined.

    `statistics_per_row`: fp32 values a row that a split leaves, 1 for a log-sum-exp, 2 for a max and a sum.
    `combine_rows`: rows a CTA of the combine takes; None for FlashAttention's, which go by the width and its
    `combine_threads`. Of the loads that wait for one another there, `combine_waits` are made beside those of the
    splits, and `combine_loads_at_once` splits are loaded together.
    """

    statistics_per_row: int = number(1, 1, 2)
    combine_threads: int = number(128, 1, 1024)
    combine_rows: int | None = number(None, 1)
    combine_waits: int = number(3, 0, 100)
    combine_loads_at_once: int = number(4, 1, 1024)


@dataclass(frozen=True)
class FlashOptions(SplitOptions, TermOptions):
    """`mask_block`: rows of the blocks in which the kernel knows a mask; None where it goes by indices.
    `mask_operations`: on each score of a step that is masked, for each limit that is asked: two of a window, in every
    step; one of the causal mask.

    `adds_apart`: a warp that computes nothing adds the backward's dQ, so that no other waits for it.

    Of the launches around the backward's main one: `backward_copies` of dO and O are made contiguous first,
    `dot_packet_rows` rows of D leave an SM in one packet (0: whole sectors), and of the sectors that are stored half by
    half `dot_split_percent` of the zeroed dQ and `convert_split_percent` of the converted one are two packets.

    `rounds_dq`: dQ is added up in whole tiles, rows past the end and columns up to those that the kernel is compiled
    for (FlashAttention-2's dq_accum), by passes of as many rows a CTA as the main launch takes of queries.
    `sum_packets`: dK and dV of a group's query heads are summed in a launch each, whose stores take so many times
    their bytes (PyTorch's reductions: 8 bytes leave in a packet of 32); 0 for one launch, and their bytes.

    `columns_by_keys`: products take columns of Q and K `DEPTH` at a time and columns of V and O as many as the tile has
    keys; an output of more columns than that stays in memory between key blocks, in fp32 (CUTLASS's kernel in PyTorch,
    kernel_forward.h: kKeepOutputInRF).
    `output_strided`: O is laid out with heads after the sequence, whatever Q's layout (PyTorch's memory-efficient
    kernel).

    `clusters_in_step`: the CTAs of a cluster walk the same keys, each with rows of its own.
    `backward_in_turn`: the backward's CTAs take the query heads that share their keys one after the other, so that
    nothing is summed after them, and its workspaces hold whole blocks of queries (kernels/flash_bwd_sm90.cuh).
    `whole_width`: the main launches fetch as many columns of Q, K, V and dO as they are compiled for, those outside
    the tensors, too, which cost the SM their bytes and come from no memory.
    """

    mask_block: int | None = number(None, 1)
    mask_operations: int = number(0, 0, 100)
    backward_copies: int = number(0, 0, len(COPIED))
    dot_packet_rows: int = number(0)
    dot_split_percent: int = number(0, 0, 100)
    convert_split_percent: int = number(0, 0, 100)
    whole_width: bool = False
    rounds_dq: bool = False
    sum_packets: int = number(0, 0, 32)
    columns_by_keys: bool = False
    output_strided: bool = False
    clusters_in_step: bool = False
    backward_in_turn: bool = False
    adds_apart: bool = False


@algorithm(
    "flash",
    takes=(
        "bias",
        "alibi",
        "bias_grad",
        "key_padding",
        "mask_tensor",
        "page_size",
        "block_lists",
        "seq_lens",
        "looks_ahead",
    ),
    options=FlashOptions,
    splits=True,
    appends=True,
    packs=Packs.WHERE_ASKED,
)
def plan_flash(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Chain of the forward, the backward, or both."""
    check_append(problem, kernel)
    if problem.passes == "fwd":
        return forward_terms(forward(problem, kernel), problem, kernel)
    if problem.passes == "bwd":
        return backward_terms(backward(problem, kernel), problem, kernel)
    if not kernel.writes_lse:
        kernel = kernel.with_(writes_lse=True)
    first = forward_terms(forward(problem, kernel), problem, kernel)
    return first.then(backward_terms(backward(problem, kernel), problem, kernel))


def _pack(problem: AttentionProblem, kernel: Kernel) -> int:
    """Query heads packed into one tile's rows: a group's, where the kernel packs. Row r of a tile is query token
    r // group. A forward whose backward follows keeps a head a tile."""
    packs = kernel.packs_group and problem.passes == "fwd" and problem.shares_rows
    return problem.group if packs else 1


def forward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The forward launch, or the split launch and its combine."""
    pack = _pack(problem, kernel)
    splits = kernel.splits
    options = options_of(kernel, FlashOptions)
    together = kernel.schedule.cluster if options.clusters_in_step else 1
    tile = replace(kernel.tile, block_q=together * kernel.tile.block_q)
    domain = attention_domain(problem, tile, pack=pack, splits=splits, mask_block=options.mask_block)
    if splits > domain.key_blocks_total:
        raise InputError(f"`splits` {splits} is out of range; accepted: 1 to {domain.key_blocks_total} (key blocks)")
    per_q = Per.SPLIT if splits > 1 else Per.QUERY
    per_row = {"edge": kernel.edge_k, "fetch": _asked(kernel), "times": together}
    reads = (
        load("Q", Rows.QUERY, Per.PAIR if kernel.rereads_q else per_q, edge=kernel.edge_q, visited_only=True,
             fetch=_asked(kernel)),
        *table_access(problem),
        load("K", Rows.KEY, Per.PAIR, **per_row),
        load("V", Rows.KEY, Per.PAIR, **per_row),
    )  # fmt: skip
    q, o = matrix(problem, "Q", Role.INPUT), output_tensor(problem, kernel)
    k, v = (in_cache(problem, matrix(problem, n, Role.INPUT)) for n in "KV")
    lse = row_vector(problem, "LSE", Role.OUTPUT)
    spill = kernel.spill.overheads(kernel.cta_threads) if kernel.spill else ()
    everywhere, at_edges = _mask_operations(problem, options.mask_operations)
    main = Launch(
        name="main",
        domain=domain,
        outer=Outer.QUERY if splits == 1 else Outer.SPLIT,
        accesses=reads,
        schedule=replace(kernel.schedule, cluster=1) if together > 1 else kernel.schedule,
        resources=resources(problem, kernel),
        overheads=kernel.overheads
        + spill
        + (TILE_NUMBERS if together > 1 and kernel.schedule.scheduler is Scheduler.DYNAMIC else ())
        + _columns_outside(problem, kernel)
        + _narrow_stores(problem, kernel, kernel.tile.block_q, NARROW_STORES),
        persistent_ctas=_grid(kernel, together),
        tile_ctas=together,
        flops_per_pair=2 * sum(_product_columns(problem, kernel)),
        exps_per_pair=1,
        tensor_cores=kernel.matrix_unit is not MatrixUnit.FP32,
        loop=kernel.loop,
        stages=kernel.tile.stages,
        spill_accesses=kernel.spill.accesses_per_pair if kernel.spill else 0.0,
        tile_spill_accesses=kernel.spill.accesses_per_tile if kernel.spill else 0.0,
        mask_operations=everywhere,
        edge_mask_operations=at_edges,
    )
    by_name = tensors((q, k, v, o, lse, *table_tensor(problem), *append_tensors(problem, kernel)))
    return finish(problem, kernel, main, by_name)


def _grid(kernel: Kernel, together: int) -> int | None:
    """Work tiles that a persistent grid takes at once, each by so many CTAs together."""
    if kernel.schedule.scheduler is Scheduler.STATIC or kernel.persistent_ctas is None:
        return None
    return kernel.persistent_ctas // together


def _asked(kernel: Kernel) -> Fetch:
    """How rows of Q, K and V are asked for."""
    wide = kernel.fetch is Fetch.BOXES and options_of(kernel, FlashOptions).whole_width
    return Fetch.WIDE_BOXES if wide else kernel.fetch


def _stored(kernel: Kernel) -> Fetch:
    """How rows of an output leave, where that is known."""
    return Fetch.BOXES if kernel.fetch is Fetch.BOXES else Fetch.BYTES


def _product_columns(problem: AttentionProblem, kernel: Kernel) -> tuple[int, int]:
    """Columns that the two products compute with."""
    d, dv, compiled = problem.head_dim, problem.head_dim_v, kernel.compiled_head_dim or 0
    if options_of(kernel, FlashOptions).columns_by_keys:
        return -(-d // DEPTH) * DEPTH, -(-dv // kernel.tile.block_k) * kernel.tile.block_k
    own_v = dv != d  # a build for two widths pads each to its own
    return max(d, compiled), dv if own_v else max(dv, compiled)


def _narrow_stores(
    problem: AttentionProblem, kernel: Kernel, rows: int, merged: float, *, apart: bool = False
) -> tuple[Overhead, ...]:
    """What the stores of `rows` rows a tile take beyond their bytes where every second row begins inside a sector: a
    row leaves in pieces of 64 columns, or of 32 where the build's width is no multiple of 64 (FlashAttention-2's
    kBlockKGmem).

    Args:
        merged: the part of these packets that stays where neighbouring rows leave together; all of it where rows lie
            `apart`, heads between them.
    """
    row, width = problem.head_dim_v * problem.output_type.bytes, kernel.compiled_head_dim or 0
    if kernel.fetch is not Fetch.LANES or row % SECTOR_BYTES != SECTOR_BYTES // 2 or not width:
        return ()
    piece = (64 if width % 64 == 0 else 32) * problem.output_type.bytes
    if row <= piece and not apart:
        return ()
    aligned = -(-row // SECTOR_BYTES)
    inside = row // piece * (piece // SECTOR_BYTES + 1) + -(-(row % piece + SECTOR_BYTES // 2) // SECTOR_BYTES)
    more = (aligned + inside) * SECTOR_BYTES / 2 - row
    per_tile = round(more * rows * (1.0 if apart else merged))
    source = "experiments/measurements/h100_library_builds.csv"
    return (Overhead("split_sectors", Mode.STORE, per_tile=per_tile, inferred_from=source),)


def _mask_operations(problem: AttentionProblem, each: int) -> tuple[float, float]:
    """Operations on a score for the mask, of every step and of the last steps of a tile: both limits of a window are
    asked of every score, the causal one at the diagonal. A single query, the last one, has nothing to mask."""
    if problem.mask == "window":
        return 2.0 * each, 0.0
    alone = problem.mask == "causal" and problem.longest_q == 1
    return 0.0, 0.0 if alone or problem.mask == "none" else float(each)


def _columns_outside(problem: AttentionProblem, kernel: Kernel, keys_outer: bool = False) -> tuple[Overhead, ...]:
    """What a loop fetches beside the columns of Q, K and V, and of dO (`FlashOptions.whole_width`): of a tile's own
    rows once, of those it walks at every step."""
    compiled = kernel.compiled_head_dim or 0
    beyond_qk, beyond_v = (max(0, compiled - d) for d in (problem.head_dim, problem.head_dim_v))
    if not options_of(kernel, FlashOptions).whole_width or not beyond_qk + beyond_v:
        return ()
    both = (beyond_qk + beyond_v) * problem.input_type.bytes
    own, walked = kernel.tile.block_q * beyond_qk * problem.input_type.bytes, kernel.tile.block_k * both
    if keys_outer:
        own, walked = kernel.tile_backward.block_k * both, kernel.tile_backward.block_q * both
    source = "experiments/measurements/h200_boxes.csv"
    return (Overhead("columns_outside", Mode.LOAD, per_tile=own, per_pair=walked, inferred_from=source),)


def finish(problem: AttentionProblem, kernel: Kernel, main: Launch, by_name: dict[str, Tensor]) -> Chain:
    """The chain of a forward whose main launch lacks its stores yet: what appends to the cache before it, the outputs
    or the splits' partial results, and the combine."""
    notes = (*kernel.notes, *page_notes(by_name))
    before = append_launch(problem, kernel)
    if main.domain.splits > 1:
        split_chain = _split_chain(problem, kernel, main, by_name)
        return Chain(split_chain.tensors, (*before, *split_chain.launches), notes)
    made, writes = _output(problem, kernel)
    by_name = {**by_name, **tensors(made)}
    if kernel.writes_lse:
        writes += (store("LSE", Rows.QUERY, Per.QUERY),)
    else:
        by_name = {n: t for n, t in by_name.items() if n != "LSE"}
    return Chain(by_name, (*before, replace(main, accesses=main.accesses + writes)), notes)


def output_tensor(problem: AttentionProblem, kernel: Kernel) -> Tensor:
    """O, as the library lays it out."""
    made = matrix(problem, "O", Role.OUTPUT)
    return replace(made, strided=made.strided or options_of(kernel, FlashOptions).output_strided)


def _output(problem: AttentionProblem, kernel: Kernel) -> tuple[tuple[Tensor, ...], tuple[Access, ...]]:
    """(temporaries, accesses) of O: stored at the end; or added up in memory, at every key block
    (`FlashOptions.columns_by_keys`), in O itself where it is fp32."""
    last = store("O", Rows.QUERY, Per.QUERY, fetch=_stored(kernel))
    if not options_of(kernel, FlashOptions).columns_by_keys:
        return (), (last,)
    if max(problem.head_dim, problem.head_dim_v) <= kernel.tile.block_k:
        return (), (last,)
    running = RUNNING[problem.output_type.bytes == 4]
    kept = replace(output_tensor(problem, kernel), name=running, element_bytes=4, role=Role.TEMP)
    between = (load(running, Rows.QUERY, Per.PAIR, skip=1), store(running, Rows.QUERY, Per.PAIR, skip=1))
    return () if running == "O" else (kept,), (*between, last)


def _split_chain(problem: AttentionProblem, kernel: Kernel, main: Launch, by_name: dict[str, Tensor]) -> Chain:
    """Split-KV: partial O and statistics of every split go through memory, then one launch combines them.

    The partial LSE is `SplitOptions.statistics_per_row` fp32 values a row.
    """
    splits, d = main.domain.splits, main.domain
    rows = d.batch * d.heads * d.rows
    options = options_of(kernel, SplitOptions)
    statistics = options.statistics_per_row
    shape = problem.batch, problem.heads, problem.seq_q
    partial = Tensor("O_partial", *shape, problem.head_dim_v, 4, Role.TEMP, copies=splits)
    vectors = tuple(
        Tensor(f"{'LSE' if statistics == 1 else ('max', 'sum')[n]}_partial", *shape, 1, 4, Role.TEMP, copies=splits)
        for n in range(statistics)
    )
    writes = (store("O_partial", Rows.QUERY, Per.SPLIT), *(store(v.name, Rows.QUERY, Per.SPLIT) for v in vectors))
    threads = options.combine_threads
    combine_rows = options.combine_rows or _combine_rows(problem.head_dim_v, threads)
    if rows > MAX_COMBINE_BLOCKS * combine_rows:
        raise InputError(f"`splits` {splits}: their combination takes {rows // combine_rows:,} CTAs; accepted: up to "
                         f"{MAX_COMBINE_BLOCKS:,} (fewer sequences, heads or tokens, or no splits)")  # fmt: skip
    final = ("O", "LSE") if kernel.writes_lse else ("O",)
    combine = Launch(
        name="combine",
        domain=Domain(1, 1, rows, splits, combine_rows, splits, splits=splits),
        outer=Outer.QUERY,
        accesses=(
            load("O_partial", Rows.QUERY, Per.SPLIT),
            *(load(v.name, Rows.QUERY, Per.SPLIT) for v in vectors),
            *(store(name, Rows.QUERY, Per.QUERY) for name in final),
        ),
        resources=Resources(threads),
        tensor_cores=False,
        serial_loads=options.combine_waits + -(-splits // options.combine_loads_at_once),
    )
    if not kernel.writes_lse:
        by_name = {n: t for n, t in by_name.items() if n != "LSE"}
    by_name = {**by_name, **tensors((partial, *vectors))}
    return Chain(by_name, (replace(main, accesses=main.accesses + writes), combine), kernel.notes)


def _combine_rows(head_dim_v: int, threads: int) -> int:
    """Rows a CTA of FlashAttention's combine kernel takes: 4, 8, 16 for head_dim a multiple of 128, of 64, other, with
    FlashAttention-2's 128 threads; twice that with FlashAttention-3's 256."""
    rows = 4 if head_dim_v % 128 == 0 else 8 if head_dim_v % 64 == 0 else 16
    return rows * threads // 128


def _split_sectors(tensor: Tensor, percent: int) -> tuple[Overhead, ...]:
    """What a launch writes beyond `tensor`, whose sectors are stored half by half: two packets where the halves leave
    the SM apart, which `percent` of them do."""
    per_tile = DOT_ROWS * tensor.row_bytes * percent // 100
    return (Overhead("split_sectors", Mode.STORE, per_tile=per_tile),) if percent else ()


def backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """rowsum(dO o O) and a zeroed dQ; the main launch over key blocks; the conversion of dQ.

    With grouped heads dK and dV are written per query head and summed over the group by one more launch.
    """
    options = options_of(kernel, FlashOptions)
    if options.backward_in_turn:
        return _backward_in_turn(problem, kernel)
    settings = kernel.of_pass(backward=True)
    tile = kernel.tile_backward
    inputs = tuple(matrix(problem, n, Role.INPUT) for n in ("Q", "K", "V", "O", "dO"))
    grouped = problem.group > 1
    dq_acc = matrix(problem, "dQ_acc", Role.TEMP, element_bytes=4)
    whole = Edge.EXACT
    pass_rows, plain = DOT_ROWS, Fetch.SECTORS if kernel.fetch is Fetch.LANES else Fetch.BYTES
    if options.rounds_dq:
        whole, pass_rows = Edge.WHOLE, tile.block_q
        padded = -(-problem.seq_q // tile.block_q) * tile.block_q
        dq_acc = replace(dq_acc, rows=padded, cols=max(problem.head_dim, kernel.compiled_head_dim or 0))
    all_tensors = [*inputs, row_vector(problem, "LSE", Role.INPUT), row_vector(problem, "D", Role.TEMP), dq_acc]
    all_tensors += [matrix(problem, n, Role.OUTPUT) for n in ("dQ", "dK", "dV")]
    all_tensors += head_gradients(problem)
    dk, dv = ("dK_heads", "dV_heads") if grouped else ("dK", "dV")

    copied = COPIED[: options.backward_copies]
    all_tensors += [replace(matrix(problem, n, Role.TEMP), name=f"{n}_copy") for n in copied]
    copies = tuple(
        Launch(f"bwd.copy{i}", row_domain(problem, DOT_ROWS), Outer.FLAT,
               (load(n, Rows.QUERY, Per.QUERY, fetch=plain), store(f"{n}_copy", Rows.QUERY, Per.QUERY)),
               tensor_cores=False,
               operations_per_value=COPY_OPERATIONS,
               values_per_thread=COPY_VALUES)
        for i, n in enumerate(copied)
    )  # fmt: skip
    o, do = (f"{n}_copy" if n in copied else n for n in ("O", "dO"))
    dot = Launch(
        "bwd.dot",
        row_domain(problem, pass_rows),
        Outer.FLAT,
        (
            load(o, Rows.QUERY, Per.QUERY, fetch=plain),
            load(do, Rows.QUERY, Per.QUERY, fetch=plain),
            store("D", Rows.QUERY, Per.QUERY, packet_rows=options.dot_packet_rows, edge=whole),
            store("dQ_acc", Rows.QUERY, Per.QUERY, edge=whole),
        ),
        resources=Resources(256),
        overheads=_split_sectors(dq_acc, options.dot_split_percent),
        tensor_cores=False,
        values_per_thread=CONVERT_VALUES,
    )
    domain = attention_domain(problem, tile)
    rows = Edge.WHOLE if kernel.edge_q is Edge.WHOLE else Edge.EXACT
    spill = settings.spill or Spill()
    main = Launch(
        "bwd.main",
        domain,
        Outer.KEY,
        (
            load("K", Rows.KEY, Per.KEY, visited_only=True, edge=kernel.edge_k, fetch=_asked(kernel)),
            load("V", Rows.KEY, Per.KEY, visited_only=True, edge=kernel.edge_k, fetch=_asked(kernel)),
            load("Q", Rows.QUERY, Per.PAIR, edge=rows, fetch=_asked(kernel)),
            load(do, Rows.QUERY, Per.PAIR, edge=rows, fetch=_asked(kernel)),
            load("LSE", Rows.QUERY, Per.PAIR),
            load("D", Rows.QUERY, Per.PAIR, edge=whole),
            Access("dQ_acc", Mode.REDUCE, Rows.QUERY, Per.PAIR, edge=whole),
            store(dk, Rows.KEY, Per.KEY, fetch=_stored(kernel)),
            store(dv, Rows.KEY, Per.KEY, fetch=_stored(kernel)),
        ),
        schedule=settings.schedule,
        resources=Resources(32 * tile.warps, settings.registers),
        overheads=settings.overheads
        + spill.overheads(32 * tile.warps)
        + _columns_outside(problem, kernel, keys_outer=True)
        + _narrow_stores(problem, kernel, 2 * tile.block_k, NARROW_GRADIENTS, apart=grouped),
        spill_accesses=spill.accesses_per_pair,
        tile_spill_accesses=spill.accesses_per_tile,
        persistent_ctas=None if settings.schedule.scheduler is Scheduler.STATIC else kernel.persistent_ctas,
        flops_per_pair=2 * (3 * problem.head_dim + 2 * problem.head_dim_v),
        exps_per_pair=1,
        stages=tile.stages,
        add_requests_per_row=0 if options.adds_apart else -(-problem.head_dim // SUMS_PER_LINE),
    )
    convert = Launch(
        "bwd.convert",
        row_domain(problem, pass_rows),
        Outer.FLAT,
        (load("dQ_acc", Rows.QUERY, Per.QUERY, edge=whole), store("dQ", Rows.QUERY, Per.QUERY)),
        overheads=_split_sectors(matrix(problem, "dQ", Role.OUTPUT), options.convert_split_percent),
        tensor_cores=False,
        values_per_thread=CONVERT_VALUES,
    )
    launches = (*copies, dot, main, convert)
    if grouped:
        launches += sum_groups(problem, options.sum_packets, _sum_operations(problem, options))
    return Chain(tensors(all_tensors), launches, kernel.notes)


def _sum_operations(problem: AttentionProblem, options: FlashOptions) -> int:
    """Instructions a value of the launches that sum a group's gradients, where they are PyTorch's."""
    return round(SUM_VALUE_OPERATIONS + SUM_OPERATIONS / problem.group) if options.sum_packets > 1 else 0


def _backward_in_turn(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The backward of kernels/flash_bwd_sm90.cuh: LSE and D of whole blocks of queries, and a zeroed dQ; the main
    launch over the key blocks of key/value heads; dQ rounded.

    Raises:
        InputError: grouped heads whose last query block is ragged.
    """
    settings, tile = kernel.of_pass(backward=True), kernel.tile_backward
    rows, whole = row_domain(problem, tile.block_q), Edge.WHOLE
    statistics = ("LSE_copy", "D")
    all_tensors = [matrix(problem, n, Role.INPUT) for n in ("Q", "K", "V", "O", "dO")]
    all_tensors += [row_vector(problem, "LSE", Role.INPUT), matrix(problem, "dQ_acc", Role.TEMP, element_bytes=4)]
    all_tensors += [row_vector(problem, n, Role.TEMP) for n in statistics]
    all_tensors += [matrix(problem, n, Role.OUTPUT) for n in ("dQ", "dK", "dV")]
    dot = Launch(
        "bwd.dot",
        rows,
        Outer.FLAT,
        (
            *(load(n, Rows.QUERY, Per.QUERY) for n in ("O", "dO", "LSE")),
            *(store(n, Rows.QUERY, Per.QUERY, edge=whole) for n in (*statistics, "dQ_acc")),
        ),
        resources=Resources(QUERY_THREADS),
        tensor_cores=False,
        values_per_thread=CONVERT_VALUES,
    )
    main = Launch(
        "bwd.main",
        heads_in_turn(problem, tile),
        Outer.KEY,
        (
            *(load(n, Rows.KEY, Per.KEY, visited_only=True, edge=kernel.edge_k) for n in "KV"),
            *(load(n, Rows.QUERY, Per.PAIR, edge=kernel.edge_q) for n in ("Q", "dO")),
            *(load(n, Rows.QUERY, Per.PAIR, edge=whole) for n in statistics),
            Access("dQ_acc", Mode.REDUCE, Rows.QUERY, Per.PAIR, edge=whole),
            *(store(n, Rows.KEY, Per.KEY) for n in ("dK", "dV")),
        ),
        schedule=settings.schedule,
        resources=Resources(32 * tile.warps, settings.registers),
        overheads=kernel.backward.overheads,
        flops_per_pair=2 * (3 * problem.head_dim + 2 * problem.head_dim_v),
        exps_per_pair=1,
        stages=tile.stages,
    )
    convert = Launch(
        "bwd.convert",
        rows,
        Outer.FLAT,
        (load("dQ_acc", Rows.QUERY, Per.QUERY, edge=whole), store("dQ", Rows.QUERY, Per.QUERY)),
        resources=Resources(QUERY_THREADS),
        tensor_cores=False,
        values_per_thread=CONVERT_VALUES,
    )
    return Chain(tensors(all_tensors), (dot, main, convert), kernel.notes)


# What the launches compute.


def _statistics(at: Place) -> int:
    return options_of(at.kernel, SplitOptions).statistics_per_row


def _wants_lse(at: Place) -> bool:
    return at.kernel.writes_lse or at.problem.backward


@body("flash", "main")
class Forward(Body):
    """Online softmax over the visited keys; O and LSE, or a split's share of them, at the end."""

    def launch(self, at: Place) -> None:
        save_random_state(at)

    def begin(self, at: Place) -> None:
        self.softmax = OnlineSoftmax(at.q.size, at.problem.head_dim_v)

    def pair(self, at: Place) -> None:
        running = next((a.tensor for a in at.launch.accesses if a.tensor in RUNNING and a.per is Per.PAIR), None)
        if running:
            self.softmax.sums = at.resume(running, 0.0, at.problem.head_dim_v)
        self.softmax.add(masked_scores(at), at["V"], at.dropout_factor)
        if running:
            at.put(running, self.softmax.sums)

    def end(self, at: Place) -> None:
        result = self.softmax
        if at.launch.domain.splits == 1:
            at.put("O", result.output)
            if _wants_lse(at):
                at.put("LSE", result.lse)
        elif _statistics(at) == 1:
            at.put("O_partial", result.output)
            at.put("LSE_partial", result.lse)
        else:
            at.put("O_partial", result.sums)
            at.put("max_partial", result.maximum)
            at.put("sum_partial", result.total)


@body("flash", "combine")
class Combine(Body):
    """O = sum of exp(LSE_s - LSE) O_s; with a max and a sum a split, their rescaled sums."""

    def begin(self, at: Place) -> None:
        self.outputs: list[Array] = []
        self.maxima: list[Array] = []
        self.totals: list[Array] = []

    def split(self, at: Place) -> None:
        self.outputs.append(at["O_partial"])
        if _statistics(at) == 1:
            self.maxima.append(at["LSE_partial"])
            self.totals.append(np.where(np.isneginf(at["LSE_partial"]), 0.0, 1.0))
        else:
            self.maxima.append(at["max_partial"])
            self.totals.append(at["sum_partial"])

    def end(self, at: Place) -> None:
        maxima = np.stack(self.maxima)
        top = maxima.max(axis=0)
        weights = exp_less(maxima, top)
        total = (weights * np.stack(self.totals)).sum(axis=0)
        at.put("O", divided((weights * np.stack(self.outputs)).sum(axis=0), total))
        if _wants_lse(at):
            at.put("LSE", log_sum_exp(top, total))


@body("flash", "bwd.copy")
def copy_rows(at: Place) -> None:
    """dO or O into another layout; its values stay."""
    source, target = (a.tensor for a in at.launch.accesses)
    at.put(target, at[source])


def _read(at: Place, name: str) -> Array:
    """A tensor, or the copy that the launch reads in its place."""
    copy_name = f"{name}_copy"
    return at[copy_name if any(a.tensor == copy_name for a in at.launch.accesses) else name]


def dq_columns(at: Place) -> int:
    """Columns of dQ as it is added up (`FlashOptions.rounds_dq`)."""
    wide = options_of(at.kernel, FlashOptions).rounds_dq
    return max(at.problem.head_dim, (at.kernel.compiled_head_dim or 0) if wide else 0)


@body("flash", "bwd.dot")
def row_dot(at: Place) -> None:
    """D = rowsum(dO o O), and a zeroed dQ."""
    if at.writes("LSE_copy"):
        at.put("LSE_copy", at["LSE"])
    at.put("D", (_read(at, "O") * _read(at, "dO")).sum(axis=1, keepdims=True))
    if at.writes("dQ_acc"):
        at.put("dQ_acc", np.zeros((at.q.size, dq_columns(at))))


@body("flash", "bwd.main")
class Backward(Body):
    """Algorithm 2: P again from LSE, dK and dV on chip, dQ added in memory."""

    def begin(self, at: Place) -> None:
        self.dk = np.zeros((at.keys.size, at.problem.head_dim))
        self.dv = np.zeros((at.keys.size, at.problem.head_dim_v))

    def pair(self, at: Place) -> None:
        factor = at.dropout_factor_again
        weights = exp_less(masked_scores(at), _read(at, "LSE"))
        self.dv += (weights * factor).T @ _read(at, "dO")
        ds = weights * ((_read(at, "dO") @ at["V"].T) * factor - at["D"])
        if at.problem.bias_grad:
            at.put("dBias_heads" if at.writes("dBias_heads") else "dBias", ds)
        ds = ds * at.scale
        if at.writes("dQ_acc"):
            at.put("dQ_acc", np.pad(ds @ at["K"], ((0, 0), (0, dq_columns(at) - at.problem.head_dim))))
        self.dk += ds.T @ at["Q"]

    def end(self, at: Place) -> None:
        at.put(head_gradient(at, "dK"), self.dk)
        at.put(head_gradient(at, "dV"), self.dv)


@body("flash", "bwd.convert")
def convert_dq(at: Place) -> None:
    """dQ in the output's type."""
    at.put("dQ", at["dQ_acc"][:, : at.problem.head_dim])


body("flash", "bwd.sum_groups", "bwd.sum_dK", "bwd.sum_dV")(add_group_gradients)
body("flash", "convert_mask")(make_mask_additive)
body("flash", "bwd.fill_bias")(zero_bias_gradient)
body("flash", "bwd.sum_bias")(add_bias_gradients)
body("flash", "append")(append)

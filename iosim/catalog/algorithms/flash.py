"""`flash`: queries outside, keys inside, O written once (FlashAttention-2, arXiv 2307.08691, Algorithms 1 and 2).

Forward reads Q once a query block (or again at every key block where the kernel does so), K and V once a visited
(query block, key block) pair, and writes O and one fp32 log-sum-exp a row. With `splits` > 1 the keys of a head are
divided among CTAs, partial O and LSE in fp32 pass through memory, and a second launch combines them.
Backward turns the loops: keys outside, dQ by fp32 atomic adds, between a launch for rowsum(dO o O) and one that
converts dQ.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import StrEnum

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms import cache
from iosim.catalog.algorithms.common import (
    attention_domain,
    grid,
    head_gradients,
    heads_in_turn,
    load,
    loop_work,
    main_launch,
    matrices,
    matrix,
    row_domain,
    row_pass,
    row_vector,
    store,
    sum_groups,
)
from iosim.catalog.algorithms.registry import Packs, algorithm, options_of
from iosim.catalog.algorithms.terms import SCORE_TERMS, TermOptions, backward_terms, forward_terms
from iosim.kernel.kernel import Kernel, RowPass, Tile
from iosim.kernel.launch import (
    COLUMNS_OUTSIDE,
    SECTOR_BYTES,
    Access,
    Chain,
    Domain,
    Edge,
    Fetch,
    Launch,
    LaunchRole,
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
from iosim.kernel.tensor_kinds import (
    KEY_SUMS,
    LSE_COPY,
    OUTPUT_PARTIAL,
    OUTPUT_SUMS,
    QUERY_SUMS,
    TensorKind,
)
from iosim.kernel.work import Fragments, Layout, Loop, MaskOperations, Pipelines, Work
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntArray, IntervalMask

MAX_COMBINE_BLOCKS = 1 << 26
RUNNING = (OUTPUT_SUMS, "O")
"""An output that is added up in memory: apart, or in its own place where that is fp32."""
SUMS_PER_LINE = 32
"""fp32 values of dQ in a line of the L2, which an atomic add takes as one request where lanes add to neighbours."""
TILE_NUMBERS = (
    Overhead(
        "tile_number", Mode.STORE, per_tile=SECTOR_BYTES, inferred_from="kernels/flash_fwd_sm90.cuh"
    ),
)
"""What the CTA of a cluster that asks for a tile tells the others, a packet."""
LOADS_BETWEEN_LOOPS = 3
"""Loads that wait for one another where one loop over a list follows another: of the list's length, of its first
block's number and of that block's keys."""
COMBINES = {Layout.CHUNKS: Fragments(Layout.SPLIT_WEIGHTS)}
"""How the combine stages what it reads, by how the forward does."""
LISTS = "block_count", "block_list"
STATISTICS_ROWS = 128
"""Rows that a CTA takes of what splits leave beside their outputs, where a launch of its own reads it."""
DEPTH = 32
NARROW_STORES = 0.7
"""Fraction of the further packets, of rows of O that begin inside a sector, which do not merge on their way: fitted on
the builds of head_dim 88, 120, 184 and 248 in h100_library_builds.csv, where they are 0.36 to 0.95. Of dK and dV, whose
rows are stored late, none merge."""


@dataclass(frozen=True)
class SplitOptions(cache.CacheOptions):
    """How splits of the keys are combined. `statistics_per_row`: fp32 values a row that a split leaves, 1 for a
    log-sum-exp, 2 for a max and a sum. `combine_rows`: rows a CTA of the combine takes; None for FlashAttention's,
    which go by the width and its `combine_threads`. Of the loads that wait for one another there, `combine_waits` are
    made beside those of the splits, and `combine_loads_at_once` splits are loaded together."""

    statistics_per_row: int = number(1, 1, 2)
    combine_threads: int = number(128, 1, 1024)
    combine_rows: int | None = number(None, 1)
    combine_waits: int = number(3, 0, 100)
    combine_loads_at_once: int = number(4, 1, 1024)
    partial_bytes: int = number(4, 2, 4)
    """Bytes of a value of a split's partial O: fp32, or 16 bits."""
    combines_one: bool = False
    """With one split, too, the partial result goes through memory."""
    empty_splits: bool = False
    """There may be more splits than key blocks: the others read their queries, too, and write zeros."""
    combine_launches: int = number(1, 1, 3)
    """Launches that combine splits which leave a max and a sum: one; or the statistics of rows before it; or the
    weights of splits, their sum over each row, and then the output."""


class Workspace(StrEnum):
    """How many rows a backward's launches hand each other of D, of dQ's sums and of copied statistics."""

    ROWS = "rows"
    """The problem's."""
    BLOCKS = "blocks"
    """Whole blocks of queries are moved."""
    PADDED = "padded"
    """And held, with as many columns of dQ as the kernel is compiled for (FlashAttention-2's dq_accum)."""


class Adds(StrEnum):
    """How a backward's main launch adds to dQ."""

    LINES = "lines"
    """A request a line of the L2, which the warps that compute wait for."""
    APART = "apart"
    """By a warp that computes nothing, so that no other waits."""
    PACKETS = "packets"
    """Four lanes of a warp add 32 bytes to a row, a packet."""
    OWNERS = "owners"
    """Not at all: a launch whose CTAs own queries computes dQ from scores of its own."""
    SAME_GRID = "same-grid"
    """So do CTAs of the main launch's own grid, behind those that own keys of the same key/value head."""


@dataclass(frozen=True)
class FlashOptions(SplitOptions, TermOptions):
    mask_block: int | None = number(None, 1)
    """Rows of the blocks in which the kernel knows a mask; None where it goes by indices."""
    mask_operations: int = number(0, 0, 100)
    """On each score of a step that is masked, for each limit that is asked: two of a window, in every step; one of the
    causal mask."""
    bound_operations: int = number(0, 0, 100)
    """Lane cycles on each score of every step where keys end elsewhere than at the diagonal: past the last one, or at a
    window. A comparison of integers takes two."""
    diagonal_operations: int = number(0, 0, 100)
    """Lane cycles on each score of the steps at the causal diagonal."""
    walks_all_keys: bool = False
    """A forward's loop walks all keys whatever the mask, and masks scores: no key block is left out."""
    asks_at_once: bool = False
    """A tile asks for its queries and its first keys at once."""
    columns_by_keys: bool = False
    """Products take columns of Q and K `DEPTH` at a time and columns of V and O as many as the tile has keys; an output
    of more columns than that stays in memory between key blocks, in fp32 (CUTLASS's kernel in PyTorch,
    kernel_forward.h: kKeepOutputInRF)."""
    output_strided: bool = False
    """O is laid out with heads after the sequence, whatever Q's layout (PyTorch's memory-efficient kernel)."""
    clusters_in_step: bool = False
    """The CTAs of a cluster walk the same keys, each with rows of its own."""
    shares_fetches: bool = False
    """Each of them fetches its part of the keys for all, where products of the cluster read every part (tcgen05 with
    cta_group 2); else each has all keys."""
    tile_waits: int = number(0, 0, 100)
    """Loads that a tile of the forward waits for, one behind the other, before its steps: where sequences differ, its
    number, its sequence's place and lengths, and its pages."""
    first_waits: int = number(0, 0, 100)
    """Further ones, which a CTA's later tiles do not wait for: they are made while it ends the tile before."""
    merged_bytes: int = number(0, 0)
    """Bytes between shared memory and registers for which warps that divide a tile's keys merge their parts of it."""
    fills_lists: bool = False
    """A forward without a mask fills a list of one block of all keys first, and its length, a launch each."""
    heads_in_turn: bool = False
    """The backward's CTAs take the query heads that share their keys one after the other, so that nothing is summed
    after them."""
    workspace: Workspace = Workspace.ROWS
    adds: Adds = Adds.LINES


TAKES = (*SCORE_TERMS, "cache_dtype", "page_size", "seq_lens", "shared_prefix", "sinks")


@algorithm(
    "flash", takes=TAKES, options=FlashOptions, splits=True, appends=True, packs=Packs.WHERE_ASKED
)
def plan_flash(problem: AttentionProblem, kernel: Kernel) -> Chain:
    cache.check_append(problem, kernel)
    if problem.forward:
        return forward_terms(forward(problem, kernel), problem, kernel)
    return backward_terms(backward(problem, kernel), problem, kernel)


def forward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The forward launch, or the split launch and its combine. Where query heads of a group are packed, row r of a tile
    is query token r // group."""
    # The forward is one launch over (query block, key block) pairs. In turn: its tile (packed heads,
    # clusters that walk the same keys), what it reads, what it moves beside that, its work.
    pack = problem.group if kernel.packs_group and problem.shares_rows else 1
    options = options_of(kernel, FlashOptions)
    # CTAs in step are described as one work tile with as many times its rows.
    together = kernel.schedule.cluster if options.clusters_in_step else 1
    tile = replace(kernel.tile, block_q=together * kernel.tile.block_q)
    domain, outer, per_q = split_domain(problem, kernel, tile, pack, options.mask_block)
    reads = _forward_reads(kernel, options, per_q, problem, together)
    q, o = matrix(problem, "Q", Role.INPUT), output_tensor(problem, kernel)
    k, v = (cache.in_cache(problem, matrix(problem, n, Role.INPUT)) for n in "KV")
    lse = matrices(problem, "LSE" if kernel.writes_lse else "", Role.OUTPUT)
    columns, value_columns, value_tiles = _forward_products(kernel, options, problem)
    # Rows lie apart where packed sequences of several heads alternate: neighbours do not merge.
    ctas, apart = grid(kernel, together), domain.sequences > 1 < problem.heads
    queued = together > 1 and kernel.schedule.scheduler is Scheduler.DYNAMIC
    beside = (TILE_NUMBERS if queued else ()) + _columns_outside(problem, kernel)
    beside += _narrow_stores(problem, kernel, lambda: domain.query_rows, NARROW_STORES, apart=apart)
    masked = _by_lists(loop_work(problem, kernel), problem, kernel, options)
    work = replace(
        masked,
        flops_per_pair=2 * (columns + value_columns),
        pipelines=Pipelines(1 + value_tiles, columns, over_keys=value_tiles)
        if kernel.rereads_q
        else None,
        serial_loads=options.tile_waits + masked.serial_loads,
        first_loads=options.first_waits,
        tile_shared_bytes=options.merged_bytes,
        asks_at_once=options.asks_at_once,
    )
    schedule = replace(kernel.schedule, cluster=1) if together > 1 else kernel.schedule
    placed = {"schedule": schedule, "persistent_ctas": ctas, "tile_ctas": together}
    main = main_launch(problem, kernel, domain, outer, reads, beside, work=work, **placed)
    fills, lists = _list_fills(options, problem)
    by_name = tensors(
        (
            q,
            k,
            v,
            o,
            *lse,
            *cache.table_tensor(problem),
            *cache.append_tensors(problem, kernel),
            *lists,
        )
    )
    chain = finish(problem, kernel, main, by_name)
    return replace(chain, launches=(*fills, *chain.launches))


def _list_fills(
    options: FlashOptions, problem: AttentionProblem
) -> tuple[tuple[Launch, ...], tuple[Tensor, ...]]:
    """Without a mask, a kernel that goes by lists of blocks fills a list of one block of all keys: the lists and the launches
    that fill them."""
    # Without a mask, a kernel that goes by lists of blocks fills a list of one block of all keys.
    lists = tuple(
        Tensor(n, 1, 1, 1, 1, 4, Role.TEMP)
        for n in LISTS
        if options.fills_lists and problem.mask == "none"
    )
    fills = tuple(
        row_pass(f"fill{n}", Domain(1, 1, 1, 1, 1, 1), (), (t.name,)) for n, t in enumerate(lists)
    )
    return fills, lists


def _forward_products(
    kernel: Kernel, options: FlashOptions, problem: AttentionProblem
) -> tuple[int, int, int]:
    """Columns of the product with K, of that with V, and products with V: an output wider than a tile has keys is computed
    column block by column block."""
    columns, value_columns = _product_columns(problem, kernel)
    # An output wider than a tile has keys is computed column block by column block: a product each.
    value_tiles = -(-value_columns // kernel.tile.block_k) if options.columns_by_keys else 1
    return columns, value_columns, value_tiles


def _forward_reads(
    kernel: Kernel, options: FlashOptions, per_q: Per, problem: AttentionProblem, together: int
) -> tuple[Access, ...]:
    """What the forward's launch reads. Q is read once a query block, or at each visit where its products have a pipeline of
    their own; each CTA of a cluster fetches all keys, unless they share what they fetch."""
    # Q is read once a query block, or at each visit where its products have a pipeline of their own.
    # Each CTA of a cluster fetches all keys, unless they share what they fetch.
    per_q, times = (
        Per.PAIR if kernel.rereads_q else per_q,
        1 if options.shares_fetches else together,
    )
    return (
        load(
            "Q",
            Rows.QUERY,
            per_q,
            edge=kernel.edge_q,
            visited_only=not options.empty_splits,
            fetch=kernel.fetch,
        ),
        *cache.table_access(problem),
        *(
            load(n, Rows.KEY, Per.PAIR, edge=kernel.edge_k, fetch=kernel.fetch, times=times)
            for n in "KV"
        ),
    )


def split_domain(
    problem: AttentionProblem, kernel: Kernel, tile: Tile, pack: int, mask_block: int | None = None
) -> tuple[Domain, Outer, Per]:
    """(domain, work tile, how often a work tile's own rows are read) of a forward that may split its keys. Raises
    InputError: more splits than key blocks."""
    domain = attention_domain(problem, tile, pack=pack, splits=kernel.splits, mask_block=mask_block)
    # All key blocks are visited: the mask only takes scores away.
    if isinstance(kernel.options, FlashOptions) and kernel.options.walks_all_keys:
        domain = replace(domain, mask=IntervalMask())
    key_blocks = domain.key_blocks_total
    if kernel.splits > key_blocks and not options_of(kernel, SplitOptions).empty_splits:
        raise InputError(
            f"`splits` {kernel.splits} is out of range; accepted: 1 to {key_blocks} (key blocks)"
        )
    return (
        (domain, Outer.SPLIT, Per.SPLIT) if kernel.splits > 1 else (domain, Outer.QUERY, Per.QUERY)
    )


def _stored(kernel: Kernel) -> Fetch:
    """How results leave: row by row from boxes, and from fragments that are not gathered in whole tiles first."""
    by_row = kernel.fetch in (Fetch.BOXES, Fetch.WIDE_BOXES) or (
        kernel.fetch is Fetch.LANES and not _by_chunk(kernel)
    )
    return Fetch.BOXES if by_row else Fetch.BYTES


def _by_chunk(kernel: Kernel) -> bool:
    """True where the kernel's layout moves rows piece by piece: a property of its description."""
    return kernel.fragments is not None and kernel.fragments.layout is Layout.CHUNKS


def _product_columns(problem: AttentionProblem, kernel: Kernel) -> tuple[int, int]:
    d, dv, compiled = problem.head_dim, problem.head_dim_v, kernel.compiled_head_dim or 0
    if options_of(kernel, FlashOptions).columns_by_keys:
        return -(-d // DEPTH) * DEPTH, -(-dv // kernel.tile.block_k) * kernel.tile.block_k
    # Columns that products compute with: the build's, which may be wider than the heads.
    own_v = dv != d  # a build for two widths pads each to its own
    return max(d, compiled), dv if own_v else max(dv, compiled)


def _narrow_stores(
    problem: AttentionProblem,
    kernel: Kernel,
    rows_of: Callable[[], IntArray],
    merged: float,
    *,
    apart: bool,
    tensors: int = 1,
) -> tuple[Overhead, ...]:
    """Bytes that stores of a tile's rows of `tensors` take beyond their own, where the layout moves rows piece by piece
    and every second row begins inside a sector. A piece has 64 columns, or 32 where the build's width is no multiple
    of 64 (flash_fwd_kernel.h: kBlockKGmem).

    Args:
        rows_of: gives those of every tile; tiles without any, past the end of a packed sequence, store nothing.
        merged: the part of these packets that stays where neighbouring rows leave together; all of it where rows lie
            `apart`, with heads or, in packed sequences, other heads' rows between them.
    """
    row, width = problem.head_dim_v * problem.output_type.bytes, kernel.compiled_head_dim or 0
    if (
        not _by_chunk(kernel)
        or kernel.fetch is not Fetch.LANES
        or row % SECTOR_BYTES != SECTOR_BYTES // 2
        or not width
    ):
        return ()
    # A row that begins at a sector takes `aligned` packets, one that begins inside takes one more for
    # each piece. Every second row does: the mean over both, less the row's own bytes.
    piece = (64 if width % 64 == 0 else 32) * problem.output_type.bytes
    if row <= piece and not apart:
        return ()
    aligned = -(-row // SECTOR_BYTES)
    inside = row // piece * (piece // SECTOR_BYTES + 1) + -(
        -(row % piece + SECTOR_BYTES // 2) // SECTOR_BYTES
    )
    more = (aligned + inside) * SECTOR_BYTES / 2 - row
    rows = rows_of()
    per_tile = round(more * tensors * float(rows[rows > 0].mean()) * (1.0 if apart else merged))
    source = "experiments/measurements/h100_library_builds.csv"
    return (Overhead("split_sectors", Mode.STORE, per_tile=per_tile, inferred_from=source),)


def _by_lists(work: Work, problem: AttentionProblem, kernel: Kernel, options: FlashOptions) -> Work:
    """The work of a forward with what its mask takes. A kernel that goes by lists of blocks has a loop for the blocks
    at the ends, which asks the mask of each score, and then one for the others. Rows of a last block that is not whole
    are at an end everywhere (flex_attention.py.jinja; create_block_mask pads with pairs that the mask takes)."""
    block = options.mask_block
    if block is None:
        return replace(work, mask=_mask_operations(problem, kernel, options))
    # Masked blocks first, then whole ones: the mask is asked in the steps of the blocks at the ends (one
    # limit a causal mask has, two a window), and in all steps of a last block that is not whole.
    ragged = bool(problem.seq_q % block or problem.seq_k % block)
    limits = {"none": 0, "causal": 1}.get(problem.mask, 2)
    mask = MaskOperations(
        edge_steps=limits * options.mask_operations,
        edge_keys=limits * block,
        edge_rows=problem.seq_q % block if limits else 0,
    )
    loop = replace(
        work.loop,
        copy_instructions=work.loop.copy_instructions if ragged else 0,
        list_cycles=work.loop.list_cycles if limits else 0,
    )
    has_both_loops = 0 < limits * block < problem.seq_k
    return replace(
        work, mask=mask, loop=loop, serial_loads=LOADS_BETWEEN_LOOPS if has_both_loops else 0
    )


def _mask_operations(
    problem: AttentionProblem, kernel: Kernel, options: FlashOptions
) -> MaskOperations:
    """Both limits of a window are asked of every score, the causal one at the diagonal. A single query, the last one,
    has nothing to mask."""
    mask = "none" if problem.mask == "causal" and problem.longest_q == 1 else problem.mask
    every_step = edge_steps = 0
    # Two ways of counting, by the kernel: instructions for each limit that is asked, or lane cycles of a
    # comparison at the diagonal and past the last key.
    if options.mask_operations:
        if mask == "window":
            every_step = 2 * options.mask_operations
        elif mask != "none":
            edge_steps = options.mask_operations
    else:
        # Scores past the last key are masked in every step of a kernel that has one loop for all blocks.
        if mask == "window" or (problem.mask == "none" and problem.seq_k % kernel.tile.block_k > 0):
            every_step = options.bound_operations
        if mask == "causal":
            edge_steps = options.diagonal_operations
    return MaskOperations(every_step=float(every_step), edge_steps=float(edge_steps))


def _columns_outside(
    problem: AttentionProblem, kernel: Kernel, keys_outer: bool = False
) -> tuple[Overhead, ...]:
    """What a loop fetches beside the columns of Q, K and V, and of dO, where boxes are as wide as the build: of a
    tile's own rows once, of those it walks at every step. It costs the SM its bytes and comes from no memory."""
    compiled = kernel.compiled_head_dim or 0
    beyond_qk, beyond_v = (max(0, compiled - d) for d in (problem.head_dim, problem.head_dim_v))
    if kernel.fetch is not Fetch.WIDE_BOXES or not beyond_qk + beyond_v:
        return ()
    both = (beyond_qk + beyond_v) * problem.input_type.bytes
    once, walked = (
        kernel.tile.block_q * beyond_qk * problem.input_type.bytes,
        kernel.tile.block_k * both,
    )
    if keys_outer:
        once, walked = kernel.tile_backward.block_k * both, kernel.tile_backward.block_q * both
    source = "experiments/measurements/h200_boxes.csv"
    return (
        Overhead(COLUMNS_OUTSIDE, Mode.LOAD, per_tile=once, per_pair=walked, inferred_from=source),
    )


def finish(
    problem: AttentionProblem, kernel: Kernel, main: Launch, by_name: dict[str, Tensor]
) -> Chain:
    """The chain of a forward whose main launch lacks its stores yet: what appends to the cache before it, the outputs
    or the splits' partial results, and the combine."""
    notes = (*kernel.notes, *cache.page_notes(by_name))
    before = cache.append_launch(problem, kernel)
    if main.domain.splits > 1 or options_of(kernel, SplitOptions).combines_one:
        split_chain = _split_chain(problem, kernel, main, by_name)
        return Chain(split_chain.tensors, (*before, *split_chain.launches), notes)
    added, writes = _output(problem, kernel)
    by_name = {**by_name, **tensors(added)}
    if kernel.writes_lse:
        writes += (store("LSE", Rows.QUERY, Per.QUERY),)
    return Chain(by_name, (*before, replace(main, accesses=main.accesses + writes)), notes)


def output_tensor(problem: AttentionProblem, kernel: Kernel) -> Tensor:
    output = matrix(problem, "O", Role.OUTPUT)
    return replace(
        output, strided=output.strided or options_of(kernel, FlashOptions).output_strided
    )


def _output(
    problem: AttentionProblem, kernel: Kernel
) -> tuple[tuple[Tensor, ...], tuple[Access, ...]]:
    """(temporaries, accesses) of O: stored at the end; or added up in memory, at every key block
    (`FlashOptions.columns_by_keys`), in O itself where it is fp32."""
    last = store("O", Rows.QUERY, Per.QUERY, fetch=_stored(kernel))
    if not options_of(kernel, FlashOptions).columns_by_keys:
        return (), (last,)
    if max(problem.head_dim, problem.head_dim_v) <= kernel.tile.block_k:
        return (), (last,)
    running = RUNNING[problem.output_type.bytes == 4]
    sums = replace(output_tensor(problem, kernel), name=running, element_bytes=4, role=Role.TEMP)
    between = (
        load(running, Rows.QUERY, Per.PAIR, skip=1),
        store(running, Rows.QUERY, Per.PAIR, skip=1),
    )
    return () if running == "O" else (sums,), (*between, last)


def _split_chain(
    problem: AttentionProblem, kernel: Kernel, main: Launch, by_name: dict[str, Tensor]
) -> Chain:
    """Split-KV: partial O and statistics of every split go through memory, then one launch combines them. The partial
    LSE is `SplitOptions.statistics_per_row` fp32 values a row."""
    splits, d = main.domain.splits, main.domain
    rows = d.batch * d.heads * d.rows
    options = options_of(kernel, SplitOptions)
    statistics = options.statistics_per_row
    shape = problem.batch, problem.heads, problem.seq_q
    partial, vectors = _partials(options, problem, shape, splits, statistics)
    per = Per.SPLIT if splits > 1 else Per.QUERY
    writes = tuple(store(n, Rows.QUERY, per) for n in (OUTPUT_PARTIAL, *(v.name for v in vectors)))
    threads = options.combine_threads
    combine_rows = _combine_block(kernel, options, problem, rows, splits, threads)
    statistic_names = [v.name for v in vectors]
    lse = ("LSE",) if kernel.writes_lse else ()
    before, of_rows = (
        _statistics(kernel, shape, splits) if options.combine_launches > 1 else ((), ())
    )
    of_splits = {1: statistic_names, 2: statistic_names[:1], 3: []}[options.combine_launches]
    waits = options.combine_waits + -(-splits // options.combine_loads_at_once) if splits > 1 else 0
    work = Work(
        serial_loads=waits, fragments=kernel.fragments and COMBINES.get(kernel.fragments.layout)
    )

    def reduction(
        name: str, reads: Sequence[str], writes: Sequence[str], block_q: int = STATISTICS_ROWS
    ) -> Launch:
        """A launch over rows, which reads what each split left of them."""
        loads = (
            load(n, Rows.QUERY, Per.SPLIT if n in (OUTPUT_PARTIAL, *statistic_names) else Per.QUERY)
            for n in reads
        )
        stores = (store(n, Rows.QUERY, Per.QUERY) for n in writes)
        # All heads' rows as one; the splits stand on the key axis.
        over = Domain(1, 1, rows, splits, block_q, splits, splits=splits)
        return Launch(
            name, over, Outer.QUERY, (*loads, *stores), resources=Resources(threads), work=work
        )

    reads = (OUTPUT_PARTIAL, *of_splits, *(t.name for t in of_rows))
    combine = reduction("combine", reads, ("O", *(() if before else lse)), combine_rows)
    combine = replace(combine, role=LaunchRole.COMBINE)
    by_name = {**by_name, **tensors((partial, *vectors, *of_rows))}
    main = replace(main, accesses=main.accesses + writes)
    return Chain(
        by_name, (main, *(reduction(*arguments) for arguments in before), combine), kernel.notes
    )


def _partials(
    options: SplitOptions,
    problem: AttentionProblem,
    shape: tuple[int, int, int],
    splits: int,
    statistics: int,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Partial O of every split, and its statistics."""
    # The split launch leaves partial O and statistics, a copy for each split; the combine reads them all
    # and writes O. Between the two may stand launches over the statistics alone.
    partial = Tensor(
        OUTPUT_PARTIAL, *shape, problem.head_dim_v, options.partial_bytes, Role.TEMP, copies=splits
    )
    vectors = tuple(
        Tensor(TensorKind.PARTIAL.of(name), *shape, 1, 4, Role.TEMP, copies=splits)
        for name in (("LSE",) if statistics == 1 else ("max", "sum"))
    )
    return partial, vectors


def _combine_block(
    kernel: Kernel,
    options: SplitOptions,
    problem: AttentionProblem,
    rows: int,
    splits: int,
    threads: int,
) -> int:
    """Rows of a CTA of the combine. Raises InputError: more CTAs than a grid has."""
    combine_rows = options.combine_rows or _combine_rows(
        _product_columns(problem, kernel)[1], threads
    )
    if rows > MAX_COMBINE_BLOCKS * combine_rows:
        accepted = f"up to {MAX_COMBINE_BLOCKS:,} (fewer sequences, heads or tokens, or no splits)"
        taken = f"their combination takes {rows // combine_rows:,} CTAs"
        raise InputError(f"`splits` {splits}: {taken}; accepted: {accepted}")
    return combine_rows


def _statistics(
    kernel: Kernel, shape: tuple[int, int, int], splits: int
) -> tuple[tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...], tuple[Tensor, ...]]:
    """(name, reads, writes) of the launches before the combine, and the tensors that they hand it."""
    lse = ("LSE",) if kernel.writes_lse else ()
    both = TensorKind.PARTIAL.of("max"), TensorKind.PARTIAL.of("sum")
    total = Tensor("row_sum", *shape, 1, 4, Role.TEMP)
    if options_of(kernel, SplitOptions).combine_launches == 2:
        return (("statistics", both, ("row_max", "row_sum", *lse)),), (
            replace(total, name="row_max"),
            total,
        )
    weights = Tensor("weights", *shape, splits, 4, Role.TEMP)
    sums = ("sums", (*both[1 - len(lse) :], "weights"), ("row_sum", *lse))
    return (("weights", both[:1], ("weights",)), sums), (weights, total)


def _combine_rows(columns: int, threads: int) -> int:
    """Rows a CTA of FlashAttention's combine kernel takes: 4, 8, 16 where the build's columns are a multiple of 128, of
    64, other, with FlashAttention-2's 128 threads; twice that with FlashAttention-3's 256."""
    rows = 4 if columns % 128 == 0 else 8 if columns % 64 == 0 else 16
    return rows * threads // 128


def backward(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The kernel's passes over rows, and between them the main launch over key blocks. With grouped heads that are not
    taken in turn, dK and dV are written per query head and summed by a pass, or added to fp32 sums that passes convert,
    where the kernel has these. Raises InputError: heads in turn whose last query block is ragged."""
    options = options_of(kernel, FlashOptions)
    # The backward, keys outside: (1) passes before it make D and clear dQ's sums; (2) the main launch,
    # a CTA per key block, walks the query blocks that see it, adds its part of dQ atomically and writes
    # dK and dV of its block at the end; (3) passes after it convert the sums of dQ and sum dK and dV
    # over the heads of a group (arXiv 2307.08691, Algorithm 2).
    grouped = problem.group > 1 and not options.heads_in_turn
    # Where CTAs that own queries compute dQ, nobody adds to sums of it, and no pass clears or converts them.
    apart = options.adds in (Adds.OWNERS, Adds.SAME_GRID)
    # Which tensors there are follows from the passes: sums of dK and dV where one fills them, copies
    # where one makes them.
    passes = _row_passes(problem, kernel, grouped, apart)
    sums = [name for name in KEY_SUMS if any(name in rows_pass.writes for rows_pass in passes)]
    copies = [
        name
        for rows_pass in passes
        for name in rows_pass.writes
        if TensorKind.COPY.is_kind_of(name)
    ]
    held = _backward_tensors(problem, kernel, sums, copies, grouped, apart)
    before = [
        _row_launch(problem, kernel, rows_pass, held, copies)
        for rows_pass in passes
        if not rows_pass.follows
    ]
    after = [
        _row_launch(problem, kernel, rows_pass, held, copies)
        for rows_pass in passes
        if rows_pass.follows
    ]
    # Heads of a group one after the other: the CTA that owns keys walks the query blocks of all of them.
    walked = heads_in_turn if options.heads_in_turn else attention_domain
    domain = walked(problem, kernel.tile_backward, mask_block=options.mask_block)
    beside = _backward_beside(domain, grouped, kernel, problem)
    main = main_launch(
        problem,
        kernel,
        domain,
        Outer.KEY,
        _backward_accesses(problem, kernel, sums, copies, grouped, apart),
        beside,
        persistent_ctas=grid(kernel, schedule=kernel.backward.schedule),
        work=_backward_work(problem, kernel, apart),
    )
    launches = query_owners(problem, kernel, main) if apart else (main,)
    return Chain(held, (*before, *launches, *after), kernel.notes)


def _backward_beside(
    domain: Domain, grouped: bool, kernel: Kernel, problem: AttentionProblem
) -> tuple[Overhead, ...]:
    """Sectors beside the operands. Rows of dK and dV that end inside a sector share it with the next row, unless a grouped
    head's or another sequence's rows lie between them."""
    between = grouped or domain.sequences > 1
    beside = _columns_outside(problem, kernel, keys_outer=True)
    beside += _narrow_stores(
        problem, kernel, lambda: domain.key_rows, 1.0, tensors=2, apart=between
    )
    return beside


def _row_passes(
    problem: AttentionProblem, kernel: Kernel, grouped: bool, apart: bool
) -> list[RowPass]:
    """The passes over rows that a call launches: none of another layout, none that sums heads where each has its own
    keys, none that reorders where heads and rows lie in order already, and, with dQ computed `apart`, none of its
    sums."""
    passes = [
        p
        for p in kernel.backward.passes
        if (grouped or not p.sums_heads) and p.layout in ("", problem.layout)
    ]
    if 1 in (problem.heads, problem.seq_q):
        passes = [rows_pass for rows_pass in passes if not rows_pass.reorders]
    if not apart:
        return passes
    # Nobody adds to dQ's sums: passes that clear or convert them fall away, others lose them.
    without_sums = (
        replace(rows_pass, writes=tuple(n for n in rows_pass.writes if n != QUERY_SUMS))
        for rows_pass in passes
    )
    return [
        rows_pass
        for rows_pass in without_sums
        if rows_pass.writes and QUERY_SUMS not in rows_pass.reads
    ]


def _backward_tensors(
    problem: AttentionProblem,
    kernel: Kernel,
    sums: list[str],
    copies: list[str],
    grouped: bool,
    apart: bool,
) -> dict[str, Tensor]:
    """The tensors of a backward, in the order in which a framework allocates them."""
    sums_of_dq = dq_sums(problem, kernel)
    workspace: tuple[Tensor, ...] = (
        row_vector(problem, "D", Role.TEMP),
        *(() if apart else (sums_of_dq,)),
    )
    if (
        options_of(kernel, FlashOptions).workspace is Workspace.BLOCKS
    ):  # one piece of memory, which begins with the sums
        workspace = (sums_of_dq, *matrices(problem, f"{LSE_COPY} D", Role.TEMP))
    return tensors(
        (
            *matrices(problem, "Q K V O dO LSE", Role.INPUT),
            *workspace,
            *matrices(problem, "dQ dK dV", Role.OUTPUT),
            *(
                replace(matrix(problem, name[:2], Role.TEMP, element_bytes=4), name=name)
                for name in sums
            ),
            *(head_gradients(problem) if grouped and not sums else ()),
            *(
                replace(*matrices(problem, TensorKind.COPY.source(name), Role.TEMP), name=name)
                for name in copies
            ),
        )
    )


def _backward_accesses(
    problem: AttentionProblem,
    kernel: Kernel,
    sums: list[str],
    copies: list[str],
    grouped: bool,
    apart: bool,
) -> tuple[Access, ...]:
    """What a CTA that owns a key block moves: K and V once, each visiting query block's Q, dO, LSE and D, its additions
    to dQ, and dK and dV at the end."""
    rows = Edge.WHOLE if kernel.edge_q is Edge.WHOLE else Edge.EXACT
    whole = _workspace_edge(kernel)
    # A copy that a pass made (in another layout, or padded to whole tiles) is read in the place of its source.
    lse, d_o = (
        TensorKind.COPY.of(n) if TensorKind.COPY.of(n) in copies else n for n in ("LSE", "dO")
    )
    gradients = [TensorKind.PER_HEAD.of(n) if grouped else n for n in ("dK", "dV")]
    return (
        *(
            load(n, Rows.KEY, Per.KEY, visited_only=True, edge=kernel.edge_k, fetch=kernel.fetch)
            for n in "KV"
        ),
        *(load(n, Rows.QUERY, Per.PAIR, edge=rows, fetch=kernel.fetch) for n in ("Q", d_o)),
        load(lse, Rows.QUERY, Per.PAIR, edge=whole if lse in copies else Edge.EXACT),
        load("D", Rows.QUERY, Per.PAIR, edge=whole),
        *(() if apart else (Access(QUERY_SUMS, Mode.REDUCE, Rows.QUERY, Per.PAIR, edge=whole),)),
        *(Access(n, Mode.REDUCE, Rows.KEY, Per.KEY, visited_only=True, edge=whole) for n in sums),
        *(store(n, Rows.KEY, Per.KEY, fetch=_stored(kernel)) for n in gradients if not sums),
    )


def _backward_work(problem: AttentionProblem, kernel: Kernel, apart: bool) -> Work:
    """The work of a pair with its additions to dQ: lane by lane in requests of a line, or in packets of a sector."""
    adds = options_of(kernel, FlashOptions).adds
    # What the warps wait for: a request a line of dQ's row, or packets of 32 bytes.
    requests = packets = 0
    if not apart and adds is not Adds.APART:
        requests = -(-dq_sums(problem, kernel).cols // SUMS_PER_LINE)
    if adds is Adds.PACKETS:
        packets = problem.head_dim * 4 // SECTOR_BYTES
    return replace(
        loop_work(problem, kernel), add_requests_per_row=requests, add_packets_per_row=packets
    )


def query_owners(problem: AttentionProblem, kernel: Kernel, main: Launch) -> tuple[Launch, Launch]:
    """The main launch, of four products where nothing is added to dQ, and the CTAs that own queries: as many as those
    of the main launch own keys. They walk blocks of keys as long as its blocks of queries: scores and dP again, then
    dQ."""
    # Two kinds of CTAs: owners of keys compute four products (S, dP, dV, dK), owners of queries three (S
    # and dP again, dQ) over key blocks as long as the others' query blocks.
    options, tile, d, d_v = (
        options_of(kernel, FlashOptions),
        kernel.tile_backward,
        problem.head_dim,
        problem.head_dim_v,
    )
    joins = options.adds is Adds.SAME_GRID
    lse, d_o = (
        next(a.tensor for a in main.accesses if a.tensor.startswith(n)) for n in ("LSE", "dO")
    )
    loop = Loop() if joins else main.work.loop
    domain = attention_domain(
        problem, Tile(tile.block_k, tile.block_q), mask_block=options.mask_block
    )
    accesses = (
        *(load(name, Rows.QUERY, Per.QUERY) for name in ("Q", d_o, lse, "D")),
        *(load(name, Rows.KEY, Per.PAIR) for name in "KV"),
        store("dQ", Rows.QUERY, Per.QUERY),
    )
    work = Work(2 * (2 * d + d_v), exps_per_pair=1, stages=tile.stages)
    owners = Launch(
        "bwd.dq", domain, Outer.QUERY, accesses, resources=main.resources, work=work, joins=joins
    )
    if joins:
        owners = replace(owners, schedule=main.schedule, overheads=main.overheads)
    return replace(main, work=replace(main.work, flops_per_pair=4 * (d + d_v), loop=loop)), owners


def _workspace_edge(kernel: Kernel) -> Edge:
    return (
        Edge.EXACT if options_of(kernel, FlashOptions).workspace is Workspace.ROWS else Edge.WHOLE
    )


def dq_sums(problem: AttentionProblem, kernel: Kernel) -> Tensor:
    sums = matrix(problem, QUERY_SUMS, Role.TEMP, element_bytes=4)
    if options_of(kernel, FlashOptions).workspace is not Workspace.PADDED:
        return sums
    # The workspace has whole blocks of rows and the build's columns.
    block = kernel.tile_backward.block_q
    rows, cols = (
        -(-problem.seq_q // block) * block,
        max(problem.head_dim, kernel.compiled_head_dim or 0),
    )
    return replace(sums, rows=rows, cols=cols)


def _row_launch(
    problem: AttentionProblem,
    kernel: Kernel,
    rows_pass: RowPass,
    held: Mapping[str, Tensor],
    copies: Sequence[str],
) -> Launch:
    """A pass over rows. O and dO are read as they lie in memory, or their copies where the pass makes none."""
    if rows_pass.sums_heads:
        return sum_groups(problem, rows_pass, _workspace_edge(kernel))
    rows, apart = rows_pass.rows or kernel.tile_backward.block_q, kernel.fetch is Fetch.LANES

    def access(mode: Mode, name: str) -> Access:
        source = TensorKind.COPY.source(name)
        workspace = name in ("D", QUERY_SUMS) or (name in copies and held[name].is_vector)
        return Access(
            name,
            mode,
            Rows.QUERY,
            Per.QUERY,
            edge=_workspace_edge(kernel) if workspace else Edge.EXACT,
            packet_rows=rows_pass.packet_rows if name == rows_pass.packets_of else 0,
            fetch=Fetch.SECTORS
            if apart and mode is Mode.LOAD and source in ("O", "dO")
            else Fetch.BYTES,
        )

    reads = _pass_reads(copies, rows_pass)
    # Some passes store half sectors: a share of them leaves as two packets (fitted in the catalog).
    domain = row_domain(problem, rows)
    overheads = _split_sectors(domain, held, rows_pass)
    # Values that a thread of the pass has: loads that it waits for may grow with them.
    of_a_thread = rows * max(problem.head_dim, kernel.compiled_head_dim or 0) // rows_pass.threads
    loads, stores = (
        (access(Mode.LOAD, n) for n in reads),
        (access(Mode.STORE, n) for n in rows_pass.writes),
    )
    waits = rows_pass.waits + rows_pass.waits_per_value * of_a_thread
    taken = Resources(rows_pass.threads, rows_pass.registers)
    work = Work(operations_per_value=round(rows_pass.operations), thread_loads=waits)
    launch = row_pass(
        f"bwd.{rows_pass.name}",
        domain,
        loads,
        stores,
        resources=taken,
        overheads=overheads,
        work=work,
    )
    return replace(launch, values_per_thread=rows_pass.values)


def _pass_reads(copies: Sequence[str], rows_pass: RowPass) -> Generator[str, None, None]:
    """What a pass reads: tensors as they lie in memory, or their copies where the pass makes none."""
    return (
        TensorKind.COPY.of(n)
        if TensorKind.COPY.of(n) in copies and TensorKind.COPY.of(n) not in rows_pass.writes
        else n
        for n in rows_pass.reads
    )


def _split_sectors(
    domain: Domain, held: Mapping[str, Tensor], rows_pass: RowPass
) -> tuple[Overhead, ...]:
    """Sectors that leave as two packets: some passes store half sectors (fitted in the catalog)."""
    row_bytes = held[rows_pass.writes[-1]].row_bytes
    if not rows_pass.split_percent or row_bytes % SECTOR_BYTES:
        return ()
    split = int(float(domain.query_rows.mean()) * row_bytes * rows_pass.split_percent) // 100
    return (Overhead("split_sectors", Mode.STORE, per_tile=split),)

"""`flash`: queries outside, keys inside, O written once (FlashAttention-2, arXiv 2307.08691, Algorithms 1 and 2).

Forward reads Q once a query block (or again at every key block where the kernel does so), K and V once a visited
(query block, key block) pair, and writes O and one fp32 log-sum-exp a row. With `splits` > 1 the keys of a head are
divided among CTAs, partial O and LSE in fp32 pass through memory, and a second launch combines them.
Backward turns the loops: keys outside, dQ by fp32 atomic adds, between a launch for rowsum(dO o O) and one that
converts dQ.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms import cache
from iosim.catalog.algorithms.common import (
    attention_domain,
    grid,
    load,
    loop_work,
    main_launch,
    matrices,
    matrix,
    row_pass,
    store,
)
from iosim.catalog.algorithms.flash_backward import (
    backward,
)
from iosim.catalog.algorithms.flash_options import FlashOptions, SplitOptions, mask_limits
from iosim.catalog.algorithms.flash_rows import (
    columns_outside,
    narrow_stores,
    product_columns,
    stored,
)
from iosim.catalog.algorithms.flash_splits import (
    split_chain,
)
from iosim.catalog.algorithms.registry import Packs, algorithm, options_of
from iosim.catalog.algorithms.terms import SCORE_TERMS, backward_terms, forward_terms
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Access,
    Chain,
    Domain,
    Launch,
    Mode,
    Outer,
    Overhead,
    Per,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.kernel.schedule import Scheduler
from iosim.kernel.tensor_kinds import (
    OUTPUT_SUMS,
)
from iosim.kernel.work import MaskOperations, Pipelines, Work
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntervalMask

RUNNING = (OUTPUT_SUMS, "O")
"""An output that is added up in memory: apart, or in its own place where that is fp32."""


TILE_NUMBERS = (
    Overhead(
        "tile_number", Mode.STORE, per_tile=SECTOR_BYTES, inferred_from="kernels/flash_fwd_sm90.cuh"
    ),
)
"""What the CTA of a cluster that asks for a tile tells the others, a packet."""


LOADS_BETWEEN_LOOPS = 3
"""Loads that wait for one another where one loop over a list follows another: of the list's length, of its first
block's number and of that block's keys."""


LISTS = "block_count", "block_list"


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
    beside = (TILE_NUMBERS if queued else ()) + columns_outside(problem, kernel)
    beside += narrow_stores(
        problem, kernel, lambda: domain.query_rows, options.split_stores, apart=apart
    )
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
    columns, value_columns = product_columns(problem, kernel)
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
    if problem.mask == "none" and options_of(kernel, SplitOptions).undivided:
        domain = replace(domain, undivided=True)
    key_blocks = domain.key_blocks_total
    if kernel.splits > key_blocks and not options_of(kernel, SplitOptions).empty_splits:
        raise InputError(
            f"`splits` {kernel.splits} is out of range; accepted: 1 to {key_blocks} (key blocks)"
        )
    return (
        (domain, Outer.SPLIT, Per.SPLIT) if kernel.splits > 1 else (domain, Outer.QUERY, Per.QUERY)
    )


def _by_lists(work: Work, problem: AttentionProblem, kernel: Kernel, options: FlashOptions) -> Work:
    """The work of a forward with what its mask takes. A kernel that goes by lists of blocks has a loop for the blocks
    at the ends, which asks the mask of each score, and then one for the others. Rows of a last block that is not whole
    are at an end everywhere (flex_attention.py.jinja; create_block_mask pads with pairs that the mask takes)."""
    block = options.mask_block
    if block is None:
        return replace(work, mask=_mask_operations(problem, kernel, options))
    # Masked blocks first, then whole ones: the mask is asked in the steps of the blocks at the ends (one
    # limit a causal mask has, two a window), and in all steps of a last block that is not whole.
    limits = mask_limits(problem.mask)
    mask = MaskOperations(
        every_step=options.step_operations,
        edge_steps=options.end_operations,
        in_order=True,
        edge_keys=limits * block,
        edge_rows=problem.seq_q % block if limits else 0,
    )
    loop = replace(
        work.loop,
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


def finish(
    problem: AttentionProblem, kernel: Kernel, main: Launch, by_name: dict[str, Tensor]
) -> Chain:
    """The chain of a forward whose main launch lacks its stores yet: what appends to the cache before it, the outputs
    or the splits' partial results, and the combine."""
    notes = (*kernel.notes, *cache.page_notes(by_name))
    before = cache.append_launch(problem, kernel)
    if main.domain.splits > 1 or options_of(kernel, SplitOptions).combines_one:
        both = split_chain(problem, kernel, main, by_name)
        return Chain(both.tensors, (*before, *both.launches), notes)
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
    last = store("O", Rows.QUERY, Per.QUERY, fetch=stored(kernel))
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

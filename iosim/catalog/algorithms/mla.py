"""`mla`: decode over one latent key/value cache (DeepSeek-V2, arXiv 2405.04434, section 2.1, in its absorbed form).

All query heads share one latent K [seq_k, head_dim] (512 latent and 64 rotary columns in DeepSeek-V2 and V3), and V is
its first head_dim_v columns: a tile of K is read once and used for both products. The query heads and tokens are the
rows of a tile, as in FlashMLA (deepseek-ai/FlashMLA @69f31931, csrc/sm90). Forward only. Splits and their combine are
those of `flash`.

Where queries pick keys (`top_k`), a tile is of one query: it reads the query's list and gathers the rows that the list
names, and walks what the list has room for, idle entries too (FlashMLA @13d173ac, csrc/sm90/prefill/sparse/phase1.cuh:
num_topk_blocks). The CTAs of a cluster share the query's heads and what they gather (@066b5ba6,
csrc/sm90/decode/sparse_fp8/splitkv_mla.cuh). Lists hold places in memory, so that no block table is read; they are
given, or an indexer makes them first (`iosim.catalog.algorithms.indexer`).

NB: the projections into and out of the latent space are no part of it; nor is the scale, which models take from the
width before absorption.
"""

from __future__ import annotations

from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.catalog.algorithms.cache import append_tensors, in_cache, table_access, table_tensor
from iosim.catalog.algorithms.common import grid, load, loop_work, main_launch, matrices, matrix
from iosim.catalog.algorithms.flash import finish, split_domain
from iosim.catalog.algorithms.flash_options import SplitOptions
from iosim.catalog.algorithms.indexer import LISTS, IndexerOptions, index_chain, lists
from iosim.catalog.algorithms.registry import Packs, algorithm, options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import Chain, Edge, Fetch, Per, Role, Rows, Tensor, tensors
from iosim.problem.attention import MX_CACHE, AttentionProblem

TAKES = ("latent_kv", "page_size", "top_k", "indexer", "cache_dtype", "compressed")


@algorithm(
    "mla", takes=TAKES, options=IndexerOptions, splits=True, appends=True, packs=Packs.ALWAYS
)
def plan_mla(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The launch over the latent cache, or the split launch and its combine. Raises InputError: a cache that is not
    latent, a backward pass, more splits than key blocks, or a tile that holds rows of two queries which pick their
    keys."""
    if not problem.latent_kv:
        hint = "algorithm mla reads one latent K/V; accepted with it: `latent_kv=True`"
        raise InputError(f"`kernel` {kernel.name}: {hint}")
    if problem.passes != "fwd":
        raise InputError(
            f"`passes` {problem.passes}: algorithm mla serves inference; accepted: fwd"
        )
    # With picked keys a tile is of one query's heads, and the CTAs of a cluster share these.
    picks = problem.gathers
    together = kernel.schedule.cluster if picks else 1
    tile = replace(kernel.tile, block_q=together * kernel.tile.block_q)
    if picks:
        _check_picks(problem, kernel, tile.block_q)
    domain, outer, per_q = split_domain(problem, kernel, tile, problem.group)
    edge, fetch = (Edge.NEEDED, Fetch.SECTORS) if picks else (kernel.edge_k, Fetch.BYTES)
    accesses = (
        load("Q", Rows.QUERY, per_q, edge=kernel.edge_q, visited_only=True),
        *((load(LISTS, Rows.KEY, Per.PAIR),) if picks else table_access(problem)),
        load("K", Rows.KEY, Per.PAIR, edge=edge, fetch=fetch),
    )
    work = replace(
        loop_work(problem, kernel), gather_cycles=options_of(kernel, IndexerOptions).gather_cycles
    )
    schedule = replace(kernel.schedule, cluster=kernel.schedule.cluster // together)
    ctas = grid(kernel, together)
    main = main_launch(
        problem,
        kernel,
        domain,
        outer,
        accesses,
        schedule=schedule,
        persistent_ctas=ctas,
        tile_ctas=together,
        work=work,
    )
    all_tensors = _latent_tensors(kernel, picks, problem)
    chain = finish(problem, kernel, main, tensors(all_tensors))
    if problem.index_heads is None:
        return chain
    indexer = index_chain(problem, kernel)
    return Chain(
        {**chain.tensors, **indexer.tensors}, (*indexer.launches, *chain.launches), chain.notes
    )


def _latent_tensors(kernel: Kernel, picks: bool, problem: AttentionProblem) -> tuple[Any, ...]:
    """The latent cache, or its rows and the lists that pick them; the query and what is written."""
    return (
        matrix(problem, "Q", Role.INPUT),
        *(
            (latent_rows(problem), lists(problem))
            if picks
            else (in_cache(problem, matrix(problem, "K", Role.INPUT)),)
        ),
        *matrices(problem, "O LSE" if kernel.writes_lse else "O", Role.OUTPUT),
        *(() if picks else table_tensor(problem)),
        *append_tensors(problem, kernel),
    )


def _check_picks(problem: AttentionProblem, kernel: Kernel, rows: int) -> None:
    if problem.group % rows:
        rows_of = f"rows of several queries, each with a list of its own, of {problem.group} heads"
        raise InputError(
            f"`tile` {kernel.tile} holds {rows_of}; accepted: a block_q that divides them"
        )
    if options_of(kernel, SplitOptions).append_kv:
        why = "what appends to a cache of which queries pick keys is not described; accepted with it: neither"
        raise InputError(f"`append_kv=True` contradicts `top_k` and `compress_ratio`: {why}")


def latent_rows(problem: AttentionProblem) -> Tensor:
    """The latent cache of which queries pick rows, [batch, kv_heads, seq_k, columns]; or the compressed keys and behind
    them the tokens of all windows. Their scales lie apart, so that each row's take a sector; in mxfp8 behind each row
    (deepseek-ai/FlashMLA @ddedb079, README.md)."""
    compressed, rows = problem.compress_ratio is not None, problem.scored_keys
    if compressed:
        rows += min(problem.seq_k, problem.shown_tokens + problem.seq_q - 1)
    plain = replace(matrix(problem, "K", Role.INPUT), rows=rows, picked_by=LISTS)
    if problem.cache_dtype is None:
        return plain
    packed = replace(
        plain, cols=problem.latent_row_bytes, element_bytes=1, format=problem.cache_dtype
    )
    return (
        replace(packed, strided=True) if compressed and problem.cache_dtype != MX_CACHE else packed
    )

"""The launches that pick keys for sparse attention: an indexer's logits, and the top-k over them (DeepSeek-V3.2, arXiv
2512.02556, section 2; GLM-5).

- "logits": I[t, s] = sum over heads of w[t, h] ReLU(q[t, h] k[s]), fp8 queries and keys, a scale a key; fp32 logits
  [queries, keys] pass through memory. Without pages: DeepGEMM's fp8_mqa_logits (deepseek-ai/DeepGEMM @0c41e5d1,
  deep_gemm/include/deep_gemm/impls/sm90_fp8_mqa_logits.cuh): a persistent grid whose CTAs take `index_rows` rows (query
  x head) and walk all keys. With pages and up to `PAGED_QUERIES` queries: its fp8_paged_mqa_logits, which divides the
  keys of all sequences evenly among the SMs. NB: with more queries the keys of a paged cache are first gathered into
  one piece, which is not counted.
- "top_k": SGLang's (sgl-project/sglang @06c48ca8, sgl-kernel/csrc/elementwise/topk.cu): a CTA a query reads its logits
  twice, a histogram of their first eight bits and then what reaches the last bin that counts, and writes the list. With
  pages it looks each pick up in a table of places. NB: what it reads again of the last bin depends on the scores, and
  is not counted.

Where there are no more keys than are picked, nothing is scored: "lists" writes all keys (sglang, nsa_indexer.py,
skip_logits_computation).

DeepSeek-V4's scores keys that stand for four tokens each, every query as a sequence of its own (SGLang's and vLLM's
calls, next_n 1), whatever their number. NB: its lists of the window, made once a step for all layers, are here written
with the others. NB: projections, the indexer's norms, rotations and quantisation, and what appends to its
cache are no part of it.
"""

from __future__ import annotations

from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms.cache import in_cache, table_access, table_tensor
from iosim.catalog.algorithms.common import load, row_domain, row_pass, store
from iosim.catalog.algorithms.flash_options import SplitOptions
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Chain,
    Domain,
    Edge,
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
from iosim.kernel.schedule import Schedule, Scheduler
from iosim.kernel.unit import MatrixUnit
from iosim.kernel.work import Loop, Work
from iosim.problem.attention import AttentionProblem

LAUNCHES = ("logits", "top_k", "lists")
LISTS = "indices"
LIST_BYTES = 4
INDEX_KEYS = 256
"""Keys of a step of the indexer's kernels."""
LOADING_WARPS = 4
PAGED_QUERIES = 2
"""Queries of a sequence up to which the paged kernel runs (DeepGEMM, csrc/apis/attention.hpp: next_n)."""
SELECT_KEYS = 1024
"""Keys that a CTA of the top-k takes at a time, one a thread."""
WALKS = 2
"""Times that it goes over a query's logits."""
SELECT_WAITS, SELECT_AHEAD = 7, 3
"""Loads, or as long, of a CTA of the top-k that wait for one another whatever the keys, and steps over the keys per one
more load that is waited for. Fitted (benchmarks/sparse.py)."""
LENGTH_LOADS, TABLE_LOADS = 1, 1
"""Loads of the paged kernel's loading warps before a tile's first keys, one behind the other: as a CTA begins the length
of its sequence, which its place in the schedule names; of every tile the places of its pages. The place in the schedule
is the first of `FIRST_LOADS` (sm90_fp8_paged_mqa_logits.cuh @00b1d2db, PagedMQALogitsScheduler)."""
SHORT_WAITS = 2
"""Loads that wait for one another where a query sees no more keys than are picked."""
TABLE_SOURCE = (
    "a sector of the table of places for each pick, topk.cu: topk_transform_decode_kernel"
)


@dataclass(frozen=True)
class IndexerOptions(SplitOptions):
    """`index_ctas`: the persistent grid of the indexer's kernel; `index_rows`: queries x heads that a CTA takes;
    `index_threads`, `index_registers` and `index_shared_bytes`: what it takes of an SM; `index_unit`: what computes its
    products; `index_operations`: instructions on a score, ReLU, weight and sum. `select_*` are likewise of the top-k.
    `gather_cycles`: of an SM, for each row that the attention gathers."""

    index_ctas: int | None = number(None, 1)
    index_rows: int = number(128, 1)
    index_threads: int = number(640, 32, 1024)
    index_registers: int = number(96, 1, 255)
    index_shared_bytes: int = number(0, 0)
    index_unit: str = str(MatrixUnit.PINGPONG)
    index_operations: float = 3.0
    select_threads: int = number(1024, 32, 1024)
    select_shared_bytes: int = number(0, 0)
    select_waits: int = number(SELECT_WAITS, 0, 1000)
    select_ahead: int = number(SELECT_AHEAD, 1, 1000)
    gather_cycles: float = 0.0


def lists(problem: AttentionProblem, role: Role = Role.INPUT) -> Tensor:
    """The keys that each query picks, [batch, 1, seq_q, top_k]; -1 where there are fewer. Beside compressed keys the
    tokens of its window before them."""
    entries = problem.top_k or 0
    if problem.compress_ratio is not None:
        entries = problem.attended_keys
    return Tensor(
        LISTS,
        problem.batch,
        1,
        problem.seq_q,
        entries,
        LIST_BYTES,
        role,
        Rows.QUERY,
        keys_per_row=1,
    )


def index_chain(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The indexer's two launches, or the one that lists all keys."""
    if problem.scored_keys > (problem.top_k or 0):
        return scored_chain(problem, kernel)
    write = row_pass(
        "lists", row_domain(problem, 1, heads=1), (), (LISTS,), resources=Resources(256)
    )
    return Chain(tensors((lists(problem, Role.TEMP),)), (write,))


def scored_chain(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """The logits and the top-k, however few keys there are."""
    p, heads = problem, problem.index_heads or 1
    compressed, scored_keys = p.compress_ratio is not None, p.scored_keys
    # Few query tokens: the paged kernel reads the cache through its table; many: keys lie in a row.
    paged = p.page_size is not None and (compressed or p.seq_q <= PAGED_QUERIES)
    along = Rows.OWN if compressed else Rows.KEY
    keys = (
        Tensor("index_K", p.batch, 1, scored_keys, p.index_dim, 1, Role.INPUT, along, "fp8"),
        Tensor("index_scale", p.batch, 1, scored_keys, 1, 4, Role.INPUT, along),
    )
    held = (
        Tensor(
            "index_Q", p.batch, 1, p.seq_q, heads * p.index_dim, 1, Role.INPUT, Rows.QUERY, "fp8"
        ),
        Tensor("index_weights", p.batch, 1, p.seq_q, heads, 4, Role.INPUT, Rows.QUERY),
        *(in_cache(p, tensor) if paged else tensor for tensor in keys),
        Tensor("logits", p.batch, 1, p.seq_q, scored_keys, 4, Role.TEMP, Rows.PAIR),
        lists(p, Role.TEMP),
        *(table_tensor(p, scored_keys) if paged else ()),
    )
    return Chain(tensors(held), (_logits(p, kernel, heads, paged), _select(p, kernel)), ())


def _logits(problem: AttentionProblem, kernel: Kernel, heads: int, paged: bool) -> Launch:
    """Every step writes a whole tile of logits, also past the last key that a query sees (sm90_fp8_mqa_logits.cuh)."""
    options = options_of(kernel, IndexerOptions)
    # A CTA takes index_rows (queries x heads), so that many heads leave it few queries.
    rows = max(1, options.index_rows // heads)
    if paged:
        rows = 1 if problem.compress_ratio is not None else problem.seq_q
    splits = _even_splits(problem, rows, options.index_ctas) if paged else 1
    sizes = (problem.batch, 1, problem.seq_q, problem.scored_keys, rows, INDEX_KEYS)
    outer, per = (Outer.SPLIT, Per.SPLIT) if splits > 1 else (Outer.QUERY, Per.QUERY)
    accesses = (
        load("index_Q", Rows.QUERY, per),
        load("index_weights", Rows.QUERY, per),
        *(table_access(problem) if paged else ()),
        load("index_K", Rows.KEY, Per.PAIR),
        load("index_scale", Rows.KEY, Per.PAIR),
        store("logits", Rows.PAIR, Per.PAIR, edge=Edge.WHOLE),
    )
    in_step = (
        options.index_unit != MatrixUnit.TCGEN05
    )  # a warp of its own issues products into tensor memory there
    loop = Loop(
        producer_warps=LOADING_WARPS, warps_meet=in_step, score_operations=options.index_operations
    )
    flops = 2 * heads * problem.index_dim
    work = Work(
        flops, scores_per_pair=heads, dtype="fp8", unit=options.index_unit, stages=3, loop=loop
    )
    if paged:
        work = replace(work, serial_loads=TABLE_LOADS, first_loads=LENGTH_LOADS)
    return Launch(
        "logits",
        Domain(*sizes, mask=problem.scored_mask, splits=splits),
        outer,
        accesses,
        schedule=Schedule(scheduler=Scheduler.PERSISTENT, overlaps_tiles=True),
        resources=Resources(
            options.index_threads, options.index_registers, options.index_shared_bytes
        ),
        persistent_ctas=options.index_ctas,
        work=work,
    )


def _even_splits(problem: AttentionProblem, rows: int, ctas: int | None) -> int:
    """Parts of a sequence's keys where each SM takes as many steps of all sequences (sm90_fp8_paged_mqa_logits.cuh:
    schedule metadata). NB: with several sequences some are cut twice and others not at all; here all are cut alike."""
    steps = -(-problem.scored_keys // INDEX_KEYS)
    steps_per_cta = max(1, -(-problem.batch * -(-problem.seq_q // rows) * steps // (ctas or 1)))
    return -(-steps // steps_per_cta)


def _select(problem: AttentionProblem, kernel: Kernel) -> Launch:
    options, picks = options_of(kernel, IndexerOptions), problem.top_k or 0
    places = Overhead(
        "page_table", Mode.LOAD, per_tile=SECTOR_BYTES * picks, inferred_from=TABLE_SOURCE
    )
    return Launch(
        "top_k",
        Domain(
            problem.batch,
            1,
            problem.seq_q,
            problem.scored_keys,
            1,
            SELECT_KEYS,
            mask=problem.scored_mask,
        ),
        Outer.QUERY,
        (
            load("logits", Rows.PAIR, Per.PAIR, edge=Edge.NEEDED, times=WALKS),
            store(LISTS, Rows.QUERY, Per.QUERY),
        ),
        resources=Resources(options.select_threads, 32, options.select_shared_bytes),
        overheads=(places,) if problem.page_size is not None else (),
        walks_again=True,
        work=Work(serial_loads=_mean_waits(problem, options)),
    )


def _mean_waits(problem: AttentionProblem, options: IndexerOptions) -> int:
    """Loads that a CTA of the top-k waits for, in the mean over the queries."""
    p, picks, ratio = problem, problem.top_k or 0, problem.compress_ratio or 1
    # Queries that see more keys than are picked walk their logits twice; the mean walk is that of the
    # one with fewest such keys and the one with most. Others only list what they see.
    longer = p.seq_q if p.mask == "none" else min(p.seq_q, p.seq_k - picks * ratio)
    fewest = p.seq_k if p.mask == "none" else max(picks, (p.seq_k - p.seq_q) // ratio) + 1
    walked = WALKS * (fewest + p.scored_keys) // (2 * SELECT_KEYS)
    waits = options.select_waits + walked // options.select_ahead
    return max(1, (longer * waits + (p.seq_q - longer) * SHORT_WAITS) // p.seq_q)

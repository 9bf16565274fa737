"""The key/value cache of inference: pages found through a block table, and the launch that appends new tokens.

The block table holds one int32 a page and sequence. Every work tile looks up, for each key block that it visits, the
entries of that block's rows: FlashAttention-2 advances its K and V pointers through the table at every key block
(csrc/flash_attn/src/flash_fwd_kernel.h, compute_attn_1rowblock_splitkv), FlashAttention-3 loads the entries of a key
block's rows (hopper/paged_kv.h @2a204125, load_page_table), FlashMLA one entry for its key block of one page. Of these
reads a work tile's first of each sector crosses from L2; the others hit L1, where K and V do not pass. Counters of a
Triton kernel say so to the byte, for pages of 1 to 256 tokens (experiments/measurements/h200_paged.csv).
NB: a sequence's entries are taken to start on a sector.

K and V rows in pages move the bytes they move without: pages start on sectors, and a page's rows of one head are whole
sectors where page_size x row bytes is a multiple of 32. Where they are not, each row is counted in whole sectors.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.catalog.algorithms.common import load, row_pass
from iosim.catalog.algorithms.registry import options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Access,
    Domain,
    Launch,
    LaunchRole,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
)
from iosim.kernel.options import AlgorithmOptions, number
from iosim.kernel.work import Work
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.mask import IntervalMask

TABLE = "block_table"
TABLE_BYTES = 4
SLOT_BYTES = 8
"""An int64 slot a new token (vLLM, csrc/cache_kernels.cu, reshape_and_cache_flash_kernel)."""
APPEND_THREADS = 512
APPEND_WAITS = 5
"""Loads that the CTA of a token waits for, or as long as they take: its slot, K, V, and the slot's division by the
tokens of a page, in 64 bits. Fitted on open rows of published_stacks.csv, vLLM's prefill."""


@dataclass(frozen=True)
class CacheOptions(AlgorithmOptions):
    """`append_kv`: a launch first writes the new tokens' K and V into the cache. `append_waits`: its loads that wait
    for one another in the CTA of a token; 0 where a launch has enough of them in flight for
    its bytes alone to decide."""

    append_kv: bool = False
    append_waits: int = number(APPEND_WAITS, 0, 100)


def appends(kernel: Kernel) -> bool:
    return options_of(kernel, CacheOptions).append_kv


def check_append(problem: AttentionProblem, kernel: Kernel) -> None:
    """Refuse new tokens that are no keys, that lie in sequences of different lengths, or that a backward follows.
    Raises InputError: says which."""
    if not appends(kernel):
        return
    if problem.backward:
        why = "a cache belongs to inference; accepted with it: fwd"
        raise InputError(f"`append_kv=True` contradicts `passes` {problem.passes}: {why}")
    if problem.seq_lens is not None:
        why = "new tokens are the last keys of sequences of one length; accepted with it: `seq_q`"
        raise InputError(f"`append_kv=True` contradicts `seq_lens`: {why}")
    if problem.seq_q > problem.seq_k:
        why = f"the new tokens are keys too; accepted: `seq_q` up to {problem.seq_k}"
        raise InputError(
            f"`append_kv=True` with {problem.seq_q} new tokens and {problem.seq_k} keys: {why}"
        )


def _counted_page(problem: AttentionProblem) -> int | None:
    """Tokens of a page whose table is read; of sequences of different lengths none is: a few bytes a page."""
    return problem.page_size if problem.seq_lens is None else None


def _shared(problem: AttentionProblem, tensor: Tensor) -> Tensor:
    """A tensor of the cache whose first pages all sequences have in common: whole ones, as prefix caches share them.
    Raises InputError: the keys of a sequence lie in one piece, so that none can be shared."""
    if problem.shared_prefix is None:
        return tensor
    if problem.page_size is None:
        why = "keys are shared through the pages that hold them; accepted with it: `page_size`"
        raise InputError(f"`shared_prefix` {problem.shared_prefix} without `page_size`: {why}")
    # Prefix caches share whole pages; the tokens past the last whole one are each sequence's own.
    whole_pages = problem.shared_prefix // problem.page_size * problem.page_size
    return replace(tensor, shared_rows=whole_pages, shared_by=problem.sequence_count)


def in_cache(problem: AttentionProblem, tensor: Tensor) -> Tensor:
    if problem.widens:
        tensor = replace(
            tensor, element_bytes=problem.cache_type.bytes, format=problem.cache_type.name
        )
    tensor = _shared(problem, tensor)
    page = _counted_page(problem)
    if page is None:
        return tensor
    # A page whose rows of a head are no whole sectors: count each row in whole sectors.
    apart = tensor.strided or page * tensor.cols * tensor.element_bytes % SECTOR_BYTES != 0
    return replace(tensor, page_rows=page, strided=apart)


def table_tensor(problem: AttentionProblem, keys: int | None = None) -> tuple[Tensor, ...]:
    """The block table [batch, 1, pages] of all keys or so many, where the cache has pages."""
    page = _counted_page(problem)
    if page is None:
        return ()
    pages = -(-(problem.seq_k if keys is None else keys) // page)
    return (Tensor(TABLE, problem.batch, 1, pages, 1, TABLE_BYTES, Role.INPUT, keys_per_row=page),)


def table_access(problem: AttentionProblem) -> tuple[Access, ...]:
    """The read of the block table at every visited key block; it comes before those of K and V. Raises InputError:
    pages with a mask that is a list of blocks."""
    if _counted_page(problem) is None:
        return ()
    if not isinstance(problem.pair_mask, IntervalMask):
        raise InputError(
            f"`page_size` {problem.page_size} contradicts mask '{problem.mask}'; accepted with it: none, causal, window"
        )
    return (load(TABLE, Rows.KEY, Per.PAIR),)


def append_tensors(problem: AttentionProblem, kernel: Kernel) -> tuple[Tensor, ...]:
    """New rows of K and V [batch, 1, seq_q, kv_heads x width] and where they go, where the kernel appends them. NB: the
    rows written (`K_cache`, `V_cache`) are tensors beside the cache that the attention reads, so that a replay fetches
    them from HBM once more: seq_q of seq_k rows."""
    if not appends(kernel):
        return ()
    check_append(problem, kernel)
    p = problem
    # A latent cache has one tensor for both.
    widths = {"K": p.head_dim} if p.latent_kv else {"K": p.head_dim, "V": p.head_dim_v}

    def rows(name: str, width: int, role: Role) -> Tensor:
        size = (p.cache_type if role is Role.OUTPUT else p.input_type).bytes
        return Tensor(name, p.batch, 1, p.seq_q, p.kv_heads * width, size, role)

    all_tensors = [rows(f"{n}_new", w, Role.INPUT) for n, w in widths.items()]
    all_tensors += [rows(f"{n}_cache", w, Role.OUTPUT) for n, w in widths.items()]
    if p.page_size is not None:
        all_tensors.append(Tensor("slot_mapping", p.batch, 1, p.seq_q, 1, SLOT_BYTES, Role.INPUT))
    return tuple(all_tensors)


def append_launch(problem: AttentionProblem, kernel: Kernel) -> tuple[Launch, ...]:
    """The launch that writes the new tokens' K and V into the cache: a CTA a token, as in vLLM's
    reshape_and_cache_flash_kernel."""
    cache_tensors = append_tensors(problem, kernel)
    if not cache_tensors:
        return ()
    reads = (t.name for t in cache_tensors if t.role is not Role.OUTPUT)
    writes = (t.name for t in cache_tensors if t.role is Role.OUTPUT)
    widest = max(tensor.cols for tensor in cache_tensors)
    threads = max(32, min(APPEND_THREADS, -(-widest // 32) * 32))
    waits = options_of(kernel, CacheOptions).append_waits
    domain = Domain(problem.batch, 1, problem.seq_q, 1, 1, 1)
    return (
        row_pass(
            "append",
            domain,
            reads,
            writes,
            resources=Resources(threads),
            work=Work(serial_loads=waits),
            role=LaunchRole.APPEND,
        ),
    )


def page_notes(tensors: dict[str, Tensor]) -> tuple[str, ...]:
    paged = [t for t in tensors.values() if t.page_rows]
    if not paged:
        return ()
    page, unused = paged[0].page_rows, sum(t.allocated_bytes - t.bytes for t in paged)
    pages = paged[0].batch * -(-paged[0].rows // page)
    return (
        f"cache: {pages:,} pages of {page:,} tokens, {unused:,} bytes of the last pages unused",
    )

"""FlashInfer: packed rows, key rows of a tile by shared memory, and splits of one length over a whole batch; its decode
kernel on CUDA cores; and TensorRT-LLM's XQA, which it ships.

Source: flashinfer-ai/flashinfer @00b1eec4, include/flashinfer/attention/scheduler.cuh
(PrefillBinarySearchKVChunkSize, PrefillSplitQOKVIndptr), attention/prefill.cuh (BatchPrefillWithPagedKVCacheDispatched)
and utils.cuh (FA2DetermineCtaTileQ).
"""

from __future__ import annotations

import math
from bisect import bisect_left

from iosim.base.errors import InputError
from iosim.base.pointwise import pointwise
from iosim.base.records import replace
from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.cascade import CascadeOptions, levels
from iosim.catalog.algorithms.flash_options import FlashOptions
from iosim.catalog.libraries.resolver import resolve
from iosim.catalog.libraries.rules import Rules, rule_book
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem

CTAS_PER_SM = 2
"""CTAs for which the schedule divides the work, and for which tiles leave room."""
LEAST_CHUNK_TOKENS = 128
"""Tokens of a split at least; a page where that is longer."""
SHUFFLED_OPERATIONS = 2.0
"""Operations on a value in fp8 before it is widened: two shuffles for four, so that each lane has what products want
(frag_layout_swizzle.cuh), of which an SM makes 32 lanes' in a cycle."""
HIDDEN_CC = range(100, 110)
"""Where conversions are so slow that they hide these."""
PRODUCT_ROWS = 16
MERGE_CONFLICTS = 2
"""Wavefronts of a warp's eight values in a row over those that its bytes need (prefill.cuh,
threadblock_sync_mdo_states: each warp that has its own keys writes its fp32 part of O, and reads that of each)."""
MOST_PRODUCTS = 8
"""Products of 16 key rows that a warp's registers hold; half as many where it computes 32 query rows."""


@rule_book("flashinfer")
class FlashInferRules(Rules):
    """The heads of a group share a tile; every split of a call has the same number of tokens."""

    splits_packed = packs_groups = True

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        longest = max(k for _, k in problem.sequences)
        return -(-seen_keys(problem, longest, block_q) // chunk_tokens(problem, sms, block_q))

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        block_q, width = kernel.tile.block_q, kernel.compiled_head_dim or problem.head_dim_v
        key_warps = kernel.tile.warps if block_q == PRODUCT_ROWS else 0
        # Each warp with keys of its own writes its part of O in fp32 and reads that of every warp.
        merged = MERGE_CONFLICTS * key_warps * (1 + key_warps) * block_q * width * 4
        options = replace(options_of(kernel, FlashOptions), merged_bytes=merged)
        tile, loop = replace(kernel.tile, block_k=key_rows(problem, profile, block_q)), kernel.loop
        if problem.widens and profile.cc not in HIDDEN_CC:
            a_score = 2 * width * tile.warps / (max(1, key_warps) * block_q)
            loop = replace(
                loop, score_operations=loop.score_operations + SHUFFLED_OPERATIONS * a_score
            )
        return replace(kernel, tile=tile, options=options, loop=loop)


def chunk_tokens(
    problem: AttentionProblem, sms: int, block_q: int, ctas_per_sm: int = CTAS_PER_SM
) -> int:
    """Tokens of a split: the fewest with which the work tiles of a key/value head are at most its share of so many CTAs
    an SM."""
    page = problem.page_size or 1
    max_ctas = ctas_per_sm * sms // problem.kv_heads
    low = max(LEAST_CHUNK_TOKENS // page, 1)
    # Sequences alike: the search over the length of a split needs one of them.
    if problem.seq_lens is None:
        tiles, keys = (
            -(-problem.seq_q * problem.group // block_q),
            seen_keys(problem, problem.seq_k, block_q),
        )
        return page * _pages_of_alike(problem.batch, tiles, -(-keys // page), max_ctas, low)
    group = problem.group
    tiles_and_pages = [
        (-(-q * group // block_q), -(-seen_keys(problem, k, block_q) // page))
        for q, k in problem.sequences
    ]
    return page * _fewest(tiles_and_pages, max_ctas, low)


def seen_keys(problem: AttentionProblem, keys: int, block_q: int) -> int:
    """Keys of a sequence for which its splits are planned: under a window those of a tile's queries (effective_kv_len),
    as if each of its rows were a token."""
    page = problem.page_size or 1
    if problem.mask != "window" or problem.window is None:
        return keys
    return min(keys, -(-(problem.window + block_q) // page) * page)


def _fewest(tiles_and_pages: list[tuple[int, int]], max_ctas: int, low: int) -> int:
    """Pages of a split: of (tiles, pages) of each sequence."""
    # Bisection over the pages of a split, as more pages mean fewer CTAs: the first with at most max_ctas.
    sizes = range(low, max(pages for _, pages in tiles_and_pages))
    return low + bisect_left(
        sizes,
        -max_ctas,
        key=lambda size: -sum(tiles * -(-pages // size) for tiles, pages in tiles_and_pages),
    )


@pointwise
def _pages_of_alike(sequences: int, tiles: int, pages: int, max_ctas: int, low: int) -> int:
    return _fewest([(sequences * tiles, pages)], max_ctas, low)


@rule_book("flashinfer-cascade")
class FlashInferCascadeRules(FlashInferRules):
    """Both levels are calls of the same kernel, planned one by one (MultiLevelCascadeAttentionWrapper.plan)."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        if problem.shared_prefix is None:
            return super().finish(kernel, problem, profile)
        by_sequence, shared = (
            resolve("flashinfer", level, profile) for level in levels(problem, pages=True) if level
        )
        plain, again = options_of(by_sequence, FlashOptions), options_of(shared, FlashOptions)
        options = CascadeOptions(
            **vars(plain),
            shared_tile=(shared.tile.block_q, shared.tile.block_k),
            shared_splits=shared.splits,
            shared_merged_bytes=again.merged_bytes,
            shared_key_warps=shared.loop.key_warps,
        )
        return replace(
            by_sequence,
            name=kernel.name,
            algorithm=kernel.algorithm,
            options=options,
            notes=kernel.notes,
        )


DECODE_THREADS = 128
DECODE_STAGES = 2
"""Buffers of keys and values on cc 8.0 and later (DISPATCH_COMPUTE_CAP_DECODE_NUM_STAGES_SMEM)."""
KEYS_PER_THREAD_ROW = 4
"""Keys of a row of threads in a step, where a group has one head; 2 where the cache is in fp8, else 1."""


@rule_book("flashinfer-decode")
class FlashInferDecodeRules(FlashInferRules):
    """A row of threads a query head and key, each thread with 16 bytes of a row; no tensor cores."""

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        return None  # occupancy decides: see `finish`

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """Raises InputError: several query tokens, which it does not take."""
        _refuse_prefill(kernel, problem)
        bytes_of_value, width = (
            problem.cache_type.bytes,
            kernel.compiled_head_dim or problem.head_dim,
        )
        row_threads = width // max(16 // bytes_of_value, width // 32)
        threads = max(DECODE_THREADS, row_threads * problem.group)
        keys = threads // row_threads
        if problem.group == 1:
            keys *= KEYS_PER_THREAD_ROW if problem.cache_dtype is None else 2
        shared = 2 * DECODE_STAGES * keys * width * bytes_of_value
        # Occupancy decides whether it splits: only where all sequences leave CTAs idle.
        reserved = int(profile.need("shared_memory_reserved_per_block_bytes"))
        ctas = int(profile.need("shared_memory_per_sm_bytes")) // (shared + reserved)
        ctas = max(1, min(ctas, int(profile.need("max_threads_per_sm")) // threads))
        sms, splits = int(profile.need("sm_count")), 1
        if problem.sequence_count * problem.kv_heads < ctas * sms:
            splits = -(-problem.longest_k // chunk_tokens(problem, sms, problem.group, ctas))
        tile = replace(kernel.tile, block_q=problem.group, block_k=keys, warps=-(-threads // 32))
        # As many registers as let those CTAs run: the library asks the driver how many do, and makes no more chunks.
        unit = int(profile.need("register_allocation_unit")) // 32
        registers = int(profile.need("registers_per_sm")) // (ctas * threads) // unit * unit
        registers = min(registers, int(profile.need("max_registers_per_thread")))
        return replace(
            kernel, tile=tile, splits=splits, shared_memory_bytes=shared, registers=registers
        )


XQA_WARPS = 4
"""Warps that take QK^T, and as many PV; each has `XQA_SIDE` tokens, or columns."""
XQA_SIDE = 64
XQA_QUERY_BYTES = 16 << 10
"""Bytes of a group's queries, which stay in shared memory (persistentQ)."""
XQA_LEAST_TOKENS, XQA_WAVES = 128, 8
"""Tokens of a sub-sequence at least, and CTAs per SM at most (decoderXQAConstants.h)."""
XQA_WAITS = 4
"""Loads that a tile waits for, one behind the other, beside its keys' parts, of which two are on their way at once
(nbKBuffers). Fitted on 144 open rows of published_stacks.csv, TensorRT-LLM's decoding on four GPUs."""
XQA_BUFFERS = 2
"""Buffers of parts of keys, and of each group of warps that merges sub-sequences."""
SMALL_SHARED_CC = (86, 89, 120, 121)
"""Compute capabilities on which K is fetched 64 bytes of a row at a time, V 32 tokens; else 128 and 64."""


@rule_book("xqa")
class XqaRules(Rules):
    """Sub-sequences by TensorRT-LLM's rule (decoderXQAImplCommon.h, computeMultiBlockCount), which may be more than
    tiles of keys. One where the cache is in fp8: inferred from times, no source says so."""

    splits_alike = splits_packed = packs_groups = True

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        if problem.cache_dtype is not None:
            return 1
        # sqrt(8 n) sub-sequences of n possible ones, fewer where the GPU has too many CTAs already.
        max_splits = problem.longest_k // XQA_LEAST_TOKENS
        count = max(1, min(max_splits, round(math.sqrt(8 * max_splits))))
        waves = problem.sequence_count * problem.kv_heads * count / sms
        return max(1, int(count / max(1.0, waves / XQA_WAVES)))

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """Raises InputError: several query tokens, a wide group, or an fp8 cache on Hopper, which has its own."""
        _refuse_prefill(kernel, problem)
        if profile.cc == 90 and problem.cache_dtype is not None:
            hint = "accepted there: a cache of 16 bits, or kernel xqa-sm90 with `dtype` fp8"
            raise InputError(
                f"`cache_dtype` {problem.cache_dtype}: {profile.name} has another kernel for it; {hint}"
            )
        rows = -(-problem.group // PRODUCT_ROWS) * PRODUCT_ROWS
        width, size = kernel.compiled_head_dim or problem.head_dim, problem.input_type.bytes
        if rows * width * size > XQA_QUERY_BYTES:
            raise InputError(
                f"`heads` {problem.heads}, `kv_heads` {problem.kv_heads}: kernel xqa holds "
                f"{XQA_QUERY_BYTES:,} bytes of queries; accepted: groups of up to {XQA_QUERY_BYTES // (width * size)}"
            )
        # Shared memory of a CTA: queries, parts of keys, values and P, two buffers of each part.
        part, value_tokens = (64, 32) if profile.cc in SMALL_SHARED_CC else (128, 64)
        groups = max(1, XQA_WARPS * XQA_SIDE // width)
        keys = XQA_WARPS * 2 * XQA_SIDE * min(part, width * problem.cache_type.bytes)
        values = groups * 2 * value_tokens * width * problem.cache_type.bytes
        shared = rows * width * size + keys + values + XQA_WARPS * rows * XQA_SIDE * size
        options = replace(
            options_of(kernel, FlashOptions),
            combine_rows=problem.group,
            tile_waits=XQA_WAITS + width * problem.cache_type.bytes // part // XQA_BUFFERS,
            combine_loads_at_once=groups * XQA_BUFFERS,
        )
        tile = replace(kernel.tile, block_q=rows)
        return replace(kernel, tile=tile, shared_memory_bytes=shared, options=options)


XQA_HOPPER_THREADS = 384
"""A warpgroup for QK^T, one for PV, and warps that load; tiles of 64 keys, two of K and of V (mha_sm90.cu)."""


@rule_book("xqa-sm90")
class XqaHopperRules(XqaRules):
    """Keys are the rows of its products, a group's heads their columns, in eights. No more sub-sequences than tiles."""

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        seen = (
            problem.longest_k
            if problem.window is None
            else min(problem.longest_k, problem.window + 1)
        )
        return min(super().splits_of_tile(problem, sms, block_q, block_k) or 1, -(-seen // block_k))

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """Raises InputError: several query tokens."""
        _refuse_prefill(kernel, problem)
        rows, width, keys = (
            -(-problem.group // 8) * 8,
            kernel.compiled_head_dim or problem.head_dim,
            kernel.tile.block_k,
        )
        shared = rows * width + 4 * keys * width + 2 * rows * keys
        options, at_once = options_of(kernel, FlashOptions), XQA_WARPS * XQA_BUFFERS
        options = replace(options, combine_rows=problem.group, combine_loads_at_once=at_once)
        tile = replace(kernel.tile, block_q=rows)
        return replace(
            kernel,
            tile=tile,
            threads=XQA_HOPPER_THREADS,
            shared_memory_bytes=shared,
            options=options,
        )


def _refuse_prefill(kernel: Kernel, problem: AttentionProblem) -> None:
    if problem.longest_q > 1:
        raise InputError(
            f"`seq_q` {problem.longest_q}: kernel {kernel.name} takes one query token per sequence; accepted: 1"
        )


def key_rows(problem: AttentionProblem, profile: HardwareProfile, block_q: int) -> int:
    """Key rows of a tile: what two CTAs per SM leave of shared memory (one where two do not fit), and a power of two of
    16 rows per warp."""
    row = problem.head_dim * problem.input_type.bytes
    both = (problem.head_dim + problem.head_dim_v) * problem.cache_type.bytes
    key_warps = 4 if block_q == PRODUCT_ROWS else 1
    # Rows by which a tile grows: 16 a warp with keys of its own.
    step = PRODUCT_ROWS * key_warps
    shared = int(profile.need("shared_memory_per_sm_bytes"))
    ctas = CTAS_PER_SM if shared >= CTAS_PER_SM * (block_q * row + both * step) else 1
    fitting = (shared // ctas - block_q * row) // (both * step)
    products = max(1, min(fitting, MOST_PRODUCTS // (2 if block_q == 128 else 1)))
    return step * (1 << (products.bit_length() - 1))

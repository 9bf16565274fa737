"""FlashInfer: packed rows, key rows of a tile by shared memory, and splits of one length over a whole batch.

Source: flashinfer-ai/flashinfer @00b1eec4, include/flashinfer/attention/scheduler.cuh
(PrefillBinarySearchKVChunkSize, PrefillSplitQOKVIndptr), attention/prefill.cuh (BatchPrefillWithPagedKVCacheDispatched)
and utils.cuh (FA2DetermineCtaTileQ).
"""

from __future__ import annotations

from iosim.base.records import replace
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.problem.attention import AttentionProblem

CTAS_PER_SM = 2
"""CTAs for which the schedule divides the work, and for which tiles leave room."""
LEAST_CHUNK_TOKENS = 128
"""Of a split, but for pages that are longer."""
PRODUCT_ROWS = 16
MOST_PRODUCTS = 8
"""Products of 16 key rows that a warp's registers hold; half as many where it computes 32 query rows."""


@rule_book("flashinfer")
class FlashInferRules(Rules):
    """The heads of a group share a tile; every split of a call has the same number of tokens."""

    splits_packed = True

    def splits_of_tile(self, problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int | None:
        longest = max(k for _, k in problem.sequences)
        return -(-longest // chunk_tokens(problem, sms, block_q))

    def packs_group(self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int) -> bool:
        return problem.group > 1

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        block_k = key_rows(problem, profile, kernel.tile.block_q)
        return replace(kernel, tile=replace(kernel.tile, block_k=block_k))


def chunk_tokens(problem: AttentionProblem, sms: int, block_q: int) -> int:
    """Tokens of a split: the fewest with which the work tiles of a key/value head are at most its share of two CTAs an
    SM."""
    page = problem.page_size or 1
    most = CTAS_PER_SM * sms // problem.kv_heads
    each = [(-(-q * problem.group // block_q), -(-k // page)) for q, k in problem.sequences]
    low, high = max(LEAST_CHUNK_TOKENS // page, 1), max(pages for _, pages in each)
    while low < high:
        middle = (low + high) // 2
        if sum(tiles * -(-pages // middle) for tiles, pages in each) > most:
            low = middle + 1
        else:
            high = middle
    return low * page


def key_rows(problem: AttentionProblem, profile: HardwareProfile, block_q: int) -> int:
    """Key rows of a tile: what two CTAs an SM leave of shared memory (one where two do not fit), and a power of two of
    16 rows a warp."""
    row = problem.head_dim * problem.input_type.bytes
    both = (problem.head_dim + problem.head_dim_v) * problem.input_type.bytes
    key_warps = 4 if block_q == PRODUCT_ROWS else 1
    step = PRODUCT_ROWS * key_warps
    shared = int(profile.need("shared_memory_per_sm_bytes"))
    ctas = CTAS_PER_SM if shared >= CTAS_PER_SM * (block_q * row + both * step) else 1
    fitting = (shared // ctas - block_q * row) // (both * step)
    products = max(1, min(fitting, MOST_PRODUCTS // (2 if block_q == 128 else 1)))
    return step * (1 << (products.bit_length() - 1))

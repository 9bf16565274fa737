"""FlashMLA: packed rows and the splits of its scheduler; `mla`, the same with any tile; `dsa` and `dsv4`, its sparse
kernels behind an indexer.

Source: deepseek-ai/FlashMLA @69f31931, csrc/sm90/flash_api.cpp and kernels/get_mla_metadata.cu.
"""

from __future__ import annotations

import math
from typing import Any

from iosim.base.errors import InputError
from iosim.base.pointwise import pointwise
from iosim.base.records import replace
from iosim.catalog.algorithms import options_of
from iosim.catalog.algorithms.indexer import IndexerOptions
from iosim.catalog.libraries.rules import Rules, rule_book
from iosim.catalog.libraries.tiled import TiledRules
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.unit import MatrixUnit
from iosim.problem.attention import MX_CACHE, AttentionProblem

PAIRS_CC = 100
"""Compute capability from which CTAs work in pairs."""
SPARSE_WARPS = 12
"""Warps of the sparse kernels: two warpgroups compute, one gathers."""
INDEX_OPERATIONS = 3.0
"""Instructions of the indexer on a score: a maximum with 0, which has half the rate, and a multiply-add."""
TENSOR_MEMORY_OPERATIONS = 2.0
"""More of them where scores come out of tensor memory. Fitted (benchmarks/sparse.py)."""
GATHER_CYCLES = 11.0
"""SM cycles of a row that the sparse kernels gather, beside all else. Fitted (benchmarks/sparse.py)."""
WIDENING_CYCLES = 2 / 64 + 1 / 16 + 1 / 256
"""SM cycles of a value of the cache from fp8 to bf16, for want of an instruction: 50 for 512 (FlashMLA @15f13e50, its
page 20250929-hopper-fp8-sparse-deep-dive.md)."""
MLA_FIXED_BLOCKS = 5
"""What FlashMLA's scheduler adds to every sequence's key blocks for prologue and epilogue."""


@rule_book("flashmla")
class FlashMlaRules(Rules):
    """The query heads and tokens are the rows of a tile, always."""

    def splits_of_tile(
        self, problem: AttentionProblem, sms: int, block_q: int, block_k: int
    ) -> int | None:
        return flashmla_splits(problem, sms, block_q, block_k)

    def packs_group(
        self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int
    ) -> bool:
        return stated

    def options(self, profile: HardwareProfile, split: bool) -> dict[str, Any]:
        return {"index_ctas": profile.need_int("sm_count")}

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """The kernel, or where keys are picked the sparse ones (@9241ae3e): of a cache in fp8 the decode kernel, whose
        CTAs of a query form a cluster of up to 128 heads on cc 9.0 and go alone later (@4855c772,
        csrc/api/sparse_decode.h); of one in 16 bits the prefill kernel, whose CTAs go alone on cc 9.0 and in pairs
        later. Fewer heads than a tile has rows fill part of it. Raises InputError: dense decoding later than cc 9.0,
        which it is not built for."""
        # Four cases, by generation and by the cache's type; dense decoding has a kernel on cc 9.0 alone.
        later, decodes = profile.cc >= PAIRS_CC, problem.cache_dtype is not None
        if not problem.gathers:
            if later:
                hint = f"accepted on {profile.name}: `top_k`"
                raise InputError(
                    f"`kernel` {kernel.name}: its dense decoding is built for cc 9.0 alone; {hint}"
                )
            return kernel
        together = self.together(problem, later, decodes)
        rows = min(kernel.tile.block_q, max(1, problem.group // together))
        tile = replace(kernel.tile, block_q=rows, warps=max(SPARSE_WARPS, kernel.tile.warps))
        return replace(
            kernel,
            tile=tile,
            schedule=replace(kernel.schedule, cluster=together),
            matrix_unit=MatrixUnit.TCGEN05 if later else MatrixUnit.SPECIALISED,
            loop=replace(kernel.loop, producer_warps=SPARSE_WARPS),
            threads=None,
            registers=profile.need_int("registers_per_sm")
            // (256 * tile.warps)
            * 8,  # a CTA per SM, in eights a thread
            options=replace(options_of(kernel, IndexerOptions), gather_cycles=GATHER_CYCLES),
        )

    def together(self, problem: AttentionProblem, later: bool, decodes: bool) -> int:
        """CTAs of a cluster, which share a query's heads."""
        return 1 if later == decodes else 2 if later else min(2, -(-problem.group // 64))


@rule_book("dsa")
class DsaRules(FlashMlaRules):
    """FlashMLA's rules, and what DeepGEMM's indexer takes of a GPU (csrc/jit_kernels/impls/smxx_fp8_mqa_logits.hpp): a
    CTA per SM, of 512 threads that compute on cc 9.0 and 256 on 10.0, and 128 that load."""

    needs: tuple[str, ...] = ("top_k", "index_heads")
    """Fields that it does not go without."""
    such = "top_k=2048, index_heads=64"

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        for name in self.needs:
            if getattr(problem, name) is None:
                reason = (
                    f"its queries find keys by lists; accepted with it: `{name}`, as in {self.such}"
                )
                raise InputError(f"`kernel` {kernel.name}: {reason}")
        return super().finish(kernel, problem, profile)

    def options(self, profile: HardwareProfile, split: bool) -> dict[str, Any]:
        later = profile.cc >= PAIRS_CC
        return super().options(profile, split) | {
            "index_threads": 384 if later else 640,
            "index_unit": str(MatrixUnit.TCGEN05 if later else MatrixUnit.PINGPONG),
            "index_operations": INDEX_OPERATIONS + TENSOR_MEMORY_OPERATIONS * later,
        }


@rule_book("dsv4")
class Dsv4Rules(DsaRules):
    """Rules of the indexer's kernel over compressed keys: up to 128 heads on as many CTAs as they fill (@4855c772,
    csrc/api/sparse_decode.h)."""

    needs = ("compress_ratio",)
    such = (
        "window=127, compress_ratio=4, top_k=512, index_heads=64, or window=127, compress_ratio=128"
    )

    def together(self, problem: AttentionProblem, later: bool, decodes: bool) -> int:
        return min(2, -(-problem.group // 64))

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """Raises InputError: a cache of DeepSeek-V4.1's before cc 10.0, for which the release that reads it has no
        kernels (@ddedb079, README.md)."""
        kernel = super().finish(kernel, problem, profile)
        if problem.cache_dtype is None or profile.cc >= PAIRS_CC:
            return kernel
        if problem.cache_dtype == MX_CACHE:
            hint = f"accepted on {profile.name}: fp8"
            raise InputError(
                f"`cache_dtype` {MX_CACHE}: FlashMLA reads it on cc 10.0 and later; {hint}"
            )
        columns = (
            problem.head_dim * 7 // 8 / kernel.schedule.cluster
        )  # columns without positions, shared out
        options = options_of(kernel, IndexerOptions)
        cycles = options.gather_cycles + WIDENING_CYCLES * columns
        return replace(kernel, options=replace(options, gather_cycles=cycles))


@rule_book("mla")
class AnyTileMlaRules(FlashMlaRules):
    """FlashMLA's rules for a tile that is halved until it fits, on any GPU."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        kernel = TiledRules().finish(kernel, problem, profile)
        if not problem.gathers:
            return kernel
        rows = math.gcd(kernel.tile.block_q, problem.group)
        return replace(kernel, tile=replace(kernel.tile, block_q=rows))


def flashmla_splits(problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
    """FlashMLA's splits of a sequence, the mean over a batch of equal lengths, rounded (deepseek-ai/FlashMLA @69f31931,
    csrc/sm90/flash_api.cpp and kernels/get_mla_metadata.cu).

    The SMs form one part for every (key/value head, query block); the parts take the key blocks of all sequences in
    turn, a part as many as the mean and 5 more, and a sequence is split where a part ends.
    NB: in a batch some sequences are split and others are not; here all get the rounded mean.
    """
    if problem.gathers and problem.cache_dtype is None:
        return 1  # the prefill kernel
    # Parts of the GPU, one for each head and query block; a part takes equally many key blocks, the
    # fixed cost of each sequence included.
    query_blocks = -(-problem.seq_q * problem.group // block_q)
    parts = max(1, sms // problem.kv_heads // query_blocks)
    entries = (
        problem.attended_keys
        if problem.compress_ratio is not None
        else problem.top_k or problem.seq_k
    )
    blocks = -(-entries // block_k)
    share = -(-problem.batch * (blocks + MLA_FIXED_BLOCKS) // parts) + MLA_FIXED_BLOCKS
    payload = max(share, 2 * MLA_FIXED_BLOCKS)
    total = _flashmla_pieces(problem.batch, blocks, payload)
    return max(1, min(blocks, round(total / problem.batch)))


@pointwise
def _flashmla_pieces(batch: int, blocks: int, payload: int) -> int:
    """Pieces that parts of `payload` blocks cut `batch` sequences of `blocks` key blocks into."""
    pieces, remaining = 0, payload
    # Sequences one after the other; a sequence that does not fit the part's rest goes on in the next.
    for _ in range(batch):
        rest = blocks
        while remaining < rest + MLA_FIXED_BLOCKS:
            if remaining > MLA_FIXED_BLOCKS:
                rest -= remaining - MLA_FIXED_BLOCKS
                pieces += 1
            remaining = payload
        remaining -= rest + MLA_FIXED_BLOCKS
        pieces += 1
    return pieces

"""FlashMLA: packed rows and the splits of its scheduler; and `mla`, the same with any tile.

Source: deepseek-ai/FlashMLA @69f31931, csrc/sm90/flash_api.cpp and kernels/get_mla_metadata.cu.
"""

from __future__ import annotations

from iosim.base.pointwise import pointwise
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.kernel.libraries.tiled import TiledRules
from iosim.problem.attention import AttentionProblem

MLA_FIXED_BLOCKS = 5
"""What FlashMLA's scheduler adds to every sequence's key blocks for prologue and epilogue."""


@rule_book("flashmla")
class FlashMlaRules(Rules):
    """The query heads and tokens are the rows of a tile, always."""

    def splits_of_tile(self, problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int | None:
        return flashmla_splits(problem, sms, block_q, block_k)

    def packs_group(self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int) -> bool:
        return stated


@rule_book("mla")
class AnyTileMlaRules(FlashMlaRules):
    """FlashMLA's rules for a tile that is halved until it fits."""

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        return TiledRules().finish(kernel, problem, profile)


def flashmla_splits(problem: AttentionProblem, sms: int, block_q: int, block_k: int) -> int:
    """FlashMLA's splits of a sequence, the mean over a batch of equal lengths, rounded (deepseek-ai/FlashMLA @69f31931,
    csrc/sm90/flash_api.cpp and kernels/get_mla_metadata.cu).

    The SMs form one part for every (key/value head, query block); the parts take the key blocks of all sequences in
    turn, a part as many as the mean and 5 more, and a sequence is split where a part ends.
    NB: in a batch some sequences are split and others are not; here all get the rounded mean.
    """
    query_blocks = -(-problem.seq_q * problem.group // block_q)
    parts = max(1, sms // problem.kv_heads // query_blocks)
    blocks = -(-problem.seq_k // block_k)
    share = -(-problem.batch * (blocks + MLA_FIXED_BLOCKS) // parts) + MLA_FIXED_BLOCKS
    payload = max(share, 2 * MLA_FIXED_BLOCKS)
    total = _flashmla_pieces(problem.batch, blocks, payload)
    return max(1, min(blocks, round(total / problem.batch)))


@pointwise
def _flashmla_pieces(batch: int, blocks: int, payload: int) -> int:
    """Pieces that parts of `payload` blocks cut `batch` sequences of `blocks` key blocks into."""
    pieces, left = 0, payload
    for _ in range(batch):
        rest = blocks
        while left < rest + MLA_FIXED_BLOCKS:
            if left > MLA_FIXED_BLOCKS:
                rest -= left - MLA_FIXED_BLOCKS
                pieces += 1
            left = payload
        left -= rest + MLA_FIXED_BLOCKS
        pieces += 1
    return pieces

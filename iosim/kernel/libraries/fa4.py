"""FlashAttention-4's forward on Blackwell: a static persistent stride without a mask, longest tiles first under one.

Source: Dao-AILab/flash-attention @0251105a, flash_attn/cute/tile_scheduler.py (StaticPersistentTileScheduler,
SingleTileLPTScheduler) and interface.py (pack_gqa). Work stealing (FA_CLC=1) is off by default and left out.
"""

from __future__ import annotations

from iosim.base.records import replace
from iosim.kernel.libraries.fa3 import fa3_section_heads
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.kernel.schedule import Order, Schedule, Scheduler, Start
from iosim.problem.attention import AttentionProblem

SECTION_BYTES = 50 << 20


@rule_book("fa4")
class Fa4Rules(Rules):
    """Without a mask as the file states; under one a CTA a tile, the longest first, in sections of heads whose K and V
    take 50 MiB. The query heads of a group share rows."""

    def packs_group(self, problem: AttentionProblem, stated: bool, splits: int, block_q: int, block_k: int) -> bool:
        return problem.group > 1

    def schedule(self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool) -> Schedule:
        if problem.mask == "none":
            return stated
        section = fa3_section_heads(problem, SECTION_BYTES, packed)
        return replace(
            stated, order=Order.HEAD, start=Start.HEAVY_FIRST, scheduler=Scheduler.STATIC, section_heads=section
        )

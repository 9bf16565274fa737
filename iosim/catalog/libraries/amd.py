"""Grids of AMD's kernels: heads fastest in each sequence of the batch, one sequence after the other.

Sources: HazyResearch/HipKittens @f09e9685 and ROCm/aiter @e4048607, whose grids are (heads, blocks, batch). A catalog
file's `chiplets` says that heads are shared out among the L2s of the chiplets (remap_xcd).
"""

from __future__ import annotations

from iosim.base.records import replace
from iosim.catalog.libraries.rules import Rules, rule_book
from iosim.kernel.schedule import Schedule
from iosim.problem.attention import AttentionProblem


@rule_book("amd")
class AmdRules(Rules):
    """A section of the grid is a sequence's heads."""

    def schedule(
        self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool
    ) -> Schedule:
        return replace(stated, section_heads=problem.heads if problem.batch > 1 else 0)

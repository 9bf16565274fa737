"""Problems and schedules whose orders tests ask for."""

from __future__ import annotations

from iosim.catalog.algorithms import plan
from iosim.hardware.profile import load_profile
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.schedule import Schedule
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.lowering import start_order

FILE = "flash-sm90"


H200 = load_profile("h200")


CAUSAL = AttentionProblem(heads=8, seq_q=2048, head_dim=128, dtype="bf16", mask="causal")


def played(schedule: Schedule, blocks: int, heads: int, batch: int) -> list[tuple[int, int]]:
    """(head, block) of the tiles in the order in which the replay starts them; those past a head's end left out."""
    problem = AttentionProblem(batch=batch, heads=heads, seq_q=16 * blocks, head_dim=8)
    launch = plan(problem, Kernel("flash", "flash", Tile(16, 16), schedule)).launches[0]
    return list(zip(*(array.tolist() for array in start_order(launch)), strict=True))

"""This project's kernels for Hopper: the order that their launchers take by default."""

from __future__ import annotations

from iosim.base.records import replace
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.kernel.libraries.rules import Rules, rule_book
from iosim.kernel.schedule import Order, Schedule, Start
from iosim.problem.attention import AttentionProblem


@rule_book("flash-sm90")
class FlashSm90Rules(Rules):
    """Under a mask heads fastest and the blocks with most to do first; without one blocks fastest."""

    def schedule(self, problem: AttentionProblem, stated: Schedule, splits: int, packed: bool) -> Schedule:
        masked = problem.mask != "none"
        return replace(stated, order=Order.HEAD, start=Start.HEAVY_FIRST) if masked else stated

    def finish(self, kernel: Kernel, problem: AttentionProblem, profile: HardwareProfile) -> Kernel:
        """NB: key blocks in ascending order are the backward's heavy ones first."""
        if problem.mask == "none":
            return kernel
        schedule = replace(kernel.backward.schedule, order=Order.HEAD)
        return replace(kernel, backward=replace(kernel.backward, schedule=schedule))

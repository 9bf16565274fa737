"""Attention through N x N tensors (`naive`, `eager`, `math`, `uniform-naive`): products of a matrix library.

Their tiles are chosen in `iosim.kernel.algorithms.matrix_tiles`, by the GPU's SMs.
"""

from __future__ import annotations

from typing import Any

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.libraries.rules import Rules, rule_book


@rule_book("eager")
class EagerRules(Rules):
    """The products' tiles go by the number of SMs."""

    def options(self, profile: HardwareProfile, split: bool) -> dict[str, Any]:
        return {"sm_count": int(profile.need("sm_count"))}

"""How far off a predicted time may be where rates were not measured on the GPU itself.

Rates that are another GPU's, inferred or assumed are replaced by the least and by the most that GPUs reach whose rates
are known; what is left unexplained where all are measured comes on top. Two more times, no replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import RATES_KNOWN, unmeasured_rates
from iosim.kernel.conditions import Conditions
from iosim.kernel.traffic import Traffic
from iosim.prediction.call import Call

HBM_RATES = tuple(f"dram_{way}_bandwidth_bytes_per_s" for way in ("read", "write", "copy"))
"""Known or not known together."""
UNEXPLAINED = (0.15, 2e-6)
"""Share and seconds, whichever is more, that times are off where rates were measured: of nine tenths of recorded calls
on an H200 (docs/timing.md)."""


@dataclass(frozen=True)
class TimeRange:
    """Least and most seconds of a call.

    Attributes:
        seconds: the least and the most.
        rates: what was not measured on this GPU, with the factors by which it may be slower and faster.
    """

    seconds: tuple[float, float]
    rates: Mapping[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """As the command line's JSON has it."""
        return {"time_s": list(self.seconds), "rates": {name: list(values) for name, values in self.rates.items()}}


def range_of(call: Call, traffic: Traffic, found_s: float, conditions: Conditions) -> TimeRange | None:
    """The range of a call that was predicted to take `found_s`; None where its GPU's rates were measured."""
    rates = {name: RATES_KNOWN[name] for name in unmeasured_rates(call.profile)}
    if not rates:
        return None
    several = [found_s]
    for end in (0, 1):
        profile = _with(call.profile, {name: shares[end] for name, shares in rates.items()})
        several.append(replace(call, profile=profile).time(traffic, conditions).total_s)
    share, least = UNEXPLAINED
    low, high = min(several), max(several)
    return TimeRange((max(0.0, low - max(share * low, least)), high + max(share * high, least)), rates)


def _with(profile: HardwareProfile, factors: Mapping[str, float]) -> HardwareProfile:
    """The GPU with each of these rates times a factor."""
    changed: dict[str, Any] = {}
    for name, factor in factors.items():
        value = getattr(profile, name)
        if isinstance(value, Mapping):
            changed[name] = {dtype: rate * factor for dtype, rate in value.items()}
        elif name == "dram_read_bandwidth_bytes_per_s":
            for way in HBM_RATES:
                rate = getattr(profile, way)
                changed[way] = rate and rate * factor
        else:
            changed[name] = value * factor
    return replace(profile, **changed)

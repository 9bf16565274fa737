"""The roofs of a GPU's roofline: a level's bandwidth and the rate of matrix products, as specified and as measured."""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.words import Level
from iosim.hardware.profile import HardwareProfile

Ceilings = dict[str, tuple[float, float]]
"""(bytes per second of a level, operations per second) by "measured" and "specification"; what is unknown is absent."""


def tensor_rate(profile: HardwareProfile, dtype: str, measured: bool) -> float | None:
    """Operations per second of matrix products; those of the fp32 units where a dtype has no tensor rate."""
    try:
        return profile.tensor_flops(dtype, measured=measured)
    except InputError:
        return None if measured else profile.fp32_flops_per_s


def bandwidth(profile: HardwareProfile, level: Level, measured: bool) -> float | None:
    """Bytes per second of a level; of L2's measured curve, the best."""
    if level == "hbm":
        return (
            profile.dram_bandwidth_measured_bytes_per_s
            if measured
            else profile.dram_bandwidth_bytes_per_s
        )
    if not measured:
        return profile.l2_read_bandwidth_bytes_per_s
    curve = profile.l2_read_bandwidth_by_footprint_bytes_per_s
    return (
        max(rate for _, rate in curve) if curve else profile.l2_read_bandwidth_measured_bytes_per_s
    )


def ceilings(profile: HardwareProfile, dtype: str, level: Level) -> Ceilings:
    """The roofs of a level that a profile knows. A half of a measured roof that was not measured is as specified."""
    plain, own = (
        (bandwidth(profile, level, m), tensor_rate(profile, dtype, m)) for m in (False, True)
    )
    measured = (
        tuple(best or other for best, other in zip(own, plain, strict=True))
        if any(own)
        else (None, None)
    )
    both = {"measured": measured, "specification": plain}
    return {name: (wide, fast) for name, (wide, fast) in both.items() if wide and fast}

"""What a profile says of its GPU, in one sentence."""

from __future__ import annotations

from iosim.base.units import bytes_text
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import evidence


def answer(profile: HardwareProfile) -> str:
    """SMs, what the L2 keeps, memory and its bandwidth, and what the numbers rest on."""
    parts = [f"{profile.name} has {profile.sm_count} SMs"]
    if profile.l2_bytes:
        l2 = f"a {bytes_text(profile.l2_bytes)} L2"
        if (profile.l2_partitions or 1) > 1:
            l2 += f" in {profile.l2_partitions} partitions"
        if profile.l2_effective_capacity_fraction and profile.l2_partitions:
            kept = profile.l2_bytes * profile.l2_effective_capacity_fraction / profile.l2_partitions
            l2 += f" that keep{'s' * (profile.l2_partitions == 1)} {bytes_text(kept)} of data shared by all SMs"
        parts.append(l2)
    if profile.dram_bandwidth_bytes_per_s:
        memory = "" if profile.memory_bytes is None else f"{bytes_text(profile.memory_bytes)} of "
        rate = f"{memory}memory at {bytes_text(profile.dram_bandwidth_bytes_per_s)}/s"
        measured = profile.dram_bandwidth_measured_bytes_per_s
        parts.append(f"{rate} ({bytes_text(measured)}/s measured)" if measured else rate)
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{listed}; {evidence(profile)}."

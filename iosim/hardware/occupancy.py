"""How many CTAs of a kernel fit on one SM, by NVIDIA's rules.

The rules are those of the occupancy calculator in the CUDA toolkit (`cuda_occupancy.h`, which the tests compile and
compare with): warps, registers, shared memory and CTA slots each set a limit, and the smallest holds. Clusters, named
barriers and the choice of a good tile are not treated here.
"""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.base.fields import whole
from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile

_UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class Occupancy:
    """CTAs of one kernel on one SM, and what decides their number.

    Attributes:
        ctas_per_sm: resident CTAs; 0 when the kernel cannot be launched at all.
        limited_by: the resources whose limit is `ctas_per_sm`: of `warps`, `registers`, `shared_memory`, `blocks`.
        warps_per_sm: resident warps.
        occupancy: resident warps as a fraction of `max_warps_per_sm`.
        limit_warps, limit_registers, limit_shared_memory, limit_blocks: CTAs that each resource alone would allow;
            None where the kernel uses none of it.
        registers_per_cta: 32-bit registers set aside for a CTA, whole allocation units.
        shared_memory_per_cta_bytes: shared memory set aside for a CTA, with what the driver reserves.
        shared_memory_carveout_bytes: shared memory that the SM splits off L1: by the preference, or without one the
            smallest setting that holds all resident CTAs. NB: the driver may choose a larger one.
        reason: why no CTA fits, for a person to act on; empty when one does.
    """

    ctas_per_sm: int
    limited_by: tuple[str, ...]
    warps_per_sm: int
    occupancy: float
    limit_warps: int
    limit_registers: int | None
    limit_shared_memory: int | None
    limit_blocks: int
    registers_per_cta: int
    shared_memory_per_cta_bytes: int
    shared_memory_carveout_bytes: int
    reason: str = ""


def occupancy(
    profile: HardwareProfile,
    threads_per_cta: int,
    registers_per_thread: int,
    shared_memory_bytes: int,
    carveout: int | None = None,
) -> Occupancy:
    """The occupancy of a kernel, CTA by CTA.

    Args:
        profile: the GPU.
        threads_per_cta: threads of a CTA, at least 1.
        registers_per_thread: 32-bit registers, as the compiler reports them; 0 for a kernel that uses none.
        shared_memory_bytes: static and dynamic shared memory of a CTA, without what the driver reserves. The kernel is
            taken to have opted in to the largest size.
        carveout: CUDA's preferred shared-memory carve-out, in percent of the SM's shared memory (0 to 100); None for no
            preference. A preference too small for one CTA is raised, as the hardware does.

    Raises:
        InputError: an argument is out of its range, or the profile does not know a limit.
    """
    _check_arguments(carveout, registers_per_thread, shared_memory_bytes, threads_per_cta)

    # Four limits, each by itself; the smallest decides (CUDA programming guide, hardware
    # implementation). A CTA beyond the threads of a block does not launch at all.
    max_warps = profile.need_int("max_warps_per_sm")
    warps = -(-threads_per_cta // profile.warp_size)
    limit_blocks = profile.need_int("max_blocks_per_sm")
    max_threads = profile.need_int("max_threads_per_block")
    limit_warps = max_warps // warps if threads_per_cta <= max_threads else 0
    limit_registers, registers_per_cta, too_many_registers = _by_registers(
        profile, warps, registers_per_thread
    )
    limit_shared, shared_per_cta, shared_per_sm = _by_shared_memory(
        profile, shared_memory_bytes, carveout
    )

    limits = {
        "warps": limit_warps,
        "registers": limit_registers,
        "shared_memory": limit_shared,
        "blocks": limit_blocks,
    }
    ctas = min(limits.values())
    if carveout is None:
        shared_per_sm = _carveout(profile, ctas * shared_per_cta)
    reasons = (
        _too_many_threads(profile, threads_per_cta) if limit_warps == 0 else "",
        too_many_registers,
        _too_much_shared_memory(profile, shared_memory_bytes) if limit_shared == 0 else "",
    )
    return Occupancy(
        ctas_per_sm=ctas,
        limited_by=tuple(name for name, limit in limits.items() if limit == ctas),
        warps_per_sm=ctas * warps,
        occupancy=ctas * warps / max_warps,
        limit_warps=limit_warps,
        limit_registers=None if limit_registers == _UNLIMITED else limit_registers,
        limit_shared_memory=None if limit_shared == _UNLIMITED else limit_shared,
        limit_blocks=limit_blocks,
        registers_per_cta=registers_per_cta,
        shared_memory_per_cta_bytes=shared_per_cta,
        shared_memory_carveout_bytes=shared_per_sm,
        reason="; ".join(filter(None, reasons)),
    )


def _check_arguments(
    carveout: int | None, registers_per_thread: int, shared_memory_bytes: int, threads_per_cta: int
) -> None:
    """Raises InputError: an argument is out of its range."""
    whole("threads_per_cta", threads_per_cta, 1)
    whole("registers_per_thread", registers_per_thread, 0)
    whole("shared_memory_bytes", shared_memory_bytes, 0)
    if carveout is not None:
        whole("carveout", carveout, 0, 100)


def _too_many_threads(profile: HardwareProfile, threads: int) -> str:
    allowed = profile.need_int("max_threads_per_block")
    return f"needs {threads:,} threads a CTA, {profile.target} allows {allowed:,}"


def _too_much_shared_memory(profile: HardwareProfile, needed: int) -> str:
    allowed = profile.need_int("shared_memory_per_block_optin_bytes")
    return f"needs {needed:,} bytes of shared memory, {profile.target} allows {allowed:,}"


def _by_registers(
    profile: HardwareProfile, warps: int, registers_per_thread: int
) -> tuple[int, int, str]:
    """CTAs that the register file allows, the registers set aside for one, and why it allows none. Registers are given
    to whole warps in units. Each of the SM's sub-partitions has its share of the file and holds whole warps; a launch
    is also refused when a CTA, its warps rounded up to all sub-partitions, exceeds the limit of a block."""
    # A warp's registers come in whole units. The launch check rounds warps up to all sub-partitions;
    # what a CTA takes of the file is its true warps alone.
    parts, sm = profile.need_int("warp_allocation_granularity"), profile.target
    per_warp = _round_up(
        registers_per_thread * profile.warp_size, profile.need_int("register_allocation_unit")
    )
    taken, needed = per_warp * warps, per_warp * _round_up(warps, parts)
    if registers_per_thread > (limit := profile.need_int("max_registers_per_thread")):
        return 0, taken, f"needs {registers_per_thread:,} registers a thread, {sm} allows {limit:,}"
    if needed > (limit := profile.need_int("registers_per_block")):
        return 0, taken, f"needs {needed:,} registers a CTA, {sm} allows {limit:,}"
    if per_warp == 0:
        return _UNLIMITED, 0, ""
    # Each sub-partition holds whole warps of its own share of the file.
    # (NVIDIA's occupancy calculator: registers are given out a warp at a time, within a sub-partition.)
    warps_per_part = profile.need_int("registers_per_sm") // parts // per_warp
    return warps_per_part * parts // warps, taken, ""


def _by_shared_memory(
    profile: HardwareProfile, requested: int, carveout: int | None
) -> tuple[int, int, int]:
    """CTAs that shared memory allows, bytes set aside for one, and bytes of the SM that are shared memory."""
    whole = profile.need_int("shared_memory_per_sm_bytes")
    reserved = profile.need_int("shared_memory_reserved_per_block_bytes")
    # The driver's own bytes are in every CTA, before rounding to the allocation unit.
    per_cta = _round_up(
        requested + reserved, profile.need_int("shared_memory_allocation_unit_bytes")
    )
    preferred = whole if carveout is None else _carveout(profile, carveout * whole // 100)
    if per_cta > profile.need_int("shared_memory_per_block_optin_bytes") + reserved:
        return 0, per_cta, preferred
    # The hardware raises a preference that is too small for one CTA.
    available = preferred if preferred >= per_cta else _carveout(profile, per_cta)
    return (available // per_cta if per_cta else _UNLIMITED), per_cta, available


def _carveout(profile: HardwareProfile, needed: int) -> int:
    """The smallest carve-out of at least `needed` bytes; the largest when none is."""
    settings = profile.shared_memory_carveouts_bytes
    if settings is None:
        raise InputError(f"profile '{profile.name}' does not know shared_memory_carveouts_bytes")
    return next((size for size in settings if size >= needed), settings[-1])


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit

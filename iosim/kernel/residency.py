"""How many CTAs of a launch run at once on a GPU, and in how many waves."""

from __future__ import annotations

from iosim.base.records import dataclass
from iosim.hardware.occupancy import Occupancy, occupancy
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import Launch, Outer, is_attention_loop

REGISTERS_BESIDES_ACCUMULATORS = 56
"""Addresses, row statistics and operand fragments of a tensor-core attention kernel: an estimate, used only where no
resource report states the registers."""
PLAIN_REGISTERS = 40
"""Registers of a launch without tensor-core products: an estimate (the recorded ones use 18 to 54)."""


@dataclass(frozen=True)
class Residency:
    """`slots` CTAs run at once, or clusters where one shares a work tile; those of the launch need `waves` rounds.
    `spilled_registers` are those that a thread would like beyond what there are, by estimate; 0 where all fit, or a
    source says what the kernel takes and spills."""

    ctas_per_sm: int
    slots: int
    waves: float
    occupancy: Occupancy
    registers: int
    registers_estimated: bool
    spilled_registers: int = 0

    @property
    def misfit(self) -> str:
        """What a CTA is short of, of which a thread's registers alone would only be spilled; empty where it fits."""
        return "; ".join(reason for reason in (self.occupancy.reason, self.spilling) if reason)

    @property
    def spilling(self) -> str:
        """Registers that the compiler would spill at a cost that is not known; empty where there are none."""
        if not self.spilled_registers:
            return ""
        needed = self.registers + self.spilled_registers
        return f"needs about {needed:,} registers a thread, at most {self.registers}"


def loop_registers(accumulators: int, threads: int) -> int:
    return accumulators // threads + REGISTERS_BESIDES_ACCUMULATORS


def needed_registers(launch: Launch) -> int:
    """Registers a thread that the launch would like to have, however many there are: an estimate. fp32 accumulators of
    S (block_q x block_k) and of the output tile, one register an element, shared among the threads, plus a fixed part.
    In the backward pass the output tile is dK with dV, and dS is held beside them."""
    d = launch.domain
    if launch.outer is Outer.FLAT or not launch.work.flops_per_pair:
        return PLAIN_REGISTERS
    # Two products of two FLOPs a column: their columns, or dK's with dV's in a backward.
    width = launch.work.flops_per_pair // 4
    output = (d.block_k if launch.outer is Outer.KEY else d.block_q) * width
    return loop_registers(d.block_q * d.block_k + output, launch.resources.threads)


def estimated_registers(launch: Launch, profile: HardwareProfile) -> int:
    """Registers a thread that the launch gets: `needed_registers`, at most what the hardware has for one."""
    return min(profile.need_int("max_registers_per_thread"), needed_registers(launch))


def spilled_registers(launch: Launch, profile: HardwareProfile) -> int:
    """Registers that an attention loop's accumulators take beyond those that there are, by estimate; 0 where a source
    says how many the kernel takes, whose spills are then known or none."""
    if launch.resources.registers is not None or not is_attention_loop(launch):
        return 0
    return needed_registers(launch) - estimated_registers(launch, profile)


def residency(launch: Launch, profile: HardwareProfile) -> Residency:
    """Resident CTAs of a launch; its registers are estimated where the kernel does not state them. What fits is said
    here alone: shared memory, threads and registers. Raises InputError: the profile does not know a limit. A CTA that
    fits on no SM is no error here: the occupancy says so."""
    estimated = launch.resources.registers is None
    registers = (
        estimated_registers(launch, profile) if estimated else int(launch.resources.registers or 0)
    )
    shared = launch.resources.shared_memory_bytes or 0
    # Where nothing fits one CTA is taken to run, so that a time comes out; `misfit` says so.
    occupied = occupancy(profile, launch.resources.threads, registers, shared)
    per_sm = max(1, occupied.ctas_per_sm)
    # Clusters of tile_ctas SMs share a work tile: so many fewer run at once.
    slots = per_sm * (profile.sm_count // launch.tile_ctas)
    if launch.persistent_ctas is not None:
        slots = min(slots, launch.ctas)
    spilled = spilled_registers(launch, profile)
    return Residency(
        per_sm, slots, launch.work_tiles / slots, occupied, registers, estimated, spilled
    )

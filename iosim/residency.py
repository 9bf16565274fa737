"""How many CTAs of a launch run at once on a GPU, and in how many waves."""

from __future__ import annotations

from dataclasses import dataclass

from iosim.hardware import HardwareProfile
from iosim.launch import Launch
from iosim.occupancy import Occupancy, occupancy

ACCUMULATOR_BYTES = 4
REGISTERS_BESIDES_ACCUMULATORS = 56
"""Addresses, row statistics and operand fragments of a tensor-core attention kernel: an estimate, used only where no
resource report states the registers."""


@dataclass(frozen=True)
class Residency:
    """`slots` CTAs run at once; the launch's work tiles need `waves` rounds of them."""

    ctas_per_sm: int
    slots: int
    waves: float
    occupancy: Occupancy
    registers: int
    registers_estimated: bool


def estimated_registers(launch: Launch, profile: HardwareProfile) -> int:
    """Registers a thread: fp32 accumulators of S and of the output tile, plus a fixed part; at most the hardware's."""
    d = launch.domain
    width = launch.flops_per_pair // 4
    most = int(profile.max_registers_per_thread or 255)
    if launch.outer == "flat" or not launch.tensor_cores:
        return min(most, 40)
    scores = d.block_q * d.block_k
    output = (d.block_k if launch.outer == "k" else d.block_q) * width
    return min(most, (scores + output) // launch.resources.threads + REGISTERS_BESIDES_ACCUMULATORS)


def residency(launch: Launch, profile: HardwareProfile) -> Residency:
    """Resident CTAs of a launch; its registers are estimated where the kernel does not state them.

    Raises:
        InputError: no CTA fits on an SM (the message says what it needs and what there is), or an absent limit.
    """
    estimated = launch.resources.registers is None
    registers = estimated_registers(launch, profile) if estimated else int(launch.resources.registers or 0)
    shared = launch.resources.shared_memory_bytes or 0
    found = occupancy(profile, launch.resources.threads, registers, shared)
    per_sm = max(1, found.ctas_per_sm)
    slots = per_sm * profile.sm_count
    if launch.persistent_ctas is not None:
        slots = min(slots, launch.ctas)
    return Residency(per_sm, slots, launch.work_tiles / slots, found, registers, estimated)

"""What a warp does with the units of its SM, an instruction at a time, as machine code has it.

A `Slot` is one instruction of a warp: which unit it takes and for how long, when its warp may go on, what it waits for,
and what it asks of memory. A `Machine` is a kernel's loop over keys and what stands around it; time follows from it
(`iosim.readers.timing.warps`), bytes do not.
"""

from __future__ import annotations

from iosim.base.records import dataclass

SOURCE = "counted in machine code"
SECTOR_BYTES, LINE_BYTES = 32, 128


@dataclass(frozen=True)
class MemoryUse:
    """What one execution of a load or store by a warp asks for, in the mean."""

    sectors: float
    """Sectors of 32 bytes of device memory."""
    lines: float
    """Lines of 128 bytes, each of which L1 looks up by itself."""
    wavefronts: float
    """Cycles that the banks of shared memory take."""
    hits_l1: float = 0.0
    """Part of its sectors that L1 serves."""
    in_part: float = 0.0
    """Part of the sectors of a store of which it writes some bytes only."""


@dataclass(frozen=True)
class Slot:
    """One instruction of a warp."""

    group: str
    """The opcode's class."""
    unit: str
    cycles: float
    """Cycles for which it takes the unit of its part of the SM; 0 where that follows from what it asks for."""
    stall: int
    """Cycles until its warp may go on."""
    sets: int | None
    frees: int | None
    waits: int
    """As in `Control`."""
    use: MemoryUse | None = None
    flops: float = 0.0
    """Operations of a matrix product, over its warp."""
    dtype: str = ""
    runs_beside: bool = False
    """True where the product runs while its warp goes on (wgmma)."""
    leaves: int | None = None
    """Groups that may stay behind where an instruction waits for copies or products begun before it; None for
    others."""
    closes: bool = False
    """True where it ends a group of copies or products, which are waited for together."""
    conflicts: float = 0.0
    """Wavefronts of an access to shared memory beyond those of neighbouring words."""


@dataclass(frozen=True)
class Region:
    """Code that a warp runs one after the other: the turn of a loop, or what stands around loops."""

    slots: tuple[Slot, ...]
    turns: float = 1.0
    """How often it runs, in a step of the key loop or in a work tile."""
    repeats: bool = False
    """True where it is a loop's, whose turns follow one another."""
    at: int | None = None
    """The address of the loop's first instruction; None outside of loops."""

    def __hash__(self) -> int:
        return hash((len(self.slots), self.turns, self.repeats))


@dataclass(frozen=True)
class Machine:
    """A kernel's machine code as a warp of it runs it."""

    step: tuple[Region, ...] = ()
    """A step of the loop over keys; empty where it has none."""
    tile: tuple[Region, ...] = ()
    """What runs once a work tile beside its steps."""

    @property
    def slots(self) -> int:
        """Instructions of all regions, each once."""
        return sum(len(region.slots) for region in self.step + self.tile)

"""What each load and store of machine code asks for, from the addresses of the PTX line that it stands for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from iosim.base.records import replace
from iosim.code.addresses import GLOBAL, SHARED, Evaluated, Site, instruction_of
from iosim.code.listing import Instruction
from iosim.code.on_sm import Uses
from iosim.code.opcodes import lane_bytes, operation
from iosim.code.trace import default_use
from iosim.kernel.launch import Mode
from iosim.kernel.machine import SECTOR_BYTES, MemoryUse

LANE_BYTES = 8
"""Bytes a lane that a wavefront serves at most."""
SPACES = {
    "global-load": GLOBAL,
    "global-store": GLOBAL,
    "global-atomic": GLOBAL,
    "global-copy": GLOBAL,
    "shared-load": SHARED,
    "shared-store": SHARED,
    "shared-atomic": SHARED,
}


def uses_of(evaluated: Evaluated, missed: Mapping[int, float], cc: int) -> Uses:
    """Uses by the lines of the PTX.

    Args:
        evaluated: the launch's addresses.
        missed: the part of each load's sectors that L1 does not serve, by instruction.
        cc: compute capability of the machine code.
    """
    # The assembler copies and merges loads, but each still names its line of the PTX: what that line's
    # requests ask for in the mean stands for all of its copies.
    of_line: dict[tuple[int, str], list[Site]] = defaultdict(list)
    for site in evaluated.sites:
        of_line[instruction_of(evaluated.entry, site.number).row, site.space].append(site)

    def use_of(instruction: Instruction) -> MemoryUse | None:
        group = operation(instruction, cc).group
        space = SPACES.get(group)
        sites = of_line.get((instruction.ptx_line or -1, space)) if space else None
        if not sites:
            return None
        use = _merged(_mean(sites, missed), instruction, max(site.width for site in sites))
        if group == "global-copy":  # what it writes into shared memory stands under the same line
            beside = _mean(of_line.get((instruction.ptx_line or -1, SHARED), []), missed)
            wavefronts = beside.wavefronts or default_use(instruction, group).wavefronts
            return MemoryUse(use.sectors, use.lines, wavefronts, use.hits_l1)
        return use

    return use_of


def _mean(sites: list[Site], missed: Mapping[int, float]) -> MemoryUse:
    """What a request of some sites asks for, in the mean."""
    requests = max(1, sum(site.requests for site in sites))
    sectors, lines, wavefronts = (
        sum(getattr(s, n) for s in sites) for n in ("sectors", "lines", "wavefronts")
    )
    served = sum((1 - missed.get(site.number, 1.0)) * site.sectors for site in sites)
    return MemoryUse(
        sectors / requests,
        lines / requests,
        wavefronts / requests,
        served / sectors if sectors else 0.0,
        _in_part(sites, sectors),
    )


def _merged(use: MemoryUse, instruction: Instruction, width: int) -> MemoryUse:
    """The use of a load or store of shared memory into which the assembler merged several of the PTX's, of `width` bytes
    a lane each. Its lanes' addresses are those of the first, so that its words lie in further banks; 16 bytes a lane
    take two wavefronts, even where all lanes ask for the same (counted: 2.0 in two kernels of examples/kernels)."""
    if instruction.kind not in ("LDS", "STS") or lane_bytes(instruction) <= width:
        return use
    return replace(use, wavefronts=max(lane_bytes(instruction) / LANE_BYTES, use.wavefronts))


def _in_part(sites: list[Site], sectors: int) -> float:
    """Part of the sectors that stores write in part. A piece that begins inside a sector leaves two of them half
    written, so that what is not written stands for up to twice as many."""
    stores = [site for site in sites if site.mode is Mode.STORE and site.space == GLOBAL]
    written = sum(site.distinct_bytes for site in stores)
    if not stores or not sectors:
        return 0.0
    return min(1.0, 2 * max(0.0, 1 - written / (sectors * SECTOR_BYTES)))

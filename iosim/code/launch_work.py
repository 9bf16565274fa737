"""What the CTAs of an evaluated launch compute and spill, from its machine code: work for the time, local memory.

The PTX says how often each of its lines runs and what its loads and stores ask for; the machine code, whose
instructions name their lines, what a warp issues, waits for and spills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from iosim.base.records import dataclass, replace
from iosim.code.addresses import SHARED, Evaluated, instruction_of
from iosim.code.addresses_launch import CodeLaunch
from iosim.code.loops import Flow
from iosim.code.module import Function
from iosim.code.on_sm import CodeOnSm, Uses, code_on_sm
from iosim.code.opcodes import WARP, lane_bytes, operation
from iosim.code.runs import Runs, runs_of_lines, runs_of_trips
from iosim.code.uses import LANE_BYTES, uses_of
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import SPILL, Mode, Overhead
from iosim.kernel.machine import SECTOR_BYTES, SOURCE
from iosim.kernel.work import Work

NOT_LINED = (
    "its machine code names no lines of the PTX (-lineinfo), so that turns of its loops are taken to be one and no "
    "address is known of what it runs"
)


@dataclass(frozen=True)
class LaunchWork:
    """A launch with its work, and what was found on the way."""

    launch: CodeLaunch
    runs: Runs
    on_sm: CodeOnSm
    instructions: float
    """Instructions that all warps execute."""
    xu_instructions: float
    """Those of them that the unit of special functions runs."""
    warps: int
    """Warps of all CTAs."""
    notes: tuple[str, ...]
    wavefronts: Mapping[str, float]
    """Wavefronts of shared memory of all warps, by the class of instruction; empty where they are not known."""

    @property
    def counters(self) -> dict[str, int]:
        """What a profiler counts of instructions and of local memory (smsp__inst_executed, l1tex__t_sectors)."""
        local = self.on_sm.local_tile
        shared = {
            f"{kind.replace('-', '_')}_wavefronts": round(n) for kind, n in self.wavefronts.items()
        }
        return shared | {
            "instructions": round(self.instructions),
            "xu_instructions": round(self.xu_instructions),
            "local_load_sectors": round(local.loaded * self.warps),
            "local_load_sectors_hit_l1": round(local.hits_l1 * self.warps),
            "local_store_sectors": round(local.stored * self.warps),
        }


def with_work(
    launch: CodeLaunch,
    function: Function,
    profile: HardwareProfile,
    changed: Callable[[Uses], Uses] = lambda u: u,
) -> LaunchWork:
    """The launch with what its machine code says of it on a GPU; `changed` gives other uses of memory than those that
    it has."""
    evaluated, flow = launch.evaluated, Flow(function)
    # Where machine code names its PTX lines, their runs are known; else loops are taken to turn once.
    lined = any(instruction.ptx_line is not None for instruction in function.instructions)
    runs = runs_of_lines(flow, evaluated.runs) if lined else runs_of_trips(flow, {})
    warps = -(-evaluated.threads // WARP)
    ctas = max(1, min(launch.occupancy.ctas_per_sm, -(-evaluated.ctas // profile.sm_count)))
    l1_bytes = profile.need("l1_shared_bytes") - launch.occupancy.shared_memory_carveout_bytes
    uses = changed(uses_of(evaluated, launch.missed, function.cc))
    on_sm = code_on_sm(flow, runs, ctas * warps, max(1.0, l1_bytes), uses)
    local = on_sm.local_tile
    spilled = ((Mode.STORE, local.stored), (Mode.LOAD, local.loaded - local.hits_l1))
    frame: dict[str, Any] = {
        "frame": round(
            min(local.touched or function.frame_bytes, function.frame_bytes) * evaluated.threads
        ),
        "parts": local.parts,
        "uses": local.uses,
    }
    overheads = tuple(
        Overhead(
            SPILL,
            mode,
            per_tile=round(sectors * SECTOR_BYTES * warps),
            inferred_from=SOURCE,
            **frame,
        )
        for mode, sectors in spilled
        if sectors
    )
    worked = replace(launch.launch, overheads=overheads, work=Work(machine=on_sm.machine))
    with_spills = replace(launch, chain=replace(launch.chain, launches=(worked,)))
    notes = (*flow.unread, *runs.assumed, *(() if lined else (NOT_LINED,)))
    # Counters of a GPU count warps' instructions over the whole launch.
    every = warps * evaluated.ctas
    xu = sum(
        often
        for often, instruction in zip(runs.times, function.instructions, strict=True)
        if operation(instruction, function.cc).unit == "xu"
    )
    shared = _wavefronts(evaluated, function) if lined else {}
    issued = (runs.instructions * every, xu * every)
    return LaunchWork(with_spills, runs, on_sm, *issued, every, notes, shared)


def _wavefronts(evaluated: Evaluated, function: Function) -> dict[str, float]:
    """Wavefronts of loads and stores of shared memory by class, copies into it apart: those of the PTX, of which the
    assembler merges several into one of 8 or 16 bytes a lane, which names the line of one of them."""
    widths: dict[int, int] = {}
    for instruction in function.instructions:
        if instruction.kind in ("LDS", "STS") and instruction.ptx_line is not None:
            width = widths.get(instruction.ptx_line, 0)
            widths[instruction.ptx_line] = max(width, lane_bytes(instruction))
    sites = [site for site in evaluated.sites if site.space == SHARED and not site.asynchronous]
    rows = {site.number: instruction_of(evaluated.entry, site.number).row for site in sites}
    merged = {site.mode for site in sites if widths.get(rows[site.number], 0) > site.width}
    sums = {"shared_load": 0.0, "shared_store": 0.0}
    for site in sites:
        kind = "shared_load" if site.mode is Mode.LOAD else "shared_store"
        width = widths.get(rows[site.number], 0)
        if width > site.width:
            sums[kind] += max(site.wavefronts, site.requests * width / LANE_BYTES)
        elif width or site.mode not in merged or site.width > LANE_BYTES:
            sums[kind] += site.wavefronts
    return sums

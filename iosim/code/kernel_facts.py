"""What a description takes of machine code: the spills and the instructions of its loop over keys, counted.

counted = kernel_facts(read_module("kernel.cubin").function(), profile, threads=128)
kernel.with_(spill=counted.spill, machine=counted.machine)
"""

from __future__ import annotations

from collections.abc import Mapping

from iosim.base.records import dataclass
from iosim.code.addresses_launch import ALL_SHARED
from iosim.code.counts import Counts, count, key_loop, turn_of
from iosim.code.loops import Flow
from iosim.code.module import Function
from iosim.code.on_sm import CodeOnSm, Uses, code_on_sm, no_uses
from iosim.code.opcodes import WARP
from iosim.code.runs import Runs, runs_of_trips
from iosim.hardware.occupancy import Occupancy, occupancy
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Spill
from iosim.kernel.machine import SECTOR_BYTES, SOURCE, Machine

MANY_TURNS = 1000.0
"""Turns of the loop over keys by which it is told from what runs once."""


@dataclass(frozen=True)
class KernelFacts:
    """What machine code says of a kernel."""

    function: Function
    counts: Counts
    """Counts of a turn of the loop over keys; where there is none, of all that a warp runs."""
    on_sm: CodeOnSm
    runs: Runs
    resident: Occupancy
    notes: tuple[str, ...]
    """What was assumed, and what could not be read, a sentence each."""

    @property
    def machine(self) -> Machine:
        return self.on_sm.machine

    @property
    def spill(self) -> Spill | None:
        """Bytes of local memory a thread in a step and in a work tile; None where there are none."""
        step, tile = self.on_sm.local, self.on_sm.local_tile
        if not (step.loaded or step.stored or tile.loaded or tile.stored):
            return None
        per_thread = SECTOR_BYTES / WARP
        # A register that is spilled is a word of 4 bytes.
        words = (self.counts.local_load_bytes + self.counts.local_store_bytes) / 4
        return Spill(
            write_per_tile=tile.stored * per_thread,
            write_per_pair=step.stored * per_thread,
            read_per_tile=(tile.loaded - tile.hits_l1) * per_thread,
            read_per_pair=(step.loaded - step.hits_l1) * per_thread,
            accesses_per_pair=words,
            source=SOURCE,
            frame=max(step.touched, step.stored * per_thread),
        )


def residents(
    function: Function, profile: HardwareProfile, threads: int, shared_memory_bytes: int
) -> Occupancy:
    """What of a function fits on an SM."""
    shared = max(shared_memory_bytes, function.shared_memory_bytes)
    carveout = ALL_SHARED if function.prefers_shared else None
    return occupancy(profile, threads, function.registers, shared, carveout)


def kernel_facts(
    function: Function,
    profile: HardwareProfile,
    threads: int | None = None,
    shared_memory_bytes: int = 0,
    trips: Mapping[int, float] | None = None,
    uses: Uses = no_uses,
    runs: Runs | None = None,
) -> KernelFacts:
    """What a kernel's code says of it on a GPU.

    Args:
        function: its code.
        profile: the GPU, whose L1 decides which spilled registers are found there.
        threads: of a CTA; what the code states where it is not given, or 128.
        shared_memory_bytes: of a CTA, with what a launch gives it.
        trips: turns of loops by the address of their first instruction; the loop over keys needs none.
        uses: what loads and stores ask for.
        runs: how often each instruction runs, where that is known.
    """
    flow, threads = Flow(function), threads or function.threads or 128
    loop = key_loop(flow)
    if runs is None:
        known = dict(trips or {})
        if loop is not None:
            # So many turns that what runs once a turn is told from what runs once a CTA.
            known.setdefault(flow.instructions[flow.blocks[loop.header].first].address, MANY_TURNS)
        runs = runs_of_trips(flow, known)
    resident = residents(function, profile, threads, shared_memory_bytes)
    ctas = max(1, resident.ctas_per_sm)
    l1_bytes = profile.need_int("l1_shared_bytes") - resident.shared_memory_carveout_bytes
    on_sm = code_on_sm(flow, runs, ctas * -(-threads // WARP), float(max(1, l1_bytes)), uses, loop)
    body = turn_of(flow, loop, runs) if loop is not None else list(flow.instructions)
    counts = count(body, function.cc, None if loop is not None else runs.times)
    return KernelFacts(function, counts, on_sm, runs, resident, (*flow.unread, *runs.assumed))

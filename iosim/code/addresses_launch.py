"""A launch whose addresses were evaluated as a `Chain`: tensors, the objects that its CTAs touch, bytes by tensor.

What it moves between SMs and L2 is counted request by request; the replay takes its moves as it takes all.
"""

from __future__ import annotations

import math

from iosim.base.records import dataclass, field
from iosim.code.addresses import Evaluated
from iosim.code.addresses_l1 import l2_sectors, missed_shares
from iosim.code.addresses_moves import all_moves
from iosim.code.addresses_objects import Listed, listed
from iosim.code.arguments import TensorArgument
from iosim.code.half_stored import stored_in_parts
from iosim.hardware.occupancy import Occupancy, occupancy
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Access,
    Chain,
    Domain,
    Launch,
    Mode,
    Outer,
    Per,
    Resources,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.kernel.touched import InParts, Touched


@dataclass(frozen=True)
class CodeResources:
    """What a CTA takes of an SM, where machine code says it; `shared_memory_bytes` with what the launch gives it,
    `carveout` the preferred share of shared memory in percent, where the launcher has one."""

    registers: int | None = None
    shared_memory_bytes: int = 0
    carveout: int | None = None


@dataclass(frozen=True)
class CodeLaunch:
    """A launch as it stands in a chain of its own, and what was found on the way."""

    chain: Chain
    evaluated: Evaluated
    occupancy: Occupancy
    l1_bytes: float
    """Bytes of an SM's L1: what shared memory leaves of it."""
    missed: dict[int, float] = field(default_factory=dict)
    """The part of each load's sectors that L1 does not serve, by instruction."""

    @property
    def launch(self) -> Launch:
        return self.chain.launches[0]


ALL_SHARED = 100
"""Percent of an SM's shared memory: the largest split off L1."""
LEAST_REGISTERS = 32
"""Registers a thread where no machine code says them."""


def code_launch(
    evaluated: Evaluated, profile: HardwareProfile, resources: CodeResources, name: str = ""
) -> CodeLaunch:
    """The launch on a GPU. Raises InputError: a CTA that fits on no SM is none here; the profile lacks a number, or
    there are too many moves to list."""
    fit = occupancy(
        profile,
        evaluated.threads,
        resources.registers or LEAST_REGISTERS,
        resources.shared_memory_bytes,
        resources.carveout,
    )
    # A short grid leaves places of an SM empty, and L1 to the CTAs that are there.
    beside = max(1, min(fit.ctas_per_sm, -(-evaluated.ctas // profile.sm_count)))
    l1_bytes = profile.need("l1_shared_bytes") - fit.shared_memory_carveout_bytes
    missed = missed_shares(evaluated, l1_bytes, beside, profile.sm_count)
    moves, shapes = all_moves(evaluated)
    known = [move for move in moves if 0 <= move.tensor < len(evaluated.bound.tensors)]
    listing = listed(known, shapes, evaluated.ctas)
    touched = _touched(evaluated, listing, missed, stored_in_parts(evaluated, known, shapes))
    launch = Launch(
        name or evaluated.entry.name,
        Domain(1, 1, evaluated.ctas, 1, 1, 1),
        Outer.QUERY,
        tuple(
            Access(name, mode, Rows.OWN, Per.LAUNCH)
            for name, mode in dict.fromkeys((t, Mode(m)) for t, m, _ in touched.request_bytes)
        ),
        resources=Resources(evaluated.threads, resources.registers, resources.shared_memory_bytes),
        touched=touched,
    )
    held = tensors(
        _tensor(t, _role(evaluated, t))
        for t in evaluated.bound.tensors
        if t.name in touched.objects
    )
    return CodeLaunch(Chain(held, (launch,), evaluated.notes), evaluated, fit, l1_bytes, missed)


def _touched(
    evaluated: Evaluated, listing: Listed, missed: dict[int, float], in_parts: dict[int, InParts]
) -> Touched:
    names = [t.name for t in evaluated.bound.tensors]
    bytes_moved = tuple(
        (tensor, str(mode), round(sectors) * SECTOR_BYTES)
        for (tensor, mode), sectors in l2_sectors(evaluated, missed).items()
        if tensor in names
    )
    return Touched(
        {names[n]: sizes for n, sizes in listing.sizes.items()},
        listing.first,
        listing.count,
        listing.entries,
        bytes_moved,
        {names[n]: part for n, part in listing.used.items()},
        in_parts={names[n]: parts for n, parts in in_parts.items()},
        shares=evaluated.shares,
    )


def _role(evaluated: Evaluated, tensor: TensorArgument) -> Role:
    """An input where the launch loads it, else an output."""
    loads = any(site.tensor == tensor.name and site.mode is Mode.LOAD for site in evaluated.sites)
    return Role.INPUT if loads else Role.OUTPUT


def _tensor(argument: TensorArgument, role: Role) -> Tensor:
    rows = math.prod(argument.shape[:-1])
    return Tensor(argument.name, 1, 1, rows, argument.shape[-1], argument.element_bytes, role)

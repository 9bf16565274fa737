"""A launch on a GPU at one clock, as the terms of its time read it."""

from __future__ import annotations

import math

from iosim.base.records import cached_property, dataclass
from iosim.base.words import Level, Way
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import SPILL, Chain, Launch, Mode, Outer, Per
from iosim.kernel.residency import Residency
from iosim.kernel.schedule import Scheduler
from iosim.kernel.shared_memory import staged
from iosim.kernel.traffic import Traffic
from iosim.kernel.unit import UNITS, MatrixUnit, UnitModel
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import dtype
from iosim.readers.timing.rates import Rates

NEWTON_STEPS = 24
"""Enough for a root that is nearly double, where each step halves what is left."""


def executed_pairs(launch: Launch) -> int:
    """(query row, key row) pairs that a launch computes: whole tiles of every visited pair of blocks."""
    domain = launch.domain
    return int(domain.visited.count.sum()) * domain.block_q * domain.block_k * domain.grid_heads


def reuses_keys(launch: Launch) -> bool:
    """True where several tiles of a head share what they stream. Else the bytes flow evenly, with nothing to
    alternate."""
    blocks = {Outer.QUERY: launch.domain.query_blocks, Outer.KEY: launch.domain.key_blocks_total}
    return blocks.get(launch.outer, 1) > 1


def unit_model(launch: Launch, profile: HardwareProfile, dtype: str, kernel: Kernel) -> UnitModel:
    """How the unit computes that a launch's products run on: the kernel's `matrix_unit` on cc 9.0 and later, mma.sync
    before and where it states none, mfma on AMD's GPUs, the fp32 units for fp32 and where the kernel uses no tensor
    cores. A launch may have a unit of its own."""
    stated = MatrixUnit(
        launch.work.unit or kernel.unit_of(launch.is_backward) or MatrixUnit.MMA_SYNC
    )
    splits = UNITS[stated].splits_to and UNITS[stated].is_on(profile.cc, profile.is_amd)
    preferred = [stated, MatrixUnit.MFMA, MatrixUnit.MMA_SYNC]
    if not launch.work.tensor_cores or (dtype == "fp32" and not splits):
        preferred.insert(0, MatrixUnit.FP32)
    # The first unit of the list that this GPU has.
    model = next(
        unit for unit in map(UNITS.__getitem__, preferred) if unit.is_on(profile.cc, profile.is_amd)
    )
    if model.backward and launch.outer is Outer.KEY:
        return UNITS[model.backward]
    return model


@dataclass(frozen=True)
class Running:
    """A launch on a GPU at the clock of `rates`, its call's `first` or not; `traffic` has rows of all at l2 and hbm."""

    problem: AttentionProblem
    kernel: Kernel
    chain: Chain
    launch: Launch
    resident: Residency
    traffic: Traffic
    rates: Rates
    conditions: Conditions
    first: bool

    @property
    def dtype(self) -> str:
        """Type of its products' operands."""
        return self.launch.work.dtype or self.problem.dtype

    @property
    def element_bytes(self) -> float:
        """Bytes of its products' operands, the mean where they are of two types."""
        if not self.launch.work.dtype:
            return self.problem.input_type.bytes
        sizes = [dtype(kind).bytes for kind in self.launch.work.dtype.split("+")]
        return math.fsum(sizes) / len(sizes)

    @cached_property
    def unit(self) -> UnitModel:
        """How what computes its products does it."""
        return unit_model(self.launch, self.rates.profile, self.dtype, self.kernel)

    @property
    def uses_tensor_cores(self) -> bool:
        """True where tensor cores compute its products."""
        machine = self.launch.work.machine
        if machine is not None:
            return any(
                slot.flops for region in machine.step + machine.tile for slot in region.slots
            )
        return self.launch.work.flops_per_pair > 0 and self.unit.tensor_cores

    def moved(self, level: Level, direction: Way | None = None, tensor: str | None = None) -> int:
        """Bytes that the launch moves."""
        total: int = self.traffic.total(level, direction, launch=self.launch.name, tensor=tensor)
        return total

    @cached_property
    def steps(self) -> int:
        """Steps of all CTAs."""
        return int(self.launch.domain.visited.count.sum()) * self.launch.domain.grid_heads

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that share an SM."""
        return max(
            1,
            min(self.resident.ctas_per_sm, -(-self.resident.slots // self.rates.profile.sm_count)),
        )

    @property
    def finds_in_l2(self) -> bool:
        """True where most of what it loads was left in the L2 by the launch before."""
        return 2 * self.moved("hbm", "read") < self.moved("l2", "read")

    def loaded(self, in_steps: bool) -> set[str]:
        """Tensors that a loop loads in its steps, or else beside them."""
        return {
            a.tensor
            for a in self.launch.accesses
            if (a.per is Per.PAIR) is in_steps and a.mode is Mode.LOAD
        }

    def shared_in_step(self) -> float | None:
        """Bytes of a loop's step at shared memory; None where it is not known how its operands pass through it."""
        items = staged(self.launch, self.chain)
        return None if items is None else math.fsum(item.bytes for item in items if item.step)

    @property
    def frames_past_l1(self) -> float:
        """Share of the accesses to stack frames that an SM's L1 does not hold: of frames `crowding` times as large as
        L1, walked again and again, whose lines make room for each other at random.

        A line stays through a walk with the probability exp(-crowding x share missed); this is one less it.
        """
        ctas = -(-self.launch.tiles_with_rows // self.rates.profile.sm_count)
        threads = min(self.ctas_per_sm, ctas) * self.launch.resources.threads
        held = self.rates.profile.shared_memory_per_sm_bytes or math.inf
        crowding = self.launch.work.spill.frame * threads / held
        if crowding <= 1:
            return 0.0
        missed = 1.0
        for _ in range(NEWTON_STEPS):
            stay = math.exp(-crowding * missed)
            missed -= (1 - stay - missed) / (crowding * stay - 1)
        return missed

    @property
    def stays(self) -> bool:
        """True where a CTA has many work tiles, and warps of its own fetch each one's first operands while it ends the
        tile before: all but its first."""
        return self.launch.schedule.scheduler is not Scheduler.STATIC and self.unit.loads_apart

    @property
    def later_share(self) -> float:
        """Share of the work tiles that are not their CTA's first, where it stays."""
        if not self.stays:
            return 0.0
        return max(0.0, 1 - self.resident.slots / self.launch.work_tiles)

    def l2_loads(self) -> float:
        """Bytes that are loaded from the L2, and those that could be loaded in the time of its stores. In a loop only
        its steps count: what a work tile stores at its end, the next one's loads overlap. Loads and stores go
        different ways, and in a loop at once."""
        stores = self.stored() / self.rates.profile.need("l2_write_fraction")
        if self.launch.work.exps_per_pair:
            # A loop loads and stores at once; a pass does one after the other.
            return max(self.fetched(), stores)
        return self.fetched() + stores

    def fetched(self) -> float:
        """Bytes of the launch at the L2 but for `stored`. CTAs of a cluster fetch keys and values once for all of them
        (TMA multicast)."""
        shared = sum(self.moved("l2", "read", name) for name in self.loaded(in_steps=True))
        is_loop = bool(self.launch.work.exps_per_pair)
        total = self.moved("l2", "read") if is_loop else self.moved("l2") - self.stored()
        return total - shared * (1 - 1 / self.launch.schedule.cluster)

    def fetched_twice(self) -> float:
        """Bytes of sectors that a loop's copies fetch once more, for the part that another row has of them."""
        twice = 0.0
        for access in self.launch.accesses:
            if access.per is Per.PAIR and access.mode is Mode.LOAD:
                tensor = self.chain.tensors[access.tensor]
                more = tensor.split_bytes(access.fetch)
                twice += self.moved("l2", "read", access.tensor) * more / (tensor.row_bytes + more)
        return twice

    def stored(self) -> int:
        """Bytes of the launch's stores, of a loop those of its steps alone."""
        if not self.launch.work.exps_per_pair:
            return self.moved("l2", "write")
        stores = (
            a.tensor for a in self.launch.accesses if a.per is Per.PAIR and a.mode is not Mode.LOAD
        )
        return sum(self.moved("l2", "write", name) for name in {SPILL, *stores})

"""Ceilings of a GPU at one clock, as the time model reads them; what a profile does not know is remembered."""

from __future__ import annotations

import math
from collections.abc import Callable

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.unit import UNITS, MatrixUnit, UnitModel

LOAD_CYCLES = 80.0
"""What a load that others wait for takes besides its latency: its address and the barrier behind it. Fitted on
FlashAttention-2's combine, which takes 762 cycles a split from HBM (h200_decode.csv), where a chain of loads takes 682,
TLB misses included."""
FAR_OVER_NEAR = 476 / 265
"""Latency of the L2's far partition over that of the near one, where a profile knows the near one alone: an H100's
(RRZE-HPC/gpu-benches, as in the profile of its PCIe board)."""

TURING = 75
"""Compute capability whose L2 is taken to run at a clock in proportion to the SMs': a product of a T4 at 585 MHz takes as
long as its bytes at such an L2, and 40 % less at one of its full clock. A Hopper's keeps its own (h200_clocks.csv)."""
LANES = (64, 128)
"""fp32 multiply-adds of an SM in a cycle."""
PEAK_UNITS = {"fp32": (MatrixUnit.FP32, MatrixUnit.SPLIT_TF32)}
"""What computes products at their highest rate, where it is not the matrix unit of the type."""


def of_types(dtype: str, rate: Callable[[str], float]) -> float:
    """A rate of operations in `dtype`, or of as many in each of the types that it joins by +."""
    kinds = dtype.split("+")
    seconds = math.fsum(1 / rate(kind) for kind in kinds)
    return len(kinds) / seconds if seconds else math.inf


@dataclass(frozen=True)
class Waits:
    """SM cycles in which a step waits, by what it waits for; the profile says from where each is.

    Attributes:
        load: an exposed load from L2 into shared memory with its barrier.
        product_step: a k-step of a threadblock product with a pipeline of its own.
        sync: barriers and pipeline turns of a step whose loads run ahead.
        single_buffer: what a step of a loop with one buffer waits more than one that loads a whole step ahead.
        add_packet: a packet of an atomic add to several rows, during which the CTA's warps do nothing else: they add
            between two barriers.
        spill_access: a load or store of a spilled register.
    """

    load: float
    sync: float
    single_buffer: float
    add_packet: float
    product_step: float
    spill_access: float

    @classmethod
    def of(cls, profile: HardwareProfile, clock: float) -> Waits:
        """Waits of a GPU at a clock, as a share of the one they hold at: loads from the L2 take their time at any clock
        of the SMs. Raises InputError: the profile does not know one."""
        return cls(
            load=profile.need("step_load_cycles") * clock,
            sync=profile.need("step_sync_cycles"),
            single_buffer=profile.need("step_single_buffer_cycles"),
            add_packet=profile.need("add_packet_cycles"),
            product_step=profile.need("product_step_cycles") * clock,
            spill_access=profile.need("spill_access_cycles"),
        )


@dataclass(frozen=True)
class SmRates:
    """What one SM does in a cycle; infinite where the profile does not know, so that it costs nothing. `waits` are the
    cycles in which it waits."""

    waits: Waits
    clock_hz: float
    tensor_flops: float
    fp32_lanes: float
    exps: float
    shared_bytes: float
    l2_bytes: float


class Rates:
    """Ceilings of a profile at `clock_hz`, the clock of the SMs. A rate that is not known is infinite, and noted.

    Args:
        measured: measured bandwidths, rates and clocks where the profile has them; else the specification's alone.
    """

    def __init__(self, profile: HardwareProfile, measured: bool) -> None:
        self.profile = profile
        self.measured = measured
        self.missing: dict[str, None] = {}
        self.top_hz = self.clock_hz = (
            not measured and profile.rated_clock_hz
        ) or profile.boost_clock_hz
        self.rated_hz = (
            profile.rated_clock_hz or profile.sustained_clock_hz or profile.boost_clock_hz or 1.0
        )

    def highest_clock_hz(self, tensor_cores: bool) -> float | None:
        """The clock where power does not limit it; the SMs run slower while tensor cores work."""
        if self.top_hz and self.measured and tensor_cores:
            return self.top_hz * (self.profile.tensor_clock_fraction or 1.0)
        return self.top_hz

    def hbm_seconds(self, read: float, written: float) -> float:
        """Seconds that HBM takes for the bytes: a stream of reads, one of writes, and what a mix of both costs more."""
        per_byte = self.profile.hbm_seconds_per_byte(self.measured)
        a_read, a_write, turning = per_byte or (
            1 / self._absent("dram_bandwidth_bytes_per_s"),
            0.0,
            0.0,
        )
        return read * a_read + written * a_write + min(read, written) * turning

    def most_shares(self) -> float:
        """How many even shares of HBM's reads one SM draws at most; 1 where it is not known."""
        per_byte = self.profile.hbm_seconds_per_byte(self.measured) or (math.inf,)
        drawn = (self.profile.sm_dram_bytes_per_clock or 0.0) * (self.clock_hz or 0.0)
        return max(1.0, drawn * per_byte[0] * self.profile.sm_count)

    def side_seconds(self, bytes_moved: float) -> float:
        """Seconds that a cache at the memory's side takes for bytes between it and the L2s; 0 where there is none."""
        rate = self.profile.memory_side_bandwidth_bytes_per_s
        return bytes_moved / rate if rate else 0.0

    def l2(self) -> float:
        """Bandwidth of reads that hit: what misses is HBM's to carry, and CTAs in step share a line for a while."""
        p = self.profile
        rate = (
            p.l2_read_bandwidth_measured_bytes_per_s
            if self.measured
            else p.l2_read_bandwidth_bytes_per_s
        )
        rate = rate or p.l2_read_bandwidth_bytes_per_s or p.l2_read_bandwidth_measured_bytes_per_s
        if rate and self.measured and p.cc == TURING and self.clock_hz and p.boost_clock_hz:
            rate *= self.clock_hz / p.boost_clock_hz
        return rate or self._absent("l2_read_bandwidth_bytes_per_s")

    def tensor(self, dtype: str, unit: UnitModel) -> float:
        """Operations per second of the GPU's matrix products in `dtype` by `unit`, at the present clock."""
        return (
            of_types(unit.splits_to or dtype, lambda kind: self._tensor(kind, unit)) / unit.products
        )

    def _tensor(self, dtype: str, unit: UnitModel) -> float:
        p = self.profile
        if not unit.tensor_cores:
            return self._fp32_flops()
        if p.computes_in_fp32(dtype):
            self._note(
                f"{p.name}'s tensor cores do not take {dtype}: products at the rate of its fp32 units"
            )
            return p.tensor_flops("fp32")
        try:
            rate = p.tensor_flops(dtype)
        except InputError:
            return self._absent(f"tensor_flops_per_s.{dtype}")
        reached = rate * float(getattr(p, unit.rate_share, None) or 1.0)
        return (
            reached * (self.clock_hz or self.rated_hz) / self.rated_hz if self.measured else reached
        )

    def _fp32_flops(self) -> float:
        """Operations per second of the fp32 units at the present clock; the specified rate where that is asked for.
        An SM has 64 lanes or 128: the clock of the specification is another than that of tensor cores on a Hopper."""
        p = self.profile
        specified = p.fp32_flops_per_s or self._absent("fp32_flops_per_s")
        if not self.measured or not self.clock_hz or math.isinf(specified):
            return specified
        per_lane = 2.0 * p.sm_count * (p.boost_clock_hz or self.clock_hz)
        lanes = min(LANES, key=lambda number: abs(math.log(per_lane * number / specified)))
        return 2.0 * p.sm_count * lanes * self.clock_hz

    def peak_tensor(self, dtype: str, fastest_hz: float) -> float:
        """Operations per second of matrix products that the GPU does not exceed: the specified rate, which holds at the
        clock that it was specified for, at its highest clock, or at `fastest_hz` where that is above."""
        p = self.profile
        first, *others = (UNITS[unit] for unit in PEAK_UNITS.get(dtype, (MatrixUnit.WGMMA,)))
        available = [first, *(unit for unit in others if unit.is_on(p.cc, p.is_amd))]
        rate = max(self.tensor(dtype, unit) for unit in available)
        return (
            rate
            * max(self.rated_hz, p.sustained_clock_hz or 0.0, p.boost_clock_hz or 0.0, fastest_hz)
            / self.rated_hz
        )

    def peak_hbm(self) -> float:
        """The highest rate of HBM that is known, in bytes per second: the specified one, or a measured one above it."""
        p = self.profile
        known = (
            p.dram_bandwidth_bytes_per_s,
            p.dram_bandwidth_measured_bytes_per_s,
            p.dram_read_bandwidth_bytes_per_s,
            p.dram_write_bandwidth_bytes_per_s,
            p.dram_copy_bandwidth_bytes_per_s,
        )
        return max(filter(None, known), default=math.inf)

    def of_sm(self, dtype: str, unit: UnitModel) -> SmRates | None:
        """The rates of one SM in its cycles; None where the clock is not known."""
        p, clock = self.profile, self.clock_hz
        if clock is None:
            self._absent("boost_clock_hz")
            return None
        per_sm = p.sm_count * clock
        return SmRates(
            waits=Waits.of(p, clock / (self.highest_clock_hz(tensor_cores=True) or clock)),
            clock_hz=clock,
            tensor_flops=self.tensor(dtype, unit) / per_sm,
            fp32_lanes=self.fp32_lanes() / p.sm_count,
            exps=p.exp_per_clock_per_sm or self._absent("exp_per_clock_per_sm"),
            shared_bytes=p.shared_memory_bytes_per_clock_per_sm
            or self._absent("shared_memory_bytes_per_clock_per_sm"),
            l2_bytes=self.l2() / per_sm,
        )

    def fp32_lanes(self) -> float:
        """fp32 multiply-adds of the whole GPU in a cycle."""
        clock = self.profile.rated_clock_hz or self.profile.boost_clock_hz
        flops = self.profile.fp32_flops_per_s
        return flops / 2 / clock if flops and clock else self._absent("fp32_flops_per_s")

    def load_latency_s(self, from_dram: bool) -> float:
        """Seconds that a load takes which nothing hides, from HBM or from the L2."""
        return self.load_cycles(from_dram) / (
            self.profile.boost_clock_hz or self.clock_hz or math.inf
        )

    def load_cycles(self, from_dram: bool) -> float:
        """SM cycles of such a load. Of lines in an L2 of two partitions half lie in the far one."""
        p = self.profile
        if from_dram:
            return float(p.need("dram_latency_cycles")) + LOAD_CYCLES
        near = float(p.need("l2_latency_near_cycles"))
        if (p.l2_partitions or 1) < 2:
            return near + LOAD_CYCLES
        return (near + (p.l2_latency_far_cycles or FAR_OVER_NEAR * near)) / 2 + LOAD_CYCLES

    def _absent(self, sentence: str) -> float:
        self._note(f"{self.profile.name} does not know {sentence}: its ceiling is left out")
        return math.inf

    def _note(self, text: str) -> None:
        self.missing[text] = None

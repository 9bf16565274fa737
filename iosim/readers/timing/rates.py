"""Ceilings of a GPU at one clock, as the time model reads them; what a profile does not know is remembered."""

from __future__ import annotations

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.unit import UNITS, MatrixUnit, UnitModel
from iosim.readers.timing.step_time import SmRates, Waits

L2_LOAD_CYCLES, DRAM_LOAD_CYCLES = 200.0, 80.0
"""What a load that others wait for takes besides its latency: its address, the barrier behind it, the L2's far side.
Fitted on FlashAttention-2's combine, which takes 762 cycles a split from HBM (h200_decode.csv), where a chain of loads
takes 682, TLB misses included, and about 490 from the L2 (odd rows of h200_graph_latency.csv)."""


class Rates:
    """Ceilings of a profile at `clock_hz`, the clock of the SMs.

    Args:
        measured: measured bandwidths, rates and clocks where the profile has them; else the specification's alone.
        power_is_modelled: power limits the clock, and so the tensor cores keep their rate a cycle.
    """

    def __init__(self, profile: HardwareProfile, measured: bool, power_is_modelled: bool) -> None:
        self.profile = profile
        self.measured = measured
        self.power_is_modelled = power_is_modelled
        self.missing: list[str] = []
        slow = profile.sustained_clock_hz if measured and not power_is_modelled else None
        self.clock_hz = slow or (None if measured else profile.rated_clock_hz) or profile.boost_clock_hz

    @property
    def clock_follows_products(self) -> bool:
        """Whether all that is known of the power limit is the clock that large products keep: others run faster."""
        p = self.profile
        under_load, rated = p.sustained_clock_hz, p.rated_clock_hz
        return self.measured and not self.power_is_modelled and bool(under_load and rated and under_load < rated)

    def highest_clock_hz(self, tensor_cores: bool) -> float | None:
        """The clock where power does not limit it; the SMs run slower while tensor cores work."""
        if self.clock_follows_products:
            return self.profile.boost_clock_hz
        if not self.power_is_modelled or not self.profile.boost_clock_hz:
            return self.clock_hz
        share = self.profile.tensor_clock_fraction if tensor_cores else None
        return self.profile.boost_clock_hz * (share or 1.0)

    def hbm_seconds(self, read: float, written: float) -> float | None:
        """Seconds that HBM takes for the bytes: a stream of reads, one of writes, and what a mix of both costs more."""
        each = self.profile.hbm_seconds_per_byte(self.measured)
        if each is None:
            return self._absent("dram_bandwidth_bytes_per_s")
        a_read, a_write, turning = each
        return read * a_read + written * a_write + min(read, written) * turning

    def l2(self) -> float | None:
        """Bandwidth of reads that hit: what misses is HBM's to carry, and CTAs in step share a line for a while."""
        p = self.profile
        rate = p.l2_read_bandwidth_measured_bytes_per_s if self.measured else p.l2_read_bandwidth_bytes_per_s
        rate = rate or p.l2_read_bandwidth_bytes_per_s or p.l2_read_bandwidth_measured_bytes_per_s
        return rate or self._absent("l2_read_bandwidth_bytes_per_s")

    def tensor(self, dtype: str, unit: UnitModel) -> float | None:
        """Operations per second of the GPU's matrix products in `dtype` by `unit`, at the present clock."""
        p = self.profile
        if unit is UNITS[MatrixUnit.FP32]:
            return p.fp32_flops_per_s or self._absent("fp32_flops_per_s")
        try:
            rate = p.tensor_flops(dtype)
        except InputError:
            if p.fp32_flops_per_s and dtype in ("bf16", "fp16", "tf32"):
                self._note(f"no {dtype} tensor rate: fp32 units' rate used")
                return p.fp32_flops_per_s
            return self._absent(f"tensor_flops_per_s.{dtype}")
        share = getattr(p, unit.rate_share) if unit.rate_share else None
        if self.power_is_modelled and self.clock_hz:
            rated_clock = p.sustained_clock_hz or p.boost_clock_hz or self.clock_hz
            return rate * self.clock_hz / rated_clock * (share or 1.0)
        if p.rated_clock_hz and self.clock_hz:
            rate *= self.clock_hz / p.rated_clock_hz
        if share is not None:
            rate *= share
        elif self.measured and not (unit.specified_rate and share is None):
            rate = min(rate, self._achieved(dtype, rate))
        return rate

    def peak_tensor(self, dtype: str, fastest_hz: float) -> float | None:
        """Operations per second of matrix products that the GPU does not exceed: the specified rate, which holds at the
        clock that it was specified for, at its highest clock, or at `fastest_hz` where that is above."""
        p = self.profile
        rate = self.tensor(dtype, UNITS[MatrixUnit.FP32 if dtype == "fp32" else MatrixUnit.WGMMA])
        clocks = [clock for clock in (p.rated_clock_hz, p.sustained_clock_hz, p.boost_clock_hz) if clock]
        return rate * max(*clocks, fastest_hz) / clocks[0] if rate and clocks else rate

    def peak_hbm(self) -> float | None:
        """The highest rate of HBM that is known, in bytes per second: the specified one, or a measured one above it."""
        p = self.profile
        known = (p.dram_bandwidth_bytes_per_s, p.dram_bandwidth_measured_bytes_per_s, p.dram_read_bandwidth_bytes_per_s,
                 p.dram_write_bandwidth_bytes_per_s, p.dram_copy_bandwidth_bytes_per_s)  # fmt: skip
        return max((rate for rate in known if rate), default=None)

    def product_limit(self, dtype: str) -> float | None:
        """Operations per second that power allows at the present clock, where large products tell: each costs energy
        that grows with the clock, so that fewer a second fit in beside a higher clock. None where they do not tell."""
        clock, under_load = self.clock_hz, self.profile.sustained_clock_hz
        if not (self.clock_follows_products and clock and under_load and dtype in self.profile.tensor_flops_per_s):
            return None
        limit = self._achieved(dtype, self.profile.tensor_flops(dtype))
        return float(limit * (under_load / clock) ** self.profile.need("energy_clock_exponent"))

    def mean_limit(self, dtype: str, unit: UnitModel) -> float | None:
        """What large products have reached in `dtype`: a mean over milliseconds that power allows, not a rate that
        holds inside a step. None where specifications are asked for, power is modelled, or steps run at that rate."""
        p = self.profile
        share = getattr(p, unit.rate_share) if unit.rate_share else None
        if not self.measured or self.power_is_modelled or not (unit.specified_rate and share is None):
            return None
        if self.clock_follows_products:
            return None
        if dtype in p.tensor_flops_achieved_per_s:
            return p.tensor_flops(dtype, measured=True)
        if unit.beside_l2 or dtype not in p.tensor_flops_per_s:
            return None
        return self._achieved(dtype, p.tensor_flops(dtype))

    def _achieved(self, dtype: str, rate: float) -> float:
        try:
            return self.profile.tensor_flops(dtype, measured=True)
        except InputError:
            share = self.profile.need("achieved_tensor_fraction")
            self._note(
                f"{self.profile.name} has no measured {dtype} tensor rate: {share:.0%} of the specified one used"
            )
            return share * rate

    def of_sm(self, dtype: str, unit: UnitModel) -> SmRates | None:
        """The rates of one SM in its cycles; None where the clock or the number of SMs is not known."""
        p, clock = self.profile, self.clock_hz
        if clock is None:
            self._absent("boost_clock_hz")
            return None
        per_sm = p.sm_count * clock
        tensor, l2 = self.tensor(dtype, unit), self.l2()
        lanes = self.fp32_lanes()
        return SmRates(
            waits=Waits.of(p),
            clock_hz=clock,
            tensor_flops=tensor / per_sm if tensor else None,
            fp32_lanes=lanes / p.sm_count if lanes else self._absent("fp32_flops_per_s"),
            exps=p.exp_per_clock_per_sm or self._absent("exp_per_clock_per_sm"),
            shared_bytes=p.shared_memory_bytes_per_clock_per_sm or self._absent("shared_memory_bytes_per_clock_per_sm"),
            l2_bytes=l2 / per_sm if l2 else None,
        )

    def fp32_lanes(self) -> float | None:
        """fp32 multiply-adds of the whole GPU in a cycle."""
        p = self.profile
        clock = p.rated_clock_hz or p.boost_clock_hz
        return p.fp32_flops_per_s / 2 / clock if p.fp32_flops_per_s and clock else None

    def load_latency_s(self, from_dram: bool) -> float:
        """Seconds that a load takes which nothing hides, from HBM or from the L2."""
        name, more = (
            ("dram_latency_cycles", DRAM_LOAD_CYCLES) if from_dram else ("l2_latency_near_cycles", L2_LOAD_CYCLES)
        )
        clock = self.profile.boost_clock_hz or self.clock_hz
        return (float(self.profile.need(name)) + more) / clock if clock else 0.0

    def _absent(self, what: str) -> float | None:
        self._note(f"{self.profile.name} does not know {what}: its ceiling is left out")
        return None

    def _note(self, text: str) -> None:
        if text not in self.missing:
            self.missing.append(text)

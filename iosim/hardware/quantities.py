"""What a hardware profile knows of a GPU: every quantity with its type, plausible range and what it tells of.

Data alone: `iosim.hardware.profile_file` reads the files, `iosim.hardware.profile` looks values up.
docs/profiles.md says what each quantity means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from iosim.base.records import MISSING, dataclass, field, fields
from iosim.base.schema import ListOf, Pairs, Real, Spec, Text, Whole

L2, REPLACEMENT, ORDER = "L2 structure", "L2 replacement", "order of CTAs"
HBM_RATES, L2_RATES, SM_RATES = "HBM rates", "L2 rates", "SM rates"
STEPS, LAUNCHES, POWER = "step times", "launch times", "power"
"""What quantities tell of that models read."""
READ_BY = {
    "l2": (L2, REPLACEMENT, ORDER),
    "hbm": (HBM_RATES,),
    "time": (L2_RATES, SM_RATES, STEPS, LAUNCHES, POWER),
}
"""Model -> what it reads."""

_KIB, _GIB = 2**10, 2**30
_BANDWIDTH = (1e9, 1e15)  # bytes per second: a slower memory or link means that giga was forgotten
_CLOCK = (1e8, 1e10)  # hertz
_RATE = (1e10, 1e18)  # operations per second
_ENERGY = (1e-3, 1e5)  # picojoules
_UNIT = "check the unit that the name ends in"
_FORMS = {
    "int": "int",
    "int | None": "int",
    "float | None": "float",
    "str | None": "word",
    "tuple[int, ...] | None": "ints",
    "Mapping[str, float]": "rates",
    "tuple[tuple[int, float], ...] | None": "points",
}


def quantity(low: float, high: float, group: str = "", default: Any = None) -> Any:
    """A field of `Quantities`, with the range outside which it must be a slip of units (both ends allowed). `group`:
    what the quantity tells of, where a model reads it. `default`: None where it may be unknown, MISSING where every GPU
    has it, dict for a table."""
    about = {"low": low, "high": high, "group": group}
    if default is dict:
        return field(default_factory=default, hash=False, metadata=about)
    return field(default=default, metadata=about)


def word(*accepted: str) -> Any:
    """A field of `Quantities` that is one of a few words, None where it may be unknown or there is nothing to say."""
    return field(default=None, metadata={"low": 0, "high": 0, "group": "", "accepted": accepted})


@dataclass(frozen=True, kw_only=True)
class Quantities:
    """The numbers of one GPU. Sizes are in bytes, rates in units per second, clocks in hertz; None is unknown."""

    sm_count: int = quantity(1, 4096, SM_RATES, default=MISSING)
    boost_clock_hz: float | None = quantity(*_CLOCK, SM_RATES)
    sustained_clock_hz: float | None = quantity(*_CLOCK, SM_RATES)
    rated_clock_hz: float | None = quantity(*_CLOCK, SM_RATES)
    tensor_flops_per_s: Mapping[str, float] = quantity(*_RATE, SM_RATES, default=dict)
    tensor_flops_achieved_per_s: Mapping[str, float] = quantity(*_RATE, SM_RATES, default=dict)
    mma_sync_tensor_fraction: float | None = quantity(0.01, 1.0, SM_RATES)
    exp_per_clock_per_sm: float | None = quantity(0.25, 4096, SM_RATES)
    fp32_flops_per_s: float | None = quantity(*_RATE, SM_RATES)
    shared_memory_bytes_per_clock_per_sm: int | None = quantity(1, 2**16, SM_RATES)
    warp_size: int = quantity(1, 128, default=MISSING)
    max_warps_per_sm: int | None = quantity(1, 1024)
    max_threads_per_sm: int | None = quantity(32, 65536)
    max_threads_per_block: int | None = quantity(32, 65536)
    max_blocks_per_sm: int | None = quantity(1, 1024)
    registers_per_sm: int | None = quantity(1024, 2**24)
    registers_per_block: int | None = quantity(1024, 2**24)
    max_registers_per_thread: int | None = quantity(16, 65536)
    register_allocation_unit: int | None = quantity(1, 65536)
    warp_allocation_granularity: int | None = quantity(1, 64)
    l1_shared_bytes: int | None = quantity(_KIB, 2**26)
    shared_memory_per_sm_bytes: int | None = quantity(_KIB, 2**26)
    shared_memory_per_block_bytes: int | None = quantity(_KIB, 2**26)
    shared_memory_per_block_optin_bytes: int | None = quantity(_KIB, 2**26)
    shared_memory_reserved_per_block_bytes: int | None = quantity(0, 2**20)
    shared_memory_allocation_unit_bytes: int | None = quantity(1, 2**20)
    shared_memory_carveouts_bytes: tuple[int, ...] | None = quantity(0, 2**26)
    l2_bytes: int | None = quantity(64 * _KIB, 16 * _GIB, L2)
    l2_partitions: int | None = quantity(1, 64, L2)
    l2_apart: int | None = quantity(0, 1, L2)
    l2_ways: int | None = quantity(1, 32, REPLACEMENT)
    l2_effective_capacity_fraction: float | None = quantity(0.25, 2.0, REPLACEMENT)
    l2_dirty_fraction: float | None = quantity(0.0, 1.0, REPLACEMENT)
    l2_side_ends: tuple[int, ...] | None = quantity(1, 2**16, L2)
    l2_foreign_dirty_bytes: int | None = quantity(0, 2**30, REPLACEMENT)
    launch_fetch_bytes: int | None = quantity(0, 2**20, REPLACEMENT)
    sm_speed_spread_fraction: float | None = quantity(0.0, 0.5, ORDER)
    l2_read_bandwidth_bytes_per_s: float | None = quantity(*_BANDWIDTH, L2_RATES)
    l2_read_bandwidth_measured_bytes_per_s: float | None = quantity(*_BANDWIDTH, L2_RATES)
    l2_read_bandwidth_by_footprint_bytes_per_s: tuple[tuple[int, float], ...] | None = quantity(
        *_BANDWIDTH
    )
    l2_write_fraction: float | None = quantity(0.05, 1.0, L2_RATES)
    memory_side_bytes: int | None = quantity(64 * _KIB, 16 * _GIB, L2)
    memory_side_ways: int | None = quantity(1, 32, REPLACEMENT)
    memory_side_latency_cycles: float | None = quantity(10, 1e5, L2_RATES)
    memory_side_bandwidth_bytes_per_s: float | None = quantity(*_BANDWIDTH, L2_RATES)
    l2_over_dram_bandwidth: float | None = quantity(1, 100, L2_RATES)
    l2_latency_near_cycles: float | None = quantity(10, 1e5, L2_RATES)
    l2_latency_far_cycles: float | None = quantity(10, 1e5, L2_RATES)
    launch_latency_s: float | None = quantity(1e-7, 1e-3, LAUNCHES)
    graph_call_latency_s: float | None = quantity(1e-7, 1e-3, LAUNCHES)
    graph_launch_latency_s: float | None = quantity(1e-7, 1e-3, LAUNCHES)
    tile_cycles: float | None = quantity(0, 1e6, STEPS)
    pingpong_tile_cycles: float | None = quantity(0, 1e6, STEPS)
    step_load_cycles: float | None = quantity(0, 1e5, STEPS)
    step_sync_cycles: float | None = quantity(0, 1e5, STEPS)
    step_single_buffer_cycles: float | None = quantity(0, 1e5, STEPS)
    product_step_cycles: float | None = quantity(0, 1e5, STEPS)
    spill_access_cycles: float | None = quantity(0, 1e4, STEPS)
    add_packet_cycles: float | None = quantity(0, 1e4, STEPS)
    memory_bytes: int | None = quantity(1e8, 1e14)
    memory_reserved_bytes: int | None = quantity(0, 1e12)
    ecc: str | None = word("inline", "optional")
    dram_bandwidth_bytes_per_s: float | None = quantity(*_BANDWIDTH, HBM_RATES)
    dram_bandwidth_measured_bytes_per_s: float | None = quantity(*_BANDWIDTH, HBM_RATES)
    dram_read_bandwidth_bytes_per_s: float | None = quantity(*_BANDWIDTH, HBM_RATES)
    dram_write_bandwidth_bytes_per_s: float | None = quantity(*_BANDWIDTH, HBM_RATES)
    dram_copy_bandwidth_bytes_per_s: float | None = quantity(*_BANDWIDTH, HBM_RATES)
    achieved_dram_fraction: float | None = quantity(0.1, 1.0, HBM_RATES)
    sm_dram_bytes_per_clock: float | None = quantity(0.1, 1024, HBM_RATES)
    dram_latency_cycles: float | None = quantity(10, 1e5, HBM_RATES)
    pass_bandwidth_fraction: float | None = quantity(0.1, 1.0, HBM_RATES)
    sector_bytes: int = quantity(1, 65536, default=MISSING)
    line_bytes: int = quantity(1, 65536, L2, default=MISSING)
    nvlink_bytes_per_s: float | None = quantity(*_BANDWIDTH)
    pcie_bytes_per_s: float | None = quantity(*_BANDWIDTH)
    power_w: float | None = quantity(1, 1e5, POWER)
    peak_power_w: float | None = quantity(1, 1e5, POWER)
    awake_power_w: float | None = quantity(1, 1e5, POWER)
    tensor_clock_fraction: float | None = quantity(0.5, 1.0, POWER)
    energy_clock_exponent: float | None = quantity(0.0, 5.0, POWER)
    energy_factor: float | None = quantity(0.1, 10.0, POWER)
    on_chip_energy_share: float | None = quantity(0.1, 1.0, POWER)
    hbm_read_pj_per_byte: float | None = quantity(*_ENERGY, POWER)
    hbm_write_pj_per_byte: float | None = quantity(*_ENERGY, POWER)
    l2_read_pj_per_byte: float | None = quantity(*_ENERGY, POWER)
    l2_write_pj_per_byte: float | None = quantity(*_ENERGY, POWER)
    shared_pj_per_byte: float | None = quantity(*_ENERGY, POWER)
    tensor_pj_per_flop: float | None = quantity(*_ENERGY, POWER)
    mma_sync_pj_per_flop: float | None = quantity(*_ENERGY, POWER)
    warp_instruction_pj: float | None = quantity(*_ENERGY, POWER)


class Quantity(NamedTuple):
    """What a quantity may be: its form, the range outside which it must be a slip of units, and its group."""

    form: str  # "int", "float", "word", "ints" (ascending list), "rates" (by dtype), "points" (bytes, bytes per second)
    low: float
    high: float
    group: str
    accepted: tuple[str, ...] = ()  # words

    @property
    def value(self) -> Spec:
        if self.form == "word":
            return Text(self.accepted)
        if self.form == "int":
            return Whole(self.low, self.high, _UNIT)
        if self.form == "ints":
            return ListOf(Whole(self.low, self.high, _UNIT), ascending=True)
        rate = Real(self.low, self.high, _UNIT)
        if self.form == "points":
            return Pairs(Whole(1, 1e14), rate, ("footprint in bytes", "bytes per second"))
        return rate


QUANTITIES: Mapping[str, Quantity] = {
    member.name: Quantity(_FORMS[str(member.type)], **member.metadata)
    for member in fields(Quantities)
}

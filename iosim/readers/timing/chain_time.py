"""Time of a chain of launches on a GPU: what each resource needs, and how long the launch takes.

An attention loop takes the time of its steps (`iosim.readers.timing.step_time`) in the schedule of its CTAs
(`iosim.readers.timing.makespan`), beside that of its HBM bytes (`beside`). Other launches take the longest of their
resources. A launch has a fixed latency, and launches of a chain run one after the other. Measured errors, constants and
what they leave unexplained: docs/timing.md. NB: times of the host, between calls, are no part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iosim.base.errors import InputError
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, MatrixUnit
from iosim.kernel.launch import Chain, Launch, Mode, Outer, Per
from iosim.kernel.residency import Residency
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.makespan import makespan
from iosim.readers.timing.step_time import (
    SmRates,
    Waits,
    is_attention_loop,
    matrix_unit,
    step_cost,
    step_cycles,
)

OVERLAP_NORM = 2.4
"""Computing and streaming of a launch overlap in time t with t^n = a^n + b^n: 1 is one after the other, infinity the
longer alone. Fitted on FlashAttention-3's published forward speeds at 512, 2k and 8k tokens
(`python benchmarks/utilisation_error.py --fit`)."""


@dataclass(frozen=True)
class LaunchTime:
    """Time of one launch.

    `seconds` holds what each resource alone would need on the busiest SM (tensor, exp, smem, l2) or for the whole GPU
    (hbm), and under "latency" the time in which the longest of them waits: launch, exposed loads, phases that do not
    overlap. `exp` counts the exponentials with the fp32 work of the softmax.
    """

    name: str
    """The launch."""
    seconds: dict[str, float]
    """Seconds that each resource alone would need, and those of waiting."""
    waves: float
    """Rounds of resident CTAs that the launch takes."""
    total_s: float
    """Seconds of the launch."""

    @property
    def bound_by(self) -> str:
        """The resource that needs most of the time."""
        return max(self.seconds, key=lambda k: self.seconds[k])


@dataclass(frozen=True)
class ChainTime:
    """Times of a chain's launches, at one set of ceilings."""

    launches: tuple[LaunchTime, ...]
    """The launches in order."""
    ceilings: str
    """Whose rates they are at: measured ones, or those of the specification."""
    missing: tuple[str, ...]
    """What the profile does not know and the time leaves out, a sentence each."""

    @property
    def total_s(self) -> float:
        """Seconds of all launches."""
        return sum(t.total_s for t in self.launches)

    @property
    def bound_by(self) -> str:
        """The resource that bounds the launches which take the longest together."""
        share: dict[str, float] = {}
        for t in self.launches:
            share[t.bound_by] = share.get(t.bound_by, 0.0) + t.total_s
        return max(share, key=lambda k: share[k]) if share else "latency"

    def to_dict(self) -> dict[str, Any]:
        return {
            "ceilings": self.ceilings,
            "time_s": self.total_s,
            "bound_by": self.bound_by,
            "launches": [{"name": t.name, "time_s": t.total_s, "bound_by": t.bound_by, "seconds": t.seconds,
                          "waves": t.waves} for t in self.launches],
        }  # fmt: skip


def executed_pairs(launch: Launch) -> int:
    """(query row, key row) pairs that a launch computes: whole tiles of every visited pair of blocks."""
    d = launch.domain
    return int(d.visited.count.sum()) * d.block_q * d.block_k * d.grid_heads


def beside(*seconds: float) -> float:
    """Seconds of work of several kinds that overlap in part: their OVERLAP_NORM-norm.

    CTAs of a round start together, so their first loads come in a burst and the units wait; the burst spreads as tiles
    grow longer. With one kind of work far longer than the others, the rest is hidden.
    """
    longest = max(seconds, default=0.0)
    if longest <= 0.0:
        return 0.0
    return float(longest * sum((s / longest) ** OVERLAP_NORM for s in seconds) ** (1 / OVERLAP_NORM))


class _Rates:
    """Ceilings of a profile; what is unknown is remembered, not guessed."""

    def __init__(self, profile: HardwareProfile, measured: bool) -> None:
        self.profile = profile
        self.measured = measured
        self.missing: list[str] = []
        self.clock = (profile.sustained_clock_hz if measured else None) or profile.boost_clock_hz

    def hbm(self) -> float | None:
        best = self.profile.dram_bandwidth_measured_bytes_per_s if self.measured else None
        best = best or self.profile.dram_bandwidth_bytes_per_s
        return best if best else self._absent("dram_bandwidth_bytes_per_s")

    def l2(self) -> float | None:
        """Bandwidth of reads that hit: what misses is HBM's to carry, and CTAs in step share a line for a while."""
        p = self.profile
        specified = p.l2_read_bandwidth_bytes_per_s
        if not self.measured and specified:
            return specified
        try:
            return p.l2_read_bandwidth(0)
        except InputError:
            return specified if specified else self._absent("l2_read_bandwidth_bytes_per_s")

    def tensor(self, dtype: str, unit: MatrixUnit) -> float | None:
        """Operations per second of the GPU's matrix products in `dtype` by `unit`."""
        p = self.profile
        if unit is MatrixUnit.FP32:
            return p.fp32_flops_per_s or self._absent("fp32_flops_per_s")
        try:
            rate = p.tensor_flops(dtype)
        except InputError:
            if p.fp32_flops_per_s and dtype in ("bf16", "fp16", "tf32"):
                self._note(f"no {dtype} tensor rate: fp32 units' rate used")
                return p.fp32_flops_per_s
            return self._absent(f"tensor_flops_per_s.{dtype}")
        limits = [rate]
        if self.measured and unit is not MatrixUnit.PINGPONG:
            limits.append(self._achieved(dtype, rate))
        if unit is MatrixUnit.MMA_SYNC and p.mma_sync_tensor_fraction is not None:
            limits.append(p.mma_sync_tensor_fraction * rate)
        return min(limits)

    def power_limit(self, dtype: str) -> float | None:
        """What large products have reached in `dtype`: a mean over milliseconds that power allows, not a rate that
        holds inside a step. None where specifications are asked for."""
        if not self.measured or dtype not in self.profile.tensor_flops_achieved_per_s:
            return None
        return self.profile.tensor_flops(dtype, measured=True)

    def _achieved(self, dtype: str, rate: float) -> float:
        try:
            return self.profile.tensor_flops(dtype, measured=True)
        except InputError:
            share = self.profile.need("achieved_tensor_fraction")
            self._note(
                f"{self.profile.name} has no measured {dtype} tensor rate: {share:.0%} of the specified one used"
            )
            return share * rate

    def of_sm(self, dtype: str, unit: MatrixUnit) -> SmRates | None:
        """The rates of one SM in its cycles; None where the clock or the number of SMs is not known."""
        p, clock = self.profile, self.clock
        if clock is None:
            self._absent("boost_clock_hz")
            return None
        per_sm = p.sm_count * clock
        tensor, l2 = self.tensor(dtype, unit), self.l2()
        if p.fp32_flops_per_s and p.boost_clock_hz:
            lanes: float | None = p.fp32_flops_per_s / 2 / p.sm_count / p.boost_clock_hz
        else:
            lanes = self._absent("fp32_flops_per_s")
        return SmRates(
            waits=Waits.of(p),
            clock_hz=clock,
            tensor_flops=tensor / per_sm if tensor else None,
            fp32_lanes=lanes,
            exps=p.exp_per_clock_per_sm or self._absent("exp_per_clock_per_sm"),
            shared_bytes=p.shared_memory_bytes_per_clock_per_sm or self._absent("shared_memory_bytes_per_clock_per_sm"),
            l2_bytes=l2 / per_sm if l2 else None,
        )

    def _absent(self, what: str) -> float | None:
        self._note(f"{self.profile.name} does not know {what}: its ceiling is left out")
        return None

    def _note(self, text: str) -> None:
        if text not in self.missing:
            self.missing.append(text)


def chain_time(
    problem: AttentionProblem,
    chain: Chain,
    traffic: Traffic,
    profile: HardwareProfile,
    residencies: Sequence[Residency],
    *,
    measured: bool = True,
    kernel: Kernel | None = None,
) -> ChainTime:
    """Time of a chain whose `traffic` holds rows at l2 and hbm.

    Args:
        residencies: of each launch, in order.
        measured: use measured bandwidths, rates and clocks where the profile has them; else the specification's alone.
        kernel: the kernel behind the chain; its option `matrix_unit` says what computes the products on cc 9.0.

    Raises:
        InputError: the kernel's matrix unit is not known.
    """
    rates = _Rates(profile, measured)
    times = []
    for launch, resident in zip(chain.launches, residencies, strict=True):
        unit = MatrixUnit.FP32 if problem.dtype == "fp32" else matrix_unit(launch, profile, kernel)
        seconds: dict[str, float] = {}
        hbm = rates.hbm()
        if hbm:
            seconds["hbm"] = traffic.total("hbm", launch=launch.name) / hbm
        l2_bytes = traffic.total("l2", launch=launch.name)
        sm = rates.of_sm(problem.dtype, unit) if is_attention_loop(launch) else None
        if sm is not None:
            loop, waves = _loop_seconds(launch, unit, sm, resident, l2_bytes, problem, profile)
            total = loop.pop("total")
            seconds |= loop
            if unit is MatrixUnit.PINGPONG:
                total = _pingpong_seconds(total, launch, traffic, rates, kernel, problem.dtype)
            if reuses_keys(launch):
                total = beside(total, seconds.get("hbm", 0.0))
        else:
            seconds |= _flat_seconds(launch, unit, rates, resident, l2_bytes, problem)
            total, waves = 0.0, resident.waves
        total = profile.need("launch_latency_s") + max(total, *seconds.values(), 0.0)
        seconds["latency"] = total - max(seconds.values(), default=0.0)
        times.append(LaunchTime(launch.name, seconds, waves, total))
    return ChainTime(tuple(times), "measured" if measured else "specification", tuple(rates.missing))


def _loop_seconds(
    launch: Launch, unit: MatrixUnit, sm: SmRates, resident: Residency, l2_bytes: int, problem: AttentionProblem,
    profile: HardwareProfile,
) -> tuple[dict[str, float], float]:  # fmt: skip
    """Seconds of an attention loop by resource and in "total", and its waves."""
    steps = int(launch.domain.visited.count.sum()) * launch.domain.grid_heads
    cost = step_cost(launch, unit, sm, l2_bytes / max(1, steps), problem.input_type.bytes, profile.cc)
    per_sm = max(1, min(resident.ctas_per_sm, -(-resident.slots // profile.sm_count)))
    tile_cycles = profile.need("pingpong_tile_cycles" if unit is MatrixUnit.PINGPONG else "tile_cycles")
    span = makespan(launch, profile.sm_count, per_sm, lambda ctas: step_cycles(cost, ctas), tile_cycles)
    units = {"tensor": cost.tensor, "exp": cost.softmax, "smem": cost.smem, "l2": cost.l2}
    seconds = {name: span.steps * cycles / sm.clock_hz for name, cycles in units.items() if cycles}
    return seconds | {"total": span.cycles / sm.clock_hz}, resident.waves


def reuses_keys(launch: Launch) -> bool:
    """Whether several tiles of a head share what they stream. Else the bytes flow evenly, with nothing to alternate."""
    if launch.outer is Outer.QUERY:
        return launch.domain.query_blocks > 1
    return launch.outer is Outer.KEY and launch.domain.key_blocks_total > 1


def _pingpong_seconds(
    computing: float, launch: Launch, traffic: Traffic, rates: _Rates, kernel: Kernel | None, dtype: str
) -> float:
    """Seconds of a ping-pong loop beside its L2 bytes, and at least what power allows.

    CTAs of a cluster fetch keys and values once for all of them (TMA multicast; the kernel's `cluster`).
    """
    cluster = kernel.cluster if kernel is not None else 1
    streamed = {a.tensor for a in launch.accesses if a.per is Per.PAIR and a.mode is Mode.LOAD}
    multicast = sum(traffic.total("l2", "read", launch=launch.name, tensor=name) for name in streamed)
    fetched = traffic.total("l2", launch=launch.name) - multicast * (1 - 1 / cluster)
    l2, power = rates.l2(), rates.power_limit(dtype)
    least = executed_pairs(launch) * launch.flops_per_pair / power if power else 0.0
    return max(beside(computing, fetched / l2 if l2 else 0.0), least)


def _flat_seconds(
    launch: Launch, unit: MatrixUnit, rates: _Rates, resident: Residency, l2_bytes: int, problem: AttentionProblem
) -> dict[str, float]:
    """Seconds of a launch without an attention loop: products with whole waves of tiles, exponentials, L2 bytes."""
    seconds: dict[str, float] = {}
    l2 = rates.l2()
    if l2:
        seconds["l2"] = l2_bytes / l2
    pairs = executed_pairs(launch)
    if launch.flops_per_pair:
        rate = rates.tensor(problem.dtype, unit)
        if rate:
            whole_waves = -(-launch.work_tiles // resident.slots) * resident.slots / launch.work_tiles
            seconds["tensor"] = pairs * launch.flops_per_pair / rate * whole_waves
    profile = rates.profile
    shared = profile.shared_memory_bytes_per_clock_per_sm
    if launch.shared_bytes_per_pair and shared and rates.clock:
        busiest = pairs * -(-launch.work_tiles // profile.sm_count) / launch.work_tiles
        seconds["smem"] = busiest * launch.shared_bytes_per_pair / (shared * rates.clock)
    if launch.exps_per_pair and profile.exp_per_clock_per_sm and rates.clock:
        seconds["exp"] = pairs * launch.exps_per_pair / (profile.exp_per_clock_per_sm * rates.clock * profile.sm_count)
    return seconds

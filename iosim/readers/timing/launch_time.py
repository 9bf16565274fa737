"""Time of one launch on a GPU at one clock: what each resource needs, what overlaps, and the work that costs energy."""

from __future__ import annotations

from dataclasses import dataclass, field

from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel, MatrixUnit
from iosim.kernel.launch import Launch, Mode, Outer, Per
from iosim.kernel.residency import Residency
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.energy import IDLE_ROW_SHARE, INSTRUCTIONS_PER_SCORE, Work
from iosim.readers.timing.makespan import makespan
from iosim.readers.timing.rates import Rates
from iosim.readers.timing.step_time import (
    WAVEFRONT_BYTES,
    SmRates,
    is_attention_loop,
    matrix_unit,
    row_padding,
    step_cost,
    step_cycles,
)

OVERLAP_NORM = 2.4
"""Computing and streaming of a launch overlap in time t with t^n = a^n + b^n: 1 is one after the other, infinity the
longer alone. Fitted on FlashAttention-3's published forward speeds at 512, 2k and 8k tokens
(`python benchmarks/utilisation_error.py --fit`)."""
SPLIT_OVERLAP_NORM = 4.5
"""The same of launches that use each byte once, as split decoding, whose bytes flow evenly. Fitted."""
FIRST_LOADS = 2
"""Loads before a launch's first step, one behind the other: Q or what says where it lies, and the first keys."""
MMA_FLOPS = 4096
"""Operations of a warp's mma.sync (m16n8k16), an instruction like any other; wgmma's are too few to count."""


@dataclass(frozen=True)
class Setting:
    """How a launch is run: by whom (`graph`: a CUDA graph, else as the profiler sees it alone), what it finds in the
    L2, and whether it is the call's first."""

    graph: bool = False
    warm: bool = False
    first: bool = True


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
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds one after the other: "start" (launch and first loads), "work" (the longest resource at its rate), "waits"
    (what the others and barriers add to it)."""
    clock_hz: float | None = None
    """Clock of the SMs in hertz."""
    energy_j: dict[str, float] | None = None
    """Joules by level; None where the GPU's constants are not known."""

    @property
    def bound_by(self) -> str:
        """The resource that needs most of the time."""
        return max(self.seconds, key=lambda k: self.seconds[k])

    @property
    def power_w(self) -> float | None:
        """Mean power of the board during the launch, in watts."""
        return sum(self.energy_j.values()) / self.total_s if self.energy_j is not None and self.total_s else None


def executed_pairs(launch: Launch) -> int:
    """(query row, key row) pairs that a launch computes: whole tiles of every visited pair of blocks."""
    d = launch.domain
    return int(d.visited.count.sum()) * d.block_q * d.block_k * d.grid_heads


def beside(*seconds: float, norm: float | None = None) -> float:
    """Seconds of work of several kinds that overlap in part: their norm, the OVERLAP_NORM-norm by default.

    CTAs of a round start together, so their first loads come in a burst and the units wait; the burst spreads as tiles
    grow longer. With one kind of work far longer than the others, the rest is hidden.
    """
    longest = max(seconds, default=0.0)
    if longest <= 0.0:
        return 0.0
    n = norm or OVERLAP_NORM
    return float(longest * sum((s / longest) ** n for s in seconds) ** (1 / n))


def reuses_keys(launch: Launch) -> bool:
    """Whether several tiles of a head share what they stream. Else the bytes flow evenly, with nothing to alternate."""
    if launch.outer is Outer.QUERY:
        return launch.domain.query_blocks > 1
    return launch.outer is Outer.KEY and launch.domain.key_blocks_total > 1


def uses_tensor_cores(launch: Launch, problem: AttentionProblem) -> bool:
    return launch.tensor_cores and launch.flops_per_pair > 0 and problem.dtype != "fp32"


def launch_time(
    problem: AttentionProblem,
    kernel: Kernel | None,
    launch: Launch,
    resident: Residency,
    traffic: Traffic,
    rates: Rates,
    setting: Setting,
) -> tuple[LaunchTime, Work]:
    """Time of one launch at the clock of `rates`, and its work.

    Args:
        traffic: rows of the chain at l2 and hbm.
    """
    profile = rates.profile
    unit = MatrixUnit.FP32 if problem.dtype == "fp32" else matrix_unit(launch, profile, kernel)
    hbm_read, hbm_written = (traffic.total("hbm", d, launch=launch.name) for d in ("read", "write"))
    l2_read, l2_written = (traffic.total("l2", d, launch=launch.name) for d in ("read", "write"))
    seconds: dict[str, float] = {}
    hbm = rates.hbm_seconds(hbm_read, hbm_written)
    if hbm is not None:
        seconds["hbm"] = hbm
    latency = rates.load_latency_s(from_dram=not setting.warm)
    sm = rates.of_sm(problem.dtype, unit) if is_attention_loop(launch) else None
    start = _start_s(profile, setting, attention=sm is not None)
    shared = instructions = 0.0
    pairs = float(executed_pairs(launch))
    if sm is not None:
        loop, waves = _loop_seconds(launch, unit, sm, resident, l2_read + l2_written, problem, profile)
        total, shared = loop.pop("total"), loop.pop("shared_bytes")
        seconds |= loop
        if unit is MatrixUnit.PINGPONG:
            total = _pingpong_seconds(total, launch, traffic, rates, problem.dtype)
        if launch.outer is Outer.SPLIT or reuses_keys(launch):
            norm = SPLIT_OVERLAP_NORM if launch.outer is Outer.SPLIT else None
            total = beside(total, seconds.get("hbm", 0.0), norm=norm)
        start += FIRST_LOADS * latency
        pairs, instructions = _worked(launch, unit, pairs)
    else:
        seconds |= _flat_seconds(launch, unit, rates, resident, l2_read + l2_written, problem)
        total, waves = 0.0, resident.waves
        if launch.outer is Outer.FLAT and hbm is not None:
            seconds["hbm"] = hbm / (profile.pass_bandwidth_fraction or 1.0)
        if launch.serial_loads:
            rounds = -(-launch.work_tiles // resident.slots)
            each = rates.load_latency_s(from_dram=2 * hbm_read >= l2_read)  # else the launch before left it in the L2
            total = rounds * launch.serial_loads * each + seconds.get("hbm", 0.0)
        else:
            start += FIRST_LOADS * latency
        if launch.operations_per_value:
            total = _pass_seconds(launch, traffic, rates, problem)
    total = start + max(total, *seconds.values(), 0.0)
    longest = max(seconds.values(), default=0.0)
    seconds["latency"] = total - longest
    parts = {"start": start, "work": min(longest, total - start), "waits": max(0.0, total - start - longest)}
    flops = pairs * launch.flops_per_pair if uses_tensor_cores(launch, problem) else 0.0
    by_mma_sync = unit is MatrixUnit.MMA_SYNC
    work = Work(
        hbm_read=hbm_read, hbm_written=hbm_written, l2_read=l2_read, l2_written=l2_written, shared=shared,
        tensor_flops=0.0 if by_mma_sync else flops, mma_sync_flops=flops if by_mma_sync else 0.0,
        warp_instructions=instructions,
    )  # fmt: skip
    return LaunchTime(launch.name, seconds, waves, total, parts, rates.clock_hz), work


def _start_s(profile: HardwareProfile, setting: Setting, attention: bool) -> float:
    """From the end of what ran before to a launch's first load."""
    if not setting.graph:
        return float(profile.need("launch_latency_s"))
    return float(profile.need("graph_call_latency_s" if setting.first else "graph_launch_latency_s"))


def _worked(launch: Launch, unit: MatrixUnit, pairs: float) -> tuple[float, float]:
    """(pairs whose products change bits, warp instructions) of an attention loop."""
    rows = launch.domain.query_rows
    filled = float(rows[rows > 0].mean()) / launch.domain.block_q if (rows > 0).any() else 1.0
    warps = max(1, launch.resources.threads // 32)
    padded = pairs * (1.0 if launch.outer is Outer.KEY else row_padding(launch.domain.block_q, warps, unit))
    instructions = padded * INSTRUCTIONS_PER_SCORE / 32
    if unit is MatrixUnit.MMA_SYNC:
        instructions += padded * launch.flops_per_pair / MMA_FLOPS
    return padded * (IDLE_ROW_SHARE + (1 - IDLE_ROW_SHARE) * min(1.0, filled)), instructions


def _loop_seconds(
    launch: Launch, unit: MatrixUnit, sm: SmRates, resident: Residency, l2_bytes: int, problem: AttentionProblem,
    profile: HardwareProfile,
) -> tuple[dict[str, float], float]:  # fmt: skip
    """Seconds of an attention loop by resource and in "total", the "shared_bytes" that it moves, and its waves."""
    steps = int(launch.domain.visited.count.sum()) * launch.domain.grid_heads
    cost = step_cost(launch, unit, sm, l2_bytes / max(1, steps), problem.input_type.bytes, profile.cc)
    per_sm = max(1, min(resident.ctas_per_sm, -(-resident.slots // profile.sm_count)))
    tile_cycles = profile.need("pingpong_tile_cycles" if unit is MatrixUnit.PINGPONG else "tile_cycles")
    span = makespan(launch, profile.sm_count, per_sm, lambda ctas: step_cycles(cost, ctas), tile_cycles)
    units = {"tensor": cost.tensor, "exp": cost.softmax, "smem": cost.smem, "l2": cost.l2}
    seconds = {name: span.steps * cycles / sm.clock_hz for name, cycles in units.items() if cycles}
    moved = steps * cost.smem * (sm.shared_bytes or WAVEFRONT_BYTES)
    return seconds | {"total": span.cycles / sm.clock_hz, "shared_bytes": moved}, resident.waves


def _pingpong_seconds(computing: float, launch: Launch, traffic: Traffic, rates: Rates, dtype: str) -> float:
    """Seconds of a ping-pong loop beside its L2 bytes, and at least what power allows.

    CTAs of a cluster fetch keys and values once for all of them (TMA multicast).
    """
    cluster = launch.schedule.cluster
    streamed = {a.tensor for a in launch.accesses if a.per is Per.PAIR and a.mode is Mode.LOAD}
    multicast = sum(traffic.total("l2", "read", launch=launch.name, tensor=name) for name in streamed)
    fetched = traffic.total("l2", launch=launch.name) - multicast * (1 - 1 / cluster)
    l2, power = rates.l2(), rates.power_limit(dtype)
    least = executed_pairs(launch) * launch.flops_per_pair / power if power else 0.0
    return max(beside(computing, fetched / l2 if l2 else 0.0), least)


def _pass_seconds(launch: Launch, traffic: Traffic, rates: Rates, problem: AttentionProblem) -> float:
    """Seconds of a pass that its instructions bound: `operations_per_value` lane cycles for each value it loads."""
    profile = rates.profile
    values = traffic.total("l2", "read", launch=launch.name) / problem.input_type.bytes
    if not (profile.fp32_flops_per_s and profile.boost_clock_hz and rates.clock_hz):
        return 0.0
    lanes = profile.fp32_flops_per_s / 2 / profile.boost_clock_hz * rates.clock_hz
    return float(values * launch.operations_per_value / lanes)


def _flat_seconds(
    launch: Launch, unit: MatrixUnit, rates: Rates, resident: Residency, l2_bytes: int, problem: AttentionProblem
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
    profile, clock = rates.profile, rates.clock_hz
    shared = profile.shared_memory_bytes_per_clock_per_sm
    if launch.shared_bytes_per_pair and shared and clock:
        busiest = pairs * -(-launch.work_tiles // profile.sm_count) / launch.work_tiles
        seconds["smem"] = busiest * launch.shared_bytes_per_pair / (shared * clock)
    if launch.exps_per_pair and profile.exp_per_clock_per_sm and clock:
        seconds["exp"] = pairs * launch.exps_per_pair / (profile.exp_per_clock_per_sm * clock * profile.sm_count)
    return seconds

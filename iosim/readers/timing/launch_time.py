"""Time of one launch on a GPU at one clock: what each resource needs, what overlaps, and the work that costs energy."""

from __future__ import annotations

from dataclasses import dataclass, field

from iosim.kernel.kernel import Kernel, MatrixUnit
from iosim.kernel.launch import Launch, Outer, is_attention_loop
from iosim.kernel.pace import Pace
from iosim.kernel.residency import Residency
from iosim.kernel.traffic import Traffic
from iosim.problem.attention import AttentionProblem
from iosim.readers.timing.computing import Computing, executed_pairs, loop_computing, other_computing, worked
from iosim.readers.timing.energy import Work
from iosim.readers.timing.overlap import SPLIT_OVERLAP_NORM, beside
from iosim.readers.timing.rates import Rates
from iosim.readers.timing.step_time import matrix_unit

ENERGY_BYTES = 2
"""Of the numbers whose products' energy was measured: one of half as many bytes is taken to cost half."""
FIRST_LOADS = 2
"""Loads before a launch's first step, one behind the other: Q or what says where it lies, and the first keys."""


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
    pace: Pace = field(default_factory=Pace)
    """How fast its CTAs go, loads that miss apart: what a replay of it plays."""

    @property
    def bound_by(self) -> str:
        """The resource that needs most of the time."""
        return max(self.seconds, key=lambda k: self.seconds[k])

    @property
    def power_w(self) -> float | None:
        """Mean power of the board during the launch, in watts."""
        return sum(self.energy_j.values()) / self.total_s if self.energy_j is not None and self.total_s else None


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
    unit = MatrixUnit.FP32 if problem.dtype == "fp32" else matrix_unit(launch, rates.profile, kernel)
    sm = rates.of_sm(problem.dtype, unit) if is_attention_loop(launch) else None
    if sm is None:
        done = other_computing(launch, unit, resident, traffic, rates, problem)
    else:
        done = loop_computing(launch, unit, sm, resident, traffic, rates, problem)
    seconds = _hbm_seconds(launch, traffic, rates, loops=sm is not None) | done.seconds
    start = _start_s(rates, setting)
    if launch.serial_loads and sm is None:
        together = _serial_seconds(launch, resident, traffic, rates) + seconds.get("hbm", 0.0)
    else:
        start += FIRST_LOADS * rates.load_latency_s(from_dram=not setting.warm)
        together = _beside_hbm(launch, done, seconds.get("hbm", 0.0), loops=sm is not None)
    longest = max(seconds.values(), default=0.0)
    total = start + max(together, longest)
    time = LaunchTime(
        name=launch.name,
        seconds=seconds | {"latency": total - longest},
        waves=done.waves,
        total_s=total,
        parts={"start": start, "work": min(longest, total - start), "waits": max(0.0, total - start - longest)},
        clock_hz=rates.clock_hz,
        pace=Pace(start, done.tile_s, done.step_s),
    )
    return time, _work(launch, unit, traffic, done, problem, loops=sm is not None)


def _hbm_seconds(launch: Launch, traffic: Traffic, rates: Rates, loops: bool) -> dict[str, float]:
    """Seconds of the launch's HBM bytes; none where the profile knows no rate."""
    read, written = (traffic.total("hbm", direction, launch=launch.name) for direction in ("read", "write"))
    hbm = rates.hbm_seconds(read, written)
    if hbm is None:
        return {}
    is_pass = launch.outer is Outer.FLAT and not loops
    return {"hbm": hbm / (rates.profile.pass_bandwidth_fraction or 1.0) if is_pass else hbm}


def _start_s(rates: Rates, setting: Setting) -> float:
    """From the end of what ran before to a launch's first load."""
    if not setting.graph:
        return float(rates.profile.need("launch_latency_s"))
    return float(rates.profile.need("graph_call_latency_s" if setting.first else "graph_launch_latency_s"))


def _serial_seconds(launch: Launch, resident: Residency, traffic: Traffic, rates: Rates) -> float:
    """Seconds of loads that wait for one another, in every round of CTAs."""
    read_at_hbm, read = (traffic.total(level, "read", launch=launch.name) for level in ("hbm", "l2"))
    rounds = -(-launch.work_tiles // resident.slots)
    each = rates.load_latency_s(from_dram=2 * read_at_hbm >= read)  # else the launch before left it in the L2
    return rounds * launch.serial_loads * each


def _beside_hbm(launch: Launch, done: Computing, hbm: float, loops: bool) -> float:
    """Seconds of computing and streaming together, where they hold one another up.

    Where no tile finds in the L2 what another has loaded, an SM gets its even share of HBM and the busiest one decides:
    in the last round, when others have nothing left to load, it does not go faster.
    """
    computing, splits = done.total_s, launch.outer is Outer.SPLIT
    if not loops:
        return computing
    if splits or reuses_keys(launch):
        computing = beside(computing, hbm, norm=SPLIT_OVERLAP_NORM if splits else None)
    return computing if reuses_keys(launch) else max(computing, hbm * done.busiest_share)


def _work(
    launch: Launch, unit: MatrixUnit, traffic: Traffic, done: Computing, problem: AttentionProblem, loops: bool
) -> Work:
    """What the launch does that costs energy."""
    moved = {
        (level, direction): traffic.total(level, direction, launch=launch.name)
        for level in ("hbm", "l2")
        for direction in ("read", "write")
    }
    pairs, instructions = float(executed_pairs(launch)), 0.0
    if loops:
        pairs, instructions = worked(launch, unit, pairs)
    flops = pairs * launch.flops_per_pair if uses_tensor_cores(launch, problem) else 0.0
    by_mma_sync = unit is MatrixUnit.MMA_SYNC
    return Work(
        hbm_read=moved["hbm", "read"], hbm_written=moved["hbm", "write"],
        l2_read=moved["l2", "read"], l2_written=moved["l2", "write"], shared=done.shared_bytes,
        tensor_flops=0.0 if by_mma_sync else flops * problem.input_type.bytes / ENERGY_BYTES,
        mma_sync_flops=flops if by_mma_sync else 0.0,
        warp_instructions=instructions,
    )  # fmt: skip

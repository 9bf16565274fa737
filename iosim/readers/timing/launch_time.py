"""Time of one launch on a GPU at one clock: what each resource needs, what overlaps, and the work that costs energy."""

from __future__ import annotations

import math
from collections.abc import Callable

from iosim.base.records import dataclass, field
from iosim.kernel.launch import Launch, Outer, is_attention_loop
from iosim.kernel.pace import Pace
from iosim.kernel.schedule import Scheduler
from iosim.readers.timing.computing import (
    FIRST_LOADS,
    Computing,
    Running,
    executed_pairs,
    loop_computing,
    other_computing,
    worked,
)
from iosim.readers.timing.energy import Activity, mean_power_w
from iosim.readers.timing.machine_time import machine_computing
from iosim.readers.timing.overlap import beside, norm_of

ENERGY_BYTES = 2
"""Of the numbers whose products' energy was measured: one of half as many bytes is taken to cost half."""
STREAM_START_S = 3.3e-6
"""In which a launch that streams keys from HBM has their addresses translated, before HBM runs at its rate: as long at
70 MB as at 1 GB, and none of it where the L2 holds the keys. Fitted on the odd decoding rows of h200_graph_latency.csv
and h100_graph_latency.csv."""
PAGED_START_S = 5.0e-6
"""The same of keys in pages, in which it also reads where these lie. Fitted on the odd rows of published_latency.csv
while decoding, and the open ones of published_stacks.csv. NB: where keys lie in the L2, so do these; calls of latent
keys were not looked at."""

MEMSET_S = 0.94e-6
"""Of a memset between kernels of a graph, on an H100 (experiments/measurements/h100_nodes.csv)."""
STARTS = {("graph", True): "graph_call_latency_s", ("graph", False): "graph_launch_latency_s"}
"""(how it is launched, whether it is its call's first) -> the profile's latency, where not that of a launch alone."""


@dataclass(frozen=True)
class LaunchTime:
    """Time of one launch.

    `seconds` holds what each resource alone would need on the busiest SM (tensor, exp, smem, l2) or for the whole GPU
    (hbm, and side for a cache at the memory's side), and under "latency" the time in which the longest of them waits:
    launch, exposed loads, phases that do not overlap. `exp` counts the exponentials with the fp32 work of the softmax.
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
        return mean_power_w(self.energy_j, self.total_s)


def reuses_keys(launch: Launch) -> bool:
    """Whether several tiles of a head share what they stream. Else the bytes flow evenly, with nothing to alternate."""
    blocks = {Outer.QUERY: launch.domain.query_blocks, Outer.KEY: launch.domain.key_blocks_total}
    return blocks.get(launch.outer, 1) > 1


def uses_tensor_cores(running: Running) -> bool:
    return running.launch.work.flops_per_pair > 0 and running.unit.tensor_cores


def launch_time(running: Running) -> tuple[LaunchTime, Activity]:
    """Time of one launch at the clock of its rates, and what of it costs energy."""
    launch, rates = running.launch, running.rates
    sm = rates.of_sm(running.dtype, running.unit) if is_attention_loop(launch) else None
    pairs = float(executed_pairs(launch))
    rest: Callable[[Running, Computing, float, float], tuple[float, float]]
    machine = launch.work.machine
    if machine is not None and rates.clock_hz is not None:
        done, rest = machine_computing(running, machine), (_pass if sm is None else _loop)
        pairs, instructions = (pairs, 0.0) if sm is None else worked(launch, running.unit, pairs)
    elif sm is None:
        done, rest, (pairs, instructions) = other_computing(running), _pass, (pairs, 0.0)
    else:
        done, rest, (pairs, instructions) = loop_computing(running, sm), _loop, worked(launch, running.unit, pairs)
    hbm = _hbm_seconds(running, is_pass=launch.outer is Outer.FLAT and launch.work.dependent is None)
    side = rates.side_seconds(running.moved("side"))
    seconds = {"hbm": hbm} | {name: moved for name, moved in (("side", side),) if moved} | done.seconds
    longest = max(seconds.values(), default=0.0)
    first, together = rest(running, done, max(hbm, side), max(done.total_s, longest))
    start = (_start_s(running) + first) * (not launch.joins)
    total = start + max(together, longest)
    time = LaunchTime(
        name=launch.name,
        seconds=seconds | {"latency": total - longest},
        waves=done.waves,
        total_s=total,
        parts={"start": start, "work": min(longest, total - start), "waits": max(0.0, total - start - longest)},
        clock_hz=rates.clock_hz,
        pace=Pace(start, done.tile_s, done.step_s, done.waited_loads),
    )
    return time, _activity(running, done, pairs, instructions)


def _loop(running: Running, done: Computing, streamed: float, _: float) -> tuple[float, float]:
    """Seconds in which an attention loop's first tile waits more than any, and those of computing and streaming."""
    latency = running.rates.load_latency_s(from_dram=not running.conditions.warm)
    return running.waits_first * FIRST_LOADS * latency, _beside_hbm(running, done, streamed)


def _pass(running: Running, done: Computing, streamed: float, busiest: float) -> tuple[float, float]:
    """The same of a launch without a loop, whose longest resource needs `busiest` seconds. Serial loads wait for one
    another in every round of CTAs; a fill waits for none."""
    launch, rates = running.launch, running.rates
    if launch.work.dependent is not None:
        return 0.0, beside(done.total_s, streamed, norm=norm_of(reuses_keys(launch)))
    if launch.work.serial_loads:
        rounds, from_dram = -(-launch.work_tiles // running.resident.slots), not running.finds_in_l2
        return 0.0, rounds * launch.work.serial_loads * rates.load_latency_s(from_dram) + streamed
    fills = running.moved("l2", "read") == 0 < running.moved("l2", "write")
    loads = FIRST_LOADS // (1 + launch.streams_queries) * (not fills)
    return loads * rates.load_latency_s(from_dram=not running.conditions.warm), _threads_s(running, busiest)


def _threads_s(running: Running, busiest_s: float) -> float:
    """Seconds of a launch without a loop, whose busiest unit needs `busiest_s`: of a pass, beside what each of its
    threads waits for in every round of CTAs. A CTA has as many values as its threads take, and a work tile at most."""
    launch = running.launch
    values = sum(running.chain.tensors[a.tensor].elements for a in launch.accesses[:1])
    ctas = max(launch.work_tiles, values / (launch.values_per_thread * launch.resources.threads))
    waits = math.ceil(ctas / running.resident.slots) * launch.work.thread_loads
    return beside(waits * running.rates.load_latency_s(not running.finds_in_l2), busiest_s)


def _hbm_seconds(running: Running, is_pass: bool) -> float:
    """Seconds of the launch's HBM bytes; 0 where the profile knows no rate."""
    hbm = running.rates.hbm_seconds(running.moved("hbm", "read"), running.moved("hbm", "write"))
    return hbm / (running.rates.profile.pass_bandwidth_fraction or 1.0) ** is_pass


def _start_s(running: Running) -> float:
    """From the end of what ran before to a launch's first load, in a CUDA graph with a memset before it, or alone."""
    launched = running.conditions.launched
    start = float(running.rates.profile.need(STARTS.get((launched, running.first), "launch_latency_s")))
    cleared = running.kernel.clears_queue and running.launch.schedule.scheduler is Scheduler.DYNAMIC
    return start + (cleared and launched == "graph") * MEMSET_S


def _beside_hbm(running: Running, done: Computing, hbm: float) -> float:
    """Seconds of a loop's computing and streaming together, where they hold one another up.

    Where no tile finds in the L2 what another has loaded, what CTAs stream flows evenly; but all of a round wait for
    their queries before they compute, where no warps of their own load. Where every product has a pipeline of its own,
    nothing is computed beside the bytes of CTAs' first steps. Of bytes used once an SM gets its even share of HBM, or
    as much as the profile says, and the busiest one decides: in the last round it goes as fast as a CTA alone.
    """
    launch, reuses = running.launch, reuses_keys(running.launch)
    norm = norm_of(reuses)
    if reuses:
        steps = max(1, int(launch.domain.visited.count.sum()) * launch.domain.grid_heads)
        first = launch.rereads_q * min(steps, launch.work_tiles, running.resident.slots) / steps * hbm
        return first + beside(done.total_s, hbm - first, norm=norm)
    names = running.loaded(in_steps=False) - running.loaded(in_steps=True)
    waited_for = sum(running.moved("hbm", "read", name) for name in names)
    first = running.rates.hbm_seconds(waited_for, 0.0) * (not running.unit.loads_apart)
    together = first + beside(done.total_s, hbm - first, norm=norm)
    return max(together, hbm * _last_round(running, done, hbm)) + _late_s(running, hbm)


def _late_s(running: Running, hbm: float) -> float:
    """Seconds before HBM runs at its rate for a launch that streams keys from there; less where fewer SMs ask, or for
    little."""
    if running.problem.latent_kv or running.finds_in_l2:
        return 0.0
    asking = min(1.0, running.launch.work_tiles / running.rates.profile.sm_count)
    share, most_s = ((0.25, STREAM_START_S), (1.0, PAGED_START_S))[bool(running.problem.page_size)]
    return asking * min(share * hbm, most_s)


def _last_round(running: Running, done: Computing, hbm: float) -> float:
    """What a loop's bytes at HBM take, over what they take at its rate, where SMs have unequal numbers of tiles: those
    with one more draw no more than a CTA alone does, a step's bytes in the time of a load and the step's computing."""
    launch, rates = running.launch, running.rates
    steps, sms = int(launch.domain.visited.count.sum()) * launch.domain.grid_heads, rates.profile.sm_count
    at_most = done.busiest_share / rates.most_shares()
    waits = rates.load_latency_s(from_dram=True) + done.step_s[0]
    alone = hbm * sms / max(1, steps) / waits  # what an SM draws so, over its even share
    return min(at_most, max(1.0, done.busiest_share - (1 - 1 / max(1.0, alone)) * sms / launch.work_tiles))


def _activity(running: Running, done: Computing, pairs: float, instructions: float) -> Activity:
    flops = pairs * running.launch.work.flops_per_pair * running.unit.products * uses_tensor_cores(running)
    return Activity(
        hbm_read=running.moved("hbm", "read"),
        hbm_written=running.moved("hbm", "write"),
        l2_read=running.moved("l2", "read"),
        l2_written=running.moved("l2", "write"),
        shared=done.shared_bytes,
        product_flops=flops,
        product_energy=running.unit.energy,
        product_share=running.element_bytes / ENERGY_BYTES,
        warp_instructions=instructions,
    )

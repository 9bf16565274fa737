"""Time of one launch on a GPU at one clock: what each resource needs, what overlaps, and the work that costs energy."""

from __future__ import annotations

from iosim.base.records import dataclass, field
from iosim.kernel.launch import Outer, is_attention_loop
from iosim.kernel.pace import Pace
from iosim.readers.timing import launch_terms as terms
from iosim.readers.timing.energy import FMA_FLOPS, Activity, mean_power_w
from iosim.readers.timing.loop_time import Computing, loop_computing, worked
from iosim.readers.timing.overlap import beside, computing_beside_stream, norm_of
from iosim.readers.timing.pass_time import issued_seconds, pass_computing
from iosim.readers.timing.running import Running, executed_pairs, reuses_keys

ENERGY_BYTES = 2
"""Bytes of the numbers whose products' energy was measured: one of half as many is taken to cost half."""


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


def launch_time(running: Running) -> tuple[LaunchTime, Activity]:
    """Time of one launch at the clock of its rates, and what of it costs energy."""
    launch, rates = running.launch, running.rates
    sm = rates.of_sm(running.dtype, running.unit) if is_attention_loop(launch) else None
    hbm = terms.hbm_seconds(
        running, is_pass=launch.outer is Outer.FLAT and launch.work.dependent is None
    )
    side = terms.side_seconds(running)
    streamed = max(hbm, side)
    start = terms.start_seconds(running) + terms.memset_seconds(running)
    pairs, instructions = float(executed_pairs(launch)), 0.0
    machine = launch.work.machine
    if machine is not None and rates.clock_hz is not None:
        from iosim.readers.timing.machine_time import machine_computing  # few launches need it

        computed = machine_computing(running, machine)
    elif sm is None:
        computed = pass_computing(running)
    else:
        computed = loop_computing(running, sm)
    if sm is None:
        start += terms.pass_start_seconds(running)
    else:
        pairs, instructions = worked(launch, running.unit, pairs)
        start += terms.loop_start_seconds(running)
    seconds = {"hbm": hbm} | ({"side": side} if side else {}) | computed.seconds
    longest = max(seconds.values(), default=0.0)
    if sm is None:
        together = _pass(running, computed, streamed, max(computed.total_s, longest))
    else:
        together = _loop(running, computed, streamed)
    total = start + max(together, longest)
    time = LaunchTime(
        name=launch.name,
        seconds=seconds | {"latency": total - longest},
        waves=computed.waves,
        total_s=total,
        parts={
            "start": start,
            "work": min(longest, total - start),
            "waits": max(0.0, total - start - longest),
        },
        clock_hz=rates.clock_hz,
        pace=Pace(start, computed.tile_s, computed.step_s, computed.waited_loads, computed.turns),
    )
    return time, _activity(running, computed, pairs, instructions)


def _loop(running: Running, computed: Computing, streamed: float) -> float:
    """Seconds of an attention loop's computing and streaming together, where they hold one another up.

    Where no tile finds in the L2 what another has loaded, what CTAs stream flows evenly; but all of a round wait for
    their queries before they compute. Of bytes used once an SM gets its even share of HBM, or as much as the profile
    says, and the busiest one decides.
    """
    reuses = reuses_keys(running.launch)
    first = (
        terms.first_step_seconds(running, streamed)
        if reuses
        else terms.queries_first_seconds(running)
    )
    together = first + computing_beside_stream(computed.total_s, streamed - first, norm_of(reuses))
    if reuses:
        return together
    uneven = terms.uneven_seconds(running, computed, streamed, together)
    return together + uneven + terms.late_seconds(running, streamed)


def _pass(running: Running, computed: Computing, streamed: float, busiest: float) -> float:
    """Seconds of a launch without a loop, whose longest resource needs `busiest` seconds. Serial loads wait for one
    another in every round of CTAs; a fill waits for none."""
    work = running.launch.work
    if work.dependent is not None:
        return computing_beside_stream(
            computed.total_s, streamed, norm_of(reuses_keys(running.launch))
        )
    if work.serial_loads:
        return terms.serial_load_seconds(running) + streamed
    return beside(terms.thread_load_seconds(running) + issued_seconds(running), busiest)


def _activity(running: Running, computed: Computing, pairs: float, instructions: float) -> Activity:
    work = running.launch.work
    flops, products = 0.0, pairs * work.flops_per_pair * running.unit.products
    if running.uses_tensor_cores:
        flops = products
    elif work.machine is None:
        instructions += products / FMA_FLOPS
    return Activity(
        hbm_read=running.moved("hbm", "read"),
        hbm_written=running.moved("hbm", "write"),
        l2_read=running.moved("l2", "read"),
        l2_written=running.moved("l2", "write"),
        shared=computed.shared_bytes,
        product_flops=flops,
        product_energy=running.unit.energy,
        product_share=running.element_bytes / ENERGY_BYTES,
        warp_instructions=instructions,
    )

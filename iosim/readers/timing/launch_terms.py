"""Terms of a launch: its start, what HBM takes, and what waits for HBM. In seconds."""

from __future__ import annotations

import math

from iosim.kernel.schedule import Scheduler
from iosim.readers.timing.loop_time import Computing
from iosim.readers.timing.running import Running
from iosim.readers.timing.terms import Scope, term
from iosim.readers.timing.tile_terms import FIRST_LOADS

STREAM_START_S = 3.3e-6
"""Seconds in which a launch that streams keys from HBM has their addresses translated, before HBM runs at its rate: as
long at 70 MB as at 1 GB, and none of it where the L2 holds the keys. Fitted on the odd decoding rows of
h200_graph_latency.csv and h100_graph_latency.csv."""
STREAM_START_SHARE = 0.25
"""Share of the time of the bytes that this takes at most. Fitted on the same rows."""
MEMSET_S = 0.94e-6
"""Seconds of a memset between kernels of a graph, on an H100 (experiments/measurements/h100_nodes.csv)."""
STARTS = {("graph", True): "graph_call_latency_s", ("graph", False): "graph_launch_latency_s"}
"""(how it is launched, first of its call or not) -> the profile's latency, where not that of a launch alone."""


@term(
    "start of a launch",
    Scope.LAUNCH,
    "launch_latency_s; from a graph graph_call_latency_s for a call's first launch, graph_launch_latency_s for others",
    zero="launches that join the one before",
    constants=("launch_latency_s", "graph_call_latency_s", "graph_launch_latency_s"),
)
def start_seconds(running: Running) -> float:
    """Seconds from the end of what ran before to a launch's first load."""
    if running.launch.joins:
        return 0.0
    latency = STARTS.get((running.conditions.launched, running.first), "launch_latency_s")
    return float(running.rates.profile.need(latency))


@term(
    "memset of a queue's counter",
    Scope.LAUNCH,
    "MEMSET_S",
    zero="launches alone; kernels without a queue",
    constants=("MEMSET_S",),
)
def memset_seconds(running: Running) -> float:
    """Seconds of the node of a graph that clears the counter from which CTAs claim their tiles."""
    if (
        running.launch.joins
        or running.conditions.launched != "graph"
        or not running.kernel.clears_queue
    ):
        return 0.0
    return MEMSET_S if running.launch.schedule.scheduler is Scheduler.DYNAMIC else 0.0


@term(
    "first loads of a loop",
    Scope.LAUNCH,
    "FIRST_LOADS x latency, once more",
    zero="loops whose warps all load and do not divide the keys",
    constants=("FIRST_LOADS", "dram_latency_cycles"),
)
def loop_start_seconds(running: Running) -> float:
    """Seconds in which a loop's first tile waits more than any: for code that joins warps that divide the keys, and for
    what warps that load set up (tensor maps, barriers). Which loops wait so was found on calls of one round (the first
    five draws of an H100)."""
    launch, loop = running.launch, running.launch.work.loop
    if launch.joins:
        return 0.0
    divides_keys = (
        loop.key_warps > 1 and not loop.copy_waits
    )  # those that wait for copies meet in every step
    sets_up = running.unit.loads_apart and not (running.unit.takes_turns and not launch.is_backward)
    if not divides_keys and not sets_up:
        return 0.0
    return FIRST_LOADS * running.rates.load_latency_s(from_dram=not running.conditions.warm)


@term(
    "first loads of a pass",
    Scope.LAUNCH,
    "FIRST_LOADS x latency; one where queries are streamed",
    zero="fills; launches whose loads are counted one behind the other",
    constants=("FIRST_LOADS", "dram_latency_cycles", "l2_latency_near_cycles"),
)
def pass_start_seconds(running: Running) -> float:
    """Seconds of the first loads of a launch without a loop."""
    launch = running.launch
    fills = running.moved("l2", "read") == 0 < running.moved("l2", "write")
    if launch.joins or fills or launch.work.dependent is not None or launch.work.serial_loads:
        return 0.0
    loads = FIRST_LOADS // 2 if launch.streams_queries else FIRST_LOADS
    return loads * running.rates.load_latency_s(from_dram=not running.conditions.warm)


@term(
    "HBM",
    Scope.LAUNCH,
    "bytes read x s/byte + bytes written x s/byte + the lesser of both x turning",
    zero="launches that find all in the L2",
    constants=(
        "dram_read_bandwidth_bytes_per_s",
        "dram_write_bandwidth_bytes_per_s",
        "dram_copy_bandwidth_bytes_per_s",
        "pass_bandwidth_fraction",
    ),
    unit="hbm",
)
def hbm_seconds(running: Running, is_pass: bool) -> float:
    """Seconds of the launch's HBM bytes; 0 where the profile knows no rate. Elementwise passes reach a share of it."""
    seconds = running.rates.hbm_seconds(running.moved("hbm", "read"), running.moved("hbm", "write"))
    if is_pass:
        seconds /= running.rates.profile.pass_bandwidth_fraction or 1.0
    return seconds


@term(
    "cache at the memory's side",
    Scope.LAUNCH,
    "bytes / memory_side_bandwidth_bytes_per_s",
    zero="GPUs without one",
    constants=("memory_side_bandwidth_bytes_per_s",),
    unit="side",
)
def side_seconds(running: Running) -> float:
    """Seconds that a cache at the memory's side takes for bytes between it and the L2s."""
    return running.rates.side_seconds(running.moved("side"))


@term(
    "a late start of HBM",
    Scope.LAUNCH,
    "share of SMs that ask x the lesser of STREAM_START_S and STREAM_START_SHARE of HBM's seconds; "
    "STREAM_START_S and FIRST_LOADS loads of pages",
    zero="launches whose tiles share keys; latent keys; keys in the L2",
    constants=("STREAM_START_S", "STREAM_START_SHARE", "FIRST_LOADS", "dram_latency_cycles"),
)
def late_seconds(running: Running, hbm_s: float) -> float:
    """Seconds before HBM runs at its rate for a launch that streams keys from there; less where fewer SMs ask, or for
    little."""
    if running.problem.latent_kv or running.finds_in_l2:
        return 0.0
    asking = min(1.0, running.launch.work_tiles / running.rates.profile.sm_count)
    if running.problem.page_size:
        tables_s = FIRST_LOADS * running.rates.load_latency_s(from_dram=True)
        return asking * min(hbm_s, STREAM_START_S + tables_s)
    return asking * min(STREAM_START_SHARE * hbm_s, STREAM_START_S)


@term(
    "queries before a stream",
    Scope.LAUNCH,
    "HBM's seconds of what a loop loads beside its steps alone",
    zero="launches whose tiles share keys; warps of their own load",
    constants=("dram_read_bandwidth_bytes_per_s",),
)
def queries_first_seconds(running: Running) -> float:
    """Seconds in which all CTAs of a round wait for their queries before they compute."""
    if running.unit.loads_apart:
        return 0.0
    names = running.loaded(in_steps=False) - running.loaded(in_steps=True)
    waited_for = sum(running.moved("hbm", "read", name) for name in names)
    return running.rates.hbm_seconds(waited_for, 0.0)


@term(
    "first steps of products with pipelines",
    Scope.LAUNCH,
    "HBM's seconds x first steps of CTAs / all steps",
    zero="kernels that fetch Q once",
    constants=("dram_read_bandwidth_bytes_per_s",),
)
def first_step_seconds(running: Running, hbm_s: float) -> float:
    """Seconds of the bytes of CTAs' first steps, beside which nothing is computed where every product has a pipeline of
    its own."""
    launch, steps = running.launch, max(1, running.steps)
    if not launch.rereads_q:
        return 0.0
    return min(steps, launch.work_tiles, running.resident.slots) / steps * hbm_s


@term(
    "uneven shares of HBM",
    Scope.LAUNCH,
    "HBM's seconds x what the busiest SM draws over its even share, less the rest",
    zero="launches whose tiles share keys, or whose SMs have as many tiles each",
    constants=("sm_dram_bytes_per_clock", "dram_latency_cycles"),
)
def uneven_seconds(running: Running, computed: Computing, hbm_s: float, together_s: float) -> float:
    """Seconds by which the SMs with one tile more end after the others, where each draws no more than a CTA alone does:
    a step's bytes in the time of a load and the step's computing."""
    rates, sms = running.rates, running.rates.profile.sm_count
    # Two limits: what one SM can draw, and what it draws alone in the time of a load and a step.
    at_most = computed.busiest_share / rates.most_shares()
    waits = rates.load_latency_s(from_dram=True) + computed.step_s[0]
    drawn_alone = hbm_s * sms / max(1, running.steps) / waits  # over an SM's even share
    late = (1 - 1 / max(1.0, drawn_alone)) * sms / running.launch.work_tiles
    share = min(at_most, max(1.0, computed.busiest_share - late))
    return max(0.0, hbm_s * share - together_s)


@term(
    "loads of a combine, one behind the other",
    Scope.LAUNCH,
    "rounds of CTAs x serial loads x latency",
    zero="launches whose loads do not wait for one another",
    constants=("dram_latency_cycles", "l2_latency_near_cycles"),
)
def serial_load_seconds(running: Running) -> float:
    """Seconds of loads that wait for one another in every round of CTAs, as a combine's that walks its splits."""
    rounds = -(-running.launch.work_tiles // running.resident.slots)
    latency = running.rates.load_latency_s(from_dram=not running.finds_in_l2)
    return rounds * running.launch.work.serial_loads * latency


@term(
    "loads of a pass's threads",
    Scope.LAUNCH,
    "rounds of CTAs x loads of a thread x latency",
    zero="passes whose threads load once",
    constants=("dram_latency_cycles", "l2_latency_near_cycles"),
)
def thread_load_seconds(running: Running) -> float:
    """Seconds in which each thread of a pass waits for its loads in every round of CTAs. A CTA has as many values as
    its threads take, and a work tile at most."""
    launch = running.launch
    values = sum(running.chain.tensors[a.tensor].elements for a in launch.accesses[:1])
    ctas = max(launch.work_tiles, values / (launch.values_per_thread * launch.resources.threads))
    rounds = math.ceil(ctas / running.resident.slots)
    latency = running.rates.load_latency_s(from_dram=not running.finds_in_l2)
    return rounds * launch.work.thread_loads * latency

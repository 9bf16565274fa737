"""Attention over several GPUs as papers state it: bytes received, idle slots, speed-ups, and training iterations.

A network of `shared` ports has one port a node, else one a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

from iosim.evidence.reproduce import llama_iterations as llama
from iosim.evidence.reproduce.paper import arithmetic
from iosim.evidence.reproduce.side import Side
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import baselines, closed_forms
from iosim.studies.distributed.count import idle, link_bytes
from iosim.studies.distributed.links import Cluster, Link, cluster, load_link
from iosim.studies.distributed.schedule import build, sequence_width_bytes
from iosim.studies.distributed.timing import ChunkTimes, simulate

K = 1024
NODE = 8
"""GPUs of a node."""
MODELS = {model.name: model for model in (llama.LLAMA_7B, llama.LLAMA_GQA, llama.LLAMA_33H)}
SCHEMES: dict[str, Callable[..., llama.Iteration]] = {
    "Megatron-LM": llama.megatron, "DistFlashAttn": llama.distributed,
    "ring self-attention": llama.ring_self_attention,
}  # fmt: skip


def _nodes(gpus: int, profile: HardwareProfile, *, shared: bool = False) -> Cluster:
    if gpus <= NODE:
        return cluster(profile, "nvlink")
    return cluster(profile, "nvlink", "ib-100g", NODE, shared_network=shared)


def _received(schedule: str, problem: AttentionProblem, gpus: int, *, backward: bool) -> Fraction:
    """What a GPU receives on average, in Nd, row statistics left out."""
    counted = link_bytes(build(schedule, problem, gpus, backward=backward), problem)
    moved = sum(n for t, n in counted.tensors.items() if t not in ("stats", "LSE"))
    return Fraction(moved, gpus * sequence_width_bytes(problem))


@arithmetic
def received(of: Side, schedule: str, gpus: int, directions: list[str], megatron: float = 0) -> dict[str, Any]:
    """Nd that a GPU receives, its own chunk counted as received; or `megatron`'s Nd over it."""
    counted = sum((_received(schedule, of.problem, gpus, backward=one == "bwd") for one in directions), Fraction())
    whole = float(counted * Fraction(gpus, gpus - 1))
    return {"computed": megatron / whole if megatron else whole, "counted": float(counted)}


@arithmetic
def collectives(kinds: list[str]) -> dict[str, Any]:
    """Nd of Megatron-LM's all-gathers and reduce-scatters."""
    number = sum(baselines.MEGATRON_COLLECTIVES[kind] for kind in kinds)
    return {"computed": float(number), "number": number}


@arithmetic
def idle_fraction(schedule: str, gpus: int) -> dict[str, Any]:
    """Idle slots of a schedule over its own; of the balanced one over those of the unbalanced. And the speed-up that
    they leave, a diagonal chunk counted as a whole one."""
    found = idle(build(schedule, AttentionProblem(seq_q=4 * gpus, mask="causal"), gpus))
    share, own = found.slots if schedule == "vanilla" else found.of_unbalanced, found.slots
    assert own == closed_forms.idle_fraction(schedule, gpus)
    return {"computed": float(share), "share": share, "own": own, "speed_up": float(gpus * (1 - own))}


@cache
def _forward_s(schedule: str, problem: AttentionProblem, gpus: int, gpu: str) -> float:
    profile = load_profile(gpu)
    times = ChunkTimes(problem, llama.KERNEL, profile)
    return simulate(build(schedule, problem, gpus), problem, _nodes(gpus, profile), times).total_s


@arithmetic
def forward_speed_up(of: Side, schedule: str, gpus: int, slower: str = "") -> dict[str, Any]:
    """Of attention's forward over one GPU, or over a `slower` schedule."""
    took = _forward_s(schedule, of.problem, gpus, of.gpu.name)
    other = _forward_s(slower, of.problem, gpus, of.gpu.name) if slower else float(of.time)
    return {"computed": other / took, "other": other, "took": took}


@cache
def _iteration(
    scheme: str, model: str, gpus: int, tokens: int, gpu: str, shared: bool, free: bool = False, **how: bool
) -> llama.Iteration:
    profile = load_profile(gpu)
    nodes = Cluster(Link("no communication", math.inf, 0.0, "")) if free else _nodes(gpus, profile, shared=shared)
    return SCHEMES[scheme](MODELS[model], tokens, gpus, profile, nodes, **how)


@arithmetic
def iteration(of: Side, scheme: str, model: str, gpus: int, tokens: int, shared: bool) -> dict[str, Any]:
    """Seconds of a training iteration, and its parts."""
    found = _iteration(scheme, model, gpus, tokens * K, of.gpu.name, shared)
    talks = f", collectives {found.communication_s:.2f} s" if found.communication_s else ""
    parts = f"attention {found.attention_s:.2f} s, weights {found.linear_s:.2f} s{talks}"
    return {"computed": found.seconds, "parts": parts}


@arithmetic
def iteration_speed_up(
    of: Side, slower: str, model: str, gpus: int, tokens: int, shared: bool, recompute: bool = False
) -> dict[str, Any]:
    """Of DistFlashAttn over another scheme, or over itself with attention computed again."""
    how = {"recompute": True} if recompute else {}
    slow = _iteration(slower, model, gpus, tokens * K, of.gpu.name, shared, **how).seconds
    fast = _iteration("DistFlashAttn", model, gpus, tokens * K, of.gpu.name, shared).seconds
    return {"computed": slow / fast, "slow": slow, "fast": fast}


@arithmetic
def communication_share(of: Side, model: str, gpus: int, tokens: int, shared: bool, overlap: bool) -> dict[str, Any]:
    """Percent that communication adds to an iteration."""
    ideal = _iteration("DistFlashAttn", model, gpus, tokens * K, of.gpu.name, shared=False, free=True).seconds
    took = _iteration("DistFlashAttn", model, gpus, tokens * K, of.gpu.name, shared, overlap=overlap).seconds
    return {"computed": 100 * (took / ideal - 1), "took": took, "ideal": ideal}


@arithmetic
def attention_module(of: Side, model: str, tokens: int) -> dict[str, Any]:
    """Milliseconds of a layer's attention module on one GPU."""
    return {"computed": 1e3 * llama.attention_module_s(MODELS[model], tokens * K, of.gpu)}


@arithmetic
def sequence_that_fits(of: Side, model: str, gpus: int, tokens: int) -> dict[str, Any]:
    """Thousands of tokens whose training fits in the GPUs' memory; `tokens` the published ones, in thousands."""
    budget = of.gpu.need("memory_bytes")
    used, fixed = (llama.training_bytes(MODELS[model], n, gpus) for n in (tokens * K, 0))
    longest = (budget - fixed) / ((used - fixed) / (tokens * K)) / K
    return {"computed": longest, "used": used / 1e9, "budget": budget / 1e9}


@arithmetic
def chunk_that_hides(of: Side, link: str) -> dict[str, Any]:
    """Thousands of tokens a GPU whose products take as long as its messages."""
    port, flops = load_link(link, of.gpu), of.gpu.tensor_flops("fp16")
    least = closed_forms.minimal_chunk_tokens(flops, port.bandwidth_bytes_per_s)
    return {"computed": least / 1e3, "tflops": flops / 1e12, "port": port.bandwidth_bytes_per_s / 1e9}

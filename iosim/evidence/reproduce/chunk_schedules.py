"""Attention over several GPUs as papers state it: bytes received, idle slots, speed-ups, and training iterations.

A network of `shared` ports has one port a node, else one a GPU. An iteration of LLaMA is the forward, the backward, and
what gradient checkpointing computes again. Matrix products besides attention run at the profile's achieved tensor
rate; norms, rotations, optimiser, FSDP's traffic and everything on the host are left out, so iterations come out short.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

from iosim.base.records import dataclass
from iosim.evidence.reproduce.paper import arithmetic
from iosim.evidence.reproduce.side import Side
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import closed_forms
from iosim.studies.distributed.collectives import MEGATRON_COLLECTIVES, spread
from iosim.studies.distributed.count import idle, link_bytes
from iosim.studies.distributed.links import Cluster, Link, cluster, load_link
from iosim.studies.distributed.schedule import build, sequence_width_bytes
from iosim.studies.distributed.timing import ChunkTimes, simulate

K = 1024
NODE = 8
KERNEL = "fa2"
LAYERS, HIDDEN, FFN, VOCABULARY, HEAD_DIM = 32, 4096, 11008, 32000, 128
HEADS = {"LLaMA-7B": (32, 32), "LLaMA-GQA": (32, 8), "LLaMA-33H": (33, 33)}
"""Query and key/value heads of LLaMA-7B and of its variants (arXiv 2310.03294, section 4)."""
ADAM_BYTES = 16
"""Bytes a parameter with mixed-precision Adam: weight and gradient in 2 bytes each, three fp32 values."""
LOGIT_BYTES = 10
"""Bytes an entry of the logits: fp16, fp32, and an fp32 gradient."""
MLP_TENSORS, HIDDEN_TENSORS = 6, 12
"""Tensors of the MLP's width and of the model's width alive while one layer is computed again and differentiated."""


def _nodes(gpus: int, profile: HardwareProfile, *, shared: bool = False) -> Cluster:
    if gpus <= NODE:
        return cluster(profile, "nvlink")
    return cluster(profile, "nvlink", "ib-100g", NODE, shared_network=shared)


def _received(schedule: str, problem: AttentionProblem, gpus: int, *, backward: bool) -> Fraction:
    """What a GPU receives on average, in Nd, row statistics left out."""
    counted = link_bytes(build(schedule, problem, gpus, backward=backward), problem)
    chunks = sum(n for t, n in counted.tensors.items() if t not in ("stats", "LSE"))
    return Fraction(chunks, gpus * sequence_width_bytes(problem))


@arithmetic
def received(
    of: Side, schedule: str, gpus: int, directions: list[str], megatron: float = 0
) -> dict[str, Any]:
    """Nd that a GPU receives, its own chunk counted as received; or `megatron`'s Nd over it."""
    counted = sum(
        (
            _received(schedule, of.problem, gpus, backward=direction == "bwd")
            for direction in directions
        ),
        Fraction(),
    )
    # papers count a GPU's own chunk as received, too: gpus chunks in place of gpus - 1
    whole = float(counted * Fraction(gpus, gpus - 1))
    return {"computed": megatron / whole if megatron else whole, "counted": float(counted)}


@arithmetic
def collectives(kinds: list[str]) -> dict[str, Any]:
    """Nd of Megatron-LM's all-gathers and reduce-scatters."""
    number = sum(MEGATRON_COLLECTIVES[kind] for kind in kinds)
    return {"computed": float(number), "number": number}


@arithmetic
def idle_fraction(schedule: str, gpus: int) -> dict[str, Any]:
    """Idle slots of a schedule over its own; of the balanced one over those of the unbalanced. And the speed-up that
    they leave, a diagonal chunk counted as a whole one."""
    idleness = idle(build(schedule, AttentionProblem(seq_q=4 * gpus, mask="causal"), gpus))
    share, slots = (
        idleness.slots if schedule == "vanilla" else idleness.of_unbalanced,
        idleness.slots,
    )
    # the schedule that is simulated and the paper's formula must agree exactly
    assert slots == closed_forms.idle_fraction(schedule, gpus)
    return {
        "computed": float(share),
        "share": share,
        "own": slots,
        "speed_up": float(gpus * (1 - slots)),
    }


@cache
def _forward_s(schedule: str, problem: AttentionProblem, gpus: int, gpu: str) -> float:
    profile = load_profile(gpu)
    times = ChunkTimes(problem, KERNEL, profile)
    return simulate(
        build(schedule, problem, gpus), problem, _nodes(gpus, profile), times, merged=times.merged
    ).total_s


@arithmetic
def forward_speed_up(of: Side, schedule: str, gpus: int, slower: str = "") -> dict[str, Any]:
    """Speed-up of attention's forward over one GPU, or over a `slower` schedule."""
    took = _forward_s(schedule, of.problem, gpus, of.gpu.name)
    other = _forward_s(slower, of.problem, gpus, of.gpu.name) if slower else float(of.time)
    return {"computed": other / took, "other": other, "took": took}


# Training iterations


def layer_weights(heads: int, kv_heads: int) -> tuple[int, int]:
    """Weights of a layer's projections of Q, K, V and the output, and of its MLP."""
    return HIDDEN * HEAD_DIM * 2 * (heads + kv_heads), 3 * HIDDEN * FFN


def linear_flops(heads: int, kv_heads: int, tokens: int, passes: int) -> float:
    """Operations of all products with weights; `passes` forward equivalents (a backward is two). The head over the
    vocabulary is not computed again."""
    return (
        2.0
        * tokens
        * (LAYERS * sum(layer_weights(heads, kv_heads)) * passes + 3 * HIDDEN * VOCABULARY)
    )


def attention(model: str, tokens: int, passes: str = "fwd+bwd") -> AttentionProblem:
    heads, kv_heads = HEADS[model]
    return AttentionProblem(
        heads=heads,
        kv_heads=kv_heads,
        seq_q=tokens,
        head_dim=HEAD_DIM,
        mask="causal",
        passes=passes,
    )


@dataclass(frozen=True)
class Iteration:
    attention_s: float
    linear_s: float
    communication_s: float

    @property
    def seconds(self) -> float:
        return self.attention_s + self.linear_s + self.communication_s


@cache
def iterated(
    scheme: str,
    model: str,
    gpus: int,
    tokens: int,
    gpu: str,
    shared: bool | None,
    recompute: bool = False,
    overlap: bool = True,
) -> Iteration:
    """Four forwards' worth of products with weights: forward, again for the activations, and backward. Megatron-LM and
    ring self-attention have checkpoints at layers: two forwards of everything and a backward. DistFlashAttn's lie at
    attention's output, so that its forward runs once, unless `recompute`. Megatron-LM pads heads to a multiple of the
    GPUs. `shared` None: communication takes no time."""
    profile, (heads, kv_heads), problem = load_profile(gpu), HEADS[model], attention(model, tokens)
    free = Cluster(Link("no communication", math.inf, 0.0, ""))
    nodes = free if shared is None else _nodes(gpus, profile, shared=shared)
    padded = -(-heads // gpus) * gpus if scheme == "Megatron-LM" else heads
    flops = linear_flops(padded, max(1, padded * kv_heads // heads), tokens, 4)
    linear_s = flops / gpus / profile.product_flops("fp16")
    times = ChunkTimes(problem, KERNEL, profile)
    if scheme == "DistFlashAttn":
        built = (build("balanced", problem, gpus, backward=backward) for backward in (False, True))
        timed = (
            simulate(plan, problem, nodes, times, overlap=overlap, merged=times.merged)
            for plan in built
        )
        forward_s, backward_s = (plan.total_s for plan in timed)
        return Iteration(LAYERS * ((2 if recompute else 1) * forward_s + backward_s), linear_s, 0.0)
    name = "megatron" if scheme == "Megatron-LM" else "rsa"
    forward, backward = (
        spread(name, problem, gpus, times, nodes, backward=b) for b in (False, True)
    )
    compute_s = LAYERS * (2 * forward.compute_s + backward.compute_s)
    return Iteration(
        compute_s, linear_s, LAYERS * (2 * forward.communication_s + backward.communication_s)
    )


@arithmetic
def iteration(
    of: Side, scheme: str, model: str, gpus: int, tokens: int, shared: bool
) -> dict[str, Any]:
    times = iterated(scheme, model, gpus, tokens * K, of.gpu.name, shared)
    talks = f", collectives {times.communication_s:.2f} s" if times.communication_s else ""
    parts = f"attention {times.attention_s:.2f} s, weights {times.linear_s:.2f} s{talks}"
    return {"computed": times.seconds, "parts": parts}


@arithmetic
def iteration_speed_up(
    of: Side, slower: str, model: str, gpus: int, tokens: int, shared: bool, recompute: bool = False
) -> dict[str, Any]:
    """Speed-up of DistFlashAttn over another scheme, or over itself with attention computed again."""
    slow = iterated(slower, model, gpus, tokens * K, of.gpu.name, shared, recompute).seconds
    fast = iterated("DistFlashAttn", model, gpus, tokens * K, of.gpu.name, shared).seconds
    return {"computed": slow / fast, "slow": slow, "fast": fast}


@arithmetic
def communication_share(
    of: Side, model: str, gpus: int, tokens: int, shared: bool, overlap: bool
) -> dict[str, Any]:
    """Percent that communication adds to an iteration."""
    ideal = iterated("DistFlashAttn", model, gpus, tokens * K, of.gpu.name, None).seconds
    took = iterated(
        "DistFlashAttn", model, gpus, tokens * K, of.gpu.name, shared, overlap=overlap
    ).seconds
    return {"computed": 100 * (took / ideal - 1), "took": took, "ideal": ideal}


@arithmetic
def attention_module(of: Side, model: str, tokens: int) -> dict[str, Any]:
    """Milliseconds of the forward of a layer's attention module on one GPU: the attention and its projections."""
    kernel_s = predict(
        attention(model, tokens * K, "fwd"), KERNEL, of.gpu, method="capacity"
    ).time.total_s
    weights = layer_weights(*HEADS[model])[0]
    return {"computed": 1e3 * (kernel_s + 2 * tokens * K * weights / of.gpu.product_flops("fp16"))}


def training_bytes(model: str, tokens: int, gpus: int) -> float:
    """Memory of a GPU: sharded parameters, two checkpoints of the model's width a layer, one layer's working set, and
    the logits. An estimate from counted tensors, not a measurement."""
    parameters = LAYERS * sum(layer_weights(*HEADS[model])) + 2 * HIDDEN * VOCABULARY
    checkpoints = LAYERS * 2 * HIDDEN * 2
    working = 2 * (MLP_TENSORS * FFN + HIDDEN_TENSORS * HIDDEN)
    return ADAM_BYTES * parameters / gpus + tokens / gpus * (
        checkpoints + working + LOGIT_BYTES * VOCABULARY
    )


@arithmetic
def sequence_that_fits(of: Side, model: str, gpus: int, tokens: int) -> dict[str, Any]:
    """Thousands of tokens whose training fits in the GPUs' memory; `tokens` the published ones, in thousands."""
    # bytes grow linearly with tokens: two points give the line
    budget = of.gpu.need_memory_bytes()
    used, fixed = (training_bytes(model, n, gpus) for n in (tokens * K, 0))
    longest = (budget - fixed) / ((used - fixed) / (tokens * K)) / K
    return {"computed": longest, "used": used / 1e9, "budget": budget / 1e9}


@arithmetic
def chunk_that_hides(of: Side, link: str) -> dict[str, Any]:
    """Thousands of tokens a GPU whose products take as long as its messages."""
    port, flops = load_link(link, of.gpu), of.gpu.tensor_flops("fp16")
    least = closed_forms.minimal_chunk_tokens(flops, port.bandwidth_bytes_per_s)
    return {
        "computed": least / 1e3,
        "tflops": flops / 1e12,
        "port": port.bandwidth_bytes_per_s / 1e9,
    }

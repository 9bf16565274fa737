"""Section E: DistFlashAttn (arXiv 2310.03294): communication, idle time, speed-ups and lengths over several GPUs.

LLaMA-7B and variants on A100s: one DGX of 8 x 80 GB on NVLink, or two joined by "100 Gbps Infiniband". The paper does
not say whether a node or a GPU has those 100 Gb/s; both readings are printed where it matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from iosim.evidence.reproduce import e_runs as runs
from iosim.evidence.reproduce.registry import section
from iosim.evidence.reproduce.row import Row
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import baselines, closed_forms
from iosim.studies.distributed.count import idle, link_bytes
from iosim.studies.distributed.links import Cluster, Link, cluster, load_link
from iosim.studies.distributed.schedule import build, sequence_width_bytes
from iosim.studies.distributed.timing import ChunkTimes, simulate

TITLE = "DistFlashAttn (arXiv 2310.03294): attention over several A100s"
GPU, SMALL_GPU = "a100-sxm-80gb", "a100-sxm-40gb"
K = 1024
NODE = 8
PER_GPU = (8 * K, 16 * K, 32 * K)
MODELS = (runs.LLAMA_7B, runs.LLAMA_GQA, runs.LLAMA_33H)

TABLE_1 = {
    ("LLaMA-7B", 8): ((6.81, 5.98), (20.93, 17.26), (72.75, 58.46)),
    ("LLaMA-GQA", 8): ((6.60, 5.61), (20.53, 16.86), (71.93, 57.01)),
    ("LLaMA-33H", 8): ((8.37, 6.08), (25.75, 17.77), (90.21, 59.96)),
    ("LLaMA-7B", 16): ((14.26, 12.75), (43.44, 30.21), (147.06, 106.37)),
    ("LLaMA-GQA", 16): ((14.21, 9.74), (43.20, 28.49), (146.38, 102.34)),
    ("LLaMA-33H", 16): ((20.63, 13.12), (62.78, 31.33), (216.70, 107.76)),
}
"""(model, GPUs) -> seconds of Megatron-LM and DistFlashAttn at 8K, 16K and 32K tokens a GPU."""
RSA = {8: (32 * K, 14.10, 2.50, 5.64), 16: (64 * K, 30.49, 6.85, 4.45)}
"""GPUs -> tokens, seconds of ring self-attention and of DistFlashAttn, speed-up (Table 3)."""
CHECKPOINTS = ((8 * K, 6.93, 5.98), (16 * K, 21.44, 17.26), (32 * K, 76.38, 58.46))
"""Tokens a GPU, seconds with checkpoints at layers and at attention's output (Table 5)."""
MODULE_MS = ((16 * K, 27.08), (32 * K, 74.35), (64 * K, 233.87))
"""Tokens, milliseconds of the attention module's forward on one A100 40 GB (Figure 7)."""
NO_FIT = "nothing fitted; norms, rotations, optimiser, FSDP and host time are not in the model"

row = partial(Row, "E")


def _nodes(gpus: int, profile: HardwareProfile, *, shared: bool = False) -> Cluster:
    if gpus <= NODE:
        return cluster(profile, "nvlink")
    return cluster(profile, "nvlink", "ib-100g", NODE, shared_network=shared)


@section("E", TITLE)
def rows() -> Iterator[Row]:
    """Volumes and idle fractions, which are exact; then times, with the paper's settings."""
    yield from _volumes()
    yield from _idle()
    yield from _scaling()
    yield from _table_1()
    yield from _ranges()
    yield from _rsa()
    yield from _checkpoints()
    yield from _overlap()
    yield from _lengths()
    yield from _ring_chunks()


def _received(name: str, problem: AttentionProblem, gpus: int, *, backward: bool) -> Fraction:
    """What a GPU receives on average, in Nd, row statistics left out."""
    counted = link_bytes(build(name, problem, gpus, backward=backward), problem)
    moved = sum(n for t, n in counted.tensors.items() if t not in ("stats", "LSE"))
    return Fraction(moved, gpus * sequence_width_bytes(problem))


def _volumes() -> Iterator[Row]:
    gpus = 16
    full = AttentionProblem(heads=32, seq_q=gpus * K, head_dim=128)
    causal = full.with_(mask="causal")
    share = Fraction(gpus, gpus - 1)
    unit = "Nd"
    volumes = [
        ("forward, no mask", 2, _received("ring", full, gpus, backward=False)),
        ("forward, causal, unbalanced", 1, _received("vanilla", causal, gpus, backward=False)),
        ("forward, causal, balanced", 1, _received("balanced", causal, gpus, backward=False)),
        ("backward, causal, balanced", 2, _received("balanced", causal, gpus, backward=True)),
    ]
    total = volumes[2][2] + volumes[3][2]
    for what, claimed, counted in (*volumes, ("forward and backward, causal, balanced", 3, total)):
        yield row(
            f"bytes a GPU receives a layer, {what}", claimed, float(counted * share), unit,
            f"{float(counted):.4g} Nd counted over {gpus} GPUs, x P / (P - 1)",
            "Nd: elements of the N x d tensor of all heads; the paper counts a GPU's own chunk as received; row "
            "statistics, which it leaves out too, are not in the count",
        )  # fmt: skip
    ops = baselines.MEGATRON_COLLECTIVES
    for what, claimed, number in (("", 10, ops["fwd"] + ops["bwd"]),
                                  (" with recomputation", 14, sum(ops.values()))):  # fmt: skip
        yield row(f"bytes a GPU receives a layer, Megatron-LM{what}", claimed, float(number), unit,
                  f"{number} all-gathers and reduce-scatters of N x d, x P / (P - 1)")  # fmt: skip
    yield row("bytes, Megatron-LM with recomputation over DistFlashAttn", 4.7, 14 / float(total * share), "times",
              "14 Nd / 3 Nd; DistFlashAttn's checkpoints run no forward of attention again")  # fmt: skip


def _idle() -> Iterator[Row]:
    for gpus in (2, 3, 4, 7, 8, 16, 64):
        problem = AttentionProblem(seq_q=gpus * 4, mask="causal")
        unbalanced = idle(build("vanilla", problem, gpus))
        yield row(f"idle fraction, unbalanced, {gpus} GPUs", (gpus**2 - gpus) / (2 * gpus**2),
                  float(unbalanced.slots), "fraction", f"{unbalanced.slots} counted; (P^2 - P) / 2P^2")  # fmt: skip
        balanced = idle(build("balanced", problem, gpus))
        yield row(
            f"idle fraction, balanced, {gpus} GPUs", 0.0 if gpus % 2 else 1 / (2 * gpus),
            float(balanced.of_unbalanced), "fraction",
            f"{balanced.of_unbalanced} counted; {'0 for odd P' if gpus % 2 else '1 / 2P for even P'}",
            "" if gpus % 2 else f"idle slots over the P^2 slots of the unbalanced schedule; over its own slots "
            f"{balanced.slots} = 1 / (P + 2)",
        )  # fmt: skip


def _scaling() -> Iterator[Row]:
    gpus, tokens = 8, 256 * K
    small = AttentionProblem(seq_q=gpus, mask="causal")
    claims = {"vanilla": ("unbalanced", 4.5, 4.5), "balanced": ("balanced", 7.2, 7.5)}
    gpu = load_profile(SMALL_GPU)
    problem = AttentionProblem(heads=32, seq_q=tokens, head_dim=128, mask="causal")
    times = ChunkTimes(problem, runs.KERNEL, gpu)
    alone = predict(problem, runs.KERNEL, gpu, method="capacity").time.total_s
    seconds_of = {}
    for name, (word, expected, measured) in claims.items():
        slots = closed_forms.idle_fraction(name, gpus)
        assert slots == idle(build(name, small, gpus)).slots
        yield row(f"speed-up expected on 8 GPUs, {word}", expected, float(gpus * (1 - slots)), "times",
                  f"8 x (1 - {slots}); a diagonal chunk counts as a whole one")  # fmt: skip
        seconds_of[name] = simulate(build(name, problem, gpus), problem, _nodes(gpus, gpu), times).total_s
        yield row(
            f"speed-up measured on 8 A100 40 GB, {word}, forward, 256K tokens", measured,
            alone / seconds_of[name], "times",
            f"{alone:.3f} s on one GPU / {seconds_of[name]:.3f} s",
            "a diagonal chunk is half the work: at most 8 x (1 - idle work)",
        )  # fmt: skip
    yield row(
        "speed-up over ring attention, 8 GPUs", 1.67, seconds_of["vanilla"] / seconds_of["balanced"], "times",
        f"{seconds_of['vanilla']:.3f} s / {seconds_of['balanced']:.3f} s, forward of attention",
        "the paper divides 7.5 by 4.5 and takes its own unbalanced schedule for ring attention; by work 7.5 chunks "
        "over 4.5",
    )  # fmt: skip


def _times(model: runs.Llama, gpus: int, per_gpu: int, *, shared: bool) -> tuple[runs.Iteration, runs.Iteration]:
    gpu = load_profile(GPU)
    nodes = _nodes(gpus, gpu, shared=shared)
    return (runs.megatron(model, gpus * per_gpu, gpus, gpu, nodes),
            runs.distributed(model, gpus * per_gpu, gpus, gpu, nodes))  # fmt: skip


def _readings(gpus: int) -> tuple[tuple[bool, str], ...]:
    if gpus <= NODE:
        return ((False, ""),)
    return ((False, ", 100 Gb/s a GPU"), (True, ", 100 Gb/s a node"))


def _parts(iteration: runs.Iteration) -> str:
    collectives = f", collectives {iteration.communication_s:.2f} s" if iteration.communication_s else ""
    return f"attention {iteration.attention_s:.2f} s, weights {iteration.linear_s:.2f} s{collectives}"


def _table_1() -> Iterator[Row]:
    for model in MODELS:
        for gpus in (8, 16):
            for per_gpu, published in zip(PER_GPU, TABLE_1[model.name, gpus], strict=True):
                for shared, reading in _readings(gpus)[: None if per_gpu == PER_GPU[-1] else 1]:
                    iterations = _times(model, gpus, per_gpu, shared=shared)
                    where = f"{model.name}, {gpus} GPUs, {gpus * per_gpu // K}K tokens{reading}"
                    for word, claimed, iteration in zip(
                        ("Megatron-LM", "DistFlashAttn"), published, iterations, strict=True
                    ):
                        yield row(
                            f"iteration, {word}, {where}", claimed, iteration.seconds, "s", _parts(iteration), NO_FIT
                        )
                    yield row(
                        f"speed-up over Megatron-LM, {where}", round(published[0] / published[1], 2),
                        iterations[0].seconds / iterations[1].seconds, "times",
                        f"{iterations[0].seconds:.2f} s / {iterations[1].seconds:.2f} s",
                        "heads padded from 33 to a multiple of the GPUs" if model.heads == 33 else "",
                    )  # fmt: skip


def _ranges() -> Iterator[Row]:
    """The abstract's range: LLaMA-7B on one node and LLaMA-33H on two, both at 32K tokens a GPU."""
    for word, claimed, model, gpus in (("least", 1.24, runs.LLAMA_7B, 8), ("most", 2.01, runs.LLAMA_33H, 16)):
        for shared, reading in _readings(gpus):
            iterations = _times(model, gpus, PER_GPU[-1], shared=shared)
            yield row(
                f"speed-up over Megatron-LM, {word} at 32K tokens a GPU{reading}", claimed,
                iterations[0].seconds / iterations[1].seconds, "times",
                f"{iterations[0].seconds:.2f} s / {iterations[1].seconds:.2f} s",
                f"{model.name} on {gpus} GPUs",
            )  # fmt: skip


def _rsa() -> Iterator[Row]:
    gpu = load_profile(GPU)
    for gpus, (tokens, rsa_s, dist_s, speedup) in RSA.items():
        for shared, reading in _readings(gpus):
            nodes = _nodes(gpus, gpu, shared=shared)
            slow = runs.ring_self_attention(runs.LLAMA_7B, tokens, gpus, gpu, nodes)
            fast = runs.distributed(runs.LLAMA_7B, tokens, gpus, gpu, nodes)
            where = f"{gpus} GPUs, {tokens // K}K tokens{reading}"
            yield row(
                f"iteration, ring self-attention, {where}", rsa_s, slow.seconds, "s", _parts(slow),
                "cannot be reproduced: its kernels, types and checkpoints are not described; computed here as naive "
                "attention at the GPU's achieved rates, a lower bound",
            )  # fmt: skip
            yield row(f"iteration, DistFlashAttn, {where}", dist_s, fast.seconds, "s", _parts(fast), NO_FIT)
            yield row(f"speed-up over ring self-attention, {where}", speedup, slow.seconds / fast.seconds, "times",
                      f"{slow.seconds:.2f} s / {fast.seconds:.2f} s",
                      "too small, since ring self-attention's time is a lower bound")  # fmt: skip


def _checkpoints() -> Iterator[Row]:
    gpu = load_profile(GPU)
    nodes = _nodes(8, gpu)
    for per_gpu, layer_s, output_s in CHECKPOINTS:
        again, once = (runs.distributed(runs.LLAMA_7B, 8 * per_gpu, 8, gpu, nodes, recompute=r) for r in (True, False))
        yield row(
            f"speed-up of checkpoints at attention's output, 8 GPUs, {per_gpu // K}K tokens a GPU",
            round(layer_s / output_s, 2), again.seconds / once.seconds, "times",
            f"{again.seconds:.2f} s / {once.seconds:.2f} s", "attention's forward runs once in place of twice",
        )  # fmt: skip
    for tokens, claimed in MODULE_MS:
        seconds = runs.attention_module_s(runs.LLAMA_7B, tokens, load_profile(SMALL_GPU))
        yield row(f"forward of an attention module, one GPU, {tokens // K}K tokens", claimed, 1e3 * seconds, "ms",
                  "attention and its four projections", "rotations and copies are not in the model")  # fmt: skip


def _overlap() -> Iterator[Row]:
    gpu, gpus, tokens = load_profile(GPU), 16, 128 * K
    free = Cluster(Link("no communication", math.inf, 0.0, ""))
    ideal = runs.distributed(runs.LLAMA_7B, tokens, gpus, gpu, free).seconds
    for shared, reading in _readings(gpus):
        nodes = _nodes(gpus, gpu, shared=shared)
        for overlap, claimed in ((False, 105.0), (True, 44.0)):
            took = runs.distributed(runs.LLAMA_7B, tokens, gpus, gpu, nodes, overlap=overlap).seconds
            word = "overlapped" if overlap else "not overlapped"
            yield row(
                f"communication over the rest of an iteration, {word}, 16 GPUs, 128K tokens{reading}", claimed,
                100 * (took / ideal - 1), "percent", f"{took:.2f} s with, {ideal:.2f} s without communication",
                "the paper does not say of what its overhead is a part; taken of a whole iteration of LLaMA-7B",
            )  # fmt: skip


def _lengths() -> Iterator[Row]:
    note = ("an estimate: parameters and Adam's state sharded, two checkpoints of the model's width a layer, one "
            "layer's working set, logits in fp16 and fp32; LLaMA-7B, whose width times depth is that of Table 2's "
            "variants; no breakdown is published")  # fmt: skip
    for gpus, profile, claimed in ((8, GPU, 256), (16, GPU, 512), (16, SMALL_GPU, 512)):
        budget = load_profile(profile).need("memory_bytes")
        used = runs.training_bytes(runs.LLAMA_7B, claimed * K, gpus)
        fixed = runs.training_bytes(runs.LLAMA_7B, 0, gpus)
        longest = (budget - fixed) / ((used - fixed) / (claimed * K))
        at_least = "at least " if profile == GPU else ""
        yield row(
            f"sequence that fits on {gpus} x {profile}, {at_least}{claimed}K tokens", float(claimed), longest / K,
            "K tokens", f"{used / 1e9:.1f} GB a GPU at {claimed}K of {budget / 1e9:.0f} GB", note,
        )  # fmt: skip
    yield row("sequence lengths of Megatron-LM with fewer heads (Table 2)", None, None, "K tokens", "none",
              "cannot be reproduced: they follow from the peak of an implementation's pipeline stages, of which "
              "only one case is published")  # fmt: skip


def _ring_chunks() -> Iterator[Row]:
    """Ring attention's own Table 2 (arXiv 2310.01889): thousands of tokens."""
    gpu = load_profile(GPU)
    for link, claimed in (("nvlink", 1.0), ("ib-100g", 24.5)):
        port = load_link(link, gpu)
        least = closed_forms.minimal_chunk_tokens(gpu.tensor_flops("fp16"), port.bandwidth_bytes_per_s)
        yield row(
            f"tokens a GPU needs to hide the messages of ring attention, A100, {link}", claimed, least / 1e3,
            "thousand tokens",
            f"{gpu.tensor_flops('fp16') / 1e12:.0f} TFLOP/s / {port.bandwidth_bytes_per_s / 1e9} GB/s",
            "arXiv 2310.01889, Table 2: no mask, specified rates, no latency",
        )  # fmt: skip

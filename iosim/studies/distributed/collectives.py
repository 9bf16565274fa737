"""Ways to spread attention by collectives, which stand on the critical path.

Ulysses (Jacobs et al., arXiv 2309.14509): all-to-alls turn a GPU's tokens of all heads into all tokens of its heads,
and back: Q, K, V and O forward, dO, dQ, dK and dV backward. Beside each, the tensor is copied into another order once.

All-gather of K and V (Llama 3, arXiv 2407.21783, section 3.3.2): a GPU has all keys and its own queries, under a mask a
chunk from the start and one from the end. Backward it gathers again, and a reduce-scatter adds up dK and dV.

Megatron-LM (Korthikanti et al., arXiv 2205.05198) splits heads, and between attention and MLP the sequence. A layer
all-gathers and reduce-scatters N x d tensors: four times forward, six backward (arXiv 2310.03294, appendix D), so a GPU
receives 10 Nd (P - 1) / P, and 14 where the forward runs again for its activations.

Ring self-attention (Li et al., arXiv 2105.13120) rotates keys, then values, keeps whole rows of scores in memory, and
makes no use of a causal mask. Assumed: kernel `naive`, no overlap, backward the same two rotations and a
reduce-scatter of dK and dV.

Heads that the GPUs do not divide are padded; key/value heads are repeated where there are fewer of them than GPUs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

from iosim.base.records import dataclass
from iosim.base.words import Level, Method
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.prediction.result import method_of
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import MAX_TOKENS
from iosim.readers.bounds import memory
from iosim.studies.distributed.links import Cluster
from iosim.studies.distributed.schedule import (
    Pair,
    check_gpus,
    check_problem,
    sequence_width_bytes,
    token_bytes,
)
from iosim.studies.distributed.timing import ChunkTimes

TITLES = {
    "ulysses": "Ulysses, heads in place of tokens",
    "all-gather": "all-gather of K and V",
    "megatron": "Megatron-LM, heads and sequence split",
    "rsa": "ring self-attention",
}
SWAPPED = {"fwd": ("Q", "K", "V", "O"), "bwd": ("dO", "dQ", "dK", "dV")}
MEGATRON_COLLECTIVES = {"fwd": 4, "bwd": 6, "recompute": 4}
"""All-gathers and reduce-scatters of a layer: two and two forward, four and two backward."""
BOTH: tuple[Level, ...] = ("l2", "hbm")
RSA_ROTATIONS = {"fwd": 2, "bwd": 4}


@dataclass(frozen=True)
class Spread:
    """What a GPU computes, receives and holds in one pass by one of these methods."""

    name: str
    received_bytes: int
    compute_s: float
    communication_s: float
    memory_bytes: int
    l2_bytes: int
    hbm_bytes: int
    method: Method
    """How `hbm_bytes` was found."""

    @property
    def seconds(self) -> float:
        return self.compute_s + self.communication_s


def ring_collective(
    bytes_: int, gpus: int, cluster: Cluster, kind: str = "all-gather"
) -> tuple[int, float]:
    """(bytes a GPU receives, seconds) of an all-gather or reduce-scatter of a tensor of `bytes_`, or of its rotation,
    round a ring."""
    if gpus == 1:
        return 0, 0.0
    # Round a ring every GPU receives all parts but its own. The first of P - 1 hops pays its latency
    # in `link.seconds`, the others here.
    received, link = bytes_ * (gpus - 1) // gpus, cluster.ring(gpus)
    return received, (gpus - 2) * link.latency_s + link.seconds(received, kind)


def all_to_all(bytes_: int, gpus: int, cluster: Cluster) -> tuple[int, float]:
    """(bytes a GPU receives, seconds) of an all-to-all of a tensor of `bytes_` over all GPUs: what comes from the own
    node over the link and the rest over the network, side by side."""
    if gpus == 1:
        return 0, 0.0
    # A GPU holds 1 / P of the tensor and sends all but 1 / P of that.
    received = bytes_ * (gpus - 1) // gpus**2
    node = min(gpus, cluster.gpus_per_node or gpus)
    # The share of partners in the own node; the rest goes over the network, whose port several GPUs
    # of a node may share.
    inside = received * (node - 1) // (gpus - 1)
    seconds = cluster.link.seconds(inside, "all-to-all")
    if cluster.network is not None and node < gpus:
        sharing = node if cluster.shared_network else 1
        seconds = max(seconds, cluster.network.seconds((received - inside) * sharing, "all-to-all"))
    return received, seconds


def split_heads(problem: AttentionProblem, gpus: int) -> AttentionProblem:
    """A GPU's share of the heads, padded where `gpus` does not divide them; key heads repeated where they are fewer."""
    heads = -(-problem.heads // gpus)
    kv_heads = -(-problem.kv_heads // gpus)
    return problem.with_(heads=heads, kv_heads=kv_heads if heads % kv_heads == 0 else heads)


def share_of(name: str, problem: AttentionProblem, gpus: int, backward: bool) -> AttentionProblem:
    """What one GPU holds: its heads over the whole sequence, or its own queries against all keys."""
    passes = "bwd" if backward else "fwd"
    if name in ("megatron", "ulysses"):
        return split_heads(problem, gpus).with_(passes=passes)
    return problem.with_(seq_q=-(-problem.seq_q // gpus), mask="none", offset=None, passes=passes)


def calls_of(
    name: str, problem: AttentionProblem, gpus: int, backward: bool
) -> list[list[AttentionProblem]]:
    """Calls of the GPUs that may be the slowest: of all alike one; under a mask the first and the last of those with
    two chunks of queries, whose work is the same."""
    share = share_of(name, problem, gpus, backward)
    # One GPU has the whole problem, its causal mask included.
    if name == "all-gather" and gpus == 1:
        return [[problem.with_(passes=share.passes)]]
    if name != "all-gather" or problem.mask == "none":
        return [[share]]
    # 2 P chunks: GPU g has chunk g and chunk 2 P - 1 - g, which together keep as many pairs for
    # every g. Each chunk of queries attends to all keys before its end.
    chunk = -(-problem.seq_q // (2 * gpus))
    return [
        [
            Pair(chunk, (n + 1) * chunk, n * chunk).problem(problem, share.passes)
            for n in (gpu, 2 * gpus - 1 - gpu)
        ]
        for gpu in dict.fromkeys((0, gpus - 1))
    ]


def collectives(
    name: str, problem: AttentionProblem, gpus: int, cluster: Cluster, backward: bool
) -> Iterator[tuple[int, float]]:
    """(bytes a GPU receives, seconds) of each collective of a pass."""
    passes, widths = "bwd" if backward else "fwd", token_bytes(problem)
    if name == "ulysses":
        head_share_bytes = token_bytes(split_heads(problem, gpus))
        yield from (
            all_to_all(gpus * problem.seq_q * head_share_bytes[tensor], gpus, cluster)
            for tensor in SWAPPED[passes]
        )
    elif name == "all-gather":
        yield from (
            ring_collective(problem.seq_k * widths[tensor], gpus, cluster) for tensor in ("K", "V")
        )
        for tensor in ("dK", "dV") if backward else ():
            yield ring_collective(problem.seq_k * widths[tensor], gpus, cluster, "reduce-scatter")
    elif name == "megatron":
        # Of Megatron-LM's collectives two are reduce-scatters, in either pass.
        gathers = MEGATRON_COLLECTIVES[passes] - 2
        for n in range(MEGATRON_COLLECTIVES[passes]):
            kind = "all-gather" if n < gathers else "reduce-scatter"
            yield ring_collective(sequence_width_bytes(problem), gpus, cluster, kind)
    else:
        yield from [
            ring_collective(problem.seq_k * widths["K"], gpus, cluster, "exchange")
        ] * RSA_ROTATIONS[passes]


def memory_bytes(
    name: str,
    problem: AttentionProblem,
    gpus: int,
    kernel: str | Kernel,
    profile: HardwareProfile,
    *,
    backward: bool = False,
) -> int:
    """What a GPU holds beside its call's own tensors: Megatron-LM's gathered input and its own part of it; Ulysses' Q,
    K and V of its own tokens; an all-gather's own K and V. Of ring self-attention K and V are those of its own rows and
    of the step's arrivals."""
    share, widths = share_of(name, problem, gpus, backward), token_bytes(problem)
    which = "naive" if name == "rsa" else kernel
    chosen = resolve(which, share, profile) if isinstance(which, str) else which
    peak = memory(plan(share, chosen))["peak"]
    if name == "megatron":
        width = sequence_width_bytes(problem)
        return peak + width + width // gpus
    if name == "rsa":
        # The peak of the call holds whole K and V; a GPU holds its own part of both and the part that
        # arrives: 4 parts of 1 / P.
        width = widths["K"] * problem.seq_q
        return peak - 2 * width + 4 * width // gpus
    inputs = ("Q", "K", "V") if name == "ulysses" else ("K", "V")
    return peak + sum(widths[tensor] for tensor in inputs) * -(-problem.seq_q // gpus)


def spread(
    name: str,
    problem: AttentionProblem,
    gpus: int,
    times: ChunkTimes,
    cluster: Cluster,
    *,
    backward: bool = False,
) -> Spread:
    """One pass by "ulysses", "all-gather", "megatron", or "rsa" (with kernel `naive`): a GPU's share, by `times`, and
    the collectives."""
    check_problem(problem)
    check_gpus(gpus)
    kernel = "naive" if name == "rsa" else None
    of_gpus = [
        times.predictions(calls, kernel) for calls in calls_of(name, problem, gpus, backward)
    ]
    # All GPUs wait for the slowest.
    slowest = max(
        of_gpus, key=lambda predictions: sum(prediction.time.total_s for prediction in predictions)
    )
    transfers = list(collectives(name, problem, gpus, cluster, backward))
    # Ulysses turns each tensor into another order beside its all-to-all: read once, written once.
    copied_bytes: list[int] = []
    if name == "ulysses" and gpus > 1:
        head_share_bytes = token_bytes(split_heads(problem, gpus))
        copied_bytes = [
            problem.seq_q * head_share_bytes[tensor]
            for tensor in SWAPPED["bwd" if backward else "fwd"]
        ]
    copies_s = math.fsum(times.copied(size, size) for size in copied_bytes)
    received, communication_s = (sum(of_each) for of_each in zip(*transfers, strict=True))
    compute_s = math.fsum(prediction.time.total_s for prediction in slowest) + copies_s
    held = memory_bytes(name, problem, gpus, times.kernel, times.profile, backward=backward)
    l2, hbm = (
        sum(prediction.total(level) for prediction in slowest) + 2 * sum(copied_bytes)
        for level in BOTH
    )
    method = method_of(prediction.method for prediction in slowest)
    return Spread(name, received, compute_s, communication_s, held, l2, hbm, method)


def longest_sequence(
    name: str,
    problem: AttentionProblem,
    gpus: int,
    budget_bytes: int,
    kernel: str | Kernel,
    profile: HardwareProfile,
    *,
    backward: bool = False,
) -> int:
    """Most tokens, a multiple of `gpus` up to `MAX_TOKENS`, whose attention fits in `budget_bytes` on a GPU."""

    def fits(chunk: int) -> bool:
        of_length = problem.with_(seq_q=chunk * gpus, seq_k=chunk * gpus, offset=None)
        return (
            memory_bytes(name, of_length, gpus, kernel, profile, backward=backward) <= budget_bytes
        )

    return (
        # Memory grows with the chunk: the first chunk that does not fit, by bisection.
        bisect_left(range(1, MAX_TOKENS // gpus + 1), True, key=lambda chunk: not fits(chunk))
        * gpus
    )

"""What distributed attention is compared with: Megatron-LM's tensor and sequence parallelism, and ring self-attention.

Megatron-LM (Korthikanti et al., arXiv 2205.05198) splits heads, and between attention and MLP the sequence. A layer
all-gathers and reduce-scatters N x d tensors: four times forward, six backward (arXiv 2310.03294, appendix D), so a GPU
receives 10 Nd (P - 1) / P, and 14 where the forward runs again for its activations. Heads that P does not divide
are padded. The collectives are on the critical path.

Ring self-attention (Li et al., arXiv 2105.13120) rotates keys, then values, keeps whole rows of scores in memory, and
makes no use of a causal mask. Assumed: kernel `naive`, no overlap, backward the same two rotations and a
reduce-scatter of dK and dV.
"""

from __future__ import annotations

from bisect import bisect_left

from iosim.base.records import dataclass
from iosim.base.words import Method
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.algorithms import plan
from iosim.kernel.kernel import Kernel
from iosim.kernel.libraries import resolve
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import MAX_TOKENS
from iosim.readers.bounds import memory
from iosim.studies.distributed.links import Cluster
from iosim.studies.distributed.schedule import check_gpus, check_problem, sequence_width_bytes, token_bytes

TITLES = {"megatron": "Megatron-LM, heads and sequence split", "rsa": "ring self-attention"}
MEGATRON_COLLECTIVES = {"fwd": 4, "bwd": 6, "recompute": 4}
"""All-gathers and reduce-scatters of a layer: two and two forward, four and two backward."""
RSA_ROTATIONS = {"fwd": 2, "bwd": 4}


@dataclass(frozen=True)
class Baseline:
    """A method without a chunk schedule: what a GPU computes, receives and holds in one pass."""

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
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def seconds(self) -> float:
        return self.compute_s + self.communication_s


def ring_collective(bytes_: int, gpus: int, cluster: Cluster) -> tuple[int, float]:
    """(bytes a GPU receives, seconds) of an all-gather or reduce-scatter of a tensor of `bytes_` round a ring."""
    if gpus == 1:
        return 0, 0.0
    moved = bytes_ * (gpus - 1) // gpus
    link = cluster.ring(gpus)
    return moved, (gpus - 1) * link.latency_s + moved / link.bandwidth_bytes_per_s


def split_heads(problem: AttentionProblem, gpus: int) -> AttentionProblem:
    """A GPU's share of the heads, padded where `gpus` does not divide them; key heads repeated where they are fewer."""
    heads = -(-problem.heads // gpus)
    kv_heads = -(-problem.kv_heads // gpus)
    return problem.with_(heads=heads, kv_heads=kv_heads if heads % kv_heads == 0 else heads)


def share_of(name: str, problem: AttentionProblem, gpus: int, backward: bool) -> AttentionProblem:
    """What one GPU computes: its heads over the whole sequence, or whole rows of scores of its own queries."""
    passes = "bwd" if backward else "fwd"
    if name == "megatron":
        return split_heads(problem, gpus).with_(passes=passes)
    return problem.with_(seq_q=-(-problem.seq_q // gpus), mask="none", offset=None, passes=passes)


def moved_width(name: str, problem: AttentionProblem) -> int:
    """Bytes of the tensor that a collective, or a rotation of keys, moves."""
    return sequence_width_bytes(problem) if name == "megatron" else token_bytes(problem)["K"] * problem.seq_q


def memory_bytes(
    name: str, problem: AttentionProblem, gpus: int, kernel: str | Kernel, profile: HardwareProfile, *,
    backward: bool = False,
) -> int:  # fmt: skip
    """What a GPU holds: Megatron-LM's the gathered input, too, and its own part of it; of ring self-attention K and V
    of its own rows and of the step's arrivals, and what passes over whole rows of scores leave."""
    share, width = share_of(name, problem, gpus, backward), moved_width(name, problem)
    which = kernel if name == "megatron" else "naive"
    chosen = resolve(which, share, profile) if isinstance(which, str) else which
    peak = memory(plan(share, chosen))["peak"]
    return peak + width + width // gpus if name == "megatron" else peak - 2 * width + 4 * width // gpus


def baseline(
    name: str, problem: AttentionProblem, gpus: int, kernel: str | Kernel, profile: HardwareProfile, cluster: Cluster,
    *, backward: bool = False,
) -> Baseline:  # fmt: skip
    """A GPU's share by "megatron", or by "rsa" (with kernel `naive`), and a layer's collectives."""
    check_problem(problem)
    share = share_of(name, problem, check_gpus(gpus), backward)
    prediction = predict(share, kernel if name == "megatron" else "naive", profile)
    one, seconds = ring_collective(moved_width(name, problem), gpus, cluster)
    number = (MEGATRON_COLLECTIVES if name == "megatron" else RSA_ROTATIONS)[share.passes]
    held = memory_bytes(name, problem, gpus, kernel, profile, backward=backward)
    return Baseline(name, number * one, prediction.time.total_s, number * seconds, held, prediction.total("l2"),
                    prediction.total("hbm"), prediction.method)  # fmt: skip


def longest_sequence(
    name: str, problem: AttentionProblem, gpus: int, budget_bytes: int, kernel: str | Kernel, profile: HardwareProfile,
    *, backward: bool = False,
) -> int:  # fmt: skip
    """Most tokens, a multiple of `gpus` up to `MAX_TOKENS`, whose attention fits in `budget_bytes` on a GPU."""

    def fits(chunk: int) -> bool:
        one = problem.with_(seq_q=chunk * gpus, seq_k=chunk * gpus, offset=None)
        return memory_bytes(name, one, gpus, kernel, profile, backward=backward) <= budget_bytes

    return bisect_left(range(1, MAX_TOKENS // gpus + 1), True, key=lambda chunk: not fits(chunk)) * gpus

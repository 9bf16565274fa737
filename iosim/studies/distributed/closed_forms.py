"""Closed forms in P: bytes on the links, and idle fractions. Written apart from the schedules, to be held against them.

Bytes are for equal chunks (the sequence divides by the chunks) and over all GPUs. In the unit of arXiv 2310.03294,
appendix D, elements of width d that a GPU receives on average: forward 2 Nd on a ring, Nd where only what the causal
mask needs is fetched (balanced or not), backward 2 Nd more, all times (P - 1) / P, which the paper leaves out.
"""

from __future__ import annotations

from fractions import Fraction

from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed.schedule import token_bytes

ROTATING = ("ring", "zigzag", "striped")
FORMULAS = {
    **{(name, False): "2 Nd (P - 1) / P" for name in ROTATING},
    **{(name, True): "2 Nd (P - 1) / P + 2 Nd" for name in ROTATING},
    ("vanilla", False): "Nd (P - 1) / P causal, 2 Nd (P - 1) / P without a mask",
    ("balanced", False): "Nd (P - 1) / P and row statistics",
    ("vanilla", True): "2 Nd (P - 1) / P causal, 4 Nd (P - 1) / P without a mask",
    ("balanced", True): "2 Nd (P - 1) / P and row statistics",
}
"""(schedule, backward) -> what a GPU receives, where all heads have keys of their own and head_dim_v = head_dim."""


def link_bytes(
    name: str, problem: AttentionProblem, gpus: int, *, backward: bool = False
) -> Fraction:
    """Bytes over all links, for equal chunks."""
    w = token_bytes(problem)
    chunk = Fraction(problem.seq_q, gpus)
    keys, gradients = w["K"] + w["V"], w["dK"] + w["dV"]
    if name in ROTATING:
        hops = gpus * (gpus - 1)
        # K and V stop one hop short of home; their gradients go all the way.
        return chunk * (hops * keys + (gpus * gpus * gradients if backward and gpus > 1 else 0))
    fetched = keys + (gradients if backward else 0)
    if name == "vanilla":
        return chunk * fetched * (gpus * (gpus - 1) // (2 if problem.mask == "causal" else 1))
    # Of the P (P - 1) / 2 pairs off the diagonal, those at a distance beyond P / 2 are computed by helpers.
    far = (gpus - 1) // 2
    helped = far * (far + 1) // 2
    own_pairs = gpus * (gpus - 1) // 2 - helped
    help_bytes = w["Q"] + w["O_part"] + w["stats"]
    if backward:
        help_bytes = w["Q"] + w["dO"] + w["O"] + w["LSE"] + w["dQ"]
    return chunk * (own_pairs * fetched + helped * help_bytes)


def idle_fraction(name: str, gpus: int, causal: bool = True) -> Fraction:
    """Idle (GPU, step) slots over all slots: (P^2 - P) / 2 P^2 unbalanced; balanced 0 for odd P, 1 / (P + 2) for even.
    P / 2 helpers idle in the last of P / 2 + 1 steps. arXiv 2310.03294, equation 2, states 1 / 2P for even P: the same
    P / 2 slots over the P^2 slots of the unbalanced schedule (`idle_of_unbalanced`); the speed-up of 7.2 that its
    section 4.5 expects of 8 GPUs is 8 (1 - 1 / (P + 2))."""
    if name in ("ring", "vanilla") and causal:
        return Fraction(gpus * gpus - gpus, 2 * gpus * gpus)
    if name == "balanced" and gpus % 2 == 0:
        return Fraction(1, gpus + 2)
    return Fraction(0)


def idle_of_unbalanced(name: str, gpus: int, causal: bool = True) -> Fraction:
    """Idle slots over P^2: arXiv 2310.03294, section 3.2 and equation 2."""
    if name == "balanced" and gpus % 2 == 0:
        return Fraction(1, 2 * gpus)
    return idle_fraction(name, gpus, causal)


def minimal_chunk_tokens(flops_per_s: float, link_bytes_per_s: float) -> float:
    """Tokens a GPU needs for computation to hide the ring's K and V: F / B (arXiv 2310.01889, section 3, Table 2). 4 d
    c^2 operations against 4 c d bytes in a type of two bytes, without a mask."""
    return flops_per_s / link_bytes_per_s

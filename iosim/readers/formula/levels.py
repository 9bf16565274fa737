"""The papers' IO bounds at both levels of a GPU: SM<->L2, where M is an SM's memory, and L2<->HBM, where M is the L2.

Forward: Saha and Ye, "The I/O Complexity of Attention", arXiv 2402.07443: min(N^2 d^2 / M, N^2 d / sqrt(M)).
Backward: arXiv 2410.09397v2: min((N^2 d^2 + N d^3) / M, (N^2 d + N d^2) / sqrt(M)). Both cross at M = d^2.
They count the elements that cross between one fast memory of M elements and everything else. Where every SM has a fast
memory of its own, each moves what its share of the products takes, so that the sum has the same bound, M the memory of
one.

NB: the bounds are asymptotic and prove no constant. Here it is 1, and what every algorithm moves at least, inputs and
outputs once, stands beside the term: the bound of a level is the larger of the two. FlashAttention with a tile that
fills the fast memory reaches 4 times the term (`FLASH_CONSTANT`): there kernels of this kind end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, plain
from iosim.base.units import bytes_text
from iosim.base.words import Level
from iosim.hardware.profile import HardwareProfile
from iosim.problem.attention import AttentionProblem

FORWARD, BACKWARD = "arXiv 2402.07443", "arXiv 2410.09397v2"
LEVELS: dict[Level, str] = {"l2": "SM <-> L2", "hbm": "L2 <-> HBM"}
FLASH_CONSTANT = 4
"""Q and O of B query rows fill M = 2 d B elements while K and V pass by: 2 N^2 d / B = 4 N^2 d^2 / M."""
REGISTER_BYTES = 4


@dataclass(frozen=True)
class LevelBound:
    """What crosses a level at least, beside what does.

    Attributes:
        fast_bytes, fast_elements: M, in bytes and in elements of the inputs; `fast_memory` says what it is.
        term_bytes: the papers' term with constant 1, over all heads, pairs that the mask drops left out.
        compulsory_bytes: inputs read once and outputs written once.
        moved_bytes: what the kernel moves there, read and written.
        crossover_tokens: the length from which the term outgrows the compulsory bytes, other sizes equal; None for
            masks whose pairs grow as the tokens do.
        crossover_head_dim: the head_dim up to which M >= d^2, where FlashAttention's term is the smaller one.
    """

    level: Level
    fast_memory: str
    fast_bytes: int
    fast_elements: int
    head_dim: int
    term_text: str
    source: str
    term_bytes: float
    compulsory_bytes: int
    moved_bytes: int | None
    crossover_tokens: int | None
    crossover_head_dim: int

    @property
    def bound_bytes(self) -> float:
        """The larger of the term and the compulsory bytes."""
        return max(self.term_bytes, self.compulsory_bytes)

    @property
    def decided_by(self) -> str:
        """Which of the two it is: "term" or "compulsory"."""
        return "term" if self.term_bytes > self.compulsory_bytes else "compulsory"

    @property
    def times_above(self) -> float | None:
        """What is moved in multiples of the bound; under 1 where outputs stay dirty in the L2 at the end."""
        return None if self.moved_bytes is None else self.moved_bytes / self.bound_bytes

    @property
    def large(self) -> bool:
        return self.fast_elements >= self.head_dim**2

    def to_dict(self) -> dict[str, Any]:
        return plain(
            self,
            "level fast_memory fast_bytes fast_elements term=term_text source term_bytes compulsory_bytes bound_bytes "
            "decided_by moved_bytes times_above crossover_tokens crossover_head_dim",
        ) | {"term_bytes": round(self.term_bytes), "bound_bytes": round(self.bound_bytes)}


def fast_memories(profile: HardwareProfile) -> dict[Level, tuple[str, int]]:
    """Level -> (what the fast memory is, its bytes): shared memory and registers of an SM, and all of the L2. Raises
    InputError: the profile does not know one of them."""
    shared = profile.need_int("shared_memory_per_sm_bytes")
    registers = REGISTER_BYTES * profile.need_int("registers_per_sm")
    sm = f"an SM's shared memory and registers, {bytes_text(shared)} and {bytes_text(registers)}"
    return {"l2": (sm, shared + registers), "hbm": ("the L2", profile.need_int("l2_bytes"))}


def backward_elements(pairs: int, rows: int, head_dim: int, fast_elements: int) -> float:
    """min((P d^2 + N d^3) / M, (P d + N d^2) / sqrt(M)) for P kept pairs of N rows: the backward's term, constant 1."""
    numerator = pairs * head_dim + rows * head_dim**2
    return min(numerator * head_dim / fast_elements, numerator / math.sqrt(fast_elements))


def level_bounds(
    problem: AttentionProblem, profile: HardwareProfile, compulsory_bytes: int, moved: Mapping[str, int | None]
) -> tuple[LevelBound, ...]:
    """The bounds of both levels. Where Q and V differ in width, d is the smaller one, so that the bound holds. Grouped
    heads change the compulsory bytes alone: the products of every query head are counted. `compulsory_bytes`: inputs
    read once and outputs written once, of all passes. `moved`: bytes by level, read and written; None where they are
    not known. Raises InputError: the profile does not know an SM's memories or the L2, or head_dim is more than they
    hold."""
    d = min(problem.head_dim, problem.head_dim_v)
    heads, element = problem.batch * problem.heads, problem.input_type.bytes
    pairs = problem.pair_mask.kept_pairs(problem.seq_q, problem.seq_k)
    rows = min(problem.seq_q, problem.seq_k)
    found = []
    grows = problem.mask in ("none", "causal") and problem.seq_lens is None and pairs > 0
    for level, (what, size) in fast_memories(profile).items():
        fast = size // element
        if fast < d:
            raise InputError(f"`head_dim` {d} is more than the {fast} elements of {what}; accepted: up to {fast}")
        quadratic, linear = 0.0, 0.0
        terms = []
        large = fast >= d * d
        if problem.forward:
            quadratic += min(pairs * d**2 / fast, pairs * d / math.sqrt(fast))
            terms.append(("P*d^2/M" if large else "P*d/sqrt(M)", FORWARD))
        if problem.backward:
            quadratic += backward_elements(pairs, 0, d, fast)
            linear += backward_elements(0, rows, d, fast)
            terms.append(("(P*d^2 + N*d^3)/M" if large else "(P*d + N*d^2)/sqrt(M)", BACKWARD))
        texts, sources = zip(*terms, strict=True)
        scale = element * heads
        # Tokens t times as many: t^2 and t times the parts of the term, t times the compulsory bytes.
        times = (compulsory_bytes - scale * linear) / (scale * quadratic) if grows else 0.0
        found.append(
            LevelBound(
                level=level, fast_memory=what, fast_bytes=size, fast_elements=fast, head_dim=d,
                term_text=" + ".join(texts), source=", ".join(sources), term_bytes=scale * (quadratic + linear),
                compulsory_bytes=compulsory_bytes, moved_bytes=moved.get(level),
                crossover_tokens=max(1, math.ceil(problem.seq_k * times)) if grows else None,
                crossover_head_dim=math.isqrt(fast),
            )
        )  # fmt: skip
    return tuple(found)


def explanation(bounds: tuple[LevelBound, ...], gpu: str) -> list[str]:
    """Why the L2 as fast memory changes the answer, with the numbers of a GPU: one sentence a line."""
    sm, l2 = bounds
    d = sm.head_dim
    where = "at both levels" if sm.large and l2.large else "at the L2 alone" if l2.large else "at neither level"
    lines = [
        f"P is the pairs that the mask keeps, N^2 without one; d = {d}. M >= d^2 = {d * d:,} {where}: on {gpu} an SM's "
        f"{sm.fast_elements:,} elements reach d^2 up to head_dim {sm.crossover_head_dim:,}, the L2's "
        f"{l2.fast_elements:,} up to {l2.crossover_head_dim:,}. Where M < d^2, P*d/sqrt(M) is the smaller term, and "
        "FlashAttention is not the best algorithm.",
        f"With M = the L2, not an SM's memory, the term is {sm.term_bytes / l2.term_bytes:.3g} times smaller: "
        f"{bytes_text(round(sm.term_bytes))} between SMs and L2, {bytes_text(round(l2.term_bytes))} between L2 and "
        f"HBM. Inputs and outputs, once, are {bytes_text(l2.compulsory_bytes)}.",
    ]
    if sm.crossover_tokens is not None and l2.crossover_tokens is not None:
        lines.append(
            f"The term outgrows those from {sm.crossover_tokens:,} tokens between SMs and L2, but only from "
            f"{l2.crossover_tokens:,} between L2 and HBM: up to there, what grows as N^2 need not reach HBM. The "
            "papers' two levels cannot tell the one from the other."
        )
    lines.append(
        "The bounds are asymptotic. Their constant is taken as 1, for none is proved; a tile of Q and O that fills M "
        f"reaches {FLASH_CONSTANT} times the term. Compare kernels, sizes and GPUs by it, not one number with 1."
    )
    return lines

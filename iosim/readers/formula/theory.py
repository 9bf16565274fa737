"""The papers' IO bounds: the elements that cross between one fast memory of M elements and everything else, in numbers
beside what a kernel moves.

The two-level terms: Dao et al., "FlashAttention", arXiv 2205.14135: Theorem 2 (standard and FlashAttention, forward),
Theorem 5 (backward), Proposition 4 (block-sparse). A Theta term fixes no constant: `Bound.elements` is the term itself
with constant 1, and `times_above` divides bytes by it. All terms are of one head of one sequence with N queries and N
keys of d columns, and for d <= M <= N d: a larger M is cut to N d, where a whole head fits and the compulsory N d
remain.

The tight bounds for every M at both levels of a GPU: SM<->L2, M an SM's memory, and L2<->HBM, M the L2.
Forward: Saha and Ye, "The I/O Complexity of Attention", arXiv 2402.07443: min(N^2 d^2 / M, N^2 d / sqrt(M)).
Backward: arXiv 2410.09397v2: min((N^2 d^2 + N d^3) / M, (N^2 d + N d^2) / sqrt(M)). Both cross at M = d^2.
Where every SM has a fast memory of its own, each moves what its share of the products takes, so that the sum has the
same bound, M the memory of one.

NB: those bounds are asymptotic and prove no constant. Here it is 1, and what every algorithm moves at least, inputs and
outputs once, stands beside the term: the bound of a level is the larger of the two. FlashAttention with a tile that
fills the fast memory reaches 4 times the term (`FLASH_CONSTANT`): there kernels of this kind end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, plain
from iosim.base.units import bytes_text, count_text, digits_text, number_text
from iosim.base.words import Level
from iosim.catalog.algorithms import algorithm_of
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.blocks import BlockMask

BLOCKS_IN_FAST_MEMORY = 4
"""Blocks of Q, K, V and O that the papers' algorithm keeps there, each of M / (4 d) rows."""


@dataclass(frozen=True)
class Bound:
    """One Theta term: `text` and `latex` say it in the symbols N, d, M and s, `value` takes their numbers."""

    source: str
    text: str
    latex: str
    value: Callable[[int, int, int, float], float]

    def elements(self, seq: int, head_dim: int, fast_elements: int, density: float = 1.0) -> float:
        """The term's value in elements, for one head.

        Args:
            seq: N, tokens.
            head_dim: d.
            fast_elements: M, elements that the fast memory holds.
            kept: s, the fraction of blocks that a block-sparse mask keeps.

        Raises:
            InputError: a size below 1, a fraction outside (0, 1], or M below d, for which the papers state nothing.
        """
        for name, value in (("seq", seq), ("head_dim", head_dim), ("fast_elements", fast_elements)):
            if value < 1:
                raise InputError(f"{name} {value} is out of range; accepted: 1 or more")
        if not 0 < density <= 1:
            raise InputError(f"kept {density} is out of range; accepted: above 0 up to 1")
        if fast_elements < head_dim:
            raise InputError(
                f"fast_elements {fast_elements} is out of range; accepted: head_dim {head_dim} or more"
            )
        # More memory than a head needs is of no further use: the compulsory N d remain.
        memory = min(fast_elements, seq * head_dim)
        return self.value(seq, head_dim, memory, density)

    def times_above(
        self,
        moved_bytes: float,
        element_bytes: int,
        seq: int,
        head_dim: int,
        fast_elements: int,
        *,
        heads: int = 1,
        density: float = 1.0,
    ) -> float:
        """`moved_bytes` of `heads` heads (over all sequences) in multiples of the term."""
        return moved_bytes / (
            element_bytes * heads * self.elements(seq, head_dim, fast_elements, density)
        )

    def expression(self) -> Any:
        import sympy as sp

        n, d = (sp.Symbol(name, integer=True, positive=True) for name in ("N", "d"))
        m, s = (sp.Symbol(name, positive=True) for name in ("M", "s"))
        return sp.sympify(self.text.replace("^", "**"), locals={"N": n, "d": d, "M": m, "s": s})


_PAPER = "arXiv 2205.14135"
_STANDARD = "N*d + N^2", r"\Theta(N d + N^2)", lambda n, d, m, s: n * d + n * n
_FLASH = "N^2*d^2/M", r"\Theta\left(\frac{N^2 d^2}{M}\right)", lambda n, d, m, s: n * n * d * d / m
_SPARSE = (
    "N*d + N^2*d^2*s/M",
    r"\Theta\left(N d + \frac{N^2 d^2}{M} s\right)",
    lambda n, d, m, s: n * d + n * n * d * d * s / m,
)
BOUNDS = {
    "standard": Bound(f"{_PAPER}, Theorem 2", *_STANDARD),
    "flash": Bound(f"{_PAPER}, Theorem 2", *_FLASH),
    "standard_backward": Bound(f"{_PAPER}, Theorem 5", *_STANDARD),
    "flash_backward": Bound(f"{_PAPER}, Theorem 5", *_FLASH),
    "block_sparse": Bound(f"{_PAPER}, Proposition 4", *_SPARSE),
}


def bound(name: str) -> Bound:
    if name not in BOUNDS:
        raise InputError(f"bound '{name}' is not known; accepted: {', '.join(BOUNDS)}")
    return BOUNDS[name]


def _staying_rows(kernel: Kernel) -> int:
    """Rows of the side of the tile that stays: keys where they are outside, as in `flash1`, else queries."""
    return (
        kernel.tile.block_k if algorithm_of(kernel.algorithm).keys_outside else kernel.tile.block_q
    )


def with_density(expression: Any, values: dict[str, int]) -> Any:
    """A formula with its visits Z as s n_q n_k; sums along one side of the mask, of a lower power in N, are dropped."""
    import sympy as sp

    from iosim.readers.formula.sums import NAMES
    from iosim.readers.formula.symbolic import symbol

    density = sp.Symbol("s", positive=True)
    rows = [symbol("seq" if "seq" in values else name) for name in ("seq_q", "seq_k")]
    put: dict[Any, Any] = {}
    for prefix in ("", "backward_"):
        sides = [
            symbol(f"{prefix}{n}" if f"{prefix}{n}" in values else n)
            for n in ("block_q", "block_k")
        ]
        put |= {symbol(f"{prefix}{name}"): sp.Integer(0) for name in NAMES}
        put[symbol(f"{prefix}visits")] = density * rows[0] * rows[1] / (sides[0] * sides[1])
    return sp.sympify(expression).subs(put)


def beside(problem: AttentionProblem, kernel: Kernel, moved_bytes: int) -> dict[str, Any]:
    """The term in numbers, where the fast memory is what the kernel's tile fills by the paper's rule, M = 4 d B, of B
    rows that stay.

    Returns:
        kept_blocks and blocks of the mask, kept_fraction (s), fast_elements (M), theta_elements of one head, and
        times_above: `moved_bytes` of all heads in multiples of the term.
    """
    mask = problem.pair_mask
    assert isinstance(mask, BlockMask)
    # The paper's rule the other way round: a tile of B rows that stay stands for M = 4 d B elements.
    fast = BLOCKS_IN_FAST_MEMORY * problem.head_dim * _staying_rows(kernel)
    fast = max(problem.head_dim, min(fast, problem.seq_q * problem.head_dim))
    term, heads = bound("block_sparse"), problem.batch * problem.heads
    s = mask.kept_fraction
    return {
        "kept_blocks": mask.nnz,
        "blocks": mask.shape[0] * mask.shape[1],
        "kept_fraction": s,
        "fast_elements": fast,
        "theta_elements": term.elements(problem.seq_q, problem.head_dim, fast, s),
        "times_above": term.times_above(
            moved_bytes,
            problem.input_type.bytes,
            problem.seq_q,
            problem.head_dim,
            fast,
            heads=heads,
            density=s,
        ),
    }


def beside_text(values: dict[str, Any]) -> str:
    return (
        f"mask: {values['kept_blocks']:,} of {values['blocks']:,} blocks kept, s = {values['kept_fraction']:.4g}; "
        f"N d + N^2 d^2 s / M = {values['theta_elements']:,.0f} elements a head with M = 4 d B = "
        f"{values['fast_elements']:,}; the exact bytes are {digits_text(values['times_above'])} times that"
    )


def why(
    problem: AttentionProblem, kernel: Kernel, profile: HardwareProfile, kernel_bytes: int
) -> dict[str, Any] | None:
    """The papers' term in numbers, for one head unless bytes are said, and in sentences; None for a mask or a pass that
    it is not stated for, where Q and K differ in length, or where the fast memory is smaller than a row.

    Returns:
        Among others `rows` of the blocks that stay and `passes` over what is walked, None where the whole matrix of
        scores moves. In a pass, `walked` tensors of N x d elements move: K and V, or, where `keys_outside`, Q and O,
        and O again. `tiled_elements` is what such passes come to.
    """
    seq, d, element = problem.seq_q, problem.head_dim, problem.input_type.bytes
    fast_bytes = profile.need_int("shared_memory_per_block_optin_bytes")
    fast = min(fast_bytes // element, seq * d)
    if problem.mask != "none" or problem.passes != "fwd" or problem.seq_k != seq or fast < d:
        return None
    standard = algorithm_of(kernel.algorithm).standard
    term = bound("standard" if standard else "flash").elements(seq, d, fast)
    rows, block, heads = (
        fast / (BLOCKS_IN_FAST_MEMORY * d),
        _staying_rows(kernel),
        problem.batch * problem.heads,
    )
    passes = seq / rows
    outside = algorithm_of(kernel.algorithm).keys_outside
    walked = 3 if outside else 2
    numbers: dict[str, Any] = {
        "profile": profile.name,
        "fast_memory_bytes": fast_bytes,
        "fast_elements": fast,
        "element_bytes": element,
        "seq": seq,
        "head_dim": d,
        "heads": heads,
        "keys_outside": outside,
        "walked": walked,
        "rows": None if standard else rows,
        "passes": None if standard else passes,
        "tiled_elements": walked * seq * d * passes,
        "term_elements": term,
        "term_bytes": term * heads * element,
        "kernel_rows": block,
        "kernel_passes": -(-seq // block),
        "kernel_bytes": kernel_bytes,
        "times_above": kernel_bytes / (term * heads * element),
    }
    return {**numbers, "text": _why_text(numbers)}


def _why_text(w: dict[str, Any]) -> str:
    seq, head_dim, heads = w["seq"], w["head_dim"], w["heads"]
    walked, rows, passes = w["walked"], w["rows"], w["passes"]
    sizes = f"N = {seq:,}, d = {head_dim}, {heads} heads in all"
    memory = (
        f"on {w['profile']} a CTA may use {w['fast_memory_bytes']:,} bytes of shared memory: "
        f"M = {w['fast_elements']:,} elements of {w['element_bytes']} bytes"
    )
    times = BLOCKS_IN_FAST_MEMORY * walked
    tiled = f"{times}*N^2*d^2/M = {count_text(w['tiled_elements'])} elements a head"
    tiled_bytes = w["tiled_elements"] * heads * w["element_bytes"]
    here, above = bytes_text(w["kernel_bytes"]), number_text(w["times_above"])
    if rows is None:
        lines = [
            f"why N*d + N^2 ({sizes})",
            f"  the scores, N^2 = {seq * seq:,} elements a head, leave the SMs and come back, whatever M is",
            f"  in bytes N*d + N^2 is {bytes_text(w['term_bytes'])}; this kernel, which writes and reads scores and "
            f"probabilities, moves {here}, {above} times as much",
            f"  {memory}",
            f"  with query blocks that stay there it would be {tiled}, {bytes_text(tiled_bytes)}: "
            f"{number_text(w['kernel_bytes'] / tiled_bytes)} times less than this kernel moves",
        ]
    else:
        side, name = ("key", "B_k") if w["keys_outside"] else ("query", "B_q")
        rest = "Q and O, and writes O" if w["keys_outside"] else "K and V"
        lines = [
            f"why N^2*d^2/M ({sizes})",
            f"  {memory}",
            f"  blocks of Q, K, V and O share it, so {name} = M/(4*d) = {number_text(rows)} {side} rows stay",
            f"  each of the N/{name} = {number_text(passes)} {side} blocks reads all of {rest}, {walked}*N*d = "
            f"{walked * seq * head_dim:,} elements: {tiled}",
            f"  in bytes that is {bytes_text(tiled_bytes)}; this kernel's blocks have {w['kernel_rows']} rows, so "
            f"{count_text(w['kernel_passes'])} passes: {here}, {above} times N^2*d^2/M",
        ]
    lines.append("  all of them between SMs and L2; `iosim predict` says how many reach HBM")
    return "\n".join(lines)


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
            level=self.level,
            fast_memory=self.fast_memory,
            fast_bytes=self.fast_bytes,
            fast_elements=self.fast_elements,
            term=self.term_text,
            source=self.source,
            term_bytes=self.term_bytes,
            compulsory_bytes=self.compulsory_bytes,
            bound_bytes=self.bound_bytes,
            decided_by=self.decided_by,
            moved_bytes=self.moved_bytes,
            times_above=self.times_above,
            crossover_tokens=self.crossover_tokens,
            crossover_head_dim=self.crossover_head_dim,
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
    problem: AttentionProblem,
    profile: HardwareProfile,
    compulsory_bytes: int,
    bytes_of: Mapping[str, int | None],
) -> tuple[LevelBound, ...]:
    """The bounds of both levels. Where Q and V differ in width, d is the smaller one, so that the bound holds. Grouped
    heads change the compulsory bytes alone: the products of every query head are counted. `compulsory_bytes`: inputs
    read once and outputs written once, of all passes. `bytes_of`: bytes by level, read and written; None where they are
    not known. Raises InputError: the profile does not know an SM's memories or the L2, or head_dim is more than they
    hold."""
    d = min(problem.head_dim, problem.head_dim_v)
    heads, element = problem.batch * problem.heads, problem.input_type.bytes
    pairs = problem.pair_mask.kept_pairs(problem.seq_q, problem.seq_k)
    rows = min(problem.seq_q, problem.seq_k)
    bounds = []
    grows = problem.mask in ("none", "causal") and problem.seq_lens is None and pairs > 0
    for level, (memory, size) in fast_memories(profile).items():
        fast = size // element
        if fast < d:
            raise InputError(
                f"`head_dim` {d} is more than the {fast} elements of {memory}; accepted: up to {fast}"
            )
        linear, quadratic, terms = _terms(d, fast, pairs, problem, rows)
        texts, sources = zip(*terms, strict=True)
        scale = element * heads
        # Tokens t times as many: t^2 and t times the parts of the term, t times the compulsory bytes.
        times = (compulsory_bytes - scale * linear) / (scale * quadratic) if grows else 0.0
        bounds.append(
            LevelBound(
                level=level,
                fast_memory=memory,
                fast_bytes=size,
                fast_elements=fast,
                head_dim=d,
                term_text=" + ".join(texts),
                source=", ".join(sources),
                term_bytes=scale * (quadratic + linear),
                compulsory_bytes=compulsory_bytes,
                moved_bytes=bytes_of.get(level),
                crossover_tokens=max(1, math.ceil(problem.seq_k * times)) if grows else None,
                crossover_head_dim=math.isqrt(fast),
            )
        )
    return tuple(bounds)


def _terms(
    d: int, fast: int, pairs: int, problem: AttentionProblem, rows: int
) -> tuple[float, float, list[tuple[str, str]]]:
    """The quadratic and the linear part of a bound in elements, and (term, source) of each pass."""
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
    return linear, quadratic, terms


def explanation(bounds: tuple[LevelBound, ...], gpu: str) -> list[str]:
    """Why the L2 as fast memory changes the answer, with the numbers of a GPU: one sentence a line."""
    sm, l2 = bounds
    d = sm.head_dim
    where = (
        "at both levels"
        if sm.large and l2.large
        else "at the L2 alone"
        if l2.large
        else "at neither level"
    )
    lines = [
        f"P is the pairs that the mask keeps, N^2 without one; d = {d}. M >= d^2 = {d * d:,} {where}: on {gpu} an SM's "
        f"{sm.fast_elements:,} elements reach d^2 up to head_dim {sm.crossover_head_dim:,}, the L2's "
        f"{l2.fast_elements:,} up to {l2.crossover_head_dim:,}. Where M < d^2, P*d/sqrt(M) is the smaller term, and "
        "FlashAttention is not the best algorithm.",
        f"With M = the L2, not an SM's memory, the term is {digits_text(sm.term_bytes / l2.term_bytes)} times smaller: "
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

"""Where the papers' leading term comes from, in numbers: how many rows fit in the fast memory of a GPU, how often the
rest is read for it, and the bytes that makes, beside those of a kernel's own tile.

The fast memory of the papers (arXiv 2205.14135, section 3) is the shared memory that a CTA may use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from iosim.base.units import bytes_text, count_text, number_text
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.algorithms import algorithm_of
from iosim.kernel.kernel import Kernel
from iosim.problem.attention import AttentionProblem
from iosim.readers.formula.symbolic import Formula, symbol
from iosim.readers.formula.theory import bound

BLOCKS_IN_FAST_MEMORY = 4
"""Blocks of Q, K, V and O that the papers' algorithm keeps there, each of M / (4 d) rows."""


@dataclass(frozen=True)
class Why:
    """The term of a problem on a GPU, for one head unless bytes are said.

    `rows` of the blocks that stay and `passes` over what is walked are None where the whole matrix of scores moves.
    In a pass, `walked` tensors of N x d elements move: K and V, or, where `keys_outside`, Q and O, and O again.
    `tiled_elements` is what such passes come to. `times_above` is the kernel's bytes over the term's.
    """

    profile: str
    fast_memory_bytes: int
    fast_elements: int
    element_bytes: int
    seq: int
    head_dim: int
    heads: int
    keys_outside: bool
    walked: int
    rows: float | None
    passes: float | None
    tiled_elements: float
    term_elements: float
    term_bytes: float
    kernel_rows: int
    kernel_passes: float
    kernel_bytes: int
    times_above: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def why(problem: AttentionProblem, kernel: Kernel, profile: HardwareProfile, formula: Formula) -> Why | None:
    """The papers' term in numbers; None for a mask or a pass other than those it is stated for, where Q and K differ in
    length, or where the fast memory is smaller than a row."""
    seq, d, element = problem.seq_q, problem.head_dim, problem.input_type.bytes
    fast_bytes = profile.need_int("shared_memory_per_block_optin_bytes")
    fast = min(fast_bytes // element, seq * d)
    if problem.mask != "none" or problem.passes != "fwd" or problem.seq_k != seq or fast < d:
        return None
    standard = algorithm_of(kernel.algorithm).standard
    term = bound("standard" if standard else "flash").elements(seq, d, fast)
    rows = fast / (BLOCKS_IN_FAST_MEMORY * d)
    passes = seq / rows
    outside = algorithm_of(kernel.algorithm).keys_outside
    walked = 3 if outside else 2
    heads = problem.batch * problem.heads
    moved = formula.total("read") + formula.total("write")
    kernel_bytes = int(moved.subs({symbol(name): value for name, value in formula.values.items()}))
    block = kernel.tile.block_k if outside else kernel.tile.block_q
    return Why(
        profile=profile.name, fast_memory_bytes=fast_bytes, fast_elements=fast, element_bytes=element, seq=seq,
        head_dim=d, heads=heads, keys_outside=outside, walked=walked, rows=None if standard else rows,
        passes=None if standard else passes, tiled_elements=walked * seq * d * passes, term_elements=term,
        term_bytes=term * heads * element,
        kernel_rows=block, kernel_passes=-(-seq // block), kernel_bytes=kernel_bytes,
        times_above=kernel_bytes / (term * heads * element),
    )  # fmt: skip


def why_text(w: Why) -> str:
    """The same in sentences."""
    n, d, m = w.seq, w.head_dim, w.fast_elements
    sizes = f"N = {n:,}, d = {d}, {w.heads} heads in all"
    memory = f"on {w.profile} a CTA may use {w.fast_memory_bytes:,} bytes of shared memory: M = {m:,} elements"
    times = BLOCKS_IN_FAST_MEMORY * w.walked
    tiled = f"{times}*N^2*d^2/M = {count_text(w.tiled_elements)} elements a head"
    tiled_bytes = w.tiled_elements * w.heads * w.element_bytes
    here = bytes_text(w.kernel_bytes)
    if w.rows is None or w.passes is None:
        lines = [
            f"why N*d + N^2 ({sizes})",
            f"  the scores, N^2 = {n * n:,} elements a head, leave the SMs and come back, whatever M is",
            f"  in bytes N*d + N^2 is {bytes_text(w.term_bytes)}; this kernel, which writes and reads scores and "
            f"probabilities, moves {here}, {number_text(w.times_above)} times as much",
            f"  {memory} of {w.element_bytes} bytes",
            f"  with query blocks that stay there it would be {tiled}, {bytes_text(tiled_bytes)}: "
            f"{number_text(w.kernel_bytes / tiled_bytes)} times less than this kernel moves",
        ]
    else:
        side, name = ("key", "B_k") if w.keys_outside else ("query", "B_q")
        rest = "Q and O, and writes O" if w.keys_outside else "K and V"
        lines = [
            f"why N^2*d^2/M ({sizes})",
            f"  {memory} of {w.element_bytes} bytes",
            f"  blocks of Q, K, V and O share it, so {name} = M/(4*d) = {number_text(w.rows)} {side} rows stay",
            f"  each of the N/{name} = {number_text(w.passes)} {side} blocks reads all of {rest}, {w.walked}*N*d = "
            f"{w.walked * n * d:,} elements: {tiled}",
            f"  in bytes that is {bytes_text(tiled_bytes)}; this kernel's blocks have {w.kernel_rows} rows, so "
            f"{count_text(w.kernel_passes)} passes: {here}, {number_text(w.times_above)} times N^2*d^2/M",
        ]
    lines.append("  all of them between SMs and L2; `iosim predict` says how many reach HBM")
    return "\n".join(lines)

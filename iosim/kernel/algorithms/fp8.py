"""`flash_fp8`: flash attention on fp8 operands that are made from 16-bit ones first.

The problem's type, fp8, is that of its products; Q, K and V come in the type of its output. A launch each reads one of
them, a block of rows a CTA, and writes Q_fp8, K_fp8 or V_fp8 in the problem's type with one fp32 scale a block (block
quantisation: arXiv 2407.08608, section 3.3). The main launch is `flash`'s on those, and reads a scale with each tile.

Products of 8-bit operands need V with its rows contiguous, as the main launch's shared memory holds it transposed
(same section). Option `transpose_v`: "in-kernel", the default, costs no traffic; "separate" adds a launch that reads V
and writes it transposed.

NB: scales are counted, a sector each, and are 1 in the executing reader. Whether quantisation hides behind what comes
before attention (rotary embedding) is not told here: without `flash_fp8`, `flash` in fp8 has none.
"""

from __future__ import annotations

from enum import StrEnum

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.kernel.algorithms import flash
from iosim.kernel.algorithms.common import matrix, row_domain, row_pass
from iosim.kernel.algorithms.registry import algorithm, options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import SECTOR_BYTES, Chain, Launch, Mode, Overhead, Role, tensors
from iosim.problem.attention import AttentionProblem


class Transpose(StrEnum):
    """Where V gets its rows contiguous."""

    IN_KERNEL = "in-kernel"
    """In the main launch's shared memory, which costs no traffic."""
    SEPARATE = "separate"
    """In a launch of its own."""


@dataclass(frozen=True)
class Fp8Options(flash.FlashOptions):
    """Options of `flash`, and where V is transposed."""

    transpose_v: Transpose = Transpose.IN_KERNEL


SCALE_SOURCE = "one fp32 scale a block, read and written as a sector"


@algorithm("flash_fp8", options=Fp8Options)
def plan_fp8(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """Quantisation of Q, K and V, the transpose of V where it is apart, and the forward; none of a backward."""
    if problem.backward:
        raise InputError(f"`passes` {problem.passes}: a backward in fp8 is not described; accepted: fwd")
    chain = flash.forward(problem, kernel)
    apart = options_of(kernel, Fp8Options).transpose_v is Transpose.SEPARATE
    by_name = dict(chain.tensors)
    launches = []
    for name in "QKV":
        narrow = replace(by_name[name], name=f"{name}_fp8", role=Role.TEMP)
        quantised = replace(narrow, name="V_rows") if name == "V" and apart else narrow
        by_name |= tensors(
            (matrix(problem, name, Role.INPUT, element_bytes=problem.output_type.bytes), quantised, narrow)
        )
        launches.append(_quantise(problem, kernel, name, quantised.name))
    if apart:
        rows = row_domain(problem, kernel.tile.block_k, keys=True)
        launches.append(row_pass("transpose_V", rows, ("V_rows",), ("V_fp8",)))
    main = chain.launches[0]
    reads = tuple(replace(a, tensor=f"{a.tensor}_fp8") if a.tensor in "QKV" else a for a in main.accesses)
    each = (("Q", "per_tile"), ("K", "per_pair"), ("V", "per_pair"))
    scales = (Overhead(f"{n}_scale", Mode.LOAD, inferred_from=SCALE_SOURCE, **{per: SECTOR_BYTES}) for n, per in each)
    main = replace(main, accesses=reads, overheads=(*main.overheads, *scales))
    return Chain(by_name, (*launches, main, *chain.launches[1:]), chain.notes)


def _quantise(problem: AttentionProblem, kernel: Kernel, name: str, target: str) -> Launch:
    keys = name != "Q"
    rows = kernel.tile.block_k if keys else kernel.tile.block_q
    scale = Overhead(f"{name}_scale", Mode.STORE, per_tile=SECTOR_BYTES, inferred_from=SCALE_SOURCE)
    return row_pass(f"quantise_{name}", row_domain(problem, rows, keys=keys), (name,), (target,), overheads=(scale,))

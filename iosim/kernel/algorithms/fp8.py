"""`flash_fp8`: flash attention on narrow operands that are made from 16-bit ones first.

FlashAttention-3's way (arXiv 2407.08608, section 3.3): the problem's type, fp8, is that of its products; Q, K and V
come in the type of its output. A launch each reads one of them, a block of rows a CTA, and writes Q_fp8, K_fp8 or V_fp8
with one fp32 scale a block (block quantisation). The main launch is `flash`'s on those, and reads a scale with each
tile. Products of 8-bit operands need V with its rows contiguous, as the main launch's shared memory holds it transposed
(same section); option `transpose_v` says where that is done.

SageAttention's way (thu-ml/SageAttention; arXiv 2410.02367 and 2411.10958): the problem's type is that of Q, K and V as
they come. `narrow` names the types of the copies, `products` those of the products; several scales may belong to a
tile, V's belong to its columns, and the mean over K's rows, which changes no output, is subtracted before.

NB: scales and means are counted in whole sectors, and are 1 and 0 in the executing reader. Whether quantisation hides
behind what comes before attention (rotary embedding) is not told here: without `flash_fp8`, `flash` in fp8 has none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, replace
from iosim.kernel.algorithms import flash
from iosim.kernel.algorithms.common import load, matrix, row_domain, row_pass
from iosim.kernel.algorithms.registry import algorithm, options_of
from iosim.kernel.kernel import Kernel
from iosim.kernel.launch import SECTOR_BYTES, Chain, Launch, Mode, Overhead, Per, Role, Rows, Tensor, tensors
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import DType, dtype


class Transpose(StrEnum):
    """Where V gets its rows contiguous."""

    IN_KERNEL = "in-kernel"
    """In the main launch's shared memory, which costs no traffic."""
    SEPARATE = "separate"
    """In a launch of its own."""
    BEFORE = "before"
    """In a launch of its own, in 16 bits; the quantisation then goes along columns, which it reads twice, for their
    scale and to round them."""


class Smooth(StrEnum):
    """How the mean over K's rows is subtracted."""

    NONE = "none"
    APART = "apart"
    """By a launch that writes the difference in 16 bits."""
    FUSED = "fused"
    """By the quantisation."""


@dataclass(frozen=True)
class Fp8Options(flash.FlashOptions):
    """Options of `flash`, and what is made of the operands before."""

    transpose_v: Transpose = Transpose.IN_KERNEL
    narrow: tuple[str, ...] = ()
    """Types of what the main launch reads in the place of Q, K and V; none: the problem's."""
    products: str | None = None
    """Type of the products' operands, or two joined by +, of QK^T's and of PV's; None: the problem's."""
    scale_rows: tuple[int, ...] = ()
    """Rows of Q, and of K, that share a scale, which are a CTA's of the quantisation; none: the tile's."""
    smooth_k: Smooth = Smooth.NONE


SCALE_SOURCE = "fp32 scales, read and written in whole sectors"
MEAN_ROWS = 512
"""Rows of K of a CTA of the mean (inferred: PyTorch's reduction over rows has few CTAs a head)."""
MEAN_SOURCE = "K's mean: a row of fp32 partial sums, or a row in 16 bits, a CTA"
DIFFERENCE_VALUES = 512
"""Values of a CTA that subtracts a row from many: 4 for each of 128 threads (PyTorch, CUDALoops.cuh, broadcasts)."""
TRANSPOSED_ROWS = 64
"""Of a CTA (thu-ml/SageAttention @6e447170, csrc/fused/fused.cu, transpose_pad_permute_cuda)."""


@algorithm("flash_fp8", options=Fp8Options)
def plan_fp8(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """What is made of Q, K and V, and the forward; none of a backward."""
    if problem.backward:
        raise InputError(f"`passes` {problem.passes}: a backward in fp8 is not described; accepted: fwd")
    chain, options = flash.forward(problem, kernel), options_of(kernel, Fp8Options)
    copies = _Copies(problem, chain)
    rows_q, rows_k = options.scale_rows or (kernel.tile.block_q, kernel.tile.block_k)
    kind_q, kind_k, kind_v = map(dtype, options.narrow or (problem.dtype,) * 3)
    if options.smooth_k is not Smooth.NONE:
        copies.launches.append(_mean(problem))
    if options.smooth_k is Smooth.APART:
        rows = max(1, DIFFERENCE_VALUES // problem.head_dim)
        copies.make("K", "smooth", "K_smooth", rows=rows, overheads=(_row_of_means(problem, Mode.LOAD, 2),))
    copies.make("Q", "quantise", f"Q_{kind_q.name}", kind_q, rows_q, overheads=(_scale("Q", Mode.STORE),))
    fused = (_row_of_means(problem, Mode.LOAD, 2),) if options.smooth_k is Smooth.FUSED else ()
    copies.make("K", "quantise", f"K_{kind_k.name}", kind_k, rows_k, overheads=(*fused, _scale("K", Mode.STORE)))
    by_column = options.transpose_v is Transpose.BEFORE
    reads = [
        _scale("Q", Mode.LOAD, per_tile=_packet(kernel.tile.block_q, rows_q)),
        _scale("K", Mode.LOAD, per_pair=_packet(kernel.tile.block_k, rows_k)),
    ]
    if kind_v.bytes == problem.output_type.bytes:
        if kind_v.name != problem.dtype:
            copies.make("V", "cast", f"V_{kind_v.name}", kind_v)
    else:
        if by_column:
            copies.make("V", "transpose", "V_rows", rows=TRANSPOSED_ROWS)
        narrow, apart = f"V_{kind_v.name}", options.transpose_v is Transpose.SEPARATE
        scale, times = (_scale("V", Mode.STORE),), 1 + by_column
        copies.make("V", "quantise", "V_rows" if apart else narrow, kind_v, rows_k, overheads=scale, times=times)
        if apart:
            copies.make("V", "transpose", narrow, kind_v, rows_k)
        each = {"per_tile": _packet(problem.head_dim_v, 1)} if by_column else {"per_pair": SECTOR_BYTES}
        reads.append(_scale("V", Mode.LOAD, **each))
    main = chain.launches[0]
    main = replace(
        main,
        accesses=tuple(replace(a, tensor=copies.now.get(a.tensor, a.tensor)) for a in main.accesses),
        overheads=(*main.overheads, *reads),
        work=replace(main.work, dtype=options.products or ""),
    )
    return Chain(copies.tensors, (*copies.launches, main, *chain.launches[1:]), chain.notes)


class _Copies:
    """The launches ahead of the main one, and what each operand is called by `now`."""

    def __init__(self, problem: AttentionProblem, chain: Chain) -> None:
        self.problem = problem
        self.now = {name: name for name in "QKV"}
        self.launches: list[Launch] = []
        self._like = chain.tensors
        self.tensors: dict[str, Tensor] = dict(chain.tensors) | tensors(
            matrix(problem, name, Role.INPUT, element_bytes=problem.output_type.bytes) for name in "QKV"
        )

    def make(
        self, name: str, verb: str, target: str, kind: DType | None = None, rows: int = 128, times: int = 1, **more: Any
    ) -> None:
        """A launch, `verb`_`name`, that reads what the operand is now, `times` times, and writes it as `kind`, or as
        wide as it came, into `target`; `rows` rows a CTA."""
        kind = kind or self.problem.output_type
        self.tensors[target] = replace(self._like[name], name=target, element_bytes=kind.bytes, role=Role.TEMP)
        read = load(self.now[name], Rows.QUERY, Per.QUERY, times=times)
        domain = row_domain(self.problem, rows, keys=name != "Q")
        self.launches.append(row_pass(f"{verb}_{name}", domain, (read,), (target,), **more))
        self.now[name] = target


def _mean(problem: AttentionProblem) -> Launch:
    domain = row_domain(problem, MEAN_ROWS, keys=True)
    return row_pass("mean_K", domain, ("K",), (), overheads=(_row_of_means(problem, Mode.STORE, 4),))


def _row_of_means(problem: AttentionProblem, mode: Mode, each: int) -> Overhead:
    taken = -(-problem.head_dim * each // SECTOR_BYTES) * SECTOR_BYTES
    return Overhead("K_mean", mode, per_tile=taken, inferred_from=MEAN_SOURCE)


def _scale(name: str, mode: Mode, **each: int) -> Overhead:
    """Scales of an operand, `each` in bytes; a sector a work tile where nothing else is said."""
    return Overhead(f"{name}_scale", mode, inferred_from=SCALE_SOURCE, **(each or {"per_tile": SECTOR_BYTES}))


def _packet(block: int, rows: int) -> int:
    """Bytes of the scales of a block, one for so many rows, in whole sectors."""
    return -(-4 * -(-block // rows) // SECTOR_BYTES) * SECTOR_BYTES

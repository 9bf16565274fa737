"""`flash_fp8`: flash attention on narrow operands that are made from 16-bit ones first.

FlashAttention-3's way (arXiv 2407.08608, section 3.3): the problem's type, fp8, is that of its products; Q, K and V
come in the type of its output. A launch each reads one of them, a block of rows per CTA, and writes Q_fp8, K_fp8 or
V_fp8 with one fp32 scale a block (block quantisation). The main launch is `flash`'s on those, and reads a scale with
each tile. Products of 8-bit operands need V with its rows contiguous, as the main launch's shared memory holds it
transposed (same section); option `transpose_v` says where that is done.

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
from iosim.catalog.algorithms import flash, flash_options
from iosim.catalog.algorithms.common import load, matrix, row_domain, row_pass
from iosim.catalog.algorithms.registry import algorithm, options_of
from iosim.kernel.kernel import Kernel, Tile
from iosim.kernel.launch import (
    SECTOR_BYTES,
    Chain,
    Launch,
    Mode,
    Overhead,
    Per,
    Role,
    Rows,
    Tensor,
    tensors,
)
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import DType, dtype


class Transpose(StrEnum):
    IN_KERNEL = "in-kernel"
    """In the main launch's shared memory, which costs no traffic."""
    SEPARATE = "separate"
    """In a launch of its own."""
    BEFORE = "before"
    """In a launch of its own, in 16 bits; the quantisation then goes along columns, which it reads twice, for their
    scale and to round them."""


class Smooth(StrEnum):
    NONE = "none"
    APART = "apart"
    """By a launch that writes the difference in 16 bits."""
    FUSED = "fused"
    """By the quantisation."""


@dataclass(frozen=True)
class Fp8Options(flash_options.FlashOptions):
    transpose_v: Transpose = Transpose.IN_KERNEL
    narrow: tuple[str, ...] = ()
    """Types of what the main launch reads in the place of Q, K and V; none: the problem's."""
    products: str | None = None
    """Type of the products' operands, or two joined by +, of QK^T's and of PV's; None: the problem's."""
    scale_rows: tuple[int, ...] = ()
    """Rows of Q, and of K, that share a scale, which are a CTA's of the quantisation; none: the tile's."""
    smooth_k: Smooth = Smooth.NONE


SCALES, MEANS = (
    "fp32 scales, read and written in whole sectors",
    "K's mean: a row of fp32 partial sums, or one in 16 bits",
)
MEAN_ROWS = 512
"""Rows of K of a CTA of the mean (inferred: PyTorch's reduction over rows has few CTAs per head)."""
DIFFERENCE_VALUES = 512
"""Values of a CTA that subtracts a row from many: 4 for each of 128 threads (PyTorch, CUDALoops.cuh, broadcasts)."""
TRANSPOSED_ROWS = 64
"""Rows of a CTA of the transposition (thu-ml/SageAttention @6e447170, csrc/fused/fused.cu,
transpose_pad_permute_cuda)."""


@algorithm("flash_fp8", options=Fp8Options)
def plan_fp8(problem: AttentionProblem, kernel: Kernel) -> Chain:
    """What is made of Q, K and V, and the forward; none of a backward."""
    if problem.backward:
        raise InputError(
            f"`passes` {problem.passes}: a backward in fp8 is not described; accepted: fwd"
        )
    chain, options, tile = (
        flash.forward(problem, kernel),
        options_of(kernel, Fp8Options),
        kernel.tile,
    )
    copies, width = _Copies(problem, chain), problem.head_dim
    rows_q, rows_k = options.scale_rows or (tile.block_q, tile.block_k)
    kind_q, kind_k, kind_v = map(dtype, options.narrow or (problem.dtype,) * 3)
    # In the order in which the library launches: K's mean, K less its mean, Q, K, V narrow, the main
    # launch, which reads the scales.
    q_scale, k_scale, v_scale = (
        _moved(f"{n}_scale", Mode.STORE, SCALES, per_tile=1) for n in "QKV"
    )
    subtracted = _moved("K_mean", Mode.LOAD, MEANS, per_tile=2 * width)
    fused = (subtracted,) if options.smooth_k is Smooth.FUSED else ()
    _mean_of_keys(copies, options, problem, subtracted, width)
    copies.make("Q", "quantise", f"Q_{kind_q.name}", kind_q, rows_q, q_scale)
    copies.make("K", "quantise", f"K_{kind_k.name}", kind_k, rows_k, *fused, k_scale)
    reads = _scales_read(rows_k, rows_q, tile)
    narrow, by_column = f"V_{kind_v.name}", options.transpose_v is Transpose.BEFORE
    if kind_v.bytes == problem.output_type.bytes:
        if kind_v.name != problem.dtype:
            copies.make("V", "cast", narrow, kind_v)
    else:
        # V may be turned before it is rounded (then rounded by columns), after it, or in shared memory.
        apart = options.transpose_v is Transpose.SEPARATE
        if by_column:
            copies.make("V", "transpose", "V_rows", None, TRANSPOSED_ROWS)
        copies.make(
            "V",
            "quantise",
            "V_rows" if apart else narrow,
            kind_v,
            rows_k,
            v_scale,
            times=1 + by_column,
        )
        if apart:
            copies.make("V", "transpose", narrow, kind_v, rows_k)
        amount = {"per_tile": 4 * problem.head_dim_v} if by_column else {"per_pair": 4}
        reads.append(_moved("V_scale", Mode.LOAD, SCALES, **amount))
    main = _reading_narrow(chain, copies, options, reads)
    return Chain(copies.tensors, (*copies.launches, main, *chain.launches[1:]), chain.notes)


def _scales_read(rows_k: int, rows_q: int, tile: Tile) -> list[Overhead]:
    """Scales of Q and K that the main launch reads."""
    return [
        _moved("Q_scale", Mode.LOAD, SCALES, per_tile=4 * -(-tile.block_q // rows_q)),
        _moved("K_scale", Mode.LOAD, SCALES, per_pair=4 * -(-tile.block_k // rows_k)),
    ]


def _reading_narrow(
    chain: Chain, copies: _Copies, options: Fp8Options, reads: list[Overhead]
) -> Launch:
    """The main launch, which reads the narrow copies and their scales."""
    main = chain.launches[0]
    return replace(
        main,
        accesses=tuple(
            replace(a, tensor=copies.now.get(a.tensor, a.tensor)) for a in main.accesses
        ),
        overheads=(*main.overheads, *reads),
        work=replace(main.work, dtype=options.products or ""),
    )


def _mean_of_keys(
    copies: _Copies,
    options: Fp8Options,
    problem: AttentionProblem,
    subtracted: Overhead,
    width: int,
) -> None:
    """K's mean, and K less its mean where a launch of its own makes it."""
    if options.smooth_k is not Smooth.NONE:
        sums = _moved("K_mean", Mode.STORE, MEANS, per_tile=4 * width)
        rows = row_domain(problem, MEAN_ROWS, keys=True)
        copies.launches.append(row_pass("mean_K", rows, ("K",), (), overheads=(sums,)))
    if options.smooth_k is Smooth.APART:
        copies.make("K", "smooth", "K_smooth", None, max(1, DIFFERENCE_VALUES // width), subtracted)


class _Copies:
    def __init__(self, problem: AttentionProblem, chain: Chain) -> None:
        self.problem, self._like = problem, chain.tensors
        self.now = {name: name for name in "QKV"}
        self.launches: list[Launch] = []
        inputs = (
            matrix(problem, name, Role.INPUT, element_bytes=problem.output_type.bytes)
            for name in "QKV"
        )
        self.tensors: dict[str, Tensor] = dict(chain.tensors) | tensors(inputs)

    def make(
        self,
        name: str,
        verb: str,
        target: str,
        kind: DType | None,
        rows: int = 128,
        *beside: Overhead,
        times: int = 1,
    ) -> None:
        """A launch, `verb`_`name`, that reads what the operand is now, `times` times, and writes it as `kind`, or as
        wide as it came, into `target`; `rows` rows per CTA."""
        width = (kind or self.problem.output_type).bytes
        self.tensors[target] = replace(
            self._like[name], name=target, element_bytes=width, role=Role.TEMP
        )
        read = load(self.now[name], Rows.QUERY, Per.QUERY, times=times)
        domain = row_domain(self.problem, rows, keys=name != "Q")
        self.launches.append(
            row_pass(f"{verb}_{name}", domain, (read,), (target,), overheads=beside)
        )
        self.now[name] = target


def _moved(name: str, mode: Mode, source: str, **amount: int) -> Overhead:
    """Bytes of scales or means, in whole sectors."""
    whole: dict[str, Any] = {per: -(-n // SECTOR_BYTES) * SECTOR_BYTES for per, n in amount.items()}
    return Overhead(name, mode, inferred_from=source, **whole)

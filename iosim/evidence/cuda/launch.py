"""Parameters and grids of the kernels: device addresses in, launches out.

Tensors are contiguous, [batch, heads, seq, head_dim]. The structures mirror those of the CUDA sources field by field.
"""

from __future__ import annotations

import ctypes
import math
from typing import Generic, TypeVar

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.evidence.cuda.compiler import Built, build
from iosim.evidence.cuda.driver import Function, compute_capability, multiprocessors
from iosim.evidence.cuda.spec import (
    DIRECTIONS,
    ORDERS,
    BwdSpec,
    FwdSpec,
    MinimalSpec,
    NaiveSpec,
    Spec,
    one_of,
    shared_bytes_per_cta,
)

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention call. `window` W keeps 0 <= i + (seq_k - seq_q) - j <= W."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    window: int | None = None

    def __post_init__(self) -> None:
        if min(self.batch, self.heads, self.kv_heads, self.seq_q, self.seq_k) < 1:
            raise InputError(
                f"{self} has a size below 1; batch, heads, kv_heads, seq_q and seq_k must be positive"
            )
        if self.heads % self.kv_heads:
            raise InputError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")

    @property
    def all_heads(self) -> int:
        return self.batch * self.heads


class Sections:
    """How CTAs are numbered: `order`, and `section_heads` heads to a section, 0: all of them."""

    order: str
    section_heads: int

    def section(self, all_heads: int) -> int:
        """Heads between which the list of tiles alternates: 1 is query-fastest, all of them head-fastest."""
        return 1 if self.order == "query" else min(self.section_heads or all_heads, all_heads)


@dataclass(frozen=True)
class Order(Sections):
    """How the CTAs of a forward launch are numbered and how each walks its keys."""

    order: str = "query"
    heavy_first: bool = False
    section_heads: int = 0
    direction: str = "ascending"
    splits: int = 1

    def __post_init__(self) -> None:
        one_of("order", self.order, ORDERS)
        one_of("direction", self.direction, tuple(DIRECTIONS))
        if self.splits < 1 or self.section_heads < 0:
            text = f"splits {self.splits}, section_heads {self.section_heads}"
            raise InputError(f"{text}: splits must be at least 1 and section_heads at least 0")


def laid_out(**names: str) -> list[tuple[str, type]]:
    return [
        (name, getattr(ctypes, kind)) for kind, words in names.items() for name in words.split()
    ]


class FwdParams(ctypes.Structure):
    _fields_ = laid_out(
        c_void_p="q k v o lse o_partial lse_partial",
        c_int64="q_row q_head q_batch k_row k_head k_batch v_row v_head v_batch o_row o_head o_batch",
        c_int32="batch heads group seq_q seq_k window section heavy_first direction splits tiles",
        c_float="scale2",
    )


class BwdParams(ctypes.Structure):
    _fields_ = laid_out(
        c_void_p="q k v o d_o lse rows dq_sum dq dk dv",
        c_int32="batch heads group seq_q seq_k window",
        c_float="scale scale2",
    )


class NaiveParams(ctypes.Structure):
    _fields_ = laid_out(
        c_void_p="q k v s p o", c_int32="heads group seq_q seq_k causal", c_float="scale"
    )


class MinimalParams(ctypes.Structure):
    _fields_ = laid_out(c_void_p="q k v o sum top", c_int32="heads n", c_float="scale")


@dataclass(frozen=True)
class Launch:
    function: Function
    grid: tuple[int, int, int]
    threads: int
    parameters: ctypes.Structure
    shared_bytes: int

    def run(self, stream: int = 0) -> None:
        self.function.launch(self.grid, self.threads, self.parameters, stream, self.shared_bytes)


S = TypeVar("S", bound=Spec)


class Loaded(Generic[S]):
    cc: str | None = None
    """The compute capability that it is built for; None: the GPU's."""

    def __init__(self, spec: S, built: Built | None = None) -> None:
        self.spec = spec
        self.built = built or build(spec, self.cc or compute_capability())
        self.load()

    def load(self) -> None:
        """Takes the kernels that are launched again and again out of the build."""

    def function(self, name: str, shared_bytes: int = 0) -> Function:
        return Function(self.built.cubin, name, shared_bytes)

    def scale_of(self, shape: Shape, scale: float | None) -> float:
        """The softmax scale, 1/sqrt(head_dim) unless given; InputError where it or the shape is not computed here."""
        scale = 1 / math.sqrt(shape.head_dim) if scale is None else scale
        built_for = getattr(self.spec, "head_dim", shape.head_dim)
        if shape.head_dim != built_for:
            raise InputError(
                f"head_dim {shape.head_dim} is not the {built_for} that this kernel was built for"
            )
        if scale <= 0:
            raise InputError(f"scale {scale} must be positive")
        mask = getattr(self.spec, "mask", None)
        if mask is not None and (shape.window is not None) != (mask == "window"):
            raise InputError(f"window {shape.window} does not fit a kernel built for mask {mask}")
        return scale


def sizes(shape: Shape) -> dict[str, int]:
    return {
        "heads": shape.heads,
        "group": shape.heads // shape.kv_heads,
        "seq_q": shape.seq_q,
        "seq_k": shape.seq_k,
    }


class Forward(Loaded[FwdSpec]):
    def load(self) -> None:
        self.main = self.function("flash_fwd", self.spec.dynamic_shared_bytes)
        self.combine = self.function("flash_combine") if self.spec.split else None

    def launches(
        self,
        shape: Shape,
        addresses: dict[str, int],
        order: Order | None = None,
        scale: float | None = None,
    ) -> list[Launch]:
        """The launches of one call. Raises InputError where the shape, order or scale is not one that this
        instantiation computes. `addresses`: device addresses of `q k v o lse`, and of `o_partial lse_partial` (fp32)
        with split keys."""
        spec, order = self.spec, order or Order()
        scale = self.scale_of(shape, scale)
        if order.splits > 1 and not spec.split:
            raise InputError(f"splits {order.splits} needs a kernel built with split keys")
        ctas = tiles = -(-shape.seq_q // spec.block_q) * order.splits * shape.all_heads
        d, strides = shape.head_dim, dict[str, int]()
        for name in "qkvo":
            heads, seq = (
                (shape.heads, shape.seq_q) if name in "qo" else (shape.kv_heads, shape.seq_k)
            )
            # strides in elements: the kernels take any layout, tensors here are contiguous
            strides |= {f"{name}_row": d, f"{name}_head": seq * d, f"{name}_batch": heads * seq * d}
        p = FwdParams(
            **addresses,
            **strides,
            **sizes(shape),
            batch=shape.batch,
            window=shape.window or 0,
            section=order.section(shape.all_heads),
            heavy_first=int(order.heavy_first),
            direction=DIRECTIONS[order.direction],
            splits=order.splits,
            tiles=tiles,
            scale2=scale * LOG2_E,
        )
        if spec.persistent:
            # a persistent launch has the CTAs that run at once, each with a list of tiles
            ctas = min(tiles, multiprocessors() * self.main.ctas_per_sm(spec.threads))
        launches = [Launch(self.main, (ctas, 1, 1), spec.threads, p, spec.dynamic_shared_bytes)]
        if self.combine is not None:
            rows = shape.all_heads * shape.seq_q
            # the combine has a warp per row, four per CTA
            launches.append(Launch(self.combine, (-(-rows // 4), 1, 1), 128, p, 0))
        return launches


class Backward(Loaded[BwdSpec]):
    def load(self) -> None:
        shared = self.spec.dynamic_shared_bytes
        self.main, self.rows = self.function("flash_bwd", shared), self.function("flash_bwd_rows")
        self.query = self.function("flash_bwd_query", shared if self.spec.deterministic else 0)

    def launches(
        self, shape: Shape, addresses: dict[str, int], scale: float | None = None
    ) -> list[Launch]:
        """Row sums, then dK and dV (and dQ by atomics), then dQ (converted, or computed where deterministic).
        `addresses`: `q k v o d_o lse dq dk dv`, `rows` (fp32 [batch, heads, seq_q, 2]), and `dq_sum` (fp32, zeroed
        before each call, of dq's shape) unless deterministic."""
        spec, scale = self.spec, self.scale_of(shape, scale)
        p = BwdParams(
            **addresses,
            **sizes(shape),
            batch=shape.batch,
            window=shape.window or 0,
            scale=scale,
            scale2=scale * LOG2_E,
        )
        rows = shape.all_heads * shape.seq_q
        key_blocks = -(-shape.seq_k // spec.block_k)
        main = Launch(
            self.main,
            # a CTA owns keys of one key/value head, and walks the queries of its whole group
            (key_blocks, shape.kv_heads, shape.batch),
            spec.threads,
            p,
            spec.dynamic_shared_bytes,
        )
        first = Launch(self.rows, (-(-rows // 4), 1, 1), 128, p, 0)
        if spec.deterministic:
            # deterministic: dQ is computed again, by CTAs that own query rows as the main ones own keys
            grid = (-(-shape.seq_q // spec.block_k), shape.heads, shape.batch)
            return [
                first,
                main,
                Launch(self.query, grid, spec.threads, p, spec.dynamic_shared_bytes),
            ]
        return [
            first,
            main,
            # else dQ's fp32 sums are converted, 8 elements per thread
            Launch(self.query, (-(-rows * shape.head_dim // (8 * 256)), 1, 1), 256, p, 0),
        ]


class Naive(Loaded[NaiveSpec]):
    def launches(
        self,
        shape: Shape,
        addresses: dict[str, int],
        causal: bool = False,
        scale: float | None = None,
    ) -> list[Launch]:
        """Scores, softmax, values. `addresses`: `q k v s p o`, with s and p of [batch, heads, seq_q, seq_k]."""
        p = NaiveParams(
            **addresses, **sizes(shape), causal=int(causal), scale=self.scale_of(shape, scale)
        )
        q_tiles, k_tiles, heads = -(-shape.seq_q // 64), -(-shape.seq_k // 64), shape.all_heads
        row_bytes = 4 * shape.seq_k
        # 1 KiB of each CTA's shared memory is the driver's
        max_row_bytes = (shared_bytes_per_cta(self.built.cc) or row_bytes + 1_024) - 1_024
        if row_bytes > max_row_bytes:
            why = f"seq_k {shape.seq_k} is too long for naive_softmax, which holds a row"
            raise InputError(f"{why}; at most {max_row_bytes // 4}")
        return [
            Launch(self.function("naive_scores"), (k_tiles, q_tiles, heads), 256, p, 0),
            Launch(
                self.function("naive_softmax", row_bytes),
                (shape.seq_q, heads, 1),
                256,
                p,
                row_bytes,
            ),
            Launch(
                self.function("naive_values"), (-(-shape.head_dim // 64), q_tiles, heads), 256, p, 0
            ),
        ]


class Minimal(Loaded[MinimalSpec]):
    def launches(
        self, shape: Shape, addresses: dict[str, int], scale: float | None = None
    ) -> list[Launch]:
        """`addresses`: fp32 `q k v o sum top`; o and sum zeroed and top filled with -inf before each call."""
        if shape.seq_q % 32 or shape.seq_q != shape.seq_k or shape.heads != shape.kv_heads:
            raise InputError(
                f"minimal takes seq_q = seq_k, a multiple of 32, and heads = kv_heads; not {shape}"
            )
        p = MinimalParams(
            **addresses, heads=shape.heads, n=shape.seq_q, scale=self.scale_of(shape, scale)
        )
        shared = self.spec.dynamic_shared_bytes
        return [
            Launch(
                self.function("minimal_fwd", shared), (shape.batch, shape.heads, 1), 32, p, shared
            )
        ]

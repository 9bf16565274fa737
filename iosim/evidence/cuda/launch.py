"""Parameters and grids of the kernels: device addresses in, launches out.

Tensors are contiguous, [batch, heads, seq, head_dim]. The structures mirror those of the CUDA sources field by field.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

from iosim.base.errors import InputError
from iosim.evidence.cuda.compiler import Built, build
from iosim.evidence.cuda.driver import Function, compute_capability, multiprocessors
from iosim.evidence.cuda.spec import DIRECTIONS, ORDERS, BwdSpec, FwdSpec, MinimalSpec, NaiveSpec, shared_bytes_per_cta

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
            raise InputError(f"{self} has a size below 1; batch, heads, kv_heads, seq_q and seq_k must be positive")
        if self.heads % self.kv_heads:
            raise InputError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")

    @property
    def all_heads(self) -> int:
        return self.batch * self.heads


@dataclass(frozen=True)
class Order:
    """How the CTAs of a forward launch are numbered and how each walks its keys."""

    order: str = "query"
    heavy_first: bool = False
    section_heads: int = 0
    direction: str = "ascending"
    splits: int = 1

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InputError(f"order {self.order} is not built; accepted: {', '.join(ORDERS)}")
        if self.direction not in DIRECTIONS:
            raise InputError(f"direction {self.direction} is not built; accepted: {', '.join(DIRECTIONS)}")
        if self.splits < 1 or self.section_heads < 0:
            text = f"splits {self.splits}, section_heads {self.section_heads}"
            raise InputError(f"{text}: splits must be at least 1 and section_heads at least 0")

    def section(self, all_heads: int) -> int:
        """Heads between which the list of tiles alternates: 1 is query-fastest, all of them head-fastest."""
        if self.order == "query":
            return 1
        return min(self.section_heads or all_heads, all_heads)


def _fields(names: str, kind: type) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class FwdParams(ctypes.Structure):
    """`flash::FwdParams`."""

    _fields_ = (
        _fields("q k v o lse o_partial lse_partial", ctypes.c_void_p)
        + _fields("q_row q_head q_batch k_row k_head k_batch v_row v_head v_batch o_row o_head o_batch", ctypes.c_int64)
        + _fields("batch heads group seq_q seq_k window section heavy_first direction splits tiles", ctypes.c_int32)
        + _fields("scale2", ctypes.c_float)
    )


class BwdParams(ctypes.Structure):
    """`flash::BwdParams`."""

    _fields_ = (
        _fields("q k v o d_o lse rows dq_sum dq dk dv", ctypes.c_void_p)
        + _fields("batch heads group seq_q seq_k window", ctypes.c_int32)
        + _fields("scale scale2", ctypes.c_float)
    )


class NaiveParams(ctypes.Structure):
    """`NaiveParams` of naive.cu."""

    _fields_ = (
        _fields("q k v s p o", ctypes.c_void_p)
        + _fields("heads group seq_q seq_k causal", ctypes.c_int32)
        + _fields("scale", ctypes.c_float)
    )


class MinimalParams(ctypes.Structure):
    """`MinimalParams` of minimal.cu."""

    _fields_ = (
        _fields("q k v o sum top", ctypes.c_void_p)
        + _fields("heads n", ctypes.c_int32)
        + _fields("scale", ctypes.c_float)
    )


@dataclass(frozen=True)
class Launch:
    """One kernel launch, ready to run as often as wanted while its tensors live."""

    function: Function
    grid: tuple[int, int, int]
    threads: int
    parameters: ctypes.Structure
    shared_bytes: int

    def run(self, stream: int = 0) -> None:
        self.function.launch(self.grid, self.threads, self.parameters, stream, self.shared_bytes)


class Forward:
    """A compiled and loaded `flash_fwd`, with its combine kernel where it splits the keys."""

    def __init__(self, spec: FwdSpec, built: Built | None = None) -> None:
        self.spec = spec
        self.built = built or build(spec, compute_capability())
        self.main = Function(self.built.cubin, "flash_fwd", spec.dynamic_shared_bytes)
        self.combine = Function(self.built.cubin, "flash_combine") if spec.split else None

    def launches(
        self, shape: Shape, addresses: dict[str, int], order: Order | None = None, scale: float | None = None
    ) -> list[Launch]:
        """The launches of one call.

        Args:
            addresses: device addresses of `q k v o lse`, and of `o_partial lse_partial` (fp32) with split keys.
            scale: softmax scale, 1/sqrt(head_dim) unless given.

        Raises:
            InputError: the shape, order or scale is not one that this instantiation computes.
        """
        spec, order = self.spec, order or Order()
        scale = 1 / math.sqrt(shape.head_dim) if scale is None else scale
        if shape.head_dim != spec.head_dim:
            raise InputError(f"head_dim {shape.head_dim} is not the {spec.head_dim} that this kernel was built for")
        if scale <= 0:
            raise InputError(f"scale {scale} must be positive")
        if (shape.window is not None) != (spec.mask == "window"):
            raise InputError(f"window {shape.window} does not fit a kernel built for mask {spec.mask}")
        if order.splits > 1 and not spec.split:
            raise InputError(f"splits {order.splits} needs a kernel built with split keys")
        tiles = -(-shape.seq_q // spec.block_q) * order.splits * shape.all_heads
        d = shape.head_dim
        p = FwdParams(
            **addresses,
            q_row=d, q_head=shape.seq_q * d, q_batch=shape.heads * shape.seq_q * d,
            k_row=d, k_head=shape.seq_k * d, k_batch=shape.kv_heads * shape.seq_k * d,
            v_row=d, v_head=shape.seq_k * d, v_batch=shape.kv_heads * shape.seq_k * d,
            o_row=d, o_head=shape.seq_q * d, o_batch=shape.heads * shape.seq_q * d,
            batch=shape.batch, heads=shape.heads, group=shape.heads // shape.kv_heads,
            seq_q=shape.seq_q, seq_k=shape.seq_k, window=shape.window or 0,
            section=order.section(shape.all_heads), heavy_first=int(order.heavy_first),
            direction=DIRECTIONS[order.direction], splits=order.splits, tiles=tiles, scale2=scale * LOG2_E,
        )  # fmt: skip
        ctas = tiles
        if spec.persistent:
            ctas = min(tiles, multiprocessors() * self.main.ctas_per_sm(spec.threads))
        launches = [Launch(self.main, (ctas, 1, 1), spec.threads, p, spec.dynamic_shared_bytes)]
        if self.combine is not None:
            rows = shape.all_heads * shape.seq_q
            launches.append(Launch(self.combine, (-(-rows // 4), 1, 1), 128, p, 0))
        return launches


class Backward:
    """A compiled and loaded `flash_bwd` with its row-sum and dQ kernels."""

    def __init__(self, spec: BwdSpec, built: Built | None = None) -> None:
        self.spec = spec
        self.built = built or build(spec, compute_capability())
        self.main = Function(self.built.cubin, "flash_bwd", spec.dynamic_shared_bytes)
        self.rows = Function(self.built.cubin, "flash_bwd_rows")
        query_bytes = spec.dynamic_shared_bytes if spec.deterministic else 0
        self.query = Function(self.built.cubin, "flash_bwd_query", query_bytes)

    def launches(self, shape: Shape, addresses: dict[str, int], scale: float | None = None) -> list[Launch]:
        """Row sums, then dK and dV (and dQ by atomics), then dQ (converted, or computed where deterministic).

        Args:
            addresses: `q k v o d_o lse dq dk dv`, `rows` (fp32 [batch, heads, seq_q, 2]), and `dq_sum` (fp32, zeroed
                before each call, of dq's shape) unless deterministic.
        """
        spec = self.spec
        if shape.head_dim != spec.head_dim:
            raise InputError(f"head_dim {shape.head_dim} is not the {spec.head_dim} that this kernel was built for")
        scale = 1 / math.sqrt(shape.head_dim) if scale is None else scale
        p = BwdParams(
            **addresses, batch=shape.batch, heads=shape.heads, group=shape.heads // shape.kv_heads, seq_q=shape.seq_q,
            seq_k=shape.seq_k, window=shape.window or 0, scale=scale,
            scale2=scale * LOG2_E,
        )  # fmt: skip
        rows = shape.all_heads * shape.seq_q
        key_blocks = -(-shape.seq_k // spec.block_k)
        main = Launch(self.main, (key_blocks, shape.kv_heads, shape.batch), spec.threads, p, spec.dynamic_shared_bytes)
        first = Launch(self.rows, (-(-rows // 4), 1, 1), 128, p, 0)
        if spec.deterministic:
            blocks = -(-shape.seq_q // spec.block_k)
            grid = (blocks, shape.heads, shape.batch)
            return [first, main, Launch(self.query, grid, spec.threads, p, spec.dynamic_shared_bytes)]
        ctas = -(-rows * shape.head_dim // (8 * 256))
        return [first, main, Launch(self.query, (ctas, 1, 1), 256, p, 0)]


class Naive:
    """The three compiled and loaded kernels of naive attention."""

    def __init__(self, spec: NaiveSpec, built: Built | None = None) -> None:
        self.spec = spec
        self.built = built or build(spec, compute_capability())

    def launches(
        self, shape: Shape, addresses: dict[str, int], causal: bool = False, scale: float | None = None
    ) -> list[Launch]:
        """Scores, softmax, values. `addresses`: `q k v s p o`, with s and p of [batch, heads, seq_q, seq_k]."""
        p = NaiveParams(
            **addresses, heads=shape.heads, group=shape.heads // shape.kv_heads, seq_q=shape.seq_q, seq_k=shape.seq_k,
            causal=int(causal), scale=1 / math.sqrt(shape.head_dim) if scale is None else scale,
        )  # fmt: skip
        q_tiles, k_tiles, heads = -(-shape.seq_q // 64), -(-shape.seq_k // 64), shape.all_heads
        row_bytes = 4 * shape.seq_k
        most = (shared_bytes_per_cta(self.built.cc) or row_bytes + 1_024) - 1_024
        if row_bytes > most:
            raise InputError(
                f"seq_k {shape.seq_k} is too long for naive_softmax, which holds a row; at most {most // 4}"
            )
        cubin = self.built.cubin
        return [
            Launch(Function(cubin, "naive_scores"), (k_tiles, q_tiles, heads), 256, p, 0),
            Launch(Function(cubin, "naive_softmax", row_bytes), (shape.seq_q, heads, 1), 256, p, row_bytes),
            Launch(Function(cubin, "naive_values"), (-(-shape.head_dim // 64), q_tiles, heads), 256, p, 0),
        ]


class Minimal:
    """The compiled and loaded minimal kernel."""

    def __init__(self, spec: MinimalSpec, built: Built | None = None) -> None:
        self.spec = spec
        self.built = built or build(spec, compute_capability())
        self.main = Function(self.built.cubin, "minimal_fwd", spec.dynamic_shared_bytes)

    def launches(self, shape: Shape, addresses: dict[str, int], scale: float | None = None) -> list[Launch]:
        """`addresses`: fp32 `q k v o sum top`; o and sum zeroed and top filled with -inf before each call."""
        if shape.seq_q % 32 or shape.seq_q != shape.seq_k or shape.heads != shape.kv_heads:
            raise InputError(f"minimal takes seq_q = seq_k, a multiple of 32, and heads = kv_heads; not {shape}")
        scale = 1 / math.sqrt(shape.head_dim) if scale is None else scale
        p = MinimalParams(**addresses, heads=shape.heads, n=shape.seq_q, scale=scale)
        return [Launch(self.main, (shape.batch, shape.heads, 1), 32, p, self.spec.dynamic_shared_bytes)]

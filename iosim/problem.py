"""AttentionProblem: what is computed, and nothing about how.

Shapes: Q [batch, heads, seq_q, head_dim], K [batch, kv_heads, seq_k, head_dim], V [batch, kv_heads, seq_k, head_dim_v],
O [batch, heads, seq_q, head_dim_v], LSE [batch, heads, seq_q]. `layout` says how they lie in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, SupportsIndex

from iosim.dtypes import INPUT_DTYPES, DType, dtype
from iosim.errors import InputError
from iosim.mask import IntervalMask

MASKS = ("none", "causal", "window")
PASSES = ("fwd", "bwd", "fwd+bwd")
LAYOUTS = ("bhsd", "bshd")
MAX_SIZE = 1 << 31
MAX_TOKENS = 1 << 24
"""Sequences up to here are counted block by block in fractions of a second."""
MAX_TENSOR_ELEMENTS = 1 << 50
MAX_PAIR_ELEMENTS = 1 << 60
"""seq_q x seq_k x head_dim: what one head moves at most, with blocks of one row, then fits in 64 bits."""


def _whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InputError(f"{name} {value!r} is not a whole number; accepted: {low} to {high}")
    number = value.__index__()
    if not low <= number <= high:
        raise InputError(f"{name} {number} is out of range; accepted: {low} to {high}")
    return number


def _size(name: str, value: object) -> int:
    return _whole(name, value, 1, MAX_TOKENS if name in ("seq_q", "seq_k") else MAX_SIZE)


def _choice(name: str, value: object, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise InputError(f"{name} '{value}' is not known; accepted: {', '.join(accepted)}")
    return str(value)


@dataclass(frozen=True)
class AttentionProblem:
    """One attention call.

    Args:
        batch: sequences.
        heads: query heads; a multiple of `kv_heads` (grouped-query attention; 1 is multi-query).
        seq_q, seq_k: query and key tokens, any size from 1. `seq_k` defaults to `seq_q`.
        head_dim, head_dim_v: columns of Q and K, and of V and O; the second defaults to the first.
        dtype: of the inputs; fp32, tf32, fp16, bf16 or fp8.
        accumulate: type of the running sums, fp32 by default.
        output: type of O and of the gradients; that of the inputs by default, bf16 for fp8.
        mask: "none", "causal" or "window".
        window: keys kept before the diagonal, for "window": 0 <= i + offset - j <= window.
        offset: key index that faces query 0 on the diagonal; by default the last query faces the last key,
            seq_k - seq_q (FlashAttention's convention since 2.1).
        dropout: probability in [0, 1).
        passes: "fwd", "bwd" or "fwd+bwd".
        layout: "bhsd" (PyTorch) or "bshd" (FlashAttention).

    Raises:
        InputError: a value out of range, or two values that contradict each other.
    """

    batch: int = 1
    heads: int = 1
    kv_heads: int | None = None
    seq_q: int = 1
    seq_k: int | None = None
    head_dim: int = 64
    head_dim_v: int | None = None
    dtype: str = "fp16"
    accumulate: str = "fp32"
    output: str | None = None
    mask: str = "none"
    window: int | None = None
    offset: int | None = None
    dropout: float = 0.0
    passes: str = "fwd"
    layout: str = "bhsd"
    interval_mask: IntervalMask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("batch", "heads", "seq_q", "head_dim"):
            put(self, name, _size(name, getattr(self, name)))
        put(self, "kv_heads", self.heads if self.kv_heads is None else _size("kv_heads", self.kv_heads))
        put(self, "seq_k", self.seq_q if self.seq_k is None else _size("seq_k", self.seq_k))
        put(self, "head_dim_v", self.head_dim if self.head_dim_v is None else _size("head_dim_v", self.head_dim_v))
        if self.heads % self.n_kv_heads:
            raise InputError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; accepted: multiples "
                             f"of {self.kv_heads}")  # fmt: skip
        put(self, "dtype", dtype(self.dtype).name)
        if self.dtype not in INPUT_DTYPES:
            raise InputError(f"dtype '{self.dtype}' is no input type; accepted: {', '.join(INPUT_DTYPES)}")
        put(self, "accumulate", dtype(self.accumulate).name)
        if dtype(self.accumulate).bytes < 2 or dtype(self.accumulate).significand_bits < 11:
            raise InputError(f"accumulate '{self.accumulate}' is not possible; accepted: fp32, fp16, fp64")
        if self.output is None:
            put(self, "output", "bf16" if self.dtype == "fp8" else self.dtype)
        put(self, "output", dtype(str(self.output)).name)
        self._check_mask()
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, Real) or not 0 <= float(self.dropout) < 1:
            raise InputError(f"dropout {self.dropout!r} is out of range; accepted: 0 <= dropout < 1")
        put(self, "dropout", float(self.dropout))
        _choice("pass", self.passes, PASSES)
        _choice("layout", self.layout, LAYOUTS)
        largest = self.batch * self.heads * max(self.seq_q * self.head_dim, self.n_seq_k * max(self.head_dim, self.d_v))
        if largest > MAX_TENSOR_ELEMENTS:
            raise InputError(f"batch x heads x tokens x head_dim {largest} is out of range; accepted: up to "
                             f"{MAX_TENSOR_ELEMENTS}")  # fmt: skip
        pairs = self.seq_q * self.n_seq_k * max(self.head_dim, self.d_v)
        if pairs > MAX_PAIR_ELEMENTS:
            raise InputError(f"seq_q x seq_k x head_dim {pairs} is out of range; accepted: up to {MAX_PAIR_ELEMENTS}")

    def _check_mask(self) -> None:
        _choice("mask", self.mask, MASKS)
        if self.mask == "window":
            object.__setattr__(self, "window", _whole("window", self.window, 0, MAX_SIZE))
        elif self.window is not None:
            raise InputError(f"window {self.window} contradicts mask '{self.mask}'; a window goes with mask 'window'")
        if self.offset is not None:
            object.__setattr__(self, "offset", _whole("offset", self.offset, -MAX_SIZE, MAX_SIZE))
            if self.mask == "none":
                raise InputError(f"offset {self.offset} contradicts mask 'none'; it shifts a causal or window diagonal")
        offset = self.n_seq_k - self.seq_q if self.offset is None else self.offset
        made = {
            "none": IntervalMask(),
            "causal": IntervalMask(None, 0, offset),
            "window": IntervalMask(self.window, 0, offset),
        }[self.mask]
        object.__setattr__(self, "interval_mask", made)

    # The three below are what `kv_heads`, `seq_k` and `head_dim_v` hold once defaults are in, with the type said.
    @property
    def n_kv_heads(self) -> int:
        assert self.kv_heads is not None
        return self.kv_heads

    @property
    def n_seq_k(self) -> int:
        assert self.seq_k is not None
        return self.seq_k

    @property
    def d_v(self) -> int:
        assert self.head_dim_v is not None
        return self.head_dim_v

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.n_kv_heads

    @property
    def input_type(self) -> DType:
        return dtype(self.dtype)

    @property
    def output_type(self) -> DType:
        return dtype(str(self.output))

    @property
    def accumulate_type(self) -> DType:
        return dtype(self.accumulate)

    @property
    def forward(self) -> bool:
        return self.passes in ("fwd", "fwd+bwd")

    @property
    def backward(self) -> bool:
        return self.passes in ("bwd", "fwd+bwd")

    def with_(self, **changes: Any) -> AttentionProblem:
        """A copy with some values changed; derived defaults (kv_heads, seq_k, ...) keep the values they have."""
        return replace(self, **changes)

    def matmul_flops(self) -> int:
        """Floating-point operations of the matrix products over kept pairs.

        Forward: 2 pairs (d + d_v). Backward: S and dP again, dV, dQ, dK: 2 pairs (3 d + 2 d_v)
        (arXiv 2307.08691, section 3.1: five products against two, hence the factor 2.5 for d = d_v).
        """
        pairs = self.batch * self.heads * self.interval_mask.kept_pairs(self.seq_q, self.n_seq_k)
        d, dv = self.head_dim, self.d_v
        return pairs * 2 * ((d + dv) * self.forward + (3 * d + 2 * dv) * self.backward)

    def exp_count(self) -> int:
        """Exponentials over kept pairs: one a pair forward, one more when backward recomputes the scores."""
        pairs = self.batch * self.heads * self.interval_mask.kept_pairs(self.seq_q, self.n_seq_k)
        return pairs * (self.forward + self.backward)

    def to_dict(self) -> dict[str, Any]:
        """The `problem` object of the command line's JSON."""
        return {
            "batch": self.batch, "heads": self.heads, "kv_heads": self.kv_heads, "seq_q": self.seq_q,
            "seq_k": self.seq_k, "head_dim": self.head_dim, "head_dim_v": self.head_dim_v, "dtype": self.dtype,
            "accumulate": self.accumulate, "output": self.output, "mask": self.mask, "window": self.window,
            "offset": self.interval_mask.offset if self.mask != "none" else None, "dropout": self.dropout,
            "pass": self.passes, "layout": self.layout,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionProblem:
        """The inverse of `to_dict`. Unknown keys are refused."""
        known = {f.name for f in fields(cls) if f.init}
        given = {("passes" if k == "pass" else str(k)): v for k, v in values.items()}
        extra = sorted(set(given) - known)
        if extra:
            raise InputError(f"problem has unknown keys: {', '.join(extra)}; accepted: {', '.join(sorted(known))}")
        return cls(**given)

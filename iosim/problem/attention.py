"""AttentionProblem: what is computed, and nothing about how.

Shapes: Q [batch, heads, seq_q, head_dim], K [batch, kv_heads, seq_k, head_dim], V [batch, kv_heads, seq_k, head_dim_v],
O [batch, heads, seq_q, head_dim_v], LSE [batch, heads, seq_q]. `layout` says how they lie in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, SupportsIndex

from iosim.base.errors import InputError
from iosim.base.fields import UNSET, Resolved
from iosim.problem.dtypes import INPUT_DTYPES, DType, dtype
from iosim.problem.masks import words
from iosim.problem.masks.mask import IntervalMask, Mask

if TYPE_CHECKING:
    from iosim.problem.masks.blocks import BlockMask

MASKS = (*words.INTERVALS, *words.LISTS)
PASSES = ("fwd", "bwd", "fwd+bwd")
LAYOUTS = ("bhsd", "bshd")
BIASES = ("none", "full", "alibi")
BIAS_SHARED = ("none", "heads", "batch", "both")
MASK_STORAGES = ("implicit", "bool", "additive")
ADDED = {"bias": "none", "bias_shared": None, "bias_dtype": None, "bias_grad": False, "key_padding": False,
         "mask_storage": "implicit", "latent_kv": False, "page_size": None}  # fmt: skip
"""What may be added to the scores or stored beside them, and how the cache lies, with the defaults: a problem's
dictionary names the others."""
BIAS_DTYPES = ("fp32", "fp16", "bf16")
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
        mask: "none", "causal" or "window" (intervals of keys); "butterfly", "strided", "window+global" (kept blocks,
            see `iosim.problem.masks.patterns`) or "blocks" (kept blocks of your own).
        window: keys kept before the diagonal, for "window": 0 <= i + offset - j <= window; to either side, for
            "window+global": |i - j| <= window.
        mask_block: sides of a mask's block, one number or (queries, keys); 128 where the mask does not say.
        mask_stride: in blocks: strided's stride (square root of the blocks by default), butterfly's largest.
        global_tokens: first tokens that see all and are seen by all, for "window+global"; one block by default.
        mask_file, mask_blocks: the blocks of "blocks": a file (`iosim.problem.masks.files`) or a `BlockMask`.
        seq_lens, seq_lens_k: tokens of each of several sequences, packed one after the other (FlashAttention's
            cu_seqlens); seq_q and seq_k are their sums and batch is 1. A causal diagonal ends in each one's corner.
        offset: key index that faces query 0 on the diagonal; by default the last query faces the last key,
            seq_k - seq_q (FlashAttention's convention since 2.1).
        dropout: probability in [0, 1).
        bias: added to the scaled scores. "full": a tensor [batch, heads, seq_q, seq_k] that is read; "alibi": minus a
            slope a head times |i + offset - j| (arXiv 2108.12409), of which only the fp32 slopes are stored.
        bias_shared: which axes of the bias have size 1: "none", "heads", "batch" or "both". By default "none", and
            for the slopes "batch".
        bias_dtype: of a full bias and of an additive mask: fp32, fp16 or bf16; that of the inputs by default (fp32
            for tf32, the output's for fp8).
        bias_grad: the backward makes dBias, of the bias's shape and type.
        key_padding: a mask of one byte a key, [batch, seq_k], besides `mask`.
        mask_storage: how a mask reaches the kernel. "implicit": by its indices, so that tiles it drops are not visited;
            "bool" or "additive": as a tensor [1, 1, seq_q, seq_k] of bytes or of `bias_dtype`; all tiles are visited.
        passes: "fwd", "bwd" or "fwd+bwd".
        layout: "bhsd" (PyTorch) or "bshd" (FlashAttention).
        latent_kv: V is the first head_dim_v columns of K, one latent cache (multi-head latent attention in its
            absorbed form, arXiv 2405.04434, section 2.1).
        page_size: tokens of a page of the key/value cache, found through a block table; None where the keys of a
            sequence lie in one piece.

    Raises:
        InputError: a value out of range, or two values that contradict each other.
    """

    batch: int = 1
    heads: int = 1
    kv_heads: Resolved[int] = UNSET
    seq_q: int = 1
    seq_k: Resolved[int] = UNSET
    head_dim: int = 64
    head_dim_v: Resolved[int] = UNSET
    dtype: str = "fp16"
    accumulate: str = "fp32"
    output: Resolved[str] = UNSET
    mask: str = "none"
    window: int | None = None
    offset: int | None = None
    dropout: float = 0.0
    passes: str = "fwd"
    layout: str = "bhsd"
    latent_kv: bool = False
    page_size: int | None = None
    bias: str = "none"
    bias_shared: str | None = None
    bias_dtype: str | None = None
    bias_grad: bool = False
    key_padding: bool = False
    mask_storage: str = "implicit"
    mask_block: int | tuple[int, int] | None = None
    mask_stride: int | None = None
    global_tokens: int | None = None
    mask_file: str | None = None
    mask_blocks: BlockMask | None = None
    seq_lens: tuple[int, ...] | None = None
    seq_lens_k: tuple[int, ...] | None = None
    pair_mask: Mask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("batch", "heads", "seq_q", "head_dim"):
            put(self, name, _size(name, getattr(self, name)))
        for name, value in words.check_lengths(self, MAX_TOKENS).items():
            put(self, name, value)
        defaults = {
            "kv_heads": 1 if self.latent_kv else self.heads,  # a latent is one for all heads
            "seq_k": self.seq_q,
            "head_dim_v": self.head_dim,
        }
        for name, default in defaults.items():
            value = getattr(self, name)
            put(self, name, default if value is None else _size(name, value))
        if self.heads % self.kv_heads:
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
        put(self, "output", dtype(self.output).name)
        self._check_mask()
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, Real) or not 0 <= float(self.dropout) < 1:
            raise InputError(f"dropout {self.dropout!r} is out of range; accepted: 0 <= dropout < 1")
        put(self, "dropout", float(self.dropout))
        _choice("pass", self.passes, PASSES)
        _choice("layout", self.layout, LAYOUTS)
        self._check_cache()
        self._check_bias()
        columns = max(self.head_dim, self.head_dim_v)
        largest = self.batch * self.heads * max(self.seq_q * self.head_dim, self.seq_k * columns)
        if largest > MAX_TENSOR_ELEMENTS:
            raise InputError(f"batch x heads x tokens x head_dim {largest} is out of range; accepted: up to "
                             f"{MAX_TENSOR_ELEMENTS}")  # fmt: skip
        pairs = self.seq_q * self.seq_k * columns
        if pairs > MAX_PAIR_ELEMENTS:
            raise InputError(f"seq_q x seq_k x head_dim {pairs} is out of range; accepted: up to {MAX_PAIR_ELEMENTS}")

    def _check_mask(self) -> None:
        _choice("mask", self.mask, MASKS)
        put = object.__setattr__
        if self.mask in ("window", "window+global"):
            put(self, "window", _whole("window", self.window, 0, MAX_SIZE))
        elif self.window is not None:
            raise InputError(f"window {self.window} contradicts mask '{self.mask}'; a window goes with mask 'window' "
                             "or 'window+global'")  # fmt: skip
        if self.offset is not None:
            put(self, "offset", _whole("offset", self.offset, -MAX_SIZE, MAX_SIZE))
            if self.mask not in ("causal", "window"):
                raise InputError(f"offset {self.offset} contradicts mask '{self.mask}'; it shifts a causal or window "
                                 "diagonal")  # fmt: skip
        for name, value in words.check_words(self, MAX_TOKENS).items():
            put(self, name, value)
        put(self, "pair_mask", words.make_mask(self))

    def _check_cache(self) -> None:
        if not isinstance(self.latent_kv, bool):
            raise InputError(f"latent_kv {self.latent_kv!r} is no truth value; accepted: True, False")
        if self.latent_kv and self.head_dim_v > self.head_dim:
            raise InputError(f"head_dim_v {self.head_dim_v} contradicts latent_kv: V is part of K's columns; "
                             f"accepted: 1 to {self.head_dim} (head_dim)")  # fmt: skip
        if self.page_size is not None:
            object.__setattr__(self, "page_size", _whole("page_size", self.page_size, 1, MAX_TOKENS))
        for name, given in (("latent_kv", self.latent_kv), ("page_size", self.page_size)):
            if given and self.passes != "fwd":
                raise InputError(f"{name} {given} contradicts pass '{self.passes}': a cache serves inference; accepted "
                                 "with it: fwd")  # fmt: skip

    def _check_bias(self) -> None:
        _choice("bias", self.bias, BIASES)
        _choice("mask_storage", self.mask_storage, MASK_STORAGES)
        for name in ("bias_grad", "key_padding"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} {getattr(self, name)!r} is no truth value; accepted: True, False")
        if self.bias_shared is not None:
            _choice("bias_shared", self.bias_shared, ("none", "batch") if self.bias == "alibi" else BIAS_SHARED)
            if self.bias == "none":
                raise InputError(f"bias_shared '{self.bias_shared}' contradicts bias 'none'; accepted with it: bias "
                                 "full or alibi")  # fmt: skip
        if self.bias_grad and self.bias != "full":
            raise InputError(f"bias_grad contradicts bias '{self.bias}'; accepted with it: bias full")
        if self.mask_storage != "implicit" and self.mask == "none":
            raise InputError(f"mask_storage '{self.mask_storage}' contradicts mask 'none'; accepted: implicit")
        if self.bias_dtype is None:
            return
        object.__setattr__(self, "bias_dtype", dtype(self.bias_dtype).name)
        _choice("bias_dtype", self.bias_dtype, BIAS_DTYPES)
        if self.bias != "full" and self.mask_storage != "additive":
            raise InputError(f"bias_dtype '{self.bias_dtype}' has nothing to be the type of; accepted with it: bias "
                             "full or mask_storage additive")  # fmt: skip

    @property
    def interval_mask(self) -> IntervalMask:
        """The mask, where it is one interval of keys a query row.

        Raises:
            InputError: it is not.
        """
        if not isinstance(self.pair_mask, IntervalMask):
            what = f"mask '{self.mask}'" if self.seq_lens is None else "seq_lens"
            raise InputError(f"{what} is not possible here; accepted: mask none, causal or window, one length a batch")
        return self.pair_mask

    @property
    def mask_text(self) -> str:
        """The mask in words, with what a list of blocks or packed sequences amount to."""
        return words.mask_text(self)

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def input_type(self) -> DType:
        return dtype(self.dtype)

    @property
    def output_type(self) -> DType:
        return dtype(self.output)

    @property
    def bias_type(self) -> DType:
        """Type of a full bias and of an additive mask."""
        if self.bias_dtype is not None:
            return dtype(self.bias_dtype)
        return self.output_type if self.dtype == "fp8" else self.input_type

    @property
    def terms(self) -> dict[str, str]:
        """What the problem asks for besides Q, K, V and dropout: name -> the option that asks for it."""
        asked = {
            "bias": ("--bias full", self.bias == "full"),
            "alibi": ("--bias alibi", self.bias == "alibi"),
            "bias_grad": ("--bias-grad", self.bias_grad and self.backward),
            "key_padding": ("--key-padding", self.key_padding),
            "mask_tensor": (f"--mask-storage {self.mask_storage}", self.mask_storage != "implicit"),
            "latent_kv": ("--latent-kv", self.latent_kv),
            "page_size": (f"--page-size {self.page_size}", self.page_size is not None),
            "block_lists": (f"--mask {self.mask}", self.mask in words.LISTS),
            "seq_lens": ("--seq-lens", self.seq_lens is not None),
        }
        return {name: option for name, (option, there) in asked.items() if there}

    @property
    def shares_rows(self) -> bool:
        """Whether a tile may hold the rows of several heads: not where each head, or token, has a bias or mask row."""
        return self.bias == "none" and self.mask_storage == "implicit"

    @property
    def bias_heads(self) -> int:
        """Heads that the bias tells apart: the query heads, or 1 where all share it."""
        return 1 if self.bias_shared in ("heads", "both") else self.heads

    @property
    def bias_batch(self) -> int:
        """Sequences that the bias tells apart."""
        shared = self.bias_shared or ("batch" if self.bias == "alibi" else "none")
        return 1 if shared in ("batch", "both") else self.batch

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
        pairs = self.batch * self.heads * self.pair_mask.kept_pairs(self.seq_q, self.seq_k)
        d, dv = self.head_dim, self.head_dim_v
        return pairs * 2 * ((d + dv) * self.forward + (3 * d + 2 * dv) * self.backward)

    def exp_count(self) -> int:
        """Exponentials over kept pairs: one a pair forward, one more when backward recomputes the scores."""
        pairs = self.batch * self.heads * self.pair_mask.kept_pairs(self.seq_q, self.seq_k)
        return pairs * (self.forward + self.backward)

    def to_dict(self) -> dict[str, Any]:
        """The `problem` object of the command line's JSON."""
        return {
            "batch": self.batch, "heads": self.heads, "kv_heads": self.kv_heads, "seq_q": self.seq_q,
            "seq_k": self.seq_k, "head_dim": self.head_dim, "head_dim_v": self.head_dim_v, "dtype": self.dtype,
            "accumulate": self.accumulate, "output": self.output, "mask": self.mask, "window": self.window,
            "offset": words.said_offset(self), "dropout": self.dropout,
            "pass": self.passes, "layout": self.layout,
            **{n: value for n, default in ADDED.items() if (value := getattr(self, n)) != default},
            **words.to_dict(self),
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

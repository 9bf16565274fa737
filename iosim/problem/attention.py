"""AttentionProblem: what is computed, and nothing about how.

Shapes: Q [batch, heads, seq_q, head_dim], K [batch, kv_heads, seq_k, head_dim], V [batch, kv_heads, seq_k, head_dim_v],
O [batch, heads, seq_q, head_dim_v], LSE [batch, heads, seq_q]. `layout` says how they lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from iosim.base.errors import InputError
from iosim.base.fields import UNSET, Resolved, documented
from iosim.base.records import dataclass, field, replace
from iosim.base.units import some
from iosim.problem.dtypes import DType, dtype
from iosim.problem.fields import FIELDS, LIST_MASKS, ProblemFields
from iosim.problem.masks import words
from iosim.problem.masks.mask import IntervalMask, Mask

MAX_TENSOR_ELEMENTS = 1 << 50
BYTES_OF_16_BITS = 2
MX_CACHE = "mxfp8"  # fp8 with a scale of a byte for every MX_VALUES values
MX_VALUES = 32
MAX_PAIR_ELEMENTS = 1 << 60
"""seq_q x seq_k x head_dim: what one head moves at most, with blocks of one row, then fits in 64 bits."""


@dataclass(frozen=True)
class AttentionProblem(ProblemFields):
    """One attention call; fields that are left out get the defaults that stand with them.

    Fields:

    Raises:
        InputError: a value out of range, or two values that contradict each other.
    """

    if TYPE_CHECKING:  # an inherited field is checked as what it is given as, not as what it holds
        kv_heads: Resolved[int] = UNSET
        seq_k: Resolved[int] = UNSET
        head_dim_v: Resolved[int] = UNSET
        output: Resolved[str] = UNSET
    pair_mask: Mask = field(init=False, repr=False, compare=False)
    """The mask, as what keeps which pairs of query and key."""

    def __post_init__(self) -> None:
        for name, about in FIELDS.items():
            self._put(name, about.check(getattr(self, name)))
        self._put_all(words.check_lengths(self))
        for name, about in FIELDS.items():
            if about.default_of is not None and getattr(self, name) is None:
                self._put(name, about.default_of(self))
        if self.heads % self.kv_heads:
            hint = f"accepted: multiples of {self.kv_heads}"
            raise InputError(
                f"`heads` {self.heads} is not a multiple of `kv_heads` {self.kv_heads}; {hint}"
            )
        self._check_mask()
        self._check_cache()
        self._check_bias()
        columns = max(self.head_dim, self.head_dim_v)
        largest = self.batch * self.heads * max(self.seq_q * self.head_dim, self.seq_k * columns)
        if largest > MAX_TENSOR_ELEMENTS:
            accepted = f"up to {MAX_TENSOR_ELEMENTS}"
            raise InputError(
                f"`batch` x `heads` x tokens x `head_dim` {largest} is out of range; accepted: {accepted}"
            )
        pairs = self.seq_q * self.seq_k * columns
        if pairs > MAX_PAIR_ELEMENTS:
            accepted = f"up to {MAX_PAIR_ELEMENTS}"
            raise InputError(
                f"`seq_q` x `seq_k` x `head_dim` {pairs} is out of range; accepted: {accepted}"
            )

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _put_all(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._put(name, value)

    def _check_mask(self) -> None:
        self._put_all(words.check_window(self))
        if self.offset is not None and self.mask not in ("causal", "window"):
            hint = "it shifts a causal or window diagonal"
            raise InputError(f"`offset` {self.offset} contradicts `mask` '{self.mask}'; {hint}")
        self._put_all(words.check_words(self))
        self._put("pair_mask", words.make_mask(self))

    def _check_cache(self) -> None:
        if self.latent_kv and self.head_dim_v > self.head_dim:
            why = f"V is part of K's columns; accepted: 1 to {self.head_dim} (`head_dim`)"
            raise InputError(f"`head_dim_v` {self.head_dim_v} contradicts `latent_kv`: {why}")
        if self.cache_dtype is not None and self.input_type.bytes != BYTES_OF_16_BITS:
            hint = "accepted with it: fp16, bf16"
            raise InputError(
                f"`cache_dtype` {self.cache_dtype} contradicts `dtype` '{self.dtype}'; {hint}"
            )
        if self.cache_dtype == MX_CACHE and self.compress_ratio is None:
            raise InputError(
                f"`cache_dtype` {MX_CACHE} needs `compress_ratio`; accepted without it: fp8"
            )
        for name in ("latent_kv", "page_size", "cache_dtype", "shared_prefix"):
            value = getattr(self, name)
            if value and self.passes != "fwd":
                why = "a cache serves inference; accepted with it: fwd"
                raise InputError(f"`{name}={value}` contradicts `passes` '{self.passes}': {why}")
        wide = () if self.widens or self.compress_ratio is not None else (("cache_dtype", "top_k"),)
        needed = (
            ("top_k", "latent_kv"),
            ("compress_ratio", "latent_kv"),
            ("index_heads", "top_k"),
            *wide,
        )
        for name, needs in needed:
            if getattr(self, name) is not None and not getattr(self, needs):
                raise InputError(
                    f"`{name}` {getattr(self, name)} needs `{needs}`; accepted with it alone"
                )
        self._check_gathered()
        if self.compress_ratio is not None and (self.offset is not None or self.seq_q > self.seq_k):
            hint = f"accepted with it: `seq_q` up to {self.seq_k} (`seq_k`), no `offset`"
            raise InputError(
                f"`compress_ratio` {self.compress_ratio} needs queries that are the last tokens; {hint}"
            )
        self._check_shared_prefix()

    def _check_gathered(self) -> None:
        """Raises InputError: a mask or lengths that picked or compressed keys do not go with."""
        by, masks = (
            ("top_k", ("none", "causal"))
            if self.compress_ratio is None
            else ("compress_ratio", ("window",))
        )
        if self.gathers and (
            self.mask not in masks or self.window_right or self.seq_lens is not None
        ):
            field_text = (
                f"`window_right` {self.window_right}"
                if self.window_right
                else f"`mask` {self.mask}"
            )
            field_text = field_text if self.seq_lens is None else "`seq_lens`"
            hint = f"accepted with it: mask {' or '.join(masks)}, sequences of one length"
            raise InputError(f"`{by}` {getattr(self, by)} contradicts {field_text}; {hint}")

    def _check_shared_prefix(self) -> None:
        """Raises InputError: a prefix longer than a sequence, or under a mask that does not keep all of it."""
        if self.shared_prefix is not None:
            shortest = min(k for _, k in self.sequences)
            if self.shared_prefix > shortest:
                why = f"is longer than a sequence; accepted: up to {shortest}"
                raise InputError(f"`shared_prefix` {self.shared_prefix} {why}")
            if self.mask not in ("none", "causal") or self.offset is not None:
                mask_text = (
                    f"`mask` {self.mask}" if self.offset is None else f"`offset` {self.offset}"
                )
                raise InputError(
                    f"`shared_prefix` {self.shared_prefix} contradicts {mask_text}; accepted: none, causal"
                )

    def _check_bias(self) -> None:
        if self.bias_shared is not None:
            if self.bias == "none":
                hint = "accepted with it: bias full or alibi"
                raise InputError(
                    f"`bias_shared` '{self.bias_shared}' contradicts `bias` 'none'; {hint}"
                )
            if self.bias == "alibi" and self.bias_shared not in ("none", "batch"):
                more = "which has a slope a head; accepted with it: none, batch"
                raise InputError(
                    f"`bias_shared` '{self.bias_shared}' contradicts `bias` 'alibi', {more}"
                )
        if self.bias_grad and self.bias != "full":
            raise InputError(
                f"`bias_grad=True` contradicts `bias` '{self.bias}'; accepted with it: bias full"
            )
        if self.sinks and self.backward:
            why = "their gradient is unknown; accepted with it: fwd"
            raise InputError(f"`sinks=True` contradicts `passes` '{self.passes}': {why}")
        if self.mask_storage != "implicit" and self.mask == "none":
            raise InputError(
                f"`mask_storage` '{self.mask_storage}' contradicts `mask` 'none'; accepted: implicit"
            )
        if self.bias_dtype is not None and self.bias != "full" and self.mask_storage != "additive":
            hint = "accepted with it: `bias` full or `mask_storage` additive"
            raise InputError(
                f"`bias_dtype` '{self.bias_dtype}' has nothing to be the type of; {hint}"
            )

    @property
    def interval_mask(self) -> IntervalMask:
        """The mask, where it is one interval of keys a query row. Raises InputError: it is not."""
        if not isinstance(self.pair_mask, IntervalMask):
            subject = f"mask '{self.mask}'" if self.seq_lens is None else "seq_lens"
            raise InputError(
                f"{subject} is not possible here; accepted: mask none, causal or window, one length a batch"
            )
        return self.pair_mask

    @property
    def mask_text(self) -> str:
        """The mask in words, with what a list of blocks or packed sequences amount to."""
        return words.mask_text(self, self.pair_mask)

    @property
    def line(self) -> str:
        """The problem in one line of words."""
        kv = "" if self.group == 1 else f" ({self.kv_heads} key/value)"
        tokens = "" if self.seq_q == self.seq_k else f"{self.seq_q:,} x "
        width = (
            f"{self.head_dim}"
            if self.head_dim == self.head_dim_v
            else f"{self.head_dim}/{self.head_dim_v}"
        )
        return (
            f"batch {self.batch}, {some(self.heads, 'head')}{kv}, {tokens}{some(self.seq_k, 'token')}, "
            f"head_dim {width}, {self.dtype}, mask {self.mask_text}, {self.passes}"
        )

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """(query tokens, key tokens) of every sequence."""
        if self.seq_lens is None or self.seq_lens_k is None:
            return ((self.seq_q, self.seq_k),) * self.batch
        return tuple(zip(self.seq_lens, self.seq_lens_k, strict=True))

    @property
    def longest_q(self) -> int:
        """Query tokens of the sequence that has most; 1 while all generate a token."""
        return self.seq_q if self.seq_lens is None else max(self.seq_lens)

    @property
    def longest_k(self) -> int:
        """Key tokens of the sequence that has most."""
        return self.seq_k if self.seq_lens_k is None else max(self.seq_lens_k)

    @property
    def sequence_count(self) -> int:
        """Sequences of the call, packed ones counted each."""
        return self.batch if self.seq_lens is None else len(self.seq_lens)

    @property
    def keys_in_memory(self) -> int:
        """Keys of all sequences, those that they share once."""
        return sum(keys for _, keys in self.sequences) - (self.sequence_count - 1) * (
            self.shared_prefix or 0
        )

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def input_type(self) -> DType:
        """Type of Q, K and V."""
        return dtype(self.dtype)

    @property
    def cache_type(self) -> DType:
        """Type of K and V as they lie in memory."""
        return dtype(self.cache_dtype) if self.cache_dtype and self.widens else self.input_type

    @property
    def widens(self) -> bool:
        """True where K and V have fewer bits a value than Q; a latent cache in fp8 has several types."""
        return self.cache_dtype is not None and not self.latent_kv

    @property
    def output_type(self) -> DType:
        """Type of O and of the gradients."""
        return dtype(self.output)

    @property
    def bias_type(self) -> DType:
        """Type of a full bias and of an additive mask."""
        if self.bias_dtype is not None:
            return dtype(self.bias_dtype)
        return self.output_type if self.dtype == "fp8" else self.input_type

    @property
    def terms(self) -> dict[str, str]:
        """What the problem asks for besides Q, K, V and dropout: name -> the field and value that ask for it."""
        requested = ((name, of) for name, (of, is_present) in TERMS.items() if is_present(self))
        return {name: f"{of}={FIELDS[of].text(getattr(self, of))}" for name, of in requested}

    @property
    def shares_rows(self) -> bool:
        """True where a tile may hold the rows of several heads: not where each head, or token, has a bias or mask
        row."""
        return self.bias == "none" and self.mask_storage == "implicit"

    @property
    def bias_heads(self) -> int:
        """Heads that the bias tells apart: the query heads, or 1 where all share it."""
        return 1 if self.bias_shared in ("heads", "both") else self.heads

    @property
    def bias_batch(self) -> int:
        """Sequences that the bias tells apart."""
        # ALiBi's slopes are a head's own and the same in every sequence (arXiv 2108.12409).
        shared = self.bias_shared or ("batch" if self.bias == "alibi" else "none")
        return 1 if shared in ("batch", "both") else self.batch

    @property
    def forward(self) -> bool:
        """True where the forward pass is asked for."""
        return self.passes in ("fwd", "fwd+bwd")

    @property
    def backward(self) -> bool:
        """True where the backward pass is asked for."""
        return self.passes in ("bwd", "fwd+bwd")

    def with_(self, **changes: Any) -> AttentionProblem:
        """A copy with some values changed; derived defaults (kv_heads, seq_k, ...) keep the values they have."""
        return replace(self, **changes)

    @property
    def attended_keys(self) -> int:
        """Keys that a query attends to at most: all, or as many as it picks, and those of a window beside compressed
        ones."""
        # Beside compressed keys a window of plain tokens is always attended to (DeepSeek-V4's sparse layers).
        picked = self.scored_keys if self.top_k is None else min(self.scored_keys, self.top_k)
        return picked if self.compress_ratio is None else picked + self.shown_tokens

    @property
    def gathers(self) -> bool:
        """True where queries find keys by lists."""
        return self.top_k is not None or self.compress_ratio is not None

    @property
    def scored_keys(self) -> int:
        """Keys of which queries may pick: all, or the compressed ones."""
        if self.compress_ratio is None:
            return self.seq_k
        return self.seq_k // self.compress_ratio if self.compress_ratio else 0

    @property
    def shown_tokens(self) -> int:
        """Tokens of a query's window beside compressed keys."""
        return min(self.seq_k, (self.window or 0) + 1)

    @property
    def scored_mask(self) -> IntervalMask:
        """Which keys an indexer scores."""
        mask = self.interval_mask
        if self.compress_ratio is None:
            return mask
        return IntervalMask(None, 0, mask.offset, max(1, self.compress_ratio))

    @property
    def latent_row_bytes(self) -> int:
        """Bytes of a token in a latent cache: its columns, or V's in fp8 with a scale for every 128 and the others in
        16 bits (deepseek-ai/FlashMLA @9241ae3e, flash_mla/flash_mla_interface.py); of a compressed one those without
        positions in fp8, with a byte of scale for every 64 and one of padding (@4855c772, csrc/api/sparse_decode.h:
        bytes_per_token), in mxfp8 all, with a byte of scale for every 32 (@ddedb079, README.md)."""
        if self.cache_dtype is None:
            return self.head_dim * self.input_type.bytes
        if self.cache_dtype == MX_CACHE:
            return self.head_dim + -(-self.head_dim // MX_VALUES)
        if self.compress_ratio is not None:
            turned = self.head_dim // 8
            plain = self.head_dim - turned
            return plain + 2 * turned + -(-plain // 64) + 1
        return (
            self.head_dim_v + 4 * -(-self.head_dim_v // 128) + 2 * (self.head_dim - self.head_dim_v)
        )

    def matmul_flops(self) -> int:
        """Floating-point operations of the matrix products over kept pairs, of those picked where keys are, beside the
        indexer's over all. Forward: 2 pairs (d + d_v). Backward: S and dP again, dV, dQ, dK: 2 pairs (3 d + 2 d_v)
        (arXiv 2307.08691, section 3.1: five products against two, hence the factor 2.5 for d = d_v)."""
        pairs = self.batch * self.heads * self.pair_mask.kept_pairs(self.seq_q, self.attended_keys)
        d, dv = self.head_dim, self.head_dim_v
        index = 0
        if self.index_heads and self.top_k and self.scored_keys > self.top_k:
            scored = (
                self.batch
                * self.index_heads
                * self.scored_mask.kept_pairs(self.seq_q, self.scored_keys)
            )
            index = 2 * scored * self.index_dim
        return index + pairs * 2 * ((d + dv) * self.forward + (3 * d + 2 * dv) * self.backward)

    def exp_count(self) -> int:
        """Exponentials over kept pairs: one a pair forward, one more when backward recomputes the scores."""
        pairs = self.batch * self.heads * self.pair_mask.kept_pairs(self.seq_q, self.attended_keys)
        return pairs * (self.forward + self.backward)

    def to_dict(self) -> dict[str, Any]:
        """The `problem` object of the command line's JSON: sizes, types, mask and pass always, what may be added to
        them where it is there."""
        written = {
            about.key: _plain(getattr(self, name))
            for name, about in FIELDS.items()
            if about.always or getattr(self, name) != about.default
        }
        return written | {"offset": words.said_offset(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionProblem:
        names = {about.key: name for name, about in FIELDS.items()} | {
            name: name for name in FIELDS
        }
        unknown = sorted(str(key) for key in values if key not in names)
        if unknown:
            raise InputError(
                f"problem has unknown keys: {', '.join(unknown)}; accepted: {', '.join(sorted(names))}"
            )
        return cls(**{names[key]: value for key, value in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return (
        value
        if value is None or isinstance(value, str | int | float)
        else words.blocks_to_dict(value)
    )


AttentionProblem.__doc__ = documented(AttentionProblem)
TERMS: Mapping[str, tuple[str, Callable[[AttentionProblem], bool]]] = {
    "bias": ("bias", lambda p: p.bias == "full"),
    "alibi": ("bias", lambda p: p.bias == "alibi"),
    "bias_grad": ("bias_grad", lambda p: p.bias_grad and p.backward),
    "key_padding": ("key_padding", lambda p: p.key_padding),
    "mask_tensor": ("mask_storage", lambda p: p.mask_storage != "implicit"),
    "latent_kv": ("latent_kv", lambda p: p.latent_kv),
    "page_size": ("page_size", lambda p: p.page_size is not None),
    "shared_prefix": ("shared_prefix", lambda p: p.shared_prefix is not None),
    "block_lists": ("mask", lambda p: p.mask in LIST_MASKS),
    "looks_ahead": ("window_right", lambda p: p.mask == "window" and p.window_right is not None),
    "seq_lens": ("seq_lens", lambda p: p.seq_lens is not None),
    "sinks": ("sinks", lambda p: p.sinks),
    "top_k": ("top_k", lambda p: p.top_k is not None),
    "indexer": ("index_heads", lambda p: p.index_heads is not None),
    "compressed": ("compress_ratio", lambda p: p.compress_ratio is not None),
    "cache_dtype": ("cache_dtype", lambda p: p.cache_dtype is not None),
}
"""What a problem may ask for besides Q, K, V and dropout: the field that asks for it, and whether it does."""

"""Kinds of attention layers, and a model as a stack of them.

A layer kind knows its problem for so many queries and keys, and what its key/value cache holds. A window bounds what a
query sees, itself included, as transformers counts it (masking_utils.sliding_window_overlay).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, field, plain, replace
from iosim.base.units import bytes_text, some
from iosim.catalog.algorithms.states import STATE_BYTES
from iosim.problem.attention import AttentionProblem
from iosim.problem.dtypes import dtype

ABSORBED_TOKENS = 8
"""So many queries a sequence, against more keys, are a step of decoding: MLA then works on the latent cache itself
(arXiv 2405.04434, section 2.1), and above it on keys and values expanded from it."""
STATE_INPUTS = ("bf16", "fp16")
"""Types of the inputs of layers that keep a state."""
INDEX_SCALE_BYTES = 4
"""Bytes of the fp32 scale of every 128 columns of an index key, which is kept in fp8 (vLLM,
vllm/model_executor/models/deepseek_v2.py, DeepseekV32IndexerCache)."""
COMPRESSED_CACHE = "fp8"
"""Type of a cache of compressed keys where none is said: the only one that steps of decoding read (FlashMLA @4855c772,
csrc/api/sparse_decode.h)."""
INDEXED_PAGE = 64
"""Tokens of a page of the cache (deepseek-ai/DeepGEMM, csrc/apis/attention.hpp: block_kv of fp8_paged_mqa_logits)."""


POSITIONS = (
    "n_positions",
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "n_ctx",
)
"""Keys of a config under which the number of positions stands."""


def index_token_bytes(columns: int) -> int:
    """Bytes of a token in the indexer's cache."""
    return columns + INDEX_SCALE_BYTES * ceil(columns / 128)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: the ranks and widths of its projections (arXiv 2405.04434, section 2.1).

    Args:
        kv_rank: columns that keys and values share in the cache.
        rope: columns of Q and K that carry positions; in the cache once for all heads.
        nope: the other columns of Q and K.
        q_rank: columns that queries pass through; None where they are projected at once.
        index_heads, index_dim: heads and columns of the indexer that picks the top keys; 0 where there is none.
    """

    kv_rank: int
    rope: int
    nope: int
    q_rank: int | None = None
    index_heads: int = 0
    index_dim: int = 0

    @property
    def width(self) -> int:
        """Columns of a token in the cache."""
        return self.kv_rank + self.rope

    def to_dict(self) -> dict[str, Any]:
        return {"kv_rank": self.kv_rank, "q_rank": self.q_rank} | vars(self)


@dataclass(frozen=True)
class LayerKind:
    """Layers of a model that attend alike.

    Args:
        name: full, sliding, chunked, latent, sparse latent, or global.
        count: of them.
        heads, kv_heads, head_dim, head_dim_v: of one layer, on one GPU.
        causal: whether a token sees no later ones.
        window: tokens that a query sees at most, itself included; on both sides together where not causal.
        chunk: a query sees the tokens of its own chunk of so many alone.
        top_k: keys that a query is given, of those it might see.
        compress: tokens that a key beyond the window stands for (0: there are none), where all layers of the model hold
            one vector a key (DeepSeek-V4).
        latent: where keys and values come from one latent vector a token.
        sinks: a learned number per head joins each softmax.
        alibi: slopes on the scores, one a head.
        shares: whether it uses the keys and values of an earlier layer, and keeps none of its own.
        state_kernel: the catalog kernel of layers that keep a state in place of keys and values, whatever is asked for;
            None for softmax attention.
    """

    name: str
    count: int
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    top_k: int | None = None
    compress: int | None = None
    sinks: bool = False
    alibi: bool = False
    latent: Latent | None = None
    shares: bool = False
    state_kernel: str | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            hint = f"accepted: multiples of {self.kv_heads}"
            raise InputError(
                f"`heads` {self.heads} is not a multiple of `kv_heads` {self.kv_heads}; {hint}"
            )

    def absorbed(self, queries: int, keys: int, passes: str = "fwd") -> bool:
        """True where a call works on the latent cache itself."""
        return (
            self.latent is not None
            and passes == "fwd"
            and queries < keys
            and queries <= ABSORBED_TOKENS
        )

    def problem(
        self, queries: int, keys: int, *, latent_kv: bool = False, **fields: Any
    ) -> AttentionProblem:
        """One layer's call: `queries` of a sequence against `keys`, their own the last of them. Raises InputError:
        values out of range, or that contradict each other. Keys that no query sees, since a window or a chunk has left
        them behind, are not there: a cache need not hold them. `latent_kv` asks for MLA's absorbed form; `fields` are
        the problem's others."""
        shape: dict[str, Any] = plain(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
        )
        # 16-bit inputs and no pages, whatever the caches of the others are.
        if self.state_kernel is not None:
            dtype = fields.get("dtype") if fields.get("dtype") in STATE_INPUTS else STATE_INPUTS[0]
            without = ("page_size", "cache_dtype")
            fields = {name: value for name, value in fields.items() if name not in without}
            fields["dtype"], latent_kv = dtype, False
        compressed = self.compress is not None
        absorbed = (
            latent_kv or compressed or self.absorbed(queries, keys, fields.get("passes", "fwd"))
        )
        if self.latent is not None and absorbed:
            shape |= self._absorbed_shape(self.latent, fields)
        if self.alibi:
            shape["bias"] = "alibi"
        if self.chunk is not None:
            return self._chunked(queries, keys, shape | fields)
        shape |= self._mask_shape(keys)
        if compressed:
            fields["cache_dtype"] = fields.get("cache_dtype") or COMPRESSED_CACHE
        # Keys that even the first query cannot see are gone; transformers counts the query itself in the
        # window, iosim does not.
        elif self.causal and self.window is not None:
            keys = min(keys, self.window - 1 + queries)
        return AttentionProblem(seq_q=queries, seq_k=keys, **shape, **fields)

    def _absorbed_shape(self, latent: Latent, fields: dict[str, Any]) -> dict[str, Any]:
        """Absorbed MLA: attention with one key/value head of latent + rope columns, whose V is the first kv_rank of
        them. Sparse MLA picks keys by an indexer over a paged cache, whose page is taken out of `fields`."""
        compressed = self.compress is not None
        shape: dict[str, Any] = {
            "kv_heads": 1,
            "head_dim": latent.width,
            "head_dim_v": latent.width if compressed else latent.kv_rank,
            "latent_kv": True,
        }
        if self.top_k is not None:
            shape["top_k"] = self.top_k
            if latent.index_heads:
                page = fields.pop("page_size", None) or INDEXED_PAGE
                shape |= {"index_heads": latent.index_heads, "index_dim": latent.index_dim}
                shape["page_size"] = page
        return shape

    def _mask_shape(self, keys: int) -> dict[str, Any]:
        """The mask's fields. A window that covers all keys is a causal mask; without a causal mask half of the window
        lies on either side."""
        if self.compress is not None:
            window = (self.window or 1) - 1
            return {"compress_ratio": self.compress, "window": window, "mask": "window"}
        if self.window is None or (self.causal and self.window >= keys):
            return {"mask": "causal" if self.causal else "none"}
        if self.causal:
            return {"mask": "window", "window": self.window - 1}
        return {"mask": "window", "window": self.window // 2, "window_right": self.window // 2}

    def _chunked(self, queries: int, keys: int, fields: Mapping[str, Any]) -> AttentionProblem:
        """Each chunk's queries against its keys: sequences of their own, packed."""
        assert self.chunk is not None
        # Chunks that hold any of the queries: from the first query's to the last key's. Earlier chunks
        # are seen by none of them.
        first = keys - queries
        chunks = range(first // self.chunk, ceil(keys / self.chunk))
        spans = [(n * self.chunk, min(keys, (n + 1) * self.chunk)) for n in chunks]
        if len(spans) == 1:
            return AttentionProblem(
                seq_q=queries, seq_k=keys - spans[0][0], mask="causal", **fields
            )
        # Per chunk: queries from the first new token on, keys from the chunk's start.
        lens, lens_k = (
            [end - max(start, first) for start, end in spans],
            [end - start for start, end in spans],
        )
        batch = int(fields.get("batch", 1))
        rest = {name: value for name, value in fields.items() if name != "batch"}
        return AttentionProblem(
            seq_lens=tuple(lens * batch), seq_lens_k=tuple(lens_k * batch), mask="causal", **rest
        )

    def cached_tokens(self, context: int) -> int:
        """Tokens of a sequence that a layer's cache holds; a window or a chunk bounds them. None are kept where a token
        sees later ones."""
        if not self.causal or self.state_kernel is not None:
            return 0
        return min([context, *(bound for bound in (self.window, self.chunk) if bound is not None)])

    def token_bytes(self, kind: str, cache_dtype: str | None = None) -> int:
        """Bytes of a token in one layer's cache, on one GPU, in a type of its own where that is said. Beyond a window
        with compressed keys: what a token adds, rounded down."""
        if self.state_kernel is not None or self.shares:
            return 0
        if self.latent is None:
            return (
                self.kv_heads * (self.head_dim + self.head_dim_v) * dtype(cache_dtype or kind).bytes
            )
        latent = self.problem(1, 2, dtype=kind, cache_dtype=cache_dtype).latent_row_bytes
        key = latent + (index_token_bytes(self.latent.index_dim) if self.latent.index_dim else 0)
        # Compressed: what one token adds to the cache, in whole bytes; 0 tokens per key: nothing.
        return key if self.compress is None else key // self.compress if self.compress else 0

    def sequence_bytes(
        self, context: int, kind: str, cache_dtype: str | None = None, page: int = 1
    ) -> int:
        tokens = self.cached_tokens(context)
        # Keys and values of the tokens kept, in whole pages, and a state beside them.
        if self.compress is None:
            return (
                -(-tokens // page) * page * self.token_bytes(kind, cache_dtype) + self.state_bytes
            )
        p = self.problem(1, context, dtype=kind, cache_dtype=cache_dtype)
        key_bytes = p.latent_row_bytes + (index_token_bytes(p.index_dim) if p.index_heads else 0)
        # Compressed keys: the window's own rows, and a row for every `compress` tokens before, each with
        # its index key.
        return tokens * p.latent_row_bytes + -(-p.scored_keys // page) * page * key_bytes

    def cache_bytes(self, batch: int, context: int, kind: str) -> int:
        """Bytes of all these layers' caches, on one GPU."""
        return self.count * batch * self.sequence_bytes(context, kind)

    @property
    def state_bytes(self) -> int:
        """Bytes of a sequence's state in one layer, on one GPU; 0 where it keeps keys and values."""
        return (
            0
            if self.state_kernel is None
            else self.heads * self.head_dim * self.head_dim_v * STATE_BYTES
        )

    def parameters(self, width: int) -> int:
        """Numbers in the matrices of one layer's attention, in a model `width` columns wide, biases left out."""
        if self.latent is None:
            matrices = self.heads if self.shares else self.heads + self.kv_heads
            return width * matrices * (self.head_dim + self.head_dim_v)
        # MLA: a low-rank path for queries, one latent projection for keys and values and its expansion
        # per head, the indexer, and the output.
        latent, heads = self.latent, self.heads
        queries, q_rank = heads * self.head_dim, latent.q_rank
        q = width * queries if q_rank is None else q_rank * (width + queries)
        kv = width * latent.width + latent.kv_rank * heads * (latent.nope + self.head_dim_v)
        index = (q_rank or width) * latent.index_heads * latent.index_dim + width * (
            latent.index_dim + latent.index_heads
        )
        return q + kv + heads * self.head_dim_v * width + (index if latent.index_dim else 0)

    def split(self, gpus: int) -> LayerKind:
        """The part of one of several GPUs that share the heads; fewer key/value heads than GPUs are on several. Raises
        InputError: heads that cannot be shared out evenly."""
        divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
        if gpus not in divisors:
            problem = f"does not divide the {self.heads} heads of its {self.name} layers"
            raise InputError(
                f"`tensor_parallel` {gpus} {problem}; accepted: {', '.join(map(str, divisors))}"
            )
        if self.latent is not None:
            return replace(self, heads=self.heads // gpus, kv_heads=self.heads // gpus)
        # Either each GPU has whole key/value heads, or each head is on a whole number of GPUs.
        fitting = [n for n in divisors if max(n, self.kv_heads) % min(n, self.kv_heads) == 0]
        if gpus not in fitting:
            problem = f"neither divides the {self.kv_heads} key/value heads of its {self.name} layers nor is a multiple of"
            raise InputError(
                f"`tensor_parallel` {gpus} {problem} them; accepted: {', '.join(map(str, fitting))}"
            )
        return replace(self, heads=self.heads // gpus, kv_heads=max(1, self.kv_heads // gpus))

    @property
    def title(self) -> str:
        """A heading of what is said of one of these layers."""
        return f"One {self.name} layer of {self.count}"

    @property
    def sees(self) -> str:
        """Which tokens a query sees, in words."""
        if self.state_kernel is not None:
            return f"a state of {bytes_text(self.state_bytes)}"
        if self.chunk is not None:
            return f"its chunk of {self.chunk:,}"
        if self.compress is not None:
            which = "" if self.top_k is None else f", {self.top_k:,} of them picked"
            compressed = (
                f" and a key for every {self.compress:,} before{which}" if self.compress else ""
            )
            return f"the last {self.window:,}{compressed}"
        if self.top_k is not None:
            return f"{self.top_k:,} picked of all before"
        if self.window is not None:
            return f"{'the last ' if self.causal else ''}{self.window:,}{'' if self.causal else ' around'}"
        return "all before" if self.causal else "all"

    def to_dict(self) -> dict[str, Any]:
        """One entry of `kinds` in JSON."""
        fields = {**vars(self), "latent": None if self.latent is None else self.latent.to_dict()}
        return {"layer": fields.pop("name"), **fields}


@dataclass(frozen=True)
class Layers:
    """Which layers of a model a result is of."""

    name: str
    count: int
    title: str
    sinks: bool = False

    def __str__(self) -> str:
        return f"the {some(self.count, f'{self.name} layer')} of {self.title}"


@dataclass(frozen=True)
class Mlp:
    """What follows attention in a layer: a dense MLP, or experts.

    Args:
        inner: columns of the dense MLP, or of what all tokens pass beside the experts; 0 for none.
        matrices: 3 where it is gated, else 2.
        experts: how many there are; 0 for none.
        wide: columns of an expert.
        active: experts that a token passes; None where the config does not say it.
        columns: that experts work on, where these are not the model's; else 0.
    """

    inner: int
    matrices: int
    experts: int = 0
    wide: int = 0
    active: int | None = None
    columns: int = 0


QUANTISED = {"int4": 0.5 + (2 + 0.5) / 128, "int8": 1.0, "fp8": 1.0, "mxfp4": 0.5 + 1 / 32}
"""Bytes of a number by form. int4 as GPTQ and AWQ keep it: a scale in fp16 and a zero of four bits per 128 numbers
(AutoGPTQ and AutoAWQ, group_size 128); mxfp4: a scale of a byte per 32 (OCP Microscaling Formats 1.0). int8 and fp8
have a scale per row, which is not counted."""


@dataclass(frozen=True)
class Weights:
    """A model's weights beside those of its attention."""

    width: int
    """Columns of the residual stream."""
    vocabulary: int
    """Rows of the table of tokens."""
    tied: bool
    """True where the head's matrix is that table."""
    mlps: tuple[Mlp, ...]
    """MLP or experts of each layer."""
    number: float
    """Bytes of a number in the tables."""
    attention_number: float
    """Bytes of a number in the matrices of attention and dense MLPs."""
    expert_number: float
    """Bytes of a number in experts."""
    norms: int = 2
    """Norms per layer, those of attention's insides apart."""
    head_norms: bool = False
    """True where heads of Q and K have a norm."""
    turned: bool = True
    """True where Q and K are turned by their positions (RoPE)."""
    learned: bool = False
    """True where positions have a table of their own."""
    more: tuple[int, ...] = ()
    """Numbers of each layer beside those of its attention and its MLP: gates, convolutions, what keeps a state. Below 0
    where layers share their matrices."""
    tables: int = 0
    """Numbers of tables beside those of tokens and of the head."""
    dense_number: float | None = None
    """Bytes of a number in dense MLPs, where that is not attention's."""

    @property
    def dense(self) -> float:
        """Bytes of a number in dense MLPs."""
        return self.attention_number if self.dense_number is None else self.dense_number

    def in_one(self, kind: str) -> Weights:
        """These weights with all numbers in one type."""
        size = float(dtype(kind).bytes)
        return replace(
            self, number=size, attention_number=size, expert_number=size, dense_number=None
        )

    def quantised(self, form: str) -> Weights:
        """These weights with the matrices of layers in a form of few bits; the tables stay."""
        size = QUANTISED[form]
        return replace(self, attention_number=size, expert_number=size, dense_number=None)

    @property
    def embeddings(self) -> int:
        """Bytes of the table of tokens and, where it has its own, of the head."""
        both = (1 if self.tied else 2) * self.width * self.vocabulary
        return round((both + self.tables) * self.number)

    @property
    def layers(self) -> tuple[int, ...]:
        """Bytes of each layer's MLP or experts."""
        return tuple(map(self._bytes, self.mlps))

    def _bytes(self, mlp: Mlp) -> int:
        # Dense matrices and the router in the type of attention, experts in a type of their own.
        every = (
            mlp.matrices * self.width * mlp.inner * self.dense
            + mlp.experts * self.width * self.attention_number
        )
        columns = mlp.matrices * (mlp.columns or self.width)
        return round(every + columns * mlp.wide * mlp.experts * self.expert_number)


@dataclass(frozen=True)
class Model:
    """A model's attention: its kinds of layers, those of the same kind together.

    Args:
        name: the preset's name, or the file's.
        title: what it is, for people.
        source: where its numbers stand.
        kinds: the attention layers.
        states: layers that keep a state in place of keys and values, where the config says their sizes.
        order: the kind of every layer, in order; a kind that is no attention has a name of its own.
        dtype: what the weights are kept in, where that is a 16-bit type; else None.
        width: columns of the residual stream, where known.
        tensor_parallel: GPUs that share each layer's heads; `kinds` are the part of one.
        notes: what a reader should know of what was read, a sentence each.
        config: the keys that the numbers were read from.
        weights: of all its layers, where the config says them.
    """

    name: str
    title: str
    source: str
    kinds: tuple[LayerKind, ...]
    order: tuple[str, ...]
    dtype: str | None = None
    width: int | None = None
    tensor_parallel: int = 1
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    weights: Weights | None = None
    states: tuple[LayerKind, ...] = ()

    @property
    def all_kinds(self) -> tuple[LayerKind, ...]:
        """Layers with softmax attention, and those with a state."""
        return self.kinds + self.states

    @property
    def most_tokens(self) -> int | None:
        """Tokens that the config has positions for; None where it does not say."""
        positions = next((self.config[key] for key in POSITIONS if key in self.config), None)
        return (
            positions
            if isinstance(positions, int) and not isinstance(positions, bool) and positions > 0
            else None
        )

    def usual_tokens(self, default: int) -> int:
        """Tokens where none are asked for: the usual ones, or as many as the model has positions for."""
        return min(default, self.most_tokens or default)

    @property
    def layers(self) -> int:
        """Layers with attention, or with a state."""
        return sum(kind.count for kind in self.all_kinds)

    @property
    def causal(self) -> bool:
        """True where it can generate: no token sees later ones."""
        return all(kind.causal for kind in self.kinds)

    def cache_bytes(self, batch: int, context: int, kind: str) -> int:
        """Bytes of all layers' key/value caches and states, on one GPU."""
        return sum(layers.cache_bytes(batch, context, kind) for layers in self.all_kinds)

    def token_bytes(self, kind: str) -> int:
        """Bytes of a token in all layers' caches, on one GPU."""
        return sum(
            layers.count * layers.token_bytes(kind) * layers.cached_tokens(1)
            for layers in self.kinds
        )

    @property
    def attention_parameters(self) -> int | None:
        """Numbers in the matrices of all layers' attention, biases left out; None where the width is not known, or
        some layers keep a state."""
        width = None if self.states else self.width
        return (
            None
            if width is None
            else sum(kind.count * kind.parameters(width) for kind in self.kinds)
        )

    def quantised(self, form: str | None) -> Model:
        """The model with its layers' matrices in a form of few bits; itself where `form` is None. Raises InputError: its
        weights are not known."""
        if form is None:
            return self
        if self.weights is None:
            raise InputError(
                f"`weights` {form}: the config of '{self.name}' does not say its weights; accepted: a model whose does"
            )
        size = QUANTISED[form]
        some_bytes = "1 byte" if size == 1 else f"{size:.3g} bytes"
        note = (
            f"{self.title}: matrices of layers in {form}, {some_bytes} a number with its scales; "
            "embeddings and head stay, products are computed in the activations' type"
        )
        return replace(
            self,
            title=f"{self.title} with {form} weights",
            weights=self.weights.quantised(form),
            notes=(*self.notes, note),
        )

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the weights of its layers and embeddings, of one GPU's share; None where they are not known."""
        width, weights = self.width, self.weights
        if width is None or weights is None:
            return None
        # Attention's matrices are of the kinds, already one GPU's share; the rest is shared out here.
        numbers = sum(kind.count * kind.parameters(width) for kind in self.kinds)
        more = sum(weights.more[: len(self.order)]) * weights.attention_number
        beside = weights.embeddings + sum(weights.layers[: len(self.order)]) + more
        return round(beside / self.tensor_parallel + numbers * weights.attention_number)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Where the numbers stand, and what a reader should know of them."""
        return (f"numbers of {self.source}", *self.notes)

    @property
    def line(self) -> str:
        """The model in one line: its layers by kind."""
        kinds = "; ".join(_kind_line(kind) for kind in self.all_kinds)
        gpus = f", a {self.tensor_parallel}th of the heads each" if self.tensor_parallel > 3 else ""
        gpus = {2: ", half of the heads", 3: ", a third of the heads"}.get(
            self.tensor_parallel, gpus
        )
        return f"{self.title}: {kinds}{gpus}"

    def to_dict(self) -> dict[str, Any]:
        """The `model` object of JSON."""
        others = {"other_layers": len(self.order) - self.layers, "notes": list(self.notes)}
        return (
            plain(
                name=self.name,
                title=self.title,
                source=self.source,
                layers=self.layers,
                tensor_parallel=self.tensor_parallel,
                dtype=self.dtype,
                width=self.width,
                attention_parameters=self.attention_parameters,
                weight_bytes=self.weight_bytes,
                kinds=self.all_kinds,
            )
            | others
        )


def _kind_line(kind: LayerKind) -> str:
    d = (
        f"{kind.head_dim}"
        if kind.head_dim == kind.head_dim_v
        else f"{kind.head_dim}/{kind.head_dim_v}"
    )
    kv = ""
    if kind.latent is not None:
        kv = f" over a latent of {kind.latent.width}"
    elif kind.kv_heads != kind.heads:
        kv = f" ({kind.kv_heads} key/value)"
    layers = "layer" if kind.count == 1 else "layers"
    return f"{kind.count} {kind.name} {layers} of {some(kind.heads, 'head')}{kv}, head_dim {d}, seeing {kind.sees}"

"""What a model's weights are beside those of its softmax attention: embeddings, MLPs and experts, and what mixes tokens
in other ways; and in how many bytes a number is held.

Counted are matrices; biases and norms, below 1 % of them, are not. Where a config does not say a size, weights are not
known and the reason is a note: attention is never refused for them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.integrations.models import patterns
from iosim.integrations.models.around import around_layer, behind_layers
from iosim.integrations.models.causal import has_head, is_crossed
from iosim.integrations.models.mixers import OTHERS, state_numbers
from iosim.integrations.models.packed import number_bytes
from iosim.integrations.models.plan import Entry
from iosim.integrations.models.reading import MAX_RATIO, SIZES, Reading, at
from iosim.studies.models.layers import LayerKind, Mlp, Weights

NAMED = re.compile(r"^`?model`? '[^']*'[: ]*")
"""How an error about a config begins."""
SPARSE = ("sparse", "moe", "hash_moe")
PLAIN_ACTIVATIONS = (
    "relu2",
    "xielu",
    "gelu_new",
    "gelu_fast",
    "quick_gelu",
    "relu",
    "squared_relu",
)
"""Activations of MLPs with two matrices, where the type is not known."""
SWITCHES = ("is_moe", "enable_moe_block", "use_moe")
"""Keys that, where they are false, say that there are no experts."""
TIED = ("tie_word_embeddings", "tied_embeddings", "weight_tying", "share_input_output_layers")


def weights_of(read: Reading, width: int, entries: Sequence[Entry]) -> tuple[Weights | None, str]:
    """(the weights, a note); None where the config does not say them."""
    try:
        return _weights(read, width, entries), ""
    except (InputError, OverflowError) as error:
        why = NAMED.sub("", str(error).partition("; accepted")[0])
        return None, f"its weights are not known: {why}"


def _weights(read: Reading, width: int, entries: Sequence[Entry]) -> Weights:
    if "untold" in read.facts:
        raise read.refused(f" has matrices that no key of a {read.said_type} tells")
    rows = read.needed("vocabulary", "vocabulary") if "no_table" not in read.facts else 1
    sizes = number_bytes(read, len(entries))
    feeds = _Feeds(read, width, entries)
    nothing = Mlp(0, feeds.matrices)
    mlps = tuple(feeds.mlp(entry) if entry.last else nothing for entry in entries)
    if "one_block" in read.facts:
        mlps = _one_block(read, entries, mlps)
    if "looped" in read.facts:
        mlps = _looped(read, entries, mlps)
    more = tuple(_more(read, width, entry, mlp) for entry, mlp in zip(entries, mlps, strict=True))
    facts = read.facts
    # A model without a head has no second matrix, either.
    own_head = "own_head" in facts and has_head(read)
    tied = not own_head and (read.flag(*TIED) or _is_tied_unsaid(read) or not has_head(read))
    return Weights(
        width,
        rows,
        tied,
        mlps,
        sizes.tables,
        sizes.attention,
        sizes.experts,
        norms=4 if "more_norms" in facts else 2,
        head_norms="head_norms" in facts,
        turned="not_turned" not in facts,
        learned="learned" in facts,
        more=_blocks(read, width, entries, more),
        tables=_tables(read, width, rows, entries, tied),
        dense_number=None if sizes.dense == sizes.attention else sizes.dense,
    )


def _is_tied_unsaid(read: Reading) -> bool:
    """True where a file without the key was saved by transformers 4, for a class of a model's own code: what it left
    out is PretrainedConfig's default, true."""
    written = str(read.config.get("transformers_version") or "").startswith("4.")
    return written and not read.defaults and read.get(*TIED) is None


# --- MLPs and experts -------------------------------------------------------------------------------------------------


class _Feeds:
    """The MLP of every layer."""

    def __init__(self, read: Reading, width: int, entries: Sequence[Entry]) -> None:
        self.read, self.width = read, width
        # A gate makes three matrices of two. Without a family's facts the activation decides: those of
        # older models come without a gate.
        act = str(read.get("hidden_act", "activation_function", "mlp_hidden_act") or "")
        # Under GPT-2's name of the key, so does a plain one (Nomic's; with a gate it is "swiglu").
        older = read.config.get("activation_function") == "gelu"
        unknown = older or (not read.defaults and act in PLAIN_ACTIVATIONS)
        self.matrices = 2 if "plain" in read.facts or unknown else 3
        said = read.get("feed_forward_proj")  # T5's, whose activation may have a gate: "gated-gelu"
        if isinstance(said, str):
            self.matrices = 3 if said.startswith("gated") else 2
        self.layers = 1 + max(entry.layer.place for entry in entries)
        off = any(read.get(key) is False for key in SWITCHES)
        self.experts, self.expert_width = (0, 0) if off else self._experts()
        self.sparse = self._sparse() if self.experts else [False] * self.layers

    def mlp(self, entry: Entry) -> Mlp:
        """What follows the mixer of one layer."""
        layer = entry.layer
        if layer.feed == "" or layer.settings.get("feed") is False:
            return Mlp(0, self.matrices)
        if layer.settings.get("linear_feed"):
            return Mlp(self.width, 1)
        read = self.read.with_own(layer.settings) if layer.settings else self.read
        # A layer's own word goes before the list of layers with experts.
        sparse = (
            self.sparse[layer.place]
            if layer.feed is None
            else layer.feed == "sparse" and self.experts > 0
        )
        place = layer.place
        if read.type.startswith("longcat_flash"):  # experts beside the first of two dense MLPs
            dense = self._inner(read, place)
            return (
                Mlp(dense, 3, self.experts, self.expert_width, self._active(place))
                if entry.first
                else Mlp(dense, 3)
            )
        if read.flag("use_double_wide_mlp") and layer.shares == "cache":  # Gemma 4
            return Mlp(2 * self._inner(read, place), self.matrices)
        if not sparse:
            wider = (
                read.get("intermediate_size_mlp", "prefix_dense_intermediate_size")
                if self.experts
                else None
            )
            return Mlp(int(wider) if wider else self._inner(read, place), self.matrices)
        written = self.read.get(*SIZES["expert_width"])
        if not self.expert_width and written is not None:
            raise read.refused(f" {read.key_of(SIZES['expert_width'])} is 0, and it has experts")
        wide = self.expert_width or self._inner(read, place)
        if "single_experts" in read.facts:
            raise read.refused(f" has {self.experts} experts of a row and a column each")
        # Experts beside a dense MLP (Gemma 4, Grok 2; Arctic's is as wide as the model).
        if read.is_one_of("both_feeds") or read.flag("residual_moe"):
            inner = self.width if read.flag("parallel_attn_mlp_res") else self._inner(read, place)
            return Mlp(inner, self.matrices, self.experts, wide, self._active(place))
        # Experts that all tokens go through are one MLP as wide as all of them together.
        shared = (
            self._inner(read, place)
            if "shared_is_dense" in read.facts
            else self._shared(place, wide)
        )
        # Some models project to fewer columns before their experts.
        columns = self.read.number(*SIZES["latent_experts"])
        return Mlp(shared, self.matrices, self.experts, wide, self._active(place), columns)

    def _experts(self) -> tuple[int, int]:
        """(how many experts a layer has, how wide they are; 0 where the dense MLP's width says it)."""
        written = {name: at(self.read.config, name) for name in SIZES["experts"]}
        said = {name: n for name, n in written.items() if type(n) is int and n > 1}
        if len({*said.values()}) > 1:
            both_names = " and ".join(f"{name} {n}" for name, n in said.items())
            raise self.read.refused(f" contradicts itself: {both_names}")
        number, wide = self.read.get(*SIZES["experts"]), self.read.get(*SIZES["expert_width"])
        both = (number, wide)
        if all(_numbers(pair) for pair in both) and len(number) == len(wide) < self.layers:
            total = sum(number)  # ERNIE 4.5 VL has experts for text and for images
            return total, round(
                sum(n * w for n, w in zip(number, wide, strict=True)) / max(1, total)
            )
        number = self._at(SIZES["experts"], 0)
        if _numbers(wide) and 1 < len(wide) < self.layers and type(both[0]) is int:
            # One number for several groups of experts, each as wide as it says.
            return number * len(wide), round(sum(wide) / len(wide))
        return (number if number > 1 else 0), self._at(SIZES["expert_width"], 0)

    def _at(self, names: Sequence[str], place: int) -> int:
        """A number that may be a list of one a layer; 0 where there is none. Raises InputError: it is no number."""
        value = self._entry(self.read, names, place)
        if value is None or value is False:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 24:
            raise self.read.refused(f" {self.read.key_of(names)} is no whole number")
        return value

    def _entry(self, read: Reading, names: Sequence[str], place: int) -> Any:
        """A layer's value of a key that may be a list of one a layer, or of one for all. Raises InputError: a list of
        another length."""
        value = read.get(*names)
        if not isinstance(value, list) or not value:
            return value
        if 1 < len(value) < self.layers:
            raise read.refused(f" has {len(value)} {read.key_of(names)} for {self.layers} layers")
        return value[min(place, len(value) - 1)]

    def _sparse(self) -> list[bool]:
        """Which layers have experts: those of which no key says otherwise."""
        sparse = [True] * self.layers
        feed_rows = patterns.rows(self.read, "feed")
        # A list in the file says all; where there is none, the class's own numbers count.
        if not any(isinstance(self.read.get(row["key"]), list | str) for row in feed_rows):
            # These alone: a default of another key would stand before what the file calls it.
            own = {row["key"].partition(".")[0] for row in patterns.PATTERNS["feed"]}
            defaults = {
                key: value
                for key, value in self.read.defaults.items()
                if key in own and key not in self.read.config
            }
            self.read = self.read.with_own(defaults)
            feed_rows = patterns.rows(self.read, "feed")
        told = patterns.told(self.read, feed_rows, self.layers)
        # A key with every layer goes before those that say where experts begin, or how often they come.
        whole = next((words for row, words in told if row.get("all")), None)
        for words in [words for _, words in told] if whole is None else [whole]:
            sparse = [old and word in SPARSE for old, word in zip(sparse, words, strict=True)]
        return sparse

    def _active(self, place: int) -> int | None:
        value = self._entry(self.read, SIZES["active"], place)
        return value if isinstance(value, int) and 0 < value <= self.experts else None

    def _shared(self, place: int, wide: int) -> int:
        shared_width = self._at(SIZES["shared_width"], place)
        return shared_width or self._at(SIZES["shared_experts"], place) * wide

    def _inner(self, read: Reading, place: int) -> int:
        """Columns of a dense MLP, as its class makes them of what the config says."""
        if read.get(*SIZES["inner"]) is None:
            wide = _unsaid(read, self.width, self.matrices, place)
            if wide is None and self.experts and self.expert_width:
                return self._shared(
                    place, self.expert_width
                )  # a class whose layers all have experts
            if wide is None:
                raise read.refused(
                    f" says no width of its MLP: {' or '.join(SIZES['inner'][:3])} is missing"
                )
            return wide
        value = self._entry(read, SIZES["inner"], place)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 24:
            raise read.refused(f" {read.key_of(SIZES['inner'])} is no whole number of at least 1")
        return _made(read, value)


def _numbers(value: object) -> bool:
    """True where a value is a list of whole numbers that may be sizes."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(n) is int and 0 <= n <= 1 << 24 for n in value)
    )


def _made(read: Reading, inner: int) -> int:
    """The width that a class makes of the one in its config."""
    if "halved" in read.facts:
        return inner // 2
    if read.type in ("lfm2", "lfm2_moe") and read.flag("block_auto_adjust_ff_dim"):
        multiple = read.number("block_multiple_of") or 256
        wide = int((read.ratio("block_ffn_dim_multiplier") or 1) * int(2 * inner / 3))
        return -(-wide // multiple) * multiple
    return inner


def _unsaid(read: Reading, width: int, matrices: int, place: int) -> int | None:
    """The width of an MLP that no key holds; None where the class says none."""
    multipliers = read.get("ffn_multipliers")  # OpenELM
    if isinstance(multipliers, list) and len(multipliers) > place:
        factor, multiple = multipliers[place], read.number("ffn_dim_divisor") or 256
        if isinstance(factor, int | float) and 0 < factor <= MAX_RATIO:
            return max(multiple, int(factor * width + multiple / 2) // multiple * multiple)
    for key in ("expansion_ratio", "intermediate_multiple_size", "mlp_ratio"):
        ratio = read.ratio(key)
        if ratio is not None:
            return round(ratio * width)
    # Two thirds of four times the width, since a gate adds a third matrix; rounded up.
    if read.get("multiple_of") is not None:  # Llama's params.json
        wide = int((read.ratio("ffn_dim_multiplier") or 1) * int(8 * width / 3))
        multiple = read.number("multiple_of") or 256
        return -(-wide // multiple) * multiple
    return 4 * width if matrices == 2 else None


# --- what stands beside them ------------------------------------------------------------------------------------------


def _more(read: Reading, width: int, entry: Entry, mlp: Mlp) -> int:
    """Numbers of a layer beside its attention's and its MLP's."""
    kind = entry.kind
    input_columns = read.number("hidden_size_per_layer_input")
    more = 2 * width * input_columns if input_columns and entry.first else 0
    more += 2 * width * read.number("laurel_rank") if entry.first else 0
    more += (
        around_layer(read, width, entry.layer.place, sparse=mlp.experts > 0) if entry.first else 0
    )
    if mlp.experts and mlp.columns:
        more += 2 * width * mlp.columns
    if kind is None:
        # No attention of its own in this layer: its mixer's numbers, or those of cross attention.
        counter = OTHERS.get(entry.mixer)
        numbers = None if counter is None else counter(read, width)
        if entry.mixer and numbers is None and entry.mixer not in ("cross attention",):
            raise read.refused(f" says no sizes of its {entry.mixer} layers")
        return more + (numbers or _cross(read, entry, width))
    if kind.state_kernel is not None:
        return more + state_numbers(read, kind, width)
    return more + _beside_attention(read, kind, width)


def _cross(read: Reading, entry: Entry, width: int) -> int:
    """Llama 3.2 Vision's layers over an image's tokens have the matrices of the others."""
    if entry.mixer != "cross attention":
        return 0
    heads, dim = read.size("heads") or 1, read.size("head_dim")
    dim = dim or width // heads
    return 2 * width * dim * (heads + (read.size("kv_heads") or heads))


def _beside_attention(read: Reading, kind: LayerKind, width: int) -> int:
    if kind.compress is not None:
        return _compressing(read, kind, width) - kind.parameters(width)
    more = width * kind.heads * kind.head_dim_v if "gate" in read.facts else 0
    if "latent_gate" in read.facts and kind.latent is not None:
        # One matrix gives queries and a gate, of two vectors of the queries' rank.
        rank, columns = kind.latent.q_rank or width, kind.heads * (kind.head_dim + kind.head_dim_v)
        more += rank * (2 * columns - kind.heads * kind.head_dim)
    index_heads = read.number("indexer_n_heads") + read.number("indexer_kv_heads")
    more += width * index_heads * read.number("indexer_head_dim")
    if is_crossed(read):
        more += kind.parameters(width)
    if "relative" in read.facts:  # XLNet's matrix of distances
        more += width * kind.heads * kind.head_dim
    if kind.name.startswith("full") and read.flag("attention_k_eq_v"):
        more -= width * kind.kv_heads * kind.head_dim_v
    if "attention_experts" in read.facts:  # JetMoE's queries and outputs have a matrix an expert
        heads = (read.size("experts") or 1) * kind.kv_heads - kind.heads
        more += heads * width * (kind.head_dim + kind.head_dim_v)
    return more


def _compressing(read: Reading, kind: LayerKind, width: int) -> int:
    """DeepSeek-V4's layer: queries by a rank, one vector a key, outputs by groups, what compresses, and the indexer."""
    assert kind.latent is not None
    latent, columns = kind.latent, kind.heads * kind.head_dim
    # Queries go down to a rank and up again; outputs do so by groups of heads.
    rank, out, groups = (
        latent.q_rank or width,
        read.number("o_lora_rank") or width,
        read.number("o_groups") or 1,
    )
    numbers = rank * (width + columns) + width * kind.head_dim + out * (columns + groups * width)
    copies = read.number(
        "hc_mult"
    )  # hyper-connections: copies of the residual stream, twice a layer
    numbers += 2 * (copies * copies + 2 * copies) * copies * width
    # Blocks of four tokens overlap their neighbours, which doubles what compresses them.
    overlaps = 2 if kind.compress == 4 else 1
    numbers += 2 * overlaps * width * kind.head_dim if kind.compress else 0
    index = 2 * overlaps * width * latent.index_dim + latent.index_heads * (
        rank * latent.index_dim + width
    )
    return numbers + (index if latent.index_dim else 0)


def _with_matrices(read: Reading) -> int:
    """How many layers have matrices, where others run with theirs again: those of HRM's two stacks, or of ALBERT's
    groups."""
    return 2 * read.number("num_layers_per_stack") or (
        (read.number("num_hidden_groups") or 1) * (read.number("inner_group_num") or 1)
    )


def _looped(read: Reading, entries: Sequence[Entry], mlps: tuple[Mlp, ...]) -> tuple[Mlp, ...]:
    """The MLPs of layers that run several times, on those that have matrices."""
    with_matrices = _with_matrices(read)
    both = zip(entries, mlps, strict=True)
    return tuple(
        mlp if entry.layer.place < with_matrices else Mlp(0, mlp.matrices) for entry, mlp in both
    )


def _one_block(read: Reading, entries: Sequence[Entry], mlps: tuple[Mlp, ...]) -> tuple[Mlp, ...]:
    """Zamba's MLPs: those of the shared blocks, on the first layers that have them."""
    blocks, fed = read.number("num_mem_blocks") or 1, []
    for entry, mlp in zip(entries, mlps, strict=True):
        attends = entry.kind is not None and entry.kind.state_kernel is None
        fed.append(mlp if attends and blocks > 0 else Mlp(0, mlp.matrices))
        blocks -= attends
    return tuple(fed)


def _blocks(
    read: Reading, width: int, entries: Sequence[Entry], more: Sequence[int]
) -> tuple[int, ...]:
    """Numbers beside, of layers that share their block: attention over twice the width, once for each block."""
    if "looped" in read.facts:  # those that run again have no matrices of their own
        again = [entry.layer.place >= _with_matrices(read) for entry in entries]
        rows = zip(entries, more, again, strict=True)
        return tuple(
            -e.kind.parameters(width) if spare and e.kind else numbers for e, numbers, spare in rows
        )
    if "one_block" not in read.facts:
        return tuple(more)
    blocks, beside = read.number("num_mem_blocks") or 1, []
    for entry, numbers_beside in zip(entries, more, strict=True):
        kind = entry.kind
        if kind is None or kind.state_kernel is not None:
            beside.append(numbers_beside)
            continue
        # Attention sees the block's input beside the first one: twice as many rows in Q, K and V, half
        # of that in the output. A block counts where it is used first; adapters count in each layer.
        wide = 2 * width * kind.heads * kind.head_dim
        block = 3 * wide + wide // 2 if blocks > 0 else 0
        adapters = read.number("adapter_rank") * (width + 2 * (read.size("inner") or 0))
        beside.append(numbers_beside + block - kind.parameters(width) + width * width + adapters)
        blocks -= 1
    return tuple(beside)


def _tables(read: Reading, width: int, rows: int, entries: Sequence[Entry], tied: bool) -> int:
    """Numbers of tables beside those of tokens and of the head, less what these have fewer of."""
    layers = 1 + max(entry.layer.place for entry in entries)
    input_columns = read.number("hidden_size_per_layer_input")
    more = (
        input_columns * layers * ((read.size_of("vocab_size_per_layer_input") or rows) + width)
        if input_columns
        else 0
    )
    inputs = read.number("altup_num_inputs")
    more += 2 * (inputs - 1) * width * width if inputs > 1 else 0
    more += behind_layers(read, width)
    if "learned" in read.facts:
        more += (read.size("positions") or 0) * width
    narrow = read.number("embedding_size", "input_embedding_size", "word_embed_proj_dim")
    more += (
        read.number("ngram_vocab_size_ratio") * rows * width
    )  # LongCat-Flash-Lite's tables of n-grams
    # A table with other columns than the model, and the matrix between them; likewise at the head.
    known = any(key in read.defaults for key in ("embedding_size", "word_embed_proj_dim"))
    if 0 < narrow < width or (narrow > width and known):  # Molmo's embedding_size is its rows
        more += rows * (narrow - width) + narrow * width
        # OPT's head has one, too, before that table.
        if read.get("word_embed_proj_dim") is not None:
            more += narrow * width
        # A head of its own has as many columns as that table, where no key says how many it has.
        wide = read.number("output_embedding_size")
        if not tied:
            more += rows * (wide - width) + wide * width if wide else rows * (narrow - width)
    return more

"""From the keys of a config.json to kinds of attention layers, as transformers reads them.

`plan` says what each layer is; here its sizes become a `LayerKind`, and layers that attend alike one kind. A kind of
attention that is not modelled is counted as the nearest that is, and said in the model's title; a layer that does not
attend is counted as none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.records import replace
from iosim.base.schema import one_line
from iosim.base.units import bytes_text
from iosim.integrations.models.causal import is_causal
from iosim.integrations.models.mixers import pure_state, state_of
from iosim.integrations.models.patterns import PATTERNS
from iosim.integrations.models.plan import Entry, Layer, layer_number, layers_of
from iosim.integrations.models.reading import (
    FAMILIES,
    MAX_SIZE,
    SIZES,
    SPELLINGS,
    Reading,
    at,
    class_defaults,
)
from iosim.integrations.models.unread import caveats_of
from iosim.integrations.models.weights import weights_of
from iosim.studies.models.layers import Latent, LayerKind, Model

MAX_HEADS = 1 << 16
HALF = {"float16": "fp16", "bfloat16": "bf16", "half": "fp16"}
ATTENDING = (
    "full",
    "sliding",
    "chunked",
    "compressed sparse",
    "compressed",
    "block sparse",
    "windows",
)
"""Mixers that are softmax attention."""
NEAREST = {"block sparse": "picked blocks of keys", "windows": "windows"}
"""Mixers that are counted as full attention -> what their tokens see."""
ATTENDING_LAYERS = ("attn.layers", "attn_layer_idxs", "attn_layer_idx", "attn_layers")
"""Keys with the layers that attend, of families whose others keep states (StripedHyena, flash-linear-attention)."""
LATENT_SIZES = (
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
"""Keys of latent attention, which say nothing where a config says that it has none."""
RATIOS = {"sliding": 0, "compressed sparse": 4, "compressed": 128}
"""DeepSeek-V4's kinds -> tokens that a compressed key stands for."""
SINKS = {"sliding": "add_swa_attention_sink_bias", "full": "add_full_attention_sink_bias"}
"""Mixers -> the key that gives them a sink a head (MiMo-V2)."""


def model_of(
    config: Mapping[str, Any],
    name: str,
    title: str,
    source: str,
    notes: tuple[str, ...] = (),
    *,
    nested: bool,
    sees: bool = False,
    outside: Sequence[str] = (),
) -> Model:
    """The model that a config's keys describe; `nested` is part of another, and often left to its class's defaults;
    what `sees` an image is no decoder; keys `outside` its table are not read."""
    read = _read(config, name, nested=nested)
    if sees and read.get("vocab_size") is not None:  # a key that towers have of their text's class
        read.facts |= {"no_table"}
    _refuse_approximate(read)
    layers = layer_number(read)
    # A family without attention has states in every layer; of all others each layer says what it mixes
    # tokens with.
    if read.type in FAMILIES["without"]["types"]:
        stack = _pure(read, layers)
    else:
        stack = _Stack(read, layers_of(read, layers), causal=not sees and is_causal(read))
    kinds, states = stack.counted()
    if not kinds and not states:
        raise read.refused(
            " has no layer with attention; accepted: the config.json of a transformer"
        )
    kind_notes = _notes(read, stack, [*kinds, *states])
    # Weights need the width of the model; attention alone needs none. They are read before it is said
    # which keys were not.
    width = read.size("width")
    weights, more = (None, "") if width is None else weights_of(read, width, stack.entries)
    caveats = (
        *stack.caveats(),
        *caveats_of(read, nested=nested, causal=stack.causal, outside=outside),
    )
    all_notes = (*notes, *kind_notes, *caveats)
    precision = _precision(config)
    marked = f"{title} ({'; '.join(caveats)})" if caveats else title
    if more:
        all_notes = (*all_notes, more)
    return Model(
        name,
        marked,
        source,
        kinds,
        tuple(stack.order),
        precision,
        width,
        notes=all_notes,
        config=config,
        weights=weights,
        states=states,
    )


def _precision(config: Mapping[str, Any]) -> str | None:
    """The type of a config's weights; None where it says none that is known."""
    return HALF.get(
        str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    )


def _read(config: Mapping[str, Any], name: str, *, nested: bool) -> Reading:
    """A config's keys, with its class's defaults behind them."""
    if config.get("use_mla") is False:  # DeepSeek-VL2's and -OCR's small ones: ranks of 0
        config = {key: value for key, value in config.items() if key not in LATENT_SIZES}
    read = Reading(config, name)
    attention = config.get("attn_config")
    if isinstance(attention, dict) and attention.get("alibi"):  # MPT's
        read.config = {"alibi": True} | dict(config)
    # A file without sizes is no model of its class: its defaults would invent one.
    if not nested and not _has_sizes(read):
        read.defaults = {}
    return read


def _has_sizes(read: Reading) -> bool:
    keys = (*SIZES["heads"], *SIZES["layers"], *(row["key"] for row in PATTERNS["mixer"]))
    return any(at(read.config, key) is not None for key in keys)


def _refuse_approximate(read: Reading) -> None:
    kind = f" (model_type {one_line(read.said_type, 40)})"
    if read.type in FAMILIES["without"]["approximate"]:
        raise read.refused(
            f"{kind} attends by an approximation that is not described; accepted: softmax attention"
        )
    for key in ("depths", "depth", "num_encoder_blocks"):
        if isinstance(read.config.get(key), list) or (
            key == "num_encoder_blocks" and read.config.get(key)
        ):
            raise read.refused(
                f"{kind} has stages of several widths, by {key}; accepted: layers of one width"
            )


# --- layers to kinds --------------------------------------------------------------------------------------------------


class _Stack:
    """The mixers of all layers, those that are alike under one name."""

    def __init__(self, read: Reading, layers: Sequence[Layer], *, causal: bool) -> None:
        self.read, self.causal = read, causal
        self.entries: list[Entry] = []
        self._kinds: dict[str, LayerKind] = {}
        self._states: dict[str, LayerKind] = {}
        self._known: dict[tuple[str, str], str] = {}
        for layer in layers:
            for number, mixer in enumerate(layer.mixers):
                name = self._name(layer, mixer)
                kind = self._kinds.get(name) or self._states.get(name)
                ends = number == len(layer.mixers) - 1 or read.type.startswith("longcat_flash")
                self.entries.append(Entry(layer, name, kind, mixer, ends, number == 0))
            if not layer.mixers:
                self.entries.append(Entry(layer, layer.word, None, "", True, True))

    @property
    def order(self) -> list[str]:
        return [entry.name for entry in self.entries]

    def counted(self) -> tuple[tuple[LayerKind, ...], tuple[LayerKind, ...]]:
        """(kinds of attention, kinds of states), each with how many there are."""
        order = self.order
        return tuple(
            tuple(replace(kind, count=order.count(name)) for name, kind in some.items())
            for some in (self._kinds, self._states)
        )  # type: ignore[return-value]

    def caveats(self) -> list[str]:
        """What a reader must know before any number: attention that is counted as another, layers that are not."""
        clauses = []
        for mixer, seen in NEAREST.items():
            count = sum(entry.mixer == mixer for entry in self.entries)
            if count:
                clauses.append(
                    f"{count} layers that attend to {seen} are counted as if to all tokens"
                )
        others = [entry.mixer for entry in self.entries if entry.kind is None and entry.mixer]
        layers = sum(entry.first for entry in self.entries)
        for mixer in dict.fromkeys(others):
            clauses.append(
                f"{others.count(mixer)} of {layers} layers run {mixer}, which is not counted"
            )
        return clauses

    def _name(self, layer: Layer, mixer: str) -> str:
        key = mixer, layer.alike
        if key not in self._known:
            self._known[key] = self._new(layer, mixer)
        return self._known[key]

    def _new(self, layer: Layer, mixer: str) -> str:
        read = self.read.with_own(layer.settings) if layer.settings else self.read
        if mixer not in ATTENDING:
            state = state_of(read, mixer)
            return mixer if state is None else _placed(self._states, state)
        kind = kind_of(read, mixer, causal=self.causal)
        if layer.shares == "cache":
            kind = replace(kind, shares=True)
        if layer.shares == "index" and kind.latent is not None:
            kind = replace(kind, latent=replace(kind.latent, index_heads=0, index_dim=0))
        return _placed(self._kinds, kind)


class _Pure(_Stack):
    """Layers all of which keep one state."""

    def __init__(self, read: Reading, layers: Sequence[Layer], state: LayerKind) -> None:
        super().__init__(read, (), causal=True)
        self._states[state.name] = state
        self.entries = [Entry(layer, state.name, state, "state", True, True) for layer in layers]


def _pure(read: Reading, layers: int) -> _Stack:
    """The layers of a model without attention. Raises InputError: their state is not modelled."""
    state = pure_state(read)
    kind = one_line(read.said_type, 40)
    attends = any(at(read.config, key) for key in ATTENDING_LAYERS)
    if state is None or attends:
        reason = (
            "mixes attention with states in a way that is not described"
            if attends
            else "has no softmax attention"
        )
        hint = "accepted: a transformer, or layers of gated DeltaNet, KDA or Mamba-2"
        raise read.refused(f" (model_type {kind}) {reason}; {hint}")
    return _Pure(read, [Layer(n, "state", ("state",), "", {}, "") for n in range(layers)], state)


def _placed(kinds: dict[str, LayerKind], kind: LayerKind) -> str:
    """The name of a kind among others: its own, with what sets it apart where another has that."""
    if kinds.setdefault(kind.name, kind) == kind:
        return kind.name
    first = kinds[kind.name]
    # Only what differs is said, in the order in which readers look for it.
    apart = [
        *([f"{kind.heads} heads"] if kind.heads != first.heads else []),
        *(
            [f"{kind.kv_heads} key/value"]
            if kind.kv_heads != first.kv_heads and kind.latent is None
            else []
        ),
        *([f"head_dim {kind.head_dim}"] if kind.head_dim != first.head_dim else []),
        *([f"window {kind.window}"] if kind.window != first.window else []),
        *(["another's cache"] if kind.shares and not first.shares else []),
        *(["a cache of its own"] if first.shares and not kind.shares else []),
        *(
            ["another's index"]
            if kind.latent is not None and first.latent != kind.latent and not kind.latent.index_dim
            else []
        ),
    ]
    name = f"{kind.name} ({', '.join(apart) or 'others'})"
    # Kinds that differ in something that no words say are told apart by strokes.
    while kinds.setdefault(name, replace(kind, name=name)) != replace(kind, name=name):
        name += "'"
    return name


# --- one kind ---------------------------------------------------------------------------------------------------------


def kind_of(read: Reading, mixer: str, *, causal: bool) -> LayerKind:
    """The kind of a layer that attends. Raises InputError: sizes that are missing or contradict each other."""
    # Some layers have sizes under keys of their own, which go before the model's.
    spellings = SPELLINGS["own"].get(mixer, {})
    sizes = {
        SIZES[size_name][0]: read.whole(names, MAX_SIZE) for size_name, names in spellings.items()
    }
    sizes = {key: size for key, size in sizes.items() if size is not None}
    if mixer == "sliding" and not sizes and read.is_one_of("doubled_window_heads"):
        sizes = {SIZES["kv_heads"][0]: 2 * (read.size("kv_heads") or 1)}
    if sizes:
        read = read.with_own(sizes)
    heads = read.needed("heads", "number of heads", MAX_HEADS)
    if (
        mixer.startswith("compressed")
        or read.type == "deepseek_v4"
        or read.get("compress_ratios", "compress_rates")
    ):
        return _compressed(read, heads, mixer)
    # A rank of keys and values makes it latent attention (DeepSeek-V2, arXiv 2405.04434).
    if read.whole(("kv_lora_rank",), 1 << 20) is not None:
        return _latent(read, heads)
    base = _plain(read, heads, mixer, causal=causal)
    if mixer == "chunked":
        chunk = read.size("chunk")
        return base if chunk is None else replace(base, name="chunked", chunk=chunk)
    if mixer == "block sparse":  # MiniMax-M3's keys are read, and said in a caveat
        read.get("index_block_size"), read.get("index_topk_blocks"), read.get("index_local_blocks")
    if mixer != "sliding":
        return base
    # A window as long as the model's positions hides nothing: full attention.
    window, positions = read.size("window"), read.config.get("max_position_embeddings")
    if window is None or (isinstance(positions, int) and window >= positions):
        return base
    return replace(base, name="sliding", window=window)


def _plain(read: Reading, heads: int, mixer: str, *, causal: bool) -> LayerKind:
    alibi = read.flag("alibi") or read.type == "bloom"
    kv_heads = _kv_heads(read, heads)
    if heads % kv_heads:
        raise read.refused(
            f" contradicts itself: {heads} heads are no multiple of its {kv_heads} key/value heads"
        )
    head_dim = read.size("head_dim", 1 << 16)
    # Heads share the model's width out where no key says how wide they are.
    if head_dim is None:
        width = read.needed("width", "width")
        if width % heads and not read.is_one_of("rounded_heads"):
            why = f"{heads} heads do not divide its width of {width}, and it says no head_dim"
            raise read.refused(f" contradicts itself: {why}")
        head_dim = width // heads
    head_dim_v = read.size("head_dim_v", 1 << 16) or head_dim
    sinks = "sinks" in read.facts or read.config.get(SINKS.get(mixer, "")) is True
    return LayerKind(
        "full", 1, heads, kv_heads, head_dim, head_dim_v, causal=causal, sinks=sinks, alibi=alibi
    )


def _latent(read: Reading, heads: int) -> LayerKind:
    rank = read.needed_of(("kv_lora_rank",), "rank of keys and values", 1 << 20)
    nope = read.needed_of(("qk_nope_head_dim",), "columns without positions", 1 << 20)
    rope = read.needed_of(("qk_rope_head_dim",), "columns with positions", 1 << 20)
    wide = read.size("head_dim_v", 1 << 20)
    if wide is None:  # MiniCPM 3's
        wide = read.needed("width", "width") // heads
    top = read.whole(("index_topk",), MAX_SIZE)
    sizes = [
        read.needed_of((key,), key, 1 << 20) if top else 0
        for key in ("index_n_heads", "index_head_dim")
    ]
    q_rank = read.whole(("q_lora_rank",), 1 << 20)
    return LayerKind(
        # Each head has keys of its own once the latent vector is widened: as many as query heads.
        "latent" if top is None else "sparse latent",
        1,
        heads,
        heads,
        nope + rope,
        wide,
        top_k=top,
        latent=Latent(rank, rope, nope, q_rank, *sizes),
    )


def _compressed(read: Reading, heads: int, mixer: str) -> LayerKind:
    """DeepSeek-V4's layers: a window, and beside it compressed keys, all or those that an indexer picks."""
    ratio = RATIOS.get(mixer)
    if ratio is None:
        raise read.refused(
            f": a {read.said_type} has no {mixer} layers; accepted: {', '.join(RATIOS)}"
        )
    wide = read.needed("head_dim", "columns of a head", 1 << 16)
    turned = read.whole(("qk_rope_head_dim",), wide - 1) or wide // 8
    latent = Latent(wide - turned, turned, wide - turned, read.whole(("q_lora_rank",), 1 << 20))
    window = read.needed("window", "sliding_window")
    base = LayerKind("sliding", 1, heads, 1, wide, wide, compress=0, latent=latent, window=window)
    if mixer != "compressed sparse":
        return replace(base, name=mixer, compress=ratio)
    index_heads, dim = (
        read.needed_of((key,), key, 1 << 20) for key in ("index_n_heads", "index_head_dim")
    )
    top = read.needed_of(("index_topk",), "index_topk")
    return replace(
        base,
        name=mixer,
        compress=ratio,
        top_k=top,
        latent=replace(latent, index_heads=index_heads, index_dim=dim),
    )


def _kv_heads(read: Reading, heads: int) -> int:
    if read.type == "falcon":
        if not read.flag("new_decoder_architecture"):
            return 1 if read.flag("multi_query") else heads
        return read.whole(("num_kv_heads",), MAX_HEADS) or heads
    if read.flag("multi_query") or (
        read.flag("multi_query_attention") and read.size("kv_heads", MAX_HEADS) is None
    ):
        return 1
    if read.config.get("multi_query") is False and read.type == "gpt_bigcode":
        return heads
    if read.type == "chatglm" and read.config.get("multi_query_attention") is False:
        return heads
    return read.size("kv_heads", MAX_HEADS) or heads


# --- what a reader should know ----------------------------------------------------------------------------------------


def _notes(read: Reading, stack: _Stack, kinds: Sequence[LayerKind]) -> list[str]:
    notes, order = [], stack.order
    stateful = [kind for kind in kinds if kind.state_kernel is not None]
    for kind in stateful:
        held = f"keep {bytes_text(kind.state_bytes)} per sequence in place of keys and values"
        notes.append(
            f"{kind.count} of {len(order)} layers run {kind.state_kernel} and {held}; convolutions are not counted"
        )
    others = [entry.name for entry in stack.entries if entry.kind is None]
    if others:
        words = ", ".join(
            f"{others.count(w)} of {w.replace('_', ' ')}" for w in dict.fromkeys(others)
        )
        notes.append(
            f"{len(others)} of {len(order)} layers have no softmax attention and are not counted: {words}"
        )
    both = sum(not entry.first for entry in stack.entries)
    if both:
        notes.append(f"{both} layers mix their tokens twice, and count as two: {len(order)} in all")
    if any(kind.shares for kind in kinds):
        shared = sum(kind.count for kind in kinds if kind.shares)
        notes.append(f"{shared} layers use the keys and values of another, and keep none")
    untold = ("max_window_layers", "use_sliding_window", "alibi", "per_layer_config")
    filled = {key: value for key, value in read.filled.items() if key not in untold}
    if filled and read.said_type:
        version = class_defaults()["transformers"]
        words = ", ".join(f"{key} {one_line(str(value), 40)}" for key, value in filled.items())
        notes.append(
            f"not in the file, so the defaults of transformers {version} for {read.type}: {words}"
        )
    if any(kind.sinks for kind in kinds):
        counted_by = "predict, decode and latency count it of kernels that have a place for it"
        notes.append(f"a learned sink a head joins each softmax: {counted_by}")
    if any(kind.compress is not None for kind in kinds):
        notes.append(
            "keys and values are held in fp8; what compresses them is not counted, and weights are not known"
        )
    elif any(kind.top_k for kind in kinds):
        notes.append(
            "prefill is predicted over all keys, as DeepSeek's own code computes it; a step of decoding scores all "
            "keys with the indexer, whose keys are part of the cache, and reads those it picks"
        )
    return notes

"""From the keys of a config.json to kinds of attention layers and their weights, as transformers reads them.

A key has had several names; a class has defaults for what a file leaves out (`defaults.toml`), and builds what no key
says (`families.toml`). Which layers have a window is said by `layer_types`, or by the older keys of each family.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import replace
from iosim.base.schema import Whole, one_line, refuse
from iosim.base.units import bytes_text
from iosim.studies.models.layers import Latent, LayerKind, Mlp, Model, Weights

DEFAULTS = Path(__file__).with_name("defaults.toml")
FAMILIES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
KV_HEADS = ("num_key_value_heads", "n_head_kv", "multi_query_group_num", "num_query_groups")
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
KINDS = {
    "full_attention": "full", "attention": "full", "global": "full", "sliding_attention": "sliding", "local": "sliding",
    "chunked_attention": "chunked", "indexed_attention": "full", "hybrid": "full",
    "compressed_sparse_attention": "compressed sparse", "heavily_compressed_attention": "compressed",
}  # fmt: skip
"""What `layer_types` calls a layer -> the kind."""
RATIOS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
"""Tokens that a compressed key stands for -> what `layer_types` calls such layers (DeepSeek-V4)."""
OTHERS = ("linear_attention", "mamba", "conv", "recurrent", "moe", "mlp", "ssm", "linear")
"""What `layer_types` calls layers without softmax attention."""
MAX_LAYERS = 10_000
MAX_HEADS = 1 << 16
HALF = {"float16": "fp16", "bfloat16": "bf16", "half": "fp16"}
INNER = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
ACTIVE = ("num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts")
BYTES = {"float32": 4.0, "fp32": 4.0}
QUANTISED = {"fp8": (1.0, 1.0), "mxfp4": (2.0, 17 / 32)}
"""Method -> bytes of a number in attention and dense MLPs, and in experts (of MXFP4 with a scale for every 32)."""


@cache
def class_defaults() -> dict[str, Any]:
    """What a config.json means where it leaves a key out: `types` by model_type, and the `encoders` among them."""
    return tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))


class Reading:
    """The keys of a config, with its class's defaults behind them."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self.type = str(config.get("model_type", ""))
        self.defaults: Mapping[str, Any] = class_defaults()["types"].get(self.type, {})
        self.facts = {fact for fact, types in FAMILIES["facts"].items() if self.type in types}
        self.filled: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}

    def get(self, *names: str) -> Any:
        """The value of the first of some names that is there and not null; else the class's default; else None."""
        for name in names:
            if self.config.get(name) is not None:
                self.seen[name] = self.config[name]
                return self.config[name]
        if any(name in self.config for name in names):
            return None  # a null is said
        for name in names:
            if name in self.defaults:
                self.filled[name] = self.defaults[name]
                return self.defaults[name]
        return None

    def needed(self, names: Sequence[str], what: str, high: int) -> int:
        """A whole number. Raises InputError: it is missing, no whole number, or out of range."""
        value = self.whole(names, high)
        if value is None:
            kind = f" (model_type {one_line(self.type, 40)})" if self.type else ""
            hint = "accepted: the config.json of a transformer"
            raise InputError(f"`model` '{self.name}'{kind} says no {what}: {' or '.join(names)} is missing; {hint}")
        return value

    def whole(self, names: Sequence[str], high: int) -> int | None:
        """A whole number; None where there is none. Raises InputError: no whole number, or out of range."""
        value = self.get(*names)
        if value is None:
            return None
        key = next(name for name in names if name in self.seen or name in self.filled)
        refuse(list(Whole(1, high).problems(value, key)), f"`model` '{self.name}'")
        return int(value)


def model_of(
    config: Mapping[str, Any], name: str, title: str, source: str, notes: tuple[str, ...] = (), *, nested: bool
) -> Model:
    """The model that a config's keys describe; `nested` is part of another, and often left to its class's defaults."""
    read = Reading(config, name)
    attention = config.get("attn_config")
    if isinstance(attention, dict):  # MPT's and DBRX's
        inner = {"num_key_value_heads": attention.get("kv_n_heads"), "alibi": attention.get("alibi")}
        read.config = {key: value for key, value in inner.items() if value} | dict(config)
    if not nested and not any(key in config for key in (*HEADS, *LAYERS)):
        read.defaults = {}
    layers = read.needed(LAYERS, "number of layers", MAX_LAYERS)
    heads = read.needed(HEADS, "number of heads", MAX_HEADS)
    encoder = read.type in class_defaults()["encoders"] or config.get("use_bidirectional_attention") is True
    base = _base(read, heads, causal=not encoder)
    order = _order(read, layers)
    words = {word: _kind(read, base, word) for word in dict.fromkeys(order) if word in KINDS.values()}
    if not words:
        raise InputError(f"`model` '{name}' has no layer with attention; accepted: the config.json of a transformer")
    held = {word: kind for word in dict.fromkeys(order) if (kind := _state(read, word)) is not None}
    order = [held[word].name if word in held else words[word].name if word in words else word for word in order]
    states = tuple(replace(kind, count=order.count(kind.name)) for kind in held.values())
    kinds = [replace(kind, count=order.count(kind.name)) for kind in dict.fromkeys(words.values())]
    said = (*notes, *_notes(read, order, [*kinds, *states]))
    width = None if base.compress is not None else read.whole(WIDTH, 1 << 24)
    weights = None if width is None or encoder or states or set(order) & {*OTHERS} else weights_of(read, width, layers)
    precision = HALF.get(str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch."))
    return Model(name, title, source, tuple(kinds), tuple(order), precision,
                 width, notes=said, config=config, weights=weights, states=states)  # fmt: skip


def _base(read: Reading, heads: int, *, causal: bool) -> LayerKind:
    name = read.name
    alibi = bool(read.get("alibi")) or read.type == "bloom"
    rank = read.whole(("kv_lora_rank",), 1 << 20)
    if rank is not None:
        nope = read.needed(("qk_nope_head_dim",), "columns without positions", 1 << 20)
        rope = read.needed(("qk_rope_head_dim",), "columns with positions", 1 << 20)
        wide = read.whole(("v_head_dim",), 1 << 20)
        if wide is None:  # MiniCPM 3's
            wide = read.needed(WIDTH, "width", 1 << 24) // heads
        top = read.whole(("index_topk",), 1 << 24)
        sizes = [read.needed((key,), key, 1 << 20) if top else 0 for key in ("index_n_heads", "index_head_dim")]
        q_rank = read.whole(("q_lora_rank",), 1 << 20)
        return LayerKind("latent" if top is None else "sparse latent", 1, heads, heads, nope + rope, wide,
                         top_k=top, latent=Latent(rank, rope, nope, q_rank, *sizes))  # fmt: skip
    if read.type == "deepseek_v4":
        wide = read.needed(HEAD_DIM, "columns of a head", 1 << 16)
        turned = read.whole(("qk_rope_head_dim",), wide - 1) or wide // 8
        latent = Latent(wide - turned, turned, wide - turned, read.whole(("q_lora_rank",), 1 << 20))
        return LayerKind("sliding", 1, heads, 1, wide, wide, compress=0, latent=latent)
    kv_heads = _kv_heads(read, heads)
    if heads % kv_heads:
        raise InputError(
            f"`model` '{name}' contradicts itself: {heads} heads are no multiple of its {kv_heads} key/value heads"
        )
    head_dim = read.whole(HEAD_DIM, 1 << 16)
    if head_dim is None:
        width = read.needed(WIDTH, "width", 1 << 24)
        if width % heads:
            why = f"{heads} heads do not divide its width of {width}, and it says no head_dim"
            raise InputError(f"`model` '{name}' contradicts itself: {why}")
        head_dim = width // heads
    head_dim_v = read.whole(("v_head_dim",), 1 << 16) or head_dim
    return LayerKind(
        "full", 1, heads, kv_heads, head_dim, head_dim_v, causal=causal, sinks="sinks" in read.facts, alibi=alibi
    )


def _kv_heads(read: Reading, heads: int) -> int:
    if read.type == "falcon":
        new = read.get("new_decoder_architecture")
        if not new:
            return 1 if read.get("multi_query") else heads
        return read.whole(("num_kv_heads",), MAX_HEADS) or heads
    if read.get("multi_query"):
        return 1
    return read.whole(KV_HEADS, MAX_HEADS) or heads


def _order(read: Reading, layers: int) -> list[str]:
    listed = read.get("layer_types")
    if listed is None and read.get("attention_types"):  # GPT-Neo: [[["global", "local"], 12]]
        listed = _spread(read, read.get("attention_types"))
    if listed is None:
        listed = _by_family(read, layers)
    if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
        raise InputError(f"`model` '{read.name}': layer_types is no list of words; accepted: one word a layer")
    if len(listed) < layers:
        raise InputError(f"`model` '{read.name}' contradicts itself: {len(listed)} layer_types for {layers} layers")
    words = [str(word) for word in listed[:layers]]
    for word in dict.fromkeys(words):
        if word not in KINDS and word not in OTHERS:
            hint = f"accepted: {', '.join((*KINDS, *OTHERS))}"
            raise InputError(f"`model` '{read.name}': layer type '{one_line(word, 40)}' is not known; {hint}")
    return [KINDS.get(word, word) for word in words]


def _spread(read: Reading, types: Any) -> list[str]:
    try:
        return [word for words, times in types for _ in range(times) for word in words]
    except (TypeError, ValueError):
        raise InputError(f"`model` '{read.name}': attention_types is no list of [words, times]") from None


def _by_family(read: Reading, layers: int) -> list[str]:
    """Kinds by the keys that stood for `layer_types` before there were any, and by the class's own pattern."""
    window = read.get("sliding_window")
    interval = read.get("sliding_window_pattern")
    if isinstance(read.config.get("no_rope_layers"), list) and read.config["no_rope_layers"]:
        return ["chunked_attention" if rope else "full_attention" for rope in read.config["no_rope_layers"]]
    if isinstance(interval, int) and interval > 0 and window:
        return ["sliding_attention" if (n + 1) % interval else "full_attention" for n in range(layers)]
    ratios = read.get("compress_ratios")
    if isinstance(ratios, list):
        if any(isinstance(ratio, bool) or ratio not in RATIOS for ratio in ratios):
            raise InputError(f"`model` '{read.name}': compress_ratios holds others; accepted: 0, 4, 128")
        return [RATIOS[ratio] for ratio in ratios]
    kimi = read.config.get("linear_attn_config")
    if isinstance(kimi, dict) and isinstance(kimi.get("kda_layers"), list):
        return ["linear_attention" if n + 1 in kimi["kda_layers"] else "full_attention" for n in range(layers)]
    every = read.config.get("full_attention_interval")
    if isinstance(every, int) and every > 0:
        return ["linear_attention" if (n + 1) % every else "full_attention" for n in range(layers)]
    every = read.config.get("global_attn_every_n_layers")
    if isinstance(every, int) and every > 0:
        return ["sliding_attention" if n % every else "full_attention" for n in range(layers)]
    pattern = read.defaults.get("layer_pattern")
    if pattern:
        return [pattern[n % len(pattern)] for n in range(layers)]
    if "use_sliding_window" in read.defaults or "use_sliding_window" in read.config:
        first = read.get("max_window_layers") or 0
        if not read.get("use_sliding_window") or not window:
            return ["full_attention"] * layers
        return ["full_attention" if n < first else "sliding_attention" for n in range(layers)]
    return ["sliding_attention" if window else "full_attention"] * layers


def _kind(read: Reading, base: LayerKind, word: str) -> LayerKind:
    if base.compress is not None:
        return _compressed(read, base, word)
    if base.latent is not None:
        return base
    if word == "full":  # sizes of its own beside sliding layers (Gemma 4)
        dim, kv = read.whole(("global_head_dim",), 1 << 16), read.whole(("num_global_key_value_heads",), MAX_HEADS)
        base = base if dim is None else replace(base, head_dim=dim, head_dim_v=dim)
        return base if kv is None else replace(base, kv_heads=kv)
    if word == "chunked":
        chunk = read.whole(("attention_chunk_size",), 1 << 24)
        return base if chunk is None else replace(base, name="chunked", chunk=chunk)
    window = read.whole(("sliding_window", "local_attention", "window_size"), 1 << 24)
    most = read.config.get("max_position_embeddings")
    if window is None or (isinstance(most, int) and window >= most):
        return base
    return replace(base, name="sliding", window=window)


def _compressed(read: Reading, base: LayerKind, word: str) -> LayerKind:
    """DeepSeek-V4's layers: a window, and beside it compressed keys, all or those that an indexer picks."""
    base = replace(base, window=read.needed(("sliding_window",), "sliding_window", 1 << 24))
    ratio = next((ratio for ratio, name in RATIOS.items() if KINDS[name] == word), None)
    if ratio is None:
        raise InputError(
            f"`model` '{read.name}': a {read.type} has no {word} layers; accepted: {', '.join(RATIOS.values())}"
        )
    if word != "compressed sparse":
        return replace(base, name=word, compress=ratio)
    assert base.latent is not None
    heads, dim = (read.needed((key,), key, 1 << 20) for key in ("index_n_heads", "index_head_dim"))
    top = read.needed(("index_topk",), "index_topk", 1 << 24)
    return replace(
        base, name=word, compress=ratio, top_k=top, latent=replace(base.latent, index_heads=heads, index_dim=dim)
    )


def _state(read: Reading, word: str) -> LayerKind | None:
    """Layers that keep a state: Kimi's, gated DeltaNet's or Mamba-2's, by the keys of their sizes; None without."""
    high, kimi = 1 << 16, read.config.get("linear_attn_config")
    if word == "linear_attention" and isinstance(kimi, dict):
        for key in ("num_heads", "head_dim"):
            refuse(list(Whole(1, high).problems(kimi.get(key), key)), f"`model` '{read.name}'")
        heads, columns = int(kimi["num_heads"]), int(kimi["head_dim"])
        return LayerKind("linear", 1, heads, heads, columns, columns, state_kernel="kda")
    state = FAMILIES["states"].get(word, {"keys": ()})
    sizes = [size for names in state["keys"] if (size := read.whole(names, high)) is not None]
    if not sizes or len(sizes) < len(state["keys"]):
        return None
    heads, kv_heads, columns, inner = sizes
    name = word.removesuffix("_attention")
    return LayerKind(name, 1, heads, kv_heads, columns, inner, state_kernel=state["kernel"])


def _notes(read: Reading, order: Sequence[str], kinds: Sequence[LayerKind]) -> list[str]:
    notes = []
    stateful = [kind for kind in kinds if kind.state_kernel is not None]
    for kind in stateful:
        held = f"keep {bytes_text(kind.state_bytes)} a sequence in place of keys and values"
        notes.append(
            f"{kind.count} of {len(order)} layers run {kind.state_kernel} and {held}; convolutions are not counted"
        )
    others = [word for word in order if word in OTHERS and word not in {kind.name for kind in stateful}]
    if others:
        words = ", ".join(f"{others.count(w)} of {w.replace('_', ' ')}" for w in dict.fromkeys(others))
        notes.append(f"{len(others)} of {len(order)} layers have no softmax attention and are not counted: {words}")
    untold = ("max_window_layers", "use_sliding_window", "alibi")
    filled = {key: value for key, value in read.filled.items() if key not in untold}
    if filled and read.type:
        version = class_defaults()["transformers"]
        words = ", ".join(f"{key} {value}" for key, value in filled.items())
        notes.append(f"not in the file, so the defaults of transformers {version} for {read.type}: {words}")
    if any(kind.sinks for kind in kinds):
        what = "predict, decode and latency count it of kernels that have a place for it"
        notes.append(f"a learned sink a head joins each softmax: {what}")
    if any(kind.compress is not None for kind in kinds):
        notes.append("keys and values are held in fp8; what compresses them is not counted, and weights are not known")
    elif any(kind.top_k for kind in kinds):
        notes.append(
            "prefill is predicted over all keys, as DeepSeek's own code computes it; a step of decoding scores all "
            "keys with the indexer, whose keys are part of the cache, and reads those it picks"
        )
    return notes


def weights_of(read: Reading, width: int | None, layers: int) -> Weights | None:
    """What a decoder's weights are beside those of its attention: embeddings, and the MLP or the experts of each layer;
    None where the config does not say it. Counted are matrices; biases, norms and learned positions, below 1 % of them,
    are not. Not for models some of whose layers are no attention."""
    config, inner, rows = read.config, read.get(*INNER), read.get("vocab_size")
    gated = "plain" not in read.facts
    if inner is None and not gated and width is not None:
        inner = 4 * width
    usual = BYTES.get(str(config.get("torch_dtype") or config.get("dtype")), 2.0)
    quantised = config.get("quantization_config")
    method = str(quantised.get("quant_method")) if isinstance(quantised, Mapping) else ""
    known = all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 1 << 24 for n in (width, inner, rows))
    if not known or (method and method not in QUANTISED):
        return None
    mlps = []
    for n in range(layers):
        experts = _experts(read, n)
        if experts is None:
            dense = read.get("intermediate_size_mlp") if read.get(*EXPERTS) else None
            mlps.append(Mlp(dense or inner, 3 if gated else 2))
            continue
        number, wide, shared = experts
        mlps.append(Mlp(shared, 3 if gated else 2, number, wide, read.whole(ACTIVE, number)))
    return Weights(
        int(width or 0), rows, bool(read.get("tie_word_embeddings")), tuple(mlps), usual,
        *QUANTISED.get(method, (usual, usual)), norms=4 if "more_norms" in read.facts else 2,
        head_norms="head_norms" in read.facts, turned="not_turned" not in read.facts, learned="learned" in read.facts,
    )  # fmt: skip


def _experts(read: Reading, layer: int) -> tuple[int, int, int] | None:
    """(experts, their width, width of what all tokens pass) of a layer; None where its MLP is dense."""

    def number(*names: str) -> int:
        return (read.whole(names, 1 << 24) or 0) if read.get(*names) else 0

    every = number("decoder_sparse_step", "interleave_moe_layer_step") or 1
    dense = read.get("mlp_only_layers")
    is_dense = isinstance(dense, list) and layer in dense
    if not number(*EXPERTS) or layer < number("first_k_dense_replace") or (layer + 1) % every or is_dense:
        return None
    wide = number("moe_intermediate_size") or read.needed(INNER, "width of its experts", 1 << 24)
    shared = number("n_shared_experts") * wide + number("shared_expert_intermediate_size")
    return number(*EXPERTS), wide, read.needed(INNER, "width", 1 << 24) if read.type == "llama4_text" else shared

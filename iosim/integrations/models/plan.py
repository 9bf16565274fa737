"""A config's layers, one by one: what each mixes its tokens with, and what sizes of its own it has.

Some keys hold a number a layer, a table a layer, or say which layers use another's keys and values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from iosim.base.records import dataclass
from iosim.integrations.models import patterns
from iosim.integrations.models.reading import FAMILIES, MAX_LAYERS, SIZES, Reading, at
from iosim.studies.models.layers import LayerKind

FEEDS = {"moe": "sparse", "mlp": "dense"}
"""Words of layers that mix nothing -> what they are instead."""
LISTED = ("heads", "kv_heads", "head_dim", "head_dim_v", "window")
"""Sizes of attention that may be lists of one number a layer."""


@dataclass(frozen=True)
class Layer:
    """One layer of a config.

    Args:
        place: which it is, from 0.
        word: what the config calls it.
        mixers: what it mixes its tokens with, one behind or beside the other; none in an MLP that is a layer itself.
        feed: what follows: "dense", "sparse", "" for nothing, or None where other keys say it.
        settings: keys of the config that hold for it alone.
        shares: "cache" where it uses another's keys and values, "index" where it uses the tokens that another picked.
    """

    place: int
    word: str
    mixers: tuple[str, ...]
    feed: str | None
    settings: Mapping[str, Any]
    shares: str

    @property
    def alike(self) -> str:
        """A text that is the same for layers that attend alike."""
        return json.dumps([self.settings, self.shares], sort_keys=True, default=str)


@dataclass(frozen=True)
class Entry:
    """One mixer of one layer, or an MLP that is a layer of its own.

    Args:
        layer: the layer it is of.
        name: of its kind, or what it is called where it has none.
        kind: its kind; None where it neither attends nor keeps a state that is modelled.
        mixer: what it mixes its tokens with; "" for nothing.
        last: whether the layer's MLP follows it.
        first: whether it is the layer's first.
    """

    layer: Layer
    name: str
    kind: LayerKind | None
    mixer: str
    last: bool
    first: bool


def layer_number(read: Reading) -> int:
    """How many layers there are. Raises InputError: no key says it."""
    is_written = any(at(read.config, name) is not None for name in SIZES["layers"])
    counted = patterns.layer_count(read)
    if counted is not None and (not is_written or counted_rules(read)):
        if not 1 <= counted <= MAX_LAYERS:
            raise read.refused(f" has {counted} layers; accepted: 1 to {MAX_LAYERS}")
        return counted
    layers = read.needed("layers", "number of layers", MAX_LAYERS)
    return layers + read.number("num_global_layers")  # Llama 3.2's vision tower has 8 behind its 32


def counted_rules(read: Reading) -> bool:
    """True where the list of layers says how many there are, whatever the number beside it (Nemotron-H)."""
    return str(read.type) == "nemotron_h"


def layers_of(read: Reading, layers: int) -> list[Layer]:
    """Every layer of a config. Raises InputError: keys that contradict each other or that make no sense."""
    words = words_of(read, layers)
    alone = any(word in FEEDS for word in words)  # each layer is a mixer or an MLP
    mixers = {word: tuple(patterns.meaning(read, word)) for word in dict.fromkeys(words)}
    shared = _shared(read, layers)
    tables = _tables(read, layers)
    layer_list = []
    for place, word in enumerate(words):
        feed = FEEDS.get(word) or (
            "" if alone or (word == "skipped" and not tables[place]) else None
        )
        layer_list.append(Layer(place, word, mixers[word], feed, tables[place], shared[place]))
    return layer_list


def words_of(read: Reading, layers: int) -> list[str]:
    """A word a layer: of the keys that say it, else of the class's defaults, else by the window alone."""
    layer_words = patterns.mixer_words(read, layers)
    if layer_words is not None:
        return layer_words
    pattern = read.defaults.get("layer_pattern")
    if pattern:
        return [pattern[n % len(pattern)] for n in range(layers)]
    keys = {row["key"] for row in patterns.PATTERNS["mixer"]} | {"attn_layer_offset"}
    default_keys = {key: value for key, value in read.defaults.items() if key in keys}
    layer_words = (
        patterns.mixer_words(read.with_own({**default_keys, **read.config}), layers)
        if default_keys
        else None
    )
    if layer_words is not None:
        return layer_words
    window = read.get(*SIZES["window"][:2])
    if isinstance(window, list) and len(window) >= layers:  # params.json: a window a layer
        return ["sliding_attention" if bound else "full_attention" for bound in window[:layers]]
    if "use_sliding_window" in read.defaults or "use_sliding_window" in read.config:
        first = read.number("max_window_layers")
        if not read.flag("use_sliding_window") or not window:
            return ["full_attention"] * layers
        return ["full_attention" if n < first else "sliding_attention" for n in range(layers)]
    if read.is_one_of("windowed"):
        window = read.get(*SIZES["window"])
    if read.type in FAMILIES["usual"]:
        return [FAMILIES["usual"][read.type]] * layers
    return ["sliding_attention" if window else "full_attention"] * layers


def _shared(read: Reading, layers: int) -> list[str]:
    keys = {row["key"] for row in patterns.PATTERNS["shared"]}
    defaults = {
        key: value for key, value in read.defaults.items() if key in keys and key not in read.config
    }
    read = read.with_own(defaults) if defaults else read
    shared = [""] * layers
    for row in patterns.rows(read, "shared"):
        row_words = next((words for _, words in patterns.told(read, [row], layers)), None)
        mine = {row["inside"]} if "inside" in row else {*row["words"].values()}
        remaining = ["" if old in mine else old for old in shared]  # a later key says it anew
        shared = [new or old for new, old in zip(row_words or remaining, remaining, strict=True)]
    return shared


def _tables(read: Reading, layers: int) -> list[dict[str, Any]]:
    """Keys of each layer's own: of lists with a number a layer, and of tables a layer."""
    layer_keys: list[dict[str, Any]] = [{} for _ in range(layers)]
    for names in (SIZES[size_name] for size_name in LISTED):
        for key in (*names, *(f"{name}_per_layer" for name in names)):
            value = read.config.get(key)
            if isinstance(value, list) and len(value) >= layers and len({*map(str, value)}) > 1:
                read.seen.add(key)
                for n in range(layers):
                    layer_keys[n][names[0]] = value[n]
            elif key.endswith("_per_layer") and isinstance(value, list):
                read.seen.add(key)
    layer_tables = read.config.get("per_layer_config") or read.defaults.get("per_layer_config")
    if isinstance(layer_tables, Mapping):
        read.seen.add("per_layer_config")
        for place, keys in layer_tables.items():
            if str(place).isdecimal() and int(place) < layers and isinstance(keys, Mapping):
                layer_keys[int(place)].update(keys)
    blocks = read.config.get("block_configs")
    if isinstance(blocks, list):
        read.seen.add("block_configs")
        for n, block in enumerate(blocks[:layers]):
            layer_keys[n].update(_of_block(read, block))
    return layer_keys


def _of_block(read: Reading, block: Any) -> dict[str, Any]:
    """What a layer of Nemotron-NAS says: heads a key/value head serves, and how wide its MLP is."""
    attention, feed = (
        (block.get(key) if isinstance(block, Mapping) else None) or {}
        for key in ("attention", "ffn")
    )
    group, heads = attention.get("n_heads_in_group"), read.size("heads")
    keys: dict[str, Any] = {"feed": not feed.get("no_op")}
    if isinstance(group, int) and group > 0 and heads:
        keys["num_key_value_heads"] = max(1, heads // group)
    if isinstance(feed.get("intermediate_size"), int):
        keys["intermediate_size"] = feed["intermediate_size"]
    elif isinstance(feed.get("ffn_mult"), int | float):
        wide = round(2 * feed["ffn_mult"] * (read.size("width") or 0) / 3)
        keys["intermediate_size"] = -(-wide // 256) * 256
    if feed.get("replace_with_linear"):
        keys["linear_feed"] = True
    return keys

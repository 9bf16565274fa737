"""From what `--model` names to a `Model`: a preset, a config.json, or a directory that holds one.

And from a model to what a training step of it is asked with. NAME:vision and FILE:vision take the vision tower of a
model that has one; the text is taken where nothing is said.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError, alike, unknown_name
from iosim.base.files import read_object
from iosim.base.schema import Whole, one_line, refuse
from iosim.integrations.models.kinds import model_of
from iosim.integrations.models.reading import (
    FAMILIES,
    MAX_LAYERS,
    MAX_SIZE,
    SIZES,
    SPELLINGS,
    at,
    class_defaults,
)
from iosim.integrations.models.unread import is_part, outside_keys
from iosim.studies.models.layers import Model

PARTS: Mapping[str, Sequence[str]] = SPELLINGS["parts"]
"""Part of a model -> the keys under which a config.json may hold it."""
FILES = ("config.json", "params.json")
"""What a directory may hold: Hugging Face's file, or Mistral's and Meta's."""
PACKED = "hf_quant_config.json"
"""Beside them: how NVIDIA's ModelOpt packed the weights."""
MAX_BYTES = 10_000_000
MAX_TITLE, MAX_SOURCE = 200, 4000
MAX_NAME = 255
"""Most bytes of a file's name: a longer one is none."""
PRESETS = Path(__file__).parent / "presets"
"""The models that ship: a TOML file each, with the keys of its config.json that tell of attention."""
TUNED = re.compile(r"[-_ ](instruct|chat|it|base|hf|pt|preview|thinking|reasoning|\d{4}|latest)$")
"""What is behind a model's name where it was tuned or dated: its layers are the same."""
OUTER = (
    "torch_dtype",
    "dtype",
    "quantization_config",
    "quantization",
    "architectures",
    "tie_word_embeddings",
)
"""Keys of a whole model that hold for its text."""


@cache
def preset(name: str) -> dict[str, Any]:
    return tomllib.loads((PRESETS / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def preset_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


@cache
def all_names() -> dict[str, str]:
    names = {name: name for name in preset_names()}
    return names | {
        alias.lower(): name for name in preset_names() for alias in preset(name).get("aliases", ())
    }


def load_model(source: str | os.PathLike[str] | Mapping[str, Any] | Model) -> Model:
    """The model of a preset's name, of a config.json or its directory, or of what such a file holds."""
    if isinstance(source, Model):
        return source
    if hasattr(source, "model_type") and hasattr(source, "to_dict"):  # a config of transformers
        source = source.to_dict()
    if isinstance(source, Mapping):
        name = str(source.get("_name_or_path") or source.get("model_type") or "config")
        return _model(source, name, name, "as given", None)
    if not isinstance(source, str | os.PathLike):
        accepted = "models' names, paths, or what a config.json holds"
        raise InputError(f"`model` {one_line(repr(source), 60)} is no model; accepted: {accepted}")
    named = os.fspath(source).strip()
    if len(named) > MAX_SOURCE or any(len(os.fsencode(n)) > MAX_NAME for n in Path(named).parts):
        raise _unknown(named)
    text, part = _with_part(named)
    if not text.strip():
        raise InputError(
            "`model` '' is empty; accepted: a name of `iosim models list`, a config.json, or its directory"
        )
    path = Path(text)
    # A name of a preset counts where no file or directory is called so.
    known = _known(text)
    if known is not None and not path.exists():
        data = preset(known)
        # Llama 3.1 is Llama 3 with more positions: an alias may have its own number of them.
        longer = data.get("positions", {}).get(_spelt(text))
        positions = {} if longer is None else {"max_position_embeddings": longer}
        return _model(
            dict.fromkeys(data.get("nulls", ())) | data["config"] | positions,
            known,
            data["title"],
            data["source"],
            part,
        )
    if (
        not path.exists()
        and path.suffix.lower() != ".json"
        and not text.startswith((".", os.sep, "~"))
    ):
        raise _unknown(text)
    # A directory is read at the first of its files that are known; else the message names the usual one.
    if path.is_dir():
        path = next((path / file for file in FILES if (path / file).exists()), path / FILES[0])
    if path.name == PACKED:
        raise InputError(
            f"`model` '{one_line(path)}' says how weights are packed; accepted: the directory it lies in"
        )
    name = path.resolve().parent.name if path.name in FILES else path.stem
    accepted = "a name of `iosim models list`, a config.json of Hugging Face, or a directory that holds one"
    config = _with_packing(
        read_object(path, f"`model` '{one_line(path)}'", accepted, MAX_BYTES), path
    )
    return _model(config, name, str(config.get("_name_or_path") or name), str(path), part)


def _known(text: str) -> str | None:
    """The preset that a name stands for: its own, one of its aliases, or that of the model that was tuned."""
    return all_names().get(_spelt(text))


def _spelt(text: str) -> str:
    """A name as presets or their aliases spell it; as it is where none does."""
    name, names = text.strip().lower(), all_names()
    while name not in names:
        shorter = TUNED.sub("", name)
        if shorter == name:
            return name.rpartition("/")[2]
        name = shorter
    return name


def _unknown(text: str) -> InputError:
    """A short line: the names that are like it, and what else is taken."""
    near = alike(text.rpartition("/")[2], preset_names())[:3]
    meant = f"did you mean {', '.join(near)}, " if near else ""
    more = "" if near else ", or a name of `iosim models list`"
    ends = "or give its config.json" if near else "give its config.json"
    return InputError(
        f"`model` '{one_line(text, 60)}' is not known; {meant}{ends}{more}{'?' if near else ''}"
    )


def _with_packing(config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """A config, with what a file beside it says of its packed weights."""
    beside = path.parent / PACKED
    if path.name not in FILES or config.get("quantization_config") or not beside.exists():
        return config
    quantisation = read_object(
        beside, f"`model` '{one_line(beside)}'", "what ModelOpt writes", MAX_BYTES
    )
    packing = quantisation.get("quantization")
    return {**config, "quantization_config": packing} if isinstance(packing, Mapping) else config


def _with_part(text: str) -> tuple[str, str | None]:
    before, colon, part = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, None
    if part == "text":  # what is taken where nothing is said
        return before, None
    if part in PARTS:
        return before, part
    if _known(before) is not None or Path(before).exists():
        raise unknown_name("part of `model`", part, PARTS)
    return text, None


def _model(
    config: Mapping[str, Any], name: str, title: str, source: str, part: str | None
) -> Model:
    """The model of a config's keys, of its text where it has several parts."""
    # A file from elsewhere names itself: what a terminal would obey, and what fills a page, is left out.
    name, title = one_line(name, MAX_TITLE), one_line(title, MAX_TITLE)
    source = one_line(source, MAX_SOURCE)
    refuse_others(config, name)
    config = _as_config(config)
    # Each part of a model, such as its vision tower, by the first of its keys that holds a table.
    parts: dict[str, dict[str, Any] | None] = {
        word: next((config[key] for key in keys if isinstance(config.get(key), dict)), None)
        for word, keys in PARTS.items()
    }
    text = parts["text"]
    if parts["vision"] is None and text is not None:  # Qwen2.5-Omni holds both in its thinker
        parts["vision"] = next(
            (text[key] for key in PARTS["vision"] if isinstance(text.get(key), dict)), None
        )
    # Without a part the text is meant; a file without parts describes the text itself.
    inner = parts[part or "text"]
    if (
        part == "vision"
        and inner is None
        and not isinstance(parts["text"], dict)
        and is_part(config)
    ):
        inner = dict(config)  # the file is the tower's own
    # The outer keys are the model: no table of a part, or one that says no sizes.
    if inner is None or (part is None and _says_more(config, inner)):
        if part is not None:
            raise InputError(f"`model` '{name}' has no {part} part; accepted: without :{part}")
        sees = parts["vision"] is not None
        return model_of(
            config, name, title, source, _beside(config, config, name, sees), nested=False
        )
    refuse_others(inner, name)
    # What a whole model says of packing, types and tied embeddings holds for its text, too. Other
    # parts take the type alone.
    outer = {
        key: config[key]
        for key in OUTER
        if config.get(key) is not None and (part is None or "type" in key)
    }
    if part is not None:
        return model_of(
            outer | inner, f"{name}:{part}", f"{title}, {part}", source, nested=True, sees=True
        )
    # A table of the text may hold another one (Qwen2.5-Omni's thinker).
    below = next((inner[key] for key in PARTS["text"] if isinstance(inner.get(key), dict)), None)
    inner = (
        inner
        if below is None
        else {key: value for key, value in inner.items() if key in OUTER} | below
    )
    notes = _beside(config, inner, name, parts["vision"] is not None)
    outside = outside_keys(config, name)
    return model_of(outer | inner, name, title, source, notes, nested=True, outside=outside)


def _beside(
    config: Mapping[str, Any], inner: Mapping[str, Any], name: str, sees: bool
) -> tuple[str, ...]:
    """A note on the parts of a model that are not its text: a vision tower, and tables that say layers."""
    others = [
        one_line(key, 40)
        for key, table in config.items()
        if isinstance(table, Mapping)
        and table is not inner
        and key not in (*PARTS["text"], *PARTS["vision"])
        and _has_layers(table)
    ]
    tower = [f"{name}:vision is its vision tower"] if sees else []
    left_out = [f"not counted: {', '.join(others)}"] if others else []
    notes = [*tower, *left_out]
    return (f"its text alone; {'; '.join(notes)}",) if notes else ()


def _has_layers(table: Mapping[str, Any]) -> bool:
    """True where a table, or one inside it, says how many layers something has."""
    return any(layers in table for layers in SIZES["layers"]) or any(
        _has_layers(inner) for inner in table.values() if isinstance(inner, Mapping)
    )


def _says_more(config: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
    """True where a file's own keys describe its text, and the table in it says no sizes."""
    keys = (*SIZES["layers"], *SIZES["heads"])
    return (
        any(config.get(key) is not None for key in keys)
        and not any(key in inner for key in keys)
        and ("model_type" not in inner)
    )


def _as_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A params.json by a type of its own: Mistral's and Meta's have no model_type."""
    if config.get("model_type"):
        return config
    for row in FAMILIES["unnamed"]:
        if {*row["keys"]} <= {*config}:
            return {"model_type": row["type"], **row.get("also", {}), **config}
    if not {"n_heads", "n_layers", "dim"} <= {*config}:
        return config
    window, layers = config.get("sliding_window"), config["n_layers"]
    if isinstance(window, list) and window and type(layers) is int and 0 < layers <= MAX_LAYERS:
        # Mistral's code repeats a list of windows over the layers.
        config = {**config, "sliding_window": [window[n % len(window)] for n in range(layers)]}
    return {
        **config,
        "model_type": "llama_params",
        "torch_dtype": config.get("torch_dtype") or "bfloat16",
    }


def refuse_others(config: Mapping[str, Any], name: str) -> None:
    accepted = "accepted: the config.json of a transformer"
    if "_class_name" in config or "_diffusers_version" in config:
        kind = config.get("_class_name", "a pipeline")
        raise InputError(
            f"`model` '{name}' is of diffusers ({one_line(kind, 40)}), no transformer of Hugging Face's; {accepted}"
        )
    if "peft_type" in config:
        hint = "accepted: the config.json of the model it adapts"
        raise InputError(
            f"`model` '{name}' is an adapter's ({one_line(config['peft_type'], 40)}); {hint}"
        )
    built = config.get("architectures")
    encodes = isinstance(built, list) and any(str(one).endswith("EncoderModel") for one in built)
    is_both = config.get("is_encoder_decoder", config.get("model_type") in class_defaults()["both"])
    if is_both and not encodes:
        both = f"({one_line(config.get('model_type', 'unknown'), 40)}) is an encoder and a decoder with attention"
        hint = "accepted: the config.json of a decoder or an encoder"
        raise InputError(f"`model` '{name}' {both} between them, which is not described; {hint}")


ACTIVATIONS = {"silu": "silu", "swish": "silu", "relu": "relu"}


def decoder_of(model: Model) -> dict[str, Any]:
    """The model's sizes and choices by the keywords of `iosim.train_memory`."""
    config = model.config
    # The first reason against is what the message says.
    families = FAMILIES["trained"]
    family = families.get(str(config.get("model_type")))
    first = model.all_kinds[0]
    why = None
    if family is None:
        why = f"a {config.get('model_type')} is none of the families that it builds"
    elif any(at(config, key) for key in SIZES["experts"]):
        why = "it has experts"
    elif first.window is not None or first.chunk is not None:
        why = "its layers see a part of the tokens before"
    elif len(model.all_kinds) > 1 or len(model.order) != model.layers:
        why = "its layers are of several kinds"
    elif model.width is None or first.head_dim * first.heads != model.width:
        why = f"its {first.heads} heads of {first.head_dim} columns are not as wide as its {model.width} columns"
    if why is not None or family is None:
        accepted = f"models of {', '.join(families)} whose layers are alike and dense"
        raise InputError(
            f"`model` '{model.name}' cannot be trained here: {why}; accepted: {accepted}"
        )
    # An MLP without a width is four times as wide as the model, as in GPT-2.
    inside = _size_of(model, ("intermediate_size", "n_inner"), 4 * (model.width or 0))
    act = str(config.get("hidden_act") or config.get("activation_function") or family["activation"])
    tied = bool(config.get("tie_word_embeddings", family["tied"]))
    return {
        "layers": model.layers,
        "width": model.width,
        "heads": first.heads,
        "kv_heads": first.kv_heads,
        "mlp_width": inside,
        "gated": family["gated"],
        "activation": ACTIVATIONS.get(act, "gelu"),
        "vocabulary": _size_of(model, ("vocab_size",), 0),
        "untied": not tied,
        "norm": family["norm"],
        "positions": family["positions"],
        "linear_bias": family["linear_bias"],
        "causal": model.causal,
    }


def _size_of(model: Model, names: Sequence[str], default: int) -> int:
    """A number of a model's config. Raises InputError: it is no whole number of at least 1, or null."""
    for name in names:
        if name in model.config:
            value = model.config[name]
            if value is None and name == "n_inner":  # GPT-2's, four times its width
                continue
            refuse(list(Whole(1, MAX_SIZE).problems(value, name)), f"`model` '{model.name}'")
            return int(value)
    return default

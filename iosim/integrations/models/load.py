"""From what `--model` names to a `Model`: a preset, a config.json, or a directory that holds one.

And from a model to what a training step of it is asked with. NAME:vision and FILE:vision take the vision tower of a
model that has one; the text is taken where nothing is said.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError, unknown_name
from iosim.base.files import read_object
from iosim.base.schema import one_line
from iosim.integrations.models.kinds import EXPERTS, FAMILIES, model_of
from iosim.studies.models.layers import Model

PARTS = {
    "text": ("text_config", "llm_config", "language_config", "thinker_config"),
    "vision": ("vision_config", "vision_encoder_config"),
}
"""Part of a model -> the keys under which a config.json may hold it."""
FILE = "config.json"
MAX_BYTES = 10_000_000
PRESETS = Path(__file__).parent / "presets"
"""The models that ship: a TOML file each, with the keys of its config.json that tell of attention."""


@cache
def preset(name: str) -> dict[str, Any]:
    return tomllib.loads((PRESETS / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def preset_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


@cache
def all_names() -> dict[str, str]:
    names = {name: name for name in preset_names()}
    return names | {alias.lower(): name for name in preset_names() for alias in preset(name).get("aliases", ())}


def load_model(given: str | os.PathLike[str] | Mapping[str, Any] | Model) -> Model:
    """The model of a preset's name, of a config.json or its directory, or of what such a file holds."""
    if isinstance(given, Model):
        return given
    if isinstance(given, Mapping):
        name = str(given.get("_name_or_path") or given.get("model_type") or "config")
        return _model(given, name, name, "as given", None)
    if not isinstance(given, str | os.PathLike):
        accepted = "models' names, paths, or what a config.json holds"
        raise InputError(f"`model` {one_line(repr(given), 60)} is no model; accepted: {accepted}")
    text, part = _with_part(os.fspath(given).strip())
    if not text.strip():
        raise InputError(
            "`model` '' is empty; accepted: a name of `iosim models list`, a config.json, or its directory"
        )
    path = Path(text)
    known = all_names().get(text.strip().lower())
    if known is not None and not path.exists():
        data = preset(known)
        return _model(dict.fromkeys(data.get("nulls", ())) | data["config"], known, data["title"], data["source"], part)
    if not path.exists() and path.suffix.lower() != ".json" and not text.startswith((".", os.sep, "~")):
        raise unknown_name("`model`", text, all_names())
    path = path / FILE if path.is_dir() else path
    name = path.resolve().parent.name if path.name == FILE else path.stem
    accepted = "a name of `iosim models list`, a config.json of Hugging Face, or a directory that holds one"
    config = read_object(path, f"`model` '{one_line(path)}'", accepted, MAX_BYTES)
    return _model(config, name, str(config.get("_name_or_path") or name), str(path), part)


def _with_part(text: str) -> tuple[str, str | None]:
    before, colon, part = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, None
    if part in PARTS:
        return before, part
    if before.lower() in all_names() or Path(before).exists():
        raise unknown_name("part of `model`", part, PARTS)
    return text, None


def _model(config: Mapping[str, Any], name: str, title: str, source: str, part: str | None) -> Model:
    """The model of a config's keys, of its text where it has several parts."""
    refuse_others(config, name)
    parts = {
        word: next((config[key] for key in keys if isinstance(config.get(key), dict)), None)
        for word, keys in PARTS.items()
    }
    inner = parts[part or "text"]
    if inner is None:
        if part is not None:
            raise InputError(f"`model` '{name}' has no {part} part; accepted: without :{part}")
        return model_of(config, name, title, source, nested=False)
    refuse_others(inner, name)
    outer = {key: config[key] for key in ("torch_dtype", "dtype") if config.get(key)}
    if part is not None:
        return model_of(outer | inner, f"{name}:{part}", f"{title}, {part}", source, nested=True)
    notes = () if parts["vision"] is None else (f"its text alone; {name}:vision is its vision tower",)
    return model_of(outer | inner, name, title, source, notes, nested=True)


def refuse_others(config: Mapping[str, Any], name: str) -> None:
    accepted = "accepted: the config.json of a transformer"
    if "_class_name" in config or "_diffusers_version" in config:
        what = config.get("_class_name", "a pipeline")
        raise InputError(
            f"`model` '{name}' is of diffusers ({one_line(what, 40)}), no transformer of Hugging Face's; {accepted}"
        )
    if "peft_type" in config:
        hint = "accepted: the config.json of the model it adapts"
        raise InputError(f"`model` '{name}' is an adapter's ({one_line(config['peft_type'], 40)}); {hint}")
    if config.get("is_encoder_decoder"):
        both = f"({one_line(config.get('model_type', 'unknown'), 40)}) is an encoder and a decoder with attention"
        hint = "accepted: the config.json of a decoder or an encoder"
        raise InputError(f"`model` '{name}' {both} between them, which is not described; {hint}")


ACTIVATIONS = {"silu": "silu", "swish": "silu", "relu": "relu"}


def decoder_of(model: Model) -> dict[str, Any]:
    """The model's sizes and choices by the keywords of `iosim.train_memory`."""
    config = model.config
    families = FAMILIES["trained"]
    family = families.get(str(config.get("model_type")))
    first = model.kinds[0]
    why = None
    if family is None:
        why = f"a {config.get('model_type')} is none of the families that it builds"
    elif any(config.get(key) for key in EXPERTS):
        why = "it has experts"
    elif first.window is not None or first.chunk is not None:
        why = "its layers see a part of the tokens before"
    elif len(model.all_kinds) > 1 or len(model.order) != model.layers:
        why = "its layers are of several kinds"
    elif model.width is None or first.head_dim * first.heads != model.width:
        why = f"its {first.heads} heads of {first.head_dim} columns are not as wide as its {model.width} columns"
    if why is not None or family is None:
        accepted = f"models of {', '.join(families)} whose layers are alike and dense"
        raise InputError(f"`model` '{model.name}' cannot be trained here: {why}; accepted: {accepted}")
    inside = next((config[key] for key in ("intermediate_size", "n_inner") if config.get(key)), 4 * (model.width or 0))
    act = str(config.get("hidden_act") or config.get("activation_function") or family["activation"])
    tied = bool(config.get("tie_word_embeddings", family["tied"]))
    return {
        "layers": model.layers, "width": model.width, "heads": first.heads, "kv_heads": first.kv_heads,
        "mlp_width": inside, "gated": family["gated"], "activation": ACTIVATIONS.get(act, "gelu"),
        "vocabulary": int(config.get("vocab_size", 0)), "untied": not tied, "norm": family["norm"],
        "positions": family["positions"], "linear_bias": family["linear_bias"], "causal": model.causal,
    }  # fmt: skip

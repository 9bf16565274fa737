"""What a training step of a model is asked with: its layers beyond attention, for the families that iosim builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.studies.models.layers import Model

PLAIN = {"gated": False, "norm": "layer", "linear_bias": True}
GATED = {"gated": True, "norm": "rms", "linear_bias": False, "positions": "none", "activation": "silu"}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gpt2": PLAIN | {"positions": "learned", "tied": True}, "gpt_neox": PLAIN | {"positions": "none", "tied": False},
    "gpt_bigcode": PLAIN | {"positions": "learned", "tied": True}, "vit": PLAIN | {"positions": "learned"},
    "llama": GATED | {"tied": False},
    "mistral": GATED | {"tied": False}, "phi3": GATED | {"tied": False},
}  # fmt: skip
"""model_type -> what its class in transformers builds its layers of; `tied` where the config does not say."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
ACTIVATIONS = {"silu": "silu", "swish": "silu", "relu": "relu"}


def decoder_of(model: Model) -> dict[str, Any]:
    """The model's sizes and choices by the keywords of `iosim.train_memory`."""
    config = model.config
    family = FAMILIES.get(str(config.get("model_type")))
    first = model.kinds[0]
    why = None
    if family is None:
        why = f"a {config.get('model_type')} is none of the families that it builds"
    elif any(config.get(key) for key in EXPERTS):
        why = "it has experts"
    elif first.window is not None or first.chunk is not None:
        why = "its layers see a part of the tokens before"
    elif len(model.kinds) > 1 or len(model.order) != model.layers:
        why = "its layers are of several kinds"
    elif model.width is None or first.head_dim * first.heads != model.width:
        why = f"its {first.heads} heads of {first.head_dim} columns are not as wide as its {model.width} columns"
    if why is not None or family is None:
        raise InputError(f"`model` '{model.name}' cannot be trained here: {why}; accepted: models of "
                         f"{', '.join(FAMILIES)} whose layers are alike and dense")  # fmt: skip
    inside = next((config[key] for key in ("intermediate_size", "n_inner") if config.get(key)), 4 * (model.width or 0))
    act = str(config.get("hidden_act") or config.get("activation_function") or family.get("activation") or "gelu")
    tied = bool(config.get("tie_word_embeddings", family.get("tied", True)))
    return {
        "layers": model.layers, "width": model.width, "heads": first.heads, "kv_heads": first.kv_heads,
        "mlp_width": inside, "gated": family["gated"], "activation": ACTIVATIONS.get(act, "gelu"),
        "vocabulary": int(config.get("vocab_size", 0)), "untied": not tied, "norm": family["norm"],
        "positions": family["positions"], "linear_bias": family["linear_bias"], "causal": model.causal,
    }  # fmt: skip

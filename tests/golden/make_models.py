"""Writes tests/golden/models.json: what transformers makes of the presets' configs, and of others, on the meta device.

    python tests/golden/make_models.py      # needs transformers and torch (no GPU, no network); a minute or two

Every model is built whole, without memory. Kept are the numbers of its attention modules and of its config object:
`tests/integrations/models/test_load.py` holds iosim's reading of the same keys against them, so that the tests need no
transformers.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iosim.integrations.models.load import preset, preset_names

PLACE = Path(__file__).resolve().parent / "models.json"
SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "vocab_size": 512,
}
OTHERS: dict[str, dict[str, Any]] = {
    "falcon, new": {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, **SMALL},
    "falcon, many heads": {"model_type": "falcon", "multi_query": False, **SMALL},
    "gpt_bigcode": {"model_type": "gpt_bigcode", "n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 512},
    "gpt_neo": {"model_type": "gpt_neo", "hidden_size": 256, "num_layers": 4, "num_heads": 8, "vocab_size": 512,
                "attention_types": [[["global", "local"], 2]]},
    "gptj": {"model_type": "gptj", "n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 512},
    "gpt_neox": {"model_type": "gpt_neox", **SMALL},
    "opt": {"model_type": "opt", "word_embed_proj_dim": 256, "ffn_dim": 512, **SMALL},
    "mpt": {"model_type": "mpt", "d_model": 256, "n_heads": 8, "n_layers": 3, "vocab_size": 512},
    "qwen2 with windows": {"model_type": "qwen2", "num_key_value_heads": 2, "use_sliding_window": True,
                           "sliding_window": 64, "max_window_layers": 4, **SMALL},
    "qwen2, windows off": {"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 64, **SMALL},
    "cohere2": {"model_type": "cohere2", "num_key_value_heads": 2, "sliding_window": 64, **SMALL},
    "cohere2, pattern": {"model_type": "cohere2", "num_key_value_heads": 2, "sliding_window": 64,
                         "sliding_window_pattern": 3, **SMALL},
    "gemma3_text, pattern": {"model_type": "gemma3_text", "num_key_value_heads": 4, "head_dim": 64,
                             "sliding_window": 64, "sliding_window_pattern": 3, **SMALL},
    "olmo3": {"model_type": "olmo3", "num_key_value_heads": 2, "sliding_window": 64, **SMALL},
    "mistral, defaults": {"model_type": "mistral", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 512},
    "smollm3": {"model_type": "smollm3", "num_key_value_heads": 2, **SMALL},
    "llama, one layer": {"model_type": "llama", **SMALL, "num_hidden_layers": 1},
    "distilbert": {"model_type": "distilbert", "dim": 256, "n_layers": 3, "n_heads": 8, "vocab_size": 512},
    "dinov2": {"model_type": "dinov2", **SMALL},
    "siglip": {"model_type": "siglip_vision_model", **SMALL},
    "clip": {"model_type": "clip_vision_model", **SMALL},
    "minicpm3": {"model_type": "minicpm3", **SMALL},
}  # fmt: skip
"""Other families, small."""
OF_MODULES = (
    "num_heads",
    "num_attention_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "head_dim",
    "is_causal",
)
QUANTISED = "quantization_config"
"""The key of weights in another type, whose numbers are packed."""
OF_CONFIGS = ("sliding_window", "attention_chunk_size", "local_attention", "window_size")


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers makes of a config's keys."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModel, Llama4VisionModel

    parsed = CONFIG_MAPPING[config["model_type"]].from_dict(
        {key: value for key, value in config.items() if key != QUANTISED} | {"pad_token_id": 0}
    )
    with torch.device("meta"):
        alone = {"llama4_vision_model": Llama4VisionModel}.get(config["model_type"])
        model = AutoModel.from_config(parsed) if alone is None else alone(parsed)
    inner = [(name, module) for name, module in model.named_modules() if is_attention(module)]
    outer = [(n, m) for n, m in inner if not any(n.startswith(f"{other}.") for other, _ in inner)]
    facts_read = {
        key: sorted(
            {value for _, module in outer if isinstance(value := getattr(module, key, None), int)}
        )
        for key in OF_MODULES
    }
    kinds = getattr(parsed, "layer_types", None) or getattr(parsed, "attention_layers", None)
    return {
        "parameters": parameters(parsed),
        "attention_modules": len(outer),
        "attention_parameters": sum(
            p.numel()
            for _, m in outer
            for n, p in m.named_parameters()
            if p.ndim == 2 and "norm" not in n
        ),
        "layer_types": dict(Counter(kinds[: len(kinds)])) if kinds else None,
        **{key: values for key, values in facts_read.items() if values},
        **{
            key: getattr(parsed, key)
            for key in OF_CONFIGS
            if isinstance(getattr(parsed, key, None), int)
        },
    }


def parameters(parsed: Any) -> int | None:
    """Numbers in all matrices of a decoder with its head; None for what is none."""
    import torch
    from transformers import AutoModelForCausalLM

    if type(parsed) not in AutoModelForCausalLM._model_mapping:
        return None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(parsed)
    return sum(p.numel() for p in model.parameters() if p.ndim > 1)


def is_attention(module: Any) -> bool:
    """Whether a module is a layer's softmax attention, with matrices of its own; SigLIP's pooling is none."""
    name = type(module).__name__
    return (
        "Attention" in name
        and "Delta" not in name
        and "MultiheadAttention" not in name
        and any(p.ndim == 2 for p in module.parameters())
    )


def parts(name: str) -> dict[str, Mapping[str, Any]]:
    """A preset's config, or those of its parts, by name."""
    data = preset(name)
    config = dict.fromkeys(data.get("nulls", ())) | data["config"]
    if "text_config" not in config:
        return {name: config}
    return {name: config["text_config"], f"{name}:vision": config["vision_config"]}


def main() -> None:
    import transformers

    logging.disable()
    read = (
        (part_name, config) for name in preset_names() for part_name, config in parts(name).items()
    )
    presets = {
        name: facts(config)
        for name, config in read
        if config["model_type"] in transformers.CONFIG_MAPPING
    }
    others = {name: {"config": config, "facts": facts(config)} for name, config in OTHERS.items()}
    whole = {"transformers": transformers.__version__, "presets": presets, "others": others}
    PLACE.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(PLACE)


if __name__ == "__main__":
    main()

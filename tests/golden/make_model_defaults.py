"""Writes iosim/integrations/models/defaults.json: what transformers gives a key that a config.json lacks, and which
types of models are encoders.

    python tests/golden/make_model_defaults.py      # needs transformers and torch (no GPU, no network); a minute

A `config.json` may leave out whatever its class has a default for, as Gemma 3's do with the number of heads. Kept are
the keys that iosim reads (`spellings.toml`, `patterns.toml`). Which layers are of which kind is kept as the shortest
pattern that repeats. Every class is built on the meta device: `is_causal` of its attention says whether its tokens see
later ones, where none of transformers' lists of causal and of masked models has it.
"""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from pathlib import Path
from typing import Any

from iosim.integrations.models.reading import FAMILIES, SPELLINGS, model_data

PLACE = Path(__file__).resolve().parents[2] / "iosim" / "integrations" / "models" / "defaults.json"
SIZES: dict[str, list[str]] = SPELLINGS["sizes"]
MORE = """
    multi_query new_decoder_architecture use_sliding_window max_window_layers alibi q_lora_rank kv_lora_rank
    qk_nope_head_dim qk_rope_head_dim index_topk index_n_heads index_head_dim tie_word_embeddings intermediate_size_mlp
    linear_conv_kernel_dim mamba_d_conv mamba_expand expand conv_kernel mamba_dt_rank time_step_rank state_size
    n_mamba_heads conv_L_cache lru_width hidden_size_per_layer_input vocab_size_per_layer_input laurel_rank
    altup_num_inputs embedding_size input_embedding_size output_embedding_size adapter_rank num_mem_blocks
    attention_k_eq_v block_auto_adjust_ff_dim block_multiple_of block_ffn_dim_multiplier expansion_ratio
    intermediate_multiple_size mlp_ratio per_layer_config num_kv_shared_layers is_moe enable_moe_block
    prefix_dense_intermediate_size moe_latent_size num_layers_per_stack o_lora_rank o_groups hc_mult num_global_layers
    use_double_wide_mlp n_groups
"""
DIRECT = ("heads", "width", "layers", "vocabulary")
"""Sizes that follow from no other."""
LISTS = ("layer_types", "layers_block_type", "mlp_layer_types", "intermediate_size")
"""Lists of one entry a layer, kept as patterns or not at all."""
DECODERS = (
    "clip_text_model",
    "imagegpt",
    "xglm",
    "xlnet",
    "openai-gpt",
    "bloom",
    "codegen",
    "doge",
    "gpt_neox_japanese",
)
"""Types that are causal, whatever their modules say."""
SEEING = ("vision", "image", "audio", "encoder", "qformer", "speech", "video")
WRITING = ("text", "decoder", "talker", "predictor")


def keys() -> list[str]:
    """All keys that iosim reads."""
    rows = [
        row for group in ("mixer", "feed", "shared") for row in model_data("patterns.toml")[group]
    ]
    own_keys = [
        name for kind in SPELLINGS["own"].values() for names in kind.values() for name in names
    ]
    states = [
        n
        for group in FAMILIES["states"].values()
        for entry in group
        for names in entry["keys"]
        for n in names
    ]
    sizes = [name for names in SIZES.values() for name in names]
    key_names = [
        *sizes,
        *(row["key"] for row in rows),
        *(row.get("offset", "") for row in rows),
        *own_keys,
        *states,
        *MORE.split(),
    ]
    return [key for key in dict.fromkeys(key_names) if key and "." not in key]


def pattern(kinds: list[str]) -> list[str]:
    """The shortest list that repeats."""
    lengths = range(1, len(kinds) + 1)
    return kinds[
        : next(n for n in lengths if all(kind == kinds[i % n] for i, kind in enumerate(kinds)))
    ]


def kept(make: Any) -> dict[str, Any]:
    """The defaults of one class that say something."""
    plain = make().to_dict()
    out = {
        key: plain[key] for key in keys() if key not in LISTS and _says(key, plain.get(key), plain)
    }
    out = derived(make, out)
    inner = plain.get("intermediate_size")
    if isinstance(inner, int) or (isinstance(inner, list) and inner):
        out["intermediate_size"] = inner if isinstance(inner, int) else inner[0]
    listed = plain.get("layer_types") or plain.get("layers_block_type")
    if isinstance(listed, list) and listed and all(isinstance(item, str) for item in listed):
        kinds = pattern(listed)
        several = {*kinds} - {"full_attention"} or any(plain.get(key) for key in SIZES["window"])
        if several:
            out["layer_pattern"] = kinds
    feeds = plain.get("mlp_layer_types")
    if isinstance(feeds, list) and feeds:
        dense = next((n for n, word in enumerate(feeds) if word != "dense"), len(feeds))
        if "dense" not in feeds[dense:]:
            out["first_k_dense_replace"] = dense
    return out


def derived(make: Any, out: dict[str, Any]) -> dict[str, Any]:
    """The defaults that stay as they are where heads and width are others."""
    heads, hidden = (
        next((k for k in SIZES[name] if k in out), None) for name in ("heads", "width")
    )
    direct = {name for key in DIRECT for name in SIZES[key]} | {"intermediate_size"}
    try:
        other = (
            make(**{heads: 2 * out[heads], hidden: 6 * out[hidden]}).to_dict()
            if heads and hidden
            else out
        )
    except Exception:  # a class that checks its sizes against each other
        other = {key: value for key, value in out.items() if key not in _following()}
    return {key: value for key, value in out.items() if key in direct or other.get(key) == value}


def _following() -> set[str]:
    """Sizes that follow from others in most classes."""
    return {name for key in ("kv_heads", "head_dim", "head_dim_v", "inner") for name in SIZES[key]}


def _says(key: str, value: Any, plain: dict[str, Any]) -> bool:
    if key == "use_sliding_window":
        return key in plain
    if isinstance(value, list):
        return 0 < len(value) <= 8 and key not in SIZES["layers"]
    return bool(value) or (value is False and key in ("is_moe", "enable_moe_block"))


MASKING = ("create_causal_mask", "causal_mask", "is_causal = True", "tril(", "triu(")
"""Words of a modeling file that hides later tokens from earlier ones."""


def never_masks(config: Any) -> bool:
    """True where nothing in the file of a type's model hides a later token; a model of parts has its text's model in
    another file, and is not told by its own."""
    if config.sub_configs:
        return False
    file = Path(inspect.getfile(type(config)))
    modeling = file.with_name(file.name.replace("configuration_", "modeling_"))
    if not modeling.exists() or modeling == file:
        return False
    text = modeling.read_text(encoding="utf-8")
    return "Attention" in text and not any(word in text for word in MASKING)


def attends(name: str, config: Any) -> str:
    """ "decoder", "encoder", "both", or "" for what does not attend, or is made of parts."""
    import torch
    from transformers import AutoModel
    from transformers.models.auto import modeling_auto as lists

    if getattr(config, "is_encoder_decoder", False):
        return "both"
    if name in DECODERS or name in lists.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return (
            "encoder"
            if name in lists.MODEL_FOR_MASKED_LM_MAPPING_NAMES and name not in DECODERS
            else "decoder"
        )
    if name in lists.MODEL_FOR_MASKED_LM_MAPPING_NAMES or never_masks(config):
        return "encoder"
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(config)
        answers = {
            getattr(m, "is_causal", None)
            for m in model.modules()
            if "Attention" in type(m).__name__
        }
    except Exception:  # a part that no automatic class builds, or one that needs another package
        answers = set()
    if True in answers and False not in answers:
        return "decoder"
    if answers and True not in answers and not any(word in name for word in WRITING):
        return "encoder"
    if any(word in name for word in SEEING) and not name.endswith(WRITING):
        return "encoder"
    if True in answers or any(word in name for word in WRITING):
        return "decoder"
    return "encoder" if False in answers else ""


def facts() -> dict[str, Any]:
    """The file."""
    import transformers

    types: dict[str, Any] = {}
    kinds: dict[str, list[str]] = {"decoder": [], "encoder": [], "both": [], "": []}
    whole = []
    for name in sorted(transformers.CONFIG_MAPPING):
        make = transformers.CONFIG_MAPPING[name]
        try:
            config = make()
            values = kept(make)
        except Exception:  # a class that cannot be made without arguments: its keys alone are read
            whole.append(name)
            continue
        if not {*SIZES["heads"], *SIZES["layers"]} & {*values} and "layer_pattern" not in values:
            whole.append(name)
            continue
        types[name] = values
        kinds[attends(name, config)].append(name)
    return {
        "transformers": transformers.__version__,
        "encoders": kinds["encoder"],
        "both": kinds["both"],
        "whole": whole,
        "types": types,
    }


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    facts_read = facts()
    types = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(own_values)}"
        for name, own_values in facts_read.pop("types").items()
    )
    head = ",\n".join(
        f" {json.dumps(key)}: {json.dumps(value)}" for key, value in facts_read.items()
    )
    PLACE.write_text(f'{{\n{head},\n "types": {{\n{types}\n }}\n}}\n', encoding="utf-8")
    print(PLACE)


if __name__ == "__main__":
    main()

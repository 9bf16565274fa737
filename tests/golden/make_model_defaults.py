"""Writes iosim/integrations/models/defaults.toml: what transformers gives a key that a config.json lacks.

    python tests/golden/make_model_defaults.py      # needs transformers (no GPU, no network)

A `config.json` may leave out whatever its class has a default for, as Gemma 3's do with the number of heads. Kept are
the keys that say something of attention. Which layers are of which kind is kept as the shortest pattern that repeats.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from iosim.integrations.models.kinds import HEADS, LAYERS, WIDTH

PLACE = Path(__file__).resolve().parents[2] / "iosim" / "integrations" / "models" / "defaults.toml"
DECODERS = """
    llama llama4_text gpt2 gpt_oss gemma gemma2 gemma3_text gemma3n_text gemma4_text qwen2 qwen2_moe qwen3 qwen3_moe
    qwen3_next mistral mixtral ministral3 phi phi3 phimoe falcon gpt_neox gptj gpt_neo gpt_bigcode codegen bloom mpt
    opt deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa minicpm3 cohere cohere2 olmo olmo2 olmo3 olmoe exaone4
    starcoder2 stablelm granite smollm3 nemotron glm glm4 glm4_moe minimax_m2 mimo_v2_flash persimmon seed_oss
    hunyuan_v1_dense qwen2_vl_text qwen2_5_vl_text qwen3_vl_text internlm3 clip_text_model
"""
ENCODERS = """
    bert roberta xlm-roberta distilbert electra modernbert vit deit dinov2 siglip_vision_model clip_vision_model
    llama4_vision_model pixtral
"""
"""Types whose tokens see all others."""
KEYS = """
    num_kv_heads multi_query new_decoder_architecture sliding_window use_sliding_window max_window_layers
    attention_chunk_size local_attention window_size q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim
    index_topk index_n_heads index_head_dim alibi
    vocab_size intermediate_size tie_word_embeddings n_inner ffn_dim n_routed_experts num_local_experts num_experts
    moe_intermediate_size n_shared_experts shared_expert_intermediate_size first_k_dense_replace decoder_sparse_step
    interleave_moe_layer_step intermediate_size_mlp num_experts_per_tok
"""
DERIVED = ("num_key_value_heads", "head_dim", "v_head_dim")
"""Kept where they do not follow from other sizes."""


def pattern(kinds: list[str]) -> list[str]:
    """The shortest list that repeats."""
    lengths = range(1, len(kinds) + 1)
    return kinds[: next(n for n in lengths if all(kind == kinds[i % n] for i, kind in enumerate(kinds)))]


def kept(make: Any) -> dict[str, Any]:
    """The defaults of one class that say something of attention."""
    plain = make().to_dict()
    out = {key: plain[key] for key in (*HEADS, *WIDTH, *LAYERS) if isinstance(plain.get(key), int)}
    out |= {key: plain[key] for key in KEYS.split() if plain.get(key) or (key == "use_sliding_window" and key in plain)}
    heads, hidden = (next((k for k in names if k in out), None) for names in (HEADS, WIDTH))
    for key in DERIVED:
        if isinstance(plain.get(key), int) and heads and hidden:
            other = make(**{heads: 2 * out[heads], hidden: 6 * out[hidden]}).to_dict()
            if other.get(key) == plain[key]:
                out[key] = plain[key]
    listed = plain.get("layer_types")
    kinds = pattern(listed) if listed else []
    if set(kinds) - {"full_attention"} and len(kinds) <= 8:
        out["layer_pattern"] = kinds
    return out


def text() -> str:
    """The file."""
    import transformers

    lines = [
        "# What a config.json means where it leaves a key out, by its model_type: the defaults of the classes of",
        f"# transformers {transformers.__version__}. Made by tests/golden/make_model_defaults.py, not written by hand.",
        f'transformers = "{transformers.__version__}"',
        "encoders = [" + ", ".join(f'"{name}"' for name in ENCODERS.split()) + "]",
    ]
    for name in (*DECODERS.split(), *ENCODERS.split()):
        if name not in transformers.CONFIG_MAPPING:
            continue
        lines.append(f'\n[types."{name}"]')
        for key, value in kept(transformers.CONFIG_MAPPING[name]).items():
            shown = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
            quoted = "[" + ", ".join(f'"{v}"' for v in value) + "]" if isinstance(value, list) else None
            lines.append(f"{key} = {shown or quoted or repr(value)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    logging.disable()
    PLACE.write_text(text(), encoding="utf-8")
    print(PLACE)

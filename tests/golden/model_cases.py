"""What small config.json texts are read as: every field of the model that is made of them.

A base is recorded whole; of the others, which change some keys of a base, what they change in the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from iosim.base.errors import InputError
from iosim.integrations.models import load_model
from iosim.integrations.models.load import decoder_of
from iosim.integrations.models.packed import ALGORITHMS, BYTES, METHODS
from iosim.integrations.models.patterns import PATTERNS
from iosim.integrations.models.reading import MAX_LAYERS, MAX_SIZE, SIZES
from iosim.studies.models.layers import LayerKind, Mlp, Model

Config = dict[str, Any]
ABSENT = "absent"
"""Stands for a key that is taken out of the base."""
LONGEST = 300
"""Letters of a case's name."""

DENSE: Config = {
    "model_type": "llama",
    "hidden_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 200,
    "vocab_size": 1000,
}
SPARSE = DENSE | {
    "model_type": "deepseek",
    "n_routed_experts": 8,
    "moe_intermediate_size": 40,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
}
STRANGER = DENSE | {"model_type": "stranger"}
UNTYPED = {key: value for key, value in DENSE.items() if key != "model_type"}
MAMBA_HEADS = {"mamba_n_heads": 12, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_head": 16}
LINEAR_HEADS = {
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
LATENT = DENSE | {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
COMPRESSED = DENSE | {
    "model_type": "deepseek_v4",
    "head_dim": 32,
    "q_lora_rank": 48,
    "o_lora_rank": 24,
    "o_groups": 2,
    "hc_mult": 4,
    "sliding_window": 16,
    "compress_ratios": [0, 0, 4, 128, 4, 128],
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 64,
}
BLOCK = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.625}}
NAS = DENSE | {"model_type": "nemotron-nas", "block_configs": [BLOCK] * 6}
GPT2: Config = {
    "model_type": "gpt2",
    "n_embd": 96,
    "n_layer": 3,
    "n_head": 8,
    "vocab_size": 1000,
    "n_positions": 512,
}
PURE: Config = {
    "model_type": "mamba2",
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_heads": 12,
    "n_groups": 2,
    "state_size": 16,
    "head_dim": 16,
    "vocab_size": 1000,
}
DELTA: Config = {
    "model_type": "gated_deltanet",
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_heads": 4,
    "head_dim": 24,
    "vocab_size": 1000,
    "intermediate_size": 200,
}
ALBERT: Config = {
    "model_type": "albert",
    "hidden_size": 96,
    "embedding_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 200,
    "vocab_size": 1000,
}
ZAMBA = DENSE | MAMBA_HEADS | {"model_type": "zamba2", "hybrid_layer_ids": [1, 3, 4]}
WHOLE = {"model_type": "internvl_chat", "text_config": DENSE, "vision_config": {"depth": 2}}
TOWER: Config = {
    "model_type": "siglip_vision_model",
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 200,
    "image_size": 32,
    "patch_size": 8,
}

WORDS: Sequence[Any] = (
    ["full_attention", "sliding_attention"] * 3,
    ["full_attention"] * 5,
    ["full_attention", 1],
    ["strange"] * 6,
    [],
    "x",
)
WHOLE_NUMBERS: Sequence[Any] = (0, 1, 3, 6, 7, -1, True, 1.5, "2", [2, 0], ["x"])
PATTERN_VALUES: Mapping[str, Sequence[Any]] = {
    "words": WORDS,
    "letters": ("LLG", "FFSFSF", "M*-M*-", "F, S|F", "", "|", "x", 3, [1]),
    "numbers": ([0, 1, 1, 0, 1, 0], [0, 1], [True, False] * 3, [0, 2] * 3, ["0"] * 6, [], 3, "x"),
    "places": ([1, 3], [5], [0], [6], [-1], [1, "x"], [True], [], 3, "x"),
    "listed": ("1,3", " 1, 3", "6", "1, x", " ", [1, 3], [6], 3),
    **dict.fromkeys(("every", "period", "first", "last", "indexed", "zamba"), WHOLE_NUMBERS),
    "plamo": (*WHOLE_NUMBERS, 2, 12, 13),
    "sources": ([0, 0, 2, 2, 2, 5], [0, 1, 2], [0, 1, 2, 3, 4, "x"], 3, ["x"] * 6),
    "groups": ([[0, 1], [2, 3, 5]], [[0], []], [[0, 1], 3], [], 3),
    "spread": ([[["global", "local"], 3]], [["global"], 3], [[["local"], 2]], 3),
    "blocks": ([{}] * 6, [{}] * 3, [{}, 3], 3),
}
"""What each key that says a word a layer is tried with, by its reader."""
SIZE_VALUES: Sequence[Any] = (
    ABSENT,
    None,
    False,
    True,
    0,
    1,
    1.5,
    "8",
    [],
    [4],
    [None],
    [8, 8],
    [8] * 6,
    [8, 8, 4, 4, 8, 8],
    [8, 8, 8, 8, 8, 16, 16],
    [8, 8, None, 4, 8, 8],
    MAX_SIZE,
    MAX_SIZE + 1,
    -1,
)
"""What each key of a size is tried with: too long, too short, mixed and empty lists among them."""
OF_EXPERTS = (
    "experts",
    "active",
    "expert_width",
    "shared_experts",
    "shared_width",
    "latent_experts",
)
"""Sizes that dense models have none of."""
QUANTISED: Sequence[Any] = (
    "fp8",
    {"quant_method": "x"},
    {"quant_type": "fp8"},
    {"quant_method": "bitsandbytes"},
    {"quant_method": "bnb", "load_in_4bit": True},
    {"quant_method": "bnb", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    {"quant_method": "bnb", "_load_in_4bit": True},
    *({key: 4} for key in ("bits", "w_bit", "wbits", "nbits")),
    *({"bits": bits, "group_size": 64} for bits in (0, 1, 8, 16, 17, True, None, "4", 4.0)),
    *({"bits": 4, "group_size": size} for size in (-1, 0, 1, 128, None, True, "128")),
    {"bits": 4, "q_group_size": 32},
    {"bits": 4, "group_size": 16, "q_group_size": 32},
    {"bits": 0, "w_bit": 8},
    {"quant_algo": "nvfp4"},
    {"quantization": {"quant_algo": "FP8"}},
    {"quant_method": "fp8", "sparsity_config": {"format": "dense"}},
    {"quant_method": "fp8", "sparsity_config": {"format": "sparse-24-bitmask"}},
    {"config_groups": {}},
    {"config_groups": [1]},
    {"config_groups": {"a": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
    {"config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}, "b": 1}},
    {
        "config_groups": {
            "a": {"targets": ["self_attn.q_proj"], "weights": {"num_bits": 8, "type": "float"}},
            "b": {"targets": ["mlp.experts", "mlp.router"], "weights": {"num_bits": 4}},
            "c": {"targets": "mlp.up_proj", "weights": {"num_bits": 2}},
        }
    },
    {"quant_algo": "MIXED", "moe_quant_algo": "NVFP4"},
    {"quant_algo": "MIXED", "moe_quant_algo": "x"},
    {"quantized_layers": {"layers.0.self_attn.q_proj": {"quant_algo": "FP8"}, "mlp.up_proj": 1}},
    {"quantized_layers": {"layers.0.mlp.up_proj": "w8a16", "layers.1.mlp.up_proj": "FP8"}},
    {"quantized_layers": ["layers.0.mlp"]},
    *(
        {"quant_method": "fp8", "ignore": names}
        for names in (
            "self_attn",
            ["lm_head"],
            ["self_attn"],
            ["re:.*self_attn.*"],
            ["model.layers\\.0\\.self_attn"],
            [f"model.layers.{n}.mlp.experts" for n in range(2)],
            [f"model.layers.{n}.mlp.experts" for n in range(3)],
            [f"model.layers.{n}.mlp.up_proj" for n in range(4)],
            ["model.layers.0.mlp.experts", "experts"],
            ["self_attn.q_norm", "mlp.gate"],
            [7],
        )
    ),
    *({"quant_method": "fp8", key: ["self_attn"]} for key in ("exclude", "ignored_layers")),
    {"quant_method": "fp8", "modules_to_not_convert": ["mlp"], "exclude_modules": ["attn"]},
    {"quant_method": "mxfp4", "llm_int8_skip_modules": ["experts"]},
    *({"quant_algo": name} for name in ALGORITHMS),
    *({"quant_method": name} for name in METHODS),
)
"""Ways in which weights are packed."""


def under(name: str, value: Any) -> Config:
    """A value under a key, whose dot leads into a table."""
    table, _, key = name.rpartition(".")
    return {table: {key: value}} if table else {key: value}


def pattern_changes(group: str) -> Iterator[Config]:
    """Every key of a group of patterns.toml, with each value that its readers are tried with."""
    for row in PATTERNS[group]:
        for value in PATTERN_VALUES[row["reader"]]:
            yield under(row["key"], value)


LISTS: Mapping[str, tuple[Config, Iterable[Config]]] = {
    "dense": (
        DENSE,
        [
            *(
                {names[0]: value}
                for size, names in SIZES.items()
                if size not in OF_EXPERTS
                for value in SIZE_VALUES
            ),
            *(
                {names[0]: ABSENT} | under(name, 2 if size == "kv_heads" else 48)
                for size, names in SIZES.items()
                for name in names
            ),
            {"num_hidden_layers": MAX_LAYERS + 1},
            *({"torch_dtype": name} for name in (*BYTES, "torch.float16", "BF16", "int3")),
            {"dtype": "float16"},
            {"dtype": "float16", "torch_dtype": "float32"},
            *({"tie_word_embeddings": value} for value in (True, False, None, 0, 1, "no")),
            *(
                {"num_key_value_heads": n, "num_attention_heads": h}
                for n in (3, 8, 16)
                for h in (8, 16)
            ),
            {"hidden_size": 100, "num_attention_heads": 8},
            *(
                {"sliding_window": 16, "max_position_embeddings": n}
                for n in (15, 16, 17, None, "16")
            ),
            *({"use_sliding_window": flag, "sliding_window": 16} for flag in (True, False, "x")),
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
            {"use_sliding_window": True, "max_window_layers": 2},
            {"use_sliding_window": False, "sliding_window": None},
            {"layer_types": ["full_attention", "sliding_attention"] * 3, "sliding_window": 16},
            {"layer_types": ["sliding_attention"] * 6},
            {"layer_types": ["chunked_attention"] * 6},
            {"layer_types": ["chunked_attention"] * 6, "attention_chunk_size": 16},
            {"layer_types": ["full_attention"] * 4},
            {"layer_types": ["full_attention"] * 8},
            {"layer_types": ["mlp", "full_attention"] * 3},
            {"layer_types": ["moe", "full_attention"] * 3},
            {"layer_types": ["skipped", "full_attention"] * 3},
            {"layer_types": ["cross_attention", "full_attention"] * 3},
            {"layer_types": ["cross_attention", "full_attention"] * 3, "head_dim": 16},
            {"layer_types": ["recurrent", "full_attention"] * 3},
            {"layer_types": ["recurrent", "full_attention"] * 3, "lru_width": 64},
            {"layer_types": ["conv", "full_attention"] * 3},
            {"layer_types": ["conv", "full_attention"] * 3, "conv_L_cache": 5},
            {"layer_types": ["lightning_attention", "full_attention"] * 3},
            {"layer_types": ["lightning_attention", "full_attention"] * 3, "head_dim": 16},
            {"layer_types": ["mamba", "full_attention"] * 3},
            {"layer_types": ["mamba", "full_attention"] * 3, "mamba_expand": 2},
            {"layer_types": ["mamba", "full_attention"] * 3, "mamba_expand": 2, "mamba_d_state": 8},
            {"layer_types": ["mamba"] * 6, "expand": 1.34, "time_step_rank": 5, "n_mamba_heads": 2},
            {"layer_types": ["mamba", "full_attention"] * 3, "hidden_size": 104, "mamba_expand": 2},
            {"layer_types": ["window_attention", "block_sparse_attention"] * 3},
            {"layer_types": ["block_sparse_attention"] * 6, "index_block_size": 64},
            {
                "per_layer_config": {
                    "1": {"num_key_value_heads": 2},
                    "6": {"head_dim": 8},
                    "x": {},
                    "2": 3,
                }
            },
            {"num_attention_heads_per_layer": [8, 8, 4, 4, 8, 8]},
            {"num_attention_heads_per_layer": [8, 8]},
            *({"is_causal": value} for value in (True, False, None, "x")),
            *({"causal": value} for value in (True, False, 0)),
            *(
                {"use_bidirectional_attention": value}
                for value in (True, False, "all", "vision", 3)
            ),
            {"is_decoder": True, "is_causal": None},
            {"alibi": True},
            {"alibi": "x"},
            {"attn_config": {"alibi": True}},
            {"attn_config": {"alibi": True}, "alibi": False},
            {"attn_config": {"alibi": False}},
            *({"add_cross_attention": value} for value in (True, False)),
            *({"multi_query": value} for value in (True, False)),
            *(
                {"multi_query_attention": value, "num_key_value_heads": n}
                for value in (True, False)
                for n in (None, 4)
            ),
            {"use_mla": False, "kv_lora_rank": 0, "q_lora_rank": 0, "v_head_dim": 12},
            {"depths": [2, 2]},
            {"depths": 2},
            {"num_encoder_blocks": 4},
            {"num_encoder_blocks": 0},
            {"num_encoder_blocks": [4]},
            *(
                {"architectures": value}
                for value in ("LlamaForCausalLM", ["LlamaForCausalLM"], [], [3], None)
            ),
            *(
                {"architectures": [name]}
                for name in (
                    "LlamaModel",
                    "LlamaForSequenceClassification",
                    "LlamaForMaskedLM",
                    "LlamaBiModel",
                    "LlamaBidirectionalModel",
                    "OtherForCausalLM",
                    "LlamaEagleModel",
                    "LlamaForCausalLMEagle3",
                    "LlamaEncoderModel",
                )
            ),
            {"architectures": ["LlamaForCausalLM", "LlamaForSequenceClassification"]},
            {"architectures": "OtherForCausalLM"},
            *({"is_encoder_decoder": value} for value in (True, False)),
            {"is_encoder_decoder": True, "architectures": ["LlamaEncoderModel", "Llama"]},
            {"_class_name": "X"},
            {"_diffusers_version": "1"},
            {"peft_type": "LORA"},
            {"transformers_version": "4.1"},
            {"hidden_size_per_layer_input": 16},
            {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 500},
            {"laurel_rank": 8},
            {"altup_num_inputs": 1},
            {"altup_num_inputs": 2},
            {"altup_num_inputs": 3},
            *({"embedding_size": n} for n in (95, 96, 97, 1000)),
            *({"input_embedding_size": 32, "output_embedding_size": n} for n in (0, 32, 64)),
            {"input_embedding_size": 32, "output_embedding_size": 64, "tie_word_embeddings": True},
            {"ngram_vocab_size_ratio": 2},
            {"attention_k_eq_v": True},
            {"num_kv_shared_layers": 6, "num_attention_heads_per_layer": [8, 8, 4, 4, 8, 8]},
            {"num_kv_shared_layers": 3, "num_attention_heads_per_layer": [8, 8, 4, 4, 8, 8]},
            {"num_kv_shared_layers": 2},
            {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
            {"num_kv_shared_layers": 2, "kv_source_layers": [0, 1, 1, 1, 4, 5]},
            {"num_kv_shared_layers": 2, "use_double_wide_mlp": "x"},
            {"cla_share_factor": 2, "use_cla": True},
            {"cla_share_factor": 2, "use_cla": False},
            {"num_global_layers": 2},
            {"hidden_act": "relu"},
            {"hidden_act": "swish"},
            *({"feed_forward_proj": text} for text in ("relu", "gated-gelu", 3)),
            {"hidden_act": "gelu_new"},
            {"activation_function": "gelu"},
            {"layers_extra": 3, "block_other": 0, "mamba_x": "", "conv_y": [], "window_z": False},
            {"swa_a": False, "swa_b": True, "layer_a": True, "layer_b": {"a": 1}, "attn_c": 1.5},
            {"expert_count": 1, "moe_count": 2, "moe_table": {"a": 1}, "expert_flag": True},
            {"attention_dropout_layers": 1, "dual_ffn_norm": 1, "moe": 3},
            {"quantization": {"quant_method": "fp8"}},
            {"quantization": {"quant_method": "fp8"}, "quantization_config": {"bits": 4}},
        ],
    ),
    "patterns": (
        DENSE | {"sliding_window": 16} | MAMBA_HEADS | LINEAR_HEADS,
        [*pattern_changes("mixer"), *pattern_changes("shared")],
    ),
    "experts": (
        SPARSE,
        [
            *pattern_changes("feed"),
            *({SIZES[size][0]: value} for size in (*OF_EXPERTS, "inner") for value in SIZE_VALUES),
            *({"num_experts_per_tok": value} for value in (8, 9)),
            *({"quantization_config": value} for value in QUANTISED),
            *({"expert_dtype": "fp4", "quantization_config": value} for value in QUANTISED[-3:]),
            {
                "expert_dtype": "fp4",
                "quantization_config": {"quant_algo": "x", "moe_quant_algo": "FP8"},
            },
            *(
                {key: value}
                for key in ("is_moe", "enable_moe_block", "use_moe")
                for value in (True, False, None)
            ),
            {"n_routed_experts": [8, 4], "moe_intermediate_size": [40, 20]},
            {"n_routed_experts": [7, 4], "moe_intermediate_size": [40, 25]},
            {"n_routed_experts": [8] * 6, "moe_intermediate_size": [40] * 6},
            {"n_routed_experts": [0, 0], "moe_intermediate_size": [40, 20]},
            {"moe_intermediate_size": [41, 22]},
            {"moe_intermediate_size": [40]},
            {"moe_intermediate_size": [40, 20, "x"]},
            {"moe_intermediate_size": [MAX_SIZE, -1]},
            {"moe_intermediate_size": [MAX_SIZE, MAX_SIZE]},
            {"moe_intermediate_size": [MAX_SIZE + 1, 1]},
            {"num_local_experts": 16},
            {"num_local_experts": 1},
            {"num_local_experts": 8},
            {"intermediate_size_mlp": 300},
            {"intermediate_size_mlp": 300, "first_k_dense_replace": 2},
            {"residual_moe": True},
            {"residual_moe": True, "parallel_attn_mlp_res": True},
            *({"gated_norm_rank": 8, **keys} for keys in ({}, {"first_k_dense_replace": 2})),
            *({"hc_count": copies, "hc_lowrank": rank} for copies in (0, 4) for rank in (0, 8)),
            *(
                {
                    "ple_layer_ids": places,
                    "ple_embed_dim": 64,
                    "ngram_size": size,
                    "heads_per_ngram": 3,
                    "ngram_vocab_size_base": 101,
                    "hc_count": 3,
                }
                for places in ([1, 6], [7], 3)
                for size in (1, 3)
            ),
            {"first_k_dense_replace": 2, "mlp_only_layers": [4]},
            {"first_k_dense_replace": 2, "mlp_layer_types": ["sparse", "dense"] * 3},
            {"layer_types": ["moe", "full_attention", "mlp"] * 2},
            {"layer_types": ["moe", "full_attention", "mlp"] * 2, "n_routed_experts": 1},
            {"intermediate_size": ABSENT},
            {"intermediate_size": ABSENT, "moe_intermediate_size": ABSENT},
            {"intermediate_size": ABSENT, "first_k_dense_replace": 2},
            {"model_type": "doge", "is_moe": True},
            {"model_type": "jetmoe", "n_routed_experts": ABSENT, "num_local_experts": 8},
            {"model_type": "llama4_text"},
            {"model_type": "arctic"},
            {"model_type": "gemma4_text"},
            {"model_type": "longcat_flash"},
            {"model_type": "gpt_oss", "n_routed_experts": ABSENT, "num_local_experts": 8},
            {"model_type": "mixtral", "n_routed_experts": ABSENT, "num_local_experts": 8},
            {"model_type": "qwen3_moe", "n_routed_experts": ABSENT, "num_experts": 8},
        ],
    ),
    "a stranger's": (
        STRANGER,
        [
            *({"hidden_act": act} for act in ("relu", "relu2", "silu", "gelu", "gelu_new")),
            {"intermediate_size": ABSENT},
            {"intermediate_size": ABSENT, "hidden_act": "relu"},
            *({"intermediate_size": ABSENT, "multiple_of": n} for n in (0, 1, 64, 256)),
            {"intermediate_size": ABSENT, "multiple_of": 16, "ffn_dim_multiplier": 1.3},
            {"intermediate_size": ABSENT, "multiple_of": 64, "ffn_dim_multiplier": 0},
            *(
                {"intermediate_size": ABSENT, "mlp_ratio": r}
                for r in (2.51, 0, 1000, 1001, True, "2", -1)
            ),
            {"intermediate_size": ABSENT, "expansion_ratio": 3.506},
            {"intermediate_size": ABSENT, "ffn_multipliers": [0.5, 1.0, 2.15, 4, 1000, 1001]},
            {
                "intermediate_size": ABSENT,
                "ffn_multipliers": [0.5, 1, 2, 4, 1000],
                "ffn_dim_divisor": 16,
            },
            {"intermediate_size": ABSENT, "ffn_multipliers": [0, 1, 2, 4, 1, 1], "mlp_ratio": 3},
            {
                "intermediate_size": ABSENT,
                "ffn_multipliers": [1, 1.45, 2.6, 3.1, 4, 0.1],
                "ffn_dim_divisor": 32,
            },
            {"intermediate_size": ABSENT, "ffn_multipliers": ["1"] * 6, "mlp_ratio": 3},
            {"intermediate_size": ABSENT, "ffn_multipliers": 2.0, "mlp_ratio": 3},
            {"intermediate_size": ABSENT, "hidden_size": 120, "intermediate_multiple_size": 4},
            {"transformers_version": "4.34"},
            {"transformers_version": "4.34", "tie_word_embeddings": False},
            {"transformers_version": "5.0"},
            {"architectures": ["StrangerModel"]},
            {"architectures": ["StrangerForCausalLM"]},
            {"architectures": ["StrangerForCausalLM", "StrangerForMaskedLM"]},
            {"vocab_size": ABSENT},
            {"vocab_size": ABSENT, "image_size": 32},
            {"vocab_size": 0, "image_size": 32},
            {"model_type": "Llama"},
            {"model_type": "performer"},
            {"model_type": "rwkv"},
            {"model_type": "glm4_moe", "hidden_size": 100},
            {"model_type": "longformer", "attention_window": [16] * 6},
            {
                "model_type": "mimo_v2_flash",
                "hybrid_layer_pattern": [0, 1] * 3,
                "sliding_window": 16,
            },
            {
                "model_type": "mimo_v2_flash",
                "hybrid_layer_pattern": [0, 1] * 3,
                "sliding_window": 16,
                "num_key_value_heads": ABSENT,
                "add_swa_attention_sink_bias": True,
            },
            {
                "layer_types": ["full_attention", "sliding_attention"] * 3,
                "sliding_window": 16,
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 2,
                "swa_head_dim": 16,
                "swa_v_head_dim": 8,
                "num_global_key_value_heads": 8,
                "global_head_dim": 32,
                "add_full_attention_sink_bias": True,
            },
            {"model_type": "trocr"},
            {"model_type": "xlnet"},
            {"model_type": "lfm2", "block_auto_adjust_ff_dim": True},
            {"model_type": "lfm2", "block_auto_adjust_ff_dim": True, "block_multiple_of": 16},
            {
                "model_type": "lfm2",
                "block_auto_adjust_ff_dim": True,
                "block_ffn_dim_multiplier": 1.3,
            },
            {"model_type": "lfm2", "block_auto_adjust_ff_dim": False},
            {"block_auto_adjust_ff_dim": True},
            {"model_type": "qwen"},
            {"model_type": "falcon"},
            {"model_type": "falcon", "multi_query": False},
            {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2},
            {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": None},
            {"model_type": "gpt_bigcode", "multi_query": False},
            {"model_type": "gpt_bigcode", "multi_query": True},
            {"model_type": "chatglm", "multi_query_attention": False},
            {"model_type": "chatglm", "multi_query_attention": True},
            {
                "model_type": "chatglm",
                "multi_query_attention": True,
                "multi_query_group_num": 2,
                "num_key_value_heads": ABSENT,
            },
            {"model_type": "bloom"},
            {"model_type": "opt", "word_embed_proj_dim": 32},
            {"model_type": "opt", "word_embed_proj_dim": 128},
            {"model_type": "qwen3_next", **LINEAR_HEADS},
            {"model_type": "qwen3_next", **LINEAR_HEADS, "full_attention_interval": 3},
            {"model_type": "bamba", **MAMBA_HEADS, "attn_layer_indices": [2, 5]},
            {"model_type": "bamba", **MAMBA_HEADS, "attn_layer_indices": []},
            {
                "model_type": "bamba",
                **MAMBA_HEADS,
                "mamba_d_head": "auto",
                "mamba_expand": 2,
                "attn_layer_indices": [2],
            },
            {
                "model_type": "bamba",
                **MAMBA_HEADS,
                "mamba_d_head": "auto",
                "mamba_expand": 1.374,
                "attn_layer_indices": [2],
            },
            {
                "model_type": "bamba",
                **MAMBA_HEADS,
                "mamba_d_head": "auto",
                "mamba_expand": 1.3,
                "attn_layer_indices": [2],
            },
            {"model_type": "falcon_h1", **MAMBA_HEADS},
            {"model_type": "falcon_h1", **MAMBA_HEADS, "hidden_size_per_layer_input": 16},
            {"model_type": "hymba", **MAMBA_HEADS, "global_attn_idx": [0, 5], "sliding_window": 16},
            {
                "model_type": "jamba",
                **MAMBA_HEADS,
                "attn_layer_period": 3,
                "attn_layer_offset": 1,
                "mamba_dt_rank": 7,
            },
            {"model_type": "plamo2", **MAMBA_HEADS, "mamba_step": 2},
            *(
                {"model_type": "plamo2", **MAMBA_HEADS, "mamba_step": 12, "num_hidden_layers": n}
                for n in (5, 6, 7)
            ),
            *(
                {
                    "model_type": "zamba",
                    **MAMBA_HEADS,
                    "attn_layer_period": n,
                    "num_hidden_layers": k,
                }
                for n in (1, 3)
                for k in (2, 6)
            ),
            {"model_type": "zamba", **MAMBA_HEADS, "attn_layer_period": 0},
            {"model_type": "zamba", **MAMBA_HEADS, "attn_layer_period": 2, "attn_layer_offset": 1},
            {
                "model_type": "smollm3",
                "use_sliding_window": True,
                "sliding_window": 16,
                "no_rope_layers": [1, 1, 0] * 2,
            },
            {
                "model_type": "smollm3",
                "use_sliding_window": False,
                "sliding_window": 16,
                "no_rope_layers": [1, 1, 0] * 2,
            },
            {"model_type": "modernbert", "global_attn_every_n_layers": 3, "local_attention": 16},
            {
                "model_type": "kimi_linear",
                "linear_attn_config": {"kda_layers": [1, 2, 4], "num_heads": 4, "head_dim": 16},
            },
            {
                "model_type": "kimi_linear",
                "linear_attn_config": {"full_attn_layers": [3], "num_heads": 4, "head_dim": 16},
            },
            {"model_type": "bailing_hybrid", "layer_group_size": 3, "head_dim": 16},
            {"linear_num_heads": 4, "linear_head_dim": 16, "full_attention_interval": 2},
            {"linear_num_heads": 4, "linear_head_dim": None, "full_attention_interval": 2},
            {**LINEAR_HEADS, "linear_num_key_heads": 3, "full_attention_interval": 2},
            {**LINEAR_HEADS, "linear_conv_kernel_dim": 7, "full_attention_interval": 2},
            {"attn": {"layers": [1, 3]}, **LINEAR_HEADS},
            {"sparse_attention_config": {"sparse_attention_freq": [0, 1] * 3}},
            {"sliding_window": [16, None, 16, None, 16, None]},
            {"sliding_window": [16, None]},
        ],
    ),
    "without a type": (
        UNTYPED,
        [
            {"type_vocab_size": 2},
            {"type_vocab_size": 0},
            {"num_hidden_layers": ABSENT},
            {"num_attention_heads": ABSENT},
            {"vocab_size": ABSENT, "patch_size": 8},
            {"n_heads": 8, "n_layers": 3, "dim": 96},
            {"n_heads": 8, "n_layers": 3, "dim": 96, "sliding_window": [16, None]},
            {"n_heads": 8, "n_layers": 1, "dim": 96, "sliding_window": [16, None]},
            {"n_heads": 8, "n_layers": 0, "dim": 96, "sliding_window": [16, None]},
            {"n_heads": 8, "n_layers": True, "dim": 96, "sliding_window": [16, None]},
            {"n_heads": 8, "n_layers": 3, "dim": 96, "sliding_window": []},
            {"n_heads": 8, "n_layers": 3, "dim": 96, "sliding_window": 16},
            {"n_heads": 8, "n_layers": MAX_LAYERS + 1, "dim": 96, "sliding_window": [16, None]},
            {"n_heads": 8, "n_layers": 3, "dim": 96, "torch_dtype": "float32"},
            {"n_heads": 8, "n_layers": 3},
            {
                "experts_per_token": 2,
                "swiglu_limit": 7.0,
                "initial_context_length": 4096,
                "num_experts": 8,
            },
            {"experts_per_token": 2, "swiglu_limit": 7.0},
        ],
    ),
    "three keys of Meta's alone": ({"n_heads": 8, "n_layers": 3, "dim": 96}, []),
    "three keys of gpt-oss's alone": (
        {"experts_per_token": 2, "swiglu_limit": 7.0, "initial_context_length": 4096},
        [],
    ),
    "latent": (
        LATENT,
        [
            {"v_head_dim": ABSENT},
            {"v_head_dim": None},
            {"q_lora_rank": None},
            {"q_lora_rank": ABSENT},
            {"kv_lora_rank": None},
            {"kv_lora_rank": (1 << 20) + 1},
            {"qk_nope_head_dim": None},
            {"qk_rope_head_dim": 0},
            {"index_topk": 64},
            {"index_topk": 64, "index_n_heads": 4, "index_head_dim": 16},
            {
                "index_topk": 64,
                "index_n_heads": 4,
                "index_head_dim": 16,
                "indexer_types": ["full", "shared", "shared"] * 2,
            },
            *(
                {
                    "index_topk": 64,
                    "index_n_heads": 4,
                    "index_head_dim": 16,
                    "index_topk_freq": n,
                    **offset,
                }
                for n in (1, 2, 3)
                for offset in (
                    {},
                    *({"index_skip_topk_offset": skipped} for skipped in (0, 3, "x")),
                )
            ),
            {
                "index_topk": 64,
                "index_n_heads": 4,
                "index_head_dim": 16,
                "indexer_types": ["shared", "full", "shared"] * 2,
            },
            {
                "index_topk": 64,
                "index_n_heads": 4,
                "index_head_dim": 16,
                "layer_types": ["full_attention", "linear_attention"] * 3,
                **LINEAR_HEADS,
            },
            {"per_layer_config": {"1": {"kv_lora_rank": 16}}},
            {"indexer_types": ["full", "shared", "shared"] * 2},
            {"layer_types": ["full_attention", "linear_attention"] * 3, **LINEAR_HEADS},
        ],
    ),
    "compressed": (
        COMPRESSED,
        [
            {"compress_ratios": [0, 0, 4, 128, 4]},
            {"compress_ratios": [0, 0, 4, 128, 4, True]},
            {"compress_ratios": [True] * 6},
            {"compress_ratios": [0, 0, 4, 128, 4, 5]},
            {"compress_ratios": ABSENT},
            {"layer_types": ["full_attention"] * 6},
            {"layer_types": ["sliding_attention", "linear_attention"] * 3, **LINEAR_HEADS},
            {"qk_rope_head_dim": 8},
            {"qk_rope_head_dim": 31},
            {"qk_rope_head_dim": 32},
            {"q_lora_rank": None},
            {"o_lora_rank": None, "o_groups": None, "hc_mult": None},
            {"index_topk": None},
            {"sliding_window": None},
            {"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}},
        ],
    ),
    "of blocks": (
        NAS,
        [
            *(
                {"block_configs": [block] * 6}
                for block in (
                    {},
                    {"attention": None, "ffn": None},
                    {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1}},
                    {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
                )
            ),
            *(
                {"block_configs": [BLOCK, block] * 3}
                for block in (
                    {},
                    {"attention": {"no_op": True}},
                    {"attention": {"replace_with_linear": True}},
                    {"attention": {"n_heads_in_group": 0}},
                    {"attention": {"n_heads_in_group": 16}},
                    {"attention": {"n_heads_in_group": True}},
                    {"attention": {"n_heads_in_group": "4"}},
                    {"ffn": {"intermediate_size": 500}},
                    {"ffn": {"intermediate_size": 500, "ffn_mult": 2}},
                    {"ffn": {"ffn_mult": 4.01}},
                    {"ffn": {"ffn_mult": 8.0}},
                    {"ffn": {"replace_with_linear": True}},
                    {"ffn": {"no_op": True}},
                    7,
                )
            ),
            {"block_configs": [BLOCK] * 4},
            {"block_configs": [BLOCK] * 4, "num_hidden_layers": ABSENT},
            {"block_configs": [], "num_hidden_layers": 3},
        ],
    ),
    "a letter a layer": (
        DENSE | MAMBA_HEADS | {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-E"},
        [
            {"hybrid_override_pattern": text}
            for text in ("*", "M", "M|*", "MMMM", "", "X", "|", "M" * (MAX_LAYERS + 1))
        ]
        + [{"num_hidden_layers": ABSENT}, {"n_routed_experts": 8, "moe_latent_size": 48}],
    ),
    "GPT-2's": (
        GPT2,
        [
            *({"n_inner": value} for value in (None, 0, 100)),
            {"activation_function": "relu"},
            {"add_cross_attention": True},
            {"n_positions": ABSENT},
            {"n_head": 5},
            {"architectures": ["GPT2LMHeadModel"]},
            {"attention_window": 16},
        ],
    ),
    "Mamba-2's": (
        PURE,
        [
            {"head_dim": ABSENT},
            {"n_groups": 5},
            {"attn_layers": [1]},
            {"num_hidden_layers": 1},
            {"model_type": "codestral_mamba"},
            {"model_type": "mamba"},
            {"conv_kernel": 7},
        ],
    ),
    "gated DeltaNet's": (
        DELTA,
        [
            {"expand_v": 1.28},
            {"num_v_heads": 8},
            {"num_v_heads": 6},
            {"head_dim": ABSENT},
            {"model_type": "kda"},
            {"model_type": "kda", "num_v_heads": 8, "expand_v": 1.5},
            {"attn": {"layers": [1]}},
        ],
    ),
    "ALBERT's": (
        ALBERT,
        [
            {"num_hidden_groups": 2},
            {"num_hidden_groups": 2, "inner_group_num": 2},
            {"num_hidden_groups": 6},
            {"num_layers_per_stack": 1},
            {"model_type": "hrm_text", "num_layers_per_stack": 2},
            {"embedding_size": 96},
            {"embedding_size": 128},
            {"architectures": ["AlbertForMaskedLM"]},
            {"architectures": ["AlbertForPreTraining"]},
            {"architectures": ["AlbertForMaskedLM", "AlbertModel"]},
            {"architectures": ["AlbertForMaskedLM", "AlbertModel"], "tie_word_embeddings": False},
            {"architectures": ["AlbertForMaskedLM"], "tie_word_embeddings": False},
            {"layer_types": ["full_attention"] * 3 + ["conv"] * 3},
            {"architectures": ["AlbertModel"]},
            {"is_decoder": True},
        ],
    ),
    "Zamba's": (
        ZAMBA,
        [
            *({"num_mem_blocks": n} for n in (1, 2, 3)),
            {"adapter_rank": 8},
            {"adapter_rank": 8, "intermediate_size": None},
            {"hybrid_layer_ids": [0]},
        ],
    ),
    "of several parts": (
        WHOLE,
        [
            {"torch_dtype": "float16", "tie_word_embeddings": True, "vocab_size": 5},
            {"text_config": DENSE | {"text_config": DENSE | {"vocab_size": 77}}},
            {"text_config": {"text_config": DENSE, "dtype": "float16", "vision_config": TOWER}},
            {"vision_config": ABSENT},
            {"vision_config": ABSENT, "text_config": DENSE | {"vision_config": TOWER}},
            {"audio_config": {"num_hidden_layers": 3}, "other": {"inner": {"depth": 3}}, "c": {}},
            {"text_config": {}, **DENSE},
            {"text_config": {"model_type": "llama"}, **DENSE},
            {"text_config": {"num_hidden_layers": 2}, **DENSE},
            {"text_config": {"sliding_window": 16}, **DENSE, "model_type": "stranger"},
            {"text_config": {"_class_name": "x"}},
            {"text_config": 7},
            {"layer_pattern": "x"},
            {"model_type": "stranger", "layer_pattern": "x"},
        ],
    ),
    "of a tower": (
        TOWER,
        [
            {"vocab_size": 100},
            {"architectures": ["SiglipVisionModel"]},
            {"model_type": "clip_text_model", "vocab_size": 100},
            {"model_type": "stranger"},
            {"model_type": "stranger", "patch_size": ABSENT},
            {"model_type": "stranger", "patch_size": ABSENT, "image_size": ABSENT},
        ],
    ),
}
"""Name of a list -> the base, and the keys that its cases change."""

PACKING = {"quantization": {"quant_algo": "FP8"}}
FILES: Sequence[tuple[Mapping[str, Config], str]] = (
    ({"place/config.json": DENSE}, "place"),
    ({"place/config.json": DENSE}, " place/config.json "),
    ({"place/other.json": DENSE}, "place/other.json"),
    ({"place/other.json": DENSE}, "place"),
    ({"place/params.json": DENSE}, "place"),
    ({"place/params.json": DENSE, "place/config.json": SPARSE}, "place"),
    ({"place/config.json": DENSE | {"_name_or_path": "own/name"}}, "place"),
    ({"place/config.json": DENSE, "place/hf_quant_config.json": PACKING}, "place"),
    ({"place/config.json": DENSE, "place/hf_quant_config.json": {"quantization": 7}}, "place"),
    ({"place/other.json": DENSE, "place/hf_quant_config.json": PACKING}, "place/other.json"),
    (
        {
            "place/config.json": DENSE | {"quantization_config": {"bits": 4}},
            "place/hf_quant_config.json": PACKING,
        },
        "place",
    ),
    ({"place/hf_quant_config.json": PACKING}, "place/hf_quant_config.json"),
    ({"place/config.json": WHOLE | {"vision_config": TOWER}}, "place"),
    ({"place/config.json": WHOLE | {"vision_config": TOWER}}, "place:vision"),
    ({"place/config.json": WHOLE | {"vision_config": TOWER}}, "place:text"),
    ({"place/config.json": WHOLE | {"vision_config": TOWER}}, "place:sound"),
    ({"place/config.json": WHOLE | {"vision_config": TOWER}}, "elsewhere:sound"),
    (
        {
            "place/config.json": WHOLE
            | {"vision_config": TOWER | {"vocab_size": 100}, "dtype": "float16"}
            | {"architectures": ["InternVLChatModel"], "tie_word_embeddings": True}
        },
        "place:vision",
    ),
    ({"place/config.json": WHOLE | {"vision_config": TOWER, "text_config": 7}}, "place:vision"),
    ({"place/config.json": DENSE | {"vision_config": TOWER}}, "place"),
    ({"place/config.json": DENSE | {"vision_config": TOWER}}, "place:text"),
    ({"place/config.json": TOWER}, "place:vision"),
    ({"place/config.json": TOWER | {"vocab_size": 100}}, "place:vision"),
    ({"place/config.json": DENSE | {"patch_size": 8}}, "place:vision"),
    ({"place/config.json": DENSE}, "place:vision"),
    ({"place/config.json": WHOLE | {"vision_config": 7, "image_size": 32}}, "place:vision"),
    ({"place:vision/config.json": DENSE}, "place:vision"),
    ({"llama-3-8b/config.json": DENSE}, "llama-3-8b"),
    ({}, "llama-3-8b"),
    ({}, "llama-3-8b:vision"),
    ({}, "llama-3-8b:sound"),
    ({}, "gemma-3-4b:vision"),
    ({}, "meta-llama/Llama-3.1-8B-Instruct"),
    ({}, "llama-3-9b"),
    ({}, "strange"),
    ({}, "./strange"),
    ({}, "/strange/strange"),
    ({}, "~strange"),
    ({}, "strange.json"),
    ({}, ""),
    ({}, ":vision"),
)
"""Files of a folder, and which model is asked for in it."""


def changed(base: Config, keys: Config) -> Config:
    return {key: value for key, value in (base | keys).items() if value is not ABSENT}


def in_runs(values: Iterable[Any]) -> list[str]:
    """Values of which equal ones stand behind each other, with how often."""
    return [f"{sum(1 for _ in some)} x {value}" for value, some in groupby(values)]


def kind_text(kind: LayerKind) -> str:
    return " ".join(
        f"{name}={value}" for name, value in vars(kind).items() if value not in (None, False)
    )


def mlp_text(mlp: Mlp) -> str:
    return " ".join(str(value) for value in vars(mlp).values())


def fields_of(model: Model) -> dict[str, Any]:
    read = {
        "name": model.name,
        "title": model.title,
        "notes": list(model.notes),
        "width": model.width,
        "precision": model.dtype,
        "layers": in_runs(model.order),
        "kinds": [kind_text(kind) for kind in model.kinds],
        "states": [kind_text(kind) for kind in model.states],
        "cache": model.cache_bytes(1, 300, "bf16"),
        "weights": None,
    }
    if model.weights is not None:
        numbers = {f.name: getattr(model.weights, f.name) for f in fields(model.weights)}
        numbers["mlps"] = in_runs(mlp_text(mlp) for mlp in model.weights.mlps)
        numbers["more"] = in_runs(model.weights.more)
        read |= {"weights": model.weight_bytes, **numbers}
    return read


def read_as(source: str | Config) -> dict[str, Any]:
    """A model's fields; or why it is refused."""
    try:
        model = load_model(source)
    except InputError as error:
        return {"refused": str(error).partition("; accepted")[0]}
    try:
        trained = {f"trained {name}": value for name, value in decoder_of(model).items()}
    except InputError as error:
        trained = {"trained": str(error).partition("; accepted")[0]}
    return fields_of(model) | trained


def cases() -> Iterator[tuple[str, Any]]:
    for name, (base, changes) in LISTS.items():
        base_fields = read_as(base)
        yield name, base_fields
        seen = set[str]()
        for keys in changes:
            text = json.dumps(keys)
            if len(text) > LONGEST:
                text = f"{text[:LONGEST]}, {len(text)} letters"
            if text in seen:
                continue
            seen.add(text)
            read = read_as(changed(base, keys))
            yield (
                f"{name}: {text}",
                {field: value for field, value in read.items() if base_fields.get(field) != value},
            )
    for n, (files, source) in enumerate(FILES):
        with TemporaryDirectory() as folder, chdir(folder):
            for name, content in files.items():
                Path(name).parent.mkdir(exist_ok=True)
                Path(name).write_text(json.dumps(content), encoding="utf-8")
            yield f"file {n}, of {', '.join(files)}: {source}", read_as(source)

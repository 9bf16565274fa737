"""Whole models whose operators tests ask for."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import iosim
from iosim.studies.models.whole import WholeRun

WIDTH = 256


PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "num_hidden_layers": 3,
    "intermediate_size": 512,
    "torch_dtype": "bfloat16",
}


ROUTED = PLAIN | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


LATENT = PLAIN | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "v_head_dim": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
}


def one(config: Any, **options: Any) -> WholeRun:
    (run,) = iosim.model(config, **({"gpu": "h100", "context": 0} | options))
    return run


CONFIGS = st.sampled_from([PLAIN, ROUTED, LATENT])

"""Values of a config.json that make no sense are refused or said, and numbers in matrices are those of the class."""

from __future__ import annotations

from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.integrations.models import load_model
from iosim.studies.models.layers import Mlp, Model

DENSE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
}
SPARSE = DENSE | {"n_routed_experts": 8, "moe_intermediate_size": 512}
ATTENTION = 2 * 1024 * (16 + 4) * 64
"""Numbers in a layer's Q, K, V and O."""
DENSE_MLP, EXPERTS = 3 * 1024 * 4096, 8 * 3 * 1024 * 512 + 8 * 1024  # with the router


def numbers(model: Model) -> int:
    assert model.weight_bytes is not None, model.notes
    return model.weight_bytes // 2


def mlps(keys: dict[str, Any]) -> tuple[Mlp, ...]:
    weights = load_model(keys).weights
    assert weights is not None
    return weights.mlps


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (DENSE | {"num_key_value_heads": [None]}, "num_key_value_heads lists null alone"),
        (DENSE | {"is_causal": "no"}, "is_causal 'no' is no flag; accepted: true or false"),
        (DENSE | {"is_decoder": "false"}, "is_decoder 'false' is no flag"),
        (DENSE | {"cla_share_factor": 2, "use_cla": "yes"}, "use_cla 'yes' is no flag"),
        (DENSE | {"model_type": "falcon", "multi_query": "no"}, "multi_query 'no' is no flag"),
        (DENSE | {"full_attention_interval": "4"}, "full_attention_interval 4 is not read"),
        (DENSE | {"layer_group_size": 1.5}, "layer_group_size 1.5 is not read; accepted: a whole"),
        (DENSE | {"num_kv_shared_layers": -2}, "num_kv_shared_layers -2 is not read"),
        (DENSE | {"hybrid_layer_pattern": "yes"}, "hybrid_layer_pattern yes is not read"),
    ],
)
def test_a_value_that_decides_on_attention_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="model") as caught:
        load_model(keys)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (SPARSE | {"is_moe_layer": "yes"}, "is_moe_layer yes is not read"),
        (SPARSE | {"first_k_dense_replace": "1"}, "first_k_dense_replace 1 is not read"),
        (SPARSE | {"first_k_dense_replace": -1}, "first_k_dense_replace -1 is not read"),
        (SPARSE | {"decoder_sparse_step": 1.5}, "decoder_sparse_step 1.5 is not read"),
        (
            SPARSE | {"num_local_experts": 16},
            "contradicts itself: n_routed_experts 8 and num_local_experts 16",
        ),
        (SPARSE | {"moe_intermediate_size": 0}, "moe_intermediate_size is 0, and it has experts"),
        (
            DENSE | {"model_type": "doge", "is_moe": True, "num_experts": 64},
            "has 64 experts of a row and a column each",
        ),
        (DENSE | {"tie_word_embeddings": "false"}, "tie_word_embeddings 'false' is no flag"),
        (DENSE | {"torch_dtype": "int3"}, "numbers of type int3, which is not known"),
        (DENSE | {"intermediate_size": [4096, 2048]}, "has 2 intermediate_size for 6 layers"),
        (
            DENSE | {"quantization_config": {"bits": 4, "group_size": "128"}},
            "packs its weights by an unknown method",
        ),
    ],
)
def test_a_value_that_decides_on_weights_leaves_them_unknown(
    keys: dict[str, Any], message: str
) -> None:
    model = load_model(keys)
    assert model.weights is None
    assert any("its weights are not known" in note and message in note for note in model.notes)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (DENSE | {"moe": "yes"}, "not read: moe"),
        (DENSE | {"linear_attn_config": [1]}, "not read: linear_attn_config"),
        (DENSE | {"model_type": "cogvlm"}, "model_type cogvlm is not known here"),
        (
            DENSE | {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification writes no tokens",
        ),
        (DENSE | {"architectures": ["LlamaModel"]}, "LlamaModel writes no tokens"),
        (
            DENSE | {"model_type": "gpt2", "add_cross_attention": True},
            "attend to an encoder's output, too, which is not counted",
        ),
    ],
)
def test_what_else_is_not_read_is_said_first(keys: dict[str, Any], message: str) -> None:
    assert message in load_model(keys).title


def test_a_class_that_writes_tokens_is_not_said_to_write_none() -> None:
    for built in ("LlamaForCausalLM", "LlamaForConditionalGeneration"):
        assert "writes no tokens" not in load_model(DENSE | {"architectures": [built]}).title
    chat = DENSE | {"model_type": "chatglm", "architectures": ["ChatGLMModel"]}
    assert "writes no tokens" not in load_model(chat).title
    inside = {
        "model_type": "mistral3",
        "architectures": ["Mistral3Model"],
        "text_config": DENSE | {"model_type": "mistral"},
    }
    assert "writes no tokens" not in load_model(inside).title


def test_a_model_without_a_head_has_no_second_table() -> None:
    head = 1000 * 1024
    untied = DENSE | {"tie_word_embeddings": False}
    layers = 6 * (ATTENTION + DENSE_MLP)
    for built, tables in (("LlamaForCausalLM", 2), ("LlamaForSequenceClassification", 1)):
        model = load_model(untied | {"architectures": [built]})
        assert numbers(model) == layers + tables * head


def test_a_key_that_transformers_4_left_out_ties_the_head() -> None:
    keys = {key: value for key, value in DENSE.items() if key != "tie_word_embeddings"}
    head = 1000 * 1024
    saved = keys | {"model_type": "orion", "transformers_version": "4.34.0"}
    own = keys | {"model_type": "orion"}
    assert numbers(load_model(own)) - numbers(load_model(saved)) == head
    # Of its own types the class's default is known: a Llama's head has a matrix.
    assert numbers(load_model(keys | {"transformers_version": "4.34.0"})) == numbers(
        load_model(keys)
    )


@pytest.mark.parametrize(
    ("keys", "experts"),
    [
        ({"first_k_dense_replace": 2}, [0, 0, 8, 8, 8, 8]),
        # A list of all layers goes before a number that says where experts begin.
        (
            {"first_k_dense_replace": 3, "mlp_layer_types": ["sparse", "dense"] * 3},
            [8, 0, 8, 0, 8, 0],
        ),
        ({"interleave_moe_layer_step": 2, "moe_layers": [0, 1, 2]}, [8, 8, 8, 0, 0, 0]),
        # Two conditions, both of which a layer with experts meets.
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [0, 0, 0, 8, 0, 8]),
        # ERNIE 4.5: -1 is the last layer.
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, [0, 8, 8, 8, 8, 8]),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 4}, [0, 8, 8, 8, 8, 0]),
    ],
)
def test_which_layers_have_experts(keys: dict[str, Any], experts: list[int]) -> None:
    assert [mlp.experts for mlp in mlps(SPARSE | keys)] == experts


TABLE = 1000 * 1024
T5 = DENSE | {"model_type": "t5", "architectures": ["T5EncoderModel"], "num_key_value_heads": None}


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        # OPT-350M's words have half as many columns as its layers: a matrix before them and one behind.
        (
            DENSE
            | {"model_type": "opt", "ffn_dim": 4096, "word_embed_proj_dim": 512}
            | {"num_key_value_heads": None, "max_position_embeddings": 100},
            1000 * 512 + 2 * 512 * 1024 + 100 * 1024 + 6 * (4 * 1024**2 + 2 * 1024 * 4096),
        ),
        # Molmo's key of a width holds both matrices', and its embedding_size is its rows.
        (
            DENSE | {"model_type": "molmo", "embedding_size": 1100},
            TABLE + 6 * (ATTENTION + DENSE_MLP // 2),
        ),
        # ALBERT has one layer's matrices, which run six times.
        (
            DENSE
            | {"model_type": "albert", "embedding_size": 128, "num_hidden_groups": 1}
            | {"num_key_value_heads": None},
            1000 * 128 + 128 * 1024 + 4 * 1024**2 + 2 * 1024 * 4096,
        ),
        # ERNIE 4.5 VL: so many experts for text and as many for images.
        (
            DENSE
            | {
                "model_type": "ernie4_5_vl_moe_text",
                "moe_num_experts": 8,
                "first_k_dense_replace": 0,
            }
            | {"moe_intermediate_size": [512, 256], "moe_num_shared_experts": 0},
            TABLE + 6 * (ATTENTION + 3 * 1024 * 8 * (512 + 256) + 16 * 1024),
        ),
        # JetMoE's queries have a matrix an expert, as many heads as keys have.
        (
            DENSE
            | {"model_type": "jetmoe", "num_local_experts": 8, "num_experts_per_tok": 2}
            | {"num_attention_heads": 8, "kv_channels": 64},
            TABLE + 6 * (2 * 1024 * 4 * 64 * (8 + 1) + 8 * DENSE_MLP + 8 * 1024),
        ),
        # Two matrices of a bidirectional text model with GELU.
        (
            DENSE | {"model_type": "dpr", "num_key_value_heads": None},
            TABLE + 6 * (4 * 1024**2 + 2 * 1024 * 4096),
        ),
        # Attention to an encoder's output has as many matrices again.
        (
            DENSE
            | {"model_type": "gpt2", "add_cross_attention": True, "n_positions": 100}
            | {"num_key_value_heads": None, "n_inner": 4096},
            TABLE + 100 * 1024 + 6 * (8 * 1024**2 + 2 * 1024 * 4096),
        ),
        # T5's first encoders have no gate; those whose activation is said to have one do.
        (T5, TABLE + 6 * (4 * 1024**2 + 2 * 1024 * 4096)),
        (T5 | {"feed_forward_proj": "relu"}, TABLE + 6 * (4 * 1024**2 + 2 * 1024 * 4096)),
        (T5 | {"feed_forward_proj": "gated-gelu"}, TABLE + 6 * (4 * 1024**2 + 3 * 1024 * 4096)),
        # Nemotron-H's class gives its head a matrix, whatever is said of one.
        (
            DENSE
            | {"model_type": "nemotron_h", "hybrid_override_pattern": "*-*-*-"}
            | {"head_dim": 64},
            2 * TABLE + 3 * (ATTENTION + 2 * 1024 * 4096),
        ),
        # A head of its own has as many columns as ALBERT's table.
        (
            DENSE
            | {"model_type": "albert", "embedding_size": 128, "num_hidden_groups": 1}
            | {"num_key_value_heads": None, "tie_word_embeddings": False},
            2 * 1000 * 128 + 128 * 1024 + 4 * 1024**2 + 2 * 1024 * 4096,
        ),
        # A.X-K2: one matrix of two ranks for queries and a gate, and a gate of rank 16 before attention, and before
        # the experts that all layers but the first have.
        (
            DENSE
            | {"model_type": "axk2", "q_lora_rank": 384, "kv_lora_rank": 128, "gated_norm_rank": 16}
            | {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
            | {"index_topk": 2048, "index_n_heads": 16, "index_head_dim": 128}
            | {"n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 512}
            | {"first_k_dense_replace": 1},
            TABLE
            + 6 * (384 * 1024 + 2 * 384 * 16 * (96 + 64) + 1024 * 160 + 128 * 16 * 128 + 1024**2)
            + 6 * (384 * 16 * 128 + 1024 * 128 + 1024 * 16)
            + (6 + 5) * 2 * 1024 * 16
            + DENSE_MLP
            + 5 * (EXPERTS + 3 * 1024 * 512),
        ),
        # Qwen4-Exp: four copies of the residual stream, mixed by rank 320 twice a layer and once behind them; the
        # second layer looks up pairs and triples of tokens, in eight tables each.
        (
            DENSE
            | {"model_type": "qwen4_exp_text", "head_dim": 64, "hc_count": 4, "hc_lowrank": 320}
            | {"layer_types": ["indexed_attention"] * 6, "num_experts": 8, "num_experts_per_tok": 2}
            | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
            | {"indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 128}
            | {"ple_layer_ids": [2], "ple_embed_dim": 1024, "ngram_size": 3, "heads_per_ngram": 8}
            | {"ngram_vocab_size_base": 5000},
            TABLE
            + 6 * (ATTENTION + 1024 * 16 * 64 + 1024 * 9 * 128 + EXPERTS + 3 * 1024 * 512)
            + 6 * 2 * (2 * 320 * 4 * 1024 + 4 * 4 * 1024)
            + 2 * 320 * 4 * 1024
            + 1024 * (4 + 1) * 1024
            + 16 * 5000 * 1024 // 16,
        ),
    ],
)
def test_numbers_in_matrices_of_a_class(keys: dict[str, Any], wanted: int) -> None:
    assert numbers(load_model(keys)) == wanted


def test_bytes_of_a_type() -> None:
    for kind, size in (("float8_e4m3fn", 1), ("torch.float32", 4), ("FP16", 2), ("auto", 2)):
        model = load_model(DENSE | {"torch_dtype": kind})
        assert model.weight_bytes == size * (TABLE + 6 * (ATTENTION + DENSE_MLP)), kind


def test_matrices_that_no_key_tells_are_not_guessed() -> None:
    model = load_model(DENSE | {"model_type": "mobilebert"})
    assert model.weights is None
    assert "has matrices that no key of a mobilebert tells" in model.notes[-1]

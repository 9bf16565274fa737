"""Config files of models whose layers differ in kind: read as their class builds them, or with what was not read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.integrations.models import load_model
from iosim.integrations.models.patterns import PATTERNS
from iosim.integrations.models.reading import FAMILIES, class_defaults
from iosim.integrations.models.reading import SIZES as READ
from iosim.studies.models.layers import Model

SIZES: dict[str, Any] = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4}
SSD = {"mamba_n_heads": 32, "mamba_n_groups": 1, "mamba_d_state": 64, "mamba_d_head": 64}
NEMOTRON = {
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "head_dim": 128,
}
LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
INDEX = {"index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128}
SWA = {
    "swa_num_attention_heads": 16,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
}


def config(kind: str, layers: int | None, **keys: Any) -> dict[str, Any]:
    """A config.json of a type, with usual sizes."""
    layers_key = {} if layers is None else {"num_hidden_layers": layers}
    return {"model_type": kind, **SIZES, **layers_key, **keys}


def kinds(model: Model) -> list[tuple[str, int]]:
    """The kinds of a model's layers, with how many there are."""
    return [(all_kind.name, all_kind.count) for all_kind in model.all_kinds]


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (
            config("nemotron_h", 7, hybrid_override_pattern="MEM*-ME", **NEMOTRON),
            [("full", 1), ("mamba", 3)],
        ),
        (
            config(
                "nemotron_h",
                None,
                layers_block_type=["mamba", "moe", "mamba", "attention"],
                **NEMOTRON,
            ),
            [("full", 1), ("mamba", 2)],
        ),
        (
            config(
                "mimo_v2_flash",
                6,
                hybrid_layer_pattern=[0, 1, 0, 1, 1, 0],
                sliding_window=128,
                head_dim=192,
                **SWA,
            ),
            [("full", 3), ("sliding", 3)],
        ),
        (
            config(
                "nemotron-nas",
                3,
                block_configs=[
                    {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.0}},
                    {"attention": {"no_op": True}},
                    {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True}},
                ],
            ),
            [("full", 1), ("full (2 key/value)", 1)],
        ),
        (config("jamba", 16, attn_layer_period=8, attn_layer_offset=4), [("full", 2)]),
        (config("bamba", 12, attn_layer_indices=[3, 9], **SSD), [("mamba", 10), ("full", 2)]),
        (config("minimax_text_01", 4, attn_type_list=[0, 0, 0, 1], head_dim=64), [("full", 1)]),
        (config("lfm2", 5, full_attn_idxs=[2, 4]), [("full", 2)]),
        (
            config(
                "bailing_hybrid",
                12,
                layer_group_size=4,
                linear_num_heads=16,
                linear_head_dim=64,
                **LATENT,
            ),
            [("linear", 9), ("latent", 3)],
        ),
        (
            config(
                "recurrent_gemma",
                5,
                block_types=["recurrent", "recurrent", "attention"],
                attention_window_size=64,
            ),
            [("sliding", 1)],
        ),
        (
            config(
                "zamba2",
                6,
                hybrid_layer_ids=[2, 5],
                num_key_value_heads=16,
                attention_head_dim=128,
                n_mamba_heads=8,
                mamba_ngroups=1,
                mamba_d_state=64,
                mamba_headdim=256,
            ),
            [("full", 2), ("mamba", 6)],
        ),
        (
            config(
                "some_v4",
                4,
                compress_ratios=[0, 4, 128, 4],
                head_dim=128,
                sliding_window=128,
                **INDEX,
            ),
            [("sliding", 1), ("compressed sparse", 2), ("compressed", 1)],
        ),
        (
            config(
                "glm_moe_dsa",
                4,
                indexer_types=["full", "full", "shared", "full"],
                **LATENT,
                **INDEX,
            ),
            [("sparse latent", 3), ("sparse latent (another's index)", 1)],
        ),
        (
            config(
                "glm_moe_dsa",
                None,
                layer_types=["deepseek_sparse_attention"] * 3,
                **LATENT,
                **INDEX,
            ),
            [("sparse latent", 3)],
        ),
        (
            config("gemma3n_text", 10, num_kv_shared_layers=5, sliding_window=64, head_dim=64),
            [
                ("sliding", 4),
                ("full", 1),
                ("sliding (another's cache)", 4),
                ("full (another's cache)", 1),
            ],
        ),
        (
            config(
                "gemma4_text",
                6,
                per_layer_config={"05": {"head_dim": 512}},
                head_dim=256,
                sliding_window=64,
            ),
            [("sliding", 5), ("full", 1)],
        ),
        (
            config(
                "gemma4_text",
                6,
                per_layer_config={"05": {"head_dim": 384}, "04": {"head_dim": 64}},
                head_dim=256,
                sliding_window=64,
            ),
            [("sliding", 4), ("sliding (head_dim 64)", 1), ("full", 1)],
        ),
        (config("mllama_text_model", 5, cross_attention_layers=[1, 3]), [("full", 3)]),
        (config("longcat_flash", None, num_layers=3, **LATENT), [("latent", 6)]),
        (config("longcat_flash_ngram", None, num_layers=3, **LATENT), [("latent", 6)]),
        (config("falcon_h1", 3, **SSD), [("full", 3), ("mamba", 3)]),
        (
            config("mamba2", 4, num_heads=32, head_dim=64, state_size=128, n_groups=8),
            [("mamba", 4)],
        ),
        (
            config(
                "step3p5",
                4,
                layer_types=["full_attention"] + ["sliding_attention"] * 3,
                sliding_window=512,
                head_dim=64,
                attention_other_setting={
                    "num_attention_heads": 24,
                    "num_attention_groups": 8,
                    "head_dim": 64,
                },
            ),
            [("full", 1), ("sliding", 3)],
        ),
        (config("cohere2", 8, layer_switch=4, sliding_window=64), [("full", 2), ("sliding", 6)]),
        (
            config("hunyuan", 4, use_cla=True, cla_share_factor=2),
            [("full", 2), ("full (another's cache)", 2)],
        ),
        (
            config(
                "smollm3",
                8,
                no_rope_layers=[1, 1, 1, 0] * 2,
                use_sliding_window=True,
                sliding_window=64,
            ),
            [("full", 6), ("sliding", 2)],
        ),
        (
            config(
                "smollm3", 8, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=64
            ),
            [("full", 4), ("sliding", 4)],
        ),
        (
            config("kimi_linear", 8, linear_attn_config={"full_attn_layers": [4, 8]}, **LATENT),
            [("latent", 2), ("linear", 6)],
        ),
        (
            config("laguna", 3, num_attention_heads_per_layer=[16, 16, 32]),
            [("full", 2), ("full (32 heads)", 1)],
        ),
    ],
)
def test_layers_that_differ_are_told_apart(
    keys: dict[str, Any], wanted: list[tuple[str, int]]
) -> None:
    assert sorted(kinds(load_model(keys))) == sorted(wanted)


def test_sizes_of_each_kind_are_its_own() -> None:
    """MiMo-V2's windows have twice the key/value heads of its full layers; its cache is bounded by the window."""
    layers = [0, 1, 1, 1, 1, 0]
    mimo = load_model(
        config(
            "mimo_v2_flash",
            6,
            hybrid_layer_pattern=layers,
            sliding_window=128,
            head_dim=192,
            v_head_dim=128,
            **SWA,
        )
    )
    by_name = {kind.name: kind for kind in mimo.kinds}
    assert (by_name["full"].kv_heads, by_name["sliding"].kv_heads, by_name["sliding"].window) == (
        4,
        8,
        128,
    )
    token = (192 + 128) * 2
    assert mimo.cache_bytes(1, 65_536, "bf16") == 2 * 65_536 * 4 * token + 4 * 128 * 8 * token
    gemma = load_model(
        config("gemma4_text", 6, head_dim=256, global_head_dim=512, sliding_window=64)
    )
    assert [kind.head_dim for kind in gemma.kinds] == [256, 512]


@pytest.mark.parametrize(
    ("kind", "keys", "heads"),
    [
        ("hf_olmo", {"multi_query_attention": True}, 1),
        ("gpt_bigcode", {"multi_query": False}, 16),
        ("gpt_bigcode", {}, 1),
        ("chatglm", {"multi_query_attention": True, "multi_query_group_num": 2}, 2),
    ],
)
def test_switches_of_one_head_of_keys(kind: str, keys: dict[str, Any], heads: int) -> None:
    base = {"model_type": kind, "hidden_size": 1024, "num_attention_heads": 16}
    model = load_model({**base, "num_hidden_layers": 2, **keys})
    assert [kind.kv_heads for kind in model.kinds] == [heads]


def test_shared_keys_are_kept_once_and_have_no_matrices() -> None:
    keys = config("gemma3n_text", 10, num_kv_shared_layers=5, sliding_window=64, head_dim=64)
    alone = load_model(keys | {"num_kv_shared_layers": 0})
    shared = load_model(keys)
    assert shared.cache_bytes(1, 64, "bf16") * 2 == alone.cache_bytes(1, 64, "bf16")
    fewer = 5 * 2 * 1024 * 4 * 64
    assert (alone.attention_parameters or 0) - (shared.attention_parameters or 0) == fewer
    index = config("glm_moe_dsa", 2, indexer_types=["full", "shared"], **LATENT, **INDEX)
    first, another = load_model(index).kinds
    assert first.token_bytes("bf16") - another.token_bytes("bf16") == 128 + 4


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (config("llama9", 2), "model_type llama9 is not known here"),
        (config("llama", 2, mixer_kinds=["a", "b"]), "not read: mixer_kinds"),
        (
            config("llama", 2, dense_attention_every_n_layers=2),
            "not read: dense_attention_every_n_layers",
        ),
        (config("llama", 2, total_ut_steps=4), "not read: total_ut_steps"),
        (config("llama", 2, hybrid_blocks=3), "not read: hybrid_blocks"),
        (config("llama", 2, attention_chunk_size=64), "not read: attention_chunk_size"),
        (config("llama", 2, window_size=64), "not read: window_size"),
        (config("llama9", 2, attn_layer_idxs=[1]), "not read: attn_layer_idxs"),
        (config("llama9", 2) | {"layers": [{"type": "attn"}, {"type": "ssm"}]}, "not read: layers"),
        (config("llama9", 2, sliding_window=64, use_swa=False), "not read: use_swa"),
        (config("llama", 2, expert_num=16), "not read: expert_num"),
        (config("llama", 2, moe_config={"num": 16}), "not read: moe_config"),
        ({**SIZES, "num_hidden_layers": 2}, "no model_type, read by its keys alone as a decoder"),
        ({**SIZES, "num_hidden_layers": 2, "type_vocab_size": 2}, "as an encoder"),
        (
            config("jamba", 8, attn_layer_period=8, attn_layer_offset=4),
            "7 of 8 layers run mamba, which is not counted",
        ),
        (
            config("mllama_text_model", 5, cross_attention_layers=[1, 3]),
            "2 of 5 layers run cross attention",
        ),
        (
            config("minimax_m3_vl_text", 2, layer_types=["full_attention", "minimax_m3_sparse"]),
            "1 layers that attend to picked blocks of keys are counted as if to all tokens",
        ),
        (
            config(
                "minimax_m3_vl_text",
                4,
                sparse_attention_config={"sparse_attention_freq": [0, 1, 1, 0]},
            ),
            "2 layers that attend to picked blocks of keys are counted as if to all tokens",
        ),
        (config("phi4flash", 4, mb_per_layer=2, mamba_d_state=16), "not known here"),
        (config("Motif", 2, num_noise_heads=8), "model_type Motif is not known here"),
        (
            config("llama", 1, architectures=["LlamaForCausalLMEagle3"]),
            "architectures LlamaForCausalLMEagle3 is no class",
        ),
        (config("phi3", 2, architectures=["OmniGen"]), "architectures OmniGen is no class of phi3"),
        (config("llama", 1, draft_vocab_size=32000), "not read: draft_vocab_size"),
        (
            {
                "model_type": "higgs_audio",
                "text_config": config("llama", 2),
                "audio_dual_ffn_layers": [0, 1],
            },
            "not read: audio_dual_ffn_layers",
        ),
    ],
)
def test_what_is_not_read_stands_in_the_first_sentence(
    keys: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "config.json"
    place.write_text(json.dumps(keys))
    assert message in load_model(keys).title
    for line in (
        "predict --method capacity --seq-len 1k",
        "sweep --method capacity --seq-len 1k --kernel fa3",
    ):
        assert main([*line.split(), "--model", str(place), "--gpu", "h100"]) == 0
        assert message in capsys.readouterr().out.split(". ")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "models show",
        "decode --context 1k",
        "latency --seq-len 1k",
        "compare --kernel fa2 --seq-len 1k",
        "model",
        "tiles --seq-len 1k",
        "orders --seq-len 1k",
        "ring --seq-len 8k",
        "compare --per token --seq-len 1k",
    ],
)
def test_every_command_says_so_first(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "config.json"
    place.write_text(
        json.dumps(config("llama9", 2, vocab_size=1000, intermediate_size=2048, hidden_act="silu"))
    )
    words = line.split()
    named = (
        [*words, str(place)] if words[0] in ("models", "model") else [*words, "--model", str(place)]
    )
    assert main(named if words[0] == "models" else [*named, "--gpu", "h100"]) == 0
    assert "model_type llama9 is not known here" in capsys.readouterr().out.split(". ")[0]


@pytest.mark.parametrize(
    "kind", ["llama", "qwen3_moe", "deepseek_v3", "gemma3_text", "gpt_oss", "qwen3_5_text"]
)
def test_a_known_config_says_nothing_more(kind: str) -> None:
    assert (
        "("
        not in load_model(
            config(kind, 4, rms_norm_eps=1e-6, attention_bias=False, layer_norm_eps=1e-5)
        ).title
    )


@pytest.mark.parametrize(
    "kind", ["mamba", "rwkv7", "xlstm", "gla", "delta_net", "fnet", "reformer", "swin"]
)
def test_models_without_softmax_attention_are_refused_in_a_line(kind: str) -> None:
    stages = {"depths": [2, 2]} if kind == "swin" else {}
    with pytest.raises(InputError, match=f"model_type {kind}") as error:
        load_model(config(kind, 4, **stages))
    assert "\n" not in str(error.value)


def test_states_of_models_without_attention() -> None:
    (state,) = load_model(
        config("mamba2", 4, num_heads=32, head_dim=64, state_size=128, n_groups=8)
    ).states
    assert (state.state_kernel, state.state_bytes) == ("ssd", 32 * 64 * 128 * 4)
    (delta,) = load_model(
        {
            "model_type": "gated_deltanet",
            "num_hidden_layers": 3,
            "hidden_size": 2048,
            "num_heads": 6,
            "head_dim": 256,
            "expand_v": 2,
        }
    ).states
    assert (delta.state_kernel, delta.heads, delta.head_dim, delta.head_dim_v) == (
        "gdn",
        6,
        256,
        512,
    )


def test_what_a_file_says_goes_before_a_default_of_its_class() -> None:
    """Kimi K3 says its states' sizes in a table; Kimi Linear's class has defaults under other keys."""
    table = {"kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": 96, "head_dim": 64}
    (state,) = load_model(config("kimi_linear", 3, linear_attn_config=table, **LATENT)).states
    assert (state.heads, state.head_dim) == (96, 64)


@pytest.mark.parametrize(
    ("keys", "mlps"),
    [
        # Grok 2: experts of 512 columns beside an MLP of 2,048. Nomic Embed v2: every second layer has experts of two matrices.
        (
            config(
                "git",
                2,
                residual_moe=True,
                intermediate_size=2048,
                moe_intermediate_size=512,
                num_local_experts=8,
            ),
            [3 * (2048 + 8 * 512)] * 2,
        ),
        (
            config(
                "nomic_bert",
                2,
                moe_every_n_layers=2,
                num_experts=8,
                n_inner=2048,
                activation_function="gelu",
            ),
            [2 * 2048, 2 * 8 * 2048],
        ),
        (config("nomic_bert", 1, n_inner=2048, activation_function="swiglu"), [3 * 2048]),
    ],
)
def test_experts_beside_and_between_dense_mlps(keys: dict[str, Any], mlps: list[int]) -> None:
    weights = load_model(keys | {"vocab_size": 100}).weights
    assert weights is not None
    assert [mlp.matrices * (mlp.inner + mlp.experts * mlp.wide) for mlp in weights.mlps] == mlps


@pytest.mark.parametrize(
    "keys",
    [
        config(
            "mimo_v2_flash", 2, moe_layer_freq=[0, 1], n_routed_experts=8, moe_intermediate_size=64
        ),
        config(
            "glm_moe_dsa",
            2,
            mlp_layer_types=["dense", "sparse"],
            n_routed_experts=8,
            moe_intermediate_size=64,
            **LATENT,
            **INDEX,
        ),
        config("gpt_oss", 2, experts_per_token=4),
        config("exaone_moe", 2, is_moe_layer=[False, True]),
    ],
)
def test_a_key_that_weights_read_is_not_called_unread(keys: dict[str, Any]) -> None:
    model = load_model(keys | {"vocab_size": 100, "intermediate_size": 512})
    assert model.weights is not None
    assert "not read" not in model.title


def test_no_softmax_attention_is_said_of_models_without_it_alone() -> None:
    """Evo's StripedHyena attends in three of its layers."""
    with pytest.raises(InputError, match="mixes attention with states"):
        load_model(config("stripedhyena", 32, attn_layer_idxs=[8, 16, 24]))


def test_zeros_of_latent_attention_that_is_switched_off_say_nothing() -> None:
    """DeepSeek-OCR's and -VL2's smallest models have heads of their own."""
    off = dict.fromkeys(LATENT, 0) | {"kv_lora_rank": None, "q_lora_rank": None}
    model = load_model(config("deepseek_vl_v2", 2, use_mla=False, **off))
    assert kinds(model) == [("full", 2)]


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (
            {
                "experts_per_token": 4,
                "swiglu_limit": 7.0,
                "initial_context_length": 4096,
                "num_experts": 128,
                "sliding_window": 128,
                "head_dim": 64,
                **SIZES,
                "num_hidden_layers": 4,
            },
            [("full", 2), ("sliding", 2)],
        ),
        (
            {
                "dim": 1024,
                "n_layers": 3,
                "n_heads": 16,
                "n_dense_layers": 1,
                "moe_inter_dim": 64,
                "inter_dim": 512,
                "n_routed_experts": 8,
                "vocab_size": 100,
                **LATENT,
            },
            [("latent", 3)],
        ),
    ],
)
def test_files_of_models_own_code_without_a_type(
    keys: dict[str, Any], wanted: list[tuple[str, int]]
) -> None:
    model = load_model(keys)
    assert (sorted(kinds(model)), "(" in model.title) == (wanted, False)


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "built"),
    [
        ("esm", "EsmForMaskedLM"),
        ("deberta-v2", "DebertaV2ForMaskedLM"),
        ("longformer", "LongformerForMaskedLM"),
        ("wav2vec2", "Wav2Vec2ForCTC"),
        ("hubert", "HubertForCTC"),
        ("beit", "BeitForImageClassification"),
        ("dinov3_vit", "DINOv3ViTModel"),
        ("unknown_bert", "UnknownForMaskedLM"),
        ("llada", "LLaDAModelLM"),
        ("Dream", "DreamModel"),
        ("t5", "T5EncoderModel"),
    ],
)
def test_encoders_have_no_mask_and_no_cache(kind: str, built: str) -> None:
    model = load_model(
        {
            "model_type": kind,
            "architectures": [built],
            "hidden_size": 768,
            "num_hidden_layers": 3,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 100,
        }
    )
    assert not model.causal
    assert model.cache_bytes(1, 1000, "bf16") == 0


@pytest.mark.parametrize(
    ("kind", "causal"),
    [
        ("vitpose_backbone", False),
        ("eomt", False),
        ("lw_detr_vit", False),
        ("rf_detr_dinov2", False),
        ("siglip_text_model", False),
        ("chinese_clip_text_model", False),
        ("align_text_model", False),
        ("flava_text_model", False),
        ("embedding_gemma2_text", False),
        ("layoutlmv2", False),
        ("clip_text_model", True),
        ("owlvit_text_model", True),
        ("git", True),
        ("timesfm", True),
        ("imagegpt", True),
    ],
)
def test_parts_that_no_list_of_models_has_hide_tokens_as_their_code_does(
    kind: str, causal: bool
) -> None:
    """A text tower of CLIP hides later tokens, one of SigLIP does not; transformers lists neither as a model."""
    # Without a vocabulary: a table of words alone would tell a writer.
    keys = {key: value for key, value in config(kind, 2).items() if "vocab" not in key}
    assert load_model(keys).causal is causal


@pytest.mark.parametrize(("layers", "stack"), [(8, 2), (24, 3)])
def test_layers_that_run_several_times_have_their_matrices_once(layers: int, stack: int) -> None:
    """Two stacks of an HRM hold matrices; the layers after them are the same two again."""
    weights = load_model(config("hrm_text", layers, num_layers_per_stack=stack)).weights
    assert weights is not None
    assert [mlp.inner > 0 for mlp in weights.mlps] == [n < 2 * stack for n in range(layers)]


def test_longformers_window_is_on_both_sides() -> None:
    model = load_model(
        config("longformer", 3, attention_window=[256, 256, 512], num_key_value_heads=16)
    )
    assert sorted((kind.window, kind.count) for kind in model.kinds) == [(256, 2), (512, 1)]


@pytest.mark.parametrize("kind", ["t5", "bart", "whisper"])
def test_an_encoder_with_a_decoder_is_refused_without_a_flag_too(kind: str) -> None:
    with pytest.raises(InputError, match="is an encoder and a decoder"):
        load_model(config(kind, 2))
    with pytest.raises(InputError, match="is an encoder and a decoder"):
        load_model({"model_type": "florence2", "text_config": config(kind, 2)})
    alone = load_model(config(kind, 2, is_encoder_decoder=False))
    assert (alone.layers, alone.causal) == (2, False)
    assert load_model(config(kind, 2, is_encoder_decoder=False, is_decoder=True)).causal


def test_a_name_in_a_file_is_one_line_of_what_can_be_printed() -> None:
    """A config.json from elsewhere would else colour, clear or fill the terminal of who reads it."""
    model = load_model(config("llama", 2, _name_or_path="a\x1b[31m\nb\u202e" + "x" * 1000))
    assert model.title.isprintable()
    assert model.name.isprintable()
    assert len(model.title) < 300


def test_a_decoder_of_an_encoders_type_says_so() -> None:
    assert load_model(config("bert", 2, is_decoder=True)).causal
    assert not load_model(config("llama", 2, architectures=["LlamaBiModel"])).causal


# --- vision towers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vision",
    [
        {
            "model_type": "qwen3_vl",
            "depth": 5,
            "hidden_size": 1152,
            "num_heads": 16,
            "intermediate_size": 4304,
        },
        {
            "model_type": "kimi_k25_vision",
            "vt_hidden_size": 1152,
            "vt_num_attention_heads": 16,
            "vt_num_hidden_layers": 5,
        },
        {
            "model_type": "mllama_vision_model",
            "hidden_size": 1280,
            "attention_heads": 16,
            "num_hidden_layers": 3,
            "num_global_layers": 2,
        },
        {
            "model_type": "qwen2_vl",
            "depth": 5,
            "embed_dim": 1280,
            "num_heads": 16,
            "hidden_size": 3584,
            "mlp_ratio": 4,
        },
    ],
)
def test_the_vision_tower_of_a_model(vision: dict[str, Any], tmp_path: Path) -> None:
    place = tmp_path / "config.json"
    parts = {"text_config": config("llama", 2), "vision_config": vision}
    for whole in (parts, {"thinker_config": parts}):
        place.write_text(json.dumps(whole))
        tower = load_model(f"{place}:vision")
        assert (tower.layers, tower.causal, tower.kinds[0].heads) == (5, False, 16)
        assert load_model(place).layers == 2


def test_parts_that_are_not_counted_are_named() -> None:
    parts = {"audio_config": config("whisper", 4), "text_config": config("llama", 2)}
    assert any("not counted: audio_config" in note for note in load_model(parts).notes)
    deep = {"whisper_model_args": {"encoder_args": {"dim": 1280, "n_layers": 32}}}
    voxtral = {
        "dim": 1024,
        "n_layers": 2,
        "n_heads": 16,
        "hidden_dim": 64,
        "vocab_size": 9,
        "multimodal": deep,
    }
    assert any("not counted: multimodal" in note for note in load_model(voxtral).notes)
    speech = config("csm", 2, depth_decoder_config={"num_hidden_layers": 4})
    assert any("not counted: depth_decoder_config" in note for note in load_model(speech).notes)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_mistrals_and_metas_params(tmp_path: Path) -> None:
    mistral = {
        "dim": 12288,
        "n_layers": 88,
        "head_dim": 128,
        "hidden_dim": 28672,
        "n_heads": 96,
        "n_kv_heads": 8,
        "vocab_size": 32768,
    }
    (tmp_path / "params.json").write_text(json.dumps(mistral))
    model = load_model(tmp_path)
    assert (model.kinds[0].heads, model.kinds[0].kv_heads) == (96, 8)
    assert model.weight_bytes == pytest.approx(2 * 122.6e9, rel=0.01)
    windows = load_model(mistral | {"sliding_window": [64, 64, 64, None]})
    assert kinds(windows) == [("sliding", 66), ("full", 22)]  # again and again over its 88 layers
    meta = {
        "dim": 8192,
        "n_layers": 80,
        "n_heads": 64,
        "n_kv_heads": 8,
        "vocab_size": 128256,
        "multiple_of": 4096,
        "ffn_dim_multiplier": 1.3,
    }
    assert load_model(meta).weight_bytes == pytest.approx(141.1e9, rel=0.001)


def test_ernies_and_ariasexperts_are_read() -> None:
    ernie = load_model(
        {
            "model_type": "ernie4_5_moe",
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "num_hidden_layers": 28,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "moe_num_experts": 64,
            "moe_num_shared_experts": 2,
            "moe_k": 6,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 27,
            "moe_layer_interval": 1,
            "vocab_size": 103424,
            "tie_word_embeddings": True,
        }
    )
    assert ernie.weight_bytes == pytest.approx(2 * 21_825_437_888, rel=0.001)
    assert ernie.weights is not None
    assert [mlp.active for mlp in ernie.weights.mlps[:2]] == [None, 6]


def test_attention_is_not_refused_for_an_mlp() -> None:
    listed = config(
        "hunyuan_v1_moe",
        4,
        intermediate_size=3072,
        moe_intermediate_size=[3072] * 4,
        num_experts=64,
        moe_topk=[8] * 4,
        num_shared_expert=[1] * 4,
        vocab_size=128167,
    )
    model = load_model(listed)
    assert model.weight_bytes is not None
    assert model.weights is not None
    assert model.weights.mlps[0].active == 8
    for key, value in (
        ("vocab_size", "x"),
        ("vocab_size", None),
        ("vocab_size", []),
        ("vocab_size", float("inf")),
        ("num_experts", {"a": 1}),
    ):
        broken = load_model(listed | {key: value})
        assert broken.weight_bytes is None
        assert any("weights are not known" in note for note in broken.notes)


def test_packed_weights_of_the_text_stand_beside_it_or_in_a_file_of_their_own(
    tmp_path: Path,
) -> None:
    text = config("llama", 2, vocab_size=1000, intermediate_size=4096)
    plain = load_model({"text_config": text}).weight_bytes or 0
    packed = (
        load_model(
            {"text_config": text, "quantization_config": {"quant_method": "fp8"}}
        ).weight_bytes
        or 0
    )
    tables = 2 * 2 * 1024 * 1000
    assert packed - tables == (plain - tables) // 2
    (tmp_path / "config.json").write_text(json.dumps(text))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "NVFP4"}})
    )
    fp4 = load_model(tmp_path).weight_bytes or 0
    assert fp4 - tables == pytest.approx((plain - tables) * 9 / 32)


@pytest.mark.parametrize(
    ("packing", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "bitsandbytes", "_load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        # Scales of 64 numbers in 8 bits, and one of 32 bits for 256 of those.
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_use_double_quant": True,
            },
            4 + 8 / 64 + 32 / (64 * 256),
        ),
        ({"quant_method": "fbgemm_fp8"}, 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
            },
            8,
        ),
    ],
)
def test_bits_of_packed_weights(packing: dict[str, Any], bits: float) -> None:
    model = load_model(
        config("llama", 2, vocab_size=1000, intermediate_size=4096, quantization_config=packing)
    )
    assert model.weights is not None
    assert model.weights.attention_number == pytest.approx(bits / 8)
    unknown = load_model(
        config(
            "llama",
            2,
            vocab_size=1000,
            intermediate_size=4096,
            quantization_config={"quant_method": "odd"},
        )
    )
    assert unknown.weight_bytes is None
    thin = {"quant_method": "fp8", "sparsity_config": {"format": "sparse-24-bitmask"}}
    thinned = load_model(
        config("llama", 2, vocab_size=1000, intermediate_size=4096, quantization_config=thin)
    )
    assert any("packs its weights by sparse-24-bitmask" in note for note in thinned.notes)
    named = config("llama", 2, vocab_size=1000, intermediate_size=4096, quantization_config="fp8")
    assert getattr(load_model(named).weights, "attention_number", None) == 1
    halved = load_model(config("llama", 2, vocab_size=1000, intermediate_size=4096, dtype="fp8"))
    whole = load_model(config("llama", 2, vocab_size=1000, intermediate_size=4096))
    assert 2 * (halved.weight_bytes or 0) == whole.weight_bytes


@pytest.mark.parametrize("value", ["x", None, [], float("inf")])
def test_a_vocabulary_that_makes_no_sense_is_refused_by_train_memory(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "config.json"
    place.write_text(
        json.dumps(config("llama", 2, head_dim=64, intermediate_size=2048, vocab_size=value))
    )
    assert main(["train-memory", "--model", str(place), "--gpu", "h100"]) == 2
    error = capsys.readouterr().err
    assert "vocab_size" in error
    assert error.count("\n") == 1


JUNK = [
    0,
    1,
    -1,
    7,
    float("inf"),
    float("nan"),
    "x",
    "",
    None,
    True,
    False,
    [],
    {},
    ["a"],
    [0, 1, 1, 0],
    [[1, 2]],
    [None],
    {"a": 1},
    [{}] * 4,
    "MEM*",
    "LLLG",
    0.5,
    10**30,
    {"kda_layers": ["x"]},
    ["hybrid"] * 4,
    ["mamba", "moe", "attention", "mlp"],
    {"config_groups": {"a": 3}},
    {"0": {"head_dim": "x"}},
]
MORE = [
    "quantization_config",
    "per_layer_config",
    "expand",
    "mamba_expand",
    "kv_lora_rank",
    "ffn_multipliers",
    "text_config",
    "moe",
    "linear_attn_config",
]


@pytest.mark.parametrize("seed", range(4))
def test_keys_that_hold_anything_are_read_or_refused_in_a_line(seed: int) -> None:
    rows = [row["key"] for group in ("mixer", "feed", "shared") for row in PATTERNS[group]]
    keys = [*rows, *(name for names in READ.values() for name in names), *MORE]
    draw = random.Random(seed)
    known = [*class_defaults()["types"], *FAMILIES["remote"]["decoders"], "unknown", ""]
    for _ in range(300):
        config: dict[str, Any] = {
            "model_type": draw.choice(known),
            "num_hidden_layers": 4,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "vocab_size": 100,
            "intermediate_size": 512,
        }
        for key in draw.sample(keys, draw.randint(1, 4)):
            outer, _, inner = key.partition(".")
            value = draw.choice(JUNK)
            config[outer] = {inner: value} if inner else value
        refusal = ""
        try:
            assert load_model(config).line
        except InputError as error:
            refusal = str(error)
        assert "\n" not in refusal, config
        assert len(refusal) < 400, config


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_of_tuned_models_are_their_models() -> None:
    for name in ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b-instruct", "gemma-3-4b-it"):
        assert (
            load_model(name).kinds
            == load_model(name.lower().removesuffix("-it").removesuffix("-instruct")).kinds
        )


def test_an_unknown_name_is_one_short_line() -> None:
    with pytest.raises(InputError, match="give its config") as error:
        load_model("Somebody/Wonder-9B-Instruct")
    assert len(str(error.value)) < 160


@pytest.mark.parametrize("name", ["a" * 5000, "é" * 200, "a/" * 5000, "a:" + "a" * 500])
def test_a_name_that_no_file_can_have_is_one_short_line(name: str) -> None:
    """Systems take names of 255 bytes, and paths of 4,096."""
    with pytest.raises(InputError, match="is not known; give its config") as error:
        load_model(name)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("layers", [[-1], [12], [-1, 3], [3, 12]])
def test_layers_that_are_not_there_are_refused(layers: list[int]) -> None:
    with pytest.raises(InputError, match=r"attn_layer_indices.*accepted: layers 0 to 11"):
        load_model(config("bamba", 12, attn_layer_indices=layers, **SSD))

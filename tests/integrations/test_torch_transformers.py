"""TrafficMode on small models of transformers, without weights: forward and backward on meta and on fake tensors.

Skipped where transformers is absent. Beside PyTorch and what the other tests need, these packages are enough:

    python -m pip install --no-deps -c constraints.txt transformers tokenizers huggingface-hub safetensors regex \\
        httpx2 httpcore2 anyio h11 idna truststore

A year-old one, in a folder of its own:

    python -m pip install --no-deps --target OLD transformers==4.57.6 tokenizers==0.22.2 huggingface-hub==0.36.2 \\
        safetensors regex requests urllib3 idna certifi charset-normalizer
    PYTHONPATH=OLD python -m pytest -q tests/integrations/test_torch_transformers.py
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
from effort import some

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from iosim.torch import ProgramTraffic, TrafficMode  # noqa: E402

pytestmark = pytest.mark.slow
SECONDS = 10.0
BATCH, TOKENS, SIDE = 2, 32, 32
VOCABULARY = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LAYERS = SIZES | {"intermediate_size": 128}
TEXT = VOCABULARY | LAYERS | {"max_position_embeddings": 64}
GROUPED = TEXT | {"num_key_value_heads": 2}
HEADS = GROUPED | {"head_dim": 16}
IMAGES = LAYERS | {"image_size": SIDE, "patch_size": 8}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
BOTH = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


@dataclass(frozen=True)
class Case:
    """An architecture: its configuration's keys, the task, and what it is given."""

    keys: dict[str, Any]
    task: str = "CausalLM"
    given: str = "text"
    dtype: torch.dtype = torch.bfloat16


QUICK = {
    "gpt2": Case(VOCABULARY | {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "llama": Case(GROUPED),
    "qwen2": Case(GROUPED),
    "gemma3_text": Case(
        HEADS | {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    ),
    "mixtral": Case(GROUPED | EXPERTS),
    "bert": Case(TEXT, "MaskedLM"),
    "t5": Case(
        VOCABULARY
        | {
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        "Seq2SeqLM",
    ),
    "vit": Case(IMAGES, "ImageClassification", "images"),
}
MORE = {
    "qwen3": Case(HEADS),
    "mistral": Case(HEADS | {"sliding_window": 16}),
    "gemma": Case(HEADS),
    "gemma2": Case(HEADS | {"sliding_window": 16}),
    "phi": Case(GROUPED),
    "phi3": Case(GROUPED),
    "gpt_oss": Case(HEADS | EXPERTS | {"sliding_window": 16}),
    "deepseek_v2": Case(TEXT | EXPERTS | LATENT),
    "deepseek_v3": Case(TEXT | EXPERTS | LATENT),
    "olmo": Case(GROUPED),
    "olmo2": Case(GROUPED),
    "olmoe": Case(GROUPED | EXPERTS),
    "qwen2_moe": Case(GROUPED | EXPERTS | {"shared_expert_intermediate_size": 64}),
    "qwen3_moe": Case(HEADS | EXPERTS),
    "gpt_neox": Case(TEXT),
    "opt": Case(TEXT | {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "bloom": Case(VOCABULARY | {"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": Case(TEXT),
    "mpt": Case(VOCABULARY | {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "starcoder2": Case(GROUPED),
    "stablelm": Case(GROUPED),
    "cohere": Case(GROUPED),
    "granitemoe": Case(GROUPED | EXPERTS),
    "glm4": Case(HEADS),
    "mamba": Case(VOCABULARY | {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "roberta": Case(TEXT | {"pad_token_id": 1}, "MaskedLM"),
    "distilbert": Case(
        VOCABULARY | {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4}, "MaskedLM"
    ),
    "electra": Case(TEXT | {"embedding_size": 64}, "MaskedLM"),
    "albert": Case(TEXT | {"embedding_size": 64}, "MaskedLM"),
    "deberta-v2": Case(TEXT, "MaskedLM"),
    "modernbert": Case(
        TEXT | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 16}, "MaskedLM"
    ),
    "bart": Case(VOCABULARY | BOTH | {"max_position_embeddings": 64}, "Seq2SeqLM"),
    "pegasus": Case(VOCABULARY | BOTH | {"max_position_embeddings": 64}, "Seq2SeqLM"),
    "switch_transformers": Case(
        VOCABULARY
        | {
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "decoder_start_token_id": 0,
        },
        "Seq2SeqLM",
        dtype=torch.float32,
    ),
    "whisper": Case(
        VOCABULARY
        | BOTH
        | {
            "num_mel_bins": 16,
            "max_source_positions": 64,
            "max_target_positions": 64,
            "decoder_start_token_id": 1,
        },
        "SpeechSeq2Seq",
        "speech",
    ),
    "wav2vec2": Case(
        LAYERS
        | {
            "vocab_size": 32,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
            "conv_dim": [32, 32],
            "conv_kernel": [8, 4],
            "conv_stride": [4, 2],
            "num_feat_extract_layers": 2,
        },
        "CTC",
        "sound",
    ),
    "dinov2": Case(IMAGES, "ImageClassification", "images"),
    "beit": Case(IMAGES, "ImageClassification", "images"),
    "vit_msn": Case(IMAGES, "ImageClassification", "images"),
    "swin": Case(
        {
            "image_size": SIDE,
            "patch_size": 4,
            "embed_dim": 32,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        "ImageClassification",
        "images",
    ),
    "convnext": Case(
        {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1]}, "ImageClassification", "images"
    ),
    "segformer": Case(
        {
            "hidden_sizes": [16, 32, 64, 64],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 4, 8],
        },
        "ImageClassification",
        "images",
    ),
    "resnet": Case(
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
        "ImageClassification",
        "images",
    ),
    "vit_mae": Case(
        IMAGES
        | {
            "decoder_hidden_size": 64,
            "decoder_intermediate_size": 128,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 4,
        },
        "PreTraining",
        "images",
    ),
    "clip": Case({"text_config": TEXT, "vision_config": IMAGES, "projection_dim": 32}, "", "both"),
    "siglip": Case(
        {"text_config": TEXT | {"projection_size": 64}, "vision_config": IMAGES}, "", "both"
    ),
    "llava": Case(
        {
            "text_config": GROUPED | {"model_type": "llama"},
            "image_token_id": 500,
            "image_token_index": 500,
            "vision_config": IMAGES | {"model_type": "clip_vision_model"},
            "vision_feature_select_strategy": "default",
        },
        "ImageTextToText",
        "chat",
    ),
}
CASES = QUICK | MORE
NOT_FAKE = ("switch_transformers",)
"""Its router converts its own weights, which PyTorch does not do to fake ones."""


def model_of(name: str) -> Any:
    case = CASES[name]
    config = transformers.CONFIG_MAPPING[name](**case.keys)
    return getattr(transformers, f"AutoModel{'For' if case.task else ''}{case.task}").from_config(
        config, dtype=case.dtype
    )


def given_of(name: str) -> dict[str, Any]:
    """A model's arguments on the device that is the default now."""
    kind = CASES[name].given
    dtype = CASES[name].dtype
    ids, ones = (torch.full((BATCH, TOKENS), n, dtype=torch.long) for n in (5, 1))
    images = torch.zeros(BATCH, 3, SIDE, SIDE, dtype=dtype)
    if kind == "images":
        return {"pixel_values": images}
    if kind == "speech":
        return {"input_features": torch.zeros(BATCH, 16, 128, dtype=dtype), "labels": ids}
    if kind == "sound":
        return {"input_values": torch.zeros(BATCH, 1024, dtype=dtype)}
    if kind == "both":
        return {"input_ids": ids, "attention_mask": ones, "pixel_values": images}
    if kind == "chat":  # sixteen patches of the image stand in the text
        ids = torch.where(torch.arange(TOKENS) < 16, 500, 5).expand(BATCH, -1)
        return {"input_ids": ids, "attention_mask": ones, "pixel_values": images, "labels": ids}
    return {"input_ids": ids, "attention_mask": ones, "labels": ids}


def step(model: Any, inputs: dict[str, Any]) -> None:
    out = model(**inputs)
    loss = out.get("loss")
    if loss is None:
        loss = out["logits_per_image" if "logits_per_image" in out else "logits"].float().sum()
    loss.backward()


def on_meta(name: str) -> tuple[ProgramTraffic, Any]:
    with torch.device("meta"):
        model = model_of(name).to("meta").train()  # some make a parameter on the CPU by name
        with TrafficMode("h200", cudnn="9.19.0") as t:
            step(model, given_of(name))
    return t.result, model


def on_fake(name: str) -> tuple[ProgramTraffic, Any]:
    with FakeTensorMode():
        with TrafficMode("h200"):  # some ask their random weights for values as they are made
            model = model_of(name).train()
        with TrafficMode("h200", cudnn="9.19.0") as t:
            step(model, given_of(name))
    return t.result, model


@pytest.mark.parametrize("name", some(CASES))
def test_a_step_on_meta_and_on_fake_tensors(name: str) -> None:
    totals = []
    for run in (on_meta,) if name in NOT_FAKE else (on_meta, on_fake):
        begin = time.process_time()
        traffic, model = run(name)
        assert time.process_time() - begin < SECONDS
        assert traffic.phase("forward").rows
        assert traffic.phase("backward").hbm.total > 0
        assert any(p.grad is not None for p in model.parameters())
        assert traffic.unknown == ()
        totals.append(traffic)
    meta, fake = totals[0], totals[-1]
    assert fake.hbm.total == pytest.approx(meta.hbm.total, rel=0.02)
    assert [r.kernel for r in fake.attention.rows] == [r.kernel for r in meta.attention.rows]


@pytest.mark.parametrize("name", ["gpt2", "gemma3_text", "llava"])
def test_meta_tensors_make_the_operators_of_real_ones(name: str) -> None:
    """Masks are left out, made and looked at as they are with tensors that have values."""
    model = model_of(name).train()
    with TrafficMode("h200", cudnn="9.19.0") as t:
        step(model, given_of(name))
    meta, _ = on_meta(name)
    views = (
        "_to_copy",
        "copy_",
    )  # what a GPU's tensors need no more than real ones: from one device to the other
    assert [r.operator for r in meta.rows if r.operator not in views] == [
        r.operator for r in t.result.rows if r.operator not in views
    ]
    assert [r.kernel for r in meta.attention.rows] == [r.kernel for r in t.result.attention.rows]


@pytest.mark.parametrize("padded", [False, True])
def test_a_mask_reaches_attention_only_where_it_hides_something(padded: bool) -> None:
    with torch.device("meta"):
        model = model_of("llama").eval()
        with TrafficMode("h200", cudnn="9.19.0") as t, torch.no_grad():
            ids, mask = (torch.ones(BATCH, TOKENS, dtype=torch.long) for _ in range(2))
            mask[0, : TOKENS // 2] = int(not padded)
            model(input_ids=ids, attention_mask=mask)
    assert t.notes == (("attention on h200-sxm: cuDNN",))
    masks = [r for r in t.result.rows if r.operator.startswith("convert_mask")]
    assert bool(masks) is padded


def test_experts_in_a_loop_get_an_even_share() -> None:
    """Each of a layer's four experts gets two of every four rows; grouped in one product they do the same work."""
    work = {}
    for how in ("eager", "grouped_mm"):
        with torch.device("meta"):
            config = transformers.MixtralConfig(**CASES["mixtral"].keys)
            config._experts_implementation = (
                how  # of transformers 5; before, there is the loop alone
            )
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            with TrafficMode("h200") as t, torch.no_grad():
                model(input_ids=given_of("mixtral")["input_ids"])
        work[how] = t.result.flops
        assert any("spread evenly" in note or "equally many rows" in note for note in t.notes)
    assert work["eager"] == work["grouped_mm"]

"""Models: what is read of a config.json is what transformers makes of it, and a model's attention is the sum of its
layers'. The golden file holds what transformers makes: python tests/golden/make_models.py"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from models_read import kind
from scripts import ROOT

import iosim
from iosim.commands.cli import main
from iosim.integrations.models import load_model, preset_names
from iosim.integrations.models.kinds import class_defaults
from iosim.integrations.models.load import all_names, preset
from iosim.studies.models.layers import Model

pytestmark = pytest.mark.usefixtures("replays_once")


GOLDEN = json.loads((ROOT / "tests" / "golden" / "models.json").read_text(encoding="utf-8"))


PRESETS: dict[str, Any] = GOLDEN["presets"]


OTHERS: dict[str, Any] = GOLDEN["others"]


REMOTE = ("kimi-linear-48b-a3b", "deepseek-v4-flash")
"""Whose classes are not in the version of transformers that the golden file is of."""


GATED = ("qwen3-next-80b-a3b",)
"""Models with a gate on attention's output, as wide as Q: iosim counts no gates."""


NAMES = {
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "global": "full",
    "full_attention": "full",
    "linear_attention": "linear",
    "indexed_attention": "sparse latent",
}


def check(model: Model, facts: dict[str, Any], *, parameters: bool = True) -> None:
    """A model as iosim reads it against what transformers made of the same keys."""
    first = model.kinds[0]
    assert sum(kind.count for kind in model.kinds) == facts["attention_modules"]
    if parameters:
        assert model.attention_parameters == facts["attention_parameters"]
    for key, value in (
        ("num_heads", first.heads),
        ("num_attention_heads", first.heads),
        ("num_key_value_heads", first.kv_heads),
        ("head_dim", first.head_dim),
    ):
        if key in facts and first.latent is None:
            assert facts[key] == [value], key
    if facts.get("is_causal") == [1]:
        assert model.causal
    if facts["layer_types"]:
        wanted = {NAMES.get(word, word): n for word, n in facts["layer_types"].items()}
        assert Counter(model.order) == wanted
    for layer in model.kinds:
        if layer.window is not None:
            assert layer.window in (
                facts.get("sliding_window"),
                facts.get("window_size"),
                facts.get("local_attention"),
            )
        if layer.chunk is not None:
            assert layer.chunk == facts["attention_chunk_size"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_transformers_makes_of_it(name: str) -> None:
    check(load_model(name), PRESETS[name], parameters=name not in GATED)


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_are_read_as_transformers_reads_them(name: str) -> None:
    check(load_model(OTHERS[name]["config"]), OTHERS[name]["facts"])


OFF = {
    "bert-base": 0.01,
    "bert-large": 0.01,
    "distilbert": 0.06,
    "dinov2": 0.25,
    "modernbert-base": 0.03,
    "siglip": 0.15,
    "clip": 0.15,
    "vit-l": 0.01,
}
"""Encoders' poolers, heads, and tables of patches and positions are not counted."""


@pytest.mark.parametrize("name", [*PRESETS, *OTHERS])
def test_weights_are_those_that_transformers_makes(name: str) -> None:
    """Two bytes a number where none are packed; biases are below 0.04 %, a state's convolutions below 0.1 %."""
    facts = PRESETS[name] if name in PRESETS else OTHERS[name]["facts"]
    config = load_model(name).config if name in PRESETS else OTHERS[name]["config"]
    model = load_model(
        {k: v for k, v in config.items() if k != "quantization_config"} | {"dtype": "bfloat16"}
    )
    weight_bytes = model.weight_bytes
    if facts["parameters"] is None:
        assert not model.causal
        return
    assert weight_bytes is not None
    off = weight_bytes / (2 * facts["parameters"]) - 1
    assert abs(off) < OFF.get(name, 1e-3), (name, off)


@pytest.mark.slow
def test_weights_count_beside_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3 70B: 141.1 GB in bf16, which no H100 holds; gpt-oss's experts have 4 bits and a scale for every 32."""
    line = "decode --gpu h100 --context 8k --format json"
    fits = {}
    for model, more in (
        ("llama-3-70b", ""),
        ("llama-3-70b", " --tensor-parallel 8"),
        ("gpt-oss-120b", ""),
        ("", ""),
    ):
        assert main(f"{line}{f' --model {model}' * bool(model)}{more}".split()) == 0
        data = json.loads(capsys.readouterr().out)
        (point,) = data["points"]
        fits[model + more] = point["fits"], point["weight_bytes"]
        assert ("over its memory" in data["answer"]) == (not point["fits"])
    assert fits["llama-3-70b"] == (False, 141_104_775_168)
    assert fits["llama-3-70b --tensor-parallel 8"] == (True, 141_104_775_168 // 8)
    assert fits["gpt-oss-120b"][0]
    assert fits["gpt-oss-120b"][1] == pytest.approx(65.2e9, rel=0.005)
    assert fits[""] == (True, None)
    some = load_model("llama-3-8b")
    four = iosim.decode("h100", model="llama-3-8b", layers=4, context=[1024]).points[0]
    expert_bytes = 3 * 4096 * 14336 + 4096 * 128 * (2 * 32 + 2 * 8)
    assert four.weight_bytes == (some.weight_bytes or 0) - 28 * 2 * expert_bytes


def test_every_preset_is_in_the_golden_file_and_says_its_source() -> None:
    assert {name.split(":")[0] for name in PRESETS} | {*REMOTE} == set(preset_names())
    for name in preset_names():
        assert preset(name)["source"].startswith("https://"), name
        assert load_model(name).source == preset(name)["source"]
    assert class_defaults()["transformers"] == GOLDEN["transformers"]
    assert all_names()["meta-llama/meta-llama-3-8b"] == "llama-3-8b"


def test_a_model_is_taken_as_it_is() -> None:
    model = load_model("gpt2")
    assert load_model(model) is model


@pytest.mark.parametrize(
    ("name", "bytes_a_token"),
    [
        ("llama-3-8b", 32 * 2 * 8 * 128 * 2),
        ("deepseek-v3", 61 * (512 + 64) * 2),
        ("deepseek-v3.2", 61 * ((512 + 64) * 2 + 128 + 4)),
        ("deepseek-v4", 43 * 584),
        ("falcon-7b", 32 * 2 * 64 * 2),
        ("bert-base", 0),
    ],
)
def test_bytes_of_a_token_in_the_cache(name: str, bytes_a_token: int) -> None:
    assert load_model(name).cache_bytes(1, 1, "bf16") == bytes_a_token


def test_windows_and_chunks_bound_the_cache() -> None:
    gemma, scout = load_model("gemma-3-12b"), load_model("llama-4-scout")
    token = 2 * 8 * 256 * 2
    assert gemma.cache_bytes(3, 32768, "bf16") == 3 * token * (40 * 1024 + 8 * 32768)
    assert scout.cache_bytes(1, 100_000, "bf16") == 2 * 8 * 128 * 2 * (36 * 8192 + 12 * 100_000)


def test_a_window_counts_the_query_itself() -> None:
    sliding = kind("gemma-3-12b", "sliding")
    p = sliding.problem(4096, 4096)
    assert (p.mask, p.window, p.seq_k) == ("window", 1023, 4096)
    step = sliding.problem(1, 4096)
    assert (step.seq_k, step.pair_mask.kept_pairs(1, step.seq_k)) == (1024, 1024)
    assert sliding.problem(512, 512).mask == "causal"
    around = kind("modernbert-base", "sliding").problem(512, 512)
    assert (around.mask, around.window, around.window_right) == ("window", 64, 64)


@pytest.mark.parametrize(
    ("queries", "keys"), [(20, 20), (7, 20), (1, 20), (1, 16), (16, 16), (3, 17), (5, 8)]
)
def test_a_chunked_layer_sees_its_own_chunk(queries: int, keys: int) -> None:
    from dataclasses import replace

    layer = replace(kind("llama-4-scout", "chunked"), chunk=8)
    p = layer.problem(queries, keys, batch=2)
    total = sum(i % 8 + 1 for i in range(keys - queries, keys))
    pairs = p.pair_mask.kept_pairs(p.seq_q, p.seq_k) * p.batch
    assert pairs == 2 * total
    assert p.seq_q * p.batch == 2 * queries


def test_mla_is_expanded_for_prefill_and_absorbed_for_a_step() -> None:
    latent = kind("deepseek-v3", "latent")
    whole = latent.problem(4096, 4096)
    step = latent.problem(1, 4096)
    assert (whole.heads, whole.kv_heads, whole.head_dim, whole.head_dim_v) == (128, 128, 192, 128)
    assert not whole.latent_kv
    assert (step.heads, step.kv_heads, step.head_dim, step.head_dim_v) == (128, 1, 576, 512)
    assert step.latent_kv
    assert latent.problem(4096, 4096, latent_kv=True).latent_kv
    sparse = kind("deepseek-v3.2", "sparse latent")
    steps = [sparse.problem(1, n) for n in (1000, 100_000)]
    assert [(step.seq_k, step.attended_keys) for step in steps] == [(1000, 1000), (100_000, 2048)]
    assert (steps[1].index_heads, steps[1].index_dim, steps[1].page_size) == (64, 128, 64)


LLAMA = {
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "hidden_size": 512,
}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is no JSON: Expecting property name"),
        ("[1]", "holds no JSON object"),
        ({"_class_name": "UNet2DConditionModel"}, "is of diffusers (UNet2DConditionModel)"),
        ({"peft_type": "LORA"}, "is an adapter's (LORA)"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "(t5) is an encoder and a decoder"),
        (
            {"model_type": "mamba", "num_hidden_layers": 3, "hidden_size": 64},
            "(model_type mamba) has no softmax attention",
        ),
        ({"vocab_size": 3}, "says no number of layers: num_hidden_layers or n_layer"),
        (
            LLAMA | {"num_key_value_heads": 3},
            "contradicts itself: 8 heads are no multiple of its 3 key/value heads",
        ),
        (
            LLAMA | {"hidden_size": 500},
            "contradicts itself: 8 heads do not divide its width of 500",
        ),
        (LLAMA | {"num_attention_heads": "8"}, "num_attention_heads: '8' is not a whole number"),
        (
            LLAMA | {"num_attention_heads": [2, "x"]},
            "num_attention_heads: 'x' is not a whole number",
        ),
        (LLAMA | {"num_attention_heads": -8}, "num_attention_heads: -8 is out of range"),
        (LLAMA | {"layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
        (LLAMA | {"layer_types": ["full_attention", "odd"]}, "layer type 'odd' is not known"),
        (LLAMA | {"layer_types": ["mamba", "mamba"]}, "no layer with attention"),
        (LLAMA | {"kv_lora_rank": 64}, "says no columns without positions: qk_nope_head_dim"),
    ],
)
def test_a_file_that_is_no_transformers_is_one_line(
    content: Any, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "config.json"
    place.write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["models", "show", str(place)]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_a_file_its_directory_and_its_keys_are_the_same_model(tmp_path: Path) -> None:
    keys = preset("gemma-3-4b")["config"]
    (tmp_path / "config.json").write_text(json.dumps(keys))
    of_file, of_folder = load_model(tmp_path / "config.json"), load_model(tmp_path)
    assert of_file == of_folder
    assert of_file.kinds == load_model(keys).kinds == load_model("google/gemma-3-4b-it").kinds
    assert of_file.name == tmp_path.name


def test_python_refuses_what_the_command_refuses() -> None:
    for keywords, text in (
        ({"layers": 3}, "layers 3 goes with model"),
        ({"model": "x"}, "model 'x' is not known"),
        ({"model": "llama-3-8b", "problem": iosim.AttentionProblem()}, "problem contradicts model"),
        ({"model": "llama-3-8b", "seq_len": [1, 2]}, "are 2 lengths"),
    ):
        with pytest.raises(iosim.InputError, match=text):
            iosim.predict(**keywords)


def test_models_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "models list",
        "models list --format csv",
        "models show deepseek-v3",
        "models show vit-l --format csv",
    ):
        assert main(line.split()) == 0
    printed = capsys.readouterr().out
    assert "512 columns for keys and values and 64 with positions" in printed
    assert main(["__complete", "predict", "--model", "llama-3-"]) == 0
    assert capsys.readouterr().out.split() == ["llama-3-70b", "llama-3-8b"]


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("llama-2-7b", 4096),
        ("llama-3-8b", 8192),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8192),
        ("Llama-3.1-8B-Instruct", 131072),
        ("meta-llama/Llama-3.3-70B-Instruct", 131072),
        ("qwen3-8b", 40960),
    ],
)
def test_a_name_has_the_positions_of_its_model(name: str, positions: int) -> None:
    assert load_model(name).most_tokens == positions
    assert max(p.context for p in iosim.decode(model=name, gpu="h200").points) <= positions


UNBOUNDED = {"bloom-7b1", "falcon-7b", "deepseek-v4-flash", "kimi-linear-48b-a3b", "vit-l"}
"""Presets whose config says no number of positions."""


def test_presets_say_their_positions() -> None:
    without = {name for name in preset_names() if load_model(name).most_tokens is None}
    assert without <= UNBOUNDED

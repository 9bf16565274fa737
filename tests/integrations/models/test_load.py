"""Models: what is read of a config.json is what transformers makes of it, and a model's attention is the sum of its
layers'. The golden file holds what transformers makes: python tests/golden/make_models.py"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT

import iosim
from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.integrations.models import load_model, preset_names
from iosim.integrations.models.kinds import class_defaults, model_of
from iosim.integrations.models.load import all_names, preset
from iosim.studies.models.asked import changed
from iosim.studies.models.layers import Model

pytestmark = pytest.mark.usefixtures("replays_once")

GOLDEN = json.loads((ROOT / "tests" / "golden" / "models.json").read_text(encoding="utf-8"))
PRESETS: dict[str, Any] = GOLDEN["presets"]
OTHERS: dict[str, Any] = GOLDEN["others"]
REMOTE = ("kimi-linear-48b-a3b", "deepseek-v4-flash")
"""Whose classes are not in the version of transformers that the golden file is of."""
GATED = ("qwen3-next-80b-a3b",)
"""Models with a gate on attention's output, as wide as Q: iosim counts no gates."""
NAMES = {"sliding_attention": "sliding", "local": "sliding", "chunked_attention": "chunked", "global": "full",
         "full_attention": "full", "linear_attention": "linear", "indexed_attention": "sparse latent"}  # fmt: skip


def check(model: Model, facts: dict[str, Any], *, parameters: bool = True) -> None:
    """A model as iosim reads it against what transformers made of the same keys."""
    first = model.kinds[0]
    assert sum(kind.count for kind in model.kinds) == facts["attention_modules"]
    if parameters:
        assert model.attention_parameters == facts["attention_parameters"]
    for key, value in (("num_heads", first.heads), ("num_attention_heads", first.heads),
                       ("num_key_value_heads", first.kv_heads), ("head_dim", first.head_dim)):  # fmt: skip
        if key in facts and first.latent is None:
            assert facts[key] == [value], key
    if facts.get("is_causal") == [1]:
        assert model.causal
    if facts["layer_types"]:
        wanted = {NAMES.get(word, word): n for word, n in facts["layer_types"].items()}
        assert Counter(model.order) == wanted
    for kind in model.kinds:
        if kind.window is not None:
            assert kind.window in (
                facts.get("sliding_window"),
                facts.get("window_size"),
                facts.get("local_attention"),
            )
        if kind.chunk is not None:
            assert kind.chunk == facts["attention_chunk_size"]


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_transformers_makes_of_it(name: str) -> None:
    check(load_model(name), PRESETS[name], parameters=name not in GATED)


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_are_read_as_transformers_reads_them(name: str) -> None:
    check(load_model(OTHERS[name]["config"]), OTHERS[name]["facts"])


OFF = {"bert-base": 0.01, "bert-large": 0.01, "distilbert": 0.06, "dinov2": 0.25, "modernbert-base": 0.03,
       "siglip": 0.15, "clip": 0.15, "vit-l": 0.01}  # fmt: skip
"""Encoders' poolers, heads, and tables of patches and positions are not counted."""


@pytest.mark.parametrize("name", [*PRESETS, *OTHERS])
def test_weights_are_those_that_transformers_makes(name: str) -> None:
    """Two bytes a number where none are packed; biases are below 0.04 %, a state's convolutions below 0.1 %."""
    facts = PRESETS[name] if name in PRESETS else OTHERS[name]["facts"]
    config = load_model(name).config if name in PRESETS else OTHERS[name]["config"]
    model = load_model(
        {k: v for k, v in config.items() if k != "quantization_config"} | {"dtype": "bfloat16"}
    )
    made = model.weight_bytes
    if facts["parameters"] is None:
        assert not model.causal
        return
    assert made is not None
    off = made / (2 * facts["parameters"]) - 1
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
        made = json.loads(capsys.readouterr().out)
        (point,) = made["points"]
        fits[model + more] = point["fits"], point["weight_bytes"]
        assert ("over its memory" in made["answer"]) == (not point["fits"])
    assert fits["llama-3-70b"] == (False, 141_104_775_168)
    assert fits["llama-3-70b --tensor-parallel 8"] == (True, 141_104_775_168 // 8)
    assert fits["gpt-oss-120b"][0]
    assert fits["gpt-oss-120b"][1] == pytest.approx(65.2e9, rel=0.005)
    assert fits[""] == (True, None)
    some = load_model("llama-3-8b")
    four = iosim.decode("h100", model="llama-3-8b", layers=4, context=[1024]).points[0]
    each = 3 * 4096 * 14336 + 4096 * 128 * (2 * 32 + 2 * 8)
    assert four.weight_bytes == (some.weight_bytes or 0) - 28 * 2 * each


def test_every_preset_is_in_the_golden_file_and_says_its_source() -> None:
    assert {name.split(":")[0] for name in PRESETS} | {*REMOTE} == set(preset_names())
    for name in preset_names():
        assert preset(name)["source"].startswith("https://"), name
        assert load_model(name).source == preset(name)["source"]
    assert class_defaults()["transformers"] == GOLDEN["transformers"]
    assert all_names()["meta-llama/meta-llama-3-8b"] == "llama-3-8b"


@pytest.mark.parametrize(("name", "bytes_a_token"), [
    ("llama-3-8b", 32 * 2 * 8 * 128 * 2), ("deepseek-v3", 61 * (512 + 64) * 2),
    ("deepseek-v3.2", 61 * ((512 + 64) * 2 + 128 + 4)), ("deepseek-v4", 43 * 584),
    ("falcon-7b", 32 * 2 * 64 * 2), ("bert-base", 0),
])  # fmt: skip
def test_bytes_of_a_token_in_the_cache(name: str, bytes_a_token: int) -> None:
    assert load_model(name).cache_bytes(1, 1, "bf16") == bytes_a_token


def test_layers_that_keep_a_state_are_counted() -> None:
    """Qwen3-Next: 36 of 48 layers keep 32 states of 128 x 128 fp32 numbers a sequence, Kimi Linear 20 of 27; no context
    makes them more. The others' caches grow."""
    qwen, kimi = load_model("qwen3-next-80b-a3b"), load_model("kimi-linear-48b-a3b")
    state = 32 * 128 * 128 * 4
    for model, layers, kept, kernel in ((qwen, 48, 36, "gdn"), (kimi, 27, 20, "kda")):
        (linear,) = model.states
        assert (model.layers, linear.count, linear.state_kernel, linear.state_bytes) == (
            layers,
            kept,
            kernel,
            state,
        )
        token = model.token_bytes("bf16")
        for context in (1, 100_000):
            assert model.cache_bytes(3, context, "bf16") == 3 * (kept * state + context * token)
    assert qwen.token_bytes("bf16") == 12 * 2 * 2 * 256 * 2
    assert kimi.token_bytes("bf16") == 7 * (512 + 64) * 2
    assert (kimi.order[2], kimi.order[3], kimi.order[26]) == ("linear", "latent", "latent")
    half = changed(qwen, {}, tensor_parallel=2)
    assert half.states[0].state_bytes == state // 2
    (hybrid,) = load_model({
        "model_type": "bamba", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_d_state": 64,
        "mamba_d_head": 64,
    }).states  # fmt: skip
    assert (hybrid.state_kernel, hybrid.heads, hybrid.kv_heads, hybrid.head_dim, hybrid.state_bytes) == (
        "ssd", 8, 1, 64, 8 * 64 * 64 * 4,
    )  # fmt: skip


def test_a_step_of_decoding_of_a_mixed_model_is_both_kinds_of_layers() -> None:
    step = iosim.decode("h200", model="qwen3-next-80b-a3b", context=[8192, 65536], batch=4).points
    short, long = step
    assert [kind.prediction.kernel.name for kind in short.kinds] == ["fa3", "gdn"]
    assert short.kinds[1].step_s == long.kinds[1].step_s  # a state does not grow
    assert long.kinds[0].step_s > 3 * short.kinds[0].step_s
    assert short.kinds[1].per_token("l2", "read") == pytest.approx(
        36 * 32 * 128 * 128 * 4, rel=0.05
    )
    whole = iosim.predict(model="qwen3-next-80b-a3b", gpu="h200", seq_len=4096, kernel="fa2")
    (one,) = whole if isinstance(whole, list) else [whole]
    assert [layer.prediction.kernel.name for layer in one.layers] == ["fa2", "gdn"]


def test_windows_and_chunks_bound_the_cache() -> None:
    gemma, scout = load_model("gemma-3-12b"), load_model("llama-4-scout")
    token = 2 * 8 * 256 * 2
    assert gemma.cache_bytes(3, 32768, "bf16") == 3 * token * (40 * 1024 + 8 * 32768)
    assert scout.cache_bytes(1, 100_000, "bf16") == 2 * 8 * 128 * 2 * (36 * 8192 + 12 * 100_000)


# --- the problems of its layers ---------------------------------------------------------------------------------------


def kind(name: str, layer: str) -> Any:
    return next(one for one in load_model(name).kinds if one.name == layer)


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

    one = replace(kind("llama-4-scout", "chunked"), chunk=8)
    p = one.problem(queries, keys, batch=2)
    kept = sum(i % 8 + 1 for i in range(keys - queries, keys))
    pairs = p.pair_mask.kept_pairs(p.seq_q, p.seq_k) * p.batch
    assert pairs == 2 * kept
    assert p.seq_q * p.batch == 2 * queries


def test_mla_is_expanded_for_prefill_and_absorbed_for_a_step() -> None:
    latent = kind("deepseek-v3", "latent")
    whole, step = latent.problem(4096, 4096), latent.problem(1, 4096)
    assert (whole.heads, whole.kv_heads, whole.head_dim, whole.head_dim_v) == (128, 128, 192, 128)
    assert not whole.latent_kv
    assert (step.heads, step.kv_heads, step.head_dim, step.head_dim_v) == (128, 1, 576, 512)
    assert step.latent_kv
    assert latent.problem(4096, 4096, latent_kv=True).latent_kv
    sparse = kind("deepseek-v3.2", "sparse latent")
    steps = [sparse.problem(1, n) for n in (1000, 100_000)]
    assert [(step.seq_k, step.attended_keys) for step in steps] == [(1000, 1000), (100_000, 2048)]
    assert (steps[1].index_heads, steps[1].index_dim, steps[1].page_size) == (64, 128, 64)


def test_compressed_layers_keep_a_window_and_a_key_for_so_many_tokens() -> None:
    """DeepSeek-V4: 584 bytes a key (448 in fp8, 64 in 16 bits, 8 of scales), 132 of the indexer's."""
    model = load_model("deepseek-v4")
    assert [(one.name, one.count, one.compress, one.top_k) for one in model.kinds] == [
        ("sliding", 2, 0, None), ("compressed sparse", 21, 4, 512), ("compressed", 20, 128, None),
    ]  # fmt: skip
    kept = 43 * 128 * 584 + 21 * 32768 * (584 + 132) + 20 * 1024 * 584
    assert model.cache_bytes(1, 131_072, "bf16") == kept
    assert model.token_bytes("bf16") == 21 * (716 // 4) + 20 * (584 // 128)
    step = kind("deepseek-v4", "compressed sparse").problem(1, 131_072)
    assert (step.attended_keys, step.scored_keys, step.latent_row_bytes) == (128 + 512, 32768, 584)
    (half,) = {one.heads for one in changed(model, {}, tensor_parallel=2).kinds}
    assert half == 32
    like = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "head_dim": 512,
    }
    for keys, says in (
        ({"compress_ratios": [3]}, "compress_ratios holds"),
        ({"layer_types": ["full_attention"]}, "no full"),
    ):
        with pytest.raises(InputError, match=says):
            model_of(like | keys | {"sliding_window": 128}, "x", "x", "x", nested=False)


# --- options beside a model -------------------------------------------------------------------------------------------


def test_heads_are_shared_out() -> None:
    llama = load_model("llama-3-8b")
    for gpus, kv_heads in ((4, 2), (8, 1), (32, 1)):
        one = changed(llama, {}, tensor_parallel=gpus).kinds[0]
        assert (one.heads, one.kv_heads) == (32 // gpus, kv_heads)
    two = changed(load_model("deepseek-v3"), {}, tensor_parallel=8)
    assert two.kinds[0].heads == 16
    assert two.cache_bytes(1, 100, "bf16") == load_model("deepseek-v3").cache_bytes(1, 100, "bf16")


def test_options_take_the_place_of_the_models_numbers_and_are_said() -> None:
    llama = load_model("llama-3-8b")
    same, more = changed(llama, {"kv_heads": 8}), changed(llama, {"kv_heads": 32})
    assert same == llama
    assert more.kinds[0].kv_heads == 32
    assert more.notes == ("kv_heads 32 in place of the model's 8",)
    gemma = load_model("gemma-3-12b")
    assert [one.window for one in changed(gemma, {"window": 511}).kinds] == [512, None]
    assert [one.window for one in changed(llama, {"window": 511}).kinds] == [512]
    few = changed(gemma, {}, layers=7)
    assert [(one.name, one.count) for one in few.kinds] == [("sliding", 6), ("full", 1)]
    assert len(changed(gemma, {}, layers=5).kinds) == 1


@pytest.mark.parametrize(("line", "text"), [
    ("predict --model lama-3-8b", "--model 'lama-3-8b' is not known; did you mean llama-3-8b"),
    ("predict --model none.json", "--model 'none.json' cannot be read: it does not exist"),
    ("predict --model llama-3-8b:vision", "has no vision part; accepted: without :vision"),
    ("predict --model gemma-3-4b:audio", "'audio' is not known; accepted: text, vision"),
    ("predict --model llama-3-8b --tensor-parallel 3", "--tensor-parallel 3 does not divide the 32 heads"),
    ("predict --model phi-4 --tensor-parallel 4", "--tensor-parallel 4 neither divides the 10 key/value heads of its "
     "full layers nor is a multiple of them; accepted: 1, 2, 5, 10, 20, 40"),
    ("predict --tensor-parallel 2", "--tensor-parallel 2 goes with --model"),
    ("predict --layers 2", "--layers 2 goes with --model"),
    ("predict --model llama-3-8b --layers 33", "--layers 33 is out of range; accepted: 1 to 32"),
    ("predict --model qwen3-next-80b-a3b --layers 3", "none of the first 3 layers"),
    ("predict --model vit-l --causal", "--causal contradicts --model 'vit-l'"),
    ("predict --model llama-3-8b --bias alibi", "--bias contradicts --model 'llama-3-8b'"),
    ("predict --model deepseek-v3 --kv-heads 8", "--kv-heads 8 contradicts --model 'deepseek-v3'"),
    ("predict --model llama-3-8b --latent-kv", "--latent-kv contradicts --model 'llama-3-8b'"),
    ("predict --model llama-3-8b --seq-lens 5,6", "--seq-lens goes with no --model"),
    ("predict --model llama-3-8b --seq-len 8 --seq-len-k 4", "--seq-len-k 4 is out of range; accepted: 8 or more"),
    ("predict --model llama-3-8b --heads 12", "heads 12 is not a multiple of"),
    ("predict --model llama-3-8b --heads 16,32", "--heads 16,32 are 2 values; accepted beside --model: one of them"),
    ("decode --model vit-l", "generates nothing"),
    ("models show nothing", "'nothing' is not known"),
])  # fmt: skip
def test_what_contradicts_a_model_is_one_line(
    line: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


LLAMA = {
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "hidden_size": 512,
}


@pytest.mark.parametrize(("content", "text"), [
    ("{", "is no JSON: Expecting property name"), ("[1]", "holds no JSON object"),
    ({"_class_name": "UNet2DConditionModel"}, "is of diffusers (UNet2DConditionModel)"),
    ({"peft_type": "LORA"}, "is an adapter's (LORA)"),
    ({"model_type": "t5", "is_encoder_decoder": True}, "(t5) is an encoder and a decoder"),
    ({"model_type": "mamba", "num_hidden_layers": 3, "hidden_size": 64}, "(model_type mamba) has no softmax attention"),
    ({"vocab_size": 3}, "says no number of layers: num_hidden_layers or n_layer"),
    (LLAMA | {"num_key_value_heads": 3}, "contradicts itself: 8 heads are no multiple of its 3 key/value heads"),
    (LLAMA | {"hidden_size": 500}, "contradicts itself: 8 heads do not divide its width of 500"),
    (LLAMA | {"num_attention_heads": "8"}, "num_attention_heads: '8' is not a whole number"),
    (LLAMA | {"num_attention_heads": [2, "x"]}, "num_attention_heads: 'x' is not a whole number"),
    (LLAMA | {"num_attention_heads": -8}, "num_attention_heads: -8 is out of range"),
    (LLAMA | {"layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
    (LLAMA | {"layer_types": ["full_attention", "odd"]}, "layer type 'odd' is not known"),
    (LLAMA | {"layer_types": ["mamba", "mamba"]}, "no layer with attention"),
    (LLAMA | {"kv_lora_rank": 64}, "says no columns without positions: qk_nope_head_dim"),
])  # fmt: skip
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


# --- what it moves ----------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"seq_len": 2048, "gpu": "h100"}


@pytest.fixture(scope="module")
def gemma() -> Any:
    return iosim.predict(model="gemma-3-4b", **SMALL)


def test_a_model_is_the_sum_of_its_layers(gemma: Any) -> None:
    sliding = iosim.predict(heads=8, kv_heads=4, head_dim=256, dtype="bf16", window=1023, **SMALL)
    full = iosim.predict(heads=8, kv_heads=4, head_dim=256, dtype="bf16", causal=True, **SMALL)
    assert [one.prediction.to_dict() for one in gemma.layers] == [sliding.to_dict(), full.to_dict()]
    assert gemma.hbm.read == 29 * sliding.hbm.read + 5 * full.hbm.read
    assert gemma.l2.write == 29 * sliding.l2.write + 5 * full.l2.write
    assert gemma.time_s == pytest.approx(29 * sliding.time_s + 5 * full.time_s)
    assert gemma.cache_bytes == 2 * 4 * 256 * 2 * (29 * 1024 + 5 * 2048)


def test_the_command_prints_the_same(gemma: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = "predict --model gemma-3-4b --gpu h100 --seq-len 2k --format json"
    assert main(line.split()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {"schema": 1, **{k: v for k, v in printed.items() if k != "answer"}} == json.loads(
        json.dumps(gemma.to_dict())
    )
    assert [(p["layer"], p["count"]) for p in printed["predictions"]] == [
        ("sliding", 29),
        ("full", 5),
    ]
    (total,) = printed["models"]
    assert total["totals"]["hbm"]["read"] == sum(
        p["count"] * p["totals"]["hbm"]["read"] for p in printed["predictions"]
    )
    assert total["kv_cache_bytes"] == sum(p["kv_cache_bytes"] for p in printed["predictions"])
    assert "<ModelPrediction: Gemma 3 4B on h100-sxm" in repr(gemma)
    assert list(gemma.to_pandas()["count"]) == [29, 5]
    assert gemma.figure("l2").data


def test_a_step_of_decoding_is_the_sum_of_its_layers(capsys: pytest.CaptureFixture[str]) -> None:
    (point,) = iosim.decode("h100", model="gemma-3-12b", context=8192)
    sliding, full = point.parts
    assert point.step_s == pytest.approx(sliding.step_s + full.step_s)
    assert sliding.prediction.problem.seq_k == 1024
    assert full.prediction.problem.seq_k == 8192
    assert point.cache_bytes == 2 * 8 * 256 * 2 * (40 * 1024 + 8 * 8192)
    line = "decode --model gemma-3-12b --gpu h100 --context 8k --format json"
    assert main(line.split()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["points"] == [json.loads(json.dumps(point.to_dict()))]
    assert "tokens of context Gemma 3 12B: " in printed["answer"]


def test_a_uniform_models_step_is_that_of_its_sizes() -> None:
    (by_name,) = iosim.decode("h100", model="llama-3-8b", context=4096)
    (by_hand,) = iosim.decode("h100", heads=32, kv_heads=8, head_dim=128, layers=32, context=4096)
    assert by_name.step_s == by_hand.step_s
    assert by_name.cache_bytes == by_hand.cache_bytes
    assert by_name.bound_tokens_per_s == by_hand.bound_tokens_per_s


def test_a_sparse_step_reads_the_picked_keys_and_keeps_all() -> None:
    short, long_ = iosim.decode("h100", model="deepseek-v3.2", context=[8192, 65536], layers=1)
    read = [point.prediction.traffic.total("l2", "read", tensor="K") for point in (short, long_)]
    assert read[0] == read[1]
    assert long_.cache_bytes == 8 * short.cache_bytes


def test_a_sparse_step_scores_all_keys_and_says_what_that_costs() -> None:
    (point,) = iosim.decode("h200", model="deepseek-v3.2", context=131_072)
    # of 61 layers: 128 bytes and a scale of all keys, and 2,048 rows of 576 columns
    least = 61 * (131_072 * 132 + 2048 * 576 * 2)
    assert point.per_token("hbm", "read") == pytest.approx(least, rel=0.02)
    assert point.bound_tokens_per_s == pytest.approx(
        (point.prediction.profile.dram_read_bandwidth_bytes_per_s or 0) / least
    )
    picking = point.picking
    assert picking is not None
    assert picking.index_hbm_bytes == pytest.approx(61 * 131_072 * 132, rel=0.01)
    assert picking.index_s + picking.attention_s == pytest.approx(point.step_s)
    assert point.to_dict()["picking"]["pays"] == (
        picking.index_s + picking.attention_s < picking.dense_s
    )
    text = str(iosim.decode("h200", model="deepseek-v3.2", context=131_072))
    assert f"up to a context of about {picking.pays_from:,}" in text


def test_picking_pays_where_lines_between_contexts_cross() -> None:
    from iosim.studies.decode.picking import _crossing

    assert _crossing((1000, 4000, 16000), (1.0, 1.0, -1.0)) == 8000
    assert _crossing((1000, 4000), (-1.0, -2.0)) == 1000
    assert _crossing((1000, 4000), (-1.0, 0.5)) is None
    (small,) = iosim.decode(
        "h200", model="deepseek-v3.2", context=65_536, cache_dtype="fp8", batch=32
    )
    assert small.picking is not None
    assert small.picking.pays
    assert small.cache_bytes == 61 * 32 * 65_536 * (656 + 132)


def test_python_refuses_what_the_command_refuses() -> None:
    for given, text in (({"layers": 3}, "layers 3 goes with model"), ({"model": "x"}, "model 'x' is not known"),
                        ({"model": "llama-3-8b", "problem": iosim.AttentionProblem()}, "problem contradicts model"),
                        ({"model": "llama-3-8b", "seq_len": [1, 2]}, "are 2 lengths")):  # fmt: skip
        with pytest.raises(iosim.InputError, match=text):
            iosim.predict(**given)


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

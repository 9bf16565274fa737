"""What a model is asked for: its options, heads shared out, states and compressed layers."""

from __future__ import annotations

import pytest
from models_read import kind

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.integrations.models import load_model
from iosim.integrations.models.kinds import model_of
from iosim.studies.models.asked import changed

pytestmark = pytest.mark.usefixtures("replays_once")


def test_layers_that_keep_a_state_are_counted() -> None:
    """Qwen3-Next: 36 of 48 layers keep 32 states of 128 x 128 fp32 numbers a sequence, Kimi Linear 20 of 27; no context
    makes them more. The others' caches grow."""
    qwen, kimi = load_model("qwen3-next-80b-a3b"), load_model("kimi-linear-48b-a3b")
    state = 32 * 128 * 128 * 4
    for model, layers, stateful, kernel in ((qwen, 48, 36, "gdn"), (kimi, 27, 20, "kda")):
        (linear,) = model.states
        assert (model.layers, linear.count, linear.state_kernel, linear.state_bytes) == (
            layers,
            stateful,
            kernel,
            state,
        )
        token = model.token_bytes("bf16")
        for context in (1, 100_000):
            assert model.cache_bytes(3, context, "bf16") == 3 * (stateful * state + context * token)
    assert qwen.token_bytes("bf16") == 12 * 2 * 2 * 256 * 2
    assert kimi.token_bytes("bf16") == 7 * (512 + 64) * 2
    assert (kimi.order[2], kimi.order[3], kimi.order[26]) == ("linear", "latent", "latent")
    half = changed(qwen, {}, tensor_parallel=2)
    assert half.states[0].state_bytes == state // 2
    (hybrid,) = load_model(
        {
            "model_type": "bamba",
            "hidden_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 64,
            "mamba_d_head": 64,
        }
    ).states
    assert (
        hybrid.state_kernel,
        hybrid.heads,
        hybrid.kv_heads,
        hybrid.head_dim,
        hybrid.state_bytes,
    ) == (
        "ssd",
        8,
        1,
        64,
        8 * 64 * 64 * 4,
    )


def test_compressed_layers_keep_a_window_and_a_key_for_so_many_tokens() -> None:
    """DeepSeek-V4: 584 bytes a key (448 in fp8, 64 in 16 bits, 8 of scales), 132 of the indexer's."""
    model = load_model("deepseek-v4")
    assert [
        (layer_kind.name, layer_kind.count, layer_kind.compress, layer_kind.top_k)
        for layer_kind in model.kinds
    ] == [
        ("sliding", 2, 0, None),
        ("compressed sparse", 21, 4, 512),
        ("compressed", 20, 128, None),
    ]
    kept_bytes = 43 * 128 * 584 + 21 * 32768 * (584 + 132) + 20 * 1024 * 584
    assert model.cache_bytes(1, 131_072, "bf16") == kept_bytes
    assert model.token_bytes("bf16") == 21 * (716 // 4) + 20 * (584 // 128)
    step = kind("deepseek-v4", "compressed sparse").problem(1, 131_072)
    assert (step.attended_keys, step.scored_keys, step.latent_row_bytes) == (128 + 512, 32768, 584)
    (half,) = {layer_kind.heads for layer_kind in changed(model, {}, tensor_parallel=2).kinds}
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


def test_heads_are_shared_out() -> None:
    llama = load_model("llama-3-8b")
    for gpus, kv_heads in ((4, 2), (8, 1), (32, 1)):
        layer_kind = changed(llama, {}, tensor_parallel=gpus).kinds[0]
        assert (layer_kind.heads, layer_kind.kv_heads) == (32 // gpus, kv_heads)
    two = changed(load_model("deepseek-v3"), {}, tensor_parallel=8)
    assert two.kinds[0].heads == 16
    assert two.cache_bytes(1, 100, "bf16") == load_model("deepseek-v3").cache_bytes(1, 100, "bf16")


def test_options_take_the_place_of_the_models_numbers_and_are_said() -> None:
    llama = load_model("llama-3-8b")
    same = changed(llama, {"kv_heads": 8})
    more = changed(llama, {"kv_heads": 32})
    assert same == llama
    assert more.kinds[0].kv_heads == 32
    assert more.notes == ("kv_heads 32 in place of the model's 8",)
    gemma = load_model("gemma-3-12b")
    assert [layer_kind.window for layer_kind in changed(gemma, {"window": 511}).kinds] == [
        512,
        None,
    ]
    assert [layer_kind.window for layer_kind in changed(llama, {"window": 511}).kinds] == [512]
    few = changed(gemma, {}, layers=7)
    assert [(layer_kind.name, layer_kind.count) for layer_kind in few.kinds] == [
        ("sliding", 6),
        ("full", 1),
    ]
    assert len(changed(gemma, {}, layers=5).kinds) == 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("predict --model lama-3-8b", "--model 'lama-3-8b' is not known; did you mean llama-3-8b"),
        ("predict --model none.json", "--model 'none.json' cannot be read: it does not exist"),
        ("predict --model llama-3-8b:vision", "has no vision part; accepted: without :vision"),
        ("predict --model gemma-3-4b:audio", "'audio' is not known; accepted: text, vision"),
        (
            "predict --model llama-3-8b --tensor-parallel 3",
            "--tensor-parallel 3 does not divide the 32 heads",
        ),
        (
            "predict --model phi-4 --tensor-parallel 4",
            "--tensor-parallel 4 neither divides the 10 key/value heads of its "
            "full layers nor is a multiple of them; accepted: 1, 2, 5, 10, 20, 40",
        ),
        ("predict --tensor-parallel 2", "--tensor-parallel 2 goes with --model"),
        ("predict --layers 2", "--layers 2 goes with --model"),
        (
            "predict --model llama-3-8b --layers 33",
            "--layers 33 is out of range; accepted: 1 to 32",
        ),
        ("predict --model qwen3-next-80b-a3b --layers 3", "none of the first 3 layers"),
        ("predict --model vit-l --causal", "--causal contradicts --model 'vit-l'"),
        ("predict --model llama-3-8b --bias alibi", "--bias contradicts --model 'llama-3-8b'"),
        (
            "predict --model deepseek-v3 --kv-heads 8",
            "--kv-heads 8 contradicts --model 'deepseek-v3'",
        ),
        ("predict --model llama-3-8b --latent-kv", "--latent-kv contradicts --model 'llama-3-8b'"),
        ("predict --model llama-3-8b --seq-lens 5,6", "--seq-lens goes with no --model"),
        (
            "predict --model llama-3-8b --seq-len 8 --seq-len-k 4",
            "--seq-len-k 4 is out of range; accepted: 8 or more",
        ),
        ("predict --model llama-3-8b --heads 12", "heads 12 is not a multiple of"),
        (
            "predict --model llama-3-8b --heads 16,32",
            "--heads 16,32 are 2 values; accepted beside --model: one of them",
        ),
        ("decode --model vit-l", "generates nothing"),
        ("models show nothing", "'nothing' is not known"),
    ],
)
def test_what_contradicts_a_model_is_one_line(
    line: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1

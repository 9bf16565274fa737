"""A model's attention is the sum of its layers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models_read import SMALL

import iosim
from iosim.commands.cli import main


@pytest.fixture(scope="module")
def gemma() -> Any:
    return iosim.predict(model="gemma-3-4b", **SMALL)


pytestmark = pytest.mark.usefixtures("replays_once")


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
    (run,) = whole if isinstance(whole, list) else [whole]
    assert [layer.prediction.kernel.name for layer in run.layers] == ["fa2", "gdn"]


def test_a_model_is_the_sum_of_its_layers(gemma: Any) -> None:
    sliding = iosim.predict(heads=8, kv_heads=4, head_dim=256, dtype="bf16", window=1023, **SMALL)
    full = iosim.predict(heads=8, kv_heads=4, head_dim=256, dtype="bf16", causal=True, **SMALL)
    assert [layer.prediction.to_dict() for layer in gemma.layers] == [
        sliding.to_dict(),
        full.to_dict(),
    ]
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


@pytest.mark.parametrize(
    ("method", "levels"),
    [("replay", ["l2", "hbm"]), ("bounds", ["l2"])],  # what reaches HBM is bounded then, not known
)
def test_a_figure_of_each_level_that_is_known(method: str, levels: list[str]) -> None:
    p: Any = iosim.predict(model="gemma-3-4b", method=method, **SMALL)
    panels = p._panels()
    assert sorted(panel.id for panel in panels) == sorted(levels)

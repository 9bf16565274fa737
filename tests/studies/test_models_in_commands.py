"""Models in other commands than `predict`: a sweep, tiles, training, a comparison, a report, rings, orders, serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from effort import quick_first

import iosim
from iosim.commands.cli import main

pytestmark = pytest.mark.usefixtures("replays_once")


def printed(line: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*line.split(), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_sweep_has_a_row_a_kind_of_layer(capsys: pytest.CaptureFixture[str]) -> None:
    line = "sweep --model gemma-3-4b --kernel fa2 --gpu a100 --seq-len 1k,4k --batch 1,2 --method capacity"
    rows = printed(line, capsys)["rows"]
    assert [
        (r["layer"], r["count"], r["seq_q"], r["batch"], r["mask"], r["window"]) for r in rows[:4]
    ] == [
        ("sliding", 29, 1024, 1, "causal", None),
        ("full", 5, 1024, 1, "causal", None),
        ("sliding", 29, 4096, 1, "window", 1023),
        ("full", 5, 4096, 1, "causal", None),
    ]
    assert len(rows) == 8
    assert {(r["model"], r["heads"], r["kv_heads"], r["head_dim"], r["refused"]) for r in rows} == {
        ("gemma-3-4b", 8, 4, 256, None)
    }
    assert main(["sweep", "--model", "llama-4-scout", "--seq-len", "16k"]) == 2
    assert "no sweep takes" in capsys.readouterr().err


def test_tiles_are_ranked_for_each_kind_of_layer(capsys: pytest.CaptureFixture[str]) -> None:
    line = "tiles --model gpt-oss-20b --layers 2 --gpu t4 --seq-len 256 --dtype fp16 --top 1"
    data = printed(line, capsys)
    assert [
        (problem["layer"], problem["count"], problem["problem"]["window"])
        for problem in data["problems"]
    ] == [("sliding", 1, 127), ("full", 1, None)]
    assert [tile["layer"] for tile in data["tiles"]] == ["sliding", "full"]
    with pytest.raises(iosim.InputError, match="has sliding and full layers, which differ"):
        iosim.pick_tiles(model="gpt-oss-20b", seq_len=256)


@pytest.mark.parametrize(
    ("name", "parameters"), quick_first([("gpt2", 124_439_808), ("llama-3-8b", 8_030_261_248)], 1)
)
def test_a_model_is_trained_with_its_own_sizes(
    name: str, parameters: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their published numbers of parameters."""
    training = printed(f"train-memory --model {name} --gpu h100 --backend cpu", capsys)["training"][
        0
    ]
    assert training["model"]["parameters"] == parameters
    assert training["model"] == {
        **iosim.train_memory("h100", model=name, backend="cpu").to_dict()["model"]
    }
    few = printed(f"train-memory --model {name} --layers 2 --gpu h100 --backend cpu", capsys)[
        "training"
    ][0]["model"]
    assert (few["layers"], few["width"]) == (2, training["model"]["width"])


def test_a_model_that_train_memory_does_not_build_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in (
        ("mixtral-8x7b", "none of the families"),
        ("deepseek-v3", "none of the families"),
        ("mistral-7b", "see a part"),
    ):
        assert main(["train-memory", "--model", name, "--backend", "cpu"]) == 2
        assert text in capsys.readouterr().err


def test_a_comparison_adds_up_the_kinds_of_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"compare --model gpt-oss-20b --gpu h100,t4 --kernel naive,fa3 --seq-len 64,256 --html {tmp_path}/c.html"
    data = printed(line, capsys)
    at = {(r["gpu"], r["kernel"], r["seq_q"]): r for r in data["rows"]}
    parts = [
        (layer["count"], {(r["gpu"], r["kernel"], r["seq_q"]): r for r in layer["rows"]})
        for layer in data["layers"]
    ]
    assert [(layer["layer"], layer["count"]) for layer in data["layers"]] == [
        ("sliding", 12),
        ("sliding", 12),
        ("full", 12),
    ]
    for kernel in ("naive", "fa3"):
        key = ("h100-sxm", kernel, 256)
        seconds = sum(count * rows[key]["time_s"] for count, rows in parts if key in rows)
        assert at[key]["time_s"] == pytest.approx(seconds)
    naive = at["h100-sxm", "naive", 256]
    fa3 = at["h100-sxm", "fa3", 256]
    assert fa3["time_ratio"] == pytest.approx(naive["time_s"] / fa3["time_s"])
    assert at["t4", "fa3", 64]["cannot_run"] == ["sliding", "full"]
    assert at["t4", "fa3", 64]["time_s"] is None
    assert "gpt-oss 20B" in (tmp_path / "c.html").read_text()


@pytest.mark.slow
def test_a_report_for_each_kind_of_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"report --model gpt-oss-20b --gpu h100 --kernel naive,fa3 --seq-len 256 --format md --out {tmp_path}"
    assert main(line.split(" ")) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report-full.md",
        "report-sliding.md",
    ]
    again = next(
        splitline
        for splitline in (tmp_path / "report-sliding.md").read_text().splitlines()
        if "iosim predict" in splitline
    )
    assert "--heads 64" in again
    assert "--window 127" in again
    assert "One sliding layer of 12, gpt-oss 20B" in capsys.readouterr().out


def test_rings_of_each_kind_of_layer(capsys: pytest.CaptureFixture[str]) -> None:
    data = printed(
        "ring --model gemma-3-4b --gpu h100 --num-gpus 2 --seq-len 2k --schedule ring", capsys
    )
    (layer,) = data["layers"]
    assert (layer["layer"], layer["count"], [out["layer"] for out in data["left_out"]]) == (
        "full",
        5,
        ["sliding"],
    )
    assert data["totals"][0]["time_s"] == pytest.approx(5 * layer["results"][0]["time_s"])
    alike = iosim.ring(model="llama-3-8b", num_gpus=2, gpu="h100", seq_len="2k", schedule="ring")
    by_hand = iosim.ring(
        num_gpus=2,
        gpu="h100",
        seq_len="2k",
        schedule="ring",
        heads=32,
        kv_heads=8,
        causal=True,
        dtype="bf16",
        layers=32,
    )
    assert alike.to_dict() == by_hand.to_dict()


def test_what_is_said_beside_a_model_that_trains_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Also a word that is the usual one where no model is asked for, and --no-causal."""
    small: dict[str, Any] = {"model": "llama-3-8b", "layers": 1, "seq_len": 64}
    typed = iosim.train_memory("h200", activation="gelu", causal=False, **small)
    assert (typed.model.activation, typed.setup.causal, typed.model.norm) == ("gelu", False, "rms")
    line = "train-memory --gpu h200 --model llama-3-8b --layers 1 --seq-len 64 --activation gelu --no-causal"
    data = printed(line, capsys)
    assert data["training"][0] == json.loads(json.dumps(typed.to_dict()))
    assert iosim.train_memory("h200", **small).model.activation == "silu"


def test_python_compares_a_model_whose_layers_are_alike() -> None:
    by_name = iosim.compare(kernel="fa3", gpu="h100", model="llama-3-8b", seq_len=[256, 512])
    by_hand = iosim.compare(
        kernel="fa3",
        gpu="h100",
        heads=32,
        kv_heads=8,
        causal=True,
        dtype="bf16",
        seq_len=[256, 512],
    )
    assert by_name.to_dict() == by_hand.to_dict()
    with pytest.raises(iosim.InputError, match="sliding and full layers, which differ"):
        iosim.compare(model="gemma-3-4b")


def test_the_answer_tells_batches_apart_and_no_cache_of_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "predict --model llama-3-8b --layers 1 --gpu h100 --seq-len 256"
    several = printed(f"{line} --batch 1,2", capsys)["answer"].split("\n")
    assert [line.endswith(f"at batch {n}.") for n, line in enumerate(several[1:3], 1)] == [
        True,
        True,
    ]
    assert main(f"{line} --batch 1,2".split()) == 0
    assert "the key/value cache takes up to 2.097 MB" in capsys.readouterr().out
    assert main(f"{line} --pass fwd+bwd --kernel fa2".split()) == 0
    assert "cache takes" not in capsys.readouterr().out


def test_one_order_for_all_layers_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"gpu": "h100", "seq_len": 1536, "layers": 6, "tensor_parallel": 4}
    ranking = iosim.orders(
        model="gemma-3-12b", order="head", direction="ascending", scheduler="static", **options
    )
    assert ranking.weights == (5.0, 1.0)  # five layers with a window to one without
    assert [p.mask for p in ranking.problems] == ["window", "causal"]
    words = "orders --model gemma-3-12b --gpu h100 --seq-len 1536 --layers 6 --tensor-parallel 4 --order head"
    assert (
        main(
            [
                *words.split(),
                "--direction",
                "ascending",
                "--scheduler",
                "static",
                "--format",
                "json",
            ]
        )
        == 0
    )
    (searched,) = json.loads(capsys.readouterr().out)["searches"]
    assert [
        (p["problem"]["heads"], p["problem"]["mask"], p["weight"]) for p in searched["problems"]
    ] == [
        (p.heads, p.mask, weight)
        for p, weight in zip(ranking.problems, ranking.weights, strict=True)
    ]


def test_a_sweep_in_python_has_the_rows_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    line = "sweep --model gemma-3-4b --kernel fa2 --gpu a100,l4 --seq-len 1k,4k --layers 6 --method capacity"
    rows = printed(line, capsys)["rows"]
    options: dict[str, Any] = {"model": "gemma-3-4b", "kernel": "fa2", "method": "capacity"}
    frame = iosim.sweep(gpu=["a100", "l4"], seq_len=[1024, 4096], layers=6, **options)
    names = ["gpu", "model", "layer", "count", "seq_q", "heads", "hbm_read_bytes"]
    rows_of_frame = [tuple(row) for row in frame[names].itertuples(index=False)]
    assert sorted(rows_of_frame) == sorted(tuple(row[name] for name in names) for row in rows)
    for more in ({"heads": [8, 16]}, {"problems": "rows.csv"}, {"mask": "causal"}):
        with pytest.raises(iosim.InputError, match="model"):
            iosim.sweep(**options, **more)
    with pytest.raises(iosim.InputError, match="goes with model"):
        iosim.sweep(layers=2, method="capacity")


def test_a_serving_step_of_a_model_adds_up_its_layers(capsys: pytest.CaptureFixture[str]) -> None:
    line = "latency --model gemma-3-12b --layers 6 --gpu h100 --batch 4 --seq-len 1 --seq-len-k 4k --method capacity"
    data = printed(line, capsys)
    assert [(p["layer"], p["count"]) for p in data["latencies"]] == [("sliding", 5), ("full", 1)]
    (step,) = data["models"]
    assert step["time_s"] == pytest.approx(sum(p["time_s"] * p["count"] for p in data["latencies"]))
    assert (step["layers"], step["batch"], step["seq_k"]) == (6, 4, 4096)
    options: dict[str, Any] = {"batch": 4, "seq_len": 1, "seq_len_k": 4096, "method": "capacity"}
    latency = iosim.latency(model="gemma-3-12b", layers=6, gpu="h100", **options)
    assert latency.models[0].total_s == step["time_s"]
    assert (
        main(["latency", "--model", "gemma-3-12b", "--batch-contexts", "1k,2k", "--gpu", "h100"])
        == 2
    )
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(iosim.InputError, match="contradicts model"):
        iosim.latency(model="gemma-3-12b", batch_contexts=[1024])


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("predict --model gpt-oss-20b --gpu h100 --seq-len 256", lambda d: d["predictions"]),
        ("decode --model gpt-oss-20b --gpu h100 --context 256", lambda d: d["points"][0]["kinds"]),
        (
            "latency --model gpt-oss-20b --gpu h100 --seq-len 1 --seq-len-k 256",
            lambda d: d["latencies"],
        ),
    ],
)
def test_a_models_sinks_are_read_by_kernels_that_have_a_place_for_them(
    command: str, read: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default on an H100 vLLM's FlashAttention-3, as FlashAttention's own has none."""
    for sinks, line in ((True, command), (False, command.replace("gpt-oss-20b", "gemma-3-4b"))):
        results = read(printed(line, capsys))
        assert len(results) == 2
        assert {result.get("problem", result).get("sinks", False) for result in results} == {sinks}
    for kernel, sinks in (("vllm-triton", True), ("fa3", False), ("sdpa", False)):
        line = f"predict --model gpt-oss-20b --gpu h100 --seq-len 256 --kernel {kernel}"
        assert {
            prediction["problem"].get("sinks", False)
            for prediction in printed(line, capsys)["predictions"]
        } == {sinks}
    backward = "predict --model gpt-oss-20b --gpu h100 --seq-len 256 --pass fwd+bwd"
    assert {
        prediction["problem"].get("sinks", False)
        for prediction in printed(backward, capsys)["predictions"]
    } == {False}

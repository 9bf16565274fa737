"""Whole models from their configs: sums by hand, what more tokens, GPUs and layers do, and what is refused.

tests/studies/program/test_tape.py holds them to TrafficMode."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest
from effort import examples, quick_every, quick_first
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scripts import ROOT
from whole_models import CONFIGS, LATENT, PLAIN, ROUTED, one

import iosim
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.integrations.models import load_model, preset_names
from iosim.studies.models.whole import PARTS, WholeRun
from iosim.studies.program.tape import Tape

pytestmark = pytest.mark.usefixtures("replays_once")


def read(run: WholeRun, part: str) -> int:
    return sum(row.hbm_read for row in run.parts[part])


def test_a_step_of_decoding_reads_every_weight_and_the_cache_once() -> None:
    """Llama 3 8B: 32 layers of 4096 columns, MLPs of 14336, 8 of 32 heads of 128 columns, 4096 tokens."""
    run = one("llama-3-8b", context=4096)
    assert read(run, "projections") == pytest.approx(
        2 * 32 * 4096 * (2 * 4096 + 2 * 1024), rel=0.01
    )
    assert read(run, "MLP") == pytest.approx(2 * 32 * 3 * 4096 * 14336, rel=0.01)
    assert read(run, "head") == pytest.approx(2 * 128256 * 4096, rel=0.01)
    assert read(run, "attention") == pytest.approx(32 * 2 * 8 * 128 * 2 * 4096, rel=0.01)
    assert run.traffic.time_s > run.traffic.hbm.read / 3.35e12  # HBM's specified rate


def test_deepseek_v3_reads_its_latents_and_eight_experts_of_a_layer() -> None:
    """58 layers of experts of 2048 columns, in fp8; 576 columns a token in the cache, in bf16."""
    run = one("deepseek-v3", context=4096)
    assert read(run, "experts") == pytest.approx(58 * 8 * 3 * 7168 * 2048, rel=0.01)
    assert read(run, "shared experts") == pytest.approx(58 * 3 * 7168 * 2048, rel=0.01)
    assert read(run, "attention") == pytest.approx(61 * 4096 * 576 * 2, rel=0.03)
    weights = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert read(run, "projections") == pytest.approx(61 * weights, rel=0.01)
    once = sum(row.compulsory for row in run.parts["experts"])
    assert once == pytest.approx(58 * 8 * 3 * 7168 * 2048, rel=0.01)
    assert run.kernels == ("flashmla",)
    assert run.random is None
    assert not hasattr(run.cell("experts", "hbm_read_bytes"), "mark")


@pytest.mark.slow
def test_numbers_of_fewer_bits_are_read_as_they_are_packed() -> None:
    """MXFP4: 17 bytes for 32 numbers. A GPU without fp8 unpacks fp8, and multiplies in bf16."""
    run = one("gpt-oss-20b", context=64)
    assert read(run, "experts") == pytest.approx(24 * 4 * 3 * 2880 * 2880 * 17 / 32, rel=0.02)
    assert read(run, "projections") == pytest.approx(
        24 * 2 * 2880 * 64 * (64 + 2 * 8 + 64), rel=0.02
    )
    packed = one("deepseek-v3", context=64, layers=1, gpu="a100")
    rounded = one("deepseek-v3", context=64, layers=1)
    assert read(packed, "MLP") == pytest.approx(read(rounded, "MLP"), rel=0.01)
    assert not [row for row in packed.traffic.rows if row.operator == "_to_copy"]
    assert [row for row in rounded.traffic.rows if row.operator == "_to_copy"]
    whole = one("deepseek-v3", context=64, layers=1, dtype="bf16")
    assert read(whole, "MLP") == pytest.approx(2 * read(rounded, "MLP"), rel=0.01)


def test_operations_are_six_times_parameters_and_tokens() -> None:
    """Of a step of training: two forward and four backward for each number of a matrix (arXiv 2001.08361, eq. 2.2)."""
    run = one("llama-3.2-1b", seq_len=512, training=True)
    products = run.traffic.flops - run.traffic.attention.flops
    model = load_model("llama-3.2-1b")
    assert model.attention_parameters is not None
    numbers = model.attention_parameters + 16 * 3 * 2048 * 8192 + 128256 * 2048
    assert products == 6 * numbers * 512
    assert set(run.parts) >= {"loss", "optimizer"}


@pytest.mark.parametrize("config", quick_first([PLAIN, ROUTED, LATENT], 1))
def test_a_product_is_twice_as_much_backward(config: dict[str, Any]) -> None:
    forward = one(config, seq_len=64)
    both = one(config, seq_len=64, training=True)
    for part in ("projections", "MLP", "router", "experts", "shared experts"):
        if part in forward.parts:
            assert 3 * forward.sums[part]["flops"] == both.sums[part]["flops"] > 0
    assert both.sums["head"]["flops"] == 3 * 64 * forward.sums["head"]["flops"]  # of all tokens


def test_memory_is_given_back_after_the_last_use() -> None:
    """But for parameters, what was there before, their gradients and a result."""
    tape = Tape(load_profile("h100"), "bf16", trained=True)
    x = tape.embedding(tape.weight(64, 16), 8)
    y = tape.linear(tape.pointwise("silu", x), tape.weight(32, 16), 32)
    tape.cross_entropy(y)
    tape.learn()
    program = tape.program
    stay = {
        n
        for n, storage in enumerate(program.storages)
        if storage.made is not None and storage.freed is None
    }
    assert stay == {gradient.storage for _, _, gradient in tape.parameters}
    assert [place.sizes for _, place, _ in tape.parameters] == [(32, 16), (64, 16)]
    for n, storage in enumerate(program.storages):
        uses = [
            k
            for k, op in enumerate(program.operators)
            if n in {view.storage for view in op.views.values()}
        ]
        if storage.freed is not None:
            assert storage.freed == uses[-1] + 1


def test_every_sequence_has_a_cache_of_its_own() -> None:
    for config in (PLAIN, LATENT):
        alone, three = (one(config, context=512, batch=batch).sums["attention"] for batch in (1, 3))
        assert three["compulsory_bytes"] == 3 * alone["compulsory_bytes"]


@pytest.mark.slow
def test_a_step_of_training_moves_what_counters_of_an_h200_counted() -> None:
    """The Llama of experiments/torch_models.py, which took no step of an optimizer."""
    with (ROOT / "experiments" / "measurements" / "h200_torch_traffic.csv").open(
        newline=""
    ) as file:
        rows = csv.DictReader(file)
        (counted,) = (
            r for r in rows if (r["what"], r["name"], r["passes"]) == ("model", "llama", "fwd+bwd")
        )
    run = one(
        PLAIN
        | {
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "intermediate_size": 2816,
            "num_hidden_layers": 4,
            "vocab_size": 32000,
        },
        gpu="h200",
        batch=4,
        seq_len=2048,
        training=True,
        kernel=counted["kernel"],
        context=None,
    )
    rest = {key: run.sums["whole model"][key] - n for key, n in run.sums["optimizer"].items()}
    assert rest["hbm_read_bytes"] == pytest.approx(int(counted["hbm_read"]), rel=0.05)
    assert rest["hbm_write_bytes"] == pytest.approx(int(counted["hbm_write"]), rel=0.05)
    assert rest["time_s"] == pytest.approx(float(counted["seconds"]), rel=0.05)


def bare(config: dict[str, Any], layers: int) -> dict[str, Any]:
    return config | {"num_hidden_layers": layers, "first_k_dense_replace": 0}


@pytest.mark.parametrize("stage", quick_first(["decode", "prefill", "training"], 1))
@settings(max_examples=examples(4), deadline=None)
@given(CONFIGS, st.integers(1, 3), st.sampled_from([1, 16, 100]))
def test_parts_add_up_and_a_layer_more_adds_a_layer(
    stage: str, config: dict[str, Any], batch: int, tokens: int
) -> None:
    how: dict[str, Any] = {"context": tokens + 1} if stage == "decode" else {"seq_len": tokens}
    runs = [
        one(bare(config, layers), batch=batch, training=stage == "training", **how)
        for layers in (1, 2, 3)
    ]
    for run in runs:
        assert [*run.parts] == [part for part in PARTS if part in run.parts]
        rows = [row for part in run.parts.values() for row in part]
        assert len(rows) == len(run.traffic.rows)
        assert sum(part["time_s"] for part in run.to_dict()["parts"]) == pytest.approx(
            run.traffic.time_s
        )
        assert all(0 <= share <= 1 for share in run.attention_share)
    for field in ("flops", "compulsory", "l2_read", "l2_write", "launches"):
        sums = [sum(getattr(row, field) for row in run.traffic.rows) for run in runs]
        if stage != "training":  # the optimizer puts parameters together
            assert sums[2] - sums[1] == sums[1] - sums[0], field
    times = [run.traffic.time_s for run in runs]
    assert times[0] < times[1] < times[2]


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(
    CONFIGS, st.sampled_from([{"seq_len": 64}, {"context": 65}, {"seq_len": 32, "training": True}])
)
def test_gpus_share_products(config: dict[str, Any], how: dict[str, Any]) -> None:
    whole = one(config, **how)
    half = one(config, tensor_parallel=2, **how)
    for part in ("attention", "MLP", "experts", "shared experts", "head"):
        if part in whole.parts:
            assert 2 * sum(r.flops for r in half.parts[part]) == sum(
                r.flops for r in whole.parts[part]
            )
    assert half.weight_bytes < whole.weight_bytes


def dense_decoders() -> list[str]:
    models = {name: load_model(name) for name in preset_names()}
    weights = {name: model.weights for name, model in models.items() if model.causal}
    return [
        name
        for name, of in weights.items()
        if of is not None and not any(mlp.experts for mlp in of.mlps)
    ]


@pytest.mark.parametrize("name", quick_every(dense_decoders(), 6))
def test_every_dense_decoder_reads_its_weights_once_a_token(name: str) -> None:
    """All but the rows of the table that no token names, and little else."""
    run = one(name, context=32, layers=4)
    weights = load_model(name).weights
    assert weights is not None
    unread = 0 if weights.tied else 2 * weights.width * weights.vocabulary
    assert run.traffic.hbm.read == pytest.approx(run.weight_bytes - unread, rel=0.03)


JUNK = st.sampled_from([None, 0, -1, "8", 1.5, [], {}, True, 10**9, "x", 7])


@settings(max_examples=examples(60), deadline=None)
@given(CONFIGS, st.data(), JUNK, st.sampled_from([{"seq_len": 16, "context": 0}, {"context": 17}]))
def test_a_config_that_makes_no_sense_is_refused_in_a_line(
    config: dict[str, Any], data: st.DataObject, junk: Any, how: dict[str, Any]
) -> None:
    wrong = config | {data.draw(st.sampled_from(sorted(config))): junk}
    try:
        run = one(wrong, layers=1, **how)
    except iosim.InputError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert run.traffic.time_s > 0
    assert "\n" not in refusal


def phases(**options: Any) -> list[tuple[str, int, int]]:
    return [
        (run.phase, run.work.queries, run.work.keys)
        for run in iosim.model(PLAIN, gpu="l4", **options)
    ]


def test_what_runs() -> None:
    assert phases() == [("prefill", 4096, 4096), ("decode", 1, 4096)]
    assert phases(seq_len="64,128") == [
        ("prefill", 64, 64),
        ("prefill", 128, 128),
        ("decode", 1, 64),
        ("decode", 1, 128),
    ]
    assert phases(context=64) == [("decode", 1, 64)]
    assert phases(seq_len=64, context=0) == [("prefill", 64, 64)]
    assert phases(seq_len=1) == [("prefill", 1, 1)]
    assert phases(seq_len=64, context="1k") == [("prefill", 64, 64), ("decode", 1, 1024)]
    assert phases(seq_len=64, training=True) == [("training", 64, 64)]


def test_models_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    line = "model gpt2,qwen3-30b-a3b --gpu h100 --seq-len 64 --layers 1 --batch 2"
    assert main(line.split()) == 0
    text = capsys.readouterr().out
    assert "gpt2: HBM" in text
    assert "qwen3-30b-a3b: HBM" in text
    rows = {part.split("  ")[0]: part for part in text.splitlines()}
    assert rows["experts"].count("-") == 4  # what GPT-2 does not have
    assert "~" in rows["experts"]
    assert "of a layer's 128 experts" in text
    assert main(f"{line} --format json".split()) == 0
    whole = json.loads(capsys.readouterr().out)
    assert [(run["model"], run["phase"]) for run in whole["runs"]] == [
        ("gpt2", "prefill"),
        ("qwen3-30b-a3b", "prefill"),
        ("gpt2", "decode"),
        ("qwen3-30b-a3b", "decode"),
    ]
    touched_of = whole["runs"][3]["experts_touched"]
    assert (touched_of["least"], touched_of["most"]) == (8, 16)


def test_a_model_that_does_not_fit_is_said_so() -> None:
    assert (
        "of weights do not fit in memory"
        in iosim.model("llama-3-70b", gpu="l4", context=64, layers=20).answer
    )
    small = iosim.model("gpt2", gpu="l4", context=64)
    assert "do not fit" not in small.answer
    assert "over its memory" not in small.answer
    large = iosim.model("gpt2", gpu="t4", context="64k", batch=16)
    assert "% of the bytes, over its memory, past its 1,024 positions." in large.answer
    assert any("has positions for 1,024 tokens" in note for note in large.notes)
    assert not any("has positions" in note for note in small.notes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bert-base", "'bert-base'"),
        ("qwen3-next-80b-a3b", "'qwen3-next-80b-a3b'"),
        ("gpt3", "'gpt3', gpt2"),
        ("gpt2,", "''"),
        ("gpt2 --context 0 --seq-len 0", "--seq-len, 0, 1"),
        ("gpt2 --training --fused", "--fused, --training"),
        ("gpt2 --training --context 64", "--context, --training"),
        ("gpt2 --dtype fp8", "--dtype, fp8, bf16"),
        ("gpt2 --kernel nope --seq-len 64", "--kernel, 'nope'"),
        ("gpt2 --tensor-parallel 5", "--tensor-parallel, 5, 12"),
        ("gpt2 --layers 13", "--layers, 13"),
        ("deepseek-v3 --context 64 --kernel fa2", "fa2"),
    ],
)
def test_refusals(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["model", *line.split()], message)


def test_weights_of_few_bits_are_fewer_bytes_and_a_shorter_step() -> None:
    call = {"gpu": "h100", "context": 4096, "layers": 2}
    stated = iosim.model("llama-3-8b", **call).runs[-1]
    packed = iosim.model("llama-3-8b", **call, weights="int4").runs[-1]
    # A layer: Q and O 4096 x 4096, K and V 4096 x 1024, three of 4096 x 14336; int4 takes 0.5 bytes and 2.5 per 128.
    numbers = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    less = numbers * (2 - 0.5 - 2.5 / 128)
    assert stated.weight_bytes - packed.weight_bytes == pytest.approx(less, rel=1e-6)
    hbm = stated.traffic.hbm.total - packed.traffic.hbm.total
    assert hbm == pytest.approx(less, rel=0.02)
    assert packed.traffic.time_s < stated.traffic.time_s
    point = iosim.decode("h100", model="llama-3-8b", context=1024, layers=2, weights="int4").points[
        0
    ]
    assert point.weight_bytes == packed.weight_bytes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: iosim.decode("h100", weights="int4", context=1024),
            "`weights` int4 needs `model`",
        ),
        (
            lambda: iosim.model("llama-3-8b", weights="int4", training=True),
            "`weights` contradicts `training=True`",
        ),
        (lambda: iosim.model("llama-3-8b", weights="int3"), "int4, int8, fp8, mxfp4"),
    ],
)
def test_weights_that_make_no_sense_are_refused(call: Any, message: str) -> None:
    with pytest.raises(iosim.InputError) as refusal:
        call()
    assert message in str(getattr(refusal.value, "marked", refusal.value))

"""Section E of the published numbers: the arithmetic written out, and the settings of the sources."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import reproduced

from iosim.evidence.reproduce import Row
from iosim.evidence.reproduce import chunk_schedules as runs
from iosim.hardware.profile import load_profile

needs_rows = pytest.mark.slow
"""All rows of the section take a minute and a half."""
A100 = load_profile("a100-sxm-80gb")


def find(*words: str) -> Row:
    return reproduced.find("E", *words)


@needs_rows
def test_every_row_says_how_or_why() -> None:
    assert reproduced.say_how_or_why("E")


@needs_rows
@pytest.mark.parametrize(
    ("words", "nd"),
    [
        (("forward, no mask",), 2),
        (("forward, causal, unbalanced",), 1),
        (("layer, forward, causal, balanced",), 1),
        (("layer, backward, causal, balanced",), 2),
        (("forward and backward",), 3),
        (("with recomputation", "layer"), 14),
    ],
)
def test_volumes_are_exact(words: tuple[str, ...], nd: int) -> None:
    row = find(*words)
    assert row.claimed == row.computed == nd


@needs_rows
def test_megatron_over_distflashattn() -> None:
    assert find("Megatron-LM with recomputation over").computed == pytest.approx(14 / 3)


@needs_rows
@pytest.mark.parametrize("gpus", [2, 3, 4, 7, 8, 16, 64])
def test_idle_fractions_are_exact(gpus: int) -> None:
    assert find(f"unbalanced, {gpus} GPUs").computed == gpus * (gpus - 1) / 2 / gpus**2
    balanced = find(f"fraction, balanced, {gpus} GPUs")
    assert balanced.computed == (0 if gpus % 2 else 1 / (2 * gpus))
    if gpus % 2 == 0:
        assert f"1/{gpus + 2} = 1 / (P + 2)" in balanced.note


@needs_rows
def test_expected_speed_ups_are_exact() -> None:
    assert find("expected on 8 GPUs, unbalanced").computed == 36 / 8
    assert find("expected on 8 GPUs, balanced").computed == pytest.approx(36 / 5)


@needs_rows
def test_speed_up_over_ring_attention() -> None:
    assert find("over ring attention").ratio == pytest.approx(1, abs=0.02)


@needs_rows
@pytest.mark.parametrize(
    ("model", "gpus"), [(m, g) for m in ("LLaMA-7B", "LLaMA-GQA", "LLaMA-33H") for g in (8, 16)]
)
def test_speed_ups_over_megatron_come_out_with_a_port_a_gpu(model: str, gpus: int) -> None:
    """Nothing is fitted; at 16K tokens a GPU and more, all twelve are within 8 % of the paper's."""
    for per_gpu in (16, 32):
        ports = ("100 Gb/s a GPU",) if gpus == 16 else ()
        row = find("speed-up over", f"{model}, {gpus} GPUs, {gpus * per_gpu}K", *ports)
        assert row.ratio == pytest.approx(1, abs=0.08), row.claim


@needs_rows
def test_iterations_come_out_short_and_never_by_more_than_a_quarter() -> None:
    rows = [
        r
        for r in reproduced.rows("E")
        if r.claim.startswith("iteration")
        and "self-attention" not in r.claim
        and "LLaMA" in r.claim
    ]
    alone = [r for r in rows if "a node" not in r.claim]
    assert len(alone) == 2 * 3 * 6
    assert all(r.ratio is not None and 0.75 < r.ratio < 1 for r in alone)


@needs_rows
def test_one_port_a_node_is_not_what_was_measured() -> None:
    for word in ("Megatron-LM", "DistFlashAttn"):
        row = find(f"iteration, {word}, LLaMA-7B, 16 GPUs, 512K", "100 Gb/s a node")
        assert row.ratio is not None
        assert row.ratio > 1.5


@needs_rows
def test_ring_self_attention_is_a_lower_bound_and_says_so() -> None:
    for row in (
        r for r in reproduced.rows("E") if r.claim.startswith("iteration, ring self-attention")
    ):
        assert row.ratio is not None
        assert row.ratio < 1
        assert "cannot be reproduced" in row.note


@needs_rows
def test_chunks_that_hide_the_ring() -> None:
    assert find("hide the messages", "nvlink").computed == pytest.approx(312 / 300)
    assert find("hide the messages", "ib-100g").computed == pytest.approx(312 / 12.5)


def test_operations_of_llama_7b() -> None:
    """32 layers of 4 x 4096^2 + 3 x 4096 x 11008 weights, 2 operations each and token; the head thrice."""
    layer = 4 * 4096**2 + 3 * 4096 * 11008
    assert runs.linear_flops(32, 32, 1, 1) == 2 * (32 * layer + 3 * 4096 * 32000)
    assert runs.layer_weights(32, 8)[0] == 2 * 4096**2 + 2 * 4096 * 1024
    assert runs.attention("LLaMA-33H", 64).heads == 33


def test_padded_heads_cost_megatron_work() -> None:
    """33 heads on 16 GPUs are 48: 3 a GPU in place of 2.06."""
    padded, plain = (
        runs.iterated("Megatron-LM", model, 16, 64 * 1024, A100.name, shared=False)
        for model in ("LLaMA-33H", "LLaMA-7B")
    )
    assert padded.attention_s / plain.attention_s == pytest.approx(
        3 / 2, rel=0.05
    )  # less a few waves


def test_memory_of_a_training_step() -> None:
    """One token more takes two checkpoints of 4096 fp16 a layer, one layer's working set and the logits."""
    more = runs.training_bytes("LLaMA-7B", 8, 8) - runs.training_bytes("LLaMA-7B", 0, 8)
    assert more == 32 * 2 * 4096 * 2 + 2 * (6 * 11008 + 12 * 4096) + 10 * 32000


@pytest.mark.parametrize("scheme", ["Megatron-LM", "Ring Self-Attention"])
def test_layers_run_their_forward_twice_and_their_backward_once(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 layers of a forward of 3 s with 5 s of messages and a backward of 7 with 11."""

    def spread(*_: object, backward: bool) -> SimpleNamespace:
        compute_s, communication_s = (7.0, 11.0) if backward else (3.0, 5.0)
        return SimpleNamespace(compute_s=compute_s, communication_s=communication_s)

    monkeypatch.setattr(runs, "spread", spread)
    took = runs.iterated.__wrapped__(scheme, "LLaMA-7B", 8, 8192, A100.name, shared=False)
    assert took.attention_s == 32 * (2 * 3 + 7)
    assert took.communication_s == 32 * (2 * 5 + 11)


def test_an_attention_module_is_its_kernel_and_its_projections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2 operations for each of 4 x 4096^2 weights and 8,192 tokens, at the rate of products, beside half a second."""
    half = SimpleNamespace(time=SimpleNamespace(total_s=0.5))
    monkeypatch.setattr(runs, "predict", lambda *_, **__: half)
    side: Any = SimpleNamespace(gpu=A100)
    took = runs.attention_module(side, "LLaMA-7B", 8)["computed"]
    products_s = 2 * 8192 * 4 * 4096**2 / A100.product_flops("fp16")
    assert took == pytest.approx(1000 * (0.5 + products_s))

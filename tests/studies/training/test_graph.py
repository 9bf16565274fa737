"""Training beside PyTorch itself, on the CPU: saved storages and live bytes of small decoders, to the byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_decoder import LiveBytes, Step, counted, saved_storages

from iosim.studies.training.graph import Kind
from iosim.studies.training.graph import saved_storages as predicted_storages
from iosim.studies.training.model import Decoder, Setup
from iosim.studies.training.plan import plan
from iosim.studies.training.timeline import Timeline, play

pytestmark = [pytest.mark.slow, pytest.mark.recorded]

FEW = settings(
    max_examples=examples(25),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
HELD = (Kind.PARAMETER, Kind.INPUT, Kind.OPTIMIZER)


@st.composite
def decoders(draw: st.DrawFn, norms: tuple[str, ...] = ("layer", "rms", "none")) -> Decoder:
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    return Decoder(
        layers=draw(st.integers(1, 3)),
        width=heads * draw(st.sampled_from([4, 8, 12])),
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=draw(st.sampled_from([0, 24, 40])),
        gated=draw(st.booleans()),
        activation=draw(st.sampled_from(["gelu", "silu", "relu"])),
        vocabulary=draw(st.sampled_from([0, 17, 50])),
        tied=draw(st.booleans()),
        norm=draw(st.sampled_from(norms)),
        positions=draw(st.sampled_from(["learned", "none"])),
        bias=draw(st.booleans()),
    )


@st.composite
def setups(draw: st.DrawFn, rank: int = 0) -> Setup:
    return Setup(
        lora_rank=rank,
        lora_on=",".join(draw(st.sampled_from([("q", "v"), ("q", "k", "v", "out"), ("v", "out")]))),
        batch=draw(st.integers(1, 3)),
        seq_len=draw(st.sampled_from([2, 7, 16, 33])),
        attention=draw(st.sampled_from(["naive", "flash"])),
        causal=draw(st.booleans()),
        precision=draw(st.sampled_from(["fp32", "bf16", "amp-bf16"])),
        recompute=draw(st.sampled_from(["none", "full", "attention"])),
        optimizer="none",
        backend="cpu",
    )


def timeline(model: Decoder, setup: Setup) -> Timeline:
    """As under a dispatch mode, where gradients that meet are never added in place."""
    return play(plan(model, setup), in_place=False)


def held_bytes(line: Timeline) -> int:
    """What lives before the step: parameters, inputs, states."""
    return sum(line.events[0].by_kind.get(k, 0) for k in HELD)


@FEW
@given(model=decoders(), setup=setups())
def test_saved_storages_are_pytorchs(model: Decoder, setup: Setup) -> None:
    assert sorted(s.bytes for s in predicted_storages(plan(model, setup))) == saved_storages(
        Step(model, setup)
    )


@FEW
@given(model=decoders(norms=("layer", "none")), setup=setups())
def test_live_bytes_at_the_peaks_are_pytorchs(model: Decoder, setup: Setup) -> None:
    """The RMS norm is left out: on the CPU it is composed of operations whose temporaries no node describes."""
    peaks_are_equal(model, setup)


def peaks_are_equal(model: Decoder, setup: Setup) -> None:
    step = Step(model, setup)
    line = timeline(model, setup)
    with counted(step) as meter:
        result = step.forward()
        forward, meter.peak = meter.peak, 0
        step.backward(result)
    base = held_bytes(line)
    assert {p: b - base for p, b in line.phase_peaks().items() if p != "step"} == {
        "forward": forward,
        "backward": meter.peak,
    }


@FEW
@given(model=decoders(), setup=setups(rank=3))
def test_storages_saved_under_lora_are_pytorchs(model: Decoder, setup: Setup) -> None:
    step = Step(model, setup)
    graph = plan(model, setup)
    assert sorted(s.bytes for s in predicted_storages(graph)) == saved_storages(step)
    assert sum(p.elements for p in graph.trained) == sum(
        p.numel() for p in step.network.parameters() if p.requires_grad
    )


@FEW
@given(model=decoders(norms=("layer", "none")), setup=setups(rank=3))
def test_live_bytes_under_lora_are_pytorchs(model: Decoder, setup: Setup) -> None:
    peaks_are_equal(model, setup)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
def test_adapters_of_an_mlp_are_pytorchs(precision: str) -> None:
    model = Decoder(layers=2, width=16, heads=2, vocabulary=20, mlp_width=24, gated=True)
    setup = Setup(
        seq_len=8,
        precision=precision,
        optimizer="none",
        backend="cpu",
        lora_rank=4,
        lora_on="q,v,gate,up,down",
    )
    assert sorted(s.bytes for s in predicted_storages(plan(model, setup))) == saved_storages(
        Step(model, setup)
    )
    peaks_are_equal(model, setup)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "step", "factory"),
    [
        ("adamw", "foreach", lambda p: torch.optim.AdamW(p, foreach=True)),
        ("adamw", "loop", lambda p: torch.optim.AdamW(p, foreach=False)),
        ("adam", "foreach", lambda p: torch.optim.Adam(p, foreach=True)),
        ("momentum", "foreach", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True)),
        ("sgd", "foreach", lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)),
    ],
)
def test_optimizer_states_and_temporaries_are_pytorchs(
    precision: str, name: str, step: str, factory: Callable[..., torch.optim.Optimizer]
) -> None:
    model = Decoder(layers=2, width=16, heads=2, vocabulary=20)
    setup = Setup(seq_len=8, precision=precision, optimizer=name, step=step, backend="cpu")
    run = Step(model, setup)
    optimizer = factory(list(run.network.parameters()))
    run.backward(run.forward())
    optimizer.step()  # makes the states
    graph = plan(model, setup)
    size = setup.number.parameter_bytes
    states = [
        v for s in optimizer.state.values() for k, v in s.items() if k != "step" and v is not None
    ]
    assert setup.rule.state_bytes(graph.parameters, size) == sum(
        v.untyped_storage().nbytes() for v in states
    )
    held = [p.grad for p in run.network.parameters()] + states
    known = run.fixed() | {t.untyped_storage().data_ptr(): 0 for t in held if t is not None}
    with LiveBytes(known) as meter:
        optimizer.step()
    host = 64 * len(graph.parameters)  # counters of steps, on the host
    assert meter.peak - setup.rule.step_bytes(graph.parameters, size) in range(-host, host + 1)


def test_flash_and_eager_differ_by_the_scores() -> None:
    """Written out: eager saves scaled q beside the packed projection, P, the mask and a merged copy of the output."""
    model = Decoder(layers=1, width=32, heads=4, vocabulary=0, mlp_width=0, norm="none", bias=False)
    sizes = {}
    for attention in ("naive", "flash"):
        setup = Setup(
            seq_len=16, attention=attention, precision="fp32", optimizer="none", backend="cpu"
        )
        sizes[attention] = saved_storages(Step(model, setup))
    # one N x d tensor, one N x N tensor of all heads
    u = 16 * 32 * 4
    scores = 4 * 16 * 16 * 4
    assert sizes["naive"] == sorted(
        [u, 3 * u, u, scores, 16 * 16, u]
    )  # x, qkv, scaled q, P, mask, merged O
    assert sizes["flash"] == sorted(
        [u, 3 * u, u, 16 * 4 * 4]
    )  # x, qkv, O, a log-sum-exp a row and head


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("recompute", ["none", "full", "attention"])
@pytest.mark.parametrize("precision", ["bf16", "amp-bf16", "amp-fp16"])
@pytest.mark.parametrize("attention", ["naive", "flash"])
def test_saved_storages_on_cuda(attention: str, precision: str, recompute: str) -> None:
    model = Decoder(layers=2, width=128, heads=4, vocabulary=512)
    setup = Setup(
        seq_len=192, attention=attention, precision=precision, recompute=recompute, optimizer="none"
    )
    wanted = sorted(s.bytes for s in predicted_storages(plan(model, setup)))
    assert wanted == saved_storages(Step(model, setup, "cuda"))

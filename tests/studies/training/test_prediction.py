"""Training: arithmetic by hand, the recorded steps of an H200, readers that agree, the command, its errors."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from refusals import refused
from small_steps import FEW, SMALL, recorded, saved_bytes, trained

from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.studies.training import (
    Decoder,
    Kind,
    Setup,
    frontier,
    plan,
    predict_training,
    shares,
)
from iosim.studies.training.frontier import peak_bytes
from iosim.studies.training.graph import saved_storages
from iosim.studies.training.timeline import allocated, play


def test_saved_bytes_of_one_layer_with_flash() -> None:
    """bf16 on CUDA, 256 tokens of width 128, 4 heads; u is one N x d tensor."""
    model = Decoder(layers=1, width=128, heads=4, vocabulary=0)
    setup = Setup(seq_len=256, precision="bf16", optimizer="none")
    u, row = 256 * 128 * 2, 256 * 4
    by_hand = (
        2 * u
        + 4 * row  # both norms' inputs, mean and 1/std each in fp32
        + u
        + 3 * u
        + u  # first norm's output, q k v, attention's output
        + 4 * row
        + 16  # log-sum-exp a row and head, seed and offset
        + u
        + 4 * u
        + 4 * u  # second norm's output, MLP before and after gelu
    )
    assert saved_bytes(plan(model, setup)) == by_hand


@pytest.mark.parametrize(
    ("precision", "a_score"), [("fp32", 4), ("bf16", 2), ("amp-bf16", 6), ("amp-fp16", 6)]
)
def test_naive_attention_saves_scores(precision: str, a_score: int) -> None:
    """P alone; under autocast P in fp32 and its half copy."""
    setup = Setup(seq_len=256, attention="naive", precision=precision)
    scores = [s for s in saved_storages(plan(SMALL, setup)) if s.kind is Kind.SCORES]
    assert sum(s.bytes for s in scores) == 2 * 4 * 256 * 256 * a_score  # layers, heads


def test_checkpointing_keeps_the_layers_inputs() -> None:
    model = Decoder(layers=3, width=128, heads=4, vocabulary=0)
    full = plan(model, Setup(seq_len=256, precision="bf16", recompute="full"))
    assert saved_bytes(full) == 3 * 256 * 128 * 2
    part = plan(
        model, Setup(seq_len=256, attention="naive", precision="bf16", recompute="attention")
    )
    assert not [s for s in saved_storages(part) if s.kind is Kind.SCORES]


def test_flash_is_linear_and_naive_is_quadratic_in_the_length() -> None:
    model = Decoder(layers=2, width=128, heads=4, vocabulary=0)

    def kept(attention: str, n: int) -> int:
        return saved_bytes(plan(model, Setup(seq_len=n, attention=attention, precision="bf16")))

    assert kept("flash", 2048) - 32 == 2 * (kept("flash", 1024) - 32)  # 2 layers x (seed + offset)
    more = kept("naive", 2048) - 2 * kept("naive", 1024)
    assert (
        more == 2 * 4 * 2 * 1024**2 * 2 + 2 * 1024**2
    )  # 2 layers x 4 heads x 2 bytes x 2 N^2, and the mask


@FEW
@given(trained())
def test_laws(step: tuple[Decoder, Setup]) -> None:
    model, setup = step
    graph = plan(model, setup)
    line = play(graph)
    assert peak_bytes(model, setup) == line.peak_bytes
    # What lives after the backward: parameters, gradients, states, inputs, and the result.
    result = graph.storages[graph.lies_in[graph.nodes[-1].values[0]]].bytes
    stepped = shares.shares(setup, graph.trained)
    states = setup.rule.state_bytes(stepped, setup.state_bytes)
    states += shares.master_bytes(setup, graph.trained)
    weights = sum(shares.shared(setup, p.elements, shares.PARAMETERS) for p in graph.parameters)
    weights += sum(shares.shared(setup, p.elements, shares.GRADIENTS) for p in graph.trained)
    inputs = sum(s.bytes for s in graph.inputs) + (graph.seed.bytes if graph.seed_held else 0)
    assert (
        line.events[-1].after_bytes
        == setup.number.parameter_bytes * weights + states + inputs + result
    )
    # Every request is given back or lives on; the allocator hands out no less than was asked for.
    live: dict[str, int] = {}
    for name, change in line.requests:
        assert (name in live) == (change < 0) or change == 0
        live[name] = live.get(name, 0) + change
        if not live[name]:
            del live[name]
    assert sum(live.values()) == line.events[-1].after_bytes
    allocation = allocated(line.requests)
    assert line.peak_bytes <= allocation.most <= allocation.reserved
    assert all(sum(e.by_kind.values()) == e.peak_bytes for e in line.events)


def test_table_json_and_page(capsys: pytest.CaptureFixture[str], tmp_path) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "page.html"
    assert (
        main(
            [
                "train-memory",
                "--gpu",
                "l4",
                "--layers",
                "2",
                "--seq-len",
                "512",
                "--html",
                str(page),
            ]
        )
        == 0
    )
    assert "fits in 24.15 GB" in capsys.readouterr().out
    text = page.read_text()
    assert "Memory over one step" in text
    assert 'http-equiv="Content-Security-Policy"' in text
    assert main(["train-memory", "--layers", "2", "--seq-len", "512", "--format", "json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"][0]
    assert training["memory_bytes"]["peak"] == max(e["peak"] for e in training["timeline"])
    assert (
        sum(training["memory_bytes"]["peak_by_kind"].values()) == training["memory_bytes"]["peak"]
    )
    assert training["time"]["time_s"] == pytest.approx(
        sum(s for p in training["time"]["phases"].values() for s in p.values())
    )
    args = [
        "train-memory",
        "--frontier",
        "layers",
        "--layers",
        "2,4",
        "--seq-len",
        "1k,2k",
        "--html",
        str(page),
    ]
    assert main([*args, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("layers,seq_len,peak_bytes,fits\n2,1024,")
    assert "What fits" in page.read_text()


@pytest.mark.parametrize("recompute", ["none", "full", "attention"])
def test_the_page_and_the_table_show_the_same_peak(recompute: str) -> None:
    training = predict_training(
        SMALL, Setup(seq_len=256, attention="naive", recompute=recompute), "l4"
    )
    assert max(sum(by.values()) for _, _, by in training.curve()) == training.peak_bytes
    assert training.curve()[-1][0] == pytest.approx(training.time.total_s if training.time else 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--heads", "5"], "--heads 5 does not divide --width 768"),
        (["--kv-heads", "5"], "--kv-heads 5 does not divide --heads 12"),
        (["--layers", "0"], "--layers 0 is out of range; accepted: 1 to 1024"),
        (["--precision", "int4"], "--precision 'int4' is not known"),
        (["--optimizer", "lion"], "--optimizer 'lion' is not known"),
        (["--optimizer", "adam8bit", "--step", "loop"], "--step loop: adam8bit"),
        (["--attention", "ring"], "--attention 'ring' is not known; accepted: flash, naive"),
        (["--recompute", "some"], "--recompute 'some' is not known"),
        (["--norm", "batch"], "--norm 'batch' is not known"),
        (
            ["--width", "60", "--heads", "3"],
            "head dimension 20 is not possible with --attention flash",
        ),
        (["--seq-len", "1k,2k"], "--seq-len 1k,2k are 2 values"),
        (["--frontier", "depth"], "--frontier 'depth' is not known"),
        (["--frontier", "width", "--width", "1000"], "--width 1000"),
        (["--mlp-ratio", "-1"], "--mlp-ratio -1.0 is out of range"),
        (["--gpu", "t4", "--precision", "bf16"], "bf16"),
        (["--zero", "4"], "--zero 4 is out of range; accepted: 0 to 3"),
        (["--master-weights"], "--master-weights: --precision amp-bf16 keeps parameters in fp32"),
        (["--lora-rank", "8", "--lora-on", "gate"], "--lora-on gate: the model has no such matrix"),
        (["--lora-on", "x"], "--lora-on 'x' is not known"),
        (["--seq-len", "16m", "--batch", "60k", "--attention", "naive"], "is out of range"),
    ],
)
def test_bad_input(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["train-memory", *args], message)


def test_bad_values_of_the_library() -> None:
    with pytest.raises(InputError, match="layers True is not a whole number"):
        Decoder(layers=True)
    with pytest.raises(InputError, match="axis 'depth'"):
        frontier(SMALL, Setup(), load_profile("l4"), "depth", (1,), (1024,))


@pytest.mark.parametrize(
    "bug", ["callers hold nothing", "saved tensors live on", "statistics in half"]
)
def test_planted_bugs_show(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from iosim.studies.training import graph, timeline

    if bug == "callers hold nothing":
        readers = timeline._last_readers
        monkeypatch.setattr(
            timeline, "_last_readers", lambda nodes: readers([replace(x, held=()) for x in nodes])
        )
    elif bug == "statistics in half":
        monkeypatch.setattr(graph, "STATISTIC_BYTES", 2)
    else:
        monkeypatch.setattr(timeline._Player, "_kept", lambda player, node: iter(()))
    plan.cache_clear()
    wrong = 0
    for model, setup, row in recorded("h200_training_bytes.csv")[::7]:
        line = play(plan(model, setup))
        base = sum(
            line.events[0].by_kind.get(k, 0) for k in (Kind.PARAMETER, Kind.INPUT, Kind.OPTIMIZER)
        )
        peaks_found = {p: b - base for p, b in line.phase_peaks().items()}
        wrong += any(peaks_found[p] != int(row[p]) for p in ("forward", "backward", "step"))
    plan.cache_clear()
    assert wrong

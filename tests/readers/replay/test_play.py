"""Warm starts: the L2 as the same call just before left it, for every method."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import iosim
from iosim import AttentionProblem, InputError, sweep
from iosim.base.words import METHODS
from iosim.prediction.predictor import planned, predict
from iosim.prediction.replays import head_share_of, tile_accesses
from iosim.readers.replay import play as heads
from iosim.readers.replay.play import Play

KERNELS = ("fa2", "flash", "naive", "cutlass", "sdpa", "math", "triton", "flash1")
GPUS = ("a100", "h200", "l4", "t4")


def random_call(draw: random.Random) -> tuple[AttentionProblem, str, str]:
    kv_heads = draw.choice((1, 2, 4))
    values: dict[str, Any] = {
        "batch": draw.choice((1, 2)),
        "kv_heads": kv_heads,
        "heads": kv_heads * draw.choice((1, 4)),
        "seq_q": draw.choice((1, 128, 1000, 2048, 4096, 16384)),
        "head_dim": draw.choice((64, 128)),
        "dtype": "fp16",
        "mask": draw.choice(("none", "causal")),
        "passes": draw.choice(("fwd", "fwd", "bwd", "fwd+bwd")),
    }
    if values["seq_q"] == 1:
        values |= {"seq_k": draw.choice((1000, 8192, 100_000)), "mask": "none", "passes": "fwd"}
    return AttentionProblem(**values), draw.choice(KERNELS), draw.choice(GPUS)


def test_the_capacity_rule_moves_no_more_from_a_warm_start_than_from_a_cold_one() -> None:
    draw = random.Random(3)
    seen = less = same = 0
    while seen < 120:
        problem, kernel, gpu = random_call(draw)
        try:
            call = planned(problem, kernel, gpu)
        except InputError:
            continue
        seen += 1
        cold = call.capacity("cold").tensors("hbm")
        warm = call.capacity("warm").tensors("hbm")
        assert all(moved_bytes <= cold[tensor] for tensor, moved_bytes in warm.items()), (
            problem,
            kernel,
            gpu,
        )
        less = less + (warm != cold)
        same = same + (warm == cold)
    assert less > 20 < same


def test_a_larger_l2_leaves_no_less() -> None:
    problem = AttentionProblem(heads=16, seq_q=2048, head_dim=128, dtype="fp16")
    for kernel in ("fa2", "naive"):
        call = planned(problem, kernel, "a100")
        sizes = [call.profile.need_int("l2_bytes") * n // 8 for n in (1, 4, 8, 16, 32, 256)]
        traffics = [
            planned(problem, kernel, replace(call.profile, l2_bytes=size)).capacity("warm")
            for size in sizes
        ]
        reads = [traffic.total("hbm", "read") for traffic in traffics]
        assert reads == sorted(reads, reverse=True)
        assert reads[-1] == 0 < reads[0]
        assert traffics[-1].total("hbm", "write") == 0


FITS = [
    ("a100", "fa2", {"heads": 8, "seq_q": 1024}),
    ("h200", "naive", {"heads": 4, "seq_q": 512}),
    ("h200", "fa2", {"heads": 4, "seq_q": 1024, "passes": "fwd+bwd"}),
    ("a100", "fa2", {"heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 2048}),
    ("t4", "sdpa", {"heads": 4, "seq_q": 512}),
]
OUTGROWS = [
    ("a100", "fa2", {"heads": 16, "seq_q": 4096, "head_dim": 128}),
    ("h200", "naive", {"heads": 16, "seq_q": 2048}),
    ("a100", "fa2", {"heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 65536, "head_dim": 128}),
    ("h200", "cudnn", {"heads": 32, "seq_q": 2048, "head_dim": 128}),
]


def of(gpu: str, kernel: str, values: dict[str, Any], start: str, method: str) -> iosim.Prediction:
    return predict(
        AttentionProblem(**{"head_dim": 64, "dtype": "fp16"} | values),
        kernel,
        gpu,
        l2_start=start,
        method=method,
    )


@pytest.mark.parametrize(("gpu", "kernel", "values"), FITS)
def test_where_all_fits_nothing_is_moved_by_rule_or_replay(
    gpu: str, kernel: str, values: dict[str, Any]
) -> None:
    rule, played = (
        of(gpu, kernel, values, "warm", method).hbm for method in ("capacity", "replay")
    )
    assert (rule.read, rule.write, played.write) == (0, 0, 0)
    assert (
        played.read <= 0.01 * of(gpu, kernel, values, "cold", "replay").hbm.read + 200_000
    )  # the launches' code


@pytest.mark.parametrize(("gpu", "kernel", "values"), OUTGROWS)
def test_where_nothing_fits_a_warm_start_is_a_cold_one(
    gpu: str, kernel: str, values: dict[str, Any]
) -> None:
    assert (
        of(gpu, kernel, values, "warm", "capacity").hbm
        == of(gpu, kernel, values, "cold", "capacity").hbm
    )
    warm, cold = (of(gpu, kernel, values, start, "replay").hbm for start in ("warm", "cold"))
    rule = of(gpu, kernel, values, "warm", "capacity").hbm
    assert warm.read == pytest.approx(cold.read, rel=0.02)
    assert rule.read == pytest.approx(warm.read, rel=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_a_warm_start(method: str) -> None:
    warm_call = of("a100", "fa2", {"heads": 2, "seq_q": 512}, "warm", method)
    assert warm_call.l2_start == "warm"
    if method != "bounds":
        assert warm_call.total("hbm", "read") < warm_call.hbm_bounds.compulsory_read


def test_a_sweep_says_what_predict_says() -> None:
    how: dict[str, Any] = {"l2_start": "warm", "method": "capacity"}
    frame = sweep(
        gpu="a100",
        kernel=["fa2", "naive"],
        heads=4,
        head_dim=128,
        seq_q=[256, 512, 4096, 32768],
        **how,
    )
    assert set(frame.l2_start) == {"warm"}
    for row in frame.itertuples():
        problem = AttentionProblem(heads=4, head_dim=128, seq_q=int(row.seq_q))
        hbm = predict(problem, row.kernel, "a100", **how).hbm
        assert (hbm.read, hbm.write) == (row.hbm_read_bytes, row.hbm_write_bytes)


def test_what_would_take_too_long_is_estimated_from_a_warm_start_too() -> None:
    prediction = predict(
        AttentionProblem(heads=8, seq_q=1 << 20, head_dim=128), "naive", "h200", l2_start="warm"
    )
    assert (prediction.method, prediction.l2_start) == ("capacity", "warm")


def test_a_few_heads_stand_for_all_from_a_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    call = planned(
        AttentionProblem(heads=16, seq_q=8192, head_dim=64, dtype="fp16"), "naive", "a100"
    )
    accesses = tile_accesses(call.chain)
    monkeypatch.setattr(heads, "OUTGROWN", 2)
    monkeypatch.setattr(heads, "PLAYED_ACCESSES", accesses // 8 + 1)
    share = head_share_of(call)
    assert share is not None
    some = call.replay(Play(l2_start="warm", share=share))
    every = call.replay(Play(l2_start="warm"))
    for direction in ("read", "write"):
        assert some.traffic.total("hbm", direction) == pytest.approx(
            every.traffic.total("hbm", direction), rel=0.01
        )


def test_a_flush_leaves_lines_that_must_be_written_back() -> None:
    """A memset over the L2 leaves half of an H100's lines dirty: a decode of 67 MB drives nearly all of them out."""
    call = {"batch": 64, "heads": 64, "kv_heads": 8, "seq_len": 1, "seq_len_k": 256}
    cold, flushed = (
        iosim.predict(kernel="fa2", gpu="h100", l2=start, **call) for start in ("cold", "flushed")
    )
    assert flushed.hbm.read == cold.hbm.read
    assert 20e6 < flushed.hbm.write - cold.hbm.write < 26.3e6
    assert flushed.time_s > 1.1 * cold.time_s


def test_a_flush_is_said_where_no_replay_counts_it() -> None:
    p = iosim.predict(kernel="fa2", gpu="h100", l2="flushed", method="capacity")
    assert any("what the flush left is not" in note for note in p.notes)

"""FlashAttention-2 on an A30, whose counters others published, against predictions.

Its kernels keep registers in memory; with that, the L2 as it was measured on an H100 gives the A30's HBM bytes.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache

import pytest
from scripts import measurements

from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.prediction.call import Call
from iosim.prediction.predictor import planned, predict
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay.l2 import L2Model, model
from iosim.readers.replay.play import Play

SECTOR = 32
COLD, WARM, FEW = 0.06, 0.10, 2_000_000


def counted() -> list[dict[str, str]]:
    with open(measurements("published_a30_fa2.csv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ROWS = counted()


@cache
def problem(seq: int, window: int, causal: bool) -> AttentionProblem:
    sizes = {"heads": 32, "kv_heads": 8, "seq_q": seq, "head_dim": 128, "dtype": "fp16"}
    return AttentionProblem(
        **sizes, mask="window", window=window, window_right=0 if causal else window
    )


def problem_of(row: dict[str, str]) -> AttentionProblem:
    return problem(int(row["seq"]), int(row["window"]), row["causal"] == "1")


@cache
def prediction(problem: AttentionProblem, start: str) -> Prediction:
    return predict(problem, "flash-attn", "a30", l2_start=start)


def name(row: dict[str, str]) -> str:
    return f"{row['seq']} {'causal' if row['causal'] == '1' else 'none'} {row['window']} {row['l2_start']}"


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_what_the_sms_load_and_store_is_exact(row: dict[str, str]) -> None:
    """Local memory is part of what reaches the L2 and no part of what the SMs store to tensors."""
    traffic = prediction(problem_of(row), row["l2_start"]).traffic
    assert traffic.total("l2", "read") == SECTOR * int(row["l1_read_sectors"])
    spilled = traffic.total("l2", "write", tensor="spill")
    assert traffic.total("l2", "write") - spilled == SECTOR * int(row["l1_write_sectors"])
    assert spilled == SECTOR * (int(row["l2_write_sectors"]) - int(row["l1_write_sectors"]))


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_hbm_bytes(row: dict[str, str]) -> None:
    measured = SECTOR * int(row["dram_sectors"])
    predicted = prediction(problem_of(row), row["l2_start"]).total("hbm")
    if row["l2_start"] == "cold":
        assert predicted == pytest.approx(measured, rel=COLD)
    else:
        assert predicted == pytest.approx(measured, rel=WARM, abs=FEW)


def mean_error(l2: L2Model, start: str, spills: bool = True) -> float:
    """Mean |predicted - measured| / measured over the rows of 1,024 tokens and more."""
    profile, errors = load_profile("a30"), []
    for row in ROWS:
        if row["l2_start"] != start or int(row["seq"]) < 1024:
            continue
        p = problem_of(row)
        kernel = resolve("flash-attn", p, profile)
        call = Call.of(p, kernel if spills else replace(kernel, spill=None), profile)
        measured = SECTOR * int(row["dram_sectors"])
        errors.append(
            abs(call.replay(Play(l2_start=start, l2_model=l2)).traffic.total("hbm") - measured)
            / measured
        )
    return float(sum(errors) / len(errors))


@pytest.mark.slow
def test_no_other_l2_gives_these_bytes() -> None:
    """One partition in place of two, or dirty lines twice or half as many, is further off; so are no spills."""
    held = model(load_profile("a30"))
    cold = mean_error(held, "cold")
    warm = mean_error(held, "warm")
    assert cold < 0.03
    assert warm < 0.04
    whole_l2 = replace(held, partitions=1, sets=2 * held.sets)
    assert mean_error(whole_l2, "cold") > 4 * cold
    assert mean_error(whole_l2, "warm") > 3 * warm
    assert mean_error(replace(held, dirty_ways=held.dirty_ways / 2), "cold") > 3 * cold
    assert mean_error(held, "cold", spills=False) > 3 * cold


def test_a_warm_start_is_what_the_same_call_left() -> None:
    """1,024 tokens: Q, K, V and O, 21 MB, do not fit beside each other where K and V are kept twice, so that a repeat
    reads all of it again; of 512 tokens, half as much, it reads nothing. Its predecessor's dirty lines are written."""
    small = problem(512, 512, True)
    larger = problem(1024, 512, True)
    assert (
        prediction(small, "warm").total("hbm", "read")
        < 100_000
        < prediction(small, "cold").total("hbm", "read")
    )
    q = 1024 * 32 * 128 * 2
    k = 1024 * 8 * 128 * 2
    o = 1024 * 32 * 128 * 2
    warm = prediction(larger, "warm")
    cold = prediction(larger, "cold")
    assert warm.total("hbm", "read") > 0.9 * (q + 2 * k)
    assert warm.total("hbm", "write") > o > 3 * cold.total("hbm", "write")


def test_a_window_as_wide_as_the_keys_runs_the_causal_kernel() -> None:
    causal = AttentionProblem(
        heads=32, kv_heads=8, seq_q=512, head_dim=128, dtype="fp16", mask="causal"
    )
    kernels = [
        planned(p, "flash-attn", "a30").kernel
        for p in (causal, problem(512, 512, True), problem(512, 511, True))
    ]
    assert kernels[0] == kernels[1]
    assert kernels[0].spill != kernels[2].spill


def test_a_window_on_small_ampere_runs_the_tile_without_a_mask() -> None:
    """csrc/flash_attn/src/flash_fwd_launch_template.h: 64x64 where Is_causal, 128x32 where not, as with a window."""
    window = AttentionProblem(heads=32, seq_q=1024, head_dim=128, mask="window", window=128)
    causal = AttentionProblem(heads=32, seq_q=1024, head_dim=128, mask="causal")
    tiles = [planned(p, "fa2", "a10").kernel.tile for p in (window, causal)]
    assert [(tile.block_q, tile.block_k) for tile in tiles] == [(128, 32), (64, 64)]

"""Which method finds HBM traffic where none is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

import iosim
from iosim.prediction import predictor
from iosim.prediction.predictor import (
    QUICK_ACCESSES,
    QUICK_BYTES,
    _by_default,
    default_method,
    planned,
)
from iosim.prediction.replays import tile_accesses
from iosim.readers.replay.objects import about_bytes


def problem(tokens: int) -> iosim.AttentionProblem:
    return iosim.AttentionProblem(heads=8, seq_q=tokens, head_dim=128, dtype="bf16")


def test_what_takes_seconds_is_replayed() -> None:
    # 8 heads x 64 query blocks x 128 key blocks x 2 tensors = 131,072 accesses
    assert iosim.predict(problem(8192), "fa2", "h200").method == "replay"


@pytest.mark.slow
def test_what_would_take_a_minute_is_sampled_and_says_so() -> None:
    # 8 heads x 8,192 query blocks x 16,384 key blocks x 2 tensors
    assert QUICK_ACCESSES < 8 * 8192 * 16384 * 2
    p = iosim.predict(problem(1 << 20), "fa2", "h200")
    assert p.method == "sampled"
    assert any("played in part" in note and "method replay" in note for note in p.notes)


def test_what_sampling_does_not_shorten_takes_the_capacity_rule_and_says_so() -> None:
    # scores and values: 8 heads x 8,192 x 8,192 tiles of two tensors in three launches, a minute for each head
    p = iosim.predict(problem(1 << 20), "naive", "h200")
    assert p.method == "capacity"
    assert any("tile accesses was not begun; method replay does it" in note for note in p.notes)


@pytest.mark.parametrize(
    ("whole", "in_part", "method"),
    [
        # Accesses of a launch that must be played whole, and of one that can be played in part
        (10, QUICK_ACCESSES - 10, "replay"),
        (10, QUICK_ACCESSES - 9, "sampled"),
        (QUICK_ACCESSES, 10, "sampled"),
        (QUICK_ACCESSES + 1, 10, "capacity"),
        (0, 10**12, "sampled"),
    ],
)
def test_launches_that_must_be_played_whole_have_to_be_short(
    whole: int, in_part: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = planned(problem(512), "naive", "h200").chain
    first, second = chain.launches[:2]
    accesses = {first.name: whole, second.name: in_part}
    monkeypatch.setattr(
        predictor, "tile_accesses", lambda chain: sum(accesses[n.name] for n in chain.launches)
    )
    monkeypatch.setattr(predictor, "repeats", lambda launch: launch.name == second.name)
    assert default_method(replace(chain, launches=(first, second)))[0] == method


def test_a_method_asked_for_is_kept() -> None:
    p = iosim.predict(problem(2048), "fa2", "h200", method="capacity")
    assert (p.method, p.replay) == ("capacity", None)


def test_a_warm_start_is_replayed_and_reads_less() -> None:
    cold = iosim.predict(problem(2048), "fa2", "h200")
    warm = iosim.predict(problem(2048), "fa2", "h200", l2_start="warm")
    assert warm.method == "replay"
    # Q, K and V, 3 x 8 x 2,048 x 256 bytes = 12.6 MB, fit in the L2: nothing but the launch itself is read
    assert cold.total("hbm", "read") >= 3 * 8 * 2048 * 256 > 100 * warm.total("hbm", "read")


def test_score_matrices_that_fill_memory_are_played_by_heads_that_stand_for_all() -> None:
    """16 heads of 100,000 x 100,000 scores in tiles of 128 x 128: 9.8 million objects of each of four matrices, for 0.8
    million tile accesses of a pass."""
    many = iosim.AttentionProblem(
        heads=16, seq_q=100_000, head_dim=64, mask="window", window=512, dtype="bf16"
    )
    big = planned(many, "eager-einsum", "a10")
    assert about_bytes(big.chain) > QUICK_BYTES
    assert tile_accesses(big.chain) < QUICK_ACCESSES
    assert _by_default(big)[0] == "sampled"
    small = planned(replace(many, seq_q=10_000, seq_k=10_000), "eager-einsum", "a10")
    assert _by_default(small)[0] == "replay"

"""Long launches played in windows, held against the same launches played whole."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from effort import some

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Chain
from iosim.prediction.call import Call
from iosim.prediction.predictor import QUICK_ACCESSES, default_method, tile_accesses
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import replay as replays
from iosim.readers.replay.lowering import LoweredLaunch
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Replay
from iosim.readers.replay.sampling import SamplingPlan, Windows, sampling_plan
from iosim.readers.replay.templates import Template


def call(
    kernel: str, gpu: str, mask: str, tokens: int, heads: int = 2
) -> tuple[AttentionProblem, Chain]:
    problem = AttentionProblem(heads=heads, seq_q=tokens, head_dim=128, dtype="bf16", mask=mask)
    return problem, plan(problem, resolve(kernel, problem, load_profile(gpu)))


def played(kernel: str, gpu: str, mask: str, tokens: int, heads: int = 2, *, part: bool) -> Replay:
    problem, chain = call(kernel, gpu, mask, tokens, heads)
    profile = load_profile(gpu)
    return Call.of(problem, resolve(kernel, problem, profile), profile, chain).replay(
        Play(part=part)
    )


def budget(monkeypatch: pytest.MonkeyPatch, accesses: int) -> None:
    monkeypatch.setattr(replays, "coarse_plan", lambda *_, **__: None)
    monkeypatch.setattr(
        replays, "sampling_plan", lambda low, slots: sampling_plan(low, slots, accesses)
    )


CASES = [
    # kernel, GPU, mask, tokens, heads, accesses to play, largest error of HBM reads
    ("fa2", "h200", "none", 262144, 2, 12_000_000, 0.04),
    ("fa2", "h200", "causal", 262144, 4, 12_000_000, 0.07),
    ("triton", "a100", "none", 262144, 2, 8_000_000, 0.02),
    ("triton", "a100", "causal", 262144, 4, 8_000_000, 0.03),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "gpu", "mask", "tokens", "heads", "accesses", "error"), some(CASES)
)
def test_a_part_tells_the_whole(
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    gpu: str,
    mask: str,
    tokens: int,
    heads: int,
    accesses: int,
    error: float,
) -> None:
    whole = played(kernel, gpu, mask, tokens, heads, part=False)
    budget(monkeypatch, accesses)
    part = played(kernel, gpu, mask, tokens, heads, part=True)
    windows = part.launches[0].windows
    assert windows is not None
    assert windows.played.sum() < 0.5 * windows.stands_for.sum()
    assert part.traffic.total("hbm", "read") == pytest.approx(
        whole.traffic.total("hbm", "read"), rel=error
    )
    assert part.seconds == pytest.approx(whole.seconds, rel=0.01)


@pytest.mark.slow
def test_every_step_is_stood_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of a step, played and skipped, are the visited pairs: 2 heads x 2,048 query blocks x 4,096 key blocks."""
    budget(monkeypatch, 1_000_000)
    windows = played("fa2", "h200", "none", 262144, part=True).launches[0].windows
    assert windows is not None
    assert windows.stands_for.sum() == pytest.approx(2 * 2048 * 4096, abs=windows.played.size)


def test_what_is_outside_the_loop_is_counted_for_skipped_tiles_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Q is read once, 2 x 131,072 x 256 bytes; O is written or stays dirty."""
    budget(monkeypatch, 1_000_000)
    part = played("fa2", "h200", "none", 131072, part=True)
    assert part.traffic.total("hbm", "read", tensor="Q") == 2 * 131072 * 256
    written = part.traffic.total("hbm", "write", tensor="O")
    assert 2 * 131072 * 256 - part.dirty_bytes <= written <= 1.01 * 2 * 131072 * 256


def test_short_launches_are_played_whole() -> None:
    problem, chain = call("fa2", "h200", "causal", 8192)
    profile = load_profile("h200")
    replay = Call.of(problem, resolve("fa2", problem, profile), profile, chain).replay(
        Play(part=True)
    )
    assert replay.launches[0].windows is None
    assert replay == played("fa2", "h200", "causal", 8192, part=False)


@pytest.mark.slow
def test_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    budget(monkeypatch, 1_000_000)
    first, two = (played("fa2", "h200", "causal", 131072, part=True) for _ in range(2))
    assert first.traffic == two.traffic


@pytest.mark.slow
def test_a_million_tokens_in_seconds() -> None:
    """8 heads x 2^20 tokens, causal: 1.07e9 tile accesses. Asked for: under 2 s on one free core."""
    _, chain = call("fa2", "h200", "causal", 1 << 20, 8)
    assert tile_accesses(chain) > 30 * QUICK_ACCESSES
    assert default_method(chain) == ("sampled", ())
    start = time.process_time()
    replay = played("fa2", "h200", "causal", 1 << 20, 8, part=True)
    assert time.process_time() - start < 4.0
    assert any("played in part" in note for note in replay.notes())


def test_rows_that_all_tiles_of_a_head_go_over_are_looked_at_once() -> None:
    """CUTLASS's backward sums O o dO of its whole head before each tile of keys: 2,048 tiles of each of 4 heads go over
    2,048 blocks of O, dO and D. Looked at for every skipped tile these were 50 million, and took most of a replay."""
    problem = AttentionProblem(
        heads=4, seq_q=1 << 18, head_dim=128, dtype="bf16", mask="causal", passes="bwd"
    )
    profile = load_profile("h100")
    kernel = resolve("cutlass", problem, profile)
    found = Call.of(problem, kernel, profile, plan(problem, kernel)).replay(Play(part=True))
    main = next(launch for launch in found.launches if launch.name == "bwd.main")
    assert main.windows is not None
    tiles, a_tile = 4 * 2048, 3 * 2048
    assert 0 < main.windows.passed_over < tiles * a_tile / 20


def test_a_gpu_short_of_bandwidth_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    budget(monkeypatch, 2_000_000)
    notes = played("fa2", "l4", "causal", 524288, part=True).notes()
    assert any("wait for memory" in note for note in notes)


def test_totals_and_error_of_windows() -> None:
    """Windows of 10 loads that read 10, 40, 10 bytes and stand for 20, 100, 20: 20 + 400 + 20 bytes.

    The middle one lies 4 - 1 = 3 bytes a load from its neighbours' line; 90 loads were skipped around it:
    sqrt(3^2 x 90^2 / 1.5) / 440.
    """
    ten = np.full(3, 10, dtype=np.int64)
    windows = Windows(
        ten,
        np.array([20, 100, 20]),
        np.array([[10], [40], [10]]),
        np.zeros((3, 1), dtype=np.int64),
        0.0,
    )
    assert windows.totals()[0].tolist() == [440]
    assert windows.standard_error() == pytest.approx(np.sqrt(9 * 8100 / 1.5) / 440)


def test_a_plan_keeps_to_its_budget() -> None:
    """1 million steps of 2 accesses on 100 CTAs, 100,000 accesses to play: 10,000 steps a CTA, 500 of them played."""
    steps = np.full(1000, 1000, dtype=np.int32)
    load = Template("K", 0, np.zeros(1000, dtype=np.int32), coef=1)
    zero = np.zeros(1000, dtype=np.int32)
    low = LoweredLaunch(
        "main", zero, steps, (), (load, load), (), zero.astype(np.uint8), zero, zero
    )
    plan_ = sampling_plan(low, 100, budget=100_000, settle=5, window=5)
    assert plan_ == SamplingPlan(5, 5, 10_000 // 50 - 10, 50)
    assert sampling_plan(low, 100, budget=10_000_000) is None
    assert sampling_plan(replace(low, loop=()), 100, budget=100_000) is None


def test_a_part_says_how_many_accesses_the_whole_launch_has() -> None:
    """Played in coarse steps, of which one stands for several accesses."""
    problem, chain = call("fa2", "a100", "none", 16384)
    profile = load_profile("a100")
    of_call = Call.of(problem, resolve("fa2", problem, profile), profile, chain)
    whole, part = of_call.replay(), of_call.replay(Play(part=True, accesses=100_000))
    assert part.launches[0].coarse is not None
    assert [x.accesses for x in part.launches] == [x.accesses for x in whole.launches]

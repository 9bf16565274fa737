"""Long launches played in coarse steps, held against the same launches played whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import Overrides, resolve
from iosim.hardware.profile import load_profile
from iosim.kernel.launch import Chain
from iosim.prediction.call import Call
from iosim.problem.attention import AttentionProblem
from iosim.readers.replay import replay as replays
from iosim.readers.replay import sampling as coarses
from iosim.readers.replay.l2 import model
from iosim.readers.replay.lowering import lower
from iosim.readers.replay.play import Play
from iosim.readers.replay.replay import Replay
from iosim.readers.replay.sampling import Coarse, coarse_plan


def problem_of(tokens: int, heads: int, mask: str, **more: object) -> AttentionProblem:
    return AttentionProblem(
        **{"heads": heads, "seq_q": tokens, "head_dim": 128, "dtype": "bf16", "mask": mask, **more}
    )  # type: ignore[arg-type]


def chain_of(kernel: str, gpu: str, problem: AttentionProblem, order: str | None = None) -> Chain:
    return plan(problem, resolve(kernel, problem, load_profile(gpu), Overrides(order=order)))


def planned(
    kernel: str, gpu: str, problem: AttentionProblem, budget: int, order: str | None = None
) -> Coarse | None:
    chain = chain_of(kernel, gpu, problem, order)
    return coarse_plan(chain, lower(chain, 1), model(load_profile(gpu)), budget)


def played(kernel: str, gpu: str, problem: AttentionProblem, *, part: bool) -> Replay:
    profile = load_profile(gpu)
    chosen = resolve(kernel, problem, profile)
    if gpu != "h200":  # writes of spills are found too high, docs/replay.md
        chosen = replace(chosen, spill=None)
    return Call.of(problem, chosen, profile).replay(Play(part=part))


CASES = [
    # kernel, GPU, problem, accesses to play, largest error of HBM reads
    ("fa2", "l4", problem_of(262144, 2, "causal"), 4_000_000, 0.03),
    ("fa2", "l4", problem_of(262144, 2, "none"), 8_000_000, 0.02),
    ("fa2", "l4", problem_of(262144, 2, "causal", kv_heads=1), 4_000_000, 0.03),
    ("fa2", "l4", problem_of(262144, 2, "window", window=65536), 4_000_000, 0.05),
    ("fa2", "l4", problem_of(131072, 2, "causal", passes="bwd"), 2_000_000, 0.03),
    ("cudnn", "h200", problem_of(262144, 4, "causal"), 4_000_000, 0.06),
    ("cudnn", "h200", problem_of(262144, 4, "none"), 6_000_000, 0.08),
    ("fa2", "a100", problem_of(262144, 2, "causal"), 4_000_000, 0.04),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "gpu", "problem", "budget", "error"), CASES)
def test_coarse_steps_tell_the_whole(
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    gpu: str,
    problem: AttentionProblem,
    budget: int,
    error: float,
) -> None:
    whole = played(kernel, gpu, problem, part=False)
    monkeypatch.setattr(replays, "coarse_plan", partial(coarse_plan, budget=budget))
    part = played(kernel, gpu, problem, part=True)
    grain = next(x.coarse for x in part.launches if x.coarse)
    assert grain.steps >= 4
    assert part.traffic.total("hbm", "read") == pytest.approx(
        whole.traffic.total("hbm", "read"), rel=error
    )
    assert part.traffic.total("hbm", "write") == pytest.approx(
        whole.traffic.total("hbm", "write"), rel=0.05
    )
    assert part.seconds == pytest.approx(whole.seconds, rel=0.03)
    assert [x.accesses for x in part.launches] == [x.accesses for x in whole.launches]
    assert any(f"coarse steps of {grain.steps}" in note for note in part.notes())


def test_small_steps_are_all_there() -> None:
    """Inner coarse steps are whole, so that lead + trail + steps x (count - 2) are the small steps of a work tile."""
    chain = chain_of("fa2", "l4", problem_of(16384, 1, "window", window=3000))
    low = lower(chain, 1).launches[0]
    grain = coarse_plan(chain, lower(chain, 1), model(load_profile("l4")), 4_000)
    assert grain is not None
    big = grain.lowered.launches[0]
    inner = np.maximum(big.count - 2, 0) * grain.how.steps
    assert (
        np.where(big.count > 1, grain.lead + grain.trail + inner, grain.lead) == low.count
    ).all()
    assert grain.lead.min() >= 1
    assert max(grain.lead.max(), grain.trail.max()) <= grain.how.steps
    assert grain.lead.min() < grain.how.steps  # some work tiles begin inside a coarse step


def test_a_descending_work_tile_begins_at_its_high_end() -> None:
    """64 x 64 tiles, causal: the tenth query block has 10 small steps, 2 of them in the coarse step it begins in."""
    problem = problem_of(16384, 1, "causal")
    grain = planned("fa2", "l4", problem, 10_000)
    assert grain is not None
    low = lower(chain_of("fa2", "l4", problem), 1).launches[0]
    assert grain.how.steps == 8
    assert low.down.all()
    assert low.count[7:10].tolist() == [8, 9, 10]
    assert grain.lead[7:10].tolist() == [8, 1, 2]
    assert grain.trail[9] == 8


def test_heads_that_begin_anew_stand_for_one_another() -> None:
    causal = planned("fa2", "l4", problem_of(65536, 8, "causal"), 500_000)
    assert causal is not None
    assert (causal.how.heads, causal.how.of) == (coarses.HEADS_PLAYED, 8)
    assert causal.lowered.launches[0].tiles == 2 * 1024
    for problem, order in (
        (problem_of(65536, 8, "none"), None),
        (problem_of(65536, 8, "causal"), "head"),
    ):
        all_heads = planned("fa2", "l4", problem, 500_000, order)
        assert all_heads is not None
        assert all_heads.how.heads == all_heads.how.of == 1
        assert (
            all_heads.lowered.launches[0].tiles
            == chain_of("fa2", "l4", problem, order).launches[0].work_tiles
        )


def test_q_is_read_once_for_every_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 x 131,072 x 256 bytes, of which two heads are played; what is not dirty at the end of O was written."""
    monkeypatch.setattr(replays, "coarse_plan", partial(coarse_plan, budget=1_000_000))
    part = played("fa2", "l4", problem_of(131072, 4, "causal"), part=True)
    grain = part.launches[0].coarse
    assert grain is not None
    assert (grain.heads, grain.of) == (2, 4)
    q_bytes = 4 * 131072 * 256
    assert part.traffic.total("hbm", "read", tensor="Q") == q_bytes
    assert (
        0.99 * q_bytes - part.dirty_bytes
        <= part.traffic.total("hbm", "write", tensor="O")
        <= 1.05 * q_bytes
    )


def test_what_is_not_played_in_coarse_steps() -> None:
    """Short launches; lists of blocks; packed sequences; two long launches in one chain."""
    assert planned("fa2", "l4", problem_of(8192, 1, "causal"), 10_000_000) is None
    assert planned("flex", "h200", problem_of(16384, 1, "strided", mask_stride=8), 1_000) is None
    assert (
        planned("fa2", "l4", problem_of(16384, 1, "causal", seq_lens=(8192, 8192)), 1_000) is None
    )
    assert planned("fa2", "l4", problem_of(16384, 1, "causal", passes="fwd+bwd"), 1_000) is None


def test_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "coarse_plan", partial(coarse_plan, budget=1_000_000))
    first, two = (
        played("fa2", "h200", problem_of(131072, 2, "causal"), part=True) for _ in range(2)
    )
    assert first.traffic == two.traffic


def test_waiting_with_few_coarse_steps_in_the_l2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "coarse_plan", partial(coarse_plan, budget=200_000))
    problem = problem_of(131072, 1, "causal", dtype="fp16")
    notes = played("cutlass", "t4", problem, part=True).notes()
    assert any("reads may be far off" in note for note in notes)
    assert any("wait for memory" in note and "coarse steps of one" in note for note in notes)
    assert not any("error about" in note for note in notes)


@pytest.mark.slow
def test_what_every_small_step_stores_again_stays_in_the_l2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Registers that fa2 spills on Hopper: stored to once a coarse step, they would be driven out in between."""
    problem = problem_of(131072, 4, "causal")
    whole = played("fa2", "h200", problem, part=False)
    monkeypatch.setattr(replays, "coarse_plan", partial(coarse_plan, budget=2_000_000))
    part = played("fa2", "h200", problem, part=True)
    grain = part.launches[0].coarse
    assert grain is not None
    assert grain.steps >= 8
    part_writes, two = (x.traffic.total("hbm", "write", tensor="spill") for x in (part, whole))
    assert two > 0
    assert part_writes == pytest.approx(two, rel=0.3)

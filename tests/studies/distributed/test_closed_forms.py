"""Counts of schedules beside their closed forms and the papers' volumes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    build,
    idle,
    link_bytes,
    schedules,
)
from iosim.studies.distributed import closed_forms as forms
from iosim.studies.distributed.schedule import (
    sequence_width_bytes,
)

pytestmark = pytest.mark.usefixtures("replays_once")


@settings(max_examples=examples(150), deadline=None)
@given(
    causal=st.booleans(),
    backward=st.booleans(),
    gpus=st.integers(1, 24),
    per_chunk=st.integers(1, 5),
    group=st.integers(1, 4),
    data=st.data(),
)
def test_counts_are_the_closed_forms(
    causal: bool, backward: bool, gpus: int, per_chunk: int, group: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(schedules(causal)))
    problem = AttentionProblem(
        batch=2,
        heads=2 * group,
        kv_heads=2,
        seq_q=2 * gpus * per_chunk,
        head_dim=24,
        head_dim_v=40,
        mask="causal" if causal else "none",
        output=data.draw(st.sampled_from((None, "fp32"))),
    )
    schedule = build(name, problem, gpus, backward=backward)
    counted = link_bytes(schedule, problem)
    assert counted.total == sum(counted.received) == sum(counted.sent)
    assert counted.total == forms.link_bytes(name, problem, gpus, backward=backward)
    idle_time = idle(schedule)
    assert idle_time.slots == forms.idle_fraction(name, gpus, causal)
    assert idle_time.of_unbalanced == forms.idle_of_unbalanced(name, gpus, causal)


@pytest.mark.parametrize(
    ("name", "gpus", "slots", "of_unbalanced"),
    [
        ("ring", 8, Fraction(28, 64), Fraction(28, 64)),  # 7 + 6 + ... + 1 idle of 8 x 8
        ("vanilla", 5, Fraction(10, 25), Fraction(10, 25)),  # 4 + 3 + 2 + 1 of 5 x 5
        ("balanced", 8, Fraction(4, 40), Fraction(4, 64)),  # 4 helpers in the last of 5 steps
        ("balanced", 7, Fraction(0), Fraction(0)),
        ("balanced", 2, Fraction(1, 4), Fraction(1, 4)),  # 1 of 2 x 2
        ("zigzag", 8, Fraction(0), Fraction(0)),
    ],
)
def test_idle_fractions(name: str, gpus: int, slots: Fraction, of_unbalanced: Fraction) -> None:
    idle_time = idle(build(name, AttentionProblem(seq_q=2 * gpus, mask="causal"), gpus))
    assert (idle_time.slots, idle_time.of_unbalanced) == (slots, of_unbalanced)


def test_zigzag_is_balanced_to_the_pair_and_the_ring_is_not() -> None:
    problem = AttentionProblem(seq_q=4 * 8, mask="causal")
    assert idle(build("zigzag", problem, 4)).work == 0
    # chunks of 8: 36 pairs on the diagonal, 64 off it; steps take 36, 64, 64, 64; all work is 4 x 36 + 6 x 64
    assert idle(build("ring", problem, 4)).work == 1 - Fraction(4 * 36 + 6 * 64, 4 * (36 + 3 * 64))


@pytest.mark.parametrize(
    ("name", "mask", "backward", "nd"),
    [
        ("ring", "none", False, 2),
        ("ring", "causal", False, 2),
        ("vanilla", "causal", False, 1),
        ("balanced", "causal", False, 1),
        ("vanilla", "causal", True, 2),
        ("balanced", "causal", True, 2),
    ],
)
def test_volumes_of_the_paper(name: str, mask: str, backward: bool, nd: int) -> None:
    """Elements of width d that a GPU receives, times (P - 1) / P, without row statistics."""
    gpus = 6
    problem = AttentionProblem(heads=4, seq_q=12 * gpus, head_dim=16, mask=mask)
    counted = link_bytes(build(name, problem, gpus, backward=backward), problem).tensors
    total = sum(n for t, n in counted.items() if t not in ("stats", "LSE"))
    assert total == nd * (gpus - 1) * sequence_width_bytes(problem)


def test_bytes_of_a_small_case() -> None:
    problem = AttentionProblem(heads=2, seq_q=12, head_dim=8, mask="causal")
    counted = link_bytes(build("balanced", problem, 3), problem)
    kv = 4 * 2 * 8 * 2  # chunk of 4 tokens, 2 heads, 8 columns, 2 bytes
    # GPUs 1 and 2 fetch from the one before; GPU 0 helps GPU 2: Q there, O and two fp32 a row back
    assert counted.tensors == {
        "K": 2 * kv,
        "V": 2 * kv,
        "Q": kv,
        "O_part": kv,
        "stats": 4 * 2 * 2 * 4,
    }
    assert counted.received == (kv, 2 * kv, 2 * kv + kv + 64)

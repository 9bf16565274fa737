"""Attention over several GPUs: a schedule run on arrays is attention; bytes and idle slots are the closed forms'."""

from __future__ import annotations

from dataclasses import replace

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedules import cases, errors

from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    SCHEDULES,
    ChunkSchedule,
    Send,
    build,
)
from iosim.studies.distributed.schedule import (
    Pair,
    contiguous,
    pair,
    striped,
)

pytestmark = pytest.mark.usefixtures("replays_once")


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), seed=st.integers(0, 3))
def test_a_schedule_computes_attention_and_moves_what_is_counted(
    case: tuple[AttentionProblem, ChunkSchedule], seed: int
) -> None:
    assert errors(*case, seed) == []


@settings(max_examples=examples(200), deadline=None)
@given(
    tokens=st.integers(1, 60), parts=st.integers(1, 12), causal=st.booleans(), stripes=st.booleans()
)
def test_a_pair_keeps_what_its_tokens_keep(
    tokens: int, parts: int, causal: bool, stripes: bool
) -> None:
    parts = min(parts, tokens)
    chunks = striped(tokens, parts) if stripes else contiguous(tokens, parts)
    assert sorted(t for c in chunks for t in c) == list(range(tokens))
    for queries in chunks:
        for keys in chunks:
            kept_pair = pair(queries, keys, causal)
            total = sum(k <= q or not causal for q in queries for k in keys)
            assert kept_pair.kept == total
            local = kept_pair.problem(
                AttentionProblem(seq_q=tokens, mask="causal" if causal else "none"), "fwd"
            )
            assert local.interval_mask.kept_pairs(len(queries), len(keys)) == total


def test_a_full_pair_has_no_mask() -> None:
    whole = AttentionProblem(seq_q=64, mask="causal")
    assert Pair(8, 8, 16).problem(whole, "fwd").mask == "none"
    assert Pair(8, 8, 0).problem(whole, "bwd").mask == "causal"


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_a_message_or_a_computation_forgotten(name: str, backward: bool) -> None:
    problem = AttentionProblem(heads=2, seq_q=24, head_dim=4, mask="causal")
    right = build(name, problem, 4, backward=backward)
    assert errors(problem, right) == []
    for n, step in enumerate(right.steps):
        for field in ("computes", "sends"):
            items = getattr(step, field)
            for m in range(len(items)):
                short = replace(step, **{field: items[:m] + items[m + 1 :]})
                wrong = replace(right, steps=(*right.steps[:n], short, *right.steps[n + 1 :]))
                if field == "sends" and _unneeded(right, n, items[m]):
                    continue
                assert errors(problem, wrong), (n, items[m])


def _unneeded(schedule: ChunkSchedule, step: int, send: Send) -> bool:
    """Whether a ring brings keys that nobody will compute with, or takes along what their owner could have kept."""
    if send.tensors == ("dK", "dV"):
        return send.chunks[0] in schedule.owned[send.source]
    if send.tensors != ("K", "V"):
        return False
    later = [c for s in schedule.steps[step + 1 :] for c in s.computes]
    return not any(c.keys in send.chunks for c in later)


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_a_message_to_the_wrong_gpu(name: str) -> None:
    problem = AttentionProblem(heads=1, seq_q=24, head_dim=4, mask="causal")
    right = build(name, problem, 3)
    step = right.steps[0]
    send = step.sends[0]
    wrong = replace(send, target=send.source)
    changed = replace(
        right, steps=(replace(step, sends=(wrong, *step.sends[1:])), *right.steps[1:])
    )
    assert errors(problem, changed)


def test_a_pair_computed_twice() -> None:
    problem = AttentionProblem(heads=1, seq_q=12, head_dim=4, mask="causal")
    right = build("balanced", problem, 3)
    step = right.steps[1]
    twice = replace(
        right,
        steps=(
            right.steps[0],
            replace(step, computes=(*step.computes, step.computes[0])),
            *right.steps[2:],
        ),
    )
    assert errors(problem, twice)


@settings(max_examples=examples(100), deadline=None)
@given(case=cases())
def test_calls_hold_the_pairs_of_their_step(case: tuple[AttentionProblem, ChunkSchedule]) -> None:
    _, schedule = case
    for step, of_step in zip(schedule.steps, schedule.calls, strict=True):
        for gpu in range(schedule.gpus):
            calls = of_step.get(gpu, [])
            mine = [c for c in step.computes if c.gpu == gpu]
            assert sum(call_pair.kept for _, _, call_pair in calls) == sum(
                schedule.pair(c).kept for c in mine
            )
            assert {q for queries, _, _ in calls for q in queries} == {c.queries for c in mine}
            assert {k for _, keys, _ in calls for k in keys} == {c.keys for c in mine}


def test_a_zigzag_makes_one_call_a_step() -> None:
    """Its own two chunks under the mask; then both chunks against an earlier GPU's first, or its last against both of a
    later one's (zhuzilin/ring-flash-attention)."""
    schedule = build("zigzag", AttentionProblem(seq_q=8 * 100, mask="causal"), 4)
    of_second = [[chunk_pair for _, _, chunk_pair in of_step[1]] for of_step in schedule.calls]
    assert of_second == [
        [Pair(200, 200, 0)],
        [Pair(200, 100, None)],
        [Pair(100, 200, None)],
        [Pair(100, 200, None)],
    ]

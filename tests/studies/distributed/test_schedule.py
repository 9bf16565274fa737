"""Attention over several GPUs: a schedule run on arrays is attention; bytes and idle slots are the closed forms'."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import chunk_ranks as reader
import numpy as np
import pytest
from effort import examples
from executor import ExecutionError, random_arrays, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused
from scripts import ROOT, load_script

import iosim
from iosim.base.errors import InputError
from iosim.commands.cli import main
from iosim.hardware.profile import load_profile
from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    SCHEDULES,
    ChunkSchedule,
    ChunkTimes,
    Send,
    build,
    cluster,
    idle,
    link_bytes,
    load_link,
    longest_sequence,
    memory,
    schedules,
    simulate,
    study,
)
from iosim.studies.distributed import closed_forms as forms
from iosim.studies.distributed.collectives import (
    MEGATRON_COLLECTIVES,
    all_to_all,
    calls_of,
    split_heads,
)
from iosim.studies.distributed.count import merges, passing_bytes, received_bytes
from iosim.studies.distributed.links import Cluster, Link
from iosim.studies.distributed.schedule import (
    Pair,
    contiguous,
    pair,
    sequence_width_bytes,
    striped,
    token_bytes,
)
from iosim.studies.distributed.timing import SUM_PASSES

pytestmark = pytest.mark.usefixtures("replays_once")

H100 = load_profile("h100")
NO_LATENCY = Cluster(Link("test", 1e9, 0.0, ""))


@st.composite
def cases(draw: st.DrawFn) -> tuple[AttentionProblem, ChunkSchedule]:
    """Any schedule, ragged chunks, grouped heads, two widths, forward or backward."""
    causal = draw(st.booleans())
    name = draw(st.sampled_from(schedules(causal)))
    gpus = draw(st.integers(1, 9))
    kv_heads = draw(st.integers(1, 2))
    least = gpus * SCHEDULES[name].chunks_per_gpu
    problem = AttentionProblem(
        batch=draw(st.integers(1, 2)), heads=kv_heads * draw(st.integers(1, 3)), kv_heads=kv_heads,
        seq_q=draw(st.integers(least, least + 40)), head_dim=draw(st.sampled_from((1, 4, 8))),
        head_dim_v=draw(st.sampled_from((None, 3))), mask="causal" if causal else "none",
        dtype=draw(st.sampled_from(("fp16", "fp32", "fp8"))),
    )  # fmt: skip
    return problem, build(name, problem, gpus, backward=draw(st.booleans()))


def errors(problem: AttentionProblem, schedule: ChunkSchedule, seed: int = 0) -> list[str]:
    """What the executing reader, the counter and dense attention do not agree on."""
    whole = problem.with_(passes="fwd+bwd")
    arrays = random_arrays(whole, seed)
    right = reference(whole, arrays)
    try:
        done = reader.execute(schedule, problem, arrays)
    except ExecutionError as error:
        return [str(error)]
    found = [
        n for n, a in done.outputs.items() if not np.allclose(a, right[n], rtol=1e-9, atol=1e-9)
    ]
    counted = link_bytes(schedule, problem)
    if counted.received != done.received or counted.tensors != done.tensors:
        found.append("bytes")
    return found


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), seed=st.integers(0, 3))
def test_a_schedule_computes_attention_and_moves_what_is_counted(
    case: tuple[AttentionProblem, ChunkSchedule], seed: int
) -> None:
    assert errors(*case, seed) == []


@settings(max_examples=examples(150), deadline=None)
@given(
    causal=st.booleans(), backward=st.booleans(), gpus=st.integers(1, 24), per_chunk=st.integers(1, 5),
    group=st.integers(1, 4), data=st.data(),
)  # fmt: skip
def test_counts_are_the_closed_forms(
    causal: bool, backward: bool, gpus: int, per_chunk: int, group: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(schedules(causal)))
    problem = AttentionProblem(
        batch=2, heads=2 * group, kv_heads=2, seq_q=2 * gpus * per_chunk, head_dim=24, head_dim_v=40,
        mask="causal" if causal else "none", output=data.draw(st.sampled_from((None, "fp32"))),
    )  # fmt: skip
    schedule = build(name, problem, gpus, backward=backward)
    counted = link_bytes(schedule, problem)
    assert counted.total == sum(counted.received) == sum(counted.sent)
    assert counted.total == forms.link_bytes(name, problem, gpus, backward=backward)
    found = idle(schedule)
    assert found.slots == forms.idle_fraction(name, gpus, causal)
    assert found.of_unbalanced == forms.idle_of_unbalanced(name, gpus, causal)


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
    found = idle(build(name, AttentionProblem(seq_q=2 * gpus, mask="causal"), gpus))
    assert (found.slots, found.of_unbalanced) == (slots, of_unbalanced)


def test_zigzag_is_balanced_to_the_pair_and_the_ring_is_not() -> None:
    problem = AttentionProblem(seq_q=4 * 8, mask="causal")
    assert idle(build("zigzag", problem, 4)).work == 0
    # chunks of 8: 36 pairs on the diagonal, 64 off it; steps take 36, 64, 64, 64; all work is 4 x 36 + 6 x 64
    assert idle(build("ring", problem, 4)).work == 1 - Fraction(4 * 36 + 6 * 64, 4 * (36 + 3 * 64))


@pytest.mark.parametrize(
    ("name", "mask", "backward", "nd"),
    [
        ("ring", "none", False, 2), ("ring", "causal", False, 2), ("vanilla", "causal", False, 1),
        ("balanced", "causal", False, 1), ("vanilla", "causal", True, 2), ("balanced", "causal", True, 2),
    ],
)  # fmt: skip
def test_volumes_of_the_paper(name: str, mask: str, backward: bool, nd: int) -> None:
    """Elements of width d that a GPU receives, times (P - 1) / P, without row statistics."""
    gpus = 6
    problem = AttentionProblem(heads=4, seq_q=12 * gpus, head_dim=16, mask=mask)
    counted = link_bytes(build(name, problem, gpus, backward=backward), problem).tensors
    moved = sum(n for t, n in counted.items() if t not in ("stats", "LSE"))
    assert moved == nd * (gpus - 1) * sequence_width_bytes(problem)


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


# What a chunk is.


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
            found = pair(queries, keys, causal)
            kept = sum(k <= q or not causal for q in queries for k in keys)
            assert found.kept == kept
            local = found.problem(
                AttentionProblem(seq_q=tokens, mask="causal" if causal else "none"), "fwd"
            )
            assert local.interval_mask.kept_pairs(len(queries), len(keys)) == kept


def test_a_full_pair_has_no_mask() -> None:
    whole = AttentionProblem(seq_q=64, mask="causal")
    assert Pair(8, 8, 16).problem(whole, "fwd").mask == "none"
    assert Pair(8, 8, 0).problem(whole, "bwd").mask == "causal"


# Mistakes planted in the schedule: the executing reader must catch each one.


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
    twice = replace(right, steps=(right.steps[0], replace(step, computes=(*step.computes, step.computes[0])),
                                  *right.steps[2:]))  # fmt: skip
    assert errors(problem, twice)


# Time.


def test_compute_hides_communication_or_waits_for_it() -> None:
    problem = AttentionProblem(heads=1, seq_q=4 * 1000, head_dim=125)
    schedule = build("ring", problem, 4)
    message = (
        2 * 1000 * 125 * 2 / 1e9
    )  # K and V of 1,000 tokens, 125 columns, 2 bytes, at 1 GB/s: 0.5 ms
    slow, fast = (
        simulate(schedule, problem, NO_LATENCY, lambda p, w, s=s: s) for s in (2e-3, 0.1e-3)
    )
    assert slow.total_s == pytest.approx(
        4 * 2e-3
    )  # four computations, messages under three of them
    assert slow.idle_fraction == pytest.approx(0)
    assert fast.total_s == pytest.approx(
        3 * message + 0.1e-3
    )  # three messages, one computation after the last
    apart = simulate(schedule, problem, NO_LATENCY, lambda p, w: 2e-3, overlap=False)
    assert apart.total_s == pytest.approx(4 * 2e-3 + 3 * message)
    late = simulate(schedule, problem, Cluster(Link("test", 1e9, 1e-3, "")), lambda p, w: 0.1e-3)
    assert late.total_s == pytest.approx(3 * (message + 1e-3) + 0.1e-3)


def test_a_shared_network_port_takes_one_message_at_a_time() -> None:
    problem = AttentionProblem(heads=1, seq_q=8 * 1000, head_dim=125, mask="causal")
    schedule = build("vanilla", problem, 8)
    link = Link("test", 1e9, 0.0, "")
    own = Cluster(link, link, 4)
    shared = replace(own, shared_network=True)
    one, several = (simulate(schedule, problem, c, lambda p, w: 0.0).total_s for c in (own, shared))
    message = 0.5e-3
    assert one == pytest.approx(7 * message)
    # at distance t, min(t, 8 - t, 4) messages cross from the first node: 1, 2, 3, 4, 3, 2, 1, all through one port
    assert several == pytest.approx(sum((1, 2, 3, 4, 3, 2, 1)) * message)


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_events_do_not_overlap_on_a_gpu_or_a_port(name: str) -> None:
    problem = AttentionProblem(heads=8, seq_q=8 * 512, head_dim=64, mask="causal")
    line = simulate(
        build(name, problem, 8, backward=True),
        problem,
        cluster(H100),
        ChunkTimes(problem, "fa2", H100),
    )
    for who in range(8):
        for kind, key in (("compute", "gpu"), ("send", "gpu"), ("send", "target")):
            found = sorted(
                (e.start_s, e.end_s)
                for e in line.events
                if e.kind == kind and getattr(e, key) == who
            )
            assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(found))
    assert line.total_s == max(e.end_s for e in line.events)
    assert (
        sum(e.bytes for e in line.events)
        == link_bytes(build(name, problem, 8, backward=True), problem).total
    )


def test_memory_traffic_of_a_gpu_is_that_of_its_pairs() -> None:
    problem = AttentionProblem(heads=8, seq_q=4 * 1024, head_dim=64, mask="causal")
    (ring,) = study(problem, 4, H100, cluster(H100), kernel="flash", names=["ring"])
    chunk = AttentionProblem(heads=8, seq_q=1024, head_dim=64)
    full, diagonal = (predict(p, "flash", H100) for p in (chunk, chunk.with_(mask="causal")))
    # the last GPU: its own chunk and three others, whose results are added to an O in fp32 (1,024 x 512 elements, 8,192
    # row sums of 8 bytes): 4 parts are read in 2 bytes, O and sums read three times and written four, and O once more
    # read in 4 bytes and written in 2
    o, sums = 1024 * 512, 1024 * 8 * 8
    added = 4 * (2 * o + sums) + 3 * (4 * o + sums) + 4 * (4 * o + sums) + 6 * o
    assert ring.l2_bytes == 3 * full.total("l2") + diagonal.total("l2") + added
    assert ring.hbm_bytes == 3 * full.total("hbm") + diagonal.total("hbm") + added


@settings(max_examples=examples(100), deadline=None)
@given(case=cases())
def test_calls_hold_the_pairs_of_their_step(case: tuple[AttentionProblem, ChunkSchedule]) -> None:
    _, schedule = case
    for step, of_step in zip(schedule.steps, schedule.calls, strict=True):
        for gpu in range(schedule.gpus):
            calls = of_step.get(gpu, [])
            mine = [c for c in step.computes if c.gpu == gpu]
            assert sum(one.kept for _, _, one in calls) == sum(schedule.pair(c).kept for c in mine)
            assert {q for queries, _, _ in calls for q in queries} == {c.queries for c in mine}
            assert {k for _, keys, _ in calls for k in keys} == {c.keys for c in mine}


def test_a_zigzag_makes_one_call_a_step() -> None:
    """Its own two chunks under the mask; then both chunks against an earlier GPU's first, or its last against both of a
    later one's (zhuzilin/ring-flash-attention)."""
    schedule = build("zigzag", AttentionProblem(seq_q=8 * 100, mask="causal"), 4)
    of_second = [[one for _, _, one in of_step[1]] for of_step in schedule.calls]
    assert of_second == [
        [Pair(200, 200, 0)],
        [Pair(200, 100, None)],
        [Pair(100, 200, None)],
        [Pair(100, 200, None)],
    ]


def test_what_is_added_up() -> None:
    """One head of 10 columns in 2 bytes, 4 tokens a chunk, 2 GPUs, no mask: two calls a GPU."""
    problem = AttentionProblem(heads=1, seq_q=8, head_dim=10)
    (first, second) = merges(build("ring", problem, 2), problem)
    assert (
        first == [(4 * (20 + 8), 4 * (40 + 8))] * 2
    )  # the part and two sums a row in; the same in fp32 out
    # the part, O and their sums in, and O once more to be written in 2 bytes; O in fp32 with sums, then in 2 bytes
    assert second == [(4 * (20 + 8 + 40 + 8 + 40), 4 * (40 + 8 + 20))] * 2
    backward = merges(build("ring", problem, 2, backward=True), problem)
    assert backward[0] == [(4 * 20, 4 * 40)] * 2  # dQ has no sums
    # dQ again; dK and dV (4 x 40 bytes) arrive, and are added to what is there
    assert backward[1] == [(4 * (20 + 40 + 40) + 2 * 160, 4 * (40 + 20) + 160)] * 2
    alone = build("ring", problem, 1)
    assert merges(alone, problem) == [[(0, 0)]]


def test_the_processor_launches_messages_before_calls() -> None:
    problem = AttentionProblem(heads=1, seq_q=4 * 1000, head_dim=125)
    schedule, slow = build("ring", problem, 4), Cluster(Link("test", 1e15, 0.0, "", host_s=1e-3))
    # hidden but for the first; three in a row, and the calls of the last two steps
    for call, total in ((3e-3, 1e-3 + 4 * 3e-3), (0.1e-3, 3e-3 + 2 * 0.1e-3)):
        made = simulate(schedule, problem, slow, lambda p, w, s=call: s, from_graph=False)
        assert made.total_s == pytest.approx(total, rel=1e-3)
    assert simulate(schedule, problem, slow, lambda p, w: 1e-3).total_s == pytest.approx(4e-3)


@pytest.mark.slow
def test_launching_that_takes_longest_is_said() -> None:
    """7 exchanges of 0.15 ms, beside 8 calls of some 10 us."""
    asked = {"num_gpus": 8, "gpu": "h200", "seq_len": "4k", "heads": 2, "schedule": ["ring"]}
    assert "The processor takes 1.05 ms to launch ring's messages" in iosim.ring(**asked).to_text()
    assert "processor takes" not in iosim.ring(**asked, launched="graph").to_text()
    assert "processor takes" not in iosim.ring(**asked | {"seq_len": "128k", "heads": 16}).to_text()


def test_an_all_to_all_over_nodes() -> None:
    """800 bytes on each of 8 GPUs: 100 for every other one, 300 from the own node and 400 from the other."""
    inside, between = Link("in", 100.0, 1.0, ""), Link("out", 40.0, 2.0, "")
    assert all_to_all(6400, 8, Cluster(inside)) == (700, 1 + 7.0)
    assert all_to_all(6400, 8, Cluster(inside, between, 4)) == (700, 2 + 10.0)
    assert all_to_all(6400, 8, Cluster(inside, between, 4, shared_network=True)) == (700, 2 + 40.0)
    assert all_to_all(6400, 1, Cluster(inside)) == (0, 0.0)


@pytest.mark.parametrize("gpus", [1, 2, 5])
def test_chunks_from_both_ends_share_the_work_of_a_mask(gpus: int) -> None:
    problem = AttentionProblem(heads=4, seq_q=40 * gpus, head_dim=16, mask="causal")
    kept = [sum(p.interval_mask.kept_pairs(p.seq_q, p.seq_k) for p in calls)
            for calls in calls_of("all-gather", problem, gpus, False)]  # fmt: skip
    whole = problem.interval_mask.kept_pairs(problem.seq_q, problem.seq_k)
    assert kept == [whole // gpus] * (1 if gpus == 1 else 2)


def test_ulysses_receives_what_its_heads_need() -> None:
    """Four tensors forward and backward, each GPU 7/8 of an eighth of each; with one key head for two GPUs K and V are
    repeated, and backward dK and dV."""
    for kv_heads, heads in ((32, 4 + 4), (4, 2 * (2 + 2 * 8 / 32))):
        problem = AttentionProblem(
            heads=32, kv_heads=kv_heads, seq_q=8 * 512, head_dim=64, passes="fwd+bwd"
        )
        (found,) = study(problem, 8, H100, cluster(H100), kernel="fa2", names=["ulysses"])
        assert float(found.received_bytes) == pytest.approx(
            heads * 7 / 64 * sequence_width_bytes(problem)
        )


def test_the_hybrid_is_ulysses_in_a_ring() -> None:
    problem = AttentionProblem(heads=32, kv_heads=4, seq_q=16 * 1024, head_dim=64, mask="causal")
    links = cluster(H100, "nvlink", "ib-100g", 8)
    (found,) = study(problem, 16, H100, links, kernel="fa2", names=["usp"])
    assert found.title == "Ulysses of 4 inside a ring of 4"  # 4 divides the key heads and a node
    # a ring of 4 of 8 of 32 heads and 1 of 4 key heads, K and V thrice a quarter of the tokens; and 3/16 of a quarter
    width = problem.seq_q * 64 * 2
    assert float(found.received_bytes) == pytest.approx(
        width * (3 / 4 * 2 * 1 + 3 / 16 / 4 * (2 * 32 + 2 * 4))
    )
    with pytest.raises(InputError, match="Ulysses alone, with 4 GPUs"):
        study(problem, 4, H100, cluster(H100), names=["usp"])
    with pytest.raises(InputError, match="a ring alone, with 5 GPUs"):
        study(problem, 5, H100, cluster(H100), names=["usp"])


@pytest.mark.slow
def test_two_h200s_take_as_long_as_measured() -> None:
    """No attention of this table was fitted on; the short zigzag's exchange shows, which the processor launches."""
    script = load_script(ROOT / "benchmarks" / "links.py")
    errors = {row.what: row.error for row in script.attention()}
    assert len(errors) == 7
    assert max(map(abs, errors.values())) < 0.07
    assert sum(map(abs, errors.values())) / 7 < 0.03
    latency, shares = script.fit()
    link = load_link("nvlink", load_profile("h200"))
    assert link.latency_s == pytest.approx(latency, abs=1e-6)
    assert {what: round(share, 2) for what, share in shares.items()} == link.achieved


def test_pairs_of_a_kind_are_predicted_once() -> None:
    problem = AttentionProblem(heads=8, seq_q=64 * 256, head_dim=64, mask="causal")
    times = ChunkTimes(problem, "fa2", H100)
    simulate(build("striped", problem, 64), problem, cluster(H100), times)
    assert len(times.known) == 2  # on and below the diagonal, and strictly below it


@pytest.mark.slow
def test_balancing_beats_the_ring_by_the_work_of_its_steps() -> None:
    """Where computation hides all of every message: 7.5 chunks against 4.5 on eight GPUs, and partial results to add
    up."""
    problem = AttentionProblem(heads=8, seq_q=256 * 1024, head_dim=128, mask="causal")
    hidden = Cluster(replace(cluster(H100).link, unhidden=0.0))
    ring, balanced = study(problem, 8, H100, hidden, names=("ring", "balanced"))
    assert ring.seconds / balanced.seconds == pytest.approx(7.5 / 4.5, rel=0.02)


# Memory.


@settings(max_examples=examples(60), deadline=None)
@given(case=cases())
def test_memory_counts_the_inputs_that_an_execution_holds(
    case: tuple[AttentionProblem, ChunkSchedule],
) -> None:
    problem, schedule = case
    done = reader.execute(schedule, problem)
    widths = token_bytes(problem)
    got = [received_bytes(schedule, s, widths, inputs=True) for s in schedule.steps]
    pairs = zip([[0] * schedule.gpus, *got], [*got, [0] * schedule.gpus], strict=True)
    most = [
        max(a[g] + b[g] for a, b in pairs_)
        for g, pairs_ in enumerate([list(pairs)] * schedule.gpus)
    ]
    assert tuple(most) == done.peak_received
    assert all(p >= m for p, m in zip(passing_bytes(schedule, widths), most, strict=True))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_the_longest_sequence_fits_and_one_chunk_more_does_not(name: str, backward: bool) -> None:
    problem = AttentionProblem(heads=4, kv_heads=2, seq_q=64, head_dim=32, mask="causal")
    budget = 1_000_000
    most = longest_sequence(name, problem, 4, budget, backward=backward, layers=3)
    for tokens, fits in ((most, True), (most + 4 * SCHEDULES[name].chunks_per_gpu, False)):
        one = problem.with_(seq_q=tokens, seq_k=tokens)
        assert (memory(build(name, one, 4, backward=backward), one, 3).total <= budget) is fits


# Baselines and the study.


def test_megatron_moves_fourteen_widths_with_recomputation() -> None:
    problem = AttentionProblem(
        heads=32, seq_q=8 * 1024, head_dim=128, mask="causal", passes="fwd+bwd"
    )
    (found,) = study(problem, 8, H100, cluster(H100), names=["megatron"])
    assert found.received_bytes == Fraction(10 * 7, 8) * sequence_width_bytes(problem)
    assert sum(MEGATRON_COLLECTIVES.values()) == 14


@pytest.mark.parametrize(
    ("heads", "kv_heads", "gpus", "expected"),
    [
        (32, 32, 8, (4, 4)),
        (33, 33, 16, (3, 3)),
        (32, 8, 16, (2, 1)),
        (32, 8, 8, (4, 1)),
        (33, 11, 2, (17, 17)),
    ],
)
def test_heads_are_split_and_padded(
    heads: int, kv_heads: int, gpus: int, expected: tuple[int, int]
) -> None:
    share = split_heads(AttentionProblem(heads=heads, kv_heads=kv_heads, seq_q=8), gpus)
    assert (share.heads, share.kv_heads) == expected


def test_one_gpu_sends_nothing() -> None:
    problem = AttentionProblem(heads=8, seq_q=4096, head_dim=64, mask="causal", passes="fwd+bwd")
    for found in study(problem, 1, H100, cluster(H100)):
        assert found.received_bytes == 0
        if found.name != "rsa":  # no use of the mask
            assert found.speedup == pytest.approx(1)


def test_links_have_the_profile_s_rate_in_one_direction() -> None:
    assert load_link("nvlink", H100).bandwidth_bytes_per_s == 450e9  # 900 GB/s in both
    assert load_link("pcie", H100).bandwidth_bytes_per_s == 64e9
    assert load_link("ib", H100) == load_link("ib-400g", H100)
    assert load_link(25, H100).seconds(25 * 10**9) == pytest.approx(1, rel=1e-4)


def test_a_ring_over_nodes_uses_all_ports_of_a_node() -> None:
    own, shared = (cluster(H100, "nvlink", "ib-100g", 8, shared_network=s) for s in (False, True))
    assert own.ring(8).bandwidth_bytes_per_s == 450e9
    assert own.ring(16).bandwidth_bytes_per_s == 100e9  # 8 x 12.5
    assert shared.ring(16).bandwidth_bytes_per_s == 12.5e9
    assert (
        cluster(H100, 100, 20, 8).ring(16).bandwidth_bytes_per_s == 100e9
    )  # the link's, below the ports' 160


# The command.


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["ring", *arguments]) == 0
    return capsys.readouterr().out


def test_json_holds_results_links_and_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(
        run(
            capsys,
            "--gpu",
            "h100",
            "--num-gpus",
            "4",
            "--seq-len",
            "4k",
            "--causal",
            "--format",
            "json",
            "--steps",
        )
    )
    assert data["link"]["bandwidth_bytes_per_s"] == 450e9
    by_name = {r["name"]: r for r in data["results"]}
    assert set(by_name) == {*SCHEDULES, "ulysses", "all-gather", "megatron", "rsa"}
    assert by_name["balanced"]["idle"] == {
        "slots": "1/6",
        "of_unbalanced": "1/8",
        "work": by_name["balanced"]["idle"]["work"],
    }
    (steps,) = by_name["ring"]["schedules"]
    assert len(steps["steps"]) == 4
    assert steps["steps"][0]["sends"][0] == {
        "source": 0,
        "target": 1,
        "tensors": ["K", "V"],
        "chunks": [0],
    }


def test_schedules_are_written_out_where_they_are_asked_for() -> None:
    rings = iosim.ring(AttentionProblem(heads=8, seq_q=1024), num_gpus=2, gpu="h100")
    for data, written in ((rings.to_dict(), False), (replace(rings, steps=True).to_dict(), True)):
        assert data["results"]
        assert all((r["schedules"] is not None) is written for r in data["results"])


def test_table_csv_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert "balanced" in run(capsys, "--num-gpus", "4", "--causal")
    assert (
        run(capsys, "--num-gpus", "4", "--format", "csv")
        .splitlines()[0]
        .startswith("name,steps,received_bytes_per_gpu")
    )
    text = run(capsys, "--num-gpus", "3", "--causal", "--schedule", "balanced", "--steps")
    assert "GPU 0: q2k0" in text
    assert "O_part+stats of 2 to GPU 2" in text


def test_the_page_is_written_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "ring.html"
    run(capsys, "--num-gpus", "4", "--causal", "--seq-len", "8k", "--html", str(place))
    text = place.read_text(encoding="utf-8")
    assert 'id="time-0"' in text
    assert 'id="idle-1"' in text
    assert 'id="links-1"' in text
    assert "http" not in text.split("<script>")[0].replace("http-equiv", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--num-gpus", "0"), "--num-gpus 0"), (("--num-gpus", "5000"), "--num-gpus 5000"),
        (("--gpu", "a100,h100"), "--gpu a100,h100"),
        (("--link", "string"), "--link 'string'"),
        (("--link", "-3"), "--link"), (("--link", "0"), "--link '0'"), (("--gpu", "t4"), "--link nvlink"),
        (("--schedule", "zigzag"), "--schedule zigzag"), (("--schedule", "circle"), "--schedule 'circle'"),
        (("--network", "ib"), "--network"), (("--gpus-per-node", "4"), "--gpus-per-node"),
        (("--network", "ib", "--gpus-per-node", "0"), "--gpus-per-node 0"), (("--shared-network",), "--shared-network"),
        (("--seq-len", "4"), "--seq-len 4"), (("--seq-len", "1k,2k"), "--seq-len 1k,2k"),
        (("--seq-len-k", "8192"), "--seq-len-k 8192"), (("--window", "9"), "mask 'window'"),
        (("--causal", "--offset", "5"), "--offset 5"), (("--dropout", "0.1"), "--dropout 0.1"),
        (("--layers", "0"), "--layers 0"), (("--kernel", "uniform"), "--kernel uniform"), (("--html", ""), "--html ''"),
        (("--gpu", "h100", "--schedule", "rsa", "--kernel", "fa3", "--dtype", "fp8"), "--dtype fp8"),
        (("--kernel", "fa9"), "--kernel 'fa9'"),
    ],
)  # fmt: skip
def test_bad_input_ends_in_one_line(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["ring", *arguments], named)


def test_what_is_not_distributed_is_refused() -> None:
    with pytest.raises(InputError, match=r"^bias=full is not distributed"):
        build("ring", AttentionProblem(seq_q=64, bias="full"), 4)
    with pytest.raises(InputError, match="too long to execute"):
        reader.execute(
            build("ring", AttentionProblem(heads=32, seq_q=8192), 4),
            AttentionProblem(heads=32, seq_q=8192),
        )


def test_more_gpus_than_were_timed_say_how_much_longer_it_may_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call = ["ring", "--gpu", "h200", "--heads", "4", "--seq-len", "4096", "--num-gpus"]
    assert main([*call, "8"]) == 0
    assert "Timed on 2 GPUs; eight may take 1.6x" in capsys.readouterr().out
    assert main([*call, "2", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["timed_gpus"], found["longer_than_predicted"]) == (2, [1.0, 1.0])


@pytest.mark.parametrize(("overlap", "expected_s"), [(True, 1.15), (False, 2.0)])
def test_a_message_slows_the_computing_beside_it(overlap: bool, expected_s: float) -> None:
    """Two GPUs, a message of 1 s beside a call of 1 s, then a call of 0 s: 1 + 0.15 x 1, or one after the other."""
    problem = AttentionProblem(heads=1, seq_q=64, head_dim=16)
    schedule = build("ring", problem, 2)
    (first, *_) = schedule.steps
    n_bytes = schedule.sent_bytes(first.sends[0], token_bytes(problem))
    link = Link("test", float(n_bytes), 0.0, "", unhidden=0.15)
    lengths = iter([1.0, 1.0, 0.0, 0.0])
    line = simulate(schedule, problem, Cluster(link), lambda p, w: next(lengths), overlap=overlap)
    assert line.total_s == pytest.approx(expected_s)


def test_partial_results_are_added_in_several_passes() -> None:
    """Without a launch's latency the time is so many times that of the bytes; a copy's is theirs alone."""
    problem = AttentionProblem(heads=1, seq_q=64, head_dim=16)
    times = ChunkTimes(problem, "fa2", replace(load_profile("h200"), launch_latency_s=0.0))
    copied = times.copied(3e6, 2e6)
    assert times.merged(3e6, 2e6, False) == pytest.approx(SUM_PASSES[False] * copied)
    assert times.merged(3e6, 2e6, True) == pytest.approx(SUM_PASSES[True] * copied)
    assert SUM_PASSES[False] > SUM_PASSES[True] > 1

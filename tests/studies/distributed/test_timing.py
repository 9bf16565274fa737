"""The times of a schedule: what hides what, launches, and two GPUs as measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from schedules import H100
from scripts import ROOT, load_script

import iosim
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    SCHEDULES,
    ChunkTimes,
    build,
    cluster,
    link_bytes,
    load_link,
    simulate,
    study,
)
from iosim.studies.distributed.links import Cluster, Link
from iosim.studies.distributed.timing import SUM_PASSES

pytestmark = pytest.mark.usefixtures("replays_once")


NO_LATENCY = Cluster(Link("test", 1e9, 0.0, ""))


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
            events = sorted(
                (e.start_s, e.end_s)
                for e in line.events
                if e.kind == kind and getattr(e, key) == who
            )
            assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(events))
    assert line.total_s == max(e.end_s for e in line.events)
    assert (
        sum(e.bytes for e in line.events)
        == link_bytes(build(name, problem, 8, backward=True), problem).total
    )


def test_the_processor_launches_messages_before_calls() -> None:
    problem = AttentionProblem(heads=1, seq_q=4 * 1000, head_dim=125)
    schedule = build("ring", problem, 4)
    slow = Cluster(Link("test", 1e15, 0.0, "", host_s=1e-3))
    # hidden but for the first; three in a row, and the calls of the last two steps
    for call, total in ((3e-3, 1e-3 + 4 * 3e-3), (0.1e-3, 3e-3 + 2 * 0.1e-3)):
        simulated = simulate(schedule, problem, slow, lambda p, w, s=call: s, from_graph=False)
        assert simulated.total_s == pytest.approx(total, rel=1e-3)
    assert simulate(schedule, problem, slow, lambda p, w: 1e-3).total_s == pytest.approx(4e-3)


@pytest.mark.slow
def test_launching_that_takes_longest_is_said() -> None:
    """7 exchanges of 0.15 ms, beside 8 calls of some 10 us."""
    arguments = {"num_gpus": 8, "gpu": "h200", "seq_len": "4k", "heads": 2, "schedule": ["ring"]}
    assert (
        "The processor takes 1.05 ms to launch ring's messages" in iosim.ring(**arguments).to_text()
    )
    assert "processor takes" not in iosim.ring(**arguments, launched="graph").to_text()
    assert (
        "processor takes"
        not in iosim.ring(**arguments | {"seq_len": "128k", "heads": 16}).to_text()
    )


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
    assert {method: round(share, 2) for method, share in shares.items()} == link.achieved


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


def test_partial_results_are_added_in_several_passes() -> None:
    """Without a launch's latency the time is so many times that of the bytes; a copy's is theirs alone."""
    problem = AttentionProblem(heads=1, seq_q=64, head_dim=16)
    times = ChunkTimes(problem, "fa2", replace(load_profile("h200"), launch_latency_s=0.0))
    copied = times.copied(3e6, 2e6)
    assert times.merged(3e6, 2e6, False) == pytest.approx(SUM_PASSES[False] * copied)
    assert times.merged(3e6, 2e6, True) == pytest.approx(SUM_PASSES[True] * copied)
    assert SUM_PASSES[False] > SUM_PASSES[True] > 1

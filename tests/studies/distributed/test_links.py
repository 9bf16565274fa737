"""Links between GPUs: their rates, shared ports, all-to-alls over nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedules import H100

from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    build,
    cluster,
    load_link,
    simulate,
)
from iosim.studies.distributed.collectives import (
    all_to_all,
)
from iosim.studies.distributed.links import Cluster, Link
from iosim.studies.distributed.schedule import (
    token_bytes,
)

pytestmark = pytest.mark.usefixtures("replays_once")


def test_a_shared_network_port_takes_one_message_at_a_time() -> None:
    problem = AttentionProblem(heads=1, seq_q=8 * 1000, head_dim=125, mask="causal")
    schedule = build("vanilla", problem, 8)
    link = Link("test", 1e9, 0.0, "")
    separate = Cluster(link, link, 4)
    shared = replace(separate, shared_network=True)
    alone, several = (
        simulate(schedule, problem, c, lambda p, w: 0.0).total_s for c in (separate, shared)
    )
    message = 0.5e-3
    assert alone == pytest.approx(7 * message)
    # at distance t, min(t, 8 - t, 4) messages cross from the first node: 1, 2, 3, 4, 3, 2, 1, all through one port
    assert several == pytest.approx(sum((1, 2, 3, 4, 3, 2, 1)) * message)


def test_an_all_to_all_over_nodes() -> None:
    """800 bytes on each of 8 GPUs: 100 for every other one, 300 from the own node and 400 from the other."""
    inside = Link("in", 100.0, 1.0, "")
    between = Link("out", 40.0, 2.0, "")
    assert all_to_all(6400, 8, Cluster(inside)) == (700, 1 + 7.0)
    assert all_to_all(6400, 8, Cluster(inside, between, 4)) == (700, 2 + 10.0)
    assert all_to_all(6400, 8, Cluster(inside, between, 4, shared_network=True)) == (700, 2 + 40.0)
    assert all_to_all(6400, 1, Cluster(inside)) == (0, 0.0)


def test_links_have_the_profile_s_rate_in_one_direction() -> None:
    assert load_link("nvlink", H100).bandwidth_bytes_per_s == 450e9  # 900 GB/s in both
    assert load_link("pcie", H100).bandwidth_bytes_per_s == 64e9
    assert load_link("ib", H100) == load_link("ib-400g", H100)
    assert load_link(25, H100).seconds(25 * 10**9) == pytest.approx(1, rel=1e-4)


def test_a_ring_over_nodes_uses_all_ports_of_a_node() -> None:
    separate, shared = (
        cluster(H100, "nvlink", "ib-100g", 8, shared_network=s) for s in (False, True)
    )
    assert separate.ring(8).bandwidth_bytes_per_s == 450e9
    assert separate.ring(16).bandwidth_bytes_per_s == 100e9  # 8 x 12.5
    assert shared.ring(16).bandwidth_bytes_per_s == 12.5e9
    assert (
        cluster(H100, 100, 20, 8).ring(16).bandwidth_bytes_per_s == 100e9
    )  # the link's, below the ports' 160


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


def test_amds_gpus_have_no_nvlink() -> None:
    """Half of seven links of 128 GB/s, under the name of AMD's data sheet."""
    mi300x = load_profile("mi300x")
    assert (load_link("nvlink", mi300x).name, load_link("nvlink", H100).name) == (
        "Infinity Fabric",
        "nvlink",
    )
    assert load_link("nvlink", mi300x).bandwidth_bytes_per_s == 7 * 128e9 / 2

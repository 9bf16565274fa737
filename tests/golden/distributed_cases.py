"""Attention over several GPUs: schedules, bytes, memory, times over links."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from chunk_ranks import execute

from iosim.base.errors import InputError
from iosim.hardware.profile import load_profile
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    SCHEDULES,
    ChunkTimes,
    build,
    cluster,
    collectives,
    idle,
    link_bytes,
    longest_sequence,
    memory,
    simulate,
    study,
)
from iosim.studies.distributed import closed_forms as forms
from iosim.studies.distributed.closed_forms import FORMULAS
from iosim.studies.distributed.links import Cluster, Link, link_names, load_link
from iosim.studies.distributed.schedule import Pair, check_gpus, contiguous, pair, striped

H100 = load_profile("h100")
SLOW = Link("slow", 1e9, 2e-6, "")
FAST = Link("fast", 8e9, 1e-6, "")
CLUSTERS = {
    "one node": Cluster(SLOW),
    "nodes of 2": Cluster(FAST, SLOW, 2),
    "nodes of 3": Cluster(SLOW, FAST, 3),
    "shared": Cluster(FAST, SLOW, 2, shared_network=True),
    "node of 8": Cluster(FAST, SLOW, 8),
}


def seconds(pair_: Pair, passes: str) -> float:
    """A time of its own for each pair, about that of its messages."""
    return 1e-9 * (1000 + 7 * pair_.kept) * (2 if passes == "bwd" else 1)


def problem(tokens: int, causal: bool, **more: Any) -> AttentionProblem:
    values: dict[str, Any] = {
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "head_dim_v": 8,
        "dtype": "bf16",
        "output": "fp32",
    }
    return AttentionProblem(seq_q=tokens, mask="causal" if causal else "none", **(values | more))


def schedules() -> Iterator[tuple[str, Any]]:
    for name, gpus, causal, backward in product(
        SCHEDULES, (1, 2, 3, 4, 5, 8), (False, True), (False, True)
    ):
        p = problem(81, causal)
        try:
            chain = build(name, p, gpus, backward=backward)
        except InputError:
            continue
        bytes_ = link_bytes(chain, p)
        lost = idle(chain)
        room = memory(chain, p, 3)
        lines: list[Any] = [
            len(chain.steps),
            sum(len(s.sends) for s in chain.steps),
            bytes_.tensors,
            bytes_.received,
            bytes_.sent,
            [lost.slots, lost.of_unbalanced, lost.work],
            [room.owned, room.saved, room.passing],
            longest_sequence(name, p, gpus, 100_000, backward=backward, layers=2),
        ]
        for cluster_name, overlap in (("nodes of 2", True), ("one node", False), ("shared", True)):
            line = simulate(chain, p, CLUSTERS[cluster_name], seconds, overlap=overlap)
            weighted = sum(
                n * (e.start_s + 2 * e.end_s + e.bytes) for n, e in enumerate(line.events, 1)
            )
            lines.append([line.total_s, line.idle_fraction, len(line.events), weighted])
        yield (
            f"{name} {gpus} {'causal' if causal else 'none'} {'bwd' if backward else 'fwd'}",
            lines,
        )


def studies() -> Iterator[tuple[str, Any]]:
    for n, (gpus, passes, (where, links)) in enumerate(
        product((1, 2, 4, 6), ("fwd", "bwd", "fwd+bwd"), CLUSTERS.items())
    ):
        p = problem(
            6000 + 96 * n,
            n % 3 > 0,
            heads=6,
            kv_heads=(6, 2, 1)[n % 3],
            head_dim=64,
            head_dim_v=64,
            output=None,
            batch=1 + n % 2,
            passes=passes,
        )
        if n % 2 and gpus > 1:
            continue
        for result in study(
            p,
            gpus,
            H100,
            links,
            kernel=("fa2", "cudnn")[n % 2],
            overlap=n % 4 < 2,
            layers=1 + n % 3,
        ):
            data = result.to_dict()
            data.pop("title")
            yield (
                f"study {gpus} {passes} {where} {p.seq_q} {data.pop('name')}",
                [*data.values(), result.width_bytes],
            )


def apart() -> Iterator[tuple[str, Any]]:
    """What a study is made of, with the defaults of each."""
    for causal, tokens, gpus in ((False, 4000, 4), (True, 4003, 3)):
        p = problem(tokens, causal, output=None, head_dim=64, head_dim_v=64)
        where = CLUSTERS["nodes of 2"]
        for link_case in (
            collectives.spread("megatron", p, gpus, ChunkTimes(p, "fa2", H100), where),
            collectives.spread("rsa", p, gpus, ChunkTimes(p, "naive", H100), where),
        ):
            yield (
                f"{link_case.name} {tokens}",
                [
                    link_case.received_bytes,
                    link_case.compute_s,
                    link_case.communication_s,
                    link_case.memory_bytes,
                ],
            )
        yield (
            f"bytes {tokens}",
            [
                collectives.memory_bytes("megatron", p, gpus, "fa2", H100),
                collectives.memory_bytes("rsa", p, gpus, "naive", H100),
                [
                    collectives.longest_sequence(n, p, gpus, 1 << 30, "fa2", H100)
                    for n in ("megatron", "rsa")
                ],
                memory(build("ring", p, gpus), p).total,
                longest_sequence("ring", p, gpus, 1 << 30),
                [collectives.ring_collective(1000, n, where) for n in (1, 2, 7)],
            ],
        )
        line = simulate(build("ring", p, gpus), p, where, seconds)
        yield f"timeline {tokens}", [line.total_s, line.compute_s, line.idle_fraction]
        yield (
            f"study {tokens}",
            [[r.name, r.seconds, r.memory_bytes] for r in study(p, gpus, H100, where)],
        )
        for heads, kv_heads in ((6, 2), (6, 3), (5, 5), (8, 1)):
            link_case = collectives.split_heads(
                problem(64, causal, heads=heads, kv_heads=kv_heads), gpus
            )
            yield f"heads {tokens} {heads} {kv_heads}", [link_case.heads, link_case.kv_heads]
    for name, refused in (
        ("window", {"mask": "window", "window": 5}),
        ("keys", {"seq_k": 900}),
        ("dropout", {"dropout": 0.1}),
        ("bias", {"bias": "alibi"}),
        ("offset", {"offset": 3}),
    ):
        p = AttentionProblem(
            **(
                {"heads": 4, "seq_q": 800, "head_dim": 64, "dtype": "bf16", "mask": "causal"}
                | refused
            )
        )
        for title, call in (
            (
                "megatron",
                lambda p=p: collectives.spread(
                    "megatron", p, 2, ChunkTimes(p, "fa2", H100), CLUSTERS["one node"]
                ),
            ),
            (
                "rsa",
                lambda p=p: collectives.spread(
                    "rsa", p, 2, ChunkTimes(p, "naive", H100), CLUSTERS["one node"]
                ),
            ),
            ("ring", lambda p=p: build("ring", p, 2)),
        ):
            try:
                call()
                yield f"refused {name} {title}", False
            except InputError:
                yield f"refused {name} {title}", True
    ring = build("ring", problem(64, False), 2)
    for layers in (0, 1, 10_000, 10_001, True):
        try:
            yield f"layers {layers!r}", memory(ring, problem(64, False), layers).total
        except InputError:
            yield f"layers {layers!r}", "refused"
    for gpus in (0, 1, 512, 513, True, 2.0):
        try:
            yield f"gpus {gpus!r}", check_gpus(gpus)
        except InputError:
            yield f"gpus {gpus!r}", "refused"


def formulas() -> Iterator[tuple[str, Any]]:
    """The closed forms, and schedules run on arrays."""
    for name, gpus, causal in product(SCHEDULES, (1, 2, 3, 4, 7, 8), (False, True)):
        p = problem(56, causal, batch=2)
        yield (
            f"closed {name} {gpus} {causal}",
            [
                forms.link_bytes(name, p, gpus),
                forms.link_bytes(name, p, gpus, backward=True),
                forms.idle_fraction(name, gpus, causal),
                forms.idle_of_unbalanced(name, gpus, causal),
            ],
        )
        if gpus not in (1, 3, 4) or causal < SCHEDULES[name].causal_only:
            continue
        for backward in (False, True):
            executed = execute(build(name, p, gpus, backward=backward), p, seed=3)
            sums = {
                n: round(float((a * np.cos(np.arange(a.size)).reshape(a.shape)).sum()), 6)
                for n, a in executed.outputs.items()
            }
            yield (
                f"run {name} {gpus} {causal} {backward}",
                [executed.received, executed.tensors, executed.peak_received, sums],
            )
    yield "least tokens", forms.minimal_chunk_tokens(312e12, 300e9)


def links() -> Iterator[tuple[str, Any]]:
    for name, gpu in product(link_names(), ("h100", "a100", "l4", "v100")):
        try:
            link = load_link(name, load_profile(gpu))
            yield (
                f"link {name} {gpu}",
                [link.name, link.bandwidth_bytes_per_s, link.latency_s, link.seconds(10**6)],
            )
        except InputError:
            yield f"link {name} {gpu}", "refused"
    for text in ("0.001", "0.0009", "1000000", "1000001", "25", "nan", "x", "-3"):
        try:
            link = load_link(text, H100)
            yield f"link by hand {text}", [link.name, link.bandwidth_bytes_per_s, link.latency_s]
        except InputError:
            yield f"link by hand {text}", "refused"
    for name, link in CLUSTERS.items():
        routes = [
            [link.route(a, b)[0].name, *link.route(a, b)[1:]]
            for a, b in product(range(4), repeat=2)
            if a != b
        ]
        rings = [[link.ring(n).bandwidth_bytes_per_s, link.ring(n).latency_s] for n in range(1, 10)]
        yield f"routes {name}", [routes, rings]
    for network, nodes, shared in product((None, "ib-100g"), (None, 0, 1, 4), (False, True)):
        try:
            links_cluster = cluster(H100, "nvlink", network, nodes, shared_network=shared)
            yield (
                f"cluster {network} {nodes} {shared}",
                [
                    links_cluster.link.name,
                    links_cluster.gpus_per_node,
                    links_cluster.shared_network,
                ],
            )
        except InputError:
            yield f"cluster {network} {nodes} {shared}", "refused"


def chunks() -> Iterator[tuple[str, Any]]:
    for tokens, parts in ((7, 3), (9, 3), (3, 3), (10, 4), (2, 3)):
        for cut in (contiguous, striped):
            try:
                chunk_list = cut(tokens, parts)
            except InputError:
                yield f"{cut.__name__} {tokens} {parts}", "refused"
                continue
            yield f"{cut.__name__} {tokens} {parts}", [list(c) for c in chunk_list]
            pairs = [
                pair(a, b, causal)
                for a in chunk_list
                for b in chunk_list
                for causal in (False, True)
            ]
            yield (
                f"pairs {cut.__name__} {tokens} {parts}",
                [[p.offset, p.kept, int(p.is_full)] for p in pairs],
            )
    for name in SCHEDULES:
        yield f"formula {name}", [FORMULAS[name, False], FORMULAS[name, True]]


def cases() -> Iterator[tuple[str, Any]]:
    for part in (schedules, studies, apart, formulas, links, chunks):
        yield from part()

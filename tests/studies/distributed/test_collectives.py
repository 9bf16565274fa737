"""Schedules of collectives: Ulysses, Megatron, chunks from both ends."""

from __future__ import annotations

from fractions import Fraction

import pytest
from schedules import H100

from iosim.base.errors import InputError
from iosim.catalog.algorithms import plan
from iosim.catalog.libraries import resolve
from iosim.problem.attention import AttentionProblem
from iosim.readers.bounds import memory
from iosim.studies.distributed import (
    cluster,
    study,
)
from iosim.studies.distributed.collectives import (
    MEGATRON_COLLECTIVES,
    calls_of,
    memory_bytes,
    share_of,
    split_heads,
)
from iosim.studies.distributed.schedule import (
    sequence_width_bytes,
)

pytestmark = pytest.mark.usefixtures("replays_once")


@pytest.mark.parametrize("gpus", [1, 2, 5])
def test_chunks_from_both_ends_share_the_work_of_a_mask(gpus: int) -> None:
    problem = AttentionProblem(heads=4, seq_q=40 * gpus, head_dim=16, mask="causal")
    kept_pairs = [
        sum(p.interval_mask.kept_pairs(p.seq_q, p.seq_k) for p in calls)
        for calls in calls_of("all-gather", problem, gpus, False)
    ]
    whole = problem.interval_mask.kept_pairs(problem.seq_q, problem.seq_k)
    assert kept_pairs == [whole // gpus] * (1 if gpus == 1 else 2)


def test_ulysses_receives_what_its_heads_need() -> None:
    """Four tensors forward and backward, each GPU 7/8 of an eighth of each; with one key head for two GPUs K and V are
    repeated, and backward dK and dV."""
    for kv_heads, heads in ((32, 4 + 4), (4, 2 * (2 + 2 * 8 / 32))):
        problem = AttentionProblem(
            heads=32, kv_heads=kv_heads, seq_q=8 * 512, head_dim=64, passes="fwd+bwd"
        )
        (ulysses,) = study(problem, 8, H100, cluster(H100), kernel="fa2", names=["ulysses"])
        assert float(ulysses.received_bytes) == pytest.approx(
            heads * 7 / 64 * sequence_width_bytes(problem)
        )


def test_the_hybrid_is_ulysses_in_a_ring() -> None:
    problem = AttentionProblem(heads=32, kv_heads=4, seq_q=16 * 1024, head_dim=64, mask="causal")
    links = cluster(H100, "nvlink", "ib-100g", 8)
    (hybrid,) = study(problem, 16, H100, links, kernel="fa2", names=["usp"])
    assert hybrid.title == "Ulysses of 4 inside a ring of 4"  # 4 divides the key heads and a node
    # a ring of 4 of 8 of 32 heads and 1 of 4 key heads, K and V thrice a quarter of the tokens; and 3/16 of a quarter
    width = problem.seq_q * 64 * 2
    assert float(hybrid.received_bytes) == pytest.approx(
        width * (3 / 4 * 2 * 1 + 3 / 16 / 4 * (2 * 32 + 2 * 4))
    )
    with pytest.raises(InputError, match="Ulysses alone, with 4 GPUs"):
        study(problem, 4, H100, cluster(H100), names=["usp"])
    with pytest.raises(InputError, match="a ring alone, with 5 GPUs"):
        study(problem, 5, H100, cluster(H100), names=["usp"])


def test_megatron_moves_fourteen_widths_with_recomputation() -> None:
    problem = AttentionProblem(
        heads=32, seq_q=8 * 1024, head_dim=128, mask="causal", passes="fwd+bwd"
    )
    (megatron,) = study(problem, 8, H100, cluster(H100), names=["megatron"])
    assert megatron.received_bytes == Fraction(10 * 7, 8) * sequence_width_bytes(problem)
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
    for result in study(problem, 1, H100, cluster(H100)):
        assert result.received_bytes == 0
        if result.name != "rsa":  # no use of the mask
            assert result.speedup == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "kernel", "beside"),
    [
        ("all-gather", "fa2", 2 * 512 * 1024),  # K and V of its own tokens
        ("ulysses", "fa2", 3 * 512 * 1024),  # Q, too
        (
            "rsa",
            "naive",
            -2 * 512 * 4096 + 4 * 512 * 1024,
        ),  # parts of K and V in place of the whole
        ("megatron", "fa2", 512 * 4096 + 512 * 1024),  # the input gathered, and its own part
    ],
)
def test_what_a_gpu_holds_beside_its_call(name: str, kernel: str, beside: int) -> None:
    """4,096 tokens on 4 GPUs; 4 heads of 64 in fp16 are 512 bytes a token."""
    problem = AttentionProblem(heads=4, seq_q=4096, head_dim=64, dtype="fp16")
    share = share_of(name, problem, 4, False)
    peak = memory(plan(share, resolve(kernel, share, H100)))["peak"]
    assert memory_bytes(name, problem, 4, "fa2", H100) == peak + beside

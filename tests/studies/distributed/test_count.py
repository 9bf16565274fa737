"""What a schedule adds up to: work, memory, and the longest sequence that fits."""

from __future__ import annotations

import chunk_ranks as reader
import pytest
from effort import examples
from hypothesis import given, settings
from schedules import H100, cases

from iosim.prediction.predictor import predict
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed import (
    SCHEDULES,
    ChunkSchedule,
    build,
    cluster,
    longest_sequence,
    memory,
    study,
)
from iosim.studies.distributed.count import merges, passing_bytes, received_bytes
from iosim.studies.distributed.schedule import (
    token_bytes,
)

pytestmark = pytest.mark.usefixtures("replays_once")


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
    peaks = [
        max(a[g] + b[g] for a, b in pairs_)
        for g, pairs_ in enumerate([list(pairs)] * schedule.gpus)
    ]
    assert tuple(peaks) == done.peak_received
    assert all(p >= m for p, m in zip(passing_bytes(schedule, widths), peaks, strict=True))


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_a_ring_passes_a_block_of_keys_on(gpus: int) -> None:
    """In a forward K and V of a GPU's 12 / P tokens arrive in each step but the last, one block used as one comes."""
    problem = AttentionProblem(heads=1, seq_q=12, head_dim=4, dtype="fp16")
    widths = token_bytes(problem)
    block = 12 // gpus * (widths["K"] + widths["V"])
    passing = passing_bytes(build("ring", problem, gpus), widths)
    assert passing == [block if gpus == 2 else 2 * block] * gpus


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_the_longest_sequence_fits_and_one_chunk_more_does_not(name: str, backward: bool) -> None:
    problem = AttentionProblem(heads=4, kv_heads=2, seq_q=64, head_dim=32, mask="causal")
    budget = 1_000_000
    longest = longest_sequence(name, problem, 4, budget, backward=backward, layers=3)
    for tokens, fits in ((longest, True), (longest + 4 * SCHEDULES[name].chunks_per_gpu, False)):
        case = problem.with_(seq_q=tokens, seq_k=tokens)
        assert (memory(build(name, case, 4, backward=backward), case, 3).total <= budget) is fits
    forward_alone = longest_sequence(name, problem, 4, budget, layers=3)
    assert (
        longest == forward_alone
    ) is not backward  # which is what is asked where nothing is said

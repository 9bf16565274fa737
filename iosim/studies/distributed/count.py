"""Readers that add up a chunk schedule: bytes on the links, work and idle slots, and the memory that it takes of a GPU.

Memory: a layer's Q, K, V, O and row statistics of the GPU's own tokens (backward: dO and the gradients too), what it
has received for this step and receives for the next, and partial results for or from others. `layers` keeps Q, K, V, O
and LSE of further layers for the backward. NB: weights, optimiser states and all other activations are not counted.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from iosim.base.fields import whole
from iosim.base.records import dataclass
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed.schedule import (
    FP32_BYTES,
    INPUTS,
    SCHEDULES,
    ChunkSchedule,
    Step,
    build,
    token_bytes,
)

SAVED = ("Q", "K", "V", "O", "LSE")
"""What a layer keeps for its backward."""
FORWARD = ("Q", "K", "V", "O", "stats", "LSE")
BACKWARD = (*SAVED, "dO", "dQ", "dK", "dV")
RESULTS = {False: (("O_part", "stats"), ()), True: (("dQ",), ("dK", "dV"))}
"""Backward or not -> partial results of a pair's queries, and of its keys."""


@dataclass(frozen=True)
class LinkBytes:
    """Bytes sent over all links, by tensor; and received and sent by each GPU."""

    tensors: dict[str, int]
    received: tuple[int, ...]
    sent: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.tensors.values())


def link_bytes(schedule: ChunkSchedule, problem: AttentionProblem) -> LinkBytes:
    widths = token_bytes(problem)
    tensors, received, sent = Counter[str](), [0] * schedule.gpus, [0] * schedule.gpus
    # A tensor counts once for each message that carries it: a chunk that goes round a ring of P is
    # sent P - 1 times.
    for send in (send for step in schedule.steps for send in step.sends):
        for name in send.tensors:
            tensors[name] += schedule.tokens(send.chunks) * widths[name]
        received[send.target] += schedule.sent_bytes(send, widths)
        sent[send.source] += schedule.sent_bytes(send, widths)
    return LinkBytes(dict(tensors), tuple(received), tuple(sent))


def compute_steps(schedule: ChunkSchedule) -> tuple[Step, ...]:
    """The steps in which anything is computed; gradients and results on their way home come after them."""
    return tuple(step for step in schedule.steps if step.computes)


def work(schedule: ChunkSchedule, step: Step) -> list[int]:
    """Kept (query, key) pairs of one head that each GPU computes in a step."""
    done = [0] * schedule.gpus
    for c in step.computes:
        done[c.gpu] += schedule.pair(c).kept
    return done


@dataclass(frozen=True)
class Idle:
    """Idle fractions of a schedule, exact."""

    slots: Fraction
    """Idle (GPU, step) slots over all slots of its own steps."""
    of_unbalanced: Fraction
    """Idle slots over the P x P slots of the unbalanced schedule, as arXiv 2310.03294, equation 2, states it."""
    work: Fraction
    """1 - work / (GPUs x sum over steps of the longest work in it), work in kept pairs: a diagonal chunk is half a
    chunk here, and a whole one in the two above."""


def idle(schedule: ChunkSchedule) -> Idle:
    """Idle fractions, with no time for communication."""
    steps = compute_steps(schedule)
    # A slot is busy if its GPU computes anything in it, however little.
    busy = sum(len({c.gpu for c in step.computes}) for step in steps)
    slots = schedule.gpus * len(steps)
    by_step = [work(schedule, step) for step in steps]
    longest = schedule.gpus * sum(max(done) for done in by_step)
    # Two denominators: the schedule's own slots, and the P x P of the unbalanced one.
    of_own, of_unbalanced = (Fraction(slots - busy, every) for every in (slots, schedule.gpus**2))
    return Idle(of_own, of_unbalanced, 1 - Fraction(sum(map(sum, by_step)), longest))


def merges(schedule: ChunkSchedule, problem: AttentionProblem) -> list[list[tuple[int, int]]]:
    """(bytes read, bytes written) in which each GPU adds up partial results, by step. Forward, what a query chunk's
    first call leaves is kept in fp32, and every other call's output and row sums are added to it; the last sum is
    written in the output's type. Backward, dQ likewise. Partial results that arrive are added to what their target
    holds, in the type that they travel in."""
    widths = token_bytes(problem)
    # Forward, outputs are merged with their row statistics (an online softmax across GPUs); backward,
    # gradients are plain sums.
    part, stats = ("dQ", "") if schedule.backward else ("O_part", "stats")
    typed, row = widths[part], widths[stats] if stats else 0
    wide = typed * FP32_BYTES // problem.output_type.bytes
    calls_in_all = _calls_by_chunk(schedule)
    calls_done = [Counter[int]() for _ in range(schedule.gpus)]
    by_step = []
    for step, of_step in zip(schedule.steps, schedule.calls, strict=True):
        read, written = [0] * schedule.gpus, [0] * schedule.gpus
        for gpu, calls in of_step.items():
            for chunk in (chunk for queries, _, _ in calls for chunk in queries):
                calls_done[gpu][chunk] += 1
                if calls_in_all[gpu][chunk] == 1:
                    continue  # its only call leaves the result itself
                tokens = len(schedule.chunks[chunk])
                # A call's output is read in its own type, the sum so far in fp32, and written back in fp32.
                read[gpu] += tokens * (typed + row)
                written[gpu] += tokens * (wide + row)
                if calls_done[gpu][chunk] > 1:
                    read[gpu] += tokens * (wide + row)
                # At the last call the sum is read once more and written in the output's type.
                if calls_done[gpu][chunk] == calls_in_all[gpu][chunk]:
                    read[gpu] += tokens * wide
                    written[gpu] += tokens * typed
        for gpu, arrived in enumerate(received_bytes(schedule, step, widths, inputs=False)):
            # What arrives is read beside what it is added to, and the sum is written.
            read[gpu] += 2 * arrived
            written[gpu] += arrived
        by_step.append(list(zip(read, written, strict=True)))
    return by_step


def _calls_by_chunk(schedule: ChunkSchedule) -> list[Counter[int]]:
    """The number of calls of each query chunk on each GPU, over all steps."""
    calls_of = [Counter[int]() for _ in range(schedule.gpus)]
    for of_step in schedule.calls:
        for gpu, calls in of_step.items():
            calls_of[gpu].update(chunk for queries, _, _ in calls for chunk in queries)
    return calls_of


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU: what it owns, what other layers keep, and the most that passes through at once."""

    owned: int
    saved: int
    passing: int

    @property
    def total(self) -> int:
        return self.owned + self.saved + self.passing


def received_bytes(
    schedule: ChunkSchedule, step: Step, widths: dict[str, int], *, inputs: bool
) -> list[int]:
    """Bytes of inputs, or of partial results, that each GPU receives in a step."""
    got = [0] * schedule.gpus
    for send in step.sends:
        tokens = schedule.tokens(send.chunks)
        # Inputs are copies that expire; partial results are added to what their target holds.
        got[send.target] += tokens * sum(widths[t] for t in send.tensors if (t in INPUTS) == inputs)
    return got


def _made_for_others(schedule: ChunkSchedule, step: Step, widths: dict[str, int]) -> list[int]:
    # Results for chunks of others, each once: several computations of a step add into one buffer.
    results_of: list[set[tuple[str, int]]] = [set() for _ in range(schedule.gpus)]
    for c in step.computes:
        for chunk, tensors in zip((c.queries, c.keys), RESULTS[schedule.backward], strict=True):
            if chunk not in schedule.owned[c.gpu]:
                results_of[c.gpu] |= {(t, chunk) for t in tensors}
    return [sum(widths[t] * len(schedule.chunks[c]) for t, c in results) for results in results_of]


def passing_bytes(schedule: ChunkSchedule, widths: dict[str, int]) -> list[int]:
    """The most that passes through each GPU at once: inputs of this step and the next, partial results made in this
    step and the one before, and those arriving."""
    peaks = [0] * schedule.gpus
    # A buffer lives for two steps: received in one and used in the next, or made in one and sent in
    # the next.
    inbox, unsent = [0] * schedule.gpus, [0] * schedule.gpus
    for step in schedule.steps:
        arriving = received_bytes(schedule, step, widths, inputs=True)
        results = received_bytes(schedule, step, widths, inputs=False)
        result_bytes = _made_for_others(schedule, step, widths)
        for g in range(schedule.gpus):
            peaks[g] = max(
                peaks[g], inbox[g] + arriving[g] + results[g] + result_bytes[g] + unsent[g]
            )
        inbox, unsent = arriving, result_bytes
    return peaks


def memory(schedule: ChunkSchedule, problem: AttentionProblem, layers: int = 1) -> Memory:
    """Memory of one pass on the GPU that needs most. Raises InputError: `layers` is out of range."""
    layers, widths = whole("layers", layers, 1, 10_000), token_bytes(problem)
    owned, saved = (
        sum(widths[t] for t in of) for of in (BACKWARD if schedule.backward else FORWARD, SAVED)
    )
    by_gpu = zip(map(schedule.tokens, schedule.owned), passing_bytes(schedule, widths), strict=True)
    memories = (
        Memory(tokens * owned, (layers - 1) * tokens * saved, passing) for tokens, passing in by_gpu
    )
    return max(memories, key=lambda m: m.total)


def longest_sequence(
    name: str,
    problem: AttentionProblem,
    gpus: int,
    budget_bytes: int,
    *,
    backward: bool = False,
    layers: int = 1,
) -> int:
    """Most tokens, in whole chunks of equal length, whose attention fits in `budget_bytes` on every GPU."""
    parts = gpus * SCHEDULES[name].chunks_per_gpu
    shortest = problem.with_(seq_q=parts, seq_k=parts, offset=None)
    # Bytes are linear in the length of a chunk: one token per chunk measures the slope.
    needed = memory(build(name, shortest, gpus, backward=backward), shortest, layers).total
    return budget_bytes // needed * parts

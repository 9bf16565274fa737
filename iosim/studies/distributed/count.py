"""The counting reader of chunk schedules: bytes on the links, work and idle slots, all exact."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed.schedule import ChunkSchedule, Send, Step
from iosim.studies.distributed.widths import token_bytes


def send_bytes(schedule: ChunkSchedule, send: Send, widths: dict[str, int]) -> int:
    """Bytes of one message."""
    tokens = sum(len(schedule.chunks[c]) for c in send.chunks)
    return tokens * sum(widths[t] for t in send.tensors)


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
    """What crosses the links in the whole pass."""
    widths = token_bytes(problem)
    tensors: dict[str, int] = {}
    received, sent = [0] * schedule.gpus, [0] * schedule.gpus
    for step in schedule.steps:
        for send in step.sends:
            tokens = sum(len(schedule.chunks[c]) for c in send.chunks)
            for name in send.tensors:
                moved = tokens * widths[name]
                tensors[name] = tensors.get(name, 0) + moved
                received[send.target] += moved
                sent[send.source] += moved
    return LinkBytes(tensors, tuple(received), tuple(sent))


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
    """Idle fractions of a schedule, exact.

    Args:
        slots: idle (GPU, step) slots over all slots of its own steps.
        of_unbalanced: the same idle slots over the P x P slots of the unbalanced schedule; this is what arXiv
            2310.03294, equation 2, states.
        work: 1 - work / (GPUs x sum over steps of the longest work in it), work in kept pairs: a diagonal chunk is half
            a chunk here, and a whole one in the two above.
    """

    slots: Fraction
    of_unbalanced: Fraction
    work: Fraction


def idle(schedule: ChunkSchedule) -> Idle:
    """Idle fractions, with no time for communication."""
    steps = compute_steps(schedule)
    busy = sum(len({c.gpu for c in step.computes}) for step in steps)
    slots = schedule.gpus * len(steps)
    by_step = [work(schedule, step) for step in steps]
    longest = schedule.gpus * sum(max(done) for done in by_step)
    return Idle(
        Fraction(slots - busy, slots),
        Fraction(slots - busy, schedule.gpus**2),
        1 - Fraction(sum(map(sum, by_step)), longest),
    )

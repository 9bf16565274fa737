"""Seconds of a chunk schedule: a small discrete-event model of GPUs and links.

A GPU's step ends when its computations, its sends and its receives of that step have ended; the next one starts then.
A message starts when both ends have reached its step and the ports on its way are free, and runs beside the step's
computations; without overlap these wait for the step's messages. So a step takes max(compute, communication), or their
sum; and what the link's `unhidden` says of a message comes on top of computing, since NCCL's kernels take SMs and memory
from it. A local call takes what `iosim.predict` says of it on the GPU; equal ones are predicted once. Adding up partial
results takes what HBM takes for their bytes, as often as `SUM_PASSES` says, after the step's calls.

Launched alone, not from a CUDA graph, the processor needs `host_s` to launch a step's messages, before it launches the
step's calls; the first step's stand in the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from iosim.base.records import cached_property, dataclass, field
from iosim.base.words import Level, Method
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed.count import merges, received_bytes
from iosim.studies.distributed.links import Cluster
from iosim.studies.distributed.schedule import ChunkSchedule, Pair, Step, token_bytes

BOOST = Conditions()
SUM_PASSES = {False: 2.2, True: 1.5}
"""Backward or not -> time of adding up partial results over that of reading and writing them once. PyTorch runs the
forward's rescaling as several kernels, the backward's additions as one a tensor, neither at HBM's full rate. Fitted on the
odd rows of h200x2_ring_steps.csv (1.9 to 3.7, 1.4 to 1.7); the even rows say 2.1 to 2.7 and 1.4 to 1.5."""


@dataclass(frozen=True)
class Event:
    kind: str
    step: int
    gpu: int
    start_s: float
    end_s: float
    target: int | None = None
    label: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class Timeline:
    gpus: int
    events: tuple[Event, ...]
    total_s: float

    @cached_property
    def compute_s(self) -> tuple[float, ...]:
        busy = [0.0] * self.gpus
        for e in self.events:
            if e.kind == "compute":
                busy[e.gpu] += e.end_s - e.start_s
        return tuple(busy)

    @property
    def idle_fraction(self) -> float:
        """Time in which GPUs do not compute, over all time of all GPUs."""
        return (
            max(0.0, 1 - math.fsum(self.compute_s) / (self.gpus * self.total_s))
            if self.total_s
            else 0.0
        )


class ChunkTimes:
    """Local calls, predicted once a kind: equal lengths and offset, forward or backward. Calling it gives seconds."""

    def __init__(
        self,
        problem: AttentionProblem,
        kernel: str | Kernel,
        profile: HardwareProfile,
        conditions: Conditions = BOOST,
    ) -> None:
        self.problem, self.kernel, self.profile, self.conditions = (
            problem,
            kernel,
            profile,
            conditions,
        )
        self.known: dict[tuple[Pair, str], Prediction] = {}

    def prediction(self, pair: Pair, passes: str) -> Prediction:
        self._predict([(pair, passes)])
        return self.known[pair, passes]

    def prepare(self, schedule: ChunkSchedule) -> None:
        """Predict all calls of a schedule that are not known yet, side by side."""
        self._predict((pair, schedule.passes) for _, pair in _calls(schedule))

    def _predict(self, kinds: Iterable[tuple[Pair, str]]) -> None:
        # Equal pairs are one prediction; all new ones run side by side.
        new = [kind for kind in dict.fromkeys(kinds) if kind not in self.known]
        problems = [pair.problem(self.problem, passes) for pair, passes in new]
        self.known |= zip(new, self.predictions(problems) if new else (), strict=True)

    def predictions(
        self, problems: Iterable[AttentionProblem], kernel: str | None = None
    ) -> list[Prediction]:
        c = self.conditions
        requests = [
            Request(p, kernel or self.kernel, self.profile, clocks=c.clocks, launched=c.launched)
            for p in problems
        ]
        return list(predict_many(requests))

    def methods(self, schedule: ChunkSchedule) -> set[Method]:
        """How the HBM bytes of a schedule's calls were found."""
        return {self.prediction(pair, schedule.passes).method for _, pair in _calls(schedule)}

    def __call__(self, pair: Pair, passes: str) -> float:
        return self.prediction(pair, passes).time.total_s

    def copied(self, read: float, written: float, passes: float = 1.0) -> float:
        """Seconds of reading and writing so many bytes at HBM, `passes` times, and of a launch. NB: none where HBM's rate
        is not known."""
        rates = self.profile.hbm_seconds_per_byte()
        if rates is None or not written:
            return 0.0
        per_read, per_write, turning = rates
        once = read * per_read + written * per_write + min(read, written) * turning
        return (self.profile.launch_latency_s or 0.0) + passes * once

    def merged(self, read: float, written: float, backward: bool) -> float:
        """Seconds of adding up partial results, whose bytes PyTorch moves `SUM_PASSES` times."""
        return self.copied(read, written, SUM_PASSES[backward])

    def moved(self, schedule: ChunkSchedule, level: Level) -> list[int]:
        """Bytes at a level ("l2" or "hbm") that each GPU moves in a schedule's local calls and in adding up."""
        totals = [0] * schedule.gpus
        for gpu, pair in _calls(schedule):
            totals[gpu] += self.prediction(pair, schedule.passes).total(level)
        for of_step in merges(schedule, self.problem):
            totals = [total + sum(bytes_) for total, bytes_ in zip(totals, of_step, strict=True)]
        return totals


def _calls(schedule: ChunkSchedule) -> Iterator[tuple[int, Pair]]:
    for of_step in schedule.calls:
        for gpu, calls in of_step.items():
            yield from ((gpu, pair) for _, _, pair in calls)


@dataclass
class _Simulation:
    """A schedule that is being played. `free`: when a port is free. `launched`: when a GPU's processor has launched the
    messages of a step. All in seconds from the start."""

    schedule: ChunkSchedule
    cluster: Cluster
    widths: dict[str, int]
    from_graph: bool
    launched: list[float]
    free: dict[str, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def send(self, n: int, step: Step, ready: Sequence[float]) -> tuple[list[float], list[float]]:
        """Send the messages of step `n`, which GPUs may begin when they are `ready`; returns when each GPU's have come
        and gone, and by how much they slow its calls beside them."""
        sent, slowed = list(ready), [0.0] * self.schedule.gpus
        if not self.from_graph:
            _launch_messages(step, self.cluster, self.launched)
        for send in step.sends:
            link, leaves, arrives = self.cluster.route(send.source, send.target)
            both = (send.source, send.target)
            ends = [max(ready[gpu], self.launched[gpu]) for gpu in both]
            # A message holds both ports of its way from beginning to end.
            begin = max(*ends, self.free.get(leaves, 0.0), self.free.get(arrives, 0.0))
            n_bytes = self.schedule.sent_bytes(send, self.widths)
            self.free[leaves] = self.free[arrives] = end = begin + link.seconds(n_bytes)
            for gpu in both:
                sent[gpu] = max(sent[gpu], end)
                slowed[gpu] = max(slowed[gpu], link.unhidden * (end - begin))
            label = f"{'+'.join(send.tensors)} of {','.join(map(str, send.chunks))}"
            self.events.append(
                Event("send", n, send.source, begin, end, send.target, label, n_bytes)
            )
        return sent, slowed

    def compute(
        self,
        n: int,
        done: list[float],
        slowed: Sequence[float],
        seconds: Callable[[Pair, str], float],
    ) -> None:
        """Make the local calls of step `n`; `done` is when each GPU is through with what it had to do, `slowed` by how
        much its messages beside them hold them up."""
        for gpu, calls in self.schedule.calls[n].items():
            done[gpu] = max(done[gpu], self.launched[gpu]) + slowed[gpu]
            for queries, keys, pair in calls:
                begin = done[gpu]
                done[gpu] = begin + seconds(pair, self.schedule.passes)
                label = f"q{','.join(map(str, queries))}k{','.join(map(str, keys))}"
                self.events.append(Event("compute", n, gpu, begin, done[gpu], None, label))

    def add_up(
        self,
        n: int,
        sums: Sequence[tuple[int, int]],
        done: list[float],
        arrived: Sequence[float],
        merged: Callable[[float, float, bool], float],
    ) -> None:
        """Add up partial results, (bytes read, written) of each GPU in `sums`, once they have `arrived`."""
        for gpu, (read, written) in enumerate(sums):
            if not written:
                continue
            begin = max(done[gpu], arrived[gpu])
            done[gpu] = begin + merged(read, written, self.schedule.backward)
            self.events.append(Event("compute", n, gpu, begin, done[gpu], None, "adding up"))


def simulate(
    schedule: ChunkSchedule,
    problem: AttentionProblem,
    cluster: Cluster,
    seconds: Callable[[Pair, str], float],
    *,
    overlap: bool = True,
    merged: Callable[[float, float, bool], float] | None = None,
    from_graph: bool = True,
) -> Timeline:
    """The timeline of a schedule.

    Args:
        seconds: of a local call, such as `ChunkTimes` gives them.
        overlap: whether messages run beside the computations of their step.
        merged: seconds of adding up partial results, by bytes read and written, backward or not; by default none.
        from_graph: whether launching messages costs the processor nothing.
    """
    widths = token_bytes(problem)
    merges_of = merges(schedule, problem)
    play = _Simulation(schedule, cluster, widths, from_graph, [0.0] * schedule.gpus)
    ready = [0.0] * schedule.gpus
    for n, step in enumerate(schedule.steps):
        sent, slowed = play.send(n, step, ready)
        # Without overlap a GPU computes only when its messages of the step have come and gone; with it, the messages
        # slow the step's calls.
        done = list(ready) if overlap else list(map(max, ready, sent))
        play.compute(n, done, slowed if overlap else [0.0] * schedule.gpus, seconds)
        if merged is not None:
            # Own results are added at once, those of others when they have arrived.
            arriving = received_bytes(schedule, step, widths, inputs=False)
            arrived = [at if of_gpu else 0.0 for at, of_gpu in zip(sent, arriving, strict=True)]
            play.add_up(n, merges_of[n], done, arrived, merged)
        # A GPU begins its next step by itself: there is no barrier between all of them.
        ready = list(map(max, ready, sent, done))
    return Timeline(schedule.gpus, tuple(play.events), max(ready))


def _launch_messages(step: Step, cluster: Cluster, launched: list[float]) -> None:
    """Adds to `launched` what each GPU's processor takes for the step's messages, all of them at once."""
    busy = set[int]()
    for send in step.sends:
        link, _, _ = cluster.route(send.source, send.target)
        for gpu in {send.source, send.target} - busy:
            launched[gpu] += link.host_s
            busy.add(gpu)

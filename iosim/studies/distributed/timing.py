"""Seconds of a chunk schedule: a small discrete-event model of GPUs and links.

A GPU's step ends when its computations, its sends and its receives of that step have ended; the next one starts then.
A message starts when both ends have reached its step and the ports on its way are free, and runs beside the step's
computations; without overlap these wait for the step's messages. So a step takes max(compute, communication), or their
sum. A local call takes what `iosim.predict` says of it on the GPU; equal ones are predicted once. Adding up partial
results takes what HBM takes for their bytes, after the step's calls.

Launched alone, not from a CUDA graph, the processor needs `host_s` to launch a step's messages, before it launches the
step's calls; the first step's stand in the time.

NB: messages do not slow the computation down.
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

    def merged(self, read: float, written: float) -> float:
        """Seconds of adding up partial results: HBM's for the bytes, and a launch's. NB: none where HBM's rate is not
        known."""
        rates = self.profile.hbm_seconds_per_byte()
        if rates is None or not written:
            return 0.0
        # HBM's model: a rate for reads, one for writes, and what turning between them costs.
        per_read, per_write, turning = rates
        start = self.profile.launch_latency_s or 0.0
        return start + read * per_read + written * per_write + min(read, written) * turning

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

    def send(self, n: int, step: Step, ready: Sequence[float]) -> list[float]:
        """Send the messages of step `n`, which GPUs may begin when they are `ready`; returns when each GPU's have come
        and gone."""
        sent, launching = list(ready), set[int]()
        for send in step.sends:
            link, leaves, arrives = self.cluster.route(send.source, send.target)
            both = (send.source, send.target)
            if not self.from_graph:
                for gpu in both:
                    self.launched[gpu] += 0.0 if gpu in launching else link.host_s
                launching.update(both)
            ends = [max(ready[gpu], self.launched[gpu]) for gpu in both]
            # A message holds both ports of its way from beginning to end.
            begin = max(*ends, self.free.get(leaves, 0.0), self.free.get(arrives, 0.0))
            n_bytes = self.schedule.sent_bytes(send, self.widths)
            self.free[leaves] = self.free[arrives] = end = begin + link.seconds(n_bytes)
            for gpu in both:
                sent[gpu] = max(sent[gpu], end)
            label = f"{'+'.join(send.tensors)} of {','.join(map(str, send.chunks))}"
            self.events.append(
                Event("send", n, send.source, begin, end, send.target, label, n_bytes)
            )
        return sent

    def compute(self, n: int, done: list[float], seconds: Callable[[Pair, str], float]) -> None:
        """Make the local calls of step `n`; `done` is when each GPU is through with what it had to do."""
        for gpu, calls in self.schedule.calls[n].items():
            done[gpu] = max(done[gpu], self.launched[gpu])
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
        merged: Callable[[float, float], float],
    ) -> None:
        """Add up partial results, (bytes read, written) of each GPU in `sums`, once they have `arrived`."""
        for gpu, (read, written) in enumerate(sums):
            if not written:
                continue
            begin = max(done[gpu], arrived[gpu])
            done[gpu] = begin + merged(read, written)
            self.events.append(Event("compute", n, gpu, begin, done[gpu], None, "adding up"))


def simulate(
    schedule: ChunkSchedule,
    problem: AttentionProblem,
    cluster: Cluster,
    seconds: Callable[[Pair, str], float],
    *,
    overlap: bool = True,
    merged: Callable[[float, float], float] | None = None,
    from_graph: bool = True,
) -> Timeline:
    """The timeline of a schedule.

    Args:
        seconds: of a local call, such as `ChunkTimes` gives them.
        overlap: whether messages run beside the computations of their step.
        merged: seconds of adding up partial results, by bytes read and written; by default none.
        from_graph: whether launching messages costs the processor nothing.
    """
    widths = token_bytes(problem)
    merges_of = merges(schedule, problem)
    play = _Simulation(schedule, cluster, widths, from_graph, [0.0] * schedule.gpus)
    ready = [0.0] * schedule.gpus
    for n, step in enumerate(schedule.steps):
        sent = play.send(n, step, ready)
        # Without overlap a GPU computes only when its messages of the step have come and gone.
        done = list(ready) if overlap else list(map(max, ready, sent))
        play.compute(n, done, seconds)
        if merged is not None:
            # Own results are added at once, those of others when they have arrived.
            arriving = received_bytes(schedule, step, widths, inputs=False)
            arrived = [at if of_gpu else 0.0 for at, of_gpu in zip(sent, arriving, strict=True)]
            play.add_up(n, merges_of[n], done, arrived, merged)
        # A GPU begins its next step by itself: there is no barrier between all of them.
        ready = list(map(max, ready, sent, done))
    return Timeline(schedule.gpus, tuple(play.events), max(ready))

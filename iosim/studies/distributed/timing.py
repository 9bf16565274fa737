"""Seconds of a chunk schedule: a small discrete-event model of GPUs and links.

A GPU's step ends when its computations, its sends and its receives of that step have ended; the next one starts then.
A message starts when both ends have reached its step and the ports on its way are free, and runs beside the step's
computations; without overlap these wait for the step's messages. So a step takes max(compute, communication), or their
sum. A pair of chunks takes what `iosim.predict` says of it on the GPU; equal pairs are predicted once.

NB: adding up partial outputs takes no time here, and messages do not slow the computation down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from iosim.base.records import dataclass
from iosim.base.words import Level, Method
from iosim.hardware.profile import HardwareProfile
from iosim.kernel.kernel import Kernel
from iosim.prediction.many import Request, predict_many
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.studies.distributed.count import send_bytes
from iosim.studies.distributed.links import Cluster
from iosim.studies.distributed.schedule import ChunkSchedule, Pair, token_bytes


@dataclass(frozen=True)
class Event:
    """Something that took time: "compute" on `gpu`, or "send" from `gpu` to `target`."""

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
    """Events of a schedule, and sums over them."""

    gpus: int
    events: tuple[Event, ...]
    total_s: float

    @cached_property
    def compute_s(self) -> tuple[float, ...]:
        """Seconds that each GPU computes."""
        busy = [0.0] * self.gpus
        for e in self.events:
            if e.kind == "compute":
                busy[e.gpu] += e.end_s - e.start_s
        return tuple(busy)

    @property
    def idle_fraction(self) -> float:
        """Time in which GPUs do not compute, over all time of all GPUs."""
        return max(0.0, 1 - sum(self.compute_s) / (self.gpus * self.total_s)) if self.total_s else 0.0


class ChunkTimes:
    """Local calls, predicted once a kind: equal lengths and offset, forward or backward. Calling it gives seconds."""

    def __init__(self, problem: AttentionProblem, kernel: str | Kernel, profile: HardwareProfile) -> None:
        self.problem, self.kernel, self.profile = problem, kernel, profile
        self.known: dict[tuple[Pair, str], Prediction] = {}

    def prediction(self, pair: Pair, passes: str) -> Prediction:
        """The call of one pair on one GPU, from a cold L2."""
        if (pair, passes) not in self.known:
            self._predict([(pair, passes)])
        return self.known[pair, passes]

    def prepare(self, schedule: ChunkSchedule) -> None:
        """Predict all calls of a schedule that are not known yet, side by side."""
        kinds = dict.fromkeys((schedule.pair(c), schedule.passes) for c in schedule.computes)
        self._predict([kind for kind in kinds if kind not in self.known])

    def _predict(self, kinds: Sequence[tuple[Pair, str]]) -> None:
        asked = [Request(pair.problem(self.problem, passes), self.kernel, self.profile) for pair, passes in kinds]
        self.known |= zip(kinds, predict_many(asked), strict=True)

    def methods(self, schedule: ChunkSchedule) -> set[Method]:
        """How the HBM bytes of a schedule's calls were found."""
        return {self.prediction(schedule.pair(c), schedule.passes).method for c in schedule.computes}

    def __call__(self, pair: Pair, passes: str) -> float:
        return self.prediction(pair, passes).time.total_s

    def moved(self, schedule: ChunkSchedule, level: Level) -> list[int]:
        """Bytes at a level ("l2" or "hbm") that each GPU moves in a schedule's local calls; merging is not in them."""
        totals = [0] * schedule.gpus
        for c in schedule.computes:
            totals[c.gpu] += self.prediction(schedule.pair(c), schedule.passes).total(level)
        return totals


def simulate(
    schedule: ChunkSchedule,
    problem: AttentionProblem,
    cluster: Cluster,
    seconds: Callable[[Pair, str], float],
    *,
    overlap: bool = True,
) -> Timeline:
    """The timeline of a schedule, whose local calls take `seconds`, such as those of `ChunkTimes`; with `overlap`
    messages run beside the computations of their step."""
    widths = token_bytes(problem)
    events: list[Event] = []
    free: dict[str, float] = {}
    ready = [0.0] * schedule.gpus
    for n, step in enumerate(schedule.steps):
        sent = list(ready)
        for send in step.sends:
            link, leaves, arrives = cluster.route(send.source, send.target)
            begin = max(ready[send.source], ready[send.target], free.get(leaves, 0.0), free.get(arrives, 0.0))
            n_bytes = send_bytes(schedule, send, widths)
            free[leaves] = free[arrives] = end = begin + link.seconds(n_bytes)
            for gpu in (send.source, send.target):
                sent[gpu] = max(sent[gpu], end)
            label = f"{'+'.join(send.tensors)} of {','.join(map(str, send.chunks))}"
            events.append(Event("send", n, send.source, begin, end, send.target, label, n_bytes))
        done = list(ready) if overlap else list(map(max, ready, sent))
        for c in step.computes:
            begin = done[c.gpu]
            done[c.gpu] = begin + seconds(schedule.pair(c), schedule.passes)
            events.append(Event("compute", n, c.gpu, begin, done[c.gpu], None, f"q{c.queries}k{c.keys}"))
        ready = list(map(max, ready, sent, done))
    return Timeline(schedule.gpus, tuple(events), max(ready))

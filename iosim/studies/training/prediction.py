"""run(): from a request to memory by kind and over time and the time of a training step, and how that shows itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from iosim.base.errors import unknown_name
from iosim.base.progress import Progress, silent
from iosim.base.records import cached_property, dataclass
from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import sentences
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.prediction.result import legend_of
from iosim.problem.asked import lengths, up_to
from iosim.readers.replay.blocks import CachingAllocator
from iosim.show import axes
from iosim.show.page import Page, Panel, Section, Series
from iosim.show.shown import Part, Shown, panels_of
from iosim.show.tables import Column, Table, grouped
from iosim.studies.requests import TrainRequest
from iosim.studies.training.asked import asked_for, several
from iosim.studies.training.frontier import (
    AXES,
    GB,
    SEQ_LENS,
    TOKEN_STEP,
    Frontier,
    frontier,
    longest_sequence,
)
from iosim.studies.training.graph import Graph, Kind, by_kind, saved_storages
from iosim.studies.training.model import Decoder, Setup
from iosim.studies.training.plan import plan
from iosim.studies.training.shares import Messages, messages
from iosim.studies.training.step_time import StepTime, step_time
from iosim.studies.training.timeline import Timeline, allocated, play

MAX_POINTS = 1500
LEAST_SHOWN = 0.01
"""Share of the peak below which a kind of tensors has no area of its own."""
NARROWEST = 0.12
"""Share of the step below which a phase has no name in the plot."""
MEMORY_REM = 24.0
CAPACITY_SHOWN_FROM = 0.3
"""Share of the GPU's memory from which its line stands in the plot; below, it would flatten the rest."""


@dataclass(frozen=True, repr=False)
class TrainingPrediction(Shown):
    """Memory and time of one training step."""

    model: Decoder
    """What is trained."""
    setup: Setup
    """How it is trained."""
    profile: HardwareProfile
    """The GPU."""
    graph: Graph
    """The step's operations, tensors and parameters."""
    timeline: Timeline
    """Bytes of tensors that live, event by event."""
    time: StepTime | None
    """Seconds of the step by phase and part; None for the cpu backend."""
    reserve_bytes: int = 0
    """Bytes of the GPU's memory taken as not usable (driver context, cuBLAS' workspace)."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes of tensors that live at once."""
        return self.timeline.peak_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the GPU's memory, less the reserve."""
        return self.profile.need_memory_bytes() - self.reserve_bytes

    @property
    def fits(self) -> bool:
        """True where the peak stays within the capacity."""
        return self.peak_bytes <= self.capacity_bytes

    @cached_property
    def saved_by_kind(self) -> dict[Kind, int]:
        """Bytes kept between forward and backward, by what they hold."""
        return by_kind(saved_storages(self.graph))

    @cached_property
    def allocator(self) -> CachingAllocator:
        """The timeline's requests played through PyTorch's caching allocator."""
        return allocated(self.timeline.requests)

    def frontier(
        self,
        axis: str = "width",
        values: str | Sequence[int] | None = None,
        seq_lens: str | Sequence[int] = SEQ_LENS,
    ) -> Frontier:
        """The map of what fits, of this model and setup but for two axes: `axis` ("width", "batch" or "layers") and
        tokens. Values are a list or a text such as "1k:4k:1k", the width's default. Raises InputError: an unknown axis,
        values out of range, or more than 2,500 cells."""
        if axis not in AXES:
            raise unknown_name("`axis`", axis, AXES)
        rows = lengths(AXES[axis] if values is None else values, axis)
        columns = lengths(seq_lens, "seq_lens")
        return frontier(
            self.model,
            self.setup,
            self.profile,
            axis,
            rows,
            columns,
            reserve_bytes=self.reserve_bytes,
        )

    def curve(self) -> list[tuple[float, str, dict[Kind, int]]]:
        """(seconds since the start, phase, bytes by kind) at every event; without times, events count 1 each."""
        # Several events may belong to a node (sums of gradients, fitting): its seconds go to the first.
        seconds = {(phase, n): s for phase, n, s in self.time.nodes} if self.time else {}
        seconds["step", -1] = 0.0 if self.time is None else self.time.phase_s("step")
        now, points = 0.0, []
        for event in self.timeline.events:
            again = event.phase == "backward" and event.name.endswith("(again)")
            key = ("recompute" if again else event.phase, -1 if event.node is None else event.node)
            now += (
                1.0 if self.time is None else seconds.pop(key, 0.0)
            )  # of several events, at the first
            points.append((now, event.phase, event.by_kind))
        return points

    def to_dict(self) -> dict[str, Any]:
        peak = self.timeline.peak
        return {
            "model": self.model.to_dict()
            | {"parameters": self.graph.parameter_elements, "trained": self.graph.trained_elements},
            "setup": self.setup.to_dict(),
            "profile": self.profile.name,
            "memory_bytes": {
                "peak": self.peak_bytes,
                "peak_at": {"phase": peak.phase, "name": peak.name},
                "peak_by_kind": {str(k): v for k, v in peak.by_kind.items()},
                "phases": self.timeline.phase_peaks(),
                "saved": sum(self.saved_by_kind.values()),
                "saved_by_kind": {str(k): v for k, v in self.saved_by_kind.items()},
                "allocator": {"blocks": self.allocator.most, "reserved": self.allocator.reserved},
                "capacity": self.capacity_bytes,
            },
            "fits": self.fits,
            "time": self.time.to_dict() if self.time else None,
            "messages": self._messages_dict(),
            "timeline": self.records(),
        }

    @cached_property
    def messages(self) -> Messages:
        """Bytes that each GPU sends and receives in a step."""
        return messages(self.graph)

    def _messages_dict(self) -> dict[str, Any] | None:
        if self.setup.data_parallel == 1:
            return None
        sent = self.messages
        return {
            "gathered": sent.gathered_bytes,
            "reduced": sent.reduced_bytes,
            "nvlink_time_s": sent.seconds(self.profile),
        }

    def records(self) -> list[dict[str, Any]]:
        """The step over time, a row per event: phase, name, peak bytes, bytes after."""
        return [
            {"phase": e.phase, "name": e.name, "peak": e.peak_bytes, "after": e.after_bytes}
            for e in self.timeline.events
        ]

    @property
    def answer(self) -> str:
        """The step, and the longest sequence that fits."""
        s, by_kind, fits = (
            self.setup,
            self.timeline.peak.by_kind,
            "fits" if self.fits else "does not fit",
        )
        largest_kind = max(by_kind, key=by_kind.__getitem__)
        longest = longest_sequence(self.model, s, self.capacity_bytes)
        parts = [
            f"Training with {s.tokens} and {s.attention} attention in {s.precision} {fits} on {self.profile.name}: "
            f"{bytes_text(self.peak_bytes)} of {bytes_text(self.capacity_bytes)} at the peak{self._each()}, "
            f"most for {largest_kind}",
            f"{up_to(longest, TOKEN_STEP).capitalize()} fit"
            if longest
            else "Not even 64 tokens fit",
            *([] if self.time is None else [f"A step takes {seconds_text(self.time.total_s)}"]),
            "Counted, tensors alone",
        ]
        return sentences(parts)

    def _each(self) -> str:
        return f" per GPU of {self.setup.data_parallel}" if self.setup.data_parallel > 1 else ""

    def to_text(self) -> str:
        table, below = memory_table(self).text(), "\n".join(self._below())
        return f"{self.answer}\n\n{self._head()}\n\n{table}\n{below}\n"

    def as_page(self, frontier: Frontier | None = None, command: str = "") -> Page:
        """The whole page, with a map of what fits. `command` is the command line that makes it again."""
        gpu, size = self.profile.name, bytes_text(self.capacity_bytes)
        title, fits = f"How much memory does a training step take on {gpu}?", []
        if frontier is not None:
            title, of = f"Which models train on {gpu}?", bytes_text(frontier.capacity_bytes)
            caption = (
                f"Peak memory by {frontier.axis} and sequence length; colours show it as a share of the GPU's {of}, a "
                "cross what does not fit."
            )
            fits = [
                Section(
                    "frontier",
                    "What fits",
                    (caption,),
                    panels=(frontier.panel,),
                    table=frontier.table,
                )
            ]
        share = self.peak_bytes / self.capacity_bytes
        memory = f"The GPU's memory, {size}, lies far above: the peak takes {share:.0%} of it."
        memory = f"The dashed line is the GPU's memory, {size}." if self._shows_capacity else memory
        caption = f"Bytes of tensors that live at once, by what they hold. {memory}"
        panel, legend = memory_panel(self)
        folded, table = frontier is not None, memory_table(self)
        over = Section(
            "memory",
            "Memory over one step",
            (caption,),
            legend,
            (panel,),
            table=table,
            folded=folded,
        )
        sentence = self.answer if frontier is None else frontier.answer
        return Page(title, f"{self.subject()}.", (*fits, over), command=command, answer=(sentence,))

    @property
    def _shows_capacity(self) -> bool:
        return self.peak_bytes > CAPACITY_SHOWN_FROM * self.capacity_bytes

    def _line(self) -> str:
        time = "" if self.time is None else f", a step {seconds_text(self.time.total_s)}"
        fits = "fits" if self.fits else "does not fit"
        rest = f"{self.setup.tokens} on {self.profile.name}: peak {bytes_text(self.peak_bytes)}, {fits}{time}"
        return f"{some(self.model.layers, 'layer')} of width {self.model.width}, {rest}"

    def _parts(self) -> list[Part]:
        return [self.answer, self._head(), memory_table(self), tuple(self._below())]

    def _head(self) -> str:
        grouped = (
            f" ({self.model.kv_heads} key/value)" if self.model.heads != self.model.kv_heads else ""
        )
        return f"{self.subject(grouped, f' ({self.setup.step})')}; {self.profile.name}"

    def subject(self, grouped: str = "", step: str = "") -> str:
        m, s = self.model, self.setup
        more = []
        if s.lora_rank:
            trained = self.graph.trained_elements / 1e6
            more.append(f"LoRA of rank {s.lora_rank} on {s.lora_on} ({trained:,.1f} M trained)")
        if s.master_weights:
            more.append("fp32 master weights")
        if s.data_parallel > 1:
            more.append(f"{s.data_parallel} GPUs with ZeRO stage {s.zero}")
        return ", ".join(
            [
                f"{some(m.layers, 'layer')} of width {m.width}, {some(m.heads, 'head')}{grouped}, "
                f"{self.graph.parameter_elements / 1e6:,.1f} M parameters; batch {s.tokens}, {s.attention} attention, "
                f"{s.precision}, {s.optimizer}{step}, recompute {s.recompute}",
                *more,
            ]
        )

    def _below(self) -> list[str]:
        peak, fits = self.timeline.peak, "fits" if self.fits else "does not fit"
        phases = ", ".join(f"{p} {bytes_text(b)}" for p, b in self.timeline.phase_peaks().items())
        lines = [
            f"peak in {peak.phase}, at {peak.name}; {phases}",
            f"{fits} in {bytes_text(self.capacity_bytes)}; caching allocator: "
            f"{bytes_text(self.allocator.reserved)} reserved if no segment is given back",
        ]
        if self.time is not None:
            lines += _time_lines(self.time)
        if self.setup.data_parallel > 1:
            lines.append(_message_line(self))
        return lines

    def _panels(self) -> tuple[Panel, ...]:
        return panels_of(self.as_page())


def predict_training(
    model: Decoder,
    setup: Setup,
    profile: str | HardwareProfile = "l4",
    *,
    kernel: str | None = None,
    reserve_bytes: int = 0,
) -> TrainingPrediction:
    """Memory and time of one training step of `model` under `setup` on a GPU, with `reserve_bytes` that tensors cannot
    use. The time of `kernel`, of the catalog, stands for the attention; by default `eager`'s or PyTorch's choice.
    Raises InputError: a profile that lacks a number, an attention that cannot run on it, or sizes out of range."""
    gpu = load_profile(profile)
    graph = plan(model, setup)
    seconds = step_time(graph, gpu, kernel) if setup.backend == "cuda" else None
    return TrainingPrediction(model, setup, gpu, graph, play(graph), seconds, reserve_bytes)


def run_training(request: TrainRequest, axis: str | None = None) -> TrainingPrediction:
    model, setup = asked_for(request, axis)
    return predict_training(
        model, setup, request.gpu, kernel=request.kernel, reserve_bytes=request.reserve
    )


def map_of(request: TrainRequest, axis: str, progress: Progress = silent) -> Frontier:
    if axis not in AXES:
        raise unknown_name("`frontier`", axis, AXES)
    profile = load_profile(request.gpu)
    model, setup = asked_for(request, axis)
    rows, columns = several(request, axis, AXES[axis]), several(request, "seq_len", SEQ_LENS)
    return frontier(
        model, setup, profile, axis, rows, columns, reserve_bytes=request.reserve, progress=progress
    )


def memory_table(prediction: TrainingPrediction) -> Table:
    at, saved = prediction.timeline.peak.by_kind, prediction.saved_by_kind
    columns = (
        Column("kind", "holds"),
        Column("peak_bytes", "at the peak"),
        Column("saved_bytes", "saved by the forward"),
    )
    kinds = sorted(at | saved, key=lambda k: -at.get(k, 0))
    rows = [(str(k), at.get(k, 0), saved.get(k, 0)) for k in kinds]
    return Table(columns, (*rows, ("all", prediction.peak_bytes, sum(saved.values()))))


def _message_line(prediction: TrainingPrediction) -> str:
    sent, profile = prediction.messages, prediction.profile
    seconds = sent.seconds(profile)
    links = "Infinity Fabric" if profile.is_amd else "NVLink"
    over = "" if seconds is None else f", {seconds_text(seconds)} over {links}"
    return (
        f"each GPU sends and receives {bytes_text(sent.bytes)} per step, "
        f"{bytes_text(sent.gathered_bytes)} of parameters and {bytes_text(sent.reduced_bytes)} of "
        f"gradients{over}; the step's time is without them"
    )


def _time_lines(time: StepTime) -> list[str]:
    phases = ", ".join(
        f"{p} {seconds_text(time.phase_s(p))}" for p in time.parts if time.phase_s(p)
    )
    by_part = grouped(
        (item for parts in time.parts.values() for item in parts.items()), lambda item: item[0]
    )
    parts = {
        part: math.fsum(seconds for _, seconds in of_phases) for part, of_phases in by_part.items()
    }
    longest_first = sorted(parts.items(), key=lambda x: -x[1])
    shares = ", ".join(f"{part} {seconds_text(seconds)}" for part, seconds in longest_first)
    marks = legend_of([time.method])
    return [
        f"step {seconds_text(time.total_s)}: {phases}",
        f"of it {shares} (attention as {time.kernel})",
        *([] if marks is None else [f"attention's {marks}"]),
    ]


Bins = Sequence[tuple[float, str, dict[Kind, int]]]
"""(seconds since the start, phase, bytes by kind) of the events that a plot shows."""


def _areas(
    parts: Sequence[tuple[str, Sequence[Kind]]], bins: Bins, xs: Sequence[float]
) -> list[dict[str, Any]]:
    """A stacked area for each part: its name, and the kinds of tensors that it adds up."""
    colours = axes.PART_COLOURS
    data: list[dict[str, Any]] = []
    for n, (name, kinds) in enumerate(parts):
        amounts = [sum(by.get(k, 0) for k in kinds) for _, _, by in bins]
        hover = [
            f"{name}: {bytes_text(v)}, {phase}"
            for v, (_, phase, _) in zip(amounts, bins, strict=True)
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": xs,
                "y": [v / GB for v in amounts],
                "text": hover,
                "hovertemplate": "%{text}<extra></extra>",
                "stackgroup": "bytes",
                "fillcolor": colours[n % len(colours)],
                "line": {"color": colours[n % len(colours)], "width": 0, "shape": "vh"},
            }
        )
    return data


def memory_panel(prediction: TrainingPrediction) -> tuple[Panel, tuple[Series, ...]]:
    """A stacked area a kind, and their legend; long steps are thinned, each bin showing the event with the most bytes.
    Kinds that never take a hundredth of the peak are one."""
    curve = prediction.curve()
    step = -(-len(curve) // MAX_POINTS)
    # A plot of thousands of events is thinned; the maximum of each bin keeps the peak.
    bins = [
        max(curve[n : n + step], key=lambda e: sum(e[2].values()))
        for n in range(0, len(curve), step)
    ]
    unit = 1e3 if prediction.time else 1.0
    xs = [round(t * unit, 6) for t, _, _ in bins]
    parts = _shared_areas(bins, curve, prediction)
    data = _areas(parts, bins, xs)
    capacity, top = prediction.capacity_bytes / GB, prediction.peak_bytes / GB
    words: list[dict[str, Any]] = []
    if prediction._shows_capacity:
        data.append(
            axes.guide(
                "memory", [xs[0], xs[-1]], [capacity] * 2, f"memory: {capacity:.4g} GB", "dash"
            )
        )
        words.append(
            {
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "y": capacity,
                "yanchor": "bottom",
                "showarrow": False,
                "text": f"memory of the GPU, {capacity:.4g} GB",
                "font": {"size": 11},
            }
        )
        top = max(top, capacity)
    borders, names = _phases(bins, xs)
    x = axes.axis("time (ms)" if prediction.time else "event", range=[xs[0], xs[-1]])
    more = {
        "annotations": [*words, *names],
        "shapes": borders,
        "margin": {"l": 8, "r": 12, "t": 24, "b": 8},
    }
    layout = axes.layout(x, axes.axis("GB", range=[0, 1.1 * top]), **more)
    alt = _peak_in_words(prediction)
    legend = tuple(
        Series(trace["name"], trace["line"]["color"], "■")
        for trace in data
        if "stackgroup" in trace
    )
    return Panel("memory-0", prediction.profile.name, alt, tuple(data), layout, MEMORY_REM), legend


def _shared_areas(
    bins: Sequence[tuple[float, str, Mapping[Kind, int]]],
    curve: Sequence[tuple[float, str, Mapping[Kind, int]]],
    prediction: TrainingPrediction,
) -> list[tuple[str, list[Kind]]]:
    """Kinds by the area that they are drawn as: those that never take a hundredth of the peak share one."""
    # Kinds that never take a hundredth of the peak share one area.
    large = [
        k
        for k in Kind
        if max(by.get(k, 0) for _, _, by in curve) >= LEAST_SHOWN * prediction.peak_bytes
    ]
    small = [k for k in Kind if k not in large and any(by.get(k) for _, _, by in bins)]
    return [(str(k), [k]) for k in large] + ([("all others", small)] if small else [])


def _peak_in_words(prediction: TrainingPrediction) -> str:
    """The peak, where it lies, and how long a step takes, for those who do not see the plot."""
    peak = prediction.timeline.peak
    return (
        f"Peak {bytes_text(prediction.peak_bytes)} in {peak.phase} at {peak.name}; the GPU has "
        f"{bytes_text(prediction.capacity_bytes)}."
        + (f" A step takes {seconds_text(prediction.time.total_s)}." if prediction.time else "")
    )


def _phases(bins: Bins, xs: Sequence[float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines where a phase begins, and the names of those that are wide enough, above the plot."""
    begins: dict[str, float] = {}
    for (_, phase, _), before in zip(bins, [xs[0], *xs], strict=False):
        # A phase begins where the event before its first one ended.
        begins.setdefault(phase, before)
    borders = [*begins.values(), xs[-1]]
    lines = [
        {
            "type": "line",
            "x0": x,
            "x1": x,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": axes.NEUTRAL, "width": 1, "dash": "dot"},
        }
        for x in borders[1:-1]
    ]
    names = [
        {
            "x": (first + last) / 2,
            "yref": "paper",
            "y": 1,
            "yanchor": "bottom",
            "showarrow": False,
            "text": phase,
            "font": {"size": 11},
        }
        for phase, (first, last) in zip(begins, pairwise(borders), strict=True)
        if last - first >= NARROWEST * (xs[-1] - xs[0])
    ]
    return lines, names

"""run(): what a request for latencies asks for, and the result that shows itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import seconds_text, some
from iosim.base.words import sentences
from iosim.hardware.profile import load_profile
from iosim.kernel.serving import read_stack, stack_names
from iosim.prediction.answer import trust
from iosim.problem.attention import AttentionProblem
from iosim.show.shown import Part as ShownPart
from iosim.show.shown import Shown
from iosim.show.tables import Column, Table
from iosim.studies.decode.decode import read_contexts
from iosim.studies.latency.calibration import read_calibration
from iosim.studies.latency.latency import AllLayers, Latency, latencies, of_layers, sizes_of
from iosim.studies.models.asked import chosen, layer_problems
from iosim.studies.models.layers import Layers
from iosim.studies.requests import LatencyRequest

MASKED = ("mask", "causal", "window", "window_right", "mask_file", "mask_blocks")
LENGTHS = ("batch", "seq_q", "seq_k", "seq_lens", "seq_lens_k", "prefix")
COLUMNS = (
    Column("stack", "stack"), Column("gpu", "gpu"), Column("kernel", "kernel"), Column("batch", "batch", "count"),
    Column("seq_q", "new tokens", "count"), Column("seq_k", "keys", "count"), Column("part", "part"),
    Column("time_s", "time", "seconds"), Column("share", "share"),
)  # fmt: skip
MODEL_COLUMNS = (
    Column("stack", "stack"), Column("gpu", "gpu"), Column("layer", "layer"), Column("layers", "layers", "count"),
    Column("time_s", "time of a step", "seconds"), Column("share", "share"),
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Latencies(Shown):
    """Calls in serving stacks, for every stack, GPU and problem asked for."""

    points: tuple[Latency, ...]
    """A point a stack, GPU and problem, in the order of the request."""

    def __iter__(self) -> Iterator[Latency]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def models(self) -> tuple[AllLayers, ...]:
        """All layers of a model together, for every stack, GPU and length; none without a model."""
        steps: list[list[Latency]] = []
        for p in self.points:
            if p.layers is not None:
                if not steps or p.layers.name in {q.layers.name for q in steps[-1] if q.layers is not None}:
                    steps.append([])
                steps[-1].append(p)
        return tuple(AllLayers(tuple(step)) for step in steps)

    @property
    def answer(self) -> str:
        """One sentence."""
        return answer(self.points, self.models)

    def to_dict(self) -> dict[str, Any]:
        """The command line's JSON, but for its answer."""
        together = {"models": [step.to_dict() for step in self.models]} if self.models else {}
        return {"schema": 1, "latencies": [p.to_dict() for p in self.points]} | together

    def records(self) -> list[dict[str, Any]]:
        """A row a part of a call: its seconds, and those of the call."""
        return [
            of_layers(p.layers) |
            {"stack": p.stack.name, "gpu": p.prediction.profile.name, "kernel": p.prediction.kernel.name,
             "splits": p.prediction.kernel.splits, **sizes_of(p.prediction.problem), "part": part.name,
             "time_s": part.seconds, "call_s": p.total_s}
            for p in self.points for part in p.parts
        ]  # fmt: skip

    def to_text(self) -> str:
        below = "".join(f"note: {n}\n" for n in notes(self.points))
        together = f"\nBy kind of layer\n{of_models(self.models).text()}\n" if self.models else ""
        return f"{self.answer}\n\n{table(self.points).text()}{together}{below}"

    def _line(self) -> str:
        names = ", ".join(dict.fromkeys(p.stack.name for p in self))
        return f"{names}; {some(len(self), 'call')} up to {seconds_text(max(p.total_s for p in self))}"

    def _parts(self) -> list[ShownPart]:
        together = [of_models(self.models)] if self.models else []
        return [self.answer, table(self.points), *together, notes(self.points)]

    def _panels(self) -> tuple[()]:
        return ()


def run(request: LatencyRequest) -> Latencies:
    """Every problem, of a model one for each kind of its layers, in every stack on every GPU. Raises InputError: values
    that make no sense or contradict each other, an unknown stack, a GPU that it has no kernel for, or a problem that
    the kernel cannot run."""
    r, constants = request, None
    if r.calibration is not None:
        if len(r.stack) != 1 or len(r.gpu) != 1:
            raise InputError("`calibration` is of one stack on one GPU; accepted with it: one `stack` and one `gpu`")
        gpu = load_profile(r.gpu[0]) if isinstance(r.gpu[0], str) else r.gpu[0]
        constants = read_calibration(r.calibration, r.stack[0], gpu.name)
    return Latencies(latencies(asked_problems(r), r, constants))


def asked_problems(r: LatencyRequest) -> list[tuple[Layers | None, AttentionProblem]]:
    """The problems of a request, each with the layers of a model that make it: causal where no mask is named;
    `batch_contexts` makes one of a step of all its sequences. Raises InputError: other lengths or a model beside
    `batch_contexts`, or values that make no sense."""
    if r.problems is not None:
        return [(None, problem) for problem in r.problems]
    if r.model is not None and r.batch_contexts is not None:
        raise InputError("`batch_contexts` contradicts `model`; accepted with it: `batch`, `seq_q` and `seq_k`")
    model = chosen(r.model, r.values, r.layers, r.tensor_parallel)
    values = dict(r.values)
    if r.batch_contexts is not None:
        for name in LENGTHS:
            if (value := values.pop(name, None)) not in (None, 1, [1]):
                said = ",".join(map(str, value)) if isinstance(value, list) else value
                raise InputError(
                    f"`{name}` {said} contradicts `batch_contexts`, which says the sequences; give one of them"
                )
        keys = read_contexts(r.batch_contexts)
        values |= {"mask": "none", "seq_lens": (1,) * len(keys), "seq_lens_k": tuple(keys)}
    if model is None and all(values.get(name) in (None, False) for name in MASKED):
        values["causal"] = True
    return layer_problems(model, values)


def stack_rows() -> list[dict[str, Any]]:
    """A row a stack: its kernels by compute capability, pages, and what else a call launches."""
    return [
        {
            "name": stack.name, "title": stack.title, "version": stack.version, "page_size": stack.page_size,
            "kernels": [f"{name} ({', '.join(f'{cc / 10:.1f}' for cc in ccs)})" for name, ccs in stack.kernels],
            "extras": [extra.name for extra in stack.extras], "call_gap_s": stack.call_gap_s, "source": stack.source,
        }
        for stack in map(read_stack, stack_names())
    ]  # fmt: skip


def answer(points: Sequence[Latency], models: Sequence[AllLayers] = ()) -> str:
    """What a call takes by stack, GPU and problem; of many, the longest call alone, or of all layers of a model
    at the length that takes longest."""
    if models:
        most = max(models, key=lambda step: step.total_s)
        size = most.to_dict()
        alike = [m for m in models if m.to_dict()["seq_k"] == size["seq_k"] and m.to_dict()["batch"] == size["batch"]]
        told = ", ".join(f"{seconds_text(m.total_s)} in {m.points[0].stack.name} on "
                         f"{m.points[0].prediction.profile.name}" for m in alike)  # fmt: skip
        checked = trust([p.prediction for m in alike for p in m.points])
        return sentences([f"The attention of all {some(most.count, 'layer')} of {most.title} takes {told}", checked])
    longest = max(points, key=lambda p: p.total_s).prediction.problem
    here = [p for p in points if p.prediction.problem.sequences == longest.sequences]
    clauses = [_clause(p) for p in here]
    return sentences([f"An attention call takes {', '.join(clauses)}", trust([p.prediction for p in here])])


def _clause(p: Latency) -> str:
    most = max(p.parts, key=lambda part: part.seconds)
    share = 100 * most.seconds / p.total_s
    return f"{seconds_text(p.total_s)} in {p.stack.name} on {p.prediction.profile.name} ({share:.0f} % {most.name})"


def table(points: Sequence[Latency]) -> Table:
    """A row a part, and one a call."""
    rows = []
    for p in points:
        each = p.prediction.problem.sequences
        keys = {k for _, k in each}
        head = (p.stack.name, p.prediction.profile.name, p.prediction.kernel.name, len(each),
                p.prediction.problem.longest_q, max(keys))  # fmt: skip
        for part in p.parts:
            rows.append((*head, part.name, part.seconds, f"{100 * part.seconds / p.total_s:.0f} %"))
        rows.append((*head, "whole call", p.total_s, "100 %"))
    return Table(COLUMNS, tuple(rows))


def of_models(models: Sequence[AllLayers]) -> Table:
    """A row for each kind of a model's layers, and one for all of them."""
    rows = []
    for step in models:
        head = (step.points[0].stack.name, step.points[0].prediction.profile.name)
        for p in step.points:
            if p.layers is not None:
                seconds = p.total_s * p.layers.count
                rows.append((*head, p.layers.name, p.layers.count, seconds, f"{100 * seconds / step.total_s:.0f} %"))
        rows.append((*head, "all", step.count, step.total_s, "100 %"))
    return Table(MODEL_COLUMNS, tuple(rows))


def notes(points: Sequence[Latency]) -> tuple[str, ...]:
    """What the times assume."""
    told = dict.fromkeys(f"assumed: {sentence}" for p in points for sentence in p.assumes)
    between = ("each layer finds in the L2 what its own call left there; --l2 cold: nothing of it is left",)
    told |= dict.fromkeys(
        between if any(p.layers is not None and p.prediction.l2_start == "warm" for p in points) else ()
    )
    of_kernels = dict.fromkeys(note for p in points for note in p.prediction.kernel.notes)
    missing = dict.fromkeys(note for p in points for note in p.prediction.time.missing)
    return (*told, *of_kernels, *missing)

"""run(): the ways of spreading one attention over several GPUs, side by side; run_model(): of a model's layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import asdict, dataclass, plain
from iosim.base.units import bytes_text, seconds_text, some
from iosim.base.words import DEFAULT, sentences
from iosim.catalog.libraries import resolve
from iosim.catalog.libraries.default import told
from iosim.hardware.profile import HardwareProfile, load_profile
from iosim.kernel.conditions import Conditions
from iosim.kernel.kernel import Kernel
from iosim.prediction.confidence import in_dtype
from iosim.prediction.result import legend_of
from iosim.problem.attention import AttentionProblem
from iosim.show.page import Page, Panel
from iosim.show.shown import Part, Several, panels_of
from iosim.show.tables import Column, Table, grouped
from iosim.studies.distributed import face
from iosim.studies.distributed.links import TIMED_GPUS, Cluster, cluster, longer_than_predicted
from iosim.studies.distributed.study import Result, study
from iosim.studies.models.asked import calls_of, chosen, layer_problems
from iosim.studies.models.layers import LayerKind, Model
from iosim.studies.requests import RingRequest

COLUMNS = (
    Column("name", "method"),
    Column("layers", kind="count"),
    Column("time_s", "time"),
    Column("received_bytes", "received"),
)


@dataclass(frozen=True, repr=False)
class Ring(Several[Result]):
    """One attention over several GPUs, by every method asked for."""

    problem: AttentionProblem
    """What all GPUs compute together."""
    num_gpus: int
    """Number of GPUs."""
    profile: HardwareProfile
    """The kind of GPU."""
    links: Cluster
    """The links between them."""
    kernel: str | Kernel
    """The kernel of a pair of chunks; a GPU's own by the name that it has for the whole problem."""
    overlap: bool
    """True where messages run beside the computations of their step."""
    results: tuple[Result, ...]
    """A result per method."""
    by_default: str = ""
    """That nobody named the kernel, and that launching takes longest; empty where neither is so."""
    steps: bool = False
    """True where the chunk schedules are shown, step by step."""

    @property
    def _members(self) -> tuple[Result, ...]:
        return self.results

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "problem": self.problem.to_dict(),
            "gpus": self.num_gpus,
            "profile": self.profile.name,
            "kernel": self.kernel_name,
            **asdict(self.links),
            "overlap": self.overlap,
            "timed_gpus": TIMED_GPUS,
            "longer_than_predicted": list(longer_than_predicted(self.num_gpus)),
            "results": [
                r.to_dict()
                | {"schedules": [s.to_dict() for s in r.schedules] if self.steps else None}
                for r in self.results
            ],
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """A row per method: bytes, seconds, idle fractions."""
        return (
            {key: value for key, value in r.row.items() if key != "title"} for r in self.results
        )

    @property
    def kernel_name(self) -> str:
        """The kernel's name."""
        return self.kernel if isinstance(self.kernel, str) else self.kernel.name

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        gpus = f"{self.num_gpus} x {self.profile.name}{in_dtype(self.problem, self.profile)}"
        return face.methods_answer(self.results, gpus, self.num_gpus)

    def to_text(self) -> str:
        legend = legend_of(r.method for r in self)
        marks = "" if legend is None else f"  times with {legend}\n"
        steps = "".join(f"\n{s.to_text()}" for r in self for s in r.schedules) if self.steps else ""
        table = face.methods_table(self.results, face.ON_TERMINAL).text()
        under = face.beneath(self.results, self.num_gpus, self.by_default)
        return (
            f"{self.answer}\n\n{self._subject()}\n\n{table}\n{face.NOTES}{marks}{steps}\n{under}\n"
        )

    def as_page(self, command: str = "iosim ring") -> Page:
        return face.as_page(self.results, self.problem, self.num_gpus, self._subject(), command)

    def _line(self) -> str:
        methods = ", ".join(r.name for r in self)
        return (
            f"{self.num_gpus} x {self.profile.name}, {some(self.problem.seq_q, 'token')}: {methods}"
        )

    def _parts(self) -> list[Part]:
        notes = tuple(line.strip() for line in face.NOTES.splitlines())
        return [
            self.answer,
            self._subject(),
            face.methods_table(self.results, face.ON_TERMINAL),
            notes,
        ]

    def _subject(self) -> str:
        p, links = self.problem, self.links
        nodes = (
            f", nodes of {links.gpus_per_node} joined by {links.network.name}"
            if links.network
            else ""
        )
        link, reached = links.link, links.link.achieved.get("exchange")
        share = "" if reached is None else f", {reached:.0%} of it reached,"
        return (
            f"{self.num_gpus} x {self.profile.name}, {link.name} at {link.bandwidth_bytes_per_s / 1e9:g} GB/s in one "
            f"direction{share} and {1e6 * link.latency_s:.3g} us a message{nodes}; kernel {self.kernel_name}, {p.line}"
        )

    def _panels(self) -> tuple[Panel, ...]:
        return panels_of(self.as_page())


@dataclass(frozen=True)
class RingStack:
    """A model's layers over several GPUs."""

    model: Model
    rings: tuple[tuple[LayerKind, Ring], ...]
    """A study for each kind of layer that can be spread."""
    left_out: tuple[tuple[LayerKind, str], ...]
    """The other kinds, and why."""

    @property
    def totals(self) -> list[dict[str, Any]]:
        """Seconds and bytes received of all layers that can be spread, by method, those of every kind."""
        # Only methods that can spread every kind of layer have a sum over the model.
        by_name = grouped(
            ((kind.count, r) for kind, ring in self.rings for r in ring), lambda pair: pair[1].name
        )
        return [
            {
                "name": name,
                "layers": sum(n for n, _ in of_kinds),
                "time_s": math.fsum(n * r.seconds for n, r in of_kinds),
                "received_bytes": sum(n * float(r.received_bytes) for n, r in of_kinds),
            }
            for name, of_kinds in by_name.items()
            if len(of_kinds) == len(self.rings)
        ]

    @property
    def answer(self) -> str:
        """The fastest method for all layers, in one sentence."""
        first, best = self.rings[0][1], min(self.totals, key=lambda row: row["time_s"])
        more = (
            f", {sum(kind.count for kind, _ in self.left_out)} others left out"
            if self.left_out
            else ""
        )
        spread = f"{some(best['layers'], 'layer')} of {self.model.title}{more}"
        where = (
            f"Over {first.num_gpus} x {first.profile.name}{in_dtype(first.problem)}, "
            f"{some(first.problem.seq_q, 'token')}"
        )
        kernels = "".join(
            dict.fromkeys(f"; {ring.by_default}" for _, ring in self.rings if ring.by_default)
        )
        takes = f"{seconds_text(best['time_s'])}, a GPU receiving {bytes_text(best['received_bytes'])}{kernels}"
        return f"{where}, {best['name']} is the fastest for the attention of {spread}: {takes}."

    def to_dict(self) -> dict[str, Any]:
        layers = [
            {"layer": kind.name, "count": kind.count, **ring.to_dict()} for kind, ring in self.rings
        ]
        left_out = [
            {"layer": kind.name, "count": kind.count, "reason": why} for kind, why in self.left_out
        ]
        return (
            {"schema": 1}
            | plain(model=self.model, totals=self.totals)
            | {"layers": layers, "left_out": left_out}
        )

    def records(self) -> Iterator[dict[str, Any]]:
        for kind, ring in self.rings:
            for row in ring.records():
                yield {"model": self.model.name, "layer": kind.name, "count": kind.count, **row}

    def to_text(self) -> str:
        layers = sum(kind.count for kind, _ in self.rings)
        table = Table.of(self.totals, COLUMNS).text().rstrip()
        out = [self.answer, f"{self.model.line}.", f"All {some(layers, 'layer')}\n{table}"]
        out += [
            f"left out: {some(kind.count, f'{kind.name} layer')}: {why}"
            for kind, why in self.left_out
        ]
        out += [f"{kind.title}. {ring.to_text().rstrip()}" for kind, ring in self.rings]
        return (
            "\n\n".join((*out, "\n".join(f"note: {note}" for note in self.model.all_notes))) + "\n"
        )


def run_ring(request: RingRequest, *, steps: bool = False, progress: Progress = silent) -> Ring:
    chosen(None, {}, tensor_parallel=request.tensor_parallel)
    problems = request.problems or [problem for _, problem in layer_problems(None, request.values)]
    if len(problems) > 1:
        several = f"`seq_q` {request.values.get('seq_q')} are {len(problems)} lengths"
        raise InputError(f"{several}; 'ring' takes one, so accepted: one of them")
    return _ring(
        problems[0], request, 1 if request.layers is None else request.layers, steps, progress
    )


def run_model(
    request: RingRequest, *, steps: bool = False, progress: Progress = silent
) -> RingStack:
    """A study for each kind of the layers of a request's model."""
    model = chosen(request.model, request.values, request.layers, request.tensor_parallel)
    assert model is not None
    calls_by_length = calls_of(model, request.values)
    if len(calls_by_length) != 1:
        raise InputError(
            f"`seq_q` {request.values.get('seq_q')} are {len(calls_by_length)} lengths; accepted: one of them"
        )
    rings, left_out = [], []
    for call in calls_by_length[0]:
        try:
            rings.append(
                (call.kind, _ring(call.problem, request, call.kind.count, steps, progress))
            )
        except InputError as error:
            # Kept for the case that no kind can be spread: then the last refusal is the answer.
            refused = error
            left_out.append((call.kind, str(error)))
    if not rings:
        raise refused
    return RingStack(model, tuple(rings), tuple(left_out))


def _ring(
    problem: AttentionProblem, r: RingRequest, layers: int, steps: bool, progress: Progress
) -> Ring:
    profile = load_profile(r.gpu)
    links = cluster(profile, r.link, r.network, r.gpus_per_node, shared_network=r.shared_network)
    kernel, by_default = r.kernel, ""
    if kernel == DEFAULT:
        # The GPU's own kernel is chosen for the whole problem and named, so that all chunks run it.
        gpu_kernel = resolve(kernel, problem, profile)
        kernel, by_default = gpu_kernel.name, told([(gpu_kernel, profile)])
    results = study(
        problem,
        r.num_gpus,
        profile,
        links,
        kernel=kernel,
        names=r.schedule,
        overlap=r.overlap,
        layers=layers,
        conditions=Conditions(clocks=r.clocks, launched=r.launched),
        progress=progress,
    )
    notes = sentences((by_default, _launching(results, links, r.launched)))
    return Ring(
        problem,
        r.num_gpus,
        profile,
        links,
        kernel,
        r.overlap,
        tuple(results),
        notes.removesuffix("."),
        steps,
    )


def _launching(results: Sequence[Result], links: Cluster, launched: str) -> str:
    """That the processor, launching messages, takes longer than the GPUs compute, where it does by the fastest."""
    best = min(results, key=lambda r: r.seconds)
    # Each step that sends anything is one launch of messages, by either pass.
    host_s = links.link.host_s * sum(bool(step.sends) for s in best.schedules for step in s.steps)
    if launched == "graph" or host_s <= best.compute_s:
        return ""
    took = f"The processor takes {seconds_text(host_s)} to launch {best.name}'s messages, longer than the GPUs compute"
    return f"{took}; from a CUDA graph (`--launched graph`) it takes none"

"""A report as data: its predictions, what cannot run and why, the figures and the command lines behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass
from iosim.kernel.algorithms import algorithm_of
from iosim.prediction.estimates import legend, marked
from iosim.prediction.many import Request, try_all
from iosim.prediction.result import Prediction
from iosim.show.page import Figure
from iosim.show.tables import Table, grouped
from iosim.studies.report.request import Gpu, ReportRequest

ALWAYS_SAID = "HBM: replay; "
"""Part of a note that every replayed prediction has: the bytes left dirty, which its own command line tells."""


@dataclass(frozen=True)
class Point:
    """One prediction, with the id of the command line that gives it."""

    id: str
    gpu: Gpu
    kernel: str
    seq_len: int
    prediction: Prediction

    @property
    def l2(self) -> int:
        return self.prediction.total("l2")

    @property
    def smem(self) -> int | None:
        """Bytes at shared memory; None where they are not known."""
        return self.prediction.smem.total if self.prediction.smem else None

    @property
    def hbm(self) -> int | None:
        """Bytes between L2 and HBM; None where only bounds are known."""
        return self.prediction.total("hbm") if self.prediction.hbm_known else None

    @property
    def hbm_shown(self) -> float | None:
        return marked(self.hbm, self.prediction)

    @property
    def naive(self) -> bool:
        """Whether its kernel passes over an N x N matrix in memory."""
        return algorithm_of(self.prediction.kernel.algorithm).standard

    @property
    def compulsory(self) -> int:
        b = self.prediction.hbm_bounds
        return b.compulsory_read + b.compulsory_write

    @property
    def no_l2(self) -> int:
        b = self.prediction.hbm_bounds
        return b.no_l2_read + b.no_l2_write

    @property
    def time_s(self) -> float:
        return self.prediction.time.total_s

    def value(self, quantity: str) -> float | None:
        """Bytes at "l2" or "hbm", seconds ("time") or bytes at the peak ("memory"); None where it is not known."""
        peak = self.prediction.memory_bytes["peak"]
        return {"l2": self.l2, "hbm": self.hbm, "time": self.time_s, "memory": peak}[quantity]

    @property
    def flops(self) -> int:
        return self.prediction.flops


@dataclass(frozen=True)
class Omission:
    """A kernel that cannot run on a GPU at some lengths."""

    gpu: str
    kernel: str
    lengths: tuple[int, ...]
    reason: str


def collect(
    request: ReportRequest, progress: Progress = silent
) -> tuple[tuple[Point, ...], tuple[Omission, ...], dict[str, str]]:
    """The predictions of a request, what is omitted, and the command lines by id."""
    points: list[Point] = []
    commands: dict[str, str] = {}
    refused: dict[tuple[str, str, str], list[int]] = {}
    refusals: list[InputError] = []
    jobs = request.jobs
    asked = [
        Request(problem, name, gpu.profile, l2_start=request.l2_start, method=request.method)
        for gpu, _, problem, name in jobs
    ]
    for (gpu, kernel, problem, _), outcome in zip(jobs, try_all(asked, progress=progress), strict=True):
        if isinstance(outcome, InputError):
            refusals.append(outcome)
            refused.setdefault((gpu.label, kernel, str(outcome)), []).append(problem.seq_q)
            continue
        point = Point(f"P{len(points) + 1:03d}", gpu, kernel, problem.seq_q, outcome)
        commands[point.id] = request.predict_line(gpu, kernel, problem)
        points.append(point)
    omissions = tuple(Omission(gpu, kernel, tuple(at), why) for (gpu, kernel, why), at in refused.items())
    if not points:
        raise InputError(f"no kernel of this report can run: {refusals[0].marked}")
    return tuple(points), omissions, commands


def by_gpu(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Points by their GPU's label, in the order of the request."""
    return grouped(points, lambda point: point.gpu.label)


def series(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Points of one GPU by kernel, in the order of the request."""
    return grouped(points, lambda point: point.kernel)


def baseline(points: Iterable[Point]) -> str | None:
    """The first kernel of the report that is naive; None without one."""
    return next((p.kernel for p in points if p.naive), None)


def least_bytes(points: Iterable[Point]) -> dict[int, int]:
    """Compulsory bytes by length: the least of all kernels."""
    least: dict[int, int] = {}
    for p in points:
        least[p.seq_len] = min(least.get(p.seq_len, p.compulsory), p.compulsory)
    return dict(sorted(least.items()))


@dataclass(frozen=True)
class Report:
    title: str
    request: ReportRequest
    points: tuple[Point, ...]
    omissions: tuple[Omission, ...]
    summary: Table
    figures: tuple[Figure, ...]
    commands: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def has_ratios(self) -> bool:
        """Whether the summary compares anything with a naive kernel."""
        return any(row[self.summary.index("ratio_l2")] is not None for row in self.summary.rows)

    @property
    def legend(self) -> str | None:
        """What the marks of HBM bytes mean; None where none is marked."""
        return legend(p.prediction for p in self.points)

    def figure(self, figure_id: str) -> Figure:
        """The figure called `figure_id`; a KeyError where there is none."""
        return {figure.id: figure for figure in self.figures}[figure_id]


def fits(p: Point) -> str | None:
    """Whether the call's memory is no more than the GPU's; None where the profile does not know its own."""
    size = p.gpu.profile.memory_bytes
    return None if size is None else "yes" if p.prediction.memory_bytes["peak"] <= size else "no"


def notes(points: Sequence[Point]) -> tuple[str, ...]:
    """What the predictions say of themselves, each once, with the kernels that say it."""
    kernels_of: dict[str, dict[str, None]] = {}
    for p in points:
        for note in (*p.prediction.notes, *p.prediction.time.missing):
            kernels_of.setdefault(note, {})[p.kernel] = None
    named = ((", ".join(kernels), note) for note, kernels in kernels_of.items())
    return tuple(note if note.startswith(f"{names}: ") else f"{names}: {note}" for names, note in named)

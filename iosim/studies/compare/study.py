"""compare(): predictions of kernels x GPUs x sequence lengths in one table, with ratios to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, plain, replace
from iosim.base.words import DEFAULT, Level
from iosim.catalog.algorithms import algorithm_of
from iosim.catalog.libraries import entry, is_choice
from iosim.kernel.conditions import Conditions
from iosim.kernel.launch import Chain, Rows
from iosim.prediction.result import Prediction, legend, marked
from iosim.problem.attention import AttentionProblem
from iosim.show.shown import Faced
from iosim.show.tables import grouped
from iosim.studies.compare.points import CaseGrid, Omission, Point, collect, label_of, name_on
from iosim.studies.compare.points import notes as said
from iosim.studies.requests import CompareRequest

USUAL_KERNELS = ("naive", DEFAULT)
MAIN = ("Q", "K", "V", "O", "dO", "dQ", "dK", "dV")
NAMED = {
    **dict.fromkeys(MAIN, "Q, K, V, O"),
    **dict.fromkeys(("bias", "slopes", "dBias", "dBias_heads", "S_biased"), "bias"),
    **dict.fromkeys(
        ("mask", "mask_added", "padding", "S_masked", "S_padded", "dS_masked", "dS_padded"), "masks"
    ),
    **dict.fromkeys(("dropout_mask", "rng_state", "P_dropped", "dP_dropped"), "dropout"),
}
GROUPS = ("Q, K, V, O", "row statistics", "scores", "bias", "masks", "dropout", "copies", "other")
"""Gradients stand with their tensors. Each further pass over the scores stands with the term that asks for it: its
result, where another launch reads it, too. "copies" are casts, partial results and sums; "other" follows no tensor."""


def group_of(chain: Chain, tensor: str) -> str:
    """The group of a tensor of a chain, by its name, its shape and how launches cut it."""
    if tensor in NAMED:
        return NAMED[tensor]
    if tensor not in chain.tensors:
        return "other"
    # Vectors along the queries: log-sum-exp, row maxima and sums.
    if chain.tensors[tensor].is_vector:
        return "row statistics"
    # A tensor that launches cut along queries and keys alike is an N x N matrix.
    cut_both_ways = any(
        a.tensor == tensor and a.rows is Rows.PAIR for x in chain.launches for a in x.accesses
    )
    return "scores" if cut_both_ways else "copies"


def by_group(p: Prediction, level: Level) -> dict[str, int]:
    """Bytes at "l2" or "hbm", read and written together, by group; groups without any are left out."""
    sums: dict[str, int] = {}
    for row in p.traffic:
        if row.level == level and row.bytes:
            group = group_of(p.chain, row.tensor)
            sums[group] = sums.get(group, 0) + int(row.bytes)
    return {group: sums[group] for group in GROUPS if group in sums}


QUANTITIES = ("l2", "hbm", "time", "memory")


@dataclass(frozen=True)
class Baseline:
    """A kernel, on each row's own GPU or on one that is named."""

    kernel: str
    """Its name."""
    gpu: str | None = None
    """The GPU that all rows are held against; None for each row's own."""

    def __str__(self) -> str:
        return self.kernel if self.gpu is None else f"{self.kernel}@{self.gpu}"


@dataclass(frozen=True)
class Entry:
    """One kernel on one GPU at one length: its prediction, or the reason why there is none."""

    gpu: str
    kernel: str
    seq_len: int
    point: Point | None
    reason: str | None = None
    baseline: Point | None = None
    requested: str = ""
    """The kernel as it was asked for, which may be the GPU's own."""

    def value(self, quantity: str) -> float | None:
        """Bytes at "l2" or "hbm", seconds ("time") or bytes at the peak ("memory"); None where it is not known."""
        return None if self.point is None else self.point.value(quantity)

    def ratio(self, quantity: str) -> float | None:
        """The baseline's value over this one's: above 1, this kernel is better. None where either is not known."""
        if self.point is None or self.baseline is None:
            return None
        above, below = self.baseline.value(quantity), self.point.value(quantity)
        return above / below if above is not None and below else None

    def shown(self, quantity: str) -> float | None:
        """A ratio as `ratio` gives it, with marks where it follows from estimates of HBM bytes."""
        if self.point is None or self.baseline is None or quantity != "hbm":
            return self.ratio(quantity)
        return marked(self.ratio(quantity), self.baseline.prediction, self.point.prediction)

    def to_dict(self) -> dict[str, Any]:
        p = None if self.point is None else self.point.prediction
        row: dict[str, Any] = {"gpu": self.gpu, "kernel": self.kernel, "seq_q": self.seq_len}
        row["tile"] = None if p is None else str(p.kernel.tile)
        for level in ("l2", "hbm", "smem"):
            # Bytes at HBM are absent with `bounds`, those of shared memory where they are not described.
            known = (
                p is not None and {"l2": True, "hbm": p.hbm_known, "smem": p.smem_known()}[level]
            )
            for direction in ("read", "write"):
                row[f"{level}_{direction}_bytes"] = (
                    p.total(level, direction) if p is not None and known else None
                )
        row["method"] = None if p is None else p.method
        row["compulsory_bytes"] = None if self.point is None else self.point.compulsory
        row["time_s"] = None if p is None else p.time.total_s
        row["bound_by"] = None if p is None else p.time.bound_by
        row["peak_bytes"] = None if p is None else p.memory_bytes["peak"]
        row["workspace_bytes"] = None if p is None else p.memory_bytes["workspace"]
        row["fits"] = None if self.point is None else self.point.fits
        row |= {f"{q}_ratio": self.ratio(q) for q in QUANTITIES}
        return row | {"reason": self.reason}


@dataclass(frozen=True, repr=False)
class Comparison(Faced):
    """Entries by length, GPU and kernel, in the order of the request."""

    _face = "iosim.studies.compare.face"

    request: CaseGrid
    """What was asked: problems, kernels, GPUs, the method."""
    baseline: Baseline
    """What the ratios are to."""
    entries: tuple[Entry, ...]
    """A row per kernel, GPU and length, what cannot run among them."""
    notes: tuple[str, ...]
    """What a reader of the numbers should know, a sentence each."""
    commands: Mapping[str, str]
    """The command line of every prediction, by its id."""

    @property
    def legend(self) -> str | None:
        """What the marks of HBM bytes mean; None where none is marked."""
        return legend(p.prediction for p in self.points)

    @property
    def missing(self) -> tuple[Entry, ...]:
        """What cannot run."""
        return tuple(e for e in self.entries if e.point is None)

    @property
    def omissions(self) -> tuple[Omission, ...]:
        """What cannot run, the lengths together that have one reason, in the order of the request."""
        reasons = {(e.gpu, e.kernel, e.seq_len): str(e.reason) for e in self.missing}
        cases = [(gpu.label, kernel, p.seq_q) for gpu, kernel, p, _ in self.request.jobs]
        alike = grouped(
            (case for case in cases if case in reasons), lambda case: (*case[:2], reasons[case])
        )
        return tuple(
            Omission(gpu, kernel, tuple(length for *_, length in cases_of), reason)
            for (gpu, kernel, reason), cases_of in alike.items()
        )

    @property
    def points(self) -> tuple[Point, ...]:
        """The predictions, of what can run."""
        return tuple(e.point for e in self.entries if e.point is not None)

    def to_dict(self) -> dict[str, Any]:
        """The command line's JSON. `rows` are flat; `tensors` gives bytes by group of tensors, a row per prediction."""
        first = self.request.problems[0].to_dict()
        problem = {k: v for k, v in first.items() if k not in ("seq_q", "seq_k", "offset")}
        tensors = [
            plain(gpu=p.gpu.label, kernel=p.kernel, seq_q=p.seq_len)
            | {"l2": by_group(p.prediction, "l2")}
            | {"hbm": by_group(p.prediction, "hbm") if p.prediction.hbm_known else None}
            for p in self.points
        ]
        conditions = plain(
            method=self.request.method,
            legend=self.legend,
            l2_start=self.request.l2_start,
            rows=self.entries,
        )
        document = {
            "schema": 1,
            "problem": problem,
            "baseline": str(self.baseline),
            **conditions,
            "tensors": tensors,
        }
        return document | plain(notes=self.notes, commands=self.commands)

    def records(self) -> list[dict[str, Any]]:
        return [e.to_dict() for e in self.entries]


def compare(
    problems: Sequence[AttentionProblem],
    kernels: Sequence[str],
    gpus: Sequence[str],
    *,
    progress: Progress = silent,
    **options: Any,
) -> Comparison:
    return run_comparison(
        CompareRequest(problems=problems, kernel=kernels, gpu=gpus, **options), progress
    )


def run_comparison(compare_request: CompareRequest, progress: Progress = silent) -> Comparison:
    """Every kernel on every GPU for every problem; the problems may differ in their sequence length alone. The
    baseline, a kernel or `kernel@gpu`, joins the kernels where it is not among them; by default it is the first kernel
    that makes passes over N x N tensors, else the first, of those that run."""
    method, l2_start, baseline = (
        compare_request.method,
        compare_request.l2_start,
        compare_request.baseline,
    )
    Conditions(method=method, l2_start=l2_start)
    names = tuple(
        dict.fromkeys(
            k.strip().lower()
            for k in (USUAL_KERNELS if compare_request.kernel is None else compare_request.kernel)
        )
    )
    if not names:
        raise InputError("`kernel` is empty; a comparison needs at least one")
    # Without a named baseline: the first kernel that writes N x N matrices, by which the others
    # save.
    standard = (
        n for n in names if not is_choice(n) and algorithm_of(entry(n)["algorithm"]).standard
    )
    kernel, _, where = (
        (next(standard, names[0]) if baseline is None else baseline).strip().lower().partition("@")
    )
    # A baseline that was not among the kernels is predicted, too, in the first row.
    names = names if kernel in names else (kernel, *names)
    request = CaseGrid.of(
        tuple(compare_request.gpu),
        names,
        tuple(compare_request.problems),
        l2_start=l2_start,
        method=method,
    )
    against = Baseline(kernel, label_of(request.gpus, where, "baseline") if where else None)
    comparison = compared(request, against, progress, is_default=baseline is None)
    if method == "bounds":
        without_hbm = "time: without that of HBM, whose bytes the bounds alone do not give"
        return replace(comparison, notes=(without_hbm, *comparison.notes))
    return comparison


def compared(
    request: CaseGrid, against: Baseline, progress: Progress = silent, *, is_default: bool = False
) -> Comparison:
    """All cases of a grid beside a baseline, which gives way to a kernel that runs where it `is_default`."""
    points, reasons, commands = collect(request, progress)
    runs = {p.kernel for p in points.values()}
    # The chosen baseline ran nowhere: the first kernel that did takes its place.
    if is_default and against.kernel not in (*runs, DEFAULT):
        against = Baseline(next(iter(points.values())).kernel)
    entries = []
    for gpu, name, problem, asked_for in sorted(request.jobs, key=lambda job: job[2].seq_q):
        # "kernel@gpu" holds every row against one GPU; else each row against its own.
        other = next((g for g in request.gpus if g.label == against.gpu), gpu)
        row, base = (
            (gpu.label, name, problem.seq_q),
            (other.label, name_on(other, against.kernel, problem)),
        )
        entries.append(
            Entry(
                *row,
                points.get(row),
                reasons.get(row),
                points.get((*base, problem.seq_q)),
                asked_for,
            )
        )
    remarks = said(tuple(points.values()))
    return Comparison(request, against, tuple(entries), remarks, commands)

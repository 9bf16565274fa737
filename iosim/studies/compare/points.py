"""Kernels x GPUs x lengths as data: what is asked, its predictions, what cannot run and why, and command lines for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import product

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, fields
from iosim.base.words import DEFAULT, Method
from iosim.catalog.algorithms import algorithm_of
from iosim.catalog.libraries import default_kernel, entry_name, is_choice
from iosim.hardware.profile import HardwareProfile, list_profiles, load_profile
from iosim.kernel.conditions import Conditions
from iosim.prediction.many import Request, try_all
from iosim.prediction.result import Prediction, marked
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import length_options, problem_options
from iosim.show.tables import grouped

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
        return self.prediction.smem.total if self.prediction.smem else None

    @property
    def hbm(self) -> int | None:
        """Bytes between L2 and HBM; None where only bounds are known."""
        return self.prediction.total("hbm") if self.prediction.hbm_known else None

    @property
    def hbm_payload(self) -> int | None:
        """Bytes between L2 and HBM without check bits of ECC, which measured bandwidths do not count either."""
        return self.prediction.hbm_payload.total if self.prediction.hbm_known else None

    @property
    def hbm_shown(self) -> float | None:
        return marked(self.hbm, self.prediction)

    @property
    def naive(self) -> bool:
        """True where its kernel passes over an N x N matrix in memory."""
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

    @property
    def fits(self) -> str | None:
        """True where the call's memory is no more than the GPU's; None where the profile does not know its own."""
        size = self.gpu.profile.usable_memory_bytes
        return (
            None
            if size is None
            else "yes"
            if self.prediction.memory_bytes["peak"] <= size
            else "no"
        )


@dataclass(frozen=True)
class Omission:
    """A kernel that cannot run on a GPU at some lengths."""

    gpu: str
    kernel: str
    lengths: tuple[int, ...]
    reason: str


Case = tuple[str, str, int]
"""A GPU's label, a kernel and a length."""


def collect(
    request: CaseGrid, progress: Progress = silent
) -> tuple[dict[Case, Point], dict[Case, str], dict[str, str]]:
    """The predictions of a request, why there is none of the other cases, and the command lines by id."""
    points: dict[Case, Point] = {}
    commands: dict[str, str] = {}
    refused: dict[Case, InputError] = {}
    jobs = request.jobs
    requests = [
        Request(problem, name, gpu.profile, l2_start=request.l2_start, method=request.method)
        for gpu, _, problem, name in jobs
    ]
    for (gpu, kernel, problem, _), outcome in zip(
        jobs, try_all(requests, progress=progress), strict=True
    ):
        case = (gpu.label, kernel, problem.seq_q)
        if isinstance(outcome, InputError):
            refused[case] = outcome
            continue
        point = Point(f"P{len(points) + 1:03d}", gpu, kernel, problem.seq_q, outcome)
        commands[point.id] = request.predict_line(gpu, kernel, problem)
        points[case] = point
    if not points:
        first = next(iter(refused.values()))
        raise InputError(f"no kernel of this report can run: {first.marked}")
    return points, {case: str(error) for case, error in refused.items()}, commands


def by_gpu(points: Iterable[Point]) -> dict[str, list[Point]]:
    return grouped(points, lambda point: point.gpu.label)


def series(points: Iterable[Point]) -> dict[str, list[Point]]:
    return grouped(points, lambda point: point.kernel)


def baseline(points: Iterable[Point]) -> str | None:
    """The first kernel of the report that is naive; None without one."""
    return next((p.kernel for p in points if p.naive), None)


def least_bytes(points: Iterable[Point]) -> dict[int, int]:
    """Compulsory bytes by length: the least of all kernels."""
    by_length = grouped(points, lambda p: p.seq_len)
    return {n: min(p.compulsory for p in by_length[n]) for n in sorted(by_length)}


def notes(points: Sequence[Point]) -> tuple[str, ...]:
    kernels_of: dict[str, dict[str, None]] = {}
    for p in points:
        # A note that several kernels share is said once, behind their names.
        for note in (*p.prediction.notes, *p.prediction.time.missing):
            kernels_of.setdefault(note, {})[p.kernel] = None
    named = ((", ".join(kernels), note) for note, kernels in kernels_of.items())
    return tuple(
        note if note.startswith(f"{names}: ") else f"{names}: {note}" for names, note in named
    )


@dataclass(frozen=True)
class Gpu:
    """A profile, the label it has in the report, and what follows `--gpu` on a command line."""

    label: str
    argument: str
    profile: HardwareProfile


@dataclass(frozen=True)
class CaseGrid:
    """GPUs x kernels x problems that differ in their sequence length alone."""

    gpus: tuple[Gpu, ...]
    kernels: tuple[str, ...]
    """Those that run, a GPU's own by its name."""
    problems: tuple[AttentionProblem, ...]
    l2_start: str = "cold"
    method: Method | None = None
    """How HBM traffic is found, as in `predict`: None for its choice in each case."""
    requested: tuple[str, ...] = ()
    """The kernels as they were asked for, DEFAULT among them; where there are none, `kernels`."""

    def __post_init__(self) -> None:
        for name, values in (
            ("`profile`", self.gpus),
            ("`kernel`", self.kernels),
            ("problems", self.problems),
        ):
            if not values:
                raise InputError(f"{name} is empty; a report needs at least one")
        Conditions(l2_start=self.l2_start, method=self.method)
        # Lengths may vary together (keys as queries), or the queries alone against the same keys.
        several_keys = self.other_keys and len({p.seq_k for p in self.problems}) > 1
        if several_keys or differ_in(self.problems, "seq_q", "seq_k"):
            raise InputError("problems of one report may differ in their sequence length alone")

    @property
    def other_keys(self) -> int | None:
        """Key tokens of all problems, where they are not as many as each one's query tokens."""
        return next((p.seq_k for p in self.problems if p.seq_k != p.seq_q), None)

    @classmethod
    def of(
        cls,
        gpus: tuple[str, ...],
        kernels: tuple[str, ...],
        problems: tuple[AttentionProblem, ...],
        *,
        l2_start: str = "cold",
        method: Method | None = None,
    ) -> CaseGrid:
        """A request from names: GPUs and kernels are looked up, doubles dropped, lengths sorted."""
        kernels = tuple(dict.fromkeys(k.strip().lower() for k in kernels))
        for kernel in kernels:
            if not is_choice(kernel):
                entry_name(kernel)
        by_length = {p.seq_q: p for p in problems}
        listed, chosen = gpus_of(gpus), tuple(by_length[n] for n in sorted(by_length))
        names = (name_on(g, k, p) for k in kernels for g in listed for p in chosen)
        return cls(
            listed, tuple(dict.fromkeys(names)) or kernels, chosen, l2_start, method, kernels
        )

    @property
    def jobs(self) -> list[tuple[Gpu, str, AttentionProblem, str]]:
        """(GPU, kernel, problem, the kernel as asked for) of every prediction, each once."""
        jobs: dict[tuple[str, str, int], tuple[Gpu, str, AttentionProblem, str]] = {}
        for gpu, requested, problem in product(
            self.gpus, self.requested or self.kernels, self.problems
        ):
            name = name_on(gpu, requested, problem)
            # "default" and the kernel that it stands for on a GPU are one prediction.
            jobs.setdefault((gpu.label, name, problem.seq_q), (gpu, name, problem, requested))
        return list(jobs.values())

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(p.seq_q for p in self.problems)

    @property
    def middle(self) -> AttentionProblem:
        """The problem in the middle of the list: where one length must stand for all."""
        return self.problems[len(self.problems) // 2]

    def predict_line(self, gpu: Gpu, kernel: str, problem: AttentionProblem) -> str:
        words = ["predict", "--gpu", gpu.argument, "--kernel", kernel]
        return command_line(
            [*words, *length_options(problem)], problem, [*self._how(), "--format", "json"]
        )

    def report_line(self) -> str:
        """The command line of the whole report, without its `--out`."""
        gpus = [word for gpu in self.gpus for word in ("--gpu", gpu.argument)]
        kernels = [
            word for kernel in self.requested or self.kernels for word in ("--kernel", kernel)
        ]
        problem = next((p for p in self.problems if p.seq_k != p.seq_q), self.problems[0])
        lengths = length_options(problem, ",".join(map(str, self.lengths)))
        return command_line(["report", *gpus, *kernels, *lengths], problem, self._how())

    def _how(self) -> list[str]:
        return ["--l2", self.l2_start, *([] if self.method is None else ["--method", self.method])]


def name_on(gpu: Gpu, kernel: str, problem: AttentionProblem) -> str:
    return default_kernel(problem, gpu.profile) if kernel == DEFAULT else kernel


def differ_in(problems: Sequence[AttentionProblem], *but: str) -> bool:
    names = [f.name for f in fields(AttentionProblem) if f.init and f.name not in but]
    return len({tuple(getattr(problem, name) for name in names) for problem in problems}) > 1


def gpus_of(names: tuple[str, ...]) -> tuple[Gpu, ...]:
    gpus: dict[str, Gpu] = {}
    shipped = list_profiles()
    for name in names:
        profile = load_profile(name)
        # A file that is equal to a shipped profile goes under its name; one that only has the name of
        # another goes under its path, so that labels stay apart.
        known = profile.name in shipped and load_profile(profile.name) == profile
        label = profile.name if known or profile.name not in (*shipped, *gpus) else name
        gpus.setdefault(label, Gpu(label, profile.name if known else name, profile))
    return tuple(gpus.values())


def label_of(gpus: Sequence[Gpu], name: str, field: str) -> str:
    """The label of one of the GPUs by any of its names. Raises InputError: it is none of them; `field` named it."""
    known = [gpu.label for gpu in gpus]
    wanted = name if name in known else load_profile(name).name
    if wanted not in known:
        raise InputError(
            f"`{field}` {name} is none of the GPUs compared; accepted: {', '.join(known)}"
        )
    return wanted


def command_line(before: Sequence[str], problem: AttentionProblem, after: Sequence[str]) -> str:
    if problem.mask_blocks is not None:
        return "# in Python alone: the mask is a BlockMask, which no option gives"
    return shlex.join(["iosim", *before, *problem_options(problem), *after])

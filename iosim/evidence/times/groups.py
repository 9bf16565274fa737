"""The groups of timed calls: their rows, their targets and what was fitted on them. Nothing else knows them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass
from iosim.evidence.times import tables
from iosim.evidence.times.cases import Case, Timed
from iosim.evidence.times.tables import VARLEN, WHEEL_A30

Chooses = Callable[[Case, str], bool]
Reads = Callable[[int], Iterator[Case]]


@dataclass(frozen=True)
class Group:
    """Rows that one target is held against.

    Attributes:
        key: its name on the command line.
        title: what its rows are.
        reads: its cases, every n-th row of its tables.
        chooses: which launches of which cases are its own.
        target: the mean error that is aimed at; None where none is stated.
        fitted: constants were fitted on its odd-numbered rows: the even ones are held out, and alone count.
    """

    key: str
    title: str
    reads: tuple[Reads, ...]
    chooses: Chooses = lambda case, launch: True
    target: float | None = None
    fitted: bool = False


def _is_main(launch: str) -> bool:
    return launch in ("", "main")


def _profiled(spills: bool) -> Chooses:
    def chooses(case: Case, launch: str) -> bool:
        mine = ("spills" in case.regime) == spills and "backward" not in case.regime and "sweep" not in case.regime
        return mine and _is_main(launch)

    return chooses


PROFILED = (tables.library_cases, tables.own_cases)
H100 = "h100-sxm"
H100_PROFILED = (partial(tables.library_cases, file="h100_library_kernels_5.csv", gpu_name=H100),)
H100_GRAPH = (partial(tables.graph_cases, gpu_name=H100),)
STREAMS = (tables.stream_cases, partial(tables.stream_cases, gpu_name=H100))
GROUPS: tuple[Group, ...] = (
    Group("profiler", "launches under the profiler, without spills", PROFILED, _profiled(False), 0.04, fitted=True),
    Group("spills", "launches under the profiler, with spills", PROFILED, _profiled(True), 0.06, fitted=True),
    Group("backward", "main launches of library backwards", (tables.library_cases,),
          lambda case, launch: launch == "bwd.main", 0.05, fitted=True),
    Group("around", "combines, copies and passes around the backward", (tables.library_cases,),
          lambda case, launch: not _is_main(launch) and launch != "bwd.main", 0.15, fitted=True),
    Group("tiles", "tile sweeps, iosim's and Triton's, without spills", (tables.own_cases, tables.triton_cases),
          lambda case, launch: case.regime in ("tile sweep", "warm"), None, fitted=True),
    Group("calls", "calls timed outside the profiler", (tables.call_cases,), target=0.04),
    Group("graph", "calls in a CUDA graph, 30 us and longer", (tables.graph_cases,),
          lambda case, launch: "under" not in case.regime, 0.045, fitted=True),
    Group("graph-short", "calls in a CUDA graph, under 30 us", (tables.graph_cases,),
          lambda case, launch: "under" in case.regime, 0.09, fitted=True),
    Group("streams", "one block of queries a head, both GPUs, 30 us and longer", STREAMS,
          lambda case, launch: "under" not in case.regime, 0.07),
    Group("streams-short", "one block of queries a head, both GPUs, under 30 us", STREAMS,
          lambda case, launch: "under" in case.regime, None),
    Group("clocks", "kernels that run for seconds", (tables.clock_cases,), target=0.03),
    Group("h100-profiler", "launches under the profiler on an H100, without spills", H100_PROFILED, _profiled(False),
          0.04),
    Group("h100-graph", "calls in a CUDA graph on an H100, 30 us and longer", H100_GRAPH,
          lambda case, launch: "under" not in case.regime, 0.045, fitted=True),
    Group("h100-graph-short", "calls in a CUDA graph on an H100, under 30 us", H100_GRAPH,
          lambda case, launch: "under" in case.regime, 0.09, fitted=True),
    Group("h100-clocks", "kernels that run for seconds on an H100", (partial(tables.clock_cases, gpu_name=H100),),
          target=0.03),
    Group("nvidia-h200", "NVIDIA's times of cuDNN on an H200, both passes", (tables.nvidia_cases,),
          lambda case, launch: case.name.endswith("H200"), 0.05),
    Group("nvidia-blackwell", "NVIDIA's times of cuDNN on GB200 and GB300, forward", (tables.nvidia_cases,),
          lambda case, launch: not case.name.endswith("H200"), 0.08, fitted=True),
    Group("prefill", "serving stacks, prefill of 0.2 ms and longer", (tables.serving_cases,),
          lambda case, launch: case.regime == "prefill", 0.10, fitted=True),
    Group("prefill-short", "serving stacks, shorter prefill", (tables.serving_cases,),
          lambda case, launch: case.regime.startswith("prefill under"), None, fitted=True),
    Group("decode", "serving stacks, decode", (tables.serving_cases,),
          lambda case, launch: case.regime == "decode", 0.12, fitted=True),
    Group("a30-cold", "FlashAttention-2 on an A30, L2 flushed", (partial(tables.published_cases, WHEEL_A30),),
          lambda case, launch: not case.warm, 0.08),
    Group("a30-warm", "FlashAttention-2 on an A30, warm", (partial(tables.published_cases, WHEEL_A30),),
          lambda case, launch: case.warm, 0.08),
    Group("varlen-h100", "FlashAttention-2's varlen on an H100", (partial(tables.published_cases, VARLEN),),
          lambda case, launch: case.call.profile.name == "h100-sxm", 0.12),
    Group("varlen-a6000", "FlashAttention-2's varlen on an RTX A6000", (partial(tables.published_cases, VARLEN),),
          lambda case, launch: case.call.profile.name == "rtx-a6000", 0.12),
)  # fmt: skip
KEYS = tuple(group.key for group in GROUPS)
STATISTICS = ("mean", "median", "p90", "max")


@dataclass(frozen=True)
class Row:
    group: Group
    case: Case
    timed: Timed

    @property
    def held_out(self) -> bool:
        return not self.group.fitted or self.case.number % 2 == 0

    def record(self) -> dict[str, Any]:
        return {
            "group": self.group.key, "kernel": self.case.name, "gpu": self.case.call.profile.name,
            "regime": self.case.regime, "row": self.case.number, "launch": self.timed.launch or "call",
            "held_out": self.held_out, "measured_s": self.timed.measured_s, "predicted_s": self.timed.predicted_s,
            "error": self.timed.error,
        }  # fmt: skip


@dataclass(frozen=True)
class Errors:
    """Sizes of errors of `n` rows; `signed` is the median with its sign."""

    n: int
    mean: float
    median: float
    p90: float
    max: float
    signed: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Errors | None:
        if not errors:
            return None
        sizes = sorted(map(abs, errors))
        ninth = sizes[-(-9 * len(sizes) // 10) - 1]
        return cls(
            len(sizes), statistics.fmean(sizes), statistics.median(sizes), ninth, sizes[-1], statistics.median(errors)
        )


def collect(
    every: int = 1, keys: Iterable[str] = KEYS, show: Callable[[Sequence[Reads]], Iterable[Reads]] = iter
) -> tuple[list[tuple[Group, Case]], dict[str, str]]:
    """The cases of the groups, and the reason of each group whose tables this installation lacks. `every`: take
    every n-th row of a table."""
    wanted = [group for group in GROUPS if group.key in set(keys)]
    readers = list(dict.fromkeys(reads for group in wanted for reads in group.reads))
    read: dict[Reads, list[Case]] = {}
    missing: dict[str, str] = {}
    for reads in show(readers):
        try:
            read[reads] = list(reads(every))
        except InputError as error:
            missing |= {group.key: str(error) for group in wanted if reads in group.reads}
    return [(g, case) for g in wanted for r in g.reads for case in read.get(r, ())], missing


def rows_of(cases: Iterable[tuple[Group, Case]], changed: Mapping[int, Any] | None = None) -> list[Row]:
    """The timed launches of the groups; `changed` holds a call in place of a case's own, by its place in memory."""
    found, times = [], dict[int, list[Timed]]()
    for group, case in cases:
        if id(case) not in times:
            times[id(case)] = list(case.times((changed or {}).get(id(case))))
        found += [Row(group, case, timed) for timed in times[id(case)] if group.chooses(case, timed.launch)]
    return found


def by_group(rows: Iterable[Row], held_out: bool = True) -> dict[str, Errors]:
    """Errors by group, of rows that nothing was fitted on, or of the others."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row.held_out == held_out:
            errors.setdefault(row.group.key, []).append(row.timed.error)
    return {key: found for key in KEYS if (found := Errors.of(errors.get(key, ()))) is not None}

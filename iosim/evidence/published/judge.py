"""Predicts what others measured, and says by GPU how far off that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from iosim.base.errors import InputError
from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass, replace
from iosim.base.units import some
from iosim.base.words import Method, sentences
from iosim.catalog.algorithms import algorithm_of, options_of
from iosim.catalog.libraries import Overrides, resolve
from iosim.catalog.serving import read_stack
from iosim.evidence.published.tables import (
    BYTES,
    SHARED,
    SPEEDUP,
    TIME,
    LeftOut,
    Sample,
    read,
)
from iosim.kernel.kernel import Kernel
from iosim.kernel.options import AlgorithmOptions
from iosim.prediction.many import try_all
from iosim.prediction.predictor import Request, planned
from iosim.prediction.result import Prediction
from iosim.readers.timing.chain_time import HOST_LAUNCH_S
from iosim.show.tables import Column, Table, grouped
from iosim.studies.latency.latency import latency_of

SMALL_BYTES = 20_000
"""Fewer are mostly what a launch reads beside its tensors: no error is formed."""
BOOST_S = 60e-3
"""Of load, after which a board keeps its sustained clock (an H200's: docs/timing.md)."""
RANGE_HOLDS = 0.9
"""Share of rows that a GPU's ranges hold where it is no further off than they say."""
WORDS = {True: "yes", False: "further off", None: "-"}
NAMED_REASONS = 8
"""Reasons that the line of rows left out has; the others are counted."""
KINDS = {
    "bytes": "bytes",
    "times": "times",
    "plain": "times of plain attention",
    "speedups": "speed-ups",
    "shared": "shared memory",
}
"""Kind -> in words: bytes, times of fused kernels, of chains that write the scores to memory, of one kernel over
another's, and what a CTA takes."""


@dataclass(frozen=True)
class Judged:
    """A sample beside its prediction. `error` is (predicted - measured) / measured, of hits their difference; `inside`:
    whether the measured value lies in the prediction's range, None where it has none."""

    sample: Sample
    predicted: float
    inside: bool | None
    plain: bool = False
    """True where the kernel is a chain that writes the scores to memory."""

    @property
    def error(self) -> float:
        away = self.predicted - self.sample.measured
        return away if self.sample.quantity == "l2_hits" else away / self.sample.measured

    @property
    def kind(self) -> str:
        if self.sample.quantity in BYTES:
            return "bytes"
        if self.sample.quantity == SPEEDUP:
            return "speedups"
        if self.sample.quantity == SHARED:
            return "shared"
        return "plain" if self.plain else "times"

    def to_dict(self) -> dict[str, Any]:
        s = self.sample
        return {
            "source": s.source,
            "row": s.row,
            "gpu": s.profile.name,
            "kernel": s.kernel,
            "launch": s.launch or None,
            "quantity": s.quantity,
            "measured": s.measured,
            "predicted": self.predicted,
            "error": self.error,
            "inside": self.inside,
            "fitted": s.fitted,
        }


@dataclass(frozen=True)
class OfGpu:
    """Errors of one GPU on rows that nothing was fitted on. A kind without rows has none."""

    gpu: str
    backed_by: str
    rows: dict[str, int]
    median_error: dict[str, float | None]
    inside: float | None
    left_out: int

    @property
    def as_its_range_says(self) -> bool | None:
        """True where its ranges hold as many rows as they should; None where no row has a range."""
        return None if self.inside is None else self.inside >= RANGE_HOLDS

    @property
    def line(self) -> str:
        """What README says of a GPU."""
        medians = [
            f"{KINDS[kind]}: {some(self.rows[kind], 'row')} within {100 * error:.1f} %"
            for kind, error in self.median_error.items()
            if error is not None
        ]
        shares = f", {100 * self.inside:.0f} % inside the range" if self.inside is not None else ""
        shares += ", further off than it says" if self.as_its_range_says is False else ""
        return f"{self.gpu}, medians: {'; '.join(medians) or 'no row compared'}{shares}"

    def to_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "gpu": self.gpu,
            "backed_by": self.backed_by,
            "inside": self.inside,
            "as_its_range_says": self.as_its_range_says,
            "left_out": self.left_out,
            "line": self.line,
        }
        for kind in KINDS:
            record |= {f"{kind}_rows": self.rows[kind], f"{kind}_median": self.median_error[kind]}
        return record


@dataclass(frozen=True)
class Verdict:
    """All rows of tables that others published."""

    judged: tuple[Judged, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def gpus(self) -> tuple[OfGpu, ...]:
        of_gpu = grouped(self.judged, lambda row: row.sample.profile.name)
        return tuple(_of_gpu(gpu, rows, self.left_out) for gpu, rows in sorted(of_gpu.items()))

    @property
    def left_out_line(self) -> str:
        """How many rows are not in the sums, and why: the commonest reasons by name."""
        reasons = Counter(row.reason for row in self.left_out).most_common()
        named = [f"{count:,}: {reason}" for reason, count in reasons[:NAMED_REASONS]]
        others = sum(count for _, count in reasons[NAMED_REASONS:])
        if others:
            named.append(f"{others:,}: {some(len(reasons) - NAMED_REASONS, 'other reason')}")
        fitted = sum(row.sample.fitted for row in self.judged)
        if fitted:
            named.append(f"{fitted:,}: constants were fitted on them, or on a draw that holds them")
        rows = len(self.judged) + len(self.left_out)
        why = f" ({'; '.join(named)})" if named else ""
        return f"{len(self.left_out) + fitted:,} of {rows:,} rows are left out{why}"

    @property
    def answer(self) -> str:
        return sentences(gpu.line for gpu in self.gpus) or "No row was compared."

    def table(self) -> Table:
        gpus = self.gpus
        kinds = [kind for kind in KINDS if any(g.rows[kind] for g in gpus)]
        of_kinds = (
            column
            for kind in kinds
            for column in (
                Column(f"{kind}_rows", f"{kind}, rows", kind="count"),
                Column(f"{kind}_median", "median", kind="error"),
            )
        )
        columns = (
            Column("gpu", "GPU"),
            Column("backed_by", "backed by"),
            *of_kinds,
            Column("inside", "inside the range", kind="error"),
            Column("as_its_range_says", "as its range says"),
            Column("left_out", "left out", kind="count"),
        )
        rows = (
            (
                g.gpu,
                g.backed_by,
                *(cell for kind in kinds for cell in (g.rows[kind], g.median_error[kind])),
                g.inside,
                WORDS[g.as_its_range_says],
                g.left_out,
            )
            for g in gpus
        )
        return Table(columns, tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        skipped = [
            {"source": row.source, "row": row.row, "gpu": row.gpu, "reason": row.reason}
            for row in self.left_out
        ]
        return {
            "gpus": [g.to_dict() for g in self.gpus],
            "rows": [j.to_dict() for j in self.judged],
            "skipped": skipped,
            "left_out": self.left_out_line,
        }


def _of_gpu(gpu: str, rows: Sequence[Judged], left_out: Iterable[LeftOut]) -> OfGpu:
    held_out = [row for row in rows if not row.sample.fitted]
    errors = {kind: [abs(row.error) for row in held_out if row.kind == kind] for kind in KINDS}
    ranged = [row.inside for row in held_out if row.inside is not None]
    profile = rows[0].sample.profile
    of_files = {row.sample.source for row in rows}
    return OfGpu(
        gpu,
        profile.backed_by,
        {kind: len(some) for kind, some in errors.items()},
        {kind: median(some) if some else None for kind, some in errors.items()},
        sum(ranged) / len(ranged) if ranged else None,
        sum(row.source in of_files and row.gpu in (gpu, "") for row in left_out),
    )


def judge(
    files: Iterable[str | Path], progress: Progress = silent, ecc: str = "delivered"
) -> Verdict:
    """Every row of the files beside its prediction. Raises InputError: a file cannot be read, or has no known form."""
    samples: list[Sample] = []
    left_out: list[LeftOut] = []
    for file in files:
        of_file, refused = read(file)
        left_out += refused
        for sample in of_file:
            if (
                sample.quantity in BYTES
                and sample.quantity != "l2_hits"
                and sample.measured < SMALL_BYTES
            ):
                left_out.append(
                    _left(sample, f"{sample.measured:,.0f} bytes are too few to compare")
                )
            else:
                samples.append(sample)
    requests: list[Request] = []
    requested: list[tuple[Sample, int]] = []
    for sample in samples:
        try:
            mine = _requests(sample, ecc)
        except InputError as reason:
            left_out.append(_left(sample, str(reason)))
        else:
            requests += mine
            requested.append((sample, len(mine)))
    judged = []
    # all together: equal launches are replayed once
    outcomes = iter(try_all(requests, progress=progress))
    for sample, number in requested:
        of_sample = list(islice(outcomes, number))
        refusals = [outcome for outcome in of_sample if isinstance(outcome, InputError)]
        if refusals:
            left_out.append(_left(sample, str(refusals[0])))
        else:
            judged.append(_judged(sample, *(o for o in of_sample if isinstance(o, Prediction))))
    return Verdict(tuple(judged), tuple(left_out))


def _left(sample: Sample, reason: str) -> LeftOut:
    return LeftOut(sample.source, sample.row, sample.profile.name, reason)


def _requests(sample: Sample, ecc: str) -> list[Request]:
    """What is asked of a sample: its kernel, and of a speed-up the slower one, too. Raises InputError: a kernel cannot
    run it."""
    names = (sample.kernel, sample.over) if sample.quantity == SPEEDUP else (sample.kernel,)
    return [_request(replace(sample, kernel=name), ecc) for name in names]


def _request(sample: Sample, ecc: str) -> Request:
    """What is asked of a sample; all but bytes take the quick rule for bytes. Raises InputError: the kernel cannot run
    it."""
    kernel: str | Kernel = sample.kernel
    if sample.options is not None:
        resolved = resolve(sample.kernel, sample.problem, sample.profile)
        kernel = resolved.with_(
            options=replace(options_of(resolved, AlgorithmOptions), **sample.options)
        )
    writes = bool(sample.stack) and sample.appends and read_stack(sample.stack).append_kv
    method: Method | None = None if sample.quantity in BYTES else "capacity"
    chain = None
    if sample.launch:
        whole = planned(sample.problem, sample.kernel, sample.profile).chain
        launches = tuple(launch for launch in whole.launches if launch.name == sample.launch)
        if not launches:
            raise InputError(f"kernel {sample.kernel} has no launch {sample.launch} here")
        chain = replace(whole, launches=launches)
    return Request(
        sample.problem,
        kernel,
        sample.profile,
        Overrides(append_kv=True) if writes else None,
        chain=chain,
        method=method,
        l2_start=sample.l2_start,
        clocks=sample.clocks,
        launched=sample.launched,
        ecc=ecc if sample.profile.ecc else "delivered",
    )


def _judged(sample: Sample, p: Prediction, *slower: Prediction) -> Judged:
    if sample.quantity == SPEEDUP:
        return Judged(sample, slower[0].time_s / p.time_s, None)
    if sample.quantity == SHARED:
        return Judged(sample, _shared_memory(p), None)
    if sample.quantity == TIME:
        # what no launch of the kernel explains moves the whole range
        beside_s = _beside_s(sample, p)
        times, measured_s = p.time_range, sample.measured - beside_s
        inside = None if times is None else _within(measured_s, times.seconds, sample.rounding)
        return Judged(
            sample, p.time_s + beside_s, inside, algorithm_of(p.kernel.algorithm).standard
        )
    if sample.quantity == "l2_hits":
        return Judged(sample, p.l2_hit_rate or 0.0, None)
    predicted = {"hbm": p.hbm.total, "hbm_read": p.hbm.read, "hbm_write": p.hbm.write}[
        sample.quantity
    ]
    span = p.hbm_range
    if span is None:
        return Judged(sample, predicted, None)
    ends = {"hbm": span.total, "hbm_read": span.read, "hbm_write": span.write}[sample.quantity]
    return Judged(sample, predicted, _within(sample.measured, ends, sample.rounding))


def _beside_s(sample: Sample, p: Prediction) -> float:
    """Seconds of a call beside the kernel's launches at the predicted clock: launches from Python that come first and
    keep the GPU waiting; the stack's; and what a lower clock adds where calls without a pause outlast BOOST_S of load."""

    def whole_s(prediction: Prediction) -> float:
        if not sample.stack:
            return float(prediction.time_s)
        parts = latency_of(
            read_stack(sample.stack), prediction, sample.appends, sample.launched
        ).parts
        return sum(part.seconds for part in parts if part.name not in sample.without)

    boosted_s = whole_s(p)
    beside_s = boosted_s - p.time_s + sample.launches_before * HOST_LAUNCH_S
    if sample.calls * boosted_s <= BOOST_S or sample.calls == 1:
        return beside_s
    slower = p.call.time(p.traffic, replace(p.conditions, clocks="sustained"))
    boosted = BOOST_S / boosted_s / sample.calls
    return beside_s + (1 - boosted) * (whole_s(replace(p, time=slower)) - boosted_s)


def _shared_memory(p: Prediction) -> float:
    """Bytes that a CTA of the call's longest launch takes."""
    longest = max(p.time.launches, key=lambda launch: launch.total_s)
    taken = next(n.resources for n in p.chain.launches if n.name == longest.name)
    return float(taken.shared_memory_bytes or 0)


def _within(measured: float, ends: tuple[float, float], rounding: float) -> bool:
    """True where a range holds a value, as far as its printed digits tell."""
    return ends[0] - rounding <= measured <= ends[1] + rounding

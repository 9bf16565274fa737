"""The simplest honest predictions of the same rows: a roofline, a calibrated one, and a regression of four terms.

The last two are fitted on the odd-numbered rows of each group and all are compared on its even-numbered rows, ours too.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from iosim.evidence.times.groups import KEYS, Row
from iosim.show.tables import Column, Table, grouped

FloatArray = npt.NDArray[np.float64]
SHARES = tuple(n / 50 for n in range(5, 61))
"""Shares of the specified rates that a calibrated roofline tries."""
LEAST_ROWS = 6
"""A regression of four terms is made of as many odd rows of a kernel, or more."""


@dataclass(frozen=True)
class Compared:
    """Mean errors of one group on its even-numbered rows; None where there are too few rows to fit on."""

    group: str
    n: int
    ours: float
    roofline: float
    calibrated: float | None
    regression: float | None

    @property
    def best(self) -> str:
        errors = {
            "ours": self.ours,
            "roofline": self.roofline,
            "calibrated": self.calibrated,
            "regression": self.regression,
        }
        return min((error, name) for name, error in errors.items() if error is not None)[1]


@dataclass(frozen=True)
class _Point:
    kernel: str
    odd: bool
    terms: tuple[float, float, float, float]
    """1, FLOPs, bytes that any kernel moves at HBM, work tiles."""
    rates: tuple[float, float]
    """FLOP/s and bytes/s of the specification."""
    ours_s: float
    measured_s: float

    def roofline(self, share: float = 1.0, memory_share: float = 1.0) -> float:
        return max(
            self.terms[1] / (share * self.rates[0]), self.terms[2] / (memory_share * self.rates[1])
        )


def _point(row: Row) -> _Point:
    call = row.case.call
    mine = [launch for launch in call.chain.launches if row.timed.launch in ("", launch.name)]
    dtype = call.problem.dtype
    flops = sum(
        float(launch.domain.visited.count.sum())
        * launch.domain.block_q
        * launch.domain.block_k
        * launch.domain.grid_heads
        * launch.work.flops_per_pair
        for launch in mine
    )
    moved_bytes = (
        float(call.bounds.compulsory_read + call.bounds.compulsory_write)
        if row.timed.launch in ("", "main")
        else 0.0
    )
    if not moved_bytes:
        moved_bytes = float(sum(call.counted.total("l2", launch=launch.name) for launch in mine))
    terms = (1.0, flops, moved_bytes, float(sum(launch.work_tiles for launch in mine)))
    rates = call.profile.tensor_flops(dtype), call.profile.need("dram_bandwidth_bytes_per_s")
    return _Point(
        f"{row.case.name} {row.timed.launch} {call.profile.name}",
        row.case.number % 2 == 1,
        terms,
        rates,
        row.timed.predicted_s,
        row.timed.measured_s,
    )


def compared(rows: Sequence[Row]) -> list[Compared]:
    points = {
        key: list(map(_point, mine))
        for key, mine in grouped(rows, lambda row: row.group.key).items()
    }
    return [_group(key, points[key]) for key in KEYS if any(not p.odd for p in points.get(key, ()))]


def _group(key: str, points: Sequence[_Point]) -> Compared:
    odd = [p for p in points if p.odd]
    even = [p for p in points if not p.odd]
    calibrated = regression = None
    if len(odd) >= 2:
        share, memory = _calibrate(odd)
        calibrated = _mean(even, [p.roofline(share, memory) for p in even])
        regression = _regress(odd, even)
    return Compared(
        key,
        len(even),
        _mean(even, [p.ours_s for p in even]),
        _mean(even, [p.roofline() for p in even]),
        calibrated,
        regression,
    )


def _mean(points: Sequence[_Point], seconds: Sequence[float]) -> float:
    return statistics.fmean(abs(s / p.measured_s - 1) for p, s in zip(points, seconds, strict=True))


def _calibrate(points: Sequence[_Point]) -> tuple[float, float]:
    """The shares of both rates with the least mean error."""
    measured = np.array([p.measured_s for p in points])
    compute = np.array([p.terms[1] / p.rates[0] for p in points])
    memory = np.array([p.terms[2] / p.rates[1] for p in points])
    tried = [
        (float(np.abs(np.maximum(compute / a, memory / b) / measured - 1).mean()), a, b)
        for a in SHARES
        for b in SHARES
    ]
    _, share, memory_share = min(tried)
    return share, memory_share


def _regress(odd: Sequence[_Point], even: Sequence[_Point]) -> float | None:
    """Mean error of a regression of four terms, one for each kernel that has enough odd rows; None where none has."""
    points: list[tuple[_Point, float]] = []
    for kernel in dict.fromkeys(p.kernel for p in even):
        mine = [p for p in odd if p.kernel == kernel]
        if len(mine) < LEAST_ROWS:
            continue
        weights = _least_squares(np.array([np.array(p.terms) / p.measured_s for p in mine]))
        points += [(p, float(np.dot(weights, p.terms))) for p in even if p.kernel == kernel]
    return (
        _mean([p for p, _ in points], [s for _, s in points]) if len(points) == len(even) else None
    )


def _least_squares(relative: FloatArray) -> FloatArray:
    """Weights of the terms, none below zero, with the least squares of relative errors: the best of all subsets."""
    best = np.inf
    weights_kept = np.zeros(relative.shape[1])
    scale = relative.max(axis=0)
    scaled = relative / np.where(scale > 0, scale, 1.0)
    for size in range(1, relative.shape[1] + 1):
        for chosen in combinations(range(relative.shape[1]), size):
            some = scaled[:, chosen]
            weights = np.linalg.lstsq(some, np.ones(len(some)), rcond=None)[0]
            error = float(((some @ weights - 1) ** 2).sum())
            if (weights >= 0).all() and error < best:
                best = error
                weights_kept = np.zeros(relative.shape[1])
                weights_kept[list(chosen)] = weights
    return weights_kept / np.where(scale > 0, scale, 1.0)


def baseline_table(baselines: Sequence[Compared]) -> Table:
    """Mean errors of ours and of simpler predictions on the even rows of each group."""

    def shown(error: float | None) -> str:
        return "" if error is None else f"{error:.1%}"

    lines = tuple(
        (
            b.group,
            b.n,
            shown(b.ours),
            shown(b.roofline),
            shown(b.calibrated),
            shown(b.regression),
            b.best,
        )
        for b in baselines
    )
    titles = ("group", "n", "iosim", "roofline", "calibrated roofline", "regression", "nearest")
    return Table(tuple(Column(title.replace(" ", "_"), title) for title in titles), lines)

"""Sums residuals up, by quantity and in groups, and holds them against limits, and against the accuracy that is aimed
at: for each row, and for the whole, of kernels without spills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from iosim.base.records import asdict, dataclass, plain
from iosim.base.units import digits_text, parse_limit
from iosim.evidence.validate.residuals import SMALL_BYTES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.show.tables import grouped

NEAR = 0.05
L2_SHARE, L2_BYTES = 1e-3, 1000
READ_SHARE, READ_BYTES = 0.10, 100_000
"""Every HBM read: 10 %, or what a launch reads beside its tensors, twice."""
TIME_MEAN = 0.10
STATISTICS = ("max", "p95", "median")


@dataclass(frozen=True)
class Summary:
    """Errors of `n` rows. `p95` is the smallest error that at least 95 % of them do not exceed. `near` is the share of
    all rows, small ones included, that are predicted within 5 % or 2 MB; None for times."""

    n: int
    median: float | None
    p95: float | None
    max: float | None
    near: float | None = None

    @classmethod
    def of(cls, errors: Iterable[float], near: float | None = None) -> Summary:
        e = sorted(errors)
        n = len(e)
        return (
            # the ceiling of 0.95 n: the nearest-rank percentile, without interpolation
            cls(n, median(e), e[-(-95 * n // 100) - 1], e[-1], near)
            if e
            else cls(0, None, None, None, near)
        )


def is_near(r: Residual) -> bool:
    return abs(r.difference) <= max(NEAR * r.measured, SMALL_BYTES)


def _of_quantities(residuals: Iterable[Residual]) -> Iterator[tuple[str, list[Residual]]]:
    members_of = grouped(residuals, lambda r: r.quantity)
    return ((q, members_of[q]) for q in QUANTITIES if q in members_of)


def by_quantity(residuals: Iterable[Residual]) -> dict[str, Summary]:
    summaries = {}
    for q, rows in _of_quantities(residuals):
        near = None if q == "time" else _share(rows, is_near)
        summaries[q] = Summary.of((r.error for r in rows if r.error is not None), near)
    return summaries


def small(residuals: Iterable[Residual]) -> dict[str, dict[str, Any]]:
    of_small = _of_quantities(r for r in residuals if r.error is None)
    differences = {q: Summary.of(abs(r.difference) for r in rows) for q, rows in of_small}
    return {
        q: plain(n=s.n, median_difference=s.median, max_difference=s.max)
        for q, s in differences.items()
    }


def clean(residuals: Iterable[Residual]) -> list[Residual]:
    return [r for r in residuals if not r.spills]


def groups(
    residuals: Iterable[Residual], key: Callable[[Residual], str]
) -> dict[str, dict[str, Summary]]:
    return {name: by_quantity(members) for name, members in sorted(grouped(residuals, key).items())}


def halves(residuals: Sequence[Residual]) -> dict[str, dict[str, Summary]]:
    """Calls with odd numbers, on which constants were fitted, and with even ones; without spills and with."""
    summaries: dict[str, dict[str, Summary]] = {}
    for word, parity in (("odd", 1), ("even", 0)):
        half = [r for r in residuals if r.row.call % 2 == parity]
        summaries[word] = by_quantity(clean(half))
        summaries[f"{word}_spills"] = by_quantity(r for r in half if r.spills)
    return summaries


def summarise(comparison: Comparison, *, split: bool = False) -> dict[str, Any]:
    every = comparison.residuals
    tables: dict[str, Any] = {
        "by_source": groups(clean(every), lambda r: r.row.source),
        "by_regime": groups(every, lambda r: r.regime),
        "by_implementation": groups(every, lambda r: r.row.implementation),
    }
    tables |= {"split": halves(every)} if split else {}
    return {
        "summary": _plain(by_quantity(clean(every))),
        "summary_spills": _plain(by_quantity(r for r in every if r.spills)),
        "summary_small": small(every),
        **{name: {k: _plain(v) for k, v in table.items()} for name, table in tables.items()},
    }


def _plain(summaries: dict[str, Summary]) -> dict[str, Any]:
    return {q: asdict(s) for q, s in summaries.items()}


@dataclass(frozen=True)
class Gate:
    """A limit on one statistic of one quantity's errors, over kernels without spills; with `spills` over all."""

    quantity: str
    statistic: str
    limit: float
    spills: bool = False

    @classmethod
    def parse(cls, text: str, *, spills: bool = False) -> Gate:
        """`hbm_read=5%`, `hbm_read:p95=0.05`; without one, the largest error; InputError where it is neither."""
        examples = "hbm_read=5% or hbm_read:p95=5%"
        return cls(*parse_limit(text, "quantity", QUANTITIES, STATISTICS, "max", examples), spills)

    def error(self, residuals: Iterable[Residual]) -> tuple[float | None, int]:
        # spilled bytes are a compiler's choice that no description predicts: gates leave them out by default
        counted = residuals if self.spills else clean(residuals)
        summary = by_quantity(counted).get(self.quantity, Summary.of(()))
        error: float | None = getattr(summary, self.statistic)
        return error, summary.n

    def left_out(self, residuals: Iterable[Residual]) -> list[Residual]:
        return [
            r for r in residuals if r.spills and r.quantity == self.quantity and not self.spills
        ]

    def said(self, residuals: Sequence[Residual]) -> str:
        error, rows = self.error(residuals)
        result = (
            "no row to hold against"
            if error is None
            else f"{digits_text(100 * error)}%, over {rows} rows,"
        )
        text = f"{self.quantity}:{self.statistic} {result} against {100 * self.limit:g}%"
        text += (
            " of kernels with spills and without" if self.spills else " of kernels without spills"
        )
        left_out_rows = self.left_out(residuals)
        if not left_out_rows:
            return text
        names = ", ".join(sorted({r.row.implementation for r in left_out_rows}))
        return f"{text}; {len(left_out_rows)} rows with spills are left out ({names}): --with-spills counts them"

    def to_dict(self, residuals: Sequence[Residual]) -> dict[str, Any]:
        error, rows = self.error(residuals)
        record = {
            **plain(quantity=self.quantity, statistic=self.statistic, limit=self.limit),
            "error": error,
            "rows": rows,
            "with_spills": self.spills,
        }
        rows_left_out, holds = len(self.left_out(residuals)), self.exceeded(residuals) is None
        return {**record, "rows_left_out": rows_left_out, "holds": holds}

    def exceeded(self, residuals: Iterable[Residual]) -> str | None:
        """What is wrong, in words; None where the limit holds. A quantity that no row compares does not pass."""
        error, _ = self.error(residuals)
        if error is None:
            return f"{self.quantity}: no row to hold against {100 * self.limit:g}%"
        if error > self.limit:
            return f"{self.quantity}: {self.statistic} error {digits_text(100 * error)}% is above {100 * self.limit:g}%"
        return None


# The accuracy that is aimed at


def _within(share: float, least_bytes: float) -> Callable[[Residual], bool]:
    return lambda r: abs(r.difference) <= max(share * r.measured, least_bytes)


@dataclass(frozen=True)
class Target:
    """`row` says whether a row is where it should be (always, where only the whole counts); `share` of the rows must
    be; `text` says both. `reached` has a rule of its own for reads and times."""

    quantity: str
    text: str
    row: Callable[[Residual], bool]
    share: float = 1.0

    def reached(self, rows: Sequence[Residual]) -> tuple[bool, str]:
        errors = [r.error for r in rows if r.error is not None]
        within = _share(rows, self.row)
        if self.quantity == "time":
            mean = sum(errors) / len(errors) if errors else 0.0
            return mean <= TIME_MEAN, f"mean {100 * mean:.1f} %"
        if self.quantity != "hbm_read":
            return within >= self.share, f"{100 * within:.1f} % of rows within it"
        # reads have three conditions at once: median, near and every row
        near, median = _share(rows, _within(NEAR, READ_BYTES)), Summary.of(errors).median or 0.0
        text = f"median {100 * median:.2f} %, {100 * near:.1f} % within 5 %, {100 * within:.1f} % within 10 %"
        return median <= 0.01 and near >= 0.95 and within == 1, text


def _share(rows: Sequence[Residual], good: Callable[[Residual], bool]) -> float:
    return sum(map(good, rows)) / len(rows)


_L2 = ("every row within 0.1 % or 1 kB", _within(L2_SHARE, L2_BYTES))
_READ = (
    "median 1 %, 95 % within 5 %, all within 10 % (or 100 kB)",
    _within(READ_SHARE, READ_BYTES),
)
TARGETS = {
    "hbm_read": Target("hbm_read", *_READ),
    "hbm_write": Target("hbm_write", "95 % of rows within 5 % or 2 MB", is_near, 0.95),
    "l2_read": Target("l2_read", *_L2),
    "l2_write": Target("l2_write", *_L2),
    "smem": Target("smem", "95 % of rows within 5 % or 2 MB", is_near, 0.95),
    "time": Target("time", "mean error 10 %", lambda r: True),
}


def misses(residuals: Sequence[Residual]) -> list[Residual]:
    missing_rows = [r for r in clean(residuals) if not TARGETS[r.quantity].row(r)]
    return sorted(
        missing_rows,
        # by quantity, the largest share first; a measured zero counts as one byte
        key=lambda r: (QUANTITIES.index(r.quantity), -abs(r.difference) / max(1, r.measured)),
    )

"""Errors of times by group as tables, the gates on them, and the sentence that opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from iosim.base.records import asdict, dataclass
from iosim.base.units import parse_limit
from iosim.evidence.fitted import fitted
from iosim.evidence.times.groups import GROUPS, KEYS, STATISTICS, Errors, Row, by_group, collect, rows_of
from iosim.show.tables import Cell, Table, columns_of


@dataclass(frozen=True)
class TimesReport:
    """Errors of times by group; `missing` are groups whose tables are not in this installation, with the reason."""

    rows: tuple[Row, ...]
    missing: dict[str, str]

    @property
    def held_out(self) -> dict[str, Errors]:
        return by_group(self.rows)

    @property
    def answer(self) -> str:
        held = [row.timed.error for row in self.rows if row.held_out]
        all_in = Errors.of(held)
        if all_in is None:
            return "no timed row was compared"
        aimed = {g.key: e.mean <= g.target for g in GROUPS if g.target is not None and (e := self.held_out.get(g.key))}
        missed = [key for key, met in aimed.items() if not met]
        more = f"{len(aimed) - len(missed)} of {len(aimed)} groups meet their target"
        text = f"of {all_in.n:,} held-out times half are within {all_in.median:.1%}; {more}"
        return text + (f", not: {', '.join(missed)}" if missed else "")

    def table(self) -> Table:
        other = by_group(self.rows, held_out=False)
        lines: list[tuple[Cell, ...]] = []
        for group in GROUPS:
            e, f = self.held_out.get(group.key), other.get(group.key)
            if e is not None:
                target = "" if group.target is None else f"{group.target:.1%}"
                lines.append((group.key, group.title, e.n, f"{e.mean:.1%}", f"{e.p90:.1%}", f"{e.max:.0%}",
                              f"{e.signed:+.1%}", target, f"{f.mean:.1%} of {f.n}" if f else ""))  # fmt: skip
        columns = "group | title=rows | n | mean | p90 | max | signed=median, signed | target | fitted=fitted on"
        return Table(columns_of(columns), tuple(lines))

    def to_dict(self) -> dict[str, Any]:
        groups = [
            {"group": g.key, "title": g.title, "target": g.target, **asdict(e),
             "meets": None if g.target is None else e.mean <= g.target}
            for g in GROUPS
            if (e := self.held_out.get(g.key))
        ]  # fmt: skip
        return {
            "answer": self.answer, "groups": groups, "rows": [row.record() for row in self.rows],
            "fitted": [{**asdict(f), "gpu": f.gpu or None} for f in fitted()],
            "missing": self.missing,
        }  # fmt: skip


def times_report(
    every: int = 1, keys: Iterable[str] = KEYS, show: Callable[[Sequence[Any]], Iterable[Any]] = iter
) -> TimesReport:
    """Predicts every n-th timed row of these groups."""
    cases, missing = collect(every, keys, show)
    return TimesReport(tuple(rows_of(cases)), missing)


@dataclass(frozen=True)
class TimeGate:
    """A limit on one statistic of a group's errors, or of every group's ("all"), on rows that nothing was fitted on."""

    group: str
    statistic: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> TimeGate:
        """`graph=5%`, `all:p90=30%`; without a statistic, the mean; InputError where it is neither."""
        return cls(*parse_limit(text, "group", ("all", *KEYS), STATISTICS, "mean", "graph=5% or all:p90=30%"))

    def exceeded(self, report: TimesReport) -> str | None:
        groups = {k: e for k, e in report.held_out.items() if self.group in ("all", k)}
        if not groups:
            return f"{self.group}: no row to hold against {self.limit:.3g}"
        wrong = {k: getattr(e, self.statistic) for k, e in groups.items() if getattr(e, self.statistic) > self.limit}
        return (
            "; ".join(f"{k}: {self.statistic} {found:.1%} is above {self.limit:.1%}" for k, found in wrong.items())
            or None
        )

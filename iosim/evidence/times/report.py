"""Errors of times by group as tables, the gates on them, and the sentence that opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from iosim.base.records import asdict, dataclass
from iosim.base.units import parse_limit
from iosim.evidence.fitted import fitted
from iosim.evidence.times.ablation import Worth, ablation
from iosim.evidence.times.baselines import Compared, compared
from iosim.evidence.times.groups import GROUPS, KEYS, STATISTICS, Errors, Row, by_group, collect, rows_of
from iosim.show.tables import Cell, Column, Table

MOST_MOVED = 3


@dataclass(frozen=True)
class TimesReport:
    """Errors of times by group, and what was asked for beside them.

    Attributes:
        rows: every timed launch.
        missing: groups whose tables are not in this installation, with the reason.
        worth: what each mechanism is worth; empty where it was not asked for.
        baselines: simpler predictions of the same rows; likewise.
    """

    rows: tuple[Row, ...]
    missing: dict[str, str]
    worth: tuple[Worth, ...] = ()
    baselines: tuple[Compared, ...] = ()

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
        text = (f"of {all_in.n:,} held-out times half are within {all_in.median:.1%}; {len(aimed) - len(missed)} of "
                f"{len(aimed)} groups meet their target")  # fmt: skip
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
        columns = [Column("group", "group"), Column("title", "rows"), Column("n", "n")]
        columns += [Column(key, title) for key, title in (
            ("mean", "mean"), ("p90", "p90"), ("max", "max"), ("signed", "median, signed"), ("target", "target"),
            ("fitted", "fitted on"))]  # fmt: skip
        return Table(tuple(columns), tuple(lines))

    def worth_table(self) -> Table:
        lines = tuple(
            (w.mechanism, f"{w.whole:.1%}", f"{w.without:.1%}",
             "; ".join(f"{key} {a:.1%} to {b:.1%}" for key, a, b in w.groups[:MOST_MOVED]))
            for w in self.worth
        )  # fmt: skip
        return Table(tuple(Column(key, key) for key in ("mechanism", "with", "without", "most changed")), lines)

    def baseline_table(self) -> Table:
        """Mean errors of ours and of simpler predictions on the even rows of each group."""

        def shown(error: float | None) -> str:
            return "" if error is None else f"{error:.1%}"

        lines = tuple((b.group, b.n, shown(b.ours), shown(b.roofline), shown(b.calibrated), shown(b.regression), b.best)
                      for b in self.baselines)  # fmt: skip
        titles = ("group", "n", "iosim", "roofline", "calibrated roofline", "regression", "nearest")
        return Table(tuple(Column(title.replace(" ", "_"), title) for title in titles), lines)

    def to_dict(self) -> dict[str, Any]:
        groups = [
            {"group": g.key, "title": g.title, "target": g.target, **asdict(e),
             "meets": None if g.target is None else e.mean <= g.target}
            for g in GROUPS
            if (e := self.held_out.get(g.key))
        ]  # fmt: skip
        return {
            "answer": self.answer, "groups": groups, "rows": [row.record() for row in self.rows],
            "ablation": [{"mechanism": w.mechanism, "with": w.whole, "without": w.without} for w in self.worth],
            "baselines": [asdict(b) for b in self.baselines],
            "fitted": [{**asdict(f), "gpu": f.gpu or None} for f in fitted()],
            "missing": self.missing,
        }  # fmt: skip


def times_report(
    every: int = 1, keys: Iterable[str] = KEYS, *, with_worth: bool = False, with_baselines: bool = False,
    show: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> TimesReport:  # fmt: skip
    """Predicts every n-th timed row of these groups. `with_worth`: each mechanism switched off, too: some fifteen
    times the work after the tables are read. `with_baselines`: rooflines and a regression beside it."""
    cases, missing = collect(every, keys, show)
    rows = rows_of(cases)
    return TimesReport(tuple(rows), missing, tuple(ablation(cases)) if with_worth else (),
                       tuple(compared(rows)) if with_baselines else ())  # fmt: skip


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

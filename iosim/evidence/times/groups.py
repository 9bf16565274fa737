"""The groups of timed calls (groups.toml), their rows, and errors as tables and gates. Nothing else knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import asdict, dataclass, field, plain
from iosim.base.schema import read_toml
from iosim.base.units import parse_limit
from iosim.evidence.fitted import fitted
from iosim.evidence.times import tables
from iosim.evidence.times.tables import Case, Timed
from iosim.show.tables import Cell, Column, Table, grouped

Reads = Callable[[int], Iterator[Case]]
Shows = Callable[[Sequence[Reads]], Iterable[Reads]]


@dataclass(frozen=True)
class Group:
    """Rows that one target is held against: an entry of groups.toml, which says what each key means."""

    key: str
    title: str
    tables: tuple[Mapping[str, str], ...]
    where: Mapping[str, Any] = field(default_factory=dict)
    target: float | None = None
    fitted: bool = False

    @property
    def reads(self) -> tuple[Reads, ...]:
        return tuple(_reader(tuple(table.items())) for table in self.tables)

    def chooses(self, case: Case, launch: str) -> bool:
        where, regime = self.where, case.regime
        among = {"launches": launch, "regimes": regime, "gpus": case.call.profile.name}
        return (
            all(value in where.get(name, [value]) for name, value in among.items())
            and launch not in where.get("other_launches", [])
            and all(word in regime for word in where.get("has", []))
            and not any(word in regime for word in where.get("lacks", []))
            and case.conditions.warm == where.get("warm", case.conditions.warm)
        )


@cache
def _reader(table: tuple[tuple[str, str], ...]) -> Reads:
    (_, name), *settings = table
    return partial(getattr(tables, name), **dict(settings))


_ENTRIES = read_toml(Path(__file__).with_suffix(".toml"))["group"]
GROUPS = tuple(Group(**{**entry, "tables": tuple(entry["tables"])}) for entry in _ENTRIES)
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
        return plain(
            group=self.group.key,
            kernel=self.case.name,
            gpu=self.case.call.profile.name,
            regime=self.case.regime,
            row=self.case.number,
            launch=self.timed.launch or "call",
            held_out=self.held_out,
            measured_s=self.timed.measured_s,
            predicted_s=self.timed.predicted_s,
            error=self.timed.error,
        )


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
        ninth, mean = sizes[-(-9 * len(sizes) // 10) - 1], fmean(sizes)
        return cls(len(sizes), mean, median(sizes), ninth, sizes[-1], median(errors))


def collect(
    every: int = 1, keys: Iterable[str] = KEYS, show: Shows = iter
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


def rows_of(
    cases: Iterable[tuple[Group, Case]], changed: Mapping[int, Any] | None = None
) -> list[Row]:
    rows, times = [], dict[int, list[Timed]]()
    for group, case in cases:
        # one case may be in several groups: it is predicted once
        if id(case) not in times:
            times[id(case)] = list(case.times((changed or {}).get(id(case))))
        rows += [
            Row(group, case, timed)
            for timed in times[id(case)]
            if group.chooses(case, timed.launch)
        ]
    return rows


def by_group(rows: Iterable[Row], held_out: bool = True) -> dict[str, Errors]:
    """Errors by group, of rows that nothing was fitted on, or of the others."""
    of_group = grouped((row for row in rows if row.held_out == held_out), lambda row: row.group.key)
    return {
        key: e
        for key in KEYS
        if (e := Errors.of([row.timed.error for row in of_group.get(key, ())])) is not None
    }


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
            return "No timed row was compared."
        aimed = {
            g.key: e.mean <= g.target
            for g in GROUPS
            if g.target is not None and (e := self.held_out.get(g.key))
        }
        missed = [key for key, met in aimed.items() if not met]
        more = f"{len(aimed) - len(missed)} of {len(aimed)} groups meet their target"
        text = f"Of {all_in.n:,} held-out times half are within {all_in.median:.1%}; {more}"
        return text + (f", not: {', '.join(missed)}" if missed else "") + "."

    def table(self) -> Table:
        other = by_group(self.rows, held_out=False)
        lines: list[tuple[Cell, ...]] = []
        for group in GROUPS:
            e, f = self.held_out.get(group.key), other.get(group.key)
            if e is not None:
                target = "" if group.target is None else f"{group.target:.1%}"
                lines.append(
                    (
                        group.key,
                        group.title,
                        e.n,
                        f"{e.mean:.1%}",
                        f"{e.p90:.1%}",
                        f"{e.max:.0%}",
                        f"{e.signed:+.1%}",
                        target,
                        f"{f.mean:.1%} of {f.n}" if f else "",
                    )
                )
        columns = (
            Column("group"),
            Column("title", "rows"),
            Column("n"),
            Column("mean"),
            Column("p90"),
            Column("max"),
            Column("signed", "median, signed"),
            Column("target"),
            Column("fitted", "fitted on"),
        )
        return Table(columns, tuple(lines))

    def by_gpu(self) -> Table:
        """Errors of each GPU's times, of rows that nothing was fitted on, a row that is in several groups once."""
        # groups overlap: a row counts once
        distinct = {(id(row.case), row.timed.launch): row for row in self.rows if row.held_out}
        of_gpu = grouped(distinct.values(), lambda row: row.case.call.profile.name)
        lines: list[tuple[Cell, ...]] = []
        for gpu in sorted(of_gpu):
            e = Errors.of([row.timed.error for row in of_gpu[gpu]])
            if e is not None:
                lines.append(
                    (
                        gpu,
                        e.n,
                        f"{e.median:.1%}",
                        f"{e.mean:.1%}",
                        f"{e.p90:.1%}",
                        f"{e.signed:+.1%}",
                    )
                )
        return Table(
            (
                Column("gpu", "GPU"),
                Column("n"),
                Column("median"),
                Column("mean"),
                Column("p90"),
                Column("signed", "median, signed"),
            ),
            tuple(lines),
        )

    def to_dict(self) -> dict[str, Any]:
        groups = []
        for g, e in ((g, self.held_out.get(g.key)) for g in GROUPS):
            if e is not None:
                meets = None if g.target is None else e.mean <= g.target
                groups.append(
                    plain(group=g.key, title=g.title, target=g.target)
                    | asdict(e)
                    | {"meets": meets}
                )
        numbers = [{**asdict(f), "gpu": f.gpu or None} for f in fitted()]
        record = {
            "answer": self.answer,
            "groups": groups,
            "rows": [row.record() for row in self.rows],
        }
        return {**record, "fitted": numbers, "missing": self.missing}


def times_report(every: int = 1, keys: Iterable[str] = KEYS, show: Shows = iter) -> TimesReport:
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
        return cls(
            *parse_limit(
                text, "group", ("all", *KEYS), STATISTICS, "mean", "graph=5% or all:p90=30%"
            )
        )

    def exceeded(self, report: TimesReport) -> str | None:
        groups = {k: e for k, e in report.held_out.items() if self.group in ("all", k)}
        if not groups:
            return f"{self.group}: no row to hold against {self.limit:.3g}"
        errors = {k: getattr(e, self.statistic) for k, e in groups.items()}
        wrong = [
            f"{k}: {self.statistic} {error:.1%}"
            for k, error in errors.items()
            if error > self.limit
        ]
        return "; ".join(f"{group} is above {self.limit:.1%}" for group in wrong) or None

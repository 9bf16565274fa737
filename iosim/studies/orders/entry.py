"""What is predicted of an order, the ranking of several, and what it looks like."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import floor, inf, log
from numbers import Real
from typing import Any

from iosim.base.errors import InputError
from iosim.base.records import dataclass, plain, replace
from iosim.base.units import bytes_text, picoseconds, seconds_text, some
from iosim.base.words import sentences
from iosim.hardware.profile import HardwareProfile
from iosim.hardware.trust import evidence
from iosim.kernel.kernel import Tile
from iosim.kernel.schedule import Schedule, Start
from iosim.prediction.answer import times_text
from iosim.prediction.confidence import in_dtype
from iosim.prediction.result import Prediction
from iosim.problem.attention import AttentionProblem
from iosim.show import axes
from iosim.show.page import Panel, Series
from iosim.show.shown import Part, Shown
from iosim.show.tables import Column, Marked, Table
from iosim.studies.orders.space import OrderChoice

SAME_TIME = 0.01
"""Times that differ by less count as equal: about what the model of time can tell apart."""
SAME_BYTES = 0.02
"""Bytes at HBM that differ by less count as equal."""
COARSE = "coarse"
"""Method of orders that were replayed in coarse steps alone, to choose among them."""
SAME_WORD = 0.005
"""Shares below this are not worth a word."""
MOST_SHOWN = 12
COLUMNS = (
    Column("rank", kind="count"),
    Column("words", "order"),
    Column("tile"),
    Column("hbm_bytes", "HBM"),
    Column("side_bytes", "behind the L2s", kind="bytes"),
    Column("times_compulsory", "over compulsory", kind="ratio"),
    Column("time_s", "time"),
    Column("bound_by", "bound by"),
    Column("what", ""),
)
MARKS = {"coarse": "c", "sampled": "s"}
MEANINGS = {
    "coarse": "c: replayed in coarse steps",
    "sampled": "s: sampled, a long launch played in part",
}
ROUGHEST_FIRST = (COARSE, "bounds", "capacity", "sampled", "replay")


@dataclass(frozen=True)
class OrderPart:
    """What is predicted of one problem in one order. Bytes are those at HBM."""

    tile: Tile
    schedule: Schedule
    read_bytes: int
    write_bytes: int
    compulsory_bytes: int
    time_s: float
    bound_by: str
    method: str
    side_bytes: int | None = None
    """Both ways between the L2s and a cache at the memory's side; None where there is none."""

    @classmethod
    def of(cls, p: Prediction, method: str | None = None) -> OrderPart:
        settings, bounds = p.kernel.of_pass(p.problem.passes == "bwd"), p.hbm_bounds
        return cls(
            settings.tile or p.kernel.tile,
            settings.schedule,
            p.total("hbm", "read"),
            p.total("hbm", "write"),
            bounds.compulsory_read + bounds.compulsory_write,
            p.time.total_s,
            p.time.bound_by,
            method or p.method,
            None if p.side is None else p.side.total,
        )


@dataclass(frozen=True)
class OrderEntry:
    """An order and what is predicted of it: sums over the problems, each times its weight."""

    choice: OrderChoice
    """The order."""
    parts: tuple[OrderPart, ...]
    """A part for each problem."""
    hbm_read_bytes: int
    """Bytes read from HBM."""
    hbm_write_bytes: int
    """Bytes written to HBM."""
    compulsory_bytes: int
    """What has to be read and written at least."""
    time_s: float
    """Seconds."""
    side_bytes: int | None = None
    """Bytes between the L2s and a cache at the memory's side, both ways; None where there is none."""
    is_own: bool = False
    """True for the kernel's own order."""
    on_front: bool = False
    """True where no other order takes less time with as few bytes, or moves fewer bytes in as little time."""

    @classmethod
    def of(
        cls, choice: OrderChoice, parts: Sequence[OrderPart], weights: Sequence[float]
    ) -> OrderEntry:
        def total(values: Iterable[float]) -> float:
            return math.fsum(weight * value for weight, value in zip(weights, values, strict=True))

        names = ("read_bytes", "write_bytes", "compulsory_bytes")
        read, written, least = (round(total(getattr(p, name) for p in parts)) for name in names)
        side = (
            None
            if None in {p.side_bytes for p in parts}
            else round(total(p.side_bytes or 0 for p in parts))
        )
        return cls(choice, tuple(parts), read, written, least, total(p.time_s for p in parts), side)

    @property
    def hbm_bytes(self) -> int:
        """Bytes at HBM, both ways."""
        return self.hbm_read_bytes + self.hbm_write_bytes

    @property
    def times_compulsory(self) -> float:
        """Bytes at HBM over the compulsory ones. NB: what is written and stays in the L2 is among those alone."""
        return self.hbm_bytes / max(1, self.compulsory_bytes)

    @property
    def method(self) -> str:
        """How the bytes were found, as in `Prediction`, or "coarse"; of several problems the roughest."""
        methods = {part.method for part in self.parts}
        return next(method for method in ROUGHEST_FIRST if method in methods)

    @property
    def is_whole(self) -> bool:
        """True where it was replayed as `predict` does."""
        return self.method != COARSE

    @property
    def section_heads(self) -> int | None:
        """Heads of a section, 0 for none; None where they differ from problem to problem."""
        sections = {part.schedule.section_heads for part in self.parts}
        return sections.pop() if len(sections) == 1 else None

    @property
    def bound_by(self) -> str:
        return max(self.parts, key=lambda part: part.time_s).bound_by

    def to_dict(self) -> dict[str, Any]:
        c = self.choice
        order = {
            "order": str(c.order),
            "section_heads": self.section_heads,
            "section_bytes": c.section_bytes or None,
        }
        order |= {"direction": str(c.direction), "heavy_first": c.start is Start.HEAVY_FIRST}
        order |= {"fold": c.start is Start.FOLD} | plain(
            scheduler=c.scheduler, cluster=c.cluster, chiplets=c.chiplets
        )
        tile = plain(
            block_q=self.parts[0].tile.block_q,
            block_k=self.parts[0].tile.block_k,
            warps=self.parts[0].tile.warps,
            stages=self.parts[0].tile.stages,
        )
        return (
            order
            | tile
            | plain(
                hbm_read_bytes=self.hbm_read_bytes,
                hbm_write_bytes=self.hbm_write_bytes,
                time_s=self.time_s,
                side_bytes=self.side_bytes,
                bound_by=self.bound_by,
                times_compulsory=self.times_compulsory,
                pareto=self.on_front,
                own=self.is_own,
                method=self.method,
                words=self.choice.words,
            )
        )


SERIES = (
    Series("orders", axes.NEUTRAL, "●"),
    Series("its own", axes.colour(1), "■"),
    Series("best", axes.colour(2), "◆"),
)
"""Of the figure: all orders, the kernel's own, and the first of the ranking."""
MARKS = {"●": "circle", "■": "square", "◆": "diamond"}


def _points(name: str, entries: Sequence[OrderEntry], series: Series) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [e.hbm_bytes for e in entries],
        "y": [e.time_s for e in entries],
        "text": [
            f"{name}: {e.choice.words}<br>{bytes_text(e.hbm_bytes)}, {seconds_text(e.time_s)}"
            for e in entries
        ],
        "hoverinfo": "text",
        "name": name,
        "marker": {"color": series.colour, "symbol": MARKS[series.mark], "size": 9},
    }


@dataclass(frozen=True, repr=False)
class OrderRanking(Shown):
    """Orders of a kernel on a GPU, the best first, and those that were left out."""

    problems: tuple[AttentionProblem, ...]
    """What is computed."""
    weights: tuple[float, ...]
    """How often each is called."""
    kernel: str
    """The kernel's name."""
    profile: HardwareProfile
    """The GPU."""
    orders: tuple[OrderEntry, ...]
    """Those predicted, the best first."""
    own: OrderEntry
    """The kernel's own order."""
    left_out: tuple[tuple[OrderChoice, str], ...]
    """Those not predicted, and why."""
    notes: tuple[str, ...] = ()
    """What a reader of the ranking should know."""
    by_default: str = ""
    """That nobody named the kernel; empty where it was named."""
    title: str = ""
    """The model that is computed; empty without one."""

    @property
    def best(self) -> OrderEntry:
        """The first of the ranking."""
        return self.orders[0]

    @property
    def pareto(self) -> tuple[OrderEntry, ...]:
        """Orders with nothing better in both time and bytes, the fastest first."""
        return tuple(
            sorted((e for e in self.orders if e.on_front), key=lambda e: picoseconds(e.time_s))
        )

    def code(self, language: str = "triton", entry: OrderEntry | None = None) -> str:
        """An order, by default the best, as "triton", "cuda" or "formula". Raises InputError: another language."""
        from iosim.studies.orders.code import code

        return code((entry or self.best).parts[0].schedule, language)

    def to_dict(self) -> dict[str, Any]:
        weighted = zip(self.problems, self.weights, strict=True)
        problems = {"problems": [{"problem": p.to_dict(), "weight": w} for p, w in weighted]}
        left_out = {
            "left_out": [
                {"words": choice.words, "reason": reason} for choice, reason in self.left_out
            ]
        }
        orders = plain(compulsory_bytes=self.own.compulsory_bytes, own=self.own, orders=self.orders)
        return {
            "schema": 1,
            **plain(profile=self.profile.name, kernel=self.kernel),
            **problems,
            **orders,
            **left_out,
            "notes": list(self.notes),
        }

    def records(self) -> list[dict[str, Any]]:
        return [entry.to_dict() for entry in self.orders]

    def to_text(self) -> str:
        return self.listed(MOST_SHOWN)

    def listed(self, limit: int, markdown: bool = False) -> str:
        rows = ranking_table(self, limit).winning("rank", [1])
        note_lines = "".join(
            f"{'- ' if markdown else 'note: '}{note}\n" for note in notes(self, limit)
        )
        return (
            f"{ranking_answer(self)}\n\n{rows.markdown() if markdown else rows.text()}{note_lines}"
        )

    def _line(self) -> str:
        several = some(len(self.orders), "order")
        return f"{self.kernel} on {self.profile.name}, {several}; best: {self.best.choice.words}"

    def _parts(self) -> list[Part]:
        return [ranking_answer(self), ranking_table(self), notes(self)]

    def _panels(self) -> tuple[Panel, ...]:
        return self.panels()

    def panels(self, panel_id: str = "orders") -> tuple[Panel, ...]:
        """Time against bytes at HBM, a point per order."""
        named = {"orders": self.orders, "its own": (self.own,), "best": (self.best,)}
        data = [
            _points(name, entries, series)
            for (name, entries), series in zip(named.items(), SERIES, strict=True)
        ]
        shown = (*self.orders, self.own)
        layout = axes.layout(
            axes.log_axis([e.hbm_bytes for e in shown], "HBM bytes", bytes_text),
            axes.log_axis([e.time_s for e in shown], "time", seconds_text),
        )
        title = f"Orders of {self.kernel} on {self.profile.name}: time against HBM bytes"
        return (
            Panel(
                panel_id, title, f"{title}; best: {self.best.choice.words}.", tuple(data), layout
            ),
        )


def ranked(entries: Sequence[OrderEntry], own_order: OrderChoice) -> list[OrderEntry]:
    """The entries, the best first, those on the front of time and bytes marked; of equals the one with the fewest
    changes from the kernel's `own` order."""
    if not entries:
        return []
    fastest = min(e.time_s for e in entries)

    def moved(e: OrderEntry) -> list[int]:
        return [e.hbm_bytes] if e.side_bytes is None else [e.hbm_bytes, e.side_bytes]

    def slower(e: OrderEntry) -> int:
        # Bins of one per cent: entries in the same bin take the same time, and bytes decide.
        return floor(log(e.time_s / fastest) / log(1 + SAME_TIME)) if fastest else 0

    # Per bin the fewest bytes, at HBM and behind the L2s: from these bytes are binned in turn.
    least: dict[int, list[int]] = {}
    for e in entries:
        least[slower(e)] = [
            max(1, min(pair)) for pair in zip(moved(e), least.get(slower(e), moved(e)), strict=True)
        ]

    def key(e: OrderEntry) -> tuple[int, list[int], int, int, int]:
        pairs = zip(moved(e), least[slower(e)], strict=True)
        # Both levels of bytes in bins of two per cent, compared in order.
        more = [floor(log(max(1, mine) / fewest) / log(1 + SAME_BYTES)) for mine, fewest in pairs]
        return slower(e), more, e.choice.changed_from(own_order), picoseconds(e.time_s), e.hbm_bytes

    front = {id(e) for e in _front(entries)}
    return sorted((replace(e, on_front=id(e) in front) for e in entries), key=key)


def _front(entries: Sequence[OrderEntry]) -> list[OrderEntry]:
    """Entries with nothing as good in both and better in one."""
    # Sorted by time, an entry is on the front if it has fewer bytes than all before it.
    in_time = sorted(entries, key=lambda e: (picoseconds(e.time_s), e.hbm_bytes))
    least_before = accumulate((e.hbm_bytes for e in in_time), min, initial=inf)
    return [e for e, least in zip(in_time, least_before, strict=False) if e.hbm_bytes < least]


def check_weights(
    weights: Sequence[float] | None, problems: Sequence[AttentionProblem]
) -> tuple[float, ...]:
    if weights is None:
        return (1.0,) * len(problems)
    if len(weights) != len(problems):
        raise InputError(
            f"`weights` are {len(weights)}; accepted: {len(problems)}, one for each problem"
        )
    for weight in weights:
        if not isinstance(weight, Real) or not 0 < weight < float("inf"):
            raise InputError(f"`weights` {weight} is out of range; accepted: numbers above 0")
    return tuple(float(weight) for weight in weights)


def ranking_answer(ranking: OrderRanking) -> str:
    """The best order, its bytes and time, against the kernel's own."""
    best, own_entry = ranking.best, ranking.own
    above = f"{times_text(best.times_compulsory)}x the compulsory bytes"
    if best.times_compulsory < 1:
        above = "outputs still in L2"
    cost = f"{bytes_text(best.hbm_bytes)} at HBM, {above}, {seconds_text(best.time_s)}"
    more = own_entry.time_s / best.time_s - 1 if best.time_s else 0.0
    time = (
        f"{100 * abs(more):.1f} % {'more' if more > 0 else 'less'} time"
        if abs(more) > SAME_WORD
        else "as much time"
    )
    takes = f"takes {time}"
    bound = best.parts[0].bound_by
    of = f" for {ranking.title}" if ranking.title else ""
    dtype = in_dtype(ranking.problems[0], ranking.profile)
    parts = [
        f"{ranking.kernel} on {ranking.profile.name}{dtype}{of} does best with {best.choice.words}: {cost}, bound by {bound}",
        "That is its own order" if best.is_own else f"Its own order {takes}",
    ]
    return sentences(parts)


def beneath(ranking: OrderRanking) -> tuple[str, ...]:
    """What stands under the table: the problem, the kernel's own order, and what the numbers rest on."""
    times = next(basis for basis in evidence(ranking.profile).bases if basis.model == "time")
    lines = (
        f"{_where(ranking)}: {some(len(ranking.orders), 'order')} predicted, {len(ranking.left_out)} left out",
        f"its own order is {ranking.own.choice.words}",
        ranking.by_default,
        f"HBM bytes by replay, times by a model, whose numbers are: {times.summary}",
    )
    return tuple(part for part in lines if part)


def _where(ranking: OrderRanking) -> str:
    p = ranking.problems[0]
    of = f", for {ranking.title}," if ranking.title else ""
    if len(ranking.problems) > 1:
        return f"On {ranking.profile.name}{of or ' for'} {some(len(ranking.problems), 'problem')} together"
    mask = "" if p.mask == "none" else f", {p.mask_text}"
    at = f"{some(p.seq_q, 'token')} and {heads_text(p)} of {some(p.head_dim, 'column')}"
    return f"On {ranking.profile.name}{of} at {at}{mask}"


def heads_text(p: AttentionProblem) -> str:
    return some(p.heads, "head") + ("" if p.group == 1 else f" on {p.kv_heads}")


def ranking_table(r: OrderRanking, limit: int | None = MOST_SHOWN) -> Table:
    """A row per order, the best first; the kernel's own, and those on the front of time and bytes, named."""
    first = list(enumerate(r.orders[:limit], 1))
    own_rows = [
        (n, e) for n, e in enumerate(r.orders, 1) if e.is_own and limit is not None and n > limit
    ]
    table = Table.of((_order_row(n, e) for n, e in first + own_rows), COLUMNS)
    return table.without("side_bytes") if all(e.side_bytes is None for _, e in first) else table


def _order_row(rank: int, e: OrderEntry) -> dict[str, Any]:
    mark = MARKS.get(e.method, "")
    size = Marked.of(e.hbm_bytes, mark) if mark else e.hbm_bytes
    labels = ", ".join(
        word for word, applies in (("front", e.on_front), ("its own", e.is_own)) if applies
    )
    return e.to_dict() | {
        "rank": rank,
        "tile": str(e.parts[0].tile),
        "hbm_bytes": size,
        "what": labels,
    }


def notes(r: OrderRanking, limit: int | None = MOST_SHOWN) -> tuple[str, ...]:
    """What the marks stand for, and what a reader should know."""
    methods = {e.method for e in r.orders[:limit]}
    meanings = [MEANINGS[method] for method in MEANINGS if method in methods]
    front = "front: no other order takes less time with as few bytes, or moves fewer bytes in as little time"
    return (front, *meanings, *r.notes, *beneath(r))

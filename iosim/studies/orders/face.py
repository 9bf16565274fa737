"""What a ranking of orders looks like, and where a constant size of sections is right."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text, capacity_text, seconds_text, some, times_of
from iosim.base.words import sentences
from iosim.hardware.trust import evidence
from iosim.prediction.answer import times_text
from iosim.show import axes
from iosim.show.page import Panel
from iosim.show.shown import Face, Part, shows
from iosim.show.tables import Column, Marked, Table
from iosim.studies.orders.constant import SAME_BYTES, ConstantCheck, ConstantRow
from iosim.studies.orders.entry import OrderEntry, OrderRanking

SAME = 0.005
"""Shares below this are not worth a word."""


def answer(ranking: OrderRanking) -> str:
    """The best order, its bytes and time, against the kernel's own."""
    best, own = ranking.best, ranking.own
    parts = [f"{_where(ranking)} {ranking.kernel} does best with {best.choice.words}: {_cost(best)}"]
    if best.is_own:
        parts.append("That is its own order")
    else:
        parts.append(f"Its own order ({own.choice.words}) {_against(own, best)}")
    parts.append(f"{some(len(ranking.orders), 'order')} predicted, {len(ranking.left_out)} left out")
    parts += [ranking.by_default] if ranking.by_default else []
    times = next(basis for basis in evidence(ranking.profile).bases if basis.model == "time")
    parts.append("HBM bytes by replay, times by a model")
    parts.append(f"The time model's numbers: {times.summary}")
    return sentences(parts)


def _where(ranking: OrderRanking) -> str:
    p = ranking.problems[0]
    if len(ranking.problems) > 1:
        return f"On {ranking.profile.name} for {some(len(ranking.problems), 'problem')} together"
    heads = some(p.heads, "head") + ("" if p.group == 1 else f" on {p.kv_heads}")
    mask = "" if p.mask == "none" else f", {p.mask_text}"
    return f"On {ranking.profile.name} at {some(p.seq_q, 'token')} and {heads} of {some(p.head_dim, 'column')}{mask}"


def _cost(e: OrderEntry) -> str:
    against = times_of(times_text(e.times_compulsory), "the compulsory bytes")
    return f"{bytes_text(e.hbm_bytes)} at HBM, {against}, {seconds_text(e.time_s)}"


def _against(own: OrderEntry, best: OrderEntry) -> str:
    """What the kernel's own order takes beside the best."""
    more = own.time_s / best.time_s - 1 if best.time_s else 0.0
    if more > SAME:
        time = f"{100 * more:.1f} % more time"
    elif more < -SAME:
        time = f"{-100 * more:.1f} % less time"
    else:
        time = "as much time"
    return f"moves {bytes_text(own.hbm_bytes)} and takes {time}"


def constant_answer(checks: Sequence[ConstantCheck]) -> str:
    """Where a constant is right and where it loses, a sentence a GPU."""
    return " ".join(map(_constant, checks))


def _constant(check: ConstantCheck) -> str:
    size, right = check.best_constant
    constant, problems = capacity_text(check.section_bytes), f"{check.right} of {some(len(check.rows), 'problem')}"
    parts = [f"Sections of {constant} are right for {problems} on {check.profile.name} ({check.kernel})"]
    slowest = max(check.rows, key=lambda row: row.constant.time_s / row.best.time_s)
    heaviest = max(check.rows, key=lambda row: row.constant.hbm_bytes / row.best.hbm_bytes)
    lost = slowest.constant.time_s / slowest.best.time_s - 1
    more = heaviest.constant.hbm_bytes / heaviest.best.hbm_bytes
    if lost > SAME:
        parts.append(f"They cost most time, {100 * lost:.1f} %, at {_problem(slowest)}")
    if more > 1 + SAME_BYTES:
        parts.append(f"They move most, {times_text(more)} times the bytes of the best section, at {_problem(heaviest)}")
    if size != check.section_bytes and right > check.right:
        parts.append(f"{capacity_text(size)} are right for {right}")
    parts += [check.by_default] if check.by_default else []
    return sentences(parts)


def _problem(row: ConstantRow) -> str:
    p = row.problem
    heads = some(p.heads, "head") + ("" if p.group == 1 else f" on {p.kv_heads}")
    return f"{some(p.seq_q, 'token')} x {heads}, mask {p.mask_text}"


MOST_SHOWN = 12
"""Orders that a text lists."""
COLUMNS = (
    Column("rank", "rank", "count"), Column("words", "order"), Column("tile", "tile"),
    Column("hbm_bytes", "HBM", "bytes"), Column("times_compulsory", "over compulsory", "ratio"),
    Column("time_s", "time", "seconds"), Column("bound_by", "bound by"), Column("what", ""),
)  # fmt: skip
MARKS = {"coarse": "c", "sampled": "s"}
MEANINGS = {"coarse": "c: replayed in coarse steps", "sampled": "s: sampled, a long launch played in part"}


def line(r: OrderRanking) -> str:
    """The kernel, the GPU and the best order."""
    return f"{r.kernel} on {r.profile.name}, {some(len(r.orders), 'order')}; best: {r.best.choice.words}"


def table(r: OrderRanking, most: int | None = MOST_SHOWN) -> Table:
    """A row an order, the best first; the kernel's own, and those on the front of time and bytes, named."""
    first = list(enumerate(r.orders[:most], 1))
    own = [(n, e) for n, e in enumerate(r.orders, 1) if e.is_own and most is not None and n > most]
    return Table(COLUMNS, tuple(_row(n, e) for n, e in first + own))


def _row(rank: int, e: OrderEntry) -> tuple[str | int | float | None, ...]:
    mark = MARKS.get(e.method, "")
    size = Marked.of(e.hbm_bytes, mark) if mark else e.hbm_bytes
    what = ", ".join(word for word, there in (("front", e.on_front), ("its own", e.is_own)) if there)
    return (rank, e.choice.words, str(e.parts[0].tile), size, e.times_compulsory, e.time_s, e.bound_by, what)


def notes(r: OrderRanking, most: int | None = MOST_SHOWN) -> tuple[str, ...]:
    """What the marks stand for, and what a reader should know."""
    methods = {e.method for e in r.orders[:most]}
    told = [MEANINGS[method] for method in MEANINGS if method in methods]
    front = "front: no other order takes less time with as few bytes, or moves fewer bytes in as little time"
    return (front, *told, *r.notes)


def text(r: OrderRanking) -> str:
    """As the command line prints it."""
    below = "".join(f"note: {note}\n" for note in notes(r))
    return f"{answer(r)}\n\n{table(r).text()}{below}"


def parts(r: OrderRanking) -> list[Part]:
    """The answer, the table, the notes."""
    return [answer(r), table(r), notes(r)]


def panels(r: OrderRanking) -> tuple[Panel, ...]:
    """Time against bytes at HBM, a point an order."""
    several = list(r.orders)
    hover = [f"{e.choice.words}<br>{bytes_text(e.hbm_bytes)}, {seconds_text(e.time_s)}" for e in several]
    data = {"type": "scatter", "mode": "markers", "x": [e.hbm_bytes for e in several], "y": [e.time_s for e in several],
            "text": hover, "hoverinfo": "text", "name": "orders"}  # fmt: skip
    layout = axes.layout(
        axes.linear_axis([e.hbm_bytes for e in several], "HBM bytes", bytes_text),
        axes.linear_axis([e.time_s for e in several], "time", seconds_text),
    )
    title = f"Orders of {r.kernel} on {r.profile.name}: time against HBM bytes"
    return (Panel("orders", title, f"{title}; best: {r.best.choice.words}.", (data,), layout),)


def constant_table(check: ConstantCheck) -> Table:
    """A row a problem: what the constant comes to, the best section, and what it costs beside that."""
    return Table.of(
        {
            "tokens": f"{row.problem.seq_q:,}",
            "heads": row.problem.heads,
            "on": row.problem.kv_heads,
            "mask": row.problem.mask_text,
            "section": _heads(row.constant.heads),
            "best section": _heads(row.best.heads),
            "HBM": bytes_text(row.constant.hbm_bytes),
            "over the best's": f"{100 * (row.constant.hbm_bytes / row.best.hbm_bytes - 1):+.1f} %",
            "time": seconds_text(row.constant.time_s),
            "over its time": f"{100 * (row.constant.time_s / row.best.time_s - 1):+.1f} %",
            "right": "yes" if row.is_right else "no",
        }
        for row in check.rows
    )


def _heads(heads: int) -> str:
    return "all heads" if heads == 0 else f"{heads} head{'s' * (heads > 1)}"


shows(OrderRanking, Face(line, text, parts, panels))

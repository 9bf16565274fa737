"""A ranking of orders in one sentence, and where a constant size of sections is right."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text, capacity_text, seconds_text, some, times_of
from iosim.hardware.trust import evidence
from iosim.prediction.answer import times_text
from iosim.studies.orders.constant import SAME_BYTES, ConstantCheck, ConstantRow
from iosim.studies.orders.entry import OrderEntry, OrderRanking

SAME = 0.005
"""Shares below this are not worth a word."""


def answer(ranking: OrderRanking) -> str:
    """The best order, its bytes and time, against the kernel's own."""
    best, own = ranking.best, ranking.own
    parts = [f"{_where(ranking)} {ranking.kernel} does best with {best.choice.words}: {_cost(best)}"]
    if best.is_own:
        parts[0] += "; that is its own order"
    else:
        parts.append(f"its own order ({own.choice.words}) {_against(own, best)}")
    parts.append(f"{some(len(ranking.orders), 'order')} predicted, {len(ranking.left_out)} left out")
    parts += [ranking.by_default] if ranking.by_default else []
    times = next(basis for basis in evidence(ranking.profile).bases if basis.model == "time")
    parts.append(f"HBM bytes by replay, times by a model of whose numbers {times.summary}")
    return f"{'; '.join(parts)}."


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
        parts.append(f"they cost most time, {100 * lost:.1f} %, at {_problem(slowest)}")
    if more > 1 + SAME_BYTES:
        parts.append(f"and move most, {times_text(more)} times the bytes of the best section, at {_problem(heaviest)}")
    if size != check.section_bytes and right > check.right:
        parts.append(f"{capacity_text(size)} are right for {right}")
    parts += [check.by_default] if check.by_default else []
    return f"{'; '.join(parts)}."


def _problem(row: ConstantRow) -> str:
    p = row.problem
    heads = some(p.heads, "head") + ("" if p.group == 1 else f" on {p.kv_heads}")
    return f"{some(p.seq_q, 'token')} x {heads}, mask {p.mask_text}"

"""What a change moved between two recordings of predictions, as a text of a page: the body of the commit that says why.

A row of predictions.csv is one call. Its numbers are compared as `Change`s; a hash (the bytes of each launch and
tensor) has no size, so its changes are counted alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median

Row = dict[str, str]
WORST = 5
HASHES = ("traffic",)
"""Columns whose values are equal or not, and nothing between."""
REFUSED = "refused"
"""The quantity of a call that was answered and no longer is."""


@dataclass(frozen=True)
class Change:
    """One quantity of one call, before and after."""

    call: str
    quantity: str
    before: str
    after: str

    @property
    def relative(self) -> float | None:
        """The change as a fraction of the value before: 0.5 is half as much again. None where it has no size."""
        if self.quantity in (*HASHES, REFUSED):
            return None
        before = float(self.before)
        after = float(self.after)
        if before == 0:
            return inf
        return after / before - 1

    def option(self, name: str) -> str:
        """The value of an option in the call, such as `kernel`."""
        match = re.search(rf"--{name} (\S+)", self.call)
        return match[1] if match else "-"

    @property
    def text(self) -> str:
        return f"{self.quantity}: recorded {self.before}, now {self.after}"


def changes(
    before: Row, after: Row | None, exact: Sequence[str], times: Sequence[str]
) -> Iterable[Change]:
    """The quantities of one call that differ: bytes to the byte, times by more than 1e-9 of their size."""
    call = before["call"]
    if after is None:
        yield Change(call, REFUSED, "answered", "refused")
        return
    for name in exact:
        if before[name] != after[name]:
            yield Change(call, name, before[name], after[name])
    for name in times:
        recorded = float(before[name])
        now = float(after[name])
        if abs(now - recorded) > 1e-9 * abs(recorded):
            yield Change(call, name, before[name], after[name])


def percent(fraction: float | None) -> str:
    if fraction is None:
        return "-"
    if not isfinite(fraction):
        return "from 0"
    return f"{100 * fraction:+.3g} %"


def percentile_95(sizes: Sequence[float]) -> float:
    """The 95th percentile by nearest rank: the smallest value that at least 95 % do not exceed."""
    ordered = sorted(sizes)
    rank = -(-95 * len(ordered) // 100)
    return ordered[rank - 1]


def table(title: str, all_changes: Sequence[Change], key: Callable[[Change], str]) -> list[str]:
    """Lines of one table: calls that moved, the median of the changes with their sign, the 95th percentile of their
    size."""
    groups: dict[str, list[Change]] = {}
    for change in all_changes:
        groups.setdefault(key(change), []).append(change)
    width = max(len(title), *(len(name) for name in groups))
    lines = [f"{title:{width}}  calls      median  p95 of size"]
    by_calls = sorted(groups.items(), key=lambda item: (-len({c.call for c in item[1]}), item[0]))
    for name, members in by_calls:
        relative = [change.relative for change in members]
        sizes = [fraction for fraction in relative if fraction is not None]
        middle = percent(median(sizes)) if sizes else "-"
        high = percent(percentile_95([abs(size) for size in sizes])).lstrip("+") if sizes else "-"
        lines.append(
            f"{name:{width}}  {len({c.call for c in members}):5}  {middle:>10}  {high:>11}"
        )
    return lines


def summary(all_changes: Sequence[Change], calls: int) -> str:
    """The page: how many calls moved, by quantity, kernel and GPU, and the five largest changes."""
    calls_moved = {change.call for change in all_changes}
    if not calls_moved:
        return f"0 of {calls} recorded predictions moved."
    lines = [f"{len(calls_moved)} of {calls} recorded predictions moved."]
    for title, key in (
        ("quantity", lambda change: change.quantity),
        ("kernel", lambda change: change.option("kernel")),
        ("GPU", lambda change: change.option("gpu")),
    ):
        lines += ["", *table(title, all_changes, key)]
    sized = [change for change in all_changes if change.relative is not None]
    sized.sort(key=lambda change: (-abs(change.relative or 0.0), change.call, change.quantity))
    if sized:
        lines += ["", f"The {min(WORST, len(sized))} largest:"]
    for change in sized[:WORST]:
        lines += [
            f"  {percent(change.relative)} {change.quantity}: {change.before} -> {change.after}"
        ]
        lines += [f"      {change.call}"]
    return "\n".join(lines)

"""A report's answer: a verdict a GPU, in one sentence.

It says which kernel moves least through HBM at the longest sequence, how much that is against the baseline at either
level, why the baseline moves more, and how far to trust the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iosim.base.units import bytes_text, some
from iosim.prediction.answer import against, left_in_l2, times_text, trust, why
from iosim.studies.report import figures
from iosim.studies.report.collect import Point
from iosim.studies.report.report import Report

NEAR = 1.1
"""HBM bytes within this factor of the least are as good: the bytes between SMs and L2 decide."""
HALF = 2.0
"""The baseline's HBM bytes over a kernel's from which on the kernel is said to halve them."""


@dataclass(frozen=True)
class Verdict:
    """One GPU and what can be said of it in a sentence."""

    gpu: str
    sentence: str


def answer(report: Report) -> str:
    """The verdicts of all GPUs, one after the other."""
    return " ".join(v.sentence for v in verdicts(report))


def verdicts(report: Report) -> tuple[Verdict, ...]:
    """A verdict a GPU, in the order of the request."""
    return of_points(report.points, figures.baseline(report.points))


def of_points(points: Sequence[Point], baseline: str | None) -> tuple[Verdict, ...]:
    """A verdict a GPU; `baseline` is the kernel that the others are held against, where there is one."""
    by_gpu: dict[str, list[Point]] = {}
    for p in points:
        by_gpu.setdefault(p.gpu.label, []).append(p)
    return tuple(Verdict(gpu, _sentence(gpu, members, baseline)) for gpu, members in by_gpu.items())


def _sentence(gpu: str, points: Sequence[Point], baseline: str | None) -> str:
    longest = max(p.seq_len for p in points)
    here = [p for p in points if p.seq_len == longest]
    best = _best(here)
    others = [p for p in here if p is not best]
    against = next((p for p in others if p.kernel == baseline), max(others, key=_moved, default=None))
    parts = [f"On {gpu} at {some(longest, 'token')} {best.kernel} moves {_amounts(best)}"]
    if against is not None:
        parts[0] += f", {_ratios(best, against)}"
        reason = why(against.prediction)
        parts.append(f"{against.kernel} moves {_amounts(against)}{f', {reason}' if reason else ''}")
        parts += _from(points, best.kernel, against.kernel)
    parts += [f"{p.kernel} moves {bytes_text(p.hbm)} at HBM" for p in others if p is not against and p.hbm is not None]
    return f"{'; '.join((*parts, trust([p.prediction for p in here])))}."


def _best(points: Sequence[Point]) -> Point:
    """Of those that move hardly more through HBM than the least, the one that moves least between SMs and L2."""
    least = min(map(_moved, points))
    return min((p for p in points if _moved(p) <= NEAR * least), key=lambda p: p.l2)


def _moved(p: Point) -> int:
    """HBM bytes; where only bounds are known, those between SMs and L2."""
    return p.l2 if p.hbm is None else p.hbm


def _amounts(p: Point) -> str:
    """Its bytes at both levels, those of HBM against the compulsory ones."""
    if p.hbm is None:
        return f"{bytes_text(p.l2)} between SMs and L2"
    times = left_in_l2(p.hbm, p.compulsory, p.prediction.l2_start) or against(p.hbm, p.compulsory, "compulsory")
    times = times.replace(" times compulsory", " times the compulsory")
    return f"{bytes_text(p.hbm)} at HBM ({times}) and {bytes_text(p.l2)} between SMs and L2"


def _ratios(best: Point, against: Point) -> str:
    """What it moves at each level against another kernel, with that one's name."""
    hbm = None if not best.hbm or against.hbm is None else _factor(against.hbm, best.hbm)
    by_level = [(hbm, "at HBM"), (_factor(against.l2, best.l2), "between SMs and L2")]
    same = " and ".join(where for factor, where in by_level if factor == "")
    other = " and ".join(f"{factor} {where}" for factor, where in by_level if factor)
    parts = [f"as much {same} as {against.kernel}"] if same else []
    return " and ".join([*parts, other if same else f"{other} than {against.kernel}"] if other else parts)


def _factor(theirs: int, own: int) -> str:
    """How many times less or more its own bytes are; empty where both are the same in three digits."""
    ratio = max(theirs, own) / max(1, min(theirs, own))
    if times_text(ratio) == "1":
        return ""
    return f"{times_text(ratio)} times {'less' if theirs > own else 'more'}"


def _from(points: Sequence[Point], kernel: str, against: str) -> list[str]:
    """The length from which on the baseline's HBM bytes are at least twice as many, where that is not the first."""
    at: dict[str, dict[int, int]] = {}
    for p in points:
        if p.hbm is not None:
            at.setdefault(p.kernel, {})[p.seq_len] = p.hbm
    both = sorted(at.get(kernel, {}).keys() & at.get(against, {}).keys())
    below = [n for n in both if at[against][n] < HALF * at[kernel][n]]
    first = next((n for n in both if not below or n > below[-1]), None)
    if first is None or first == both[0]:
        return []
    return [f"{kernel} halves the HBM bytes from {some(first, 'token')} on"]


__all__ = ["Verdict", "answer", "of_points", "verdicts"]

"""What is said of kernels side by side: a verdict a GPU, what stands under it, and what was computed."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.base.units import bytes_text, length_text, seconds_text, some
from iosim.base.words import sentences
from iosim.prediction.answer import against, left_in_l2, reason, times_text
from iosim.prediction.confidence import confidence, in_dtype
from iosim.studies.compare.points import CaseGrid, Omission, Point, by_gpu

NEAR = 1.1
"""HBM bytes within this factor of the least are as good: the bytes between SMs and L2 decide."""
MOST_SAID = 6
"""GPUs whose verdict stands above a page's figure; the answer in full has all."""
HALF = 2.0
"""The baseline's HBM bytes over a kernel's from which on the kernel is said to halve them."""


def verdicts(points: Sequence[Point], baseline: str | None) -> tuple[str, ...]:
    """A sentence per GPU; `baseline` is the kernel that the others are held against, where there is one."""
    return tuple(_sentence(gpu, members, baseline) for gpu, members in by_gpu(points).items())


def _sentence(gpu: str, points: Sequence[Point], baseline: str | None) -> str:
    longest, here, best = _at_the_longest(points)
    others = [p for p in here if p is not best]
    against = next(
        # Without a baseline the kernel that moves most is what the best is held against.
        (p for p in others if p.kernel == baseline),
        max(others, key=_moved, default=None),
    )
    at = f" at {some(longest, 'token')}" if len({p.seq_len for p in points}) > 1 else ""
    dtype = in_dtype(best.prediction.problem, best.prediction.profile)
    moves = f"On {gpu}{at} {best.kernel}{dtype} moves {_amounts(best)}"
    bound, sure = f"bound by {best.prediction.bound_by}", confidence([p.prediction for p in here])
    if against is None:
        return sentences(
            [f"{moves} in {seconds_text(best.time_s)}, {bound}", reason(best.prediction), sure]
        )
    took = f"{seconds_text(best.time_s)}, not {seconds_text(against.time_s)}"
    less = f"{moves}, {_ratios(best, against)}, {took}, {bound}"
    # Whose bytes are explained is said: the sentence before is of the other.
    cause = reason(against.prediction) if _moved(best) < _moved(against) else ""
    return sentences([less, f"{against.kernel}: {cause}" if cause else "", sure])


def further(points: Sequence[Point], baseline: str | None) -> tuple[str, ...]:
    """What stands under the verdicts, a line for each GPU: from which length on the bytes are halved, the bytes between
    SMs and L2, and what the other kernels move."""
    lines = []
    for gpu, members in by_gpu(points).items():
        _, here, best = _at_the_longest(members)
        others = [p for p in here if p is not best]
        base = next(
            (p for p in others if p.kernel == baseline), max(others, key=_moved, default=None)
        )
        parts = (
            []
            if base is None
            else [*_from(members, best.kernel, base.kernel), _between(best, base)]
        )
        rest = [p for p in others if p is not base and p.hbm is not None]
        parts += [
            f"{p.kernel} moves {bytes_text(p.hbm or 0)} at HBM in {seconds_text(p.time_s)}"
            for p in rest
        ]
        lines += [f"On {gpu}: {'; '.join(parts)}."] if parts else []
    return tuple(lines)


def _between(best: Point, base: Point) -> str:
    factor = _factor(base.l2, best.l2)
    than = (
        f"{factor} than {base.kernel}'s {bytes_text(base.l2)}"
        if factor
        else f"as much as {base.kernel}"
    )
    return f"{best.kernel} moves {bytes_text(best.l2)} between SMs and L2, {than}"


def in_short(points: Sequence[Point], baseline: str | None) -> tuple[str, ...]:
    """What stands above a page's figure: GPUs by the kernel that moves least and how much less than the baseline."""
    lines: list[str] = []
    for gpu, members in by_gpu(points).items():
        longest, here, best = _at_the_longest(members)
        base = next((p for p in here if p.kernel == baseline), best)
        where = "between SMs and L2" if best.hbm is None else "at HBM"
        factor = "" if base is best else _factor(_moved(base), _moved(best)) or "as much"
        less = (
            f", {factor} {'as' if factor == 'as much' else 'than'} {base.kernel}" if factor else ""
        )
        lines.append(
            f"**{best.kernel}** on {gpu} moves {bytes_text(_moved(best))} {where} at {some(longest, 'token')}{less}."
        )
    return tuple(lines[:MOST_SAID])


def _at_the_longest(points: Sequence[Point]) -> tuple[int, list[Point], Point]:
    """The longest sequence, what is known of it, and of that the best."""
    longest = max(p.seq_len for p in points)
    here = [p for p in points if p.seq_len == longest]
    # Of kernels whose HBM bytes are within ten per cent of the least, the one with fewest L2 bytes.
    least = min(map(_moved, here))
    return longest, here, min((p for p in here if _moved(p) <= NEAR * least), key=lambda p: p.l2)


def _moved(p: Point) -> int:
    return p.l2 if p.hbm is None else p.hbm


def _amounts(p: Point) -> str:
    if p.hbm is None or p.hbm_payload is None:
        return f"{bytes_text(p.l2)} between SMs and L2"
    times = left_in_l2(p.hbm_payload, p.compulsory, p.prediction.l2_start) or against(
        p.hbm_payload, p.compulsory, "compulsory"
    )
    return f"{bytes_text(p.hbm)} at HBM ({times})"


def _ratios(best: Point, against: Point) -> str:
    factor = _factor(_moved(against), _moved(best))
    return f"{factor} than {against.kernel}" if factor else f"as much as {against.kernel}"


def _factor(other_bytes: int, own_bytes: int) -> str:
    """How many times less or more its own bytes are; empty where both are the same in three digits."""
    ratio = max(other_bytes, own_bytes) / max(1, min(other_bytes, own_bytes))
    if times_text(ratio) == "1":
        return ""
    return f"{times_text(ratio)}x {'less' if other_bytes > own_bytes else 'more'}"


def _from(points: Sequence[Point], kernel: str, against: str) -> list[str]:
    """The length from which on the baseline's HBM bytes are at least twice as many, where that is not the first."""
    by_length, baseline_by_length = (
        {p.seq_len: p.hbm for p in points if p.kernel == k and p.hbm is not None}
        for k in (kernel, against)
    )
    both = sorted(by_length.keys() & baseline_by_length.keys())
    below = [n for n in both if baseline_by_length[n] < HALF * by_length[n]]
    # The first length after the last one at which the bytes are not halved.
    first = next((n for n in both if not below or n > below[-1]), None)
    if first is None or first == both[0]:
        return []
    return [f"{kernel} halves the HBM bytes from {some(first, 'token')} on"]


LEVELS = (
    "SM<->L2 bytes cross between the SMs and L2 and follow from the tiles; HBM bytes cross between L2 and device "
    "memory and depend on what L2 keeps. They are two quantities: never added, and told apart wherever one chart has "
    "both."
)


def subject(request: CaseGrid) -> str:
    p = request.problems[0]
    kv = "" if p.group == 1 else f" ({some(p.kv_heads, 'key/value head')})"
    width = str(p.head_dim) if p.head_dim == p.head_dim_v else f"{p.head_dim}/{p.head_dim_v}"
    window = f"window of {p.window}" if p.window_right is None else p.mask_text
    known = {"none": "no mask", "causal": "causal mask", "window": window}
    mask = known.get(p.mask, "") if p.seq_lens is None else ""
    mask = mask or f"mask {p.mask_text if len(request.lengths) == 1 else p.mask}"
    first, last = request.lengths[0], request.lengths[-1]
    several = f"{first:,} to {some(last, 'token')} ({len(request.lengths)} lengths)"
    span = some(first, "token") if first == last else several
    keys = f", {some(request.other_keys, 'key')}" if request.other_keys else ""
    dropout = f", dropout {p.dropout:g}" if p.dropout else ""
    others = [
        term
        for name, term in p.terms.items()
        if name not in ("block_lists", "seq_lens", "looks_ahead")
    ]
    terms = "".join(
        f", {other.removesuffix('=True').replace('_', ' ').replace('=', ' ')}" for other in others
    )
    by = "replay" if request.method is None else f"the method '{request.method}'"
    return (
        f"Attention, {p.passes}: batch {p.batch}, {some(p.heads, 'head')}{kv}, head_dim {width}, {p.dtype}, "
        f"{mask}{dropout}{terms}, {span}{keys}. HBM by {by}, L2 {request.l2_start} at the start."
    )


def omission(o: Omission, lengths: Sequence[int] = ()) -> str:
    """Why a kernel is missing on a GPU; the lengths are named where it is not missing at all of `lengths`."""
    at = ", ".join(length_text(n) for n in o.lengths)
    where = "" if tuple(lengths) == o.lengths else f" (N = {at})"
    return f"{o.kernel} on {o.gpu}{where}: {o.reason}"

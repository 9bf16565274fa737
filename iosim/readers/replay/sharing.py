"""How the CTAs of an SM share it: rates by age, measured on compiled kernels.

Warps of an SM's oldest CTA go first, by how much is the compiled kernel's own: from nothing to half. The ends of the
first CTAs of a launch tell (experiments/ends.py): they start together on the same work, so that the oldest ends first.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from math import fsum

import numpy as np

from iosim.base.data import data_dir
from iosim.kernel.kernel import Kernel
from iosim.kernel.schedule import Scheduler
from iosim.problem.attention import AttentionProblem

TABLES = ("measurements/h200_cta_shares.csv", "measurements/h100_cta_shares.csv")
OWN = "own"
"""The name in the table of kernels that kernels/flash_fwd.cu compiles; each row is one tile."""

Key = tuple[object, ...]


def rates_of(
    kernel: Kernel, problem: AttentionProblem, ctas: int, *, compiled: bool = True
) -> tuple[float, ...]:
    """Rates of the CTAs of an SM that holds `ctas`, the oldest first, in units of their mean. Those of the compiled
    kernel where they were measured; else with an even slope, whose height is the median of the measured kernels with as
    many CTAs. The kernel's `age_share` states that height in their place. `compiled`: whether the launch is the forward
    kernel that the table has."""
    # A CTA alone has the whole SM, whatever its age.
    if ctas < 2:
        return (1.0,)
    if kernel.age_share is not None:
        return sloped(kernel.age_share, ctas)
    for key in keys_of(kernel, problem, ctas) if compiled else ():
        rates = measured_rates(str(key[0]))
        if key in rates:
            return rates[key]
    # Not measured: the slope of the measured kernels whose number of CTAs per SM is nearest.
    heights = usual_heights()
    return sloped(heights[min(heights, key=lambda n: abs(n - ctas))], ctas)


def sloped(share: float, ctas: int) -> tuple[float, ...]:
    """Rates that fall evenly from 1 + share/2 to 1 - share/2."""
    return tuple(1 + share / 2 - share * rank / (ctas - 1) for rank in range(ctas))


def keys_of(kernel: Kernel, problem: AttentionProblem, ctas: int) -> list[Key]:
    """Keys of the table under which a kernel may stand, the best first: of a library's kernel those of the next head
    dimension that was measured, of its build for narrow heads, ragged lengths or whole tiles; of whole tiles else."""
    causal = problem.mask != "none"
    name = kernel.cta_shares
    if not name:
        return []
    if name != OWN:
        measured = {key[1:] for key in measured_rates(name) if key[-1] == ctas}
        # The next head dimension that was measured: a library pads narrow heads to a width that it compiles.
        width = min(
            (int(w) for w, *_ in measured if int(w) >= problem.head_dim),  # type: ignore[call-overload]
            default=problem.head_dim,
        )
        narrow = problem.head_dim < (kernel.compiled_head_dim or 0)
        ragged = (
            problem.seq_lens is not None
            or problem.seq_q % kernel.tile.block_q
            or problem.seq_k % kernel.tile.block_k
        )
        # FlashAttention-2 is compiled apart for narrow heads and for ragged lengths, and each build schedules its warps
        # in its own way; a launch over splits was recorded of whole tiles alone.
        shape = "" if kernel.splits > 1 else "narrow" if narrow else "ragged" if ragged else ""
        return [
            (name, width, masked, build, ctas)
            for build in (shape, "")
            for masked in (causal, False)
        ]
    # Kernels of our own are recorded tile by tile, with what the compiler was given as the key;
    # the rates of bf16 stand in for those of a dtype that was not recorded.
    tile = kernel.tile
    persistent = kernel.schedule.scheduler is Scheduler.PERSISTENT
    build = (
        problem.head_dim,
        tile.block_q,
        tile.block_k,
        tile.warps,
        tile.stages,
        causal,
        persistent,
    )
    return [(OWN, *build, dtype, ctas) for dtype in (problem.dtype, "bf16")]


@cache
def measured_rates(name: str) -> dict[Key, tuple[float, ...]]:
    """Rates of the kernels of that name by key, the mean of the runs."""
    return {
        key: tuple(map(_mean, zip(*several, strict=True)))
        for key, several in runs_by_key(name).items()
    }


@cache
def usual_heights() -> dict[int, float]:
    """The median height of the own kernels' slopes by their number of CTAs."""
    heights: dict[int, list[float]] = {}
    for rates in measured_rates(OWN).values():
        heights.setdefault(len(rates), []).append(rates[0] - rates[-1])
    # A slope's height is the oldest CTA's rate less the youngest one's: both ends of a line.
    return {ctas: float(np.median(several)) for ctas, several in heights.items()}


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def runs_by_key(name: str) -> dict[Key, list[tuple[float, ...]]]:
    """Rates of every recorded run of the kernels of that name."""
    runs: dict[Key, list[tuple[float, ...]]] = {}
    for table in TABLES:
        with (data_dir("kernels") / table).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(
                # Tables hold all kernels: the header and the rows of this name are all that is parsed.
                line
                for n, line in enumerate(file)
                if not n or line.startswith(f"{name},")
            ):
                ends, work = ([float(x) for x in row[name].split()] for name in ("ends_us", "keys"))
                # A CTA that ended at 0 was not recorded: a run with one says nothing.
                if min(ends) > 0:
                    runs.setdefault((*_key(row), len(ends)), []).append(rates_from_ends(ends, work))
    return runs


def _key(row: dict[str, str]) -> Key:
    causal = row["causal"] == "1"
    if row["kernel"] != OWN:
        return row["kernel"], int(row["head_dim"]), causal, row.get("build", "")
    sizes = [int(float(row[name])) for name in ("block_q", "block_k", "warps", "stages")]
    return OWN, int(row["head_dim"]), *sizes, causal, row["persistent"] == "True", row["dtype"]


def rates_from_ends(ends: Sequence[float], work: Sequence[float]) -> tuple[float, ...]:
    """Rates by age, in units of their mean, from when CTAs that began together end, the oldest first. When the oldest
    ends, all others move up by one, so CTA i does r[i] in the time to the first end, then r[i-1] to the second, and so
    on: sum over k <= i of r[i-k] (t[k] - t[k-1]) = work[i], t[-1] = 0; solved from the oldest on. `ends`: of one CTA
    each, seconds or any other unit. `work`: what each has to do; the rates' unit follows and drops out."""
    # Example of two CTAs with work 1 each that end at 2 and 3: r[0] = 1/2. Until 2 the second did
    # r[1] x 2, then as the oldest r[0] x 1: r[1] = (1 - 1/2) / 2 = 1/4. In units of their mean: 4/3
    # and 2/3. One equation for each CTA, each with one rate that those before it do not have.
    rates: list[float] = []
    for i in range(len(ends)):
        # What CTA i did before its own place as the oldest: at the rates of those older ages that are known by now.
        before = sum(rates[i - k] * (ends[k] - ends[k - 1]) for k in range(1, i + 1))
        rates.append((work[i] - before) / ends[0])
    middle = _mean(rates)
    return tuple(rate / middle for rate in rates)

"""Published speeds of attention kernels beside iosim's, and the error of each.

    python benchmarks/utilisation_error.py            every published point
    python benchmarks/utilisation_error.py --fit      fits OVERLAP_NORM and pingpong_tile_cycles again

Fitted on FlashAttention-3's fp16 forward at 512, 2,048 and 8,192 tokens; every other point is held out.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace

from iosim import Prediction, load_profile
from iosim.evidence.reproduce.published import Point, points
from iosim.readers.timing import overlap as timing
from iosim.studies.requests import Conditions

TRIED = SimpleNamespace(pingpong_tile_cycles=load_profile("h100-sxm").need("pingpong_tile_cycles"))
"""Values of the profile that a fit tries, over those of its file."""
FITTED: tuple[tuple[object, str, float], ...] = (
    (timing, "OVERLAP_NORM", 0.1),
    (TRIED, "pingpong_tile_cycles", 100.0),
)
"""Fitted constants, of iosim.readers.timing.overlap and of the profile, and the step in which they are rounded."""

Case = tuple[Point, Prediction]


def ratio(case: Case) -> float:
    """Predicted over published speed, at the present constants."""
    point, prediction = case
    call = replace(prediction.call, profile=replace(prediction.profile, **vars(TRIED)))
    time = call.time(prediction.traffic, Conditions(clocks=point.clocks))
    return point.counted_flops / time.total_s / 1e12 / point.tflops


def loss(cases: Iterable[Case]) -> float:
    return statistics.fmean(abs(math.log(ratio(c))) for c in cases)


def fit(cases: list[Case]) -> None:
    """Coordinate descent on the fit half, from the present values; sets and prints them."""
    chosen = [c for c in cases if c[0].fitted]
    best, factor = loss(chosen), 1.3
    while factor > 1.002:
        improved = False
        for owner, name, _ in FITTED:
            for change in (factor, 1 / factor):
                before = getattr(owner, name)
                setattr(owner, name, before * change)
                error = loss(chosen)
                if error < best - 1e-6:
                    best, improved = error, True
                else:
                    setattr(owner, name, before)
        factor = factor if improved else math.sqrt(factor)
    for owner, name, step in FITTED:
        print(f"{name}: {getattr(owner, name):.4g}, rounded ", end="")
        setattr(owner, name, round(getattr(owner, name) / step) * step)
        print(f"{getattr(owner, name):.4g}")
    print(f"mean |log error| on {len(chosen)} points: {loss(chosen):.4f}\n")


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def table(cases: list[Case]) -> str:
    """Published / predicted TFLOP/s and the error, by series and length; mean errors of the fit points and the others.

    fp8's 16,896 tokens stand under 16k.
    """
    heads = ["512", "1k", "2k", "4k", "8k", "16k"]
    lines = [f"| series | {' | '.join(heads)} | fit | others |", "|---" * (len(heads) + 3) + "|"]
    series: dict[str, list[Case]] = {}
    for case in cases:
        series.setdefault(case[0].series, []).append(case)

    def mean(errors: list[float]) -> str:
        return f"{statistics.fmean(map(abs, errors)):.1%}" if errors else "-"

    for name, group in series.items():
        errors = {
            min(LENGTHS, key=lambda n, p=p: abs(n - p.seq)): (p, ratio((p, prediction)) - 1)
            for p, prediction in group
        }
        cells = []
        for n in LENGTHS:
            if n in errors:
                p, e = errors[n]
                cells.append(f"{p.tflops:g} / {p.tflops * (1 + e):.0f} ({e:+.1%})")
            else:
                cells.append("")
        fitted, others = ([e for p, e in errors.values() if p.fitted is k] for k in (True, False))
        lines.append(f"| {name} | {' | '.join(cells)} | {mean(fitted)} | {mean(others)} |")
    return "\n".join(lines)


GROUPS = (
    ("FlashAttention-3 forward, fp16, fitted on", "fa3", "fp16", "fwd", True),
    ("FlashAttention-3 forward, fp16", "fa3", "fp16", "fwd", False),
    ("FlashAttention-3 backward, fp16", "fa3", "fp16", "bwd", False),
    ("FlashAttention-3 forward, fp8", "fa3", "fp8", "fwd", False),
    ("FlashAttention-2 forward on an H100", "fa2", "fp16", "fwd", False),
    ("FlashAttention-2, both passes on an A100", "fa2", "fp16", "fwd+bwd", False),
    ("cuDNN forward on an H100", "cudnn", "fp16", "fwd", False),
    ("FlashAttention-1, both passes on an A100", "fa1", "fp16", "fwd+bwd", False),
)


def summary(cases: list[Case]) -> str:
    """Number of points, mean and largest error by kernel, type and pass; all but the first group are held out."""
    lines = ["| | points | mean error | largest |", "|---|---|---|---|"]
    for name, kernel, dtype, passes, fitted in GROUPS:
        errors = [
            abs(ratio(c) - 1)
            for c in cases
            if (c[0].kernel, c[0].dtype, c[0].passes, c[0].fitted)
            == (kernel, dtype, passes, fitted)
        ]
        lines.append(
            f"| {name} | {len(errors)} | {statistics.fmean(errors):.1%} | {max(errors):.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit the constants first")
    args = parser.parse_args()
    cases = [(p, p.predicted()) for p in points()]
    if args.fit:
        fit(cases)
    print(summary(cases))
    print(f"\n{table(cases)}")


if __name__ == "__main__":
    main()

"""FlashAttention-3's published speeds on an H100 beside predicted ones.

    python examples/fa3_utilisation.py

Lengths marked * are those on which two constants of the timing model were fitted; the others, the backward and fp8
were not used. reports/utilisation.svg draws the same points.
"""

from __future__ import annotations

import statistics

from iosim.evidence.reproduce.published import FIT_LENGTHS, Point, points

PEAK = {"fp16": 989.0, "fp8": 1979.0}


def length(point: Point) -> str:
    return f"{point.seq:,}*" if point.fitted else f"{point.seq:,}"


def main() -> None:
    series: dict[str, list[Point]] = {}
    for point in points():
        if point.kernel == "fa3":
            series.setdefault(point.series, []).append(point)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for name, group in series.items():
        speeds = [(point, point.speed(point.predicted())) for point in group]
        print(name)
        print("  tokens   " + "".join(f"{length(p):>9}" for p, _ in speeds))
        print("  published" + "".join(f"{p.tflops:>9,.0f}" for p, _ in speeds) + "  TFLOP/s")
        print("  predicted" + "".join(f"{s:>9,.0f}" for _, s in speeds))
        print("  error    " + "".join(f"{s / p.tflops - 1:>+9.0%}" for p, s in speeds))
        print("  of peak  " + "".join(f"{s / PEAK[p.dtype]:>9.0%}" for p, s in speeds))
        for p, s in speeds:
            errors[p.fitted].append(abs(s / p.tflops - 1))
    fitted, others = (statistics.fmean(errors[k]) for k in (True, False))
    print(
        f"\nmean error: {fitted:.1%} on {len(errors[True])} points of {FIT_LENGTHS} tokens, {others:.1%} on the "
        f"{len(errors[False])} others"
    )


if __name__ == "__main__":
    main()

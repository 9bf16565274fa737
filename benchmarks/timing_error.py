"""Predicted against measured times, and the table of docs/timing.md.

    python benchmarks/timing_error.py            prints errors by group, kernel and regime, and the fitted constants
    python benchmarks/timing_error.py --write    writes the table of errors of docs/timing.md; four minutes
    python benchmarks/timing_error.py --fit      fits the step's constants again, on the odd-numbered calls alone

Groups and targets are those of `iosim validate --times`; what each mechanism is worth (timing_ablation.py) and simpler
predictions (timing_baselines.py) stand beside them. Rows whose kernel spills registers are never fitted on.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from timing_ablation import Worth, ablation, worth_table
from timing_baselines import Compared, baseline_table, compared

from iosim import load_profile
from iosim.base.progress import progress
from iosim.evidence.fitted import fitted
from iosim.evidence.times.groups import Row, TimesReport, collect, rows_of
from iosim.evidence.times.tables import Case, library_cases, own_cases, triton_cases
from iosim.prediction.call import Call
from iosim.readers.timing import step_terms
from iosim.show.tables import Column, Table

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- errors by group: python benchmarks/timing_error.py --write -->", "<!-- end -->"


class Tried(SimpleNamespace):
    """Values of the profile that a fit tries, over those of its file."""

    step_load_cycles: float
    step_sync_cycles: float
    step_single_buffer_cycles: float
    spill_access_cycles: float
    tile_cycles: float


TRIED = Tried(**{name: load_profile("h200-sxm").need(name) for name in Tried.__annotations__})
FITTED: tuple[tuple[object, str, float], ...] = (
    (step_terms, "FP32_OPERATIONS_PER_SCORE", 0.1),
    (TRIED, "step_load_cycles", 10.0),
    (step_terms, "UNHIDDEN_FRAGMENTS", 0.01),
    (TRIED, "step_sync_cycles", 10.0),
    (TRIED, "step_single_buffer_cycles", 10.0),
    (TRIED, "tile_cycles", 100.0),
)
"""Fitted constants, of the model and of the H200's profile, and the step in which they are rounded."""


def constants_table() -> Table:
    """The fitted constants: on which rows, and of which the errors of the even rows were in sight, too."""
    lines = []
    for number in fitted():
        even_rows = "in sight" if number.even_rows_in_sight else "held out"
        stands_in = number.gpu or "the model"
        lines.append((number.name, f"{number.value:.4g}", stands_in, number.rows, even_rows))
    columns = ("constant", "value", "stands in", "fitted on", "even rows")
    return Table(tuple(Column(key.replace(" ", "_"), key) for key in columns), tuple(lines))


def tried(case: Case) -> Call:
    """The case's call with the values that the fit tries."""
    return replace(case.call, profile=replace(case.call.profile, **vars(TRIED)))


def loss(cases: list[Case]) -> float:
    """Mean |log(predicted / measured)| of the attention launches."""
    errors = [
        abs(math.log(t.predicted_s / t.measured_s))
        for c in cases
        for t in c.times(tried(c))
        if t.launch in ("", "main")
    ]
    return statistics.fmean(errors)


def fit(cases: list[Case]) -> None:
    """Coordinate descent over the fitted constants, from their present values; sets and prints them."""
    chosen = [c for c in cases if c.fits and c.number % 2]
    best, factor = loss(chosen), 1.3
    while factor > 1.01:
        improved = False
        for module, name, _ in FITTED:
            for change in (factor, 1 / factor):
                before = getattr(module, name)
                setattr(module, name, before * change)
                error = loss(chosen)
                if error < best - 1e-6:
                    best, improved = error, True
                else:
                    setattr(module, name, before)
        factor = factor if improved else math.sqrt(factor)
    for module, name, step in FITTED:
        setattr(module, name, round(getattr(module, name) / step) * step)
        print(f"{name} = {getattr(module, name):.6g}")
    print(f"mean |log error| on {len(chosen)} calls: {loss(chosen):.4f}\n")


def table(rows: tuple[Row, ...]) -> str:
    """Mean absolute error of both halves, and the median of predicted / measured - 1, by kernel, launch and regime."""
    groups: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for row in rows:
        part = "" if row.timed.launch in ("", "main") else f" {row.timed.launch}"
        halves = groups.setdefault((row.case.name + part, row.case.regime), ([], []))
        halves[0 if row.case.number % 2 else 1].append(row.timed.error)
    lines = [
        "| kernel | regime | odd calls | mean error | even calls | mean error | median, all |",
        "|---|---|---|---|---|---|---|",
    ]

    def mean(values: list[float]) -> str:
        return f"{statistics.fmean(map(abs, values)):.1%}" if values else "-"

    for (name, regime), (odd, even) in groups.items():
        middle = statistics.median(odd + even)
        lines.append(
            f"| {name} | {regime} | {len(odd)} | {mean(odd)} | {len(even)} | {mean(even)} | {middle:+.1%} |"
        )
    return "\n".join(lines)


def rankings(cases: list[Case]) -> str:
    """Rank correlation of the times of all tiles of a problem, and how good the predicted best tile is."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        if case.fits and case.regime in ("warm", "tile sweep"):
            p = case.call.problem
            shape = f"{p.heads} heads, {p.seq_q} tokens, head_dim {p.head_dim}, mask {p.mask}"
            groups.setdefault(f"{case.name.split(',')[0]}, {shape}", []).append(case)
    lines = [
        "| tiles without spills | n | Spearman | predicted best | measured above the best |",
        "|---|---|---|---|---|",
    ]
    for name, tiles in groups.items():
        measured = [c.seconds[0] for c in tiles]
        predicted = [next(c.times()).predicted_s for c in tiles]
        choice = tiles[predicted.index(min(predicted))]
        t = choice.call.kernel.tile
        best, loss_of_choice = (
            f"{t}, {t.warps} warps, {t.stages} stages",
            choice.seconds[0] / min(measured) - 1,
        )
        lines.append(
            f"| {name} | {len(tiles)} | {spearman(predicted, measured):.3f} | {best} | {loss_of_choice:.1%} |"
        )
    return "\n".join(lines)


def spearman(a: list[float], b: list[float]) -> float:
    """Correlation of ranks; ties keep their order."""

    def ranks(values: list[float]) -> list[int]:
        key: Callable[[int], float] = values.__getitem__
        out = [0] * len(values)
        for rank, index in enumerate(sorted(range(len(values)), key=key)):
            out[index] = rank
        return out

    return statistics.correlation(ranks(a), ranks(b))


def page(report: TimesReport, worth: list[Worth], baselines: list[Compared]) -> str:
    """All tables."""
    nearest = [b.group for b in baselines if b.best == "regression"]
    tiles = [row.case for row in report.rows if row.group.key == "tiles"]
    return f"""# Errors of times

{report.answer[0].upper() + report.answer[1:]}.

## By group

Mean, ninetieth percentile and largest |predicted / measured - 1| on rows that nothing was fitted on: of groups with a
last column the even-numbered ones, of the others all. `iosim validate --times` prints it.

{report.table().markdown()}
## What each mechanism is worth

The mean of the groups' mean errors with a mechanism and with it switched off, and the groups that it changes most.

{worth_table(worth).markdown()}
## Beside simpler predictions

On the even rows of each group: a roofline of specified rates and compulsory bytes; one whose two rates are fitted on
the group's odd rows; and for each kernel a regression on its odd rows of four terms, a constant, FLOPs, bytes and work
tiles, none negative, where every kernel has six odd rows or more. The regression is nearest in:
{", ".join(nearest) or "none"}.

{baseline_table(baselines).markdown()}
## Fitted constants

{len(constants_table().rows)} in all; every other number is published, measured by itself or counted.

{constants_table().markdown()}
## By kernel and regime

{table(report.rows)}

## Tiles ranked

{rankings(tiles)}
"""


def errors_section(report: TimesReport) -> str:
    """The table of errors in docs/timing.md."""
    return f"{BEGIN}\n{report.answer[0].upper() + report.answer[1:]}.\n\n{report.table().markdown()}{END}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fit", action="store_true", help="fit the constants on the odd-numbered calls"
    )
    parser.add_argument("--write", action="store_true", help="write the table of docs/timing.md")
    args = parser.parse_args()
    if args.fit:
        fit([*library_cases(), *own_cases(), *triton_cases()])
        return
    cases, missing = collect(show=progress("reading tables"))
    report = TimesReport(tuple(rows_of(cases)), missing)
    if not args.write:
        sys.stdout.write(page(report, ablation(cases), compared(report.rows)))
        return
    timing = DOCS / "timing.md"
    text = timing.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    timing.write_text(before + errors_section(report) + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()

"""Pages of a comparison: figures of predicted against measured with its tables, and the validation report.

The report has targets and what is reached, errors by level and regime, and every miss with its reason; library kernels,
chains and the project's own kernels stand apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iosim.base.units import bytes_text, seconds_text
from iosim.evidence.validate import sections as tables
from iosim.evidence.validate.match import OWN
from iosim.evidence.validate.reasons import Group, groups, reason_of
from iosim.evidence.validate.residuals import REGIMES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.sections import (
    ERRORS,
    NAMES,
    QUANTITY,
    amount,
    answer,
    errors,
    name_text,
    percent,
    size_text,
    skipped_section,
    titled,
    with_rows,
)
from iosim.evidence.validate.summary import TARGETS, by_quantity, clean, grouped, misses
from iosim.show import axes
from iosim.show.page import Page, Panel, Section, Series
from iosim.show.tables import RIGHT, Column

TITLE = "Validation"
SUBJECT = (
    "Predicted bytes and times beside hardware counters. A prediction knows a row's launch (sizes, grid, registers), "
    "never its bytes or times. Errors are |predicted - measured| / measured; rows under 2 MB have none. A group of "
    "misses is isolated where an experiment shows its mechanism alone."
)
COMMAND = "iosim validate --report reports"
BANDS = (0.05, 0.10)
"""Relative errors whose lines the figures carry."""
KINDS = {"library": "Library kernels", "chain": "Chains of launches", "own": "The project's own kernels"}
OPEN = "no reason found yet"


def parts(comparison: Comparison) -> dict[str, list[Residual]]:
    """Launches of library kernels, chains, and launches of the project's own kernels: those of KINDS that have rows."""
    by_kind = grouped(
        comparison.residuals,
        lambda r: "chain" if r.row.chain else "own" if r.row.implementation in OWN else "library",
    )
    return {kind: by_kind[kind] for kind in KINDS if kind in by_kind}


def sections(comparison: Comparison) -> list[Section]:
    """All tables and lists, in order."""
    every: list[Section] = []
    for kind, residuals in parts(comparison).items():
        every += [_targets(KINDS[kind], residuals), _levels(KINDS[kind], residuals)]
    for kind, residuals in parts(comparison).items():
        missed = misses(residuals)
        every += [_why(kind, missed)] if missed else []
        every.append(_missed(KINDS[kind], missed))
    every.append(skipped_section(comparison))
    return with_rows(every)


def _targets(kind: str, residuals: Sequence[Residual]) -> Section:
    columns = (QUANTITY, Column("rows", "rows", "count"), Column("target", "target"), Column("reached", "reached"),
               Column("met", "met"), Column("misses", "misses", "count"))  # fmt: skip
    of_quantity, rows = grouped(clean(residuals), lambda r: r.quantity), []
    for quantity in (q for q in QUANTITIES if q in of_quantity):
        target, compared = TARGETS[quantity], of_quantity[quantity]
        good, reached = target.reached(compared)
        outside = sum(not target.row(r) for r in compared)
        rows.append((NAMES[quantity], len(compared), target.text, reached, "yes" if good else "no", outside))
    return titled(f"{kind}: targets (kernels without spills)", columns, rows)


def _levels(kind: str, residuals: Sequence[Residual]) -> Section:
    """Errors by quantity and regime, spills among them as a regime of their own."""
    of_regime = {name: by_quantity(rows) for name, rows in grouped(residuals, lambda r: r.regime).items()}
    cells = ((q, regime, of_regime.get(regime, {}).get(q)) for q in QUANTITIES for regime in REGIMES)
    rows = ((NAMES[q], regime, *errors(s)) for q, regime, s in cells if s is not None and s.n)
    columns = (QUANTITY, Column("regime", "regime"), *ERRORS)
    return titled(f"{kind}: errors by level and regime", columns, rows)


def _why(kind: str, missed: Sequence[Residual]) -> Section:
    """Each group of misses with its reason, the largest groups first; rows of no group last."""
    among = {group.name: group for group in groups()}
    of_group = grouped(missed, lambda r: getattr(reason_of(r, groups()), "name", ""))
    known = sorted((name for name in among if name in of_group), key=lambda name: -len(of_group[name]))
    items = [_group(among[name], of_group[name]) for name in known]
    if rest := of_group.get(""):
        items.append(f"**{OPEN}** ({_found(rest)})")
    title = f"{KINDS[kind]}: why {len(missed)} rows miss their target"
    return Section(f"{kind}-why", title, items=tuple(items))


def _group(group: Group, rows: Sequence[Residual]) -> str:
    state = "isolated by experiment" if group.found else "not isolated"
    return (f"**{group.title}** ({group.name}: {_found(rows)}; {state}.)\n{group.reason}\n"
            f"Experiment: {group.experiment} `{group.command}`")  # fmt: skip


def _found(rows: Sequence[Residual]) -> str:
    """How many, of what, and the smallest to the largest signed error."""
    words, shares = ", ".join(dict.fromkeys(NAMES[r.quantity] for r in rows)), sorted(map(_signed, rows))
    return f"{len(rows)} rows, {words}, {100 * shares[0]:+.1f} to {100 * shares[-1]:+.1f} %"


def _signed(r: Residual) -> float:
    return r.difference / max(1, r.measured)


def _missed(kind: str, missed: Sequence[Residual]) -> Section:
    columns = (QUANTITY, Column("row", "row"), Column("problem", "problem"), Column("settings", "settings"),
               Column("measured", "measured", RIGHT), Column("predicted", "predicted", RIGHT),
               Column("error", "error", RIGHT), Column("regime", "regime"), Column("group", "group"))  # fmt: skip
    rows = (
        (NAMES[r.quantity], name_text(r), size_text(r.problem), r.variant or None, amount(r.quantity, r.measured),
         amount(r.quantity, r.predicted), f"{100 * _signed(r):+.1f} %", r.regime,
         getattr(reason_of(r, groups()), "name", OPEN))
        for r in missed
    )  # fmt: skip
    return titled(f"{kind}: every row that misses its target", columns, rows)


def as_page(comparison: Comparison) -> Page:
    drawn = tuple(
        Section(
            kind, KINDS[kind], legend=legend(residuals, BANDS),
            panels=tuple(scatters(residuals, f"figure-{kind}",
                                  "predicted against measured, with lines at 5 and 10 %", BANDS)),
        )
        for kind, residuals in parts(comparison).items()
    )  # fmt: skip
    said = answer(comparison)
    return Page(TITLE, SUBJECT, (*drawn, *sections(comparison)), command=COMMAND, answer=(said,))


# Figures, and the page of any comparison

LEAST_SHOWN = {"time": 1e-7}
MOST_ACROSS = 3
"""Ticks of an axis whose words lie beside each other."""
LEAST_BYTES = 1000
"""Left edge of the figures: less, and zero, which has no place on a logarithmic axis, is left out of them."""


def comparison_page(comparison: Comparison, command: str = "", *, split: bool = False) -> Page:
    """The comparison as a page: figures and tables. `command` is the command line that makes it again."""
    residuals = comparison.residuals
    panels = scatters(residuals, "figure", "predicted against measured")
    if any(r.quantity == "hbm_read" and r.error is not None for r in residuals):
        panels.append(_by_regime(residuals))
    figures = Section("figures", "Figures", legend=legend(residuals), panels=tuple(panels))
    shown = (figures, *tables.sections(comparison, split=split))
    return Page(tables.TITLE, tables.INTRODUCTION, shown, command=command, answer=(answer(comparison),))


def legend(residuals: Sequence[Residual], bands: Sequence[float] = ()) -> tuple[Series, ...]:
    """The regimes that are present, and the lines that `scatters` draws."""
    present = {r.regime for r in residuals}
    regimes = (Series(name, axes.colour(n), axes.symbol(n)[1]) for n, name in enumerate(REGIMES) if name in present)
    around = (Series(f"{share:+.0%}", axes.NEUTRAL, dash="dot") for band in bands for share in (band, -band))
    return (*regimes, Series("equal", axes.NEUTRAL, dash="solid" if bands else "dot"), *around)


def scatters(residuals: Sequence[Residual], name: str, what: str, bands: Sequence[float] = ()) -> list[Panel]:
    """Predicted against measured, a panel a quantity that has points."""
    return [
        _scatter(residuals, quantity, f"{name}-{quantity}", f"{NAMES[quantity]}: {what}", bands)
        for quantity in QUANTITIES
        if any(drawable(r, quantity) for r in residuals)
    ]


def drawable(r: Residual, quantity: str) -> bool:
    """Whether a point of that quantity has a place on logarithmic axes."""
    least = LEAST_SHOWN.get(quantity, LEAST_BYTES)
    return r.quantity == quantity and r.measured >= least and r.predicted >= least


def hover(r: Residual) -> str:
    """Row, problem, settings, both values and the error."""
    settings = f"<br>{r.variant}" if r.variant else ""
    return (
        f"{name_text(r)}: {size_text(r.problem)}{settings}"
        f"<br>measured {amount(r.quantity, r.measured)}, predicted {amount(r.quantity, r.predicted)}"
        f"<br>error {percent(r.error)}, {r.regime}"
    )


def _scatter(residuals: Sequence[Residual], quantity: str, panel: str, title: str, bands: Sequence[float]) -> Panel:
    """Logarithmic axes: a series a regime, equality, and lines at `bands` around it."""
    points = [r for r in residuals if drawable(r, quantity)]
    values = [float(v) for r in points for v in (r.measured, r.predicted)]
    text = seconds_text if quantity == "time" else bytes_text
    ends = [min(values), max(values)]
    data = [axes.guide("equal", ends, ends, "predicted = measured", "solid" if bands else "dot")]
    for band in bands:
        for share in (band, -band):
            line = [end * (1 + share) for end in ends]
            data.append(axes.guide(f"{share:+.0%}", ends, line, f"{share:+.0%} of measured", "dot"))
    for n, regime, mine in _regimes(points):
        data.append(axes.line(regime, [r.measured for r in mine], [r.predicted for r in mine],
                              [hover(r) for r in mine], n, mode="markers"))  # fmt: skip
    layout = axes.layout(axes.log_axis(values, "measured", text, MOST_ACROSS), axes.log_axis(values, "predicted", text))
    return Panel(panel, title, f"{title}, {len(points)} rows.", tuple(data), layout)


def _by_regime(residuals: Sequence[Residual]) -> Panel:
    """Signed relative errors of HBM reads, a column a regime."""
    points = [r for r in residuals if r.quantity == "hbm_read" and r.error is not None]
    data = [
        axes.line(regime, [regime] * len(mine), [r.difference / r.measured for r in mine], [hover(r) for r in mine], n,
                  mode="markers")
        for n, regime, mine in _regimes(points)
    ]  # fmt: skip
    x = {"type": "category", "automargin": True}
    y = axes.axis("error", tickformat="+.2~%", zeroline=True)
    title = f"{NAMES['hbm_read']}: (predicted - measured) / measured, by regime"
    return Panel("figure-residuals", title, f"{title}, {len(points)} rows.", tuple(data), axes.layout(x, y))


def _regimes(residuals: Sequence[Residual]) -> Iterable[tuple[int, str, list[Residual]]]:
    """Number, name and rows of every regime that has rows."""
    for n, regime in enumerate(REGIMES):
        if mine := [r for r in residuals if r.regime == regime]:
            yield n, regime, mine

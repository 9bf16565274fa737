"""The comparison as a page: predicted against measured by quantity, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iosim.base.units import bytes_text, seconds_text
from iosim.evidence.validate.residuals import REGIMES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.sections import (
    INTRODUCTION,
    NAMES,
    TITLE,
    amount,
    answer,
    name_text,
    percent,
    sections,
    size_text,
)
from iosim.show import axes
from iosim.show.page import Page, Panel, Section, Series

LEAST_SHOWN = {"time": 1e-7}
MOST_ACROSS = 3
"""Ticks of an axis whose words lie beside each other."""
LEAST_BYTES = 1000
"""Left edge of the figures: less, and zero, which has no place on a logarithmic axis, is left out of them."""


def as_page(comparison: Comparison, command: str = "", *, split: bool = False) -> Page:
    """The whole page. `command` is the command line that makes it again."""
    residuals = comparison.residuals
    panels = scatters(residuals, "figure", "predicted against measured")
    if any(r.quantity == "hbm_read" and r.error is not None for r in residuals):
        panels.append(_by_regime(residuals))
    figures = Section("figures", "Figures", legend=legend(residuals), panels=tuple(panels))
    shown = (figures, *sections(comparison, split=split))
    return Page(TITLE, INTRODUCTION, shown, command=command, answer=(answer(comparison),))


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

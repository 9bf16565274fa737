"""The comparison as Markdown, and as one HTML file with figures that fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from iosim.base.units import bytes_text, seconds_text
from iosim.evidence.validate.residuals import REGIMES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.sections import (
    INTRODUCTION,
    NAMES,
    TITLE,
    Section,
    amount,
    name_text,
    percent,
    sections,
    size_text,
)
from iosim.show import axes
from iosim.show.page import page

LEAST_SHOWN = {"time": 1e-7}
LEAST_BYTES = 1000
"""Left edge of the figures: less, and zero, which has no place on a logarithmic axis, is left out of them."""


def markdown(comparison: Comparison, *, split: bool = False) -> str:
    """The whole file."""
    parts = [f"# {TITLE}", INTRODUCTION]
    for section in sections(comparison, split=split):
        parts += [f"## {section.title}", markdown_table(section)]
    return "\n\n".join(parts) + "\n"


def markdown_table(section: Section) -> str:
    """A table without its title."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |"

    rule = "| " + " | ".join("---:" if right else "---" for right in _right(section)) + " |"
    return "\n".join([line(section.header), rule, *map(line, section.rows)])


def _right(section: Section) -> list[bool]:
    """Columns of numbers stand to the right."""
    columns = list(zip(*section.rows, strict=True))
    return [all(cell[:1].isdigit() or cell == "-" for cell in column) for column in columns]


def html(comparison: Comparison, *, split: bool = False) -> str:
    """The whole file; complete without JavaScript but for the plots."""
    residuals = comparison.residuals
    shown = [q for q in QUANTITIES if any(drawable(r, q) for r in residuals)]
    panels = {f"figure-{q}": scatter(residuals, q) for q in shown}
    if any(r.quantity == "hbm_read" and r.error is not None for r in residuals):
        panels["figure-residuals"] = _by_regime(residuals)
    said = {f"figure-{q}": f"{NAMES[q]}: predicted against measured" for q in shown}
    said["figure-residuals"] = f"{NAMES['hbm_read']}: (predicted - measured) / measured, by regime"
    figures = "".join(figure(name, said[name]) for name in panels)
    data = {"panels": {k: {"data": d, "layout": lay} for k, (d, lay) in panels.items()}, "tables": {}, "commands": {}}
    body = (
        "<main>",
        "<noscript><p>The plots need JavaScript; the tables below need none.</p></noscript>",
        f'<section class="figure"><h2>Figures</h2>{legend(residuals)}<div class="panels">{figures}</div></section>',
        *(section_html(s) for s in sections(comparison, split=split)),
        "</main>",
    )
    return page(TITLE, _text(INTRODUCTION), body, data)


def _text(text: str) -> str:
    return escape(text.replace("<->", "↔"))


def figure(name: str, said: str) -> str:
    """The place of a plot, with its caption."""
    return (
        f'<figure><figcaption>{_text(said)}</figcaption><div class="plot" id="{name}" role="img" '
        f'aria-label="{escape(said, quote=True)}"><p class="fallback">{_text(said)}</p></div></figure>'
    )


def legend(residuals: Sequence[Residual]) -> str:
    """A button a regime that is present, which hides and shows its points in all plots."""
    present = {r.regime for r in residuals}
    buttons = "".join(
        f'<button type="button" class="series" aria-pressed="true" data-series="{name}">'
        f'<span style="color:{axes.colour(n)}" aria-hidden="true">{axes.symbol(n)[1]}</span> {name}</button>'
        for n, name in enumerate(REGIMES)
        if name in present
    )
    return f'<div class="legend" role="group" aria-label="Regimes: press to hide or show">{buttons}</div>'


def section_html(section: Section) -> str:
    """A table under its title."""
    right = [' class="n"' if r else "" for r in _right(section)]
    head = "".join(f"<th{r}>{_text(c)}</th>" for c, r in zip(section.header, right, strict=True))
    body = "\n".join(
        f"<tr>{''.join(f'<td{r}>{_text(c)}</td>' for c, r in zip(row, right, strict=True))}</tr>"
        for row in section.rows
    )
    return (f'<section><h2>{_text(section.title)}</h2><div class="scroll" tabindex="0"><table><thead><tr>{head}</tr>'
            f"</thead><tbody>\n{body}\n</tbody></table></div></section>")  # fmt: skip


def drawable(r: Residual, quantity: str) -> bool:
    """Whether a point of that quantity has a place on logarithmic axes."""
    least = LEAST_SHOWN.get(quantity, LEAST_BYTES)
    return r.quantity == quantity and r.measured >= least and r.predicted >= least


def hover(r: Residual) -> str:
    """Row, problem, settings, both values and the error."""
    settings = f"<br>{escape(r.variant)}" if r.variant else ""
    return escape(f"{name_text(r)}: {size_text(r.problem)}") + (
        f"{settings}<br>measured {amount(r.quantity, r.measured)}, predicted {amount(r.quantity, r.predicted)}"
        f"<br>error {percent(r.error)}, {r.regime}"
    )


def scatter(
    residuals: Sequence[Residual], quantity: str, bands: Sequence[float] = ()
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Predicted against measured on logarithmic axes: a series a regime, equality, and lines at `bands` around it."""
    found = [r for r in residuals if drawable(r, quantity)]
    values = [float(v) for r in found for v in (r.measured, r.predicted)]
    text = seconds_text if quantity == "time" else bytes_text
    ends = [min(values), max(values)]
    data = [axes.guide("equal", ends, ends, "predicted = measured", "solid" if bands else "dot")]
    for band in bands:
        for sign in (1, -1):
            line = [end * (1 + sign * band) for end in ends]
            data.append(axes.guide(f"{sign * band:+.0%}", ends, line, f"{sign * band:+.0%} of measured", "dot"))
    for n, regime in enumerate(REGIMES):
        points = [r for r in found if r.regime == regime]
        if points:
            data.append(axes.line(regime, [r.measured for r in points], [r.predicted for r in points],
                                  [hover(r) for r in points], n, mode="markers"))  # fmt: skip
    x, y = axes.log_axis(values, "measured", text), axes.log_axis(values, "predicted", text)
    return data, axes.layout(x, y)


def _by_regime(residuals: Sequence[Residual]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Signed relative errors of HBM reads, a column a regime."""
    found = [r for r in residuals if r.quantity == "hbm_read" and r.error is not None]
    data = []
    for n, regime in enumerate(REGIMES):
        points = [r for r in found if r.regime == regime]
        if points:
            data.append(axes.line(regime, [regime] * len(points), [r.difference / r.measured for r in points],
                                  [hover(r) for r in points], n, mode="markers"))  # fmt: skip
    x = {"type": "category", "automargin": True}
    y = {"tickformat": "+.0%", "title": {"text": "error", "standoff": 10}, "automargin": True, "zeroline": True}
    return data, axes.layout(x, y)

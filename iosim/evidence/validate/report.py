"""The validation report: targets and what is reached, errors by level and regime, every miss with its reason.

Library kernels, chains and the project's own kernels stand apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iosim.evidence.validate.answer import answer
from iosim.evidence.validate.match import OWN
from iosim.evidence.validate.pages import legend, scatters
from iosim.evidence.validate.reasons import Group, groups, reason_of
from iosim.evidence.validate.residuals import REGIMES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.sections import (
    ERRORS,
    NAMES,
    QUANTITY,
    amount,
    errors,
    name_text,
    size_text,
    skipped_section,
    titled,
    with_rows,
)
from iosim.evidence.validate.summary import Summary, clean
from iosim.evidence.validate.summary import groups as grouped
from iosim.evidence.validate.targets import TARGETS, misses
from iosim.show.page import Page, Section
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
OPEN = "no reason found yet"


@dataclass(frozen=True)
class Part:
    """Rows of one kind."""

    word: str
    title: str
    residuals: tuple[Residual, ...]


def parts(comparison: Comparison) -> list[Part]:
    """Launches of library kernels, chains, and launches of the project's own kernels: those that have rows."""
    kinds = {"library": "Library kernels", "chain": "Chains of launches", "own": "The project's own kernels"}
    by_kind: dict[str, list[Residual]] = {word: [] for word in kinds}
    for r in comparison.residuals:
        by_kind["chain" if r.row.chain else "own" if r.row.implementation in OWN else "library"].append(r)
    return [Part(word, kinds[word], tuple(rows)) for word, rows in by_kind.items() if rows]


def sections(comparison: Comparison) -> list[Section]:
    """All tables and lists, in order."""
    every: list[Section] = []
    for part in parts(comparison):
        every += [_targets(part), _levels(part)]
    for part in parts(comparison):
        missed = misses(part.residuals)
        every += [_why(part, missed)] if missed else []
        every.append(_missed(part, missed))
    every.append(skipped_section(comparison))
    return with_rows(every)


def _targets(part: Part) -> Section:
    columns = (QUANTITY, Column("rows", "rows", "count"), Column("target", "target"), Column("reached", "reached"),
               Column("met", "met"), Column("misses", "misses", "count"))  # fmt: skip
    rows = []
    for quantity in QUANTITIES:
        of_quantity = [r for r in clean(part.residuals) if r.quantity == quantity]
        if of_quantity:
            target = TARGETS[quantity]
            good, reached = target.reached(of_quantity)
            outside = sum(not target.row(r) for r in of_quantity)
            rows.append((NAMES[quantity], len(of_quantity), target.text, reached, "yes" if good else "no", outside))
    return titled(f"{part.title}: targets (kernels without spills)", columns, rows)


def _levels(part: Part) -> Section:
    """Errors by quantity and regime, spills among them as a regime of their own."""
    of_regime = grouped(part.residuals, lambda r: r.regime)
    rows = (
        (NAMES[q], regime, *errors(s))
        for q in QUANTITIES
        for regime in REGIMES
        if (s := of_regime.get(regime, {}).get(q, Summary.of(()))).n
    )
    columns = (QUANTITY, Column("regime", "regime"), *ERRORS)
    return titled(f"{part.title}: errors by level and regime", columns, rows)


def _why(part: Part, missed: Sequence[Residual]) -> Section:
    """Each group of misses with its reason, the largest groups first; rows of no group last."""
    among = groups()
    of_group: dict[str, list[Residual]] = {}
    for r in missed:
        group = reason_of(r, among)
        of_group.setdefault(group.name if group else "", []).append(r)
    order = sorted((g for g in among if g.name in of_group), key=lambda g: -len(of_group[g.name]))
    items = [_group(g, of_group[g.name]) for g in order]
    if rest := of_group.get(""):
        items.append(f"**{OPEN}** ({_found(rest)})")
    title = f"{part.title}: why {len(missed)} rows miss their target"
    return Section(f"{part.word}-why", title, items=tuple(items))


def _group(group: Group, rows: Sequence[Residual]) -> str:
    state = "isolated by experiment" if group.found else "not isolated"
    return (f"**{group.title}** ({group.name}: {_found(rows)}; {state}.)\n{group.reason}\n"
            f"Experiment: {group.experiment} `{group.command}`")  # fmt: skip


def _found(rows: Sequence[Residual]) -> str:
    words = ", ".join(dict.fromkeys(NAMES[r.quantity] for r in rows))
    return f"{len(rows)} rows, {words}, {_spread(rows)}"


def _spread(rows: Sequence[Residual]) -> str:
    """Smallest to largest signed error."""
    shares = sorted(r.difference / max(1, r.measured) for r in rows)
    return f"{100 * shares[0]:+.1f} to {100 * shares[-1]:+.1f} %"


def _missed(part: Part, missed: Sequence[Residual]) -> Section:
    columns = (QUANTITY, Column("row", "row"), Column("problem", "problem"), Column("settings", "settings"),
               Column("measured", "measured", RIGHT), Column("predicted", "predicted", RIGHT),
               Column("error", "error", RIGHT), Column("regime", "regime"), Column("group", "group"))  # fmt: skip
    rows = []
    for r in missed:
        group, share = reason_of(r, groups()), r.difference / max(1, r.measured)
        what = (NAMES[r.quantity], name_text(r), size_text(r.problem), r.variant or None)
        values = (amount(r.quantity, r.measured), amount(r.quantity, r.predicted), f"{100 * share:+.1f} %")
        rows.append((*what, *values, r.regime, group.name if group else OPEN))
    return titled(f"{part.title}: every row that misses its target", columns, rows)


def as_page(comparison: Comparison) -> Page:
    """The whole page."""
    drawn = tuple(
        Section(
            part.word, part.title, legend=legend(part.residuals, BANDS),
            panels=tuple(scatters(part.residuals, f"figure-{part.word}",
                                  "predicted against measured, with lines at 5 and 10 %", BANDS)),
        )
        for part in parts(comparison)
    )  # fmt: skip
    said = answer(comparison)
    return Page(TITLE, SUBJECT, (*drawn, *sections(comparison)), command=COMMAND, answer=(said,))

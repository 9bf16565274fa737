"""The validation report: targets and what is reached, errors by level and regime, every miss with its reason.

Library kernels, chains and the project's own kernels stand apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    answer,
    errors,
    name_text,
    size_text,
    skipped_section,
    titled,
    with_rows,
)
from iosim.evidence.validate.summary import TARGETS, by_quantity, clean, grouped, misses
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
KINDS = {"library": "Library kernels", "chain": "Chains of launches", "own": "The project's own kernels"}
OPEN = "no reason found yet"


@dataclass(frozen=True)
class Part:
    """Rows of one kind."""

    word: str
    title: str
    residuals: tuple[Residual, ...]


def parts(comparison: Comparison) -> list[Part]:
    """Launches of library kernels, chains, and launches of the project's own kernels: those that have rows."""
    by_kind = grouped(
        comparison.residuals,
        lambda r: "chain" if r.row.chain else "own" if r.row.implementation in OWN else "library",
    )
    return [Part(word, title, tuple(by_kind[word])) for word, title in KINDS.items() if word in by_kind]


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
    of_quantity, rows = grouped(clean(part.residuals), lambda r: r.quantity), []
    for quantity in (q for q in QUANTITIES if q in of_quantity):
        target, compared = TARGETS[quantity], of_quantity[quantity]
        good, reached = target.reached(compared)
        outside = sum(not target.row(r) for r in compared)
        rows.append((NAMES[quantity], len(compared), target.text, reached, "yes" if good else "no", outside))
    return titled(f"{part.title}: targets (kernels without spills)", columns, rows)


def _levels(part: Part) -> Section:
    """Errors by quantity and regime, spills among them as a regime of their own."""
    of_regime = {name: by_quantity(rows) for name, rows in grouped(part.residuals, lambda r: r.regime).items()}
    cells = ((q, regime, of_regime.get(regime, {}).get(q)) for q in QUANTITIES for regime in REGIMES)
    rows = ((NAMES[q], regime, *errors(s)) for q, regime, s in cells if s is not None and s.n)
    columns = (QUANTITY, Column("regime", "regime"), *ERRORS)
    return titled(f"{part.title}: errors by level and regime", columns, rows)


def _why(part: Part, missed: Sequence[Residual]) -> Section:
    """Each group of misses with its reason, the largest groups first; rows of no group last."""
    among = {group.name: group for group in groups()}
    of_group = grouped(missed, lambda r: getattr(reason_of(r, groups()), "name", ""))
    known = sorted((name for name in among if name in of_group), key=lambda name: -len(of_group[name]))
    items = [_group(among[name], of_group[name]) for name in known]
    if rest := of_group.get(""):
        items.append(f"**{OPEN}** ({_found(rest)})")
    title = f"{part.title}: why {len(missed)} rows miss their target"
    return Section(f"{part.word}-why", title, items=tuple(items))


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


def _missed(part: Part, missed: Sequence[Residual]) -> Section:
    columns = (QUANTITY, Column("row", "row"), Column("problem", "problem"), Column("settings", "settings"),
               Column("measured", "measured", RIGHT), Column("predicted", "predicted", RIGHT),
               Column("error", "error", RIGHT), Column("regime", "regime"), Column("group", "group"))  # fmt: skip
    rows = (
        (NAMES[r.quantity], name_text(r), size_text(r.problem), r.variant or None, amount(r.quantity, r.measured),
         amount(r.quantity, r.predicted), f"{100 * _signed(r):+.1f} %", r.regime,
         getattr(reason_of(r, groups()), "name", OPEN))
        for r in missed
    )  # fmt: skip
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

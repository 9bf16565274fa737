"""The validation report: targets and what is reached, errors by level and regime, every miss with its reason.

Library kernels, chains and the project's own kernels stand apart. One HTML file with figures that fetches nothing, and
the same tables as Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from iosim.evidence.validate.match import OWN
from iosim.evidence.validate.pages import drawable, figure, legend, markdown_table, scatter, section_html
from iosim.evidence.validate.reasons import Group, groups, reason_of
from iosim.evidence.validate.residuals import REGIMES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.sections import NAMES, Section, amount, name_text, percent, size_text, skipped_section
from iosim.evidence.validate.summary import Summary, clean
from iosim.evidence.validate.summary import groups as grouped
from iosim.evidence.validate.targets import TARGETS, misses
from iosim.show.page import page

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
    found: dict[str, list[Residual]] = {word: [] for word in kinds}
    for r in comparison.residuals:
        found["chain" if r.row.chain else "own" if r.row.implementation in OWN else "library"].append(r)
    return [Part(word, kinds[word], tuple(rows)) for word, rows in found.items() if rows]


@dataclass(frozen=True)
class Why:
    """Groups of misses, each as (heading, what was found, reason, experiment, command); the last four may be empty."""

    title: str
    groups: tuple[tuple[str, ...], ...]


def sections(comparison: Comparison) -> list[Section | Why]:
    """All tables and lists, in order."""
    made: list[Section | Why] = []
    for part in parts(comparison):
        made += [_targets(part), _levels(part)]
    for part in parts(comparison):
        missed = misses(part.residuals)
        made += [_why(part, missed), _missed(part, missed)]
    made.append(skipped_section(comparison))
    return [s for s in made if (s.rows if isinstance(s, Section) else s.groups)]


def _targets(part: Part) -> Section:
    rows = []
    for quantity in QUANTITIES:
        found = [r for r in clean(part.residuals) if r.quantity == quantity]
        if found:
            target = TARGETS[quantity]
            good, said = target.reached(found)
            outside = sum(not target.row(r) for r in found)
            rows.append((NAMES[quantity], str(len(found)), target.text, said, "yes" if good else "no", str(outside)))
    header = ("quantity", "rows", "target", "reached", "met", "misses")
    return Section(f"{part.title}: targets (kernels without spills)", header, tuple(rows))


def _levels(part: Part) -> Section:
    """Errors by quantity and regime, spills among them as a regime of their own."""
    of_regime = grouped(part.residuals, lambda r: r.regime)
    rows = tuple(
        (NAMES[q], regime, str(s.n), *map(percent, (s.median, s.p95, s.max, s.near)))
        for q in QUANTITIES
        for regime in REGIMES
        if (s := of_regime.get(regime, {}).get(q, Summary.of(()))).n
    )
    header = ("quantity", "regime", "rows", "median", "p95", "max", "within 5 % or 2 MB")
    return Section(f"{part.title}: errors by level and regime", header, rows)


def _why(part: Part, missed: Sequence[Residual]) -> Why:
    """Each group of misses with its reason, the largest groups first; rows of no group last."""
    among = groups()
    found: dict[str, list[Residual]] = {}
    for r in missed:
        group = reason_of(r, among)
        found.setdefault(group.name if group else "", []).append(r)
    order = sorted((g for g in among if g.name in found), key=lambda g: -len(found[g.name]))
    made = [_group(g, found[g.name]) for g in order]
    if rest := found.get(""):
        made.append((OPEN, _found(rest), "", "", ""))
    return Why(f"{part.title}: why {len(missed)} rows miss their target", tuple(made))


def _group(group: Group, rows: Sequence[Residual]) -> tuple[str, ...]:
    state = "isolated by experiment" if group.found else "not isolated"
    said = f"{group.name}: {_found(rows)}; {state}."
    return group.title, said, group.reason, group.experiment, group.command


def _found(rows: Sequence[Residual]) -> str:
    words = ", ".join(dict.fromkeys(NAMES[r.quantity] for r in rows))
    return f"{len(rows)} rows, {words}, {_spread(rows)}"


def _spread(rows: Sequence[Residual]) -> str:
    """Smallest to largest signed error."""
    shares = sorted(r.difference / max(1, r.measured) for r in rows)
    return f"{100 * shares[0]:+.1f} to {100 * shares[-1]:+.1f} %"


def _missed(part: Part, missed: Sequence[Residual]) -> Section:
    rows = []
    for r in missed:
        group, share = reason_of(r, groups()), r.difference / max(1, r.measured)
        what = (NAMES[r.quantity], name_text(r), size_text(r.problem), r.variant or "-")
        values = (amount(r.quantity, r.measured), amount(r.quantity, r.predicted), f"{100 * share:+.1f} %")
        rows.append((*what, *values, r.regime, group.name if group else OPEN))
    header = ("quantity", "row", "problem", "settings", "measured", "predicted", "error", "regime", "group")
    return Section(f"{part.title}: every row that misses its target", header, tuple(rows))


def markdown(comparison: Comparison) -> str:
    """The whole file."""
    text = [f"# {TITLE}", SUBJECT, f"Made by `{COMMAND}`."]
    for section in sections(comparison):
        text += [f"## {section.title}", markdown_table(section) if isinstance(section, Section) else _list(section)]
    return "\n\n".join(text) + "\n"


def _list(why: Why) -> str:
    lines = []
    for title, said, reason, experiment, command in why.groups:
        told = f" {reason} Experiment: {experiment} `{command}`" if reason else ""
        lines.append(f"- **{title}** ({said}){told}")
    return "\n".join(lines)


def _list_html(why: Why) -> str:
    items = []
    for title, said, reason, experiment, command in why.groups:
        told = f"<br>{_text(reason)}<br>Experiment: {_text(experiment)}" if reason else ""
        run = f" <code>{escape(command)}</code>" if command else ""
        items.append(f"<li><b>{_text(title)}</b> ({_text(said)}){told}{run}</li>")
    return f"<section><h2>{_text(why.title)}</h2><ul>{''.join(items)}</ul></section>"


def _text(text: str) -> str:
    return escape(text.replace("<->", "↔"))


def html(comparison: Comparison) -> str:
    """The whole file; complete without JavaScript but for the plots."""
    panels: dict[str, Any] = {}
    drawn = []
    for part in parts(comparison):
        names = []
        for quantity in QUANTITIES:
            if any(drawable(r, quantity) for r in part.residuals):
                name = f"figure-{part.word}-{quantity}"
                data, layout = scatter(part.residuals, quantity, BANDS)
                panels[name] = {"data": data, "layout": layout}
                names.append((name, f"{NAMES[quantity]}: predicted against measured, with lines at 5 and 10 %"))
        figures = "".join(figure(name, said) for name, said in names)
        drawn.append(
            f'<section class="figure"><h2>{escape(part.title)}</h2>{legend(part.residuals)}'
            f'<div class="panels">{figures}</div></section>'
        )
    body = (
        "<main>",
        "<noscript><p>The plots need JavaScript; the tables below need none.</p></noscript>",
        *drawn,
        *(section_html(s) if isinstance(s, Section) else _list_html(s) for s in sections(comparison)),
        "</main>",
    )
    return page(TITLE, f"{escape(SUBJECT)} Made by <code>{COMMAND}</code>.", body,
                {"panels": panels, "tables": {}, "commands": {}})  # fmt: skip

"""A comparison in words, tables and figures: its answer in one sentence, the titled tables that the terminal, Markdown
and HTML print alike, figures of predicted against measured, and the validation report.

The report has targets and what is reached, errors by level and regime, and every miss with its reason; library kernels,
chains and the project's own kernels stand apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from iosim.base.records import replace
from iosim.base.units import bytes_text, seconds_text
from iosim.evidence.validate.match import OWN
from iosim.evidence.validate.reasons import Group, reason_of
from iosim.evidence.validate.reasons import groups as reasons
from iosim.evidence.validate.residuals import REGIMES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.summary import (
    TARGETS,
    Summary,
    by_quantity,
    clean,
    groups,
    halves,
    misses,
    small,
)
from iosim.problem.attention import AttentionProblem
from iosim.show import axes
from iosim.show.page import Page, Panel, Section, Series
from iosim.show.tables import Cell, Column, Table, grouped

WORST = 12
EXACT = 1e-3
TITLE = "Predictions beside measurements"
INTRODUCTION = (
    "Errors are |predicted - measured| / measured. Rows of less than 2 MB have no error; their differences in bytes "
    "stand apart, and the last column of a summary counts them, too. Of a measured row a prediction knows the launch "
    "(sizes, grid, registers), never its bytes or times."
)
NAMES = {
    "hbm_read": "HBM read",
    "hbm_write": "HBM write",
    "l2_read": "SM<->L2 read",
    "l2_write": "SM<->L2 write",
    "smem": "shared memory",
    "time": "time",
}
ERRORS = (
    Column("rows", kind="count"),
    Column("median_error", "median", kind="error"),
    Column("p95_error", "p95", kind="error"),
    Column("max_error", "max", kind="error"),
    Column("near_share", "within 5 % or 2 MB", kind="error"),
)
QUANTITY = Column("quantity")
CALL = (Column("row"), Column("problem"), Column("settings"))


def titled(title: str, columns: Iterable[Column], rows: Iterable[tuple[Cell, ...]]) -> Section:
    return Section(
        re.sub(r"\W+", "-", title.lower()).strip("-"),
        title,
        table=Table(tuple(columns), tuple(rows)),
    )


def with_rows(sections: Iterable[Section]) -> list[Section]:
    return [s for s in sections if s.table is None or s.table.rows]


def errors(
    title: str,
    columns: Iterable[Column],
    summaries: Iterable[tuple[tuple[Cell, ...], Summary | None]],
) -> Section:
    """A table of errors: the cells of `columns`, then those of the summary beside them, where it has rows."""
    rows = (
        (*cells, s.n, s.median, s.p95, s.max, s.near)
        for cells, s in summaries
        if s is not None and s.n
    )
    return titled(title, (*columns, *ERRORS), rows)


def percent(error: float | None) -> str:
    """0.01234 -> "1.23 %"; "-" where there is none."""
    return "-" if error is None else f"{100 * error:.2f} %"


def amount(quantity: str, value: float) -> str:
    return seconds_text(value) if quantity == "time" else bytes_text(value)


def size_text(p: AttentionProblem) -> str:
    heads = str(p.heads) if p.group == 1 else f"{p.heads}/{p.kv_heads}"
    seq = str(p.seq_q) if p.seq_q == p.seq_k else f"{p.seq_q}x{p.seq_k}"
    mask = f"window {p.window}" if p.mask == "window" and p.window_right is None else p.mask_text
    words = [
        f"b{p.batch} h{heads} n{seq} d{p.head_dim} {p.dtype}",
        "" if p.mask == "none" else mask,
    ]
    return ", ".join(filter(None, [*words, "" if p.passes == "fwd" else p.passes]))


def name_text(r: Residual) -> str:
    row = r.row
    return f"{row.implementation}" + (
        f", chain {row.call}" if row.chain else f" {row.call}.{row.launch} {r.launch}"
    )


def worst(residuals: Iterable[Residual], quantity: str, n: int = WORST) -> list[Residual]:
    comparable = [r for r in residuals if r.quantity == quantity and r.error is not None]
    return sorted(comparable, key=lambda r: -(r.error or 0.0))[:n]


def validated_answer(comparison: Comparison) -> str:
    every = comparison.residuals
    parts = []
    of_hbm = [r for r in every if r.quantity == "hbm_read"]
    if checks := sum(r.check_bits for r in of_hbm):
        share = checks / sum(r.predicted for r in of_hbm)
        parts.append(
            f"ECC lies in the same memory: {percent(share)} of the predicted HBM reads are check bits"
        )
    for kind, some in (
        ("without spills", clean(every)),
        ("with spills", [r for r in every if r.spills]),
    ):
        if (s := by_quantity(some).get("hbm_read")) and s.n:
            largest = name_text(worst(some, "hbm_read", 1)[0])
            rest = f"{percent(s.p95)} at p95, {percent(s.max)} at most ({largest})"
            parts.append(
                f"HBM reads of {s.n} rows {kind} are off by {percent(s.median)} at the median, {rest}"
            )
    rows = [r for r in every if r.quantity in ("l2_read", "l2_write") and r.error is not None]
    beyond = [r for r in rows if (r.error or 0) > EXACT]
    if rows:
        parts.append(f"SM<->L2 bytes are within 0.1 % in {len(rows) - len(beyond)} of {len(rows)}")
    return "\n".join(f"{part}." for part in parts) or "No row was compared."


def beneath(comparison: Comparison) -> str:
    """What stands under the answer: whose bytes between SMs and L2 are further off, and how many rows are left out."""
    rows = [
        r
        for r in comparison.residuals
        if r.quantity in ("l2_read", "l2_write") and r.error is not None
    ]
    beyond = [r for r in rows if (r.error or 0) > EXACT]
    parts = []
    if beyond:
        names = ", ".join(sorted({r.row.implementation for r in beyond}))
        spilling = sum(r.spills for r in beyond)
        parts.append(
            f"Further off than 0.1 % between SMs and L2: {names}; {spilling} of {len(beyond)} with spills"
        )
    if comparison.skipped:
        parts.append(f"{len(comparison.skipped)} rows that no model covers are left out")
    return "".join(f"{part}.\n" for part in parts)


def tables(
    comparison: Comparison, *, split: bool = False, rows_shown: int = WORST
) -> list[Section]:
    every = comparison.residuals
    of_source, of_regime = (
        groups(clean(every), lambda r: r.row.source),
        groups(every, lambda r: r.regime),
    )
    by_name = {f"Without spills, {name}": s for name, s in of_source.items() if len(of_source) > 1}
    sections = [
        _summary("Kernels without spills", by_quantity(clean(every))),
        *(_summary(title, summaries) for title, summaries in by_name.items()),
        _summary("Kernels with spills", by_quantity(r for r in every if r.spills)),
        _small(every),
    ]
    if split:
        sections += [_summary(_half(name), summaries) for name, summaries in halves(every).items()]
    sections += [
        _by("regime", {k: of_regime[k] for k in REGIMES if k in of_regime}),
        _by("implementation", groups(every, lambda r: r.row.implementation)),
        *(_worst(every, q, rows_shown) for q in QUANTITIES),
        skipped_section(comparison),
    ]
    return with_rows(sections)


def _half(name: str) -> str:
    parity, _, spills = name.partition("_")
    fitted = "constants were fitted on these" if parity == "odd" else "nothing was fitted on these"
    return f"{parity.capitalize()} calls, {'with' if spills else 'without'} spills ({fitted})"


def _summary(title: str, by_quantity_name: Mapping[str, Summary]) -> Section:
    return errors(title, (QUANTITY,), (((NAMES[q],), s) for q, s in by_quantity_name.items()))


def _small(residuals: Sequence[Residual]) -> Section:
    columns = (
        QUANTITY,
        Column("rows", kind="count"),
        Column("median_difference", "median difference", kind="right"),
        Column("max_difference", "max difference", kind="right"),
    )
    differences = ("median_difference", "max_difference")
    rows = (
        (NAMES[q], s["n"], *(amount(q, s[name]) for name in differences))
        for q, s in small(residuals).items()
    )
    return titled("Rows under 2 MB", columns, rows)


def _by(criterion: str, by_group: Mapping[str, Mapping[str, Summary]]) -> Section:
    quantities = ("hbm_read", "hbm_write", "smem")
    cells = (((group, NAMES[q]), s.get(q)) for q in quantities for group, s in by_group.items())
    return errors(f"By {criterion}", (Column(criterion), QUANTITY), cells)


def _worst(residuals: Sequence[Residual], quantity: str, rows_shown: int) -> Section:
    unit = "s" if quantity == "time" else "bytes"
    columns = (
        *CALL,
        Column(f"measured_{unit}", "measured"),
        Column(f"predicted_{unit}", "predicted"),
        Column("error", kind="error"),
        Column("regime"),
    )
    rows = (
        (
            name_text(r),
            size_text(r.problem),
            r.variant or None,
            r.measured,
            r.predicted,
            r.error,
            r.regime,
        )
        for r in worst(residuals, quantity, rows_shown)
    )
    return titled(f"Largest errors: {NAMES[quantity]}", columns, rows)


def skipped_section(comparison: Comparison) -> Section:
    counted = Counter((s.row.implementation, s.reason) for s in comparison.skipped)
    rows = ((name, n, reason) for (name, reason), n in counted.items())
    return titled(
        "Skipped",
        (
            Column("implementation"),
            Column("rows", kind="count"),
            Column("reason"),
        ),
        rows,
    )


# Figures, and the page of any comparison

LEAST_S, LEAST_BYTES = 1e-7, 1000
MOST_ACROSS = 3
"""Ticks of an axis whose words lie beside each other."""


def comparison_page(comparison: Comparison, command: str = "", *, split: bool = False) -> Page:
    residuals = comparison.residuals
    panels = scatters(residuals, "figure", "predicted against measured")
    if any(r.quantity == "hbm_read" and r.error is not None for r in residuals):
        panels.append(_by_regime(residuals))
    figures = Section("figures", "Figures", legend=legend(residuals), panels=tuple(panels))
    # the figures and the first table stand open; the rest is folded
    first, *others = [figures, *tables(comparison, split=split)]
    sections = (first, *others[:1], *(replace(section, folded=True) for section in others[1:]))
    return _page(TITLE, INTRODUCTION, sections, command, comparison)


def _page(
    title: str, subject: str, sections: tuple[Section, ...], command: str, comparison: Comparison
) -> Page:
    sentences = validated_answer(comparison).split("\n")
    under = [beneath(comparison).strip()] if beneath(comparison) else []
    return Page(
        title,
        subject,
        sections,
        command=command,
        answer=(*sentences, *under),
        verdict=(sentences[0],),
    )


def legend(residuals: Sequence[Residual], bands: Sequence[float] = ()) -> tuple[Series, ...]:
    present = {r.regime for r in residuals}
    regimes = (
        Series(name, axes.colour(n), axes.symbol(n)[1])
        for n, name in enumerate(REGIMES)
        if name in present
    )
    around = (
        Series(f"{share:+.0%}", axes.NEUTRAL, dash="dot")
        for band in bands
        for share in (band, -band)
    )
    return (*regimes, Series("equal", axes.NEUTRAL, dash="solid" if bands else "dot"), *around)


def scatters(
    residuals: Sequence[Residual], name: str, subject: str, bands: Sequence[float] = ()
) -> list[Panel]:
    of_quantity = grouped(
        # zero has no place on a logarithmic axis
        (r for r in residuals if min(r.measured, r.predicted) >= least(r)),
        lambda r: r.quantity,
    )
    return [
        _scatter(
            of_quantity[quantity],
            quantity,
            f"{name}-{quantity}",
            f"{NAMES[quantity]}: {subject}",
            bands,
        )
        for quantity in QUANTITIES
        if quantity in of_quantity
    ]


def least(r: Residual) -> float:
    """Left edge of a quantity's figure: less, and zero, which has no place on a logarithmic axis, is left out of it."""
    return LEAST_S if r.quantity == "time" else LEAST_BYTES


def hover(r: Residual) -> str:
    row_text = f"{name_text(r)}: {size_text(r.problem)}"
    both = f"measured {amount(r.quantity, r.measured)}, predicted {amount(r.quantity, r.predicted)}"
    return "<br>".join(
        filter(None, [row_text, r.variant, both, f"error {percent(r.error)}, {r.regime}"])
    )


def _scatter(
    points: Sequence[Residual], quantity: str, panel: str, title: str, bands: Sequence[float]
) -> Panel:
    """Logarithmic axes: a series a regime, equality, and lines at `bands` around it."""
    values = [float(v) for r in points for v in (r.measured, r.predicted)]
    text = seconds_text if quantity == "time" else bytes_text
    ends = [min(values), max(values)]
    data = [axes.guide("equal", ends, ends, "predicted = measured", "solid" if bands else "dot")]
    for band in bands:
        for share in (band, -band):
            line = [end * (1 + share) for end in ends]
            data.append(axes.guide(f"{share:+.0%}", ends, line, f"{share:+.0%} of measured", "dot"))
    # a regime has the same colour in every figure, whatever regimes are absent
    for n, regime, mine in _regimes(points):
        x, y = [r.measured for r in mine], [r.predicted for r in mine]
        data.append(axes.line(regime, x, y, list(map(hover, mine)), n, mode="markers"))
    layout = axes.layout(
        axes.log_axis(values, "measured", text, MOST_ACROSS),
        axes.log_axis(values, "predicted", text),
    )
    return Panel(panel, title, f"{title}, {len(points)} rows.", tuple(data), layout)


def _by_regime(residuals: Sequence[Residual]) -> Panel:
    points = [r for r in residuals if r.quantity == "hbm_read" and r.error is not None]
    data = []
    for n, regime, mine in _regimes(points):
        errors = [r.difference / r.measured for r in mine]
        data.append(
            axes.line(
                regime, [regime] * len(mine), errors, list(map(hover, mine)), n, mode="markers"
            )
        )
    x = {"type": "category", "automargin": True}
    y = axes.axis("error", tickformat="+.2~%", zeroline=True)
    title = f"{NAMES['hbm_read']}: (predicted - measured) / measured, by regime"
    return Panel(
        "figure-residuals", title, f"{title}, {len(points)} rows.", tuple(data), axes.layout(x, y)
    )


def _regimes(residuals: Sequence[Residual]) -> Iterable[tuple[int, str, list[Residual]]]:
    for n, regime in enumerate(REGIMES):
        if mine := [r for r in residuals if r.regime == regime]:
            yield n, regime, mine


# The validation report

REPORT_TITLE = "Validation"
SUBJECT = (
    "Predicted bytes and times beside hardware counters. A prediction knows a row's launch (sizes, grid, registers), "
    "never its bytes or times. Errors are |predicted - measured| / measured; rows under 2 MB have none. A group of "
    "misses is isolated where an experiment shows its mechanism alone."
)
COMMAND = "iosim validate --report reports"
BANDS = (0.05, 0.10)
"""Relative errors whose lines the figures carry."""
KINDS = {
    "library": "Library kernels",
    "chain": "Chains of launches",
    "own": "The project's own kernels",
}
OPEN = "no reason found yet"


def parts(comparison: Comparison) -> dict[str, list[Residual]]:
    kind_of = {True: "own", False: "library"}
    by_kind = grouped(
        comparison.residuals,
        lambda r: "chain" if r.row.chain else kind_of[r.row.implementation in OWN],
    )
    return {kind: by_kind[kind] for kind in KINDS if kind in by_kind}


def report_sections(comparison: Comparison) -> list[Section]:
    levels: list[Section] = []
    why: list[Section] = []
    for kind, residuals in parts(comparison).items():
        levels += [_targets(KINDS[kind], residuals), _levels(KINDS[kind], residuals)]
        missed = misses(residuals)
        why += [*([_why(kind, missed)] if missed else []), _missed(KINDS[kind], missed)]
    return with_rows([*levels, *why, skipped_section(comparison)])


def _targets(kind: str, residuals: Sequence[Residual]) -> Section:
    columns = (
        QUANTITY,
        Column("rows", kind="count"),
        Column("target"),
        Column("reached"),
        Column("met"),
        Column("misses", kind="count"),
    )
    of_quantity, rows = grouped(clean(residuals), lambda r: r.quantity), []
    for quantity in (q for q in QUANTITIES if q in of_quantity):
        target, compared = TARGETS[quantity], of_quantity[quantity]
        good, reached = target.reached(compared)
        outside = sum(not target.row(r) for r in compared)
        rows.append(
            (NAMES[quantity], len(compared), target.text, reached, "yes" if good else "no", outside)
        )
    return titled(f"{kind}: targets (kernels without spills)", columns, rows)


def _levels(kind: str, residuals: Sequence[Residual]) -> Section:
    of_regime = {
        name: by_quantity(rows) for name, rows in grouped(residuals, lambda r: r.regime).items()
    }
    cells = (
        ((NAMES[q], regime), of_regime.get(regime, {}).get(q))
        for q in QUANTITIES
        for regime in REGIMES
    )
    return errors(f"{kind}: errors by level and regime", (QUANTITY, Column("regime")), cells)


def _why(kind: str, missed: Sequence[Residual]) -> Section:
    of_group = grouped(missed, lambda r: getattr(reason_of(r, reasons()), "name", ""))
    known = sorted(
        (g for g in reasons() if g.name in of_group), key=lambda g: -len(of_group[g.name])
    )
    items = [_group(group, of_group[group.name]) for group in known]
    if rest := of_group.get(""):
        items.append(f"**{OPEN}** ({_found(rest)})")
    title = f"{KINDS[kind]}: why {len(missed)} rows miss their target"
    return Section(f"{kind}-why", title, items=tuple(items))


def _group(group: Group, rows: Sequence[Residual]) -> str:
    state = "isolated by experiment" if group.isolated else "not isolated"
    experiment = f"{group.experiment} `{group.command}`"
    return f"**{group.title}** ({group.name}: {_found(rows)}; {state}.)\n{group.reason}\nExperiment: {experiment}"


def _found(rows: Sequence[Residual]) -> str:
    words, shares = (
        ", ".join(dict.fromkeys(NAMES[r.quantity] for r in rows)),
        sorted(map(_signed, rows)),
    )
    return f"{len(rows)} rows, {words}, {100 * shares[0]:+.1f} to {100 * shares[-1]:+.1f} %"


def _signed(r: Residual) -> float:
    return r.difference / max(1, r.measured)


def _missed(kind: str, missed: Sequence[Residual]) -> Section:
    columns = (
        QUANTITY,
        *CALL,
        Column("measured", kind="right"),
        Column("predicted", kind="right"),
        Column("error", kind="right"),
        Column("regime"),
        Column("group"),
    )
    rows = (
        (
            NAMES[r.quantity],
            name_text(r),
            size_text(r.problem),
            r.variant or None,
            amount(r.quantity, r.measured),
            amount(r.quantity, r.predicted),
            f"{100 * _signed(r):+.1f} %",
            r.regime,
            getattr(reason_of(r, reasons()), "name", OPEN),
        )
        for r in missed
    )
    return titled(f"{kind}: every row that misses its target", columns, rows)


def as_page(comparison: Comparison) -> Page:
    subject, drawn = "predicted against measured, with lines at 5 and 10 %", []
    for kind, residuals in parts(comparison).items():
        panels = tuple(scatters(residuals, f"figure-{kind}", subject, BANDS))
        drawn.append(Section(kind, KINDS[kind], legend=legend(residuals, BANDS), panels=panels))
    first, *others = (*drawn, *report_sections(comparison))
    folded = [s if "targets" in s.id else replace(s, folded=True) for s in others]
    return _page(REPORT_TITLE, SUBJECT, (first, *folded), COMMAND, comparison)

"""A comparison in words and tables: its answer in one sentence, and the titled tables that the terminal, Markdown and
HTML print alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from iosim.base.units import bytes_text, seconds_text
from iosim.evidence.validate.residuals import REGIMES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.summary import Summary, by_quantity, clean, groups, halves, small
from iosim.problem.attention import AttentionProblem
from iosim.show.page import Section
from iosim.show.tables import RIGHT, Cell, Column, Table

WORST = 12
EXACT = 1e-3
"""SM<->L2 bytes within this share of the measured ones count as such."""
TITLE = "Predictions beside measurements"
INTRODUCTION = (
    "Errors are |predicted - measured| / measured. Rows of less than 2 MB have no error; their differences in bytes "
    "stand apart, and the last column of a summary counts them, too. Of a measured row a prediction knows the launch "
    "(sizes, grid, registers), never its bytes or times."
)
NAMES = {"hbm_read": "HBM read", "hbm_write": "HBM write", "l2_read": "SM<->L2 read", "l2_write": "SM<->L2 write",
         "time": "time"}  # fmt: skip
ERRORS = (
    Column("rows", "rows", "count"), Column("median_error", "median", "error"), Column("p95_error", "p95", "error"),
    Column("max_error", "max", "error"), Column("near_share", "within 5 % or 2 MB", "error"),
)  # fmt: skip
QUANTITY = Column("quantity", "quantity")


def titled(title: str, columns: Sequence[Column], rows: Iterable[tuple[Cell, ...]]) -> Section:
    return Section(re.sub(r"\W+", "-", title.lower()).strip("-"), title, table=Table(tuple(columns), tuple(rows)))


def with_rows(sections: Iterable[Section]) -> list[Section]:
    """Sections but for those whose table is empty."""
    return [s for s in sections if s.table is None or s.table.rows]


def errors(s: Summary) -> tuple[Cell, ...]:
    return s.n, s.median, s.p95, s.max, s.near


def percent(error: float | None) -> str:
    """0.01234 -> "1.23 %"; "-" where there is none."""
    return "-" if error is None else f"{100 * error:.2f} %"


def amount(quantity: str, value: float) -> str:
    return seconds_text(value) if quantity == "time" else bytes_text(value)


def size_text(p: AttentionProblem) -> str:
    heads = str(p.heads) if p.group == 1 else f"{p.heads}/{p.kv_heads}"
    seq = str(p.seq_q) if p.seq_q == p.seq_k else f"{p.seq_q}x{p.seq_k}"
    mask = f"window {p.window}" if p.mask == "window" and p.window_right is None else p.mask_text
    words = [f"b{p.batch} h{heads} n{seq} d{p.head_dim} {p.dtype}", "" if p.mask == "none" else mask]
    return ", ".join(filter(None, [*words, "" if p.passes == "fwd" else p.passes]))


def name_text(r: Residual) -> str:
    row = r.row
    return f"{row.implementation}, chain {row.call}" if row.chain else (
        f"{row.implementation} {row.call}.{row.launch} {r.launch}")  # fmt: skip


def worst(residuals: Iterable[Residual], quantity: str, n: int = WORST) -> list[Residual]:
    """Rows with the largest errors."""
    comparable = [r for r in residuals if r.quantity == quantity and r.error is not None]
    return sorted(comparable, key=lambda r: -(r.error or 0.0))[:n]


def answer(comparison: Comparison) -> str:
    """One sentence: errors of HBM reads without spills and with, SM<->L2 bytes, and what is left out."""
    every = comparison.residuals
    parts = []
    for kind, some in (("without spills", clean(every)), ("with spills", [r for r in every if r.spills])):
        s = by_quantity(some).get("hbm_read")
        if s is not None and s.n:
            largest = name_text(worst(some, "hbm_read", 1)[0])
            parts.append(f"HBM reads of {s.n} rows {kind} are off by {percent(s.median)} at the median, "
                         f"{percent(s.p95)} at p95 and {percent(s.max)} at most ({largest})")  # fmt: skip
    rows = [r for r in every if r.quantity in ("l2_read", "l2_write") and r.error is not None]
    beyond = [r for r in rows if (r.error or 0) > EXACT]
    if rows:
        parts.append(f"SM<->L2 bytes are within 0.1 % in {len(rows) - len(beyond)} of {len(rows)}")
    if beyond:
        names = ", ".join(sorted({r.row.implementation for r in beyond}))
        parts[-1] += f", the others of {names}, {sum(r.spills for r in beyond)} of them with spills"
    if comparison.skipped:
        parts.append(f"{len(comparison.skipped)} rows that no model covers are left out")
    return f"{'; '.join(parts) or 'No row was compared'}."


def sections(comparison: Comparison, *, split: bool = False, most: int = WORST) -> list[Section]:
    """All tables, the summaries first."""
    every = comparison.residuals
    of_source, of_regime = groups(clean(every), lambda r: r.row.source), groups(every, lambda r: r.regime)
    by_name = {f"Without spills, {name}": s for name, s in of_source.items() if len(of_source) > 1}
    tables = [
        _summary("Kernels without spills", by_quantity(clean(every))),
        *(_summary(title, summaries) for title, summaries in by_name.items()),
        _summary("Kernels with spills", by_quantity(r for r in every if r.spills)),
        _small(every),
    ]
    if split:
        tables += [_summary(_half(name), summaries) for name, summaries in halves(every).items()]
    tables += [
        _by("regime", {k: of_regime[k] for k in REGIMES if k in of_regime}),
        _by("implementation", groups(every, lambda r: r.row.implementation)),
        *(_worst(every, q, most) for q in QUANTITIES),
        skipped_section(comparison),
    ]
    return with_rows(tables)


def _half(name: str) -> str:
    parity, _, spills = name.partition("_")
    fitted = "constants were fitted on these" if parity == "odd" else "nothing was fitted on these"
    return f"{parity.capitalize()} calls, {'with' if spills else 'without'} spills ({fitted})"


def _summary(title: str, by_quantity_name: Mapping[str, Summary]) -> Section:
    return titled(title, (QUANTITY, *ERRORS), ((NAMES[q], *errors(s)) for q, s in by_quantity_name.items() if s.n))


def _small(residuals: Sequence[Residual]) -> Section:
    columns = (QUANTITY, Column("rows", "rows", "count"), Column("median_difference", "median difference", RIGHT),
               Column("max_difference", "max difference", RIGHT))  # fmt: skip
    rows = (
        (NAMES[q], s["n"], amount(q, s["median_difference"]), amount(q, s["max_difference"]))
        for q, s in small(residuals).items()
    )
    return titled("Rows under 2 MB", columns, rows)


def _by(what: str, by_group: Mapping[str, Mapping[str, Summary]]) -> Section:
    of = [(group, q, s.get(q)) for q in ("hbm_read", "hbm_write") for group, s in by_group.items()]
    rows = ((group, NAMES[q], *errors(s)) for group, q, s in of if s is not None and s.n)
    return titled(f"By {what}", (Column(what, what), QUANTITY, *ERRORS), rows)


def _worst(residuals: Sequence[Residual], quantity: str, most: int) -> Section:
    unit, kind = ("s", "seconds") if quantity == "time" else ("bytes", "bytes")
    columns = (Column("row", "row"), Column("problem", "problem"), Column("settings", "settings"),
               Column(f"measured_{unit}", "measured", kind), Column(f"predicted_{unit}", "predicted", kind),
               Column("error", "error", "error"), Column("regime", "regime"))  # fmt: skip
    rows = (
        (name_text(r), size_text(r.problem), r.variant or None, r.measured, r.predicted, r.error, r.regime)
        for r in worst(residuals, quantity, most)
    )
    return titled(f"Largest errors: {NAMES[quantity]}", columns, rows)


def skipped_section(comparison: Comparison) -> Section:
    """Rows that no model covers, by implementation and reason."""
    counted = Counter((s.row.implementation, s.reason) for s in comparison.skipped)
    columns = (Column("implementation", "implementation"), Column("rows", "rows", "count"), Column("reason", "reason"))
    return titled("Skipped", columns, ((name, n, reason) for (name, reason), n in counted.items()))

"""The comparison as titled tables of text, which the terminal, Markdown and HTML print alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from iosim.base.units import bytes_text, seconds_text
from iosim.evidence.validate.residuals import REGIMES, Comparison, Residual
from iosim.evidence.validate.rows import QUANTITIES
from iosim.evidence.validate.summary import Summary, by_quantity, clean, groups, halves, small
from iosim.problem.attention import AttentionProblem

WORST = 12
NEAR_HEAD = "within 5 % or 2 MB"
TITLE = "Predictions beside measurements"
INTRODUCTION = (
    "Errors are |predicted - measured| / measured. Rows of less than 2 MB have no error; their differences in bytes "
    "stand apart, and the last column of a summary counts them, too. Of a measured row a prediction knows the launch "
    "(sizes, grid, registers), never its bytes or times."
)
NAMES = {"hbm_read": "HBM read", "hbm_write": "HBM write", "l2_read": "SM<->L2 read", "l2_write": "SM<->L2 write",
         "time": "time"}  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A table under a title; every cell is text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def records(self) -> list[dict[str, str]]:
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]


def percent(error: float | None) -> str:
    """0.01234 -> "1.23 %"; "-" where there is none."""
    return "-" if error is None else f"{100 * error:.2f} %"


def amount(quantity: str, value: float) -> str:
    """Bytes or seconds in words."""
    return seconds_text(value) if quantity == "time" else bytes_text(value)


def size_text(p: AttentionProblem) -> str:
    """A problem in a few words."""
    heads = str(p.heads) if p.group == 1 else f"{p.heads}/{p.kv_heads}"
    seq = str(p.seq_q) if p.seq_q == p.seq_k else f"{p.seq_q}x{p.seq_k}"
    words = [f"b{p.batch} h{heads} n{seq} d{p.head_dim} {p.dtype}"]
    words += [] if p.mask == "none" else [f"window {p.window}" if p.mask == "window" else p.mask]
    return ", ".join([*words, *([] if p.passes == "fwd" else [p.passes])])


def name_text(r: Residual) -> str:
    """Which row of which table."""
    return f"{r.row.implementation}, chain {r.row.call}" if r.row.chain else (
        f"{r.row.implementation} {r.row.call}.{r.row.launch} {r.launch}")  # fmt: skip


def worst(residuals: Iterable[Residual], quantity: str, n: int = WORST) -> list[Residual]:
    """Rows with the largest errors."""
    found = [r for r in residuals if r.quantity == quantity and r.error is not None]
    return sorted(found, key=lambda r: -(r.error or 0.0))[:n]


def sections(comparison: Comparison, *, split: bool = False, most: int = WORST) -> list[Section]:
    """All tables, the summaries first."""
    every = comparison.residuals
    of_source = groups(clean(every), lambda r: r.row.source)
    made = [
        _summary("Kernels without spills", by_quantity(clean(every))),
        *(_summary(f"Without spills, {name}", found) for name, found in of_source.items() if len(of_source) > 1),
        _summary("Kernels with spills", by_quantity(r for r in every if r.spills)),
        _small(every),
    ]
    if split:
        made += [_summary(_half(name), found) for name, found in halves(every).items()]
    of_regime = groups(every, lambda r: r.regime)
    made += [
        _by("Regime", {k: of_regime[k] for k in REGIMES if k in of_regime}),
        _by("Implementation", groups(every, lambda r: r.row.implementation)),
        *(_worst(every, q, most) for q in QUANTITIES),
        skipped_section(comparison),
    ]
    return [s for s in made if s.rows]


def _half(name: str) -> str:
    parity, _, spills = name.partition("_")
    fitted = "constants were fitted on these" if parity == "odd" else "nothing was fitted on these"
    return f"{parity.capitalize()} calls, {'with' if spills else 'without'} spills ({fitted})"


def _summary(title: str, found: Mapping[str, Summary]) -> Section:
    rows = tuple(
        (NAMES[q], str(s.n), percent(s.median), percent(s.p95), percent(s.max), percent(s.near))
        for q, s in found.items()
        if s.n
    )
    return Section(title, ("quantity", "rows", "median", "p95", "max", NEAR_HEAD), rows)


def _small(residuals: Sequence[Residual]) -> Section:
    rows = tuple(
        (NAMES[q], str(s["n"]), amount(q, s["median_difference"]), amount(q, s["max_difference"]))
        for q, s in small(residuals).items()
    )
    return Section("Rows under 2 MB", ("quantity", "rows", "median difference", "max difference"), rows)


def _by(what: str, found: Mapping[str, Mapping[str, Summary]]) -> Section:
    rows = tuple(
        (group, NAMES[q], str(s.n), percent(s.median), percent(s.p95), percent(s.max), percent(s.near))
        for q in ("hbm_read", "hbm_write")
        for group, of in found.items()
        if (s := of.get(q)) and s.n
    )
    return Section(f"By {what.lower()}", (what.lower(), "quantity", "rows", "median", "p95", "max", NEAR_HEAD), rows)


def _worst(residuals: Sequence[Residual], quantity: str, most: int) -> Section:
    rows = tuple(
        (name_text(r), size_text(r.problem), r.variant or "-", amount(quantity, r.measured),
         amount(quantity, r.predicted), percent(r.error), r.regime)
        for r in worst(residuals, quantity, most)
    )  # fmt: skip
    header = ("row", "problem", "settings", "measured", "predicted", "error", "regime")
    return Section(f"Largest errors: {NAMES[quantity]}", header, rows)


def skipped_section(comparison: Comparison) -> Section:
    """Rows that no model covers, by implementation and reason."""
    counted = Counter((s.row.implementation, s.reason) for s in comparison.skipped)
    rows = tuple((name, str(n), reason) for (name, reason), n in counted.items())
    return Section("Skipped", ("implementation", "rows", "reason"), rows)

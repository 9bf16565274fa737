"""A comparison as text: one table a sequence length, the bytes by tensor below it, and what cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iosim.base.units import bytes_text, number_text, seconds_text
from iosim.show.tables import Table
from iosim.studies.compare.study import Comparison, Entry
from iosim.studies.compare.tensors import GROUPS, by_group
from iosim.studies.report.assemble import fits
from iosim.studies.report.words import subject

ALWAYS_SAID = "HBM: replay; "
"""Part of a note that every replayed prediction has: the bytes left dirty, which JSON and the page keep."""
RATIO_WORDS = {"l2": "x less L2", "hbm": "x less HBM", "time": "x faster", "memory": "x less memory"}


def as_text(comparison: Comparison) -> str:
    """The whole text."""
    parts = [subject(comparison.request), f"Ratios: {comparison.baseline} over the row's; above 1 the row needs less."]
    for n in comparison.request.lengths:
        mine = [e for e in comparison.entries if e.seq_len == n]
        parts += [f"N = {n:,}", Table.of(row(e) for e in mine).text().rstrip()]
        for level, name in (("l2", "SM<->L2"), ("hbm", "HBM")):
            rows = tensor_rows(mine, level)
            if rows:
                parts.append(f"{name} bytes by tensor\n{Table.of(rows).text().rstrip()}")
    if comparison.missing:
        parts.append("\n".join(["Cannot run:", *dict.fromkeys(_missing(e, comparison) for e in comparison.missing)]))
    notes = [n for n in comparison.notes if ALWAYS_SAID not in n]
    parts += ["\n".join(f"note: {n}" for n in notes)] if notes else []
    return "\n\n".join(parts) + "\n"


def _missing(e: Entry, comparison: Comparison) -> str:
    at = f" at N = {e.seq_len:,}" if len(comparison.request.lengths) > 1 else ""
    return f"  {e.kernel} on {e.gpu}{at}: {e.reason}"


def row(e: Entry) -> dict[str, Any]:
    """One line of the main table."""
    cells: dict[str, Any] = {"GPU": e.gpu, "kernel": e.kernel}
    if e.point is None:
        empty = dict.fromkeys(
            ("SM<->L2", "HBM", "time", "bound by", "peak", "workspace", "fits", *RATIO_WORDS.values()), "-"
        )
        return cells | {"tile": "cannot run"} | empty
    p = e.point.prediction
    cells |= {
        "tile": str(p.kernel.tile),
        "SM<->L2": bytes_text(e.point.l2),
        "HBM": "-" if e.point.hbm is None else bytes_text(e.point.hbm),
        "time": seconds_text(e.point.time_s),
        "bound by": p.time.bound_by,
        "peak": bytes_text(p.memory_bytes["peak"]),
        "workspace": bytes_text(p.memory_bytes["workspace"]),
        "fits": fits(e.point) or "-",
    }
    ratios = {word: e.ratio(q) for q, word in RATIO_WORDS.items()}
    return cells | {word: "-" if r is None else number_text(r) for word, r in ratios.items()}


def tensor_rows(entries: Sequence[Entry], level: str) -> list[dict[str, str]]:
    """A line a prediction: bytes by group, for groups that any of them has. Empty where the level is not known."""
    by_entry = [(e, by_group(e.point.prediction, level)) for e in entries if e.point is not None]
    used = [g for g in GROUPS if any(g in groups for _, groups in by_entry)]
    if not used:
        return []
    return [
        {"GPU": e.gpu, "kernel": e.kernel} | {g: bytes_text(groups[g]) if g in groups else "-" for g in used}
        for e, groups in by_entry
    ]

"""A comparison as a page: tables, figures and command lines."""

from __future__ import annotations

from iosim.show.page import Page, Section, listed, numbered
from iosim.show.tables import Cell, Column, Table
from iosim.studies.compare.figures import figures
from iosim.studies.compare.study import QUANTITIES, Comparison, Entry
from iosim.studies.report import words
from iosim.studies.report.assemble import fits

TITLE = "Attention side by side"


def as_page(comparison: Comparison, command: str = "iosim compare") -> Page:
    """The whole page. `command` is the command line that makes it again."""
    missing = dict.fromkeys(f"{e.kernel} on {e.gpu} (N = {e.seq_len:,}): {e.reason}" for e in comparison.missing)
    ratios = f"Ratios: {comparison.baseline} over the row; above 1x the row needs less."
    sections = (
        Section("summary", "Side by side", (ratios,), table=summary_table(comparison)),
        *listed("missing", "Cannot run", tuple(missing)),
        *numbered(figures(comparison)),
        *listed("notes", "Notes", comparison.notes),
    )
    return Page(
        TITLE,
        words.subject(comparison.request),
        sections,
        text=(words.LEVELS,),
        command=command,
        commands=comparison.commands,
    )


def summary_table(comparison: Comparison) -> Table:
    """Every entry in one row, what cannot run included."""
    columns = (
        Column("gpu", "GPU"), Column("kernel", "kernel"), Column("seq_len", "N", "count"), Column("tile", "tile"),
        Column("l2_bytes", "SM<->L2", "bytes"), Column("hbm_bytes", "HBM", "bytes"),
        Column("time_s", "time", "seconds"), Column("bound_by", "bound by"), Column("peak_bytes", "peak", "bytes"),
        Column("workspace_bytes", "of it workspace", "bytes"), Column("fits", "fits"),
        Column("l2_ratio", "SM<->L2 ratio", "ratio"),
        Column("hbm_ratio", "HBM ratio", "ratio"), Column("time_ratio", "time ratio", "ratio"),
        Column("memory_ratio", "memory ratio", "ratio"), Column("reason", "cannot run"),
    )  # fmt: skip
    return Table(columns, tuple(_row(e) for e in comparison.entries))


def _row(e: Entry) -> tuple[Cell, ...]:
    if e.point is None:
        return (e.gpu, e.kernel, e.seq_len, *(None,) * 12, e.reason)
    p = e.point.prediction
    return (
        e.gpu, e.kernel, e.seq_len, str(p.kernel.tile), e.point.l2, e.point.hbm, e.point.time_s, p.time.bound_by,
        p.memory_bytes["peak"], p.memory_bytes["workspace"], fits(e.point), *(e.ratio(q) for q in QUANTITIES), "",
    )  # fmt: skip

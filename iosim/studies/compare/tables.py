"""Tables of a comparison, which its text and its page show alike."""

from __future__ import annotations

from collections.abc import Sequence

from iosim.prediction.estimates import marked
from iosim.show.tables import Cell, Column, Table
from iosim.studies.compare.study import QUANTITIES, Entry
from iosim.studies.compare.tensors import GROUPS, by_group
from iosim.studies.report.assemble import fits
from iosim.studies.report.collect import Point

COLUMNS = (
    Column("gpu", "GPU"), Column("kernel", "kernel"), Column("seq_len", "N", "count"), Column("tile", "tile"),
    Column("l2_bytes", "SM<->L2", "bytes"), Column("hbm_bytes", "HBM", "bytes"), Column("time_s", "time", "seconds"),
    Column("bound_by", "bound by"), Column("peak_bytes", "peak", "bytes"),
    Column("workspace_bytes", "workspace", "bytes"), Column("fits", "fits"), Column("l2_ratio", "x less L2", "number"),
    Column("hbm_ratio", "x less HBM", "number"), Column("time_ratio", "x faster", "number"),
    Column("memory_ratio", "x less memory", "number"), Column("reason", "cannot run"),
)  # fmt: skip


def summary(entries: Sequence[Entry]) -> Table:
    """Every entry in one row, what cannot run included. `peak` counts the workspace."""
    return Table(COLUMNS, tuple(map(_row, entries)))


def _row(e: Entry) -> tuple[Cell, ...]:
    if e.point is None:
        return (e.gpu, e.kernel, e.seq_len, "cannot run", *(None,) * 11, e.reason)
    p = e.point.prediction
    return (
        e.gpu, e.kernel, e.seq_len, str(p.kernel.tile), e.point.l2, e.point.hbm_shown, e.point.time_s, p.time.bound_by,
        p.memory_bytes["peak"], p.memory_bytes["workspace"], fits(e.point), *(e.shown(q) for q in QUANTITIES), "",
    )  # fmt: skip


def tensors(entries: Sequence[Entry], level: str) -> Table:
    """A row a prediction: bytes by group of tensors, for groups that any of them has."""
    by_entry = [(e, _shown(e.point, level)) for e in entries if e.point is not None]
    used = [g for g in GROUPS if any(g in groups for _, groups in by_entry)]
    columns = (Column("gpu", "GPU"), Column("kernel", "kernel"), *(Column(g, g, "bytes") for g in used))
    rows = ((e.gpu, e.kernel, *(groups.get(g) for g in used)) for e, groups in by_entry)
    return Table(columns, tuple(rows) if used else ())


def _shown(point: Point, level: str) -> dict[str, float | None]:
    """Bytes by group of tensors, those of HBM with a mark where they are estimates."""
    groups = by_group(point.prediction, level)
    return {group: marked(n, point.prediction) if level == "hbm" else n for group, n in groups.items()}

"""Reports: one HTML file and one Markdown file for several GPUs, kernels and sequence lengths.

Predictions come from `iosim.prediction.predictor`, tiles from `iosim.studies.tiles.pick`; this package arranges and
draws, it computes nothing but ratios.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from iosim.base.errors import InputError
from iosim.base.files import write_together
from iosim.base.progress import Progress, silent
from iosim.prediction.result import marked
from iosim.show.html import html
from iosim.show.page import Figure, markdown
from iosim.show.tables import Cell, Table, columns_of
from iosim.studies.report import figures
from iosim.studies.report.collect import (
    ALWAYS_SAID,
    Point,
    Report,
    ReportRequest,
    baseline,
    by_gpu,
    collect,
    notes,
)
from iosim.studies.report.face import as_page, question
from iosim.studies.report.overview import overview
from iosim.studies.report.tilemap import search, tile_map, tiles_line

__all__ = [
    "FORMATS",
    "Report",
    "ReportRequest",
    "as_page",
    "beside",
    "build",
    "render",
    "targets",
    "write",
]
FORMATS = ("both", "html", "md")
NAME = "report"
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md"}


def targets(out: str | Path, form: str = "both") -> dict[str, Path]:
    """Paths by "html" and "md" for `--out`: a directory that exists, or the name of one of the two files."""
    if form not in FORMATS:
        raise InputError(f"`format` '{form}' is not known; accepted: {', '.join(FORMATS)}")
    kinds = ("html", "md") if form == "both" else (form,)
    path = Path(out)
    own_kind = _SUFFIXES.get(path.suffix.lower())
    if path.is_dir():
        places = {kind: path / f"{NAME}.{kind}" for kind in kinds}
    elif own_kind is None:
        accepted = "an existing directory, or a file name that ends in .html or .md"
        raise InputError(f"`out` '{out}' is no place for a report; accepted: {accepted}")
    elif own_kind not in kinds:
        raise InputError(
            f"`out` '{out}' contradicts `format` {form}; accepted: a name that ends in .{form}"
        )
    else:
        places = {
            kind: path if kind == own_kind else path.with_suffix(f".{kind}") for kind in kinds
        }
    for target in places.values():
        if target.is_dir():
            raise InputError(f"`out` '{out}': '{target}' is a directory; a file name is needed")
        if not target.parent.is_dir():
            raise InputError(
                f"`out` '{out}' cannot be written: there is no directory '{target.parent}'"
            )
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise InputError(f"`out` '{out}' cannot be written: Permission denied")
    return places


def beside(out: str | Path, name: str, form: str = "both") -> str:
    """A place like `out` for one of several reports, whose files' names end in `name`."""
    path = Path(out)
    if path.is_dir():
        return str(path / f"{NAME}-{name}.{'md' if form == 'md' else 'html'}")
    return str(path.with_name(f"{path.stem}-{name}{path.suffix}"))


def render(report: Report, kind: str) -> str:
    return html(as_page(report)) if kind == "html" else markdown(as_page(report))


def write(report: Report, out: str | Path, form: str = "both") -> list[Path]:
    """Write the files of `form` ("both", "html" or "md") to a directory or beside a file name; returns their paths."""
    places = targets(out, form)
    write_together({path: render(report, kind) for kind, path in places.items()})
    return list(places.values())


def build(request: ReportRequest, progress: Progress = silent) -> Report:
    points, omissions, commands = collect(request, progress)
    # GPUs with at least one prediction. Every number names its command line by an id: P for
    # predictions, H for hardware profiles, T for tiles.
    here = [members[0].gpu for members in by_gpu(points).values()]
    profile_ids = {g.label: f"H{n:02d}" for n, g in enumerate(here, 1)}
    for gpu in here:
        commands[profile_ids[gpu.label]] = shlex.join(
            ["iosim", "profiles", "show", gpu.argument, "--format", "json"]
        )
    rankings = search(request, here)
    ranked = [(gpu, ranking) for gpu in here if not isinstance(ranking := rankings[gpu.label], str)]
    tile_ids = {gpu.label: f"T{n:02d}" for n, (gpu, _) in enumerate(ranked, 1)}
    commands |= {tile_ids[gpu.label]: tiles_line(gpu, ranking) for gpu, ranking in ranked}
    drawn: list[Figure | None] = [
        overview(request, points),
        figures.l2_traffic(request, points),
        figures.hbm_traffic(request, points),
        figures.ratio(request, points, "l2"),
        figures.ratio(request, points, "hbm"),
        tile_map(request, rankings, tile_ids),
        figures.roofline(request, points, "l2", profile_ids),
        figures.roofline(request, points, "hbm", profile_ids),
        figures.memory_footprint(request, points),
        figures.call_time(request, points),
        figures.density(request, points, commands),
    ]
    all_figures, all_notes = (
        (f for f in drawn if f is not None),
        (note for note in notes(points) if ALWAYS_SAID not in note),
    )
    title = question(request, baseline(points))
    return Report(
        title,
        request,
        points,
        omissions,
        summary(points),
        tuple(all_figures),
        commands,
        tuple(all_notes),
    )


def summary(points: Sequence[Point]) -> Table:
    """Every kernel on every GPU at the longest sequence that it has, with the naive kernel's bytes over its own."""
    base = baseline(points)
    below = {(p.gpu.label, p.seq_len): p for p in points if p.kernel == base}
    more = columns_of(
        "tile | l2_bytes=SM<->L2 | hbm_bytes=HBM | time_s=time | bound_by=bound by | peak_bytes=memory | fits | "
        "ratio_l2:ratio=naive over it, SM<->L2 | ratio_hbm:ratio=naive over it, HBM"
    )
    rows: list[tuple[Cell, ...]] = []
    # Points come in ascending lengths, so a dictionary keeps the longest of each.
    for p in {(p.gpu.label, p.kernel): p for p in points}.values():  # the last of each
        naive = None if p.naive else below.get((p.gpu.label, p.seq_len))
        ratio_l2 = naive.l2 / p.l2 if naive and p.l2 else None
        ratio_hbm = (
            marked(naive.hbm / p.hbm, naive.prediction, p.prediction)
            if naive and naive.hbm and p.hbm
            else None
        )
        rows.append(
            (
                *figures.who(p),
                str(p.prediction.kernel.tile),
                p.l2,
                p.hbm_shown,
                p.time_s,
                p.prediction.time.bound_by,
                p.prediction.memory_bytes["peak"],
                p.fits,
                ratio_l2,
                ratio_hbm,
                p.id if naive is None else f"{p.id} {naive.id}",
            )
        )
    return Table((*figures.WHO, *more, figures.FROM), tuple(rows))

"""From a request to a Report: predictions, figures, summary, command lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from iosim.base.progress import Progress, silent
from iosim.prediction.estimates import marked
from iosim.show.page import Figure
from iosim.show.tables import Cell, Table, columns_of
from iosim.studies.report import figures
from iosim.studies.report.collect import Point, Report, baseline, by_gpu, collect, series
from iosim.studies.report.face import question
from iosim.studies.report.overview import overview
from iosim.studies.report.ratios import density, ratio
from iosim.studies.report.request import ReportRequest
from iosim.studies.report.tilemap import search, tile_map, tiles_line

ALWAYS_SAID = "HBM: replay; "
"""Part of a note that every replayed prediction has: the bytes left dirty, which its own command line tells."""


def build(request: ReportRequest, progress: Progress = silent) -> Report:
    points, omissions, commands = collect(request, progress)
    here = [members[0].gpu for members in by_gpu(points).values()]
    profile_ids = {g.label: f"H{n:02d}" for n, g in enumerate(here, 1)}
    for gpu in here:
        commands[profile_ids[gpu.label]] = shlex.join(["iosim", "profiles", "show", gpu.argument, "--format", "json"])
    rankings = search(request, here)
    ranked = [(gpu, ranking) for gpu in here if not isinstance(ranking := rankings[gpu.label], str)]
    tile_ids = {gpu.label: f"T{n:02d}" for n, (gpu, _) in enumerate(ranked, 1)}
    commands |= {tile_ids[gpu.label]: tiles_line(gpu, ranking) for gpu, ranking in ranked}
    drawn: list[Figure | None] = [
        overview(request, points),
        figures.l2_traffic(request, points),
        figures.hbm_traffic(request, points),
        ratio(request, points, "l2"),
        ratio(request, points, "hbm"),
        tile_map(request, rankings, tile_ids),
        figures.roofline(request, points, "l2", profile_ids),
        figures.roofline(request, points, "hbm", profile_ids),
        figures.memory_footprint(request, points),
        figures.call_time(request, points),
        density(request, points, commands),
    ]
    return Report(
        title=question(request, baseline(points)),
        request=request,
        points=points,
        omissions=omissions,
        summary=summary(points),
        figures=tuple(f for f in drawn if f is not None),
        commands=commands,
        notes=tuple(note for note in notes(points) if ALWAYS_SAID not in note),
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
    for p in (row[-1] for of_gpu in by_gpu(points).values() for row in series(of_gpu).values()):
        naive = None if p.naive else below.get((p.gpu.label, p.seq_len))
        ratio_l2 = naive.l2 / p.l2 if naive and p.l2 else None
        ratio_hbm = marked(naive.hbm / p.hbm, naive.prediction, p.prediction) if naive and naive.hbm and p.hbm else None
        rows.append((
            *figures.who(p), str(p.prediction.kernel.tile), p.l2, p.hbm_shown, p.time_s, p.prediction.time.bound_by,
            p.prediction.memory_bytes["peak"], fits(p), ratio_l2, ratio_hbm,
            p.id if naive is None else f"{p.id} {naive.id}",
        ))  # fmt: skip
    return Table((*figures.WHO, *more, figures.FROM), tuple(rows))


def fits(p: Point) -> str | None:
    """Whether the call's memory is no more than the GPU's; None where the profile does not know its own."""
    size = p.gpu.profile.memory_bytes
    return None if size is None else "yes" if p.prediction.memory_bytes["peak"] <= size else "no"


def notes(points: Sequence[Point]) -> tuple[str, ...]:
    """What the predictions say of themselves, each once, with the kernels that say it."""
    kernels_of: dict[str, dict[str, None]] = {}
    for p in points:
        for note in (*p.prediction.notes, *p.prediction.time.missing):
            kernels_of.setdefault(note, {})[p.kernel] = None
    named = ((", ".join(kernels), note) for note, kernels in kernels_of.items())
    return tuple(note if note.startswith(f"{names}: ") else f"{names}: {note}" for names, note in named)

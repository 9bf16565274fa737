"""A report as data: a comparison over lengths, with the figures that only a report has, and its page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from iosim.base.progress import Progress, silent
from iosim.base.records import dataclass
from iosim.catalog.algorithms import algorithm_of
from iosim.catalog.libraries import entry, is_choice
from iosim.prediction.result import marked
from iosim.show.page import Figure, Page, listed
from iosim.show.tables import Cell, Column, Table
from iosim.studies.compare import lines
from iosim.studies.compare.overview import overview
from iosim.studies.compare.page import SideBySide, numbers
from iosim.studies.compare.points import (
    ALWAYS_SAID,
    CaseGrid,
    Omission,
    Point,
    baseline,
    by_gpu,
)
from iosim.studies.compare.sentences import LEVELS, further, omission
from iosim.studies.compare.study import Baseline, Comparison, compared
from iosim.studies.report import figures
from iosim.studies.report.tilemap import search, tile_map, tiles_line

EXACT = (
    "Each number comes from the command lines that its row names (P: predictions, H: hardware profiles, T: tiles), "
    "which are listed at the end; their JSON has the bytes as whole numbers, and so have the CSV downloads."
)
RATIOS = "Naive over it: the naive kernel's bytes over the row's; below 1x the row moves more than naive does."


@dataclass(frozen=True)
class Report:
    comparison: Comparison
    summary: Table
    figures: tuple[Figure, ...]
    commands: Mapping[str, str]
    """The command lines of the predictions, the profiles and the tiles, by their ids."""

    @property
    def request(self) -> CaseGrid:
        return self.comparison.request

    @property
    def points(self) -> tuple[Point, ...]:
        """The predictions in the order of their ids: by GPU and kernel, then by length."""
        return in_order(self.comparison)

    @property
    def omissions(self) -> tuple[Omission, ...]:
        return self.comparison.omissions

    @property
    def legend(self) -> str | None:
        return self.comparison.legend

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the predictions, without those that their own command lines tell."""
        return tuple(note for note in self.comparison.notes if ALWAYS_SAID not in note)

    @property
    def naive(self) -> str | None:
        """The kernel that the others are held against: the first that is naive; None without one."""
        return baseline(self.points)

    @property
    def title(self) -> str:
        if self.naive is not None and len(self.request.kernels) > 1:
            return "How many bytes does tiled attention save?"
        return f"How many bytes does {' or '.join(self.request.kernels)} move?"

    @property
    def has_ratios(self) -> bool:
        """True where the summary compares anything with a naive kernel."""
        return any(row[self.summary.index("ratio_l2")] is not None for row in self.summary.rows)

    def figure(self, figure_id: str) -> Figure:
        return {figure.id: figure for figure in self.figures}[figure_id]


def in_order(comparison: Comparison) -> tuple[Point, ...]:
    by_case = {(p.gpu.label, p.kernel, p.seq_len): p for p in comparison.points}
    cases = [(gpu.label, kernel, p.seq_q) for gpu, kernel, p, _ in comparison.request.jobs]
    return tuple(by_case[case] for case in cases if case in by_case)


def as_page(report: Report) -> Page:
    """The answers, the chart that carries them, one table, and the rest in details."""
    request = report.request
    at = "At the longest sequence" if len(request.lengths) > 1 else "Numbers"
    omissions = [omission(o, request.lengths) for o in report.omissions]
    page = SideBySide(
        report.comparison,
        report.points,
        report.title,
        report.naive,
        report.figures,
        under=further(report.points, report.naive),
        tables=(
            numbers(
                report.comparison,
                f"{at}, N = {request.lengths[-1]:,}",
                report.summary,
                (RATIOS,) if report.has_ratios else (),
            ),
            *listed("left-out", "Left out", omissions),
        ),
        closing=listed("notes", "Notes of the predictions", report.notes, folded=True),
        reading=(LEVELS, EXACT),
    )
    return page.page(request.report_line(), report.commands)


def build(request: CaseGrid, progress: Progress = silent) -> Report:
    names = request.requested or request.kernels
    standard = (
        n for n in names if not is_choice(n) and algorithm_of(entry(n)["algorithm"]).standard
    )
    comparison = compared(request, Baseline(next(standard, names[0])), progress, is_default=True)
    points, commands = in_order(comparison), dict(comparison.commands)
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
        lines.l2_traffic(request, points),
        lines.hbm_traffic(request, points),
        figures.ratio(request, points, "l2"),
        figures.ratio(request, points, "hbm"),
        tile_map(request, rankings, tile_ids),
        figures.roofline(request, points, "l2", profile_ids),
        figures.roofline(request, points, "hbm", profile_ids),
        lines.memory_footprint(request, points),
        lines.call_time(request, points),
        figures.density(request, points, commands),
    ]
    shown_figures = tuple(figure for figure in drawn if figure is not None)
    return Report(comparison, summary(points), shown_figures, commands)


def summary(points: tuple[Point, ...]) -> Table:
    """Every kernel on every GPU at the longest sequence that it has, with the naive kernel's bytes over its own."""
    base = baseline(points)
    below = {(p.gpu.label, p.seq_len): p for p in points if p.kernel == base}
    more = (
        Column("tile"),
        Column("l2_bytes", "SM<->L2"),
        Column("hbm_bytes", "HBM"),
        Column("time_s", "time"),
        Column("bound_by", "bound by"),
        Column("peak_bytes", "memory"),
        Column("fits"),
        Column("ratio_l2", "naive over it, SM<->L2", kind="ratio"),
        Column("ratio_hbm", "naive over it, HBM", kind="ratio"),
    )
    rows: list[tuple[Cell, ...]] = []
    # Points come in ascending lengths, so a dictionary keeps the longest of each.
    for p in {(p.gpu.label, p.kernel): p for p in points}.values():
        naive = None if p.naive else below.get((p.gpu.label, p.seq_len))
        ratio_l2 = naive.l2 / p.l2 if naive and p.l2 else None
        ratio_hbm = (
            marked(naive.hbm / p.hbm, naive.prediction, p.prediction)
            if naive and naive.hbm and p.hbm
            else None
        )
        rows.append(
            (
                *lines.who(p),
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
    return Table((*lines.WHO, *more, lines.FROM), tuple(rows))

"""Figures of ratios: naive over tiled against the length, and block-sparse over dense against the blocks kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iosim.base.errors import InputError
from iosim.base.units import number_text
from iosim.base.words import Level
from iosim.prediction.predictor import predict
from iosim.prediction.result import marked
from iosim.problem.attention import AttentionProblem
from iosim.problem.fields import OF_THE_MASK
from iosim.problem.masks.blocks import BlockMask
from iosim.show import axes
from iosim.show.axes import layered
from iosim.show.page import Figure, Panel, Series
from iosim.studies.report.collect import Point, ReportRequest, baseline, by_gpu, series
from iosim.studies.report.figures import drawn, kernel_legend, who

QUANTITIES = {"l2": "SM<->L2 bytes", "hbm": "HBM bytes", "time": "time"}


def ratio(request: ReportRequest, points: Sequence[Point], level: Level) -> Figure | None:
    """Bytes of the naive kernel over those of every other at one level; None where there is nothing to compare."""
    base = baseline(points)
    below = {(p.gpu.label, p.seq_len): p for p in points if p.kernel == base}
    others = [k for k in request.kernels if any(p.kernel == k and not p.naive for p in points)]
    pairs = [
        (p, b, above / under)
        for k in others
        for p in points
        if p.kernel == k
        and (b := below.get((p.gpu.label, p.seq_len)))
        and (above := b.value(level))
        and (under := p.value(level))
    ]
    if base is None or not pairs:
        return None
    word = "SM<->L2" if level == "l2" else "HBM"
    cell = (lambda v, *ps: marked(v, *(p.prediction for p in ps))) if level == "hbm" else (lambda v, *ps: v)
    rows = tuple(
        (*who(p), base, cell(p.value(level), p), cell(b.value(level), b), cell(r, p, b), f"{p.id} {b.id}")
        for p, b, r in pairs
    )
    gpus = [g.label for g in request.gpus]
    x = axes.length_axis(request.lengths)
    y = axes.log_axis([r for *_, r in pairs], f"{base} / kernel", _times)
    panels = []
    for n, kernel in enumerate([k for k in others if any(p.kernel == k for p, *_ in pairs)], 1):
        data: list[dict[str, Any]] = []
        readings = []
        for g, label in enumerate(gpus):
            row = [(p, r) for p, _, r in pairs if p.kernel == kernel and p.gpu.label == label]
            if row:
                hover = [f"{label}, N = {p.seq_len:,}<br>{_times(r)}" for p, r in row]
                data.append(axes.line(label, [p.seq_len for p, _ in row], [r for _, r in row], hover, g))
                readings.append(f"{label} {_times(row[0][1])} to {_times(row[-1][1])}")
        alt = f"{word} bytes of {base} over those of {kernel}, from the shortest N to the longest: "
        alt += f"{'; '.join(readings)}."
        panels.append(Panel(f"ratio-{level}-{n}", f"{base} / {kernel}", alt, tuple(layered(data)), axes.layout(x, y)))
    there = {p.gpu.label for p, *_ in pairs}
    legend = [Series(label, axes.colour(g), axes.symbol(g)[1]) for g, label in enumerate(gpus) if label in there]
    words = {"word": word, "base": base, "level": level}
    return drawn("ratio", rows, panels, legend, id=f"ratio-{level}", words=words)


def _times(r: float) -> str:
    return f"{number_text(r)}x"


def without_mask(problem: AttentionProblem) -> AttentionProblem:
    return problem.with_(mask="none", window=None, window_right=None, **dict.fromkeys(OF_THE_MASK))


def kept(p: Point) -> float:
    """The share of blocks that the problem's mask keeps; 1 where it is no list of blocks."""
    mask = p.prediction.problem.pair_mask
    return mask.kept_fraction if isinstance(mask, BlockMask) else 1.0


def pairs(request: ReportRequest, points: Sequence[Point], commands: dict[str, str]) -> list[tuple[Point, Point]]:
    """(point, the same without a mask) of every point under a list of blocks; the command lines go to `commands`."""
    with_dense: list[tuple[Point, Point]] = []
    for p in points:
        if not isinstance(p.prediction.problem.pair_mask, BlockMask):
            continue
        dense = without_mask(p.prediction.problem)
        try:
            prediction = predict(dense, p.kernel, p.gpu.profile, l2_start=request.l2_start, method=request.method)
        except InputError:  # more than the method takes
            continue
        other = Point(f"D{len(with_dense) + 1:03d}", p.gpu, p.kernel, p.seq_len, prediction)
        commands[other.id] = request.predict_line(p.gpu, p.kernel, dense)
        with_dense.append((p, other))
    return with_dense


def density(request: ReportRequest, points: Sequence[Point], commands: dict[str, str]) -> Figure | None:
    """Sparse over dense against the share of blocks kept; None for a report without lists of blocks."""
    with_dense = pairs(request, points, commands)
    if not with_dense:
        return None
    rows = []
    for p, d in with_dense:
        cells = (cell for key in QUANTITIES for cell in _cells(p.value(key), d.value(key)))
        rows.append((*who(p), kept(p), *cells, f"{p.id} {d.id}"))
    legend = kernel_legend(request, ("as the blocks", "dot"))
    return drawn("density", rows, _panels(request, with_dense), legend)


def _cells(sparse: float | None, dense: float | None) -> tuple[float | None, ...]:
    return sparse, dense, sparse / dense if sparse is not None and dense else None


def _percent(share: float) -> str:
    return f"{number_text(100 * share)} %"


def _panels(request: ReportRequest, with_dense: list[tuple[Point, Point]]) -> tuple[Panel, ...]:
    x = axes.log_axis([kept(p) for p, _ in with_dense], "blocks kept", _percent)
    dense = {p.id: d for p, d in with_dense}
    panels: list[Panel] = []
    for gpu, members in by_gpu(p for p, _ in with_dense).items():
        for key, name in QUANTITIES.items():
            shares = {p.id: share for p in members if (share := _cells(p.value(key), dense[p.id].value(key))[2])}
            if not shares:
                continue
            ends = sorted(kept(p) for p in members)[:: max(1, len(members) - 1)]
            data, readings = [axes.guide("as the blocks", ends, ends, "as the blocks", "dot")], []
            for kernel, row in series(members).items():
                at = sorted((kept(p), shares[p.id], p) for p in row if p.id in shares)
                hover = [f"{kernel}, N = {p.seq_len:,}<br>{_percent(y)} of dense ({p.id})" for _, y, p in at]
                data.append(
                    axes.line(kernel, [s for s, *_ in at], [y for _, y, _ in at], hover, request.kernels.index(kernel))
                )
                readings.append(f"{kernel} {_percent(at[0][1])} of dense with {_percent(at[0][0])} of the blocks")
            y = axes.log_axis([*shares.values(), *ends], f"{name}, share of dense", _percent)
            panels.append(Panel(f"density-{key}-{len(panels) + 1}", f"{gpu}, {name}", f"{name} on {gpu}: "
                                f"{'; '.join(readings)}.", tuple(data), axes.layout(x, y)))  # fmt: skip
    return tuple(panels)
